//! Third stage: the annotated item becomes a [`Function`], or the reason why it cannot be locked.
//!
//! Only the signature is parsed. The body stays tokens, so a half-typed one still expands.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::{
    Attribute, GenericArgument, LitStr, PathArguments, PathSegment, ReturnType, Signature, Token,
    Type, TypeParamBound, Visibility,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    spanned::Spanned as _,
};

use crate::mistakes::Mistakes;

/// A function that can be locked.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: Body,
    /// What the function returns: of a boxed one, what its future does.
    pub(crate) output: Type,
}

/// How a function is asynchronous.
pub(crate) enum Body {
    /// `async fn … { … }`
    Async(Group),
    /// `fn … -> Pin<Box<dyn Future<Output = …>>> { before; Box::pin(async move { … }) }`, as `#[async_trait]` leaves it.
    Boxed {
        /// Where the function's body stands.
        place: Span,
        before: TokenStream,
        /// `Box::pin`
        pin: TokenStream,
        /// The braces of the block.
        block: Group,
    },
}

impl Function {
    /// Reads the item, and reports one mistake if it cannot be locked.
    pub(crate) fn read(tokens: TokenStream, mistakes: &mut Mistakes) -> Option<Self> {
        let read = |input: ParseStream<'_>| Ok(function(input, mistakes));
        match read.parse2(tokens) {
            Ok(function) => function,
            // The end of the tokens was not reached: of no function, or a mistake that was reported.
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
    match item(input) {
        Ok(Item::Function {
            attrs,
            vis,
            defaultness,
            sig,
            body,
        }) => {
            if let Some(twice) = attrs.iter().find(|attr| is_this_attribute(attr)) {
                mistakes.add(
                    twice,
                    "a second lock on one function: stacked locks can deadlock, so let one key cover both",
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
            let (body, output) = asynchronous(&sig, body, mistakes)?;
            Some(Function {
                attrs,
                vis,
                defaultness,
                sig,
                body,
                output,
            })
        }
        Ok(Item::Other { keyword }) => {
            let message = match keyword.to_string().as_str() {
                "impl" => {
                    "an impl block has no one body to lock: annotate each method that needs a lock"
                        .to_owned()
                }
                word => format!("`{word}` has no body to lock: annotate an `async fn`"),
            };
            mistakes.add(keyword, message);
            None
        }
        Err(error) => {
            mistakes.add_at(
                error.span(),
                format_args!("this function cannot be read: {error}"),
            );
            None
        }
    }
}

fn is_this_attribute(attr: &Attribute) -> bool {
    let last = attr.path().segments.last();
    last.is_some_and(|segment| segment.ident == "distributed_lock")
}

enum Item {
    Function {
        attrs: Vec<Attribute>,
        vis: Visibility,
        defaultness: Option<Token![default]>,
        sig: Signature,
        body: Option<Group>,
    },
    Other {
        keyword: TokenTree,
    },
}

fn item(input: ParseStream<'_>) -> syn::Result<Item> {
    let mut attrs = input.call(Attribute::parse_outer)?;
    let vis = input.parse()?;
    if !begins_function(&input.fork()) {
        let keyword = input.parse()?;
        // What follows is not looked at.
        input.parse::<TokenStream>()?;
        return Ok(Item::Other { keyword });
    }
    let defaultness = input.parse()?;
    let sig = input.parse()?;
    if input.parse::<Option<Token![;]>>()?.is_some() {
        return Ok(Item::Function {
            attrs,
            vis,
            defaultness,
            sig,
            body: None,
        });
    }
    let body: Group = input.parse()?;
    let (inner, body) = without_inner_attributes(body)?;
    attrs.extend(inner);
    Ok(Item::Function {
        attrs,
        vis,
        defaultness,
        sig,
        body: Some(body),
    })
}

/// Whether nothing but qualifiers stands before a `fn`.
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

/// Inner attributes must open a function's body; before the function they mean the same.
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

/// Checks what a signature alone can say, and finds the body that runs asynchronously.
fn asynchronous(sig: &Signature, body: Group, mistakes: &mut Mistakes) -> Option<(Body, Type)> {
    if let Some(constness) = sig.constness {
        mistakes.add(
            constness,
            "a `const fn` cannot wait for a lock: write `async fn`",
        );
        return None;
    }
    if let Some(abi) = &sig.abi {
        mistakes.add(abi, "an `extern` function cannot wait for a lock: write `async fn` without an ABI, and call that");
        return None;
    }
    if let Some(variadic) = &sig.variadic {
        mistakes.add(
            variadic,
            "a variadic function cannot be locked: write `async fn` with fixed arguments",
        );
        return None;
    }
    if sig.asyncness.is_some() {
        let output = result(&sig.output, sig.ident.span(), mistakes)?;
        return Some((Body::Async(body), output));
    }
    if let ReturnType::Type(_, returned) = &sig.output {
        if let Some(output) = boxed_output(returned) {
            let output = result(
                &ReturnType::Type(Default::default(), Box::new(output.clone())),
                output.span(),
                mistakes,
            )?;
            let Some(body) = boxed(&body) else {
                mistakes.add(
                    returned,
                    "a function that boxes its future can be locked if it ends in `Box::pin(async move { … })`: write that, or `async fn`",
                );
                return None;
            };
            return Some((body, output));
        }
        if is_future(returned) {
            mistakes.add(
                returned,
                "a function that returns a future begins before it is locked: write `async fn` and return the future's output",
            );
            return None;
        }
    }
    if sig.ident == "main" {
        mistakes.add(
            sig.fn_token,
            "this `main` is not async: write `async fn main`, with `#[distributed_lock]` above `#[tokio::main]`",
        );
    } else {
        mistakes.add(
            sig.fn_token,
            "a function that is not async cannot wait for a lock: write `async fn`, or lock explicitly with `client.lock(\"…\").blocking_acquire()`",
        );
    }
    None
}

/// The return type, if tokens do not already tell that it is no `Result`.
fn result(output: &ReturnType, name: Span, mistakes: &mut Mistakes) -> Option<Type> {
    const NOTHING: &str = "the function returns nothing, so a lock that fails could not be told: write `-> Result<(), lock_runtime::LockError>`";
    match output {
        ReturnType::Default => mistakes.add_at(name, NOTHING),
        ReturnType::Type(_, output) => match ungrouped(output) {
            Type::Tuple(unit) if unit.elems.is_empty() => mistakes.add(unit, NOTHING),
            Type::Never(never) => mistakes.add(never, NOTHING),
            Type::ImplTrait(hidden) => mistakes.add(
                hidden,
                "a hidden return type could not carry a lock's failure: write `-> Result<impl …, E>` with `E: From<LockError>`",
            ),
            known => return Some(known.clone()),
        },
    }
    None
}

/// The type without parentheses and the invisible groups of `macro_rules`.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        other => other,
    }
}

/// The last segment of a type's path.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ungrouped(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// `Name<T, …>` ⇒ `T`
fn argument_of<'a>(name: &str, ty: &'a Type) -> Option<&'a Type> {
    let segment = last_segment(ty).filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(generics) = &segment.arguments else {
        return None;
    };
    generics.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// `Pin<Box<dyn Future<Output = T> + …>>` ⇒ `T`
fn boxed_output(ty: &Type) -> Option<&Type> {
    let Type::TraitObject(object) = ungrouped(argument_of("Box", argument_of("Pin", ty)?)?) else {
        return None;
    };
    let future = object.bounds.iter().find_map(future_bound)?;
    let PathArguments::AngleBracketed(generics) = &future.arguments else {
        return None;
    };
    generics.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
        _ => None,
    })
}

