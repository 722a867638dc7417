//! Writes the guarded function.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{FnArg, LitStr, Member, Type, spanned::Spanned};

use crate::{
    args::{Args, Time},
    fallback::{did_you_mean, error},
    signature::{self, Argument, Boxed, Function},
    template::{self, Piece, Placeholder},
};

/// The attribute, whole.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let args = Args::parse(args)?;
    let mut function = Function::parse(item)?;
    let twice = |attr: &&syn::Attribute| {
        attr.path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "distributed_lock")
    };
    if let Some(second) = function.attrs.iter().find(twice) {
        return Err(error(
            second,
            "a function has one lock: stacked locks can deadlock; remove one of the attributes",
        ));
    }
    if function.sig.asyncness.is_none() {
        return match signature::boxed(&function) {
            Some(boxed) => expand_boxed(&args, &function, &boxed),
            None => Err(not_async(&function)),
        };
    }
    signature::check(&function.sig)?;
    let pieces = pieces(&args.key)?;
    let output = signature::nameable(&function.sig.output);
    let arguments = signature::take_arguments(&mut function.sig);
    let key = key(&args, &pieces, &arguments, &function)?;
    let body = body(&args, &pieces, &arguments, &function, output.as_ref());
    let call = call(&args, &quote!(__key));
    let Function {
        attrs,
        vis,
        defaultness,
        sig,
        ..
    } = &function;
    Ok(quote! {
        #(#attrs)* #vis #defaultness #sig {
            #key
            #call.run(#body).await
        }
    })
}

/// A method that `#[async_trait]` has rewritten. The key is rendered before the boxed block takes the arguments.
///
/// ```text
/// // before
/// fn f<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<..> + Send + 'a>> { Box::pin(async move { BODY }) }
/// // after
/// fn f<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<..> + Send + 'a>> {
///     let key = ..;
///     Box::pin(async move { Call::new(key).run(async move { BODY }).await })
/// }
/// ```
fn expand_boxed(args: &Args, function: &Function, boxed: &Boxed) -> syn::Result<TokenStream> {
    let pieces = pieces(&args.key)?;
    let arguments = signature::take_arguments(&mut function.sig.clone());
    let key = key(args, &pieces, &arguments, function)?;
    let call = call(args, &quote!(__key));
    let guard = guard(args);
    let Function {
        attrs,
        vis,
        defaultness,
        sig,
        ..
    } = function;
    let Boxed { before, pin, block } = boxed;
    Ok(quote! {
        #(#attrs)* #vis #defaultness #sig {
            #(#before)*
            #key
            #pin(async move { #call.run(async move { #guard #block }).await })
        }
    })
}

fn not_async(function: &Function) -> syn::Error {
    let sig = &function.sig;
    let name = &sig.ident;
    if let syn::ReturnType::Type(_, output) = &sig.output
        && matches!(**output, Type::ImplTrait(_))
    {
        return error(
            output,
            format_args!("`{name}` returns a future: write it as `async fn {name}`"),
        );
    }
    if name == "main" {
        return error(
            sig.fn_token,
            "`main` is not async here: write `#[distributed_lock]` above `#[tokio::main]`",
        );
    }
    error(
        sig.fn_token,
        format_args!(
            "`{name}` is not async: write `async fn {name}`, or use `client.lock(..).blocking_acquire()` in code outside async"
        ),
    )
}

fn pieces(key: &LitStr) -> syn::Result<Vec<Piece>> {
    template::parse(&key.value()).map_err(|wrong| error(key, wrong))
}

