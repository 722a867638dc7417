//! The attribute `#[leader("NAME")]`, which runs a function while its process leads.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::{
    FnArg, LitStr, Pat, ReceiverKind, Signature, Type,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
};

use crate::{
    attribute_args::Args,
    duration::{self, Length},
    expand::{braced, call, failed, fake_return, made, private},
    key::ResolvedKeys,
    mistakes::{Mistakes, prefixed},
    option::{option, separator},
    parameters::Arguments,
    shape::Body,
    signature::{Declared, Function},
};

/// The shortest lease of a term.
const SHORTEST: std::time::Duration = std::time::Duration::from_secs(1);

/// Generates the function that campaigns, or the errors of the user.
pub(crate) fn led(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let args = read(args, &mut mistakes);
    let declared = Declared::read(item.clone());
    let function = match declared.filter(|function| function.sig.asyncness.is_none()) {
        Some(function) => {
            mistakes.add(
                function.sig.fn_token,
                "a leader runs its body in each term: write an `async fn`",
            );
            None
        }
        None => Function::read(item.clone(), &mut mistakes),
    };
    let expanded = function.and_then(|function| expand(&args, function, &mut mistakes));
    match mistakes.into_error() {
        Some(errors) => {
            let errors = errors.into_iter().map(|error| {
                let text = error.to_string().replace(&prefixed(""), "#[leader] ");
                syn::Error::new(error.span(), text).to_compile_error()
            });
            let item = without_body(item);
            quote!(#item #(#errors)*)
        }
        None => expanded.unwrap_or_default(),
    }
}

/// Returns the function as its callers see it, so that its calls cause no further errors. Its body never runs, because the
/// errors beside it end the compilation.
fn without_body(item: TokenStream) -> TokenStream {
    let Some(Declared {
        attrs,
        vis,
        mut sig,
        ..
    }) = Declared::read(item.clone())
    else {
        return item;
    };
    let term = take_term(&mut sig, &mut Mistakes::default());
    let term = term.map(|(_, ty)| quote!(let _ = ::core::option::Option::<#ty>::None;));
    let mentions = Arguments::read(&sig).mention();
    quote!(#(#attrs)* #vis #sig { #term #mentions ::core::unimplemented!() })
}

/// Reads the name of the role, and the options.
fn read(tokens: TokenStream, mistakes: &mut Mistakes) -> Args {
    let (mut kept, mut max_term) = (TokenStream::new(), None);
    let read = |input: ParseStream<'_>| {
        match input.parse::<LitStr>() {
            Ok(name) => kept.extend(quote!(key = #name)),
            Err(error) => {
                mistakes.add_at(
                    error.span(),
                    "the name of the role comes first, as in `#[leader(\"scheduler\")]`",
                );
                return input.parse::<TokenStream>().map(drop);
            }
        }
        separator(input, !mistakes.is_empty(), mistakes);
        while !input.is_empty() {
            let before = mistakes.count();
            if let Some((name, value)) = option(input, mistakes) {
                match name.unraw().to_string().as_str() {
                    "max_term" => max_term = duration::read(&name, &value, mistakes),
                    "lease" | "client" | "namespace" | "map_err" | "crate" => {
                        kept.extend(quote!(, #name = #value));
                    }
                    "wait" => mistakes.add(
                        &name,
                        "a leader has no `wait`: its candidates queue until they lead, so remove the option",
                    ),
                    "max_hold" => mistakes.add(&name, "the longest term is `max_term`: write `max_term = \"6h\"`"),
                    other => mistakes.add(
                        &name,
                        format_args!("a leader has no option `{other}`: it has `lease`, `max_term`, `client`, `namespace`, `map_err` and `crate`"),
                    ),
                }
            }
            separator(input, mistakes.count() > before, mistakes);
        }
        Ok(())
    };
    if let Err(error) = read.parse2(tokens) {
        mistakes.add_at(error.span(), error);
    }
    let mut args = Args::read(kept, mistakes);
    args.max_hold = max_term;
    let lease = args.lease.as_ref();
    if let Some((lease, time)) = lease.and_then(|lease| Some((lease, lease.known()?)))
        && time < SHORTEST
    {
        mistakes.add(
            Length::tokens(lease),
            "the lease of a leader is renewed, so it is at least 1 s long: write `lease = \"1s\"` or more",
        );
    }
    args
}

/// Removes the argument of the type `Term` from the signature, and returns its pattern and its type.
fn take_term(sig: &mut Signature, mistakes: &mut Mistakes) -> Option<(Pat, Type)> {
    let is_term = |input: &FnArg| match input {
        FnArg::Typed(typed) => match &*typed.ty {
            Type::Path(path) => path
                .path
                .segments
                .last()
                .is_some_and(|last| last.ident == "Term"),
            _ => false,
        },
        FnArg::Receiver(_) => false,
    };
    let place = sig.inputs.iter().position(is_term)?;
    let inputs = std::mem::take(&mut sig.inputs);
    let (mut term, mut place) = (None, Some(place));
    for (number, input) in inputs.into_iter().enumerate() {
        match input {
            FnArg::Typed(typed) if place == Some(number) => {
                place = None;
                if !matches!(*typed.pat, Pat::Ident(_) | Pat::Wild(_)) {
                    mistakes.add(&typed.pat, "give the term one name, as in `term: Term`");
                }
                term = Some((*typed.pat, *typed.ty));
            }
            input => sig.inputs.push(input),
        }
    }
    term
}

/// Generates the function that campaigns, and runs the body in each term.
///
/// ```text
/// // before
/// #[leader("scheduler", lease = "15s")]
/// async fn schedule(term: Term, mut jobs: Jobs) -> Result<(), E> { BODY }
///
/// // after
/// async fn schedule(jobs: Jobs) -> Result<(), E> {
///     let __key = KEY;
///     let __call = CALL;
///     __call.lead(move |__term| {
///         let mut jobs = ::core::clone::Clone::clone(&jobs);
///         async move { FAKE_RETURN let term: Term = __term; match () { () => { BODY } } }
///     }, FAILED).await
/// }
/// ```
fn expand(args: &Args, mut function: Function, mistakes: &mut Mistakes) -> Option<TokenStream> {
    let Body::Async(body) = &function.body else {
        return None;
    };
    let term = take_term(&mut function.sig, mistakes);
    let mut clones = TokenStream::new();
    for input in &mut function.sig.inputs {
        match input {
            FnArg::Receiver(receiver) if !matches!(receiver.kind, ReceiverKind::Reference(..)) => mistakes.add(
                receiver,
                "a leader runs its body in each term, so it cannot consume `self`: write `&self`",
            ),
            FnArg::Receiver(_) => {}
            FnArg::Typed(typed) => match &mut *typed.pat {
                Pat::Ident(name) if name.subpat.is_none() && name.by_ref.is_none() => {
                    let (mutability, ident) = (name.mutability.take(), &name.ident);
                    let at = proc_macro2::Span::mixed_site().located_at(ident.span());
                    clones.extend(quote_spanned!(at=> let #mutability #ident = ::core::clone::Clone::clone(&#ident);));
                }
                pattern => mistakes.add(
                    pattern,
                    "each term gets a clone of this argument, so give the argument one name",
                ),
            },
        }
    }
    let arguments = Arguments::read(&function.sig);
    let key = args.key.as_ref()?;
    let key = ResolvedKeys::read(key, &arguments, mistakes);
    let rendered = key.expand(&private(args));
    let (key, called, taken) = (made("__key"), made("__call"), made("__term"));
    let configured = call(args, &function.sig.ident);
    let bound = term.map(|(term, ty)| quote!(let #term: #ty = #taken;));
    let taken = match bound {
        Some(_) => taken,
        None => Ident::new("_term", proc_macro2::Span::mixed_site()),
    };
    let fake_return = fake_return(&function.output);
    let failed = failed(args, &function.output);
    let block = braced(
        body.span(),
        quote!(#fake_return #bound match () { () => #body }),
    );
    let Function {
        attrs, vis, sig, ..
    } = &function;
    let campaign = braced(
        body.span(),
        quote! {
            let #key = #rendered;
            let #called = #configured;
            #called.lead(move |#taken| { #clones async move #block }, #failed).await
        },
    );
    Some(quote!(#(#attrs)* #vis #sig #campaign))
}