fn future_bound(bound: &TypeParamBound) -> Option<&PathSegment> {
    match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .filter(|segment| segment.ident == "Future"),
        _ => None,
    }
}

fn is_future(ty: &Type) -> bool {
    match ungrouped(ty) {
        Type::ImplTrait(hidden) => hidden
            .bounds
            .iter()
            .any(|bound| future_bound(bound).is_some()),
        named => last_segment(named)
            .is_some_and(|last| last.ident == "BoxFuture" || last.ident == "LocalBoxFuture"),
    }
}

/// Takes the tail off a body that ends in `Box::pin(async move { … })`.
fn boxed(body: &Group) -> Option<Body> {
    let mut before: Vec<TokenTree> = body.stream().into_iter().collect();
    let call = match before.pop()? {
        TokenTree::Group(call) if call.delimiter() == Delimiter::Parenthesis => call,
        _ => return None,
    };
    // From the end: `pin`, `::`, `Box`, and what else belongs to the path.
    let mut start = before.len();
    while start > 0 && continues_path(&before[start - 1], before.get(start)) {
        start -= 1;
    }
    let pin: TokenStream = before.split_off(start).into_iter().collect();
    let path: syn::Path = syn::parse2(pin.clone()).ok()?;
    let mut names = path.segments.iter().rev().map(|segment| &segment.ident);
    if !(names.next()? == "pin" && names.next()? == "Box") {
        return None;
    }
    let block = |input: ParseStream<'_>| {
        input.parse::<Token![async]>()?;
        input.parse::<Token![move]>()?;
        let block: Group = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(block)
    };
    let block = block
        .parse2(call.stream())
        .ok()
        .filter(|block| block.delimiter() == Delimiter::Brace)?;
    Some(Body::Boxed {
        place: body.span(),
        before: before.into_iter().collect(),
        pin,
        block,
    })
}