/// Renders the key, before the body moves what it is made of.
///
/// ```text
/// // before: key = "order:<id>:<req.name>"
/// let __key = key().text("order:").part("id", &id).text(":").part("req.name", &req.name).build();
/// ```
fn key(
    args: &Args,
    pieces: &[Piece],
    arguments: &[Argument],
    function: &Function,
) -> syn::Result<TokenStream> {
    let root = &args.root;
    let mut rendered = quote!(#root::__private::v1::key());
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                if let Some(name) = braced_argument(text, arguments) {
                    return Err(error(
                        &args.key,
                        format_args!(
                            "`{{{name}}}` is a Redis Cluster hash tag, not a placeholder: write `<{name}>`"
                        ),
                    ));
                }
                rendered.extend(quote!(.text(#text)));
            }
            Piece::Value(placeholder) => {
                let value = value(args, placeholder, arguments, function)?;
                rendered.extend(value);
            }
        }
    }
    let binding = format_ident!("__key", span = Span::mixed_site());
    Ok(quote!(let #binding = #rendered.build();))
}

/// An argument's name in braces, which is what other formats use.
fn braced_argument<'a>(text: &str, arguments: &'a [Argument]) -> Option<&'a Ident> {
    arguments
        .iter()
        .filter_map(|argument| argument.name.as_ref())
        .find(|name| text.contains(&format!("{{{name}}}")))
}

fn value(
    args: &Args,
    placeholder: &Placeholder,
    arguments: &[Argument],
    function: &Function,
) -> syn::Result<TokenStream> {
    let key = &args.key;
    let text = placeholder.text();
    let fields = placeholder.path[1..]
        .iter()
        .map(|part| match part.parse::<u32>() {
            Ok(index) => Member::from(index as usize),
            Err(_) => Member::from(ident(part, Span::call_site())),
        });
    let method = ident(
        if placeholder.raw { "raw" } else { "part" },
        Span::call_site(),
    );
    if placeholder.root() == "self" {
        let Some(FnArg::Receiver(receiver)) = function.sig.inputs.first() else {
            return Err(error(
                key,
                format_args!("`<{text}>` needs a receiver, and this function has no `self`"),
            ));
        };
        let this = receiver.self_token;
        return Ok(quote!(.#method(#text, &#this #(.#fields)*)));
    }
    let Some(argument) = arguments.iter().find(|argument| {
        argument
            .name
            .as_ref()
            .is_some_and(|name| name == placeholder.root())
    }) else {
        return Err(unknown_argument(key, placeholder, arguments));
    };
    let span = argument.ty.span();
    if placeholder.path.len() == 1 && is_option(&argument.ty) {
        return Err(error(
            &argument.ty,
            format_args!(
                "`<{text}>` is an `Option`, and all absent values would share one lock: pass the value itself"
            ),
        ));
    }
    let name = &argument.outer;
    let part = quote_spanned!(span=> .#method(#text, &#name #(.#fields)*));
    Ok(part)
}

fn is_option(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => is_option(&reference.elem),
        Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "Option"),
        _ => false,
    }
}

fn ident(text: &str, span: Span) -> Ident {
    match text.strip_prefix("r#") {
        Some(raw) => Ident::new_raw(raw, span),
        None => Ident::new(text, span),
    }
}

fn unknown_argument(key: &LitStr, placeholder: &Placeholder, arguments: &[Argument]) -> syn::Error {
    let written = placeholder.root();
    let names: Vec<String> = arguments
        .iter()
        .filter_map(|argument| argument.name.as_ref())
        .map(ToString::to_string)
        .collect();
    let text = placeholder.text();
    if let Some(meant) = did_you_mean(written, names.iter().map(String::as_str)) {
        return error(
            key,
            format_args!("`<{text}>` names no argument: did you mean `<{meant}>`?"),
        );
    }
    let destructured = arguments.iter().any(|argument| argument.name.is_none());
    let hint = match (names.is_empty(), destructured) {
        (_, true) => "; an argument that is taken apart in the signature has no name: name it, and take it apart in the body".to_owned(),
        (true, false) => ", and this function has none".to_owned(),
        (false, false) => format!(": the arguments are {}", names.join(", ")),
    };
    error(key, format_args!("`<{text}>` names no argument{hint}"))
}

/// The call with its options, up to `.run(..)`.
fn call(args: &Args, key: &TokenStream) -> TokenStream {
    let Args {
        root,
        wait,
        lease,
        renew,
        max_hold,
        continue_on_lost,
        client,
        namespace,
        ..
    } = args;
    let key = syn::Ident::new(&key.to_string(), Span::mixed_site());
    let wait = wait.as_ref().map(|time| quote!(.wait(#time)));
    let lease = lease.as_ref().map(|time| quote!(.lease(#time)));
    let renew = renew.map(|renew| quote!(.renew(#renew)));
    let max_hold = max_hold.as_ref().map(|time| quote!(.max_hold(#time)));
    let on_lost = continue_on_lost
        .unwrap_or_default()
        .then(|| quote!(.on_lost(#root::OnLost::Continue)));
    let client = client.as_ref().map(|client| quote!(.client(&(#client))));
    let namespace = namespace
        .as_ref()
        .map(|namespace| quote!(.namespace(#namespace)));
    quote!(#root::__private::v1::Call::new(#key) #wait #lease #renew #max_hold #on_lost #client #namespace)
}

impl ToTokens for Time {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(match self {
            Self::Literal(time) => {
                let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
                quote!(::core::time::Duration::new(#seconds, #nanos))
            }
            Self::Path(path) => quote!(#path),
        });
    }
}

fn guard(args: &Args) -> Option<TokenStream> {
    let root = &args.root;
    args.guard
        .as_ref()
        .map(|guard| quote!(let #guard = #root::__private::v1::hold();))
}

/// The body in a block of its own, which owns every argument: they are dropped before the lock is released, in the
/// order in which the plain function would drop them.
///
/// ```text
/// // before
/// { BODY }
/// // after
/// async move {
///     let id = id;
///     if false { let fake: Ret = loop {}; return fake; }      // a type error in BODY is reported once, on its line
///     { BODY }
/// }
/// ```
fn body(
    args: &Args,
    pieces: &[Piece],
    arguments: &[Argument],
    function: &Function,
    output: Option<&Type>,
) -> TokenStream {
    let in_key = |argument: &Argument| {
        argument.name.as_ref().is_some_and(|name| {
            pieces.iter().any(
                |piece| matches!(piece, Piece::Value(placeholder) if name == placeholder.root()),
            )
        })
    };
    let moved = arguments
        .iter()
        .map(|argument| argument.moved(in_key(argument)));
    // A receiver that the body does not use still moves in.
    let receiver = match function.sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) => {
            let this = receiver.self_token;
            Some(quote!(let _ = &#this;))
        }
        _ => None,
    };
    let fake = output.map(|output| {
        quote_spanned! {output.span()=>
            #[allow(unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop, clippy::let_unit_value, clippy::needless_return)]
            if false {
                let __fake: #output = loop {};
                return __fake;
            }
        }
    });
    let guard = guard(args);
    let body = &function.body;
    quote!(async move { #receiver #(#moved)* #fake #guard #body })
}
