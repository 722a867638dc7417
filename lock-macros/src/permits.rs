//! Parses the numbers of a semaphore, such as `permits = 10` and `take = jobs`, and generates code for them.

use lock_core::options::MAX_PERMITS;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprLit, Lit, LitInt, LitStr};

use crate::{
    mistakes::Mistakes,
    option_names,
    value::{self, path_like},
};

/// A number of permits.
pub(crate) enum Count {
    Literal(u32, LitInt),
    /// An expression of type `u32`, whose value is known only when the user's crate runs.
    Value(Expr),
}

impl Count {
    /// Returns the number if it is a literal, because only then the macro knows its value.
    pub(crate) fn known(&self) -> Option<u32> {
        match self {
            Self::Literal(count, _) => Some(*count),
            Self::Value(_) => None,
        }
    }

    /// Returns the tokens that the user wrote.
    pub(crate) fn tokens(&self) -> &dyn ToTokens {
        match self {
            Self::Literal(_, literal) => literal,
            Self::Value(value) => value,
        }
    }

    /// Generates the code for the number. rustc checks the type of an expression, and the engine checks its value.
    ///
    /// ```text
    /// 10      ⇒  10u32
    /// GPUS    ⇒  GPUS
    /// ```
    pub(crate) fn expand(&self) -> TokenStream {
        match self {
            Self::Literal(count, literal) => {
                let span = Span::mixed_site().located_at(literal.span());
                quote_spanned!(span=> #count)
            }
            Self::Value(value) => value.to_token_stream(),
        }
    }
}

pub(crate) fn read(name: &Ident, value: &Expr, mistakes: &mut Mistakes) -> Option<Count> {
    if let Some(literal) = value::text(value) {
        let meant = meant(name, literal);
        mistakes.add(
            literal,
            format_args!("`{name}` is a number, not a text: write `{meant}`, without quotes"),
        );
        return None;
    }
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(literal),
            ..
        }) if matches!(literal.suffix(), "" | "u32") => {
            // A literal that is too large for `u32` is also above every limit.
            let count = literal.base10_digits().parse().unwrap_or(u32::MAX);
            Some(Count::Literal(count, literal.clone()))
        }
        Expr::Lit(ExprLit {
            lit: Lit::Int(literal),
            ..
        }) => {
            mistakes.add(
                literal,
                format_args!(
                    "a number of permits has the type `u32`: write `{name} = {}`",
                    literal.base10_digits()
                ),
            );
            None
        }
        value if value::can_be_computed(value) => Some(Count::Value(value.clone())),
        other => {
            mistakes.add(
                other,
                format_args!(
                    "this is no number of permits: write `{}`, or an expression of type `u32`",
                    option_names::example(&name.to_string())
                ),
            );
            None
        }
    }
}

/// Returns the option that the user probably meant with a text: the number or the path in it, or otherwise an example.
fn meant(name: &Ident, literal: &LitStr) -> String {
    let text = literal.value();
    let number = text.parse().ok();
    if let Some(number) = number.filter(|number| (1..=MAX_PERMITS).contains(number)) {
        return format!("{name} = {number}");
    }
    match path_like(literal, "") {
        path if path.is_empty() => option_names::example(&name.to_string()).to_owned(),
        path => format!("{name} = {path}"),
    }
}

/// Refuses literals with which no call would enter. The engine checks all values again at run time.
pub(crate) fn agree(permits: Option<&Count>, take: Option<&Count>, mistakes: &mut Mistakes) {
    let of = permits.and_then(Count::known);
    let taken = take.and_then(Count::known);
    let is_usable = |of: &u32| (1..=MAX_PERMITS).contains(of);
    if let (Some(permits), Some(of)) = (permits, of) {
        match of {
            0 => mistakes.add(
                permits.tokens(),
                "a semaphore without permits admits no call: write `permits = 1` or more",
            ),
            of if !is_usable(&of) => mistakes.add(permits.tokens(), too_many("permits")),
            _ => {}
        }
    }
    if let (Some(take), Some(taken)) = (take, taken) {
        match (taken, of.filter(is_usable)) {
            (0, _) => mistakes.add(
                take.tokens(),
                "a call takes at least one permit: write `take = 1`, or remove the option",
            ),
            (taken, Some(of)) if taken > of => mistakes.add(
                take.tokens(),
                format_args!(
                    "a call cannot take {taken} of {of} permits: write `take = {of}` or less, or raise `permits`"
                ),
            ),
            (taken, None) if taken > MAX_PERMITS => {
                mistakes.add(take.tokens(), too_many("take"));
            }
            _ => {}
        }
    }
}

fn too_many(name: &str) -> String {
    format!("a semaphore has at most {MAX_PERMITS} permits: write `{name} = {MAX_PERMITS}` or less")
}

#[cfg(test)]
mod tests {
    use quote::quote;
    use syn::parse_quote;

    use super::*;

    fn tried(value: &Expr) -> Result<String, Vec<String>> {
        let mut mistakes = Mistakes::default();
        match read(&parse_quote!(permits), value, &mut mistakes) {
            Some(count) => Ok(count.expand().to_string()),
            None => Err(mistakes.messages()),
        }
    }

    #[test]
    fn literals_get_their_type_and_values_stay() {
        for value in [quote!(10), quote!(10u32), quote!(0xA), quote!(1_0)] {
            assert_eq!(tried(&parse_quote!(#value)), Ok("10u32".into()));
        }
        for value in [
            quote!(GPUS),
            quote!(limits::GPUS),
            quote!(Self::GPUS),
            quote!(jobs),
            quote!(*jobs),
            quote!(self.config.gpus),
            quote!(self.config.gpus()),
            quote!(limits().await?.gpus),
            quote!(GPUS / 2),
            quote!((10)),
        ] {
            assert_eq!(tried(&parse_quote!(#value)), Ok(value.to_string()));
        }
    }

    #[test]
    fn each_mistake_says_what_to_write() {
        let cases: [(Expr, &str); 14] = [
            (parse_quote!("10"), "write `permits = 10`, without quotes"),
            (parse_quote!("8"), "write `permits = 8`, without quotes"),
            (parse_quote!("0"), "write `permits = 10`, without quotes"),
            (parse_quote!("GPUS"), "write `permits = GPUS`"),
            (parse_quote!("ten of them"), "write `permits = 10`"),
            (parse_quote!(""), "write `permits = 10`"),
            (parse_quote!(10u64), "`u32`: write `permits = 10`"),
            (parse_quote!(5s), "`u32`: write `permits = 5`"),
            (parse_quote!(-5), "no number of permits"),
            (parse_quote!(1.5), "no number of permits"),
            (parse_quote!(true), "no number of permits"),
            (parse_quote!(1..5), "an expression of type `u32`"),
            (parse_quote!([1, 2]), "an expression of type `u32`"),
            (parse_quote!(|| 1), "an expression of type `u32`"),
        ];
        for (value, says) in &cases {
            let messages = tried(value).expect_err(says);
            assert!(
                messages.len() == 1 && messages[0].contains(says),
                "{messages:?}"
            );
        }
    }
}
