//! Parses one `name = value` of the attribute. `option_names.rs` lists the valid names, and `value.rs` parses the
//! value.

use proc_macro2::TokenTree;
use syn::{
    Expr, ExprArray, Ident, LitStr, Token, bracketed, ext::IdentExt as _, parse::ParseStream,
    parse_quote, punctuated::Punctuated, token,
};

use crate::{mistakes::Mistakes, option_names, value};

/// Reads one `name = value`. Returns `None` if the mistake is in the name, or if no value follows. [`separator`] then
/// skips what is left of the option.
pub(crate) fn option(input: ParseStream<'_>, mistakes: &mut Mistakes) -> Option<(Ident, Expr)> {
    if input.peek(LitStr) {
        mistakes.add_at(
            input.span(),
            "an option needs its name: write `key = \"…\"`",
        );
        return None;
    }
    let Ok(name) = input.call(Ident::parse_any) else {
        mistakes.add_at(
            input.span(),
            "an option is written `name = value`, as in `wait = \"5s\"`",
        );
        return None;
    };
    if !input.peek(Token![=]) || input.peek(Token![==]) {
        let written = name.unraw().to_string();
        if option_names::is_known(&written) {
            let example = option_names::example(&written);
            mistakes.add(
                &name,
                format_args!("`{written}` needs `=` and a value: write `{example}`"),
            );
        } else {
            mistakes.add(&name, option_names::unknown(&written));
        }
        return None;
    }
    let _: Option<Token![=]> = input.parse().ok();
    // At the end of the input, `input.span()` would be the span of the whole attribute.
    let value = if input.is_empty() {
        name.span()
    } else {
        input.span()
    };
    if name.to_string().starts_with("key") && input.peek(Ident) && input.peek2(LitStr) {
        mistakes.add_at(
            value,
            "only a list gives single keys a mode, as in `keys = [\"account:<from>\", read \"rates\"]`: for one key, write `mode = read`",
        );
        return None;
    }
    let parsed = match name == "keys" && input.peek(token::Bracket) {
        true => list(input),
        false => input.parse(),
    };
    match parsed {
        Ok(expr) => Some((name, value::ungrouped(expr))),
        Err(_) => {
            let example = option_names::example(&name.unraw().to_string());
            mistakes.add_at(
                value,
                format_args!("this is no value for `{name}`: write `{example}`"),
            );
            None
        }
    }
}

/// Reads a list of keys. `read "key"` stands for the call `read("key")`, and `write "key"` for `write("key")`, because the value of
/// an option is an expression.
fn list(input: ParseStream<'_>) -> syn::Result<Expr> {
    let content;
    let bracket_token = bracketed!(content in input);
    let key = |input: ParseStream<'_>| -> syn::Result<Expr> {
        if !input.peek(Ident) || !input.peek2(LitStr) {
            return input.parse();
        }
        let (mode, key) = (input.parse::<Ident>()?, input.parse::<LitStr>()?);
        Ok(parse_quote!(#mode(#key)))
    };
    Ok(Expr::Array(ExprArray {
        attrs: Vec::new(),
        bracket_token,
        elems: Punctuated::parse_terminated_with(&content, key)?,
    }))
}

/// Reads the comma after an option, or skips to the next option. A missing comma is not reported if the option has
/// another mistake, because the tokens after it possibly belong to its value, as in `key = order:<id>`.
pub(crate) fn separator(input: ParseStream<'_>, has_mistake: bool, mistakes: &mut Mistakes) {
    if !has_mistake && !input.is_empty() && !input.peek(Token![,]) {
        let next = input.cursor().token_tree();
        let next = next.map(|(tree, _)| tree.to_string());
        mistakes.add_at(
            input.span(),
            format_args!(
                "no comma before `{}`: separate the options by commas",
                next.unwrap_or_default()
            ),
        );
    }
    if !(input.peek(Ident::peek_any) && input.peek2(Token![=])) {
        skip_to_comma(input);
    }
    let _: Option<Token![,]> = input.parse().ok();
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        let _ = input.parse::<TokenTree>();
    }
}
