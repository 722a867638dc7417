//! Third stage of the expansion: parses the annotated item into a [`Function`], or reports why the item cannot be
//! locked.
//!
//! The macro parses only the signature of a function. The body stays a token stream, so the macro can expand a function
//! with an incomplete body too.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::{
    Attribute, LitStr, Signature, Token, Type, Visibility,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
};

use crate::{
    mistakes::Mistakes,
    shape::{Body, asynchronous, is_called},
};

/// A function that can be locked.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: Body,
    /// The output type of the `async fn` or of the boxed future.
    pub(crate) output: Type,
}

impl Function {
    /// Reads the item. If the item cannot be locked, reports why and returns `None`.
    pub(crate) fn read(tokens: TokenStream, mistakes: &mut Mistakes) -> Option<Self> {
        let read = |input: ParseStream<'_>| Ok(function(input, mistakes));
        match read.parse2(tokens) {
            Ok(function) => function,
            // The parser also fails if tokens are left unread. Its error is reported only if there is no other mistake.
            Err(_) if !mistakes.is_empty() => None,
            Err(error) => {
                mistakes.add_at(
                    error.span(),
                    format_args!("this function cannot be read: {error}"),
                );
                None
            }
        }
    }
}

fn function(input: ParseStream<'_>, mistakes: &mut Mistakes) -> Option<Function> {
    let declared = match declared(input, mistakes) {
        Ok(declared) => declared?,
        Err(error) => {
            mistakes.add_at(
                error.span(),
                format_args!("this function cannot be read: {error}"),
            );
            return None;
        }
    };
    let Declared {
        attrs,
        vis,
        defaultness,
        sig,
        body,
    } = declared;
    let mut these = attrs
        .iter()
        .filter(|attr| is_called(attr, "distributed_lock"));
    if let Some(twice) = these.next() {
        mistakes.add(
            twice,
            "a second lock on one function: stacked locks can deadlock, so name both in one attribute, as in `keys = [\"a\", \"b:<id>\"]`",
        );
        return None;
    }
    if let Some(variadic) = &sig.variadic {
        mistakes.add(
            variadic,
            "a variadic function cannot be locked: write `async fn` with fixed arguments",
        );
        return None;
    }
    let Some(body) = body else {
        mistakes.add(
            &sig.ident,
            "this function has no body to lock: annotate the functions that implement it",
        );
        return None;
    };
    let (body, output) = asynchronous(&attrs, &sig, body, mistakes)?;
    Some(Function {
        attrs,
        vis,
        defaultness,
        sig,
        body,
        output,
    })
}

/// A parsed function with an optional body.
pub(crate) struct Declared {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: Option<Group>,
}

impl Declared {
    /// Reads a function. Returns `None` for anything else.
    pub(crate) fn read(item: TokenStream) -> Option<Self> {
        let read = |input: ParseStream<'_>| declared(input, &mut Mistakes::default());
        read.parse2(item).ok().flatten()
    }
}

/// Reads a function. Reports any other item as a mistake, and returns `None`.
fn declared(input: ParseStream<'_>, mistakes: &mut Mistakes) -> syn::Result<Option<Declared>> {
    let mut attrs = input.call(Attribute::parse_outer)?;
    let vis = input.parse()?;
    if !begins_function(&input.fork()) {
        let keyword: TokenTree = input.parse()?;
        let message = match keyword.to_string().as_str() {
            "impl" => {
                "an impl block has no one body to lock: annotate each method that needs a lock"
                    .to_owned()
            }
            word => format!("`{word}` has no body to lock: annotate an `async fn`"),
        };
        mistakes.add(keyword, message);
        // Skips the remaining tokens of the item.
        input.parse::<TokenStream>()?;
        return Ok(None);
    }
    let defaultness = input.parse()?;
    let sig = input.parse()?;
    let body = if input.parse::<Option<Token![;]>>()?.is_some() {
        None
    } else {
        let (inner, body) = without_inner_attributes(braces(input)?)?;
        attrs.extend(inner);
        Some(body)
    };
    Ok(Some(Declared {
        attrs,
        vis,
        defaultness,
        sig,
        body,
    }))
}

/// Returns whether the item is a `fn` preceded only by qualifiers.
fn begins_function(ahead: ParseStream<'_>) -> bool {
    while !ahead.peek(Token![fn]) {
        let qualifier = match ahead.call(Ident::parse_any) {
            Ok(word) => ["default", "const", "async", "unsafe", "safe", "extern"]
                .iter()
                .any(|known| word == known),
            Err(_) => ahead.parse::<LitStr>().is_ok(),
        };
        if !qualifier {
            return false;
        }
    }
    true
}

