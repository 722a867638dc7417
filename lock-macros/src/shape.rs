//! Determines whether a function is an `async fn` or returns a future, from the signature and from the end of the
//! body.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use syn::{
    Attribute, ReturnType, Signature, Token, Type,
    parse::{ParseStream, Parser as _},
    parse_quote_spanned,
    spanned::Spanned as _,
};

use crate::{
    early_exits::early_exits,
    mistakes::Mistakes,
    signature::braces,
    types::{future_output, is_future, ungrouped},
};

/// The body of an `async fn`, or of a function that returns a future.
pub(crate) enum Body {
    /// `async fn … { … }`
    Async(Group),
    /// `fn … -> Pin<Box<dyn Future<Output = …>>> { before; Box::pin(async move { … }) }`, as `#[async_trait]` generates
    /// it, or `fn … -> impl Future<Output = …> { before; async move { … } }`.
    Boxed {
        /// The span of the function's body.
        place: Span,
        before: TokenStream,
        /// The tokens of the path `Box::pin`. Empty if the future is not boxed.
        pin: TokenStream,
        /// The block of the `async move` expression, with its braces.
        block: Group,
    },
}

/// Checks the signature, and finds the part of the body that runs asynchronously. Returns this part and its output
/// type, or reports a mistake and returns `None`.
pub(crate) fn asynchronous(
    attrs: &[Attribute],
    sig: &Signature,
    body: Group,
    mistakes: &mut Mistakes,
) -> Option<(Body, Type)> {
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
    if sig.asyncness.is_some() {
        let output = result(&sig.output, sig.ident.span(), mistakes)?;
        return Some((Body::Async(body), output));
    }
    if let ReturnType::Type(_, returned) = &sig.output {
        if let Some(output) = future_output(returned) {
            let declared = match ungrouped(output) {
                // `#[async_trait]` generates the output type `()` for a method without a return type. The user did not
                // write this type, so errors are reported at the method's name.
                Type::Tuple(unit) if unit.elems.is_empty() => ReturnType::Default,
                known => ReturnType::Type(Default::default(), Box::new(known.clone())),
            };
            let output = result(&declared, sig.ident.span(), mistakes)?;
            let Some(body) = tail(&body) else {
                let message = if is_future(returned) {
                    "a function that returns a future can be locked if it ends in `async move { … }`: write that, or `async fn`"
                } else {
                    "a function that boxes its future can be locked if it ends in `Box::pin(async move { … })`: write that, or `async fn`"
                };
                mistakes.add(returned, message);
                return None;
            };
            check_exits(&body, mistakes)?;
            return Some((body, output));
        }
        // The return type can be an alias of a boxed future. The generated code therefore names the output type through
        // the `Future` trait.
        if matches!(ungrouped(returned), Type::Path(_))
            && let Some(body) = tail(&body)
        {
            check_exits(&body, mistakes)?;
            let place = Span::mixed_site().located_at(returned.span());
            let output =
                parse_quote_spanned!(place=> <#returned as ::core::future::Future>::Output);
            return Some((body, output));
        }
        if is_future(returned) {
            mistakes.add(
                returned,
                "this function returns a future, so a part of it would run without the lock: write `async fn` and return the future's output",
            );
            return None;
        }
    }
    let runs_runtime = names(body.stream(), "block_on");
    let message = if attrs.iter().any(|attr| is_called(attr, "test")) {
        if runs_runtime {
            "`#[tokio::test]` above `#[distributed_lock]` has already removed `async`: write `#[distributed_lock]` above `#[tokio::test]`"
        } else {
            "this test is not async: write `async fn`, with `#[distributed_lock]` above `#[tokio::test]`"
        }
    } else if sig.ident == "main" {
        if runs_runtime {
            "`#[tokio::main]` above `#[distributed_lock]` has already removed `async`: write `#[distributed_lock]` above `#[tokio::main]`"
        } else {
            "this `main` is not async: write `async fn main`, with `#[distributed_lock]` above `#[tokio::main]`"
        }
    } else if runs_runtime {
        "this function is not async, and runs a runtime: write `async fn`, with `#[distributed_lock]` above `#[tokio::main]`"
    } else {
        "a function that is not async cannot wait for a lock: write `async fn`, or lock explicitly with `client.lock(\"…\").blocking_acquire()`"
    };
    mistakes.add(sig.fn_token, message);
    None
}

/// Returns whether the attribute's path ends with this name, as `#[tokio::test]` ends with `test`.
pub(crate) fn is_called(attr: &Attribute, name: &str) -> bool {
    let last = attr.path().segments.last();
    last.is_some_and(|segment| segment.ident == name)
}

fn names(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == word,
        TokenTree::Group(group) => names(group.stream(), word),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Returns the return type of a function. If the tokens show that this type is not a `Result`, reports a mistake and
/// returns `None`.
fn result(output: &ReturnType, name: Span, mistakes: &mut Mistakes) -> Option<Type> {
    const NOTHING: &str = "the function returns nothing, so it cannot report that a lock failed: write `-> Result<(), lock_runtime::LockError>`";
    match output {
        ReturnType::Default => mistakes.add_at(name, NOTHING),
        ReturnType::Type(_, output) => match ungrouped(output) {
            Type::Tuple(unit) if unit.elems.is_empty() => mistakes.add(unit, NOTHING),
            Type::Never(never) => mistakes.add(never, NOTHING),
            Type::ImplTrait(hidden) => mistakes.add(
                hidden,
                "a hidden return type could lack the error of a lock: write `-> Result<impl …, E>` with `E: From<LockError>`",
            ),
            known => return Some(known.clone()),
        },
    }
    None
}

/// Splits off the tail expression of a body that ends in `Box::pin(async move { … })` or `async move { … }`. Returns
/// `None` for any other body.
fn tail(body: &Group) -> Option<Body> {
    let mut before: Vec<TokenTree> = body.stream().into_iter().collect();
    let last = before.pop()?;
    let (pin, block) = match last {
        TokenTree::Group(call) if call.delimiter() == Delimiter::Parenthesis => {
            // The path of the called function is read backwards: `pin`, `::`, `Box`, and any segments before `Box`.
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
            (pin, call.stream())
        }
        block => {
            let start = before.len().checked_sub(2)?;
            let mut future = before.split_off(start);
            future.push(block);
            (TokenStream::new(), future.into_iter().collect())
        }
    };
    let future = |input: ParseStream<'_>| {
        input.parse::<Token![async]>()?;
        input.parse::<Token![move]>()?;
        let block = braces(input)?;
        input.parse::<Option<Token![,]>>()?;
        Ok(block)
    };
    let block = future.parse2(block).ok()?;
    Some(Body::Boxed {
        place: body.span(),
        before: before.into_iter().collect(),
        pin,
        block,
    })
}

/// Refuses each `return` or `?` that leaves a function before the end of its body: what the function then returns would
/// run without the lock. Returns `None` if there is one.
fn check_exits(body: &Body, mistakes: &mut Mistakes) -> Option<()> {
    let Body::Boxed { before, .. } = body else {
        return Some(());
    };
    let exits = early_exits(before);
    for exit in &exits {
        mistakes.add_at(
            exit.place,
            format_args!(
                "this `{}` would leave the function without the lock: write it inside `async move {{ … }}`, or write `async fn`",
                exit.written
            ),
        );
    }
    exits.is_empty().then_some(())
}

/// Returns whether this token belongs to the same path as the next token, `after`. In a path, names and `::` alternate.
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

    #[test]
    fn the_future_at_the_end_of_a_body_is_found() {
        for (body, found) in [
            ("{ Box::pin(async move { inside }) }", true),
            (
                "{ before(); ::std::boxed::Box::pin(async move { inside },) }",
                true,
            ),
            ("{ return Box::pin(async move { inside }) }", true),
            ("{ Box::pin(async { inside }) }", false),
            ("{ Box::pin(other()) }", false),
            ("{ Box::pin(async move { inside }); }", false),
            ("{ Pin::new(async move { inside }) }", false),
            ("{ before(); async move { inside } }", true),
            ("{ return async move { inside } }", true),
            ("{ async { inside } }", false),
            ("{ before.async move { inside }; }", false),
            ("{ async move { inside }.boxed() }", false),
            ("{ move { inside } }", false),
            ("{ { inside } }", false),
            ("{}", false),
        ] {
            let tokens: TokenStream = body.parse().unwrap();
            let tail = tail(&syn::parse2(tokens).unwrap());
            assert_eq!(tail.is_some(), found, "{body}");
            if let Some(Body::Boxed { block, .. }) = tail {
                assert_eq!(block.to_string(), quote!({ inside }).to_string());
            }
        }
    }
}
