//! A duration as an option's value: a literal with a unit, or a path to a `const Duration`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Expr, ExprLit, ExprPath, Ident, Lit, LitStr};

use crate::{mistakes::Mistakes, value};

pub(crate) enum Length {
    Literal(Duration, LitStr),
    /// Its value exists only when the user's crate is compiled.
    Path(ExprPath),
}

impl Length {
    /// The value, if the macro can see it.
    pub(crate) fn known(&self) -> Option<Duration> {
        match self {
            Self::Literal(duration, _) => Some(*duration),
            Self::Path(_) => None,
        }
    }

    /// What the user wrote.
    pub(crate) fn tokens(&self) -> &dyn ToTokens {
        match self {
            Self::Literal(_, literal) => literal,
            Self::Path(path) => path,
        }
    }

    /// ```text
    /// "5s"           ⇒  ::core::time::Duration::new(5u64, 0u32)
    /// limits::WAIT   ⇒  limits::WAIT
    /// ```
    pub(crate) fn expand(&self) -> TokenStream {
        match self {
            Self::Literal(duration, literal) => {
                let (secs, nanos) = (duration.as_secs(), duration.subsec_nanos());
                let span = Span::mixed_site().located_at(literal.span());
                quote_spanned!(span=> ::core::time::Duration::new(#secs, #nanos))
            }
            Self::Path(path) => quote!(#path),
        }
    }
}

pub(crate) fn read(name: &Ident, value: &Expr, mistakes: &mut Mistakes) -> Option<Length> {
    if let Some(literal) = value::text(value) {
        return match lock_core::duration::parse(&literal.value()) {
            Ok(duration) => Some(Length::Literal(duration, literal.clone())),
            Err(error) => {
                mistakes.add(literal, error);
                None
            }
        };
    }
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
            let unit = if number.suffix().is_empty() { "s" } else { number.suffix() };
            let digits = number.base10_digits();
            mistakes.add(
                number,
                format_args!("a duration is a text with a unit: write `{name} = \"{digits}{unit}\"`"),
            );
        }
        Expr::Path(path) => return Some(Length::Path(path.clone())),
        other => mistakes.add(
            other,
            format_args!("this is no duration: write `{name} = \"5s\"`, or the path of a `const` of type `Duration`"),
        ),
    }
    None
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn tried(value: &Expr) -> Result<String, Vec<String>> {
        let mut mistakes = Mistakes::default();
        match read(&parse_quote!(wait), value, &mut mistakes) {
            Some(length) => Ok(length.expand().to_string()),
            None => Err(mistakes.messages()),
        }
    }

    #[test]
    fn literals_become_constants_and_paths_stay() {
        let constant = quote!(::core::time::Duration::new(1u64, 500000000u32)).to_string();
        assert_eq!(tried(&parse_quote!("1500ms")), Ok(constant));
        assert_eq!(
            tried(&parse_quote!(limits::WAIT)),
            Ok(quote!(limits::WAIT).to_string())
        );
    }

    #[test]
    fn each_mistake_says_what_to_write() {
        let cases: [(Expr, &str); 9] = [
            (parse_quote!("5"), "needs a unit"),
            (parse_quote!(5), "write `wait = \"5s\"`"),
            (parse_quote!(250ms), "write `wait = \"250ms\"`"),
            (parse_quote!("-5s"), "a whole number and a unit"),
            (parse_quote!(-5), "no duration"),
            (parse_quote!("5 s"), "one whole number and one unit"),
            (parse_quote!("99999999999999999999s"), "too long"),
            (parse_quote!("5s"x), "no duration"),
            (
                parse_quote!(Duration::from_secs(5)),
                "`const` of type `Duration`",
            ),
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
