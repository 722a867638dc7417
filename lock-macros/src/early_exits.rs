//! Finds a `return` or `?` before the end of a function that returns a future.
//!
//! The statements before `Box::pin(async move { … })` or `async move { … }` run at the call, without the lock. A `return` among them would
//! return another future, which runs without the lock too.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{
    Block, Expr, Item, Macro, Stmt, Token,
    parse::Parser as _,
    punctuated::Punctuated,
    visit_mut::{self, VisitMut},
};

/// A `return` or `?` that leaves the function.
pub(crate) struct EarlyExit {
    pub(crate) place: Span,
    pub(crate) written: &'static str,
}

/// Returns each `return` or `?` in the tokens before `Box::pin(async move { … })` that leaves the function. A `return`
/// directly before the future is not among them, because it returns the locked future. The search does not expand
/// macros, so it does not find a `return` that a macro generates.
pub(crate) fn early_exits(before: &TokenStream) -> Vec<EarlyExit> {
    let mut before: Vec<TokenTree> = before.clone().into_iter().collect();
    before.pop_if(|last| is_return(last));
    let mut search = Search(Vec::new());
    search.code(before.into_iter().collect());
    search.0
}

fn is_return(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(word) if word == "return")
}

struct Search(Vec<EarlyExit>);

impl Search {
    fn add(&mut self, place: Span, written: &'static str) {
        self.0.push(EarlyExit { place, written });
    }

    /// Searches statements or the arguments of a macro.
    fn code(&mut self, tokens: TokenStream) {
        let list = Punctuated::<Expr, Token![,]>::parse_terminated;
        if let Ok(mut statements) = Block::parse_within.parse2(tokens.clone()) {
            let statements: &mut [Stmt] = &mut statements;
            statements
                .iter_mut()
                .for_each(|one| self.visit_stmt_mut(one));
        } else if let Ok(mut list) = list.parse2(tokens.clone()) {
            list.iter_mut().for_each(|one| self.visit_expr_mut(one));
        } else {
            self.unparsed(tokens);
        }
    }

    /// Searches tokens that syn cannot parse. A `return` in a closure counts too, because without a parser, the search
    /// cannot know where a closure ends.
    fn unparsed(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.unparsed(group.stream()),
                token if is_return(&token) => self.add(token.span(), "return"),
                _ => {}
            }
        }
    }
}

impl VisitMut for Search {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            // A `return` or `?` in a closure or an `async` block does not leave the function.
            Expr::Closure(_) | Expr::Async(_) => return,
            Expr::Return(exit) => self.add(exit.return_token.span, "return"),
            Expr::Try(exit) => self.add(exit.question_token.span, "?"),
            Expr::Verbatim(tokens) => self.unparsed(tokens.clone()),
            _ => {}
        }
        visit_mut::visit_expr_mut(self, expr);
    }

    fn visit_item_mut(&mut self, _nested: &mut Item) {}

    fn visit_macro_mut(&mut self, call: &mut Macro) {
        self.code(call.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_function_is_found() {
        for (before, found) in [
            ("", &[] as &[&str]),
            ("let m = n - 1; check(m);", &[]),
            ("return", &[]),
            ("check(); return", &[]),
            ("if fast { return Box::pin(quick()); }", &["return"]),
            ("return later(); return", &["return"]),
            ("let m = parse(text)?;", &["?"]),
            ("let Some(m) = n else { return a(b?) };", &["return", "?"]),
            ("match n { 0 => return zero(), m => check(m) }", &["return"]),
            ("loop { unsafe { return zero() } }", &["return"]),
            ("let f = |n| { if n { return 1; } g(n)? };", &[]),
            ("let f = async move { return g()?; };", &[]),
            (
                "fn g() -> R { return h()?; } impl S { fn g() -> R { return h(); } }",
                &[],
            ),
            ("log!(\"{}\", n, return zero());", &["return"]),
            ("log!({ return zero() });", &["return"]),
            ("log!(\"{}\", f(|n| { return n }), n?);", &["?"]),
            ("log!(n => { return zero() });", &["return"]),
            ("let x = log!(n => return zero());", &["return"]),
            ("let x = a. ; if n { return zero() }", &["return"]),
        ] {
            let exits = early_exits(&before.parse().unwrap());
            let written: Vec<_> = exits.iter().map(|exit| exit.written).collect();
            assert_eq!(written, found, "{before}");
        }
    }
}
