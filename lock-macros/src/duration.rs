//! Parses the attribute's durations, such as `wait = "5s"` or `wait = limits::WAIT`, and generates code for them.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprLit, ExprPath, Lit, LitStr, spanned::Spanned as _};

use crate::{mistakes::Mistakes, value};

pub(crate) enum Length {
    Literal(Duration, LitStr),
    /// An expression whose value is known only when the user's crate is compiled or runs.
    Value(Expr),
}

impl Length {
    /// Returns the duration if it is a literal, because only then the macro knows its value.
    pub(crate) fn known(&self) -> Option<Duration> {
        match self {
            Self::Literal(duration, _) => Some(*duration),
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

    /// Generates the code for the duration. A constant is checked when the user's crate is compiled.
    ///
    /// ```text
    /// "5s"                ⇒  ROOT::__private::v1::length(5u64, 0u32)
    /// limits::WAIT        ⇒  { const __CHECKED: ROOT::__private::v1::Length = ROOT::__private::v1::wait(limits::WAIT); __CHECKED }
    /// Self::WAIT          ⇒  const { ROOT::__private::v1::wait(Self::WAIT) }
    /// self.config.wait    ⇒  self.config.wait
    /// ```
    ///
    /// `option` is the name of the option, and of the `const fn` that checks its value. A `const` item cannot refer to
    /// the generics of the user's function or to `Self`. A constant that can refer to generics or `Self` is therefore
    /// checked in a `const` block. rustc evaluates such a block only if the user's function is used. `Length` is an alias
    /// of `Duration`, so that the expansion names no type and no function that the user's clippy.toml can disallow.
    pub(crate) fn expand(&self, private: &TokenStream, option: &str) -> TokenStream {
        let span = Span::mixed_site().located_at(self.tokens().span());
        // The path of the checking function gets the span of the option's value. rustc therefore reports a failed check
        // at that value.
        let private = private.clone().into_iter().map(|mut token| {
            token.set_span(token.span().located_at(span));
            token
        });
        let private: TokenStream = private.collect();
        let option = Ident::new(option, span);
        match self {
            Self::Literal(duration, _) => {
                let (secs, nanos) = (duration.as_secs(), duration.subsec_nanos());
                quote_spanned!(span=> #private::length(#secs, #nanos))
            }
            Self::Value(Expr::Path(path)) if is_constant(path) => match is_of_a_type(path) {
                true => quote_spanned!(span=> const { #private::#option(#path) }),
                false => quote_spanned! {span=> {
                    const __CHECKED: #private::Length = #private::#option(#path);
                    __CHECKED
                }},
            },
            Self::Value(value) => value.to_token_stream(),
        }
    }
}

/// Returns whether the path looks like a constant, as `limits::WAIT` does.
fn is_constant(path: &ExprPath) -> bool {
    let last = path.path.segments.last().map(|last| last.ident.to_string());
    last.is_some_and(|name| name.contains(char::is_uppercase) && !name.contains(char::is_lowercase))
}

/// Returns whether the path of a constant looks like an associated constant, as `Self::WAIT` does.
fn is_of_a_type(path: &ExprPath) -> bool {
    let segments = &path.path.segments;
    let owner = segments
        .len()
        .checked_sub(2)
        .map(|owner| &segments[owner].ident);
    path.qself.is_some()
        || owner.is_some_and(|owner| owner.to_string().starts_with(char::is_uppercase))
}

pub(crate) fn read(name: &Ident, value: &Expr, mistakes: &mut Mistakes) -> Option<Length> {
    if let Some(literal) = value::text(value) {
        let text = literal.value();
        return match lock_core::duration::parse(&text) {
            Ok(duration) => Some(Length::Literal(duration, literal.clone())),
            Err(error) => {
                match meant(&text) {
                    Some(meant) => mistakes.add(
                        literal,
                        format_args!("`\"{text}\"` is no duration: write `{name} = \"{meant}\"`"),
                    ),
                    None => mistakes.add(literal, error),
                }
                None
            }
        };
    }
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) => {
            let unit = if number.suffix().is_empty() {
                "s"
            } else {
                number.suffix()
            };
            let digits = number.base10_digits();
            mistakes.add(
                number,
                format_args!(
                    "a duration is a text with a unit: write `{name} = \"{digits}{unit}\"`"
                ),
            );
            None
        }
        value if value::can_be_computed(value) => Some(Length::Value(value.clone())),
        other => {
            mistakes.add(
                other,
                format_args!("this is no duration: write `{name} = \"5s\"`, or an expression of type `Duration`"),
            );
            None
        }
    }
}

/// Returns the duration that the user probably meant, if the text is a number with an unsupported spelling of a unit,
/// such as `5min`.
fn meant(text: &str) -> Option<String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_lowercase().as_str() {
        "us" | "µs" | "μs" | "usec" | "usecs" | "micros" | "microsecond" | "microseconds" => "us",
        "ms" | "msec" | "msecs" | "milli" | "millis" | "millisecond" | "milliseconds" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return None,
    };
    let meant = format!("{number}{unit}");
    lock_core::duration::parse(&meant).is_ok().then_some(meant)
}

#[cfg(test)]
mod tests {
    use quote::quote;
    use syn::parse_quote;

    use super::*;

    fn tried(value: &Expr) -> Result<String, Vec<String>> {
        let mut mistakes = Mistakes::default();
        match read(&parse_quote!(wait), value, &mut mistakes) {
            Some(length) => Ok(length.expand(&quote!(root), "wait").to_string()),
            None => Err(mistakes.messages()),
        }
    }

    #[test]
    fn literals_and_constants_are_checked_and_values_stay() {
        let constant = quote!(root::length(1u64, 500000000u32)).to_string();
        assert_eq!(tried(&parse_quote!("1500ms")), Ok(constant));
        for path in [quote!(WAIT), quote!(limits::WAIT_2), quote!(crate::WAIT)] {
            let checked = quote!({ const __CHECKED: root::Length = root::wait(#path); __CHECKED });
            assert_eq!(tried(&parse_quote!(#path)), Ok(checked.to_string()));
        }
        for path in [
            quote!(Self::WAIT),
            quote!(<T as Limits>::WAIT),
            quote!(limits::Limits::WAIT),
        ] {
            let checked = quote!(const { root::wait(#path) });
            assert_eq!(tried(&parse_quote!(#path)), Ok(checked.to_string()));
        }
        for value in [
            quote!(wait),
            quote!(self.config.wait),
            quote!(self.config.wait()),
            quote!(Duration::from_secs(5)),
            quote!(*wait),
            quote!(limits().await.wait),
            quote!(WAIT * 2),
        ] {
            assert_eq!(tried(&parse_quote!(#value)), Ok(value.to_string()));
        }
    }

    #[test]
    fn each_mistake_says_what_to_write() {
        let cases: [(Expr, &str); 13] = [
            (parse_quote!("5"), "needs a unit"),
            (parse_quote!(5), "write `wait = \"5s\"`"),
            (parse_quote!(250ms), "write `wait = \"250ms\"`"),
            (parse_quote!("-5s"), "a whole number and a unit"),
            (parse_quote!(-5), "no duration"),
            (parse_quote!("5 s"), "write `wait = \"5s\"`"),
            (parse_quote!("5min"), "write `wait = \"5m\"`"),
            (parse_quote!("5S"), "write `wait = \"5s\"`"),
            (parse_quote!("90 Seconds"), "write `wait = \"90s\"`"),
            (parse_quote!("2 weeks"), "one whole number and one unit"),
            (parse_quote!("99999999999999999999s"), "too long"),
            (parse_quote!("5s"x), "no duration"),
            (parse_quote!(1..5), "an expression of type `Duration`"),
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