/// Reads a block. `macro_rules` puts a `block` fragment into an invisible group, which this function removes.
pub(crate) fn braces(input: ParseStream<'_>) -> syn::Result<Group> {
    let place = input.span();
    let mut tree: TokenTree = input.parse()?;
    loop {
        let TokenTree::Group(group) = tree else { break };
        match group.delimiter() {
            Delimiter::Brace => return Ok(group),
            Delimiter::None => match group.stream().into_iter().next() {
                Some(inner) => tree = inner,
                None => break,
            },
            _ => break,
        }
    }
    Err(syn::Error::new(place, "expected a block in braces"))
}

/// Moves inner attributes out of the body. Inner attributes are allowed only at the start of a body, where the
/// expansion puts its own code. An attribute in front of the function has the same meaning, so this method puts each
/// inner attribute there.
///
/// ```text
/// fn f() { #![allow(lint)] … }   ⇒   #[allow(lint)] fn f() { … }
/// ```
fn without_inner_attributes(body: Group) -> syn::Result<(Vec<Attribute>, Group)> {
    let split = |input: ParseStream<'_>| {
        Ok((
            input.call(Attribute::parse_inner)?,
            input.parse::<TokenStream>()?,
        ))
    };
    let (mut attrs, rest) = split.parse2(body.stream())?;
    if attrs.is_empty() {
        return Ok((attrs, body));
    }
    for attr in &mut attrs {
        attr.style = syn::AttrStyle::Outer;
    }
    let mut trimmed = Group::new(Delimiter::Brace, rest);
    trimmed.set_span(body.span());
    Ok((attrs, trimmed))
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn read(tokens: TokenStream) -> Result<Function, Vec<String>> {
        let mut mistakes = Mistakes::default();
        match Function::read(tokens, &mut mistakes) {
            Some(function) if mistakes.is_empty() => Ok(function),
            _ => Err(mistakes.messages()),
        }
    }

    #[test]
    fn what_cannot_be_locked_is_told_once() {
        for (item, says) in [
            ("fn f() -> R { body }", "blocking_acquire"),
            ("fn main() { body }", "above `#[tokio::main]`"),
            ("#[test] fn f() -> R { body }", "this test is not async"),
            (
                "#[test] fn f() -> R { rt.block_on(body) }",
                "has already removed `async`",
            ),
            (
                "fn f() -> R { rt.block_on(body) }",
                "above `#[tokio::main]`",
            ),
            ("const fn f() -> R { body }", "`const fn`"),
            ("unsafe extern \"C\" fn f() -> R { body }", "without an ABI"),
            (
                "unsafe extern \"C\" fn f(args: ...) -> R { body }",
                "variadic",
            ),
            ("fn f(args: ...) -> R;", "variadic"),
            ("pub struct S { field: u8 }", "`struct`"),
            ("pub(crate) enum E {}", "`enum`"),
            ("mod m {}", "`mod`"),
            ("unsafe trait T {}", "`unsafe`"),
            ("const C: u8 = 1;", "`const`"),
            ("extern \"C\" { fn f(); }", "`extern`"),
            ("impl S { async fn f() {} }", "annotate each method"),
            ("async fn f() -> R;", "no body"),
            (
                "fn f() -> impl Future<Output = R> { body }",
                "returns a future",
            ),
            (
                "fn f() -> BoxFuture<'static, R> { body }",
                "returns a future",
            ),
            (
                "fn f() -> Pin<Box<dyn Future<Output = R>>> { body }",
                "ends in `Box::pin(async move { … })`",
            ),
            (
                "fn f() -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(async move {}) }",
                "returns nothing",
            ),
            (
                "fn f() -> Pin<Box<dyn Future<Output = R>>> { if x { return y } Box::pin(async move { body }) }",
                "this `return` would leave",
            ),
            (
                "fn f() -> BoxFuture<'static, R> { x?; Box::pin(async move { body }) }",
                "this `?` would leave",
            ),
            (
                "#[distributed_lock(key = \"b\")] async fn f() -> R { body }",
                "second lock",
            ),
            (
                "async fn f() -> impl Display { body }",
                "hidden return type",
            ),
            ("async fn f() { body }", "returns nothing"),
            ("async fn f() -> () { body }", "returns nothing"),
            ("async fn f() -> ! { body }", "returns nothing"),
            ("async fn f(x) -> R { body }", "cannot be read"),
        ] {
            let messages = read(item.parse().unwrap()).err().unwrap_or_default();
            assert!(
                messages.len() == 1 && messages[0].contains(says),
                "{item}: {messages:?}"
            );
        }
    }

    #[test]
    fn inner_attributes_move_out() {
        let function = read(quote!(
            async fn f() -> R {
                #![allow(unused)]
                body
            }
        ));
        let function = function.unwrap_or_else(|messages| panic!("{messages:?}"));
        assert_eq!(function.attrs.len(), 1);
        let Body::Async(body) = function.body else {
            panic!("not async");
        };
        assert_eq!(body.to_string(), quote!({ body }).to_string());
    }
}