/// Whether this token, before that one, is part of a path: names and `::` take turns.
fn continues_path(token: &TokenTree, after: Option<&TokenTree>) -> bool {
    let is_colon =
        |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    match token {
        TokenTree::Ident(_) => after.is_none_or(is_colon),
        TokenTree::Punct(_) => is_colon(token) && after.is_some(),
        _ => false,
    }
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
            (
                quote!(
                    fn f() -> R {
                        body
                    }
                ),
                "blocking_acquire",
            ),
            (
                quote!(
                    fn main() {
                        body
                    }
                ),
                "above `#[tokio::main]`",
            ),
            (
                quote!(
                    const fn f() -> R {
                        body
                    }
                ),
                "`const fn`",
            ),
            (
                quote!(
                    unsafe extern "C" fn f() -> R {
                        body
                    }
                ),
                "without an ABI",
            ),
            (
                quote!(
                    unsafe fn f(args: ...) -> R {
                        body
                    }
                ),
                "variadic",
            ),
            (
                quote!(
                    pub struct S {
                        field: u8,
                    }
                ),
                "`struct`",
            ),
            (
                quote!(
                    enum E {}
                ),
                "`enum`",
            ),
            (
                quote!(
                    mod m {}
                ),
                "`mod`",
            ),
            (
                quote!(
                    unsafe trait T {}
                ),
                "`unsafe`",
            ),
            (
                quote!(
                    const C: u8 = 1;
                ),
                "`const`",
            ),
            (
                quote!(
                    extern "C" {
                        fn f();
                    }
                ),
                "`extern`",
            ),
            (quote!(impl S { async fn f() {} }), "annotate each method"),
            (
                quote!(
                    async fn f() -> R;
                ),
                "no body",
            ),
            (
                quote!(
                    fn f() -> impl Future<Output = R> {
                        body
                    }
                ),
                "returns a future",
            ),
            (
                quote!(
                    fn f() -> BoxFuture<'static, R> {
                        body
                    }
                ),
                "returns a future",
            ),
            (
                quote!(
                    fn f() -> Pin<Box<dyn Future<Output = R>>> {
                        body
                    }
                ),
                "`Box::pin(async move { … })`",
            ),
            (
                quote!(
                    #[distributed_lock(key = "b")]
                    async fn f() -> R {
                        body
                    }
                ),
                "second lock",
            ),
            (
                quote!(
                    async fn f() -> impl Display {
                        body
                    }
                ),
                "hidden return type",
            ),
            (
                quote!(
                    async fn f() {
                        body
                    }
                ),
                "returns nothing",
            ),
            (
                quote!(
                    async fn f() -> () {
                        body
                    }
                ),
                "returns nothing",
            ),
            (
                quote!(
                    async fn f() -> ! {
                        body
                    }
                ),
                "returns nothing",
            ),
            (
                quote!(
                    fn f() -> Pin<Box<dyn Future<Output = ()>>> {
                        Box::pin(async move {})
                    }
                ),
                "returns nothing",
            ),
            (quote!(async fn f(x) -> R { body }), "cannot be read"),
        ] {
            let text = item.to_string();
            let messages = read(item).err().unwrap_or_default();
            assert!(
                messages.len() == 1 && messages[0].contains(says),
                "{text}: {messages:?}"
            );
        }
    }

    #[test]
    fn the_tail_of_a_boxed_body_is_found() {
        let function = read(quote! {
            fn f(&self) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = R> + Send + '_>> {
                before();
                ::std::boxed::Box::pin(async move { inside },)
            }
        });
        let function = function.unwrap_or_else(|messages| panic!("{messages:?}"));
        let Body::Boxed {
            before, pin, block, ..
        } = function.body
        else {
            panic!("not boxed");
        };
        assert_eq!(before.to_string(), quote!(before();).to_string());
        assert_eq!(pin.to_string(), quote!(::std::boxed::Box::pin).to_string());
        assert_eq!(block.to_string(), quote!({ inside }).to_string());
        let output = function.output;
        assert_eq!(quote!(#output).to_string(), "R");
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
