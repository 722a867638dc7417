//! Last stage: a function and its options become the locked function.
//!
//! One call into `lock_runtime::__private`, nothing else: logic belongs there. Names made here are `mixed_site`, so
//! they never meet the user's.

use lock_core::options::OnLost;
use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Lifetime, Token, Type, ext::IdentExt as _, spanned::Spanned as _, visit_mut::VisitMut};

use crate::{
    attribute_args::{Args, Keys},
    key::ResolvedKeys,
    mistakes::Mistakes,
    parameters::{Argument, Arguments},
    shape::{Body, is_called},
    signature::Function,
    value::OnBusy,
};

/// Expands; after a mistake the result is worth nothing.
pub(crate) fn expand(args: &Args, mut function: Function, mistakes: &mut Mistakes) -> TokenStream {
    let arguments = match function.body {
        Body::Async(_) => Arguments::take(&mut function.sig),
        Body::Boxed { .. } => Arguments::read(&function.sig),
    };
    check_guard(args, &arguments, mistakes);
    check_main(args, &function, mistakes);
    let Some(key) = &args.key else {
        return TokenStream::new();
    };
    let key = ResolvedKeys::read(key, &arguments, mistakes);
    if let Some(OnBusy::Fallback(_)) = &args.on_busy {
        arguments.check_hand_over(mistakes);
    }
    let call = Guarded {
        args,
        output: &function.output,
        arguments: &arguments,
    };
    let body = match &function.body {
        Body::Async(body) => call.async_body(&key, body),
        Body::Boxed {
            place,
            before,
            pin,
            block,
        } => call.boxed_body(&key, *place, before, pin, block),
    };
    let Function {
        attrs,
        vis,
        defaultness,
        sig,
        ..
    } = function;
    quote!(#(#attrs)* #vis #defaultness #sig #body)
}

fn check_guard(args: &Args, arguments: &Arguments, mistakes: &mut Mistakes) {
    let Some(guard) = &args.guard else {
        return;
    };
    let mut bound = arguments.typed.iter().flat_map(Argument::bound);
    if bound.any(|name| name.unraw() == guard.unraw()) {
        mistakes.add(
            guard,
            format_args!("`guard = {guard}` would hide the argument `{guard}`: write another name, as in `guard = hold`"),
        );
    }
}

/// Nothing runs before a `main` that could set a client.
fn check_main(args: &Args, function: &Function, mistakes: &mut Mistakes) {
    let name = &function.sig.ident;
    let mut attrs = function.attrs.iter();
    if name == "main" && attrs.any(|attr| is_called(attr, "main")) && args.client.is_none() {
        mistakes.add(
            name,
            "no client is installed before `main` begins: write `client = …` with an expression for one, as in `client = locks().await`",
        );
    }
}

/// A function on its way to a guarded one.
struct Guarded<'a> {
    args: &'a Args,
    output: &'a Type,
    arguments: &'a Arguments,
}

impl Guarded<'_> {
    /// ```text
    /// // before
    /// #[distributed_lock(key = "order:<id>", wait = "5s")]
    /// async fn pay(id: u64, mut req: Req) -> Result<Receipt, PayError> { BODY }
    ///
    /// // after
    /// async fn pay(id: u64, req: Req) -> Result<Receipt, PayError> {
    ///     let __key = KEY;
    ///     let __call = CALL;
    ///     __call.run(async move {
    ///         let id = id;
    ///         let mut req = req;
    ///         FAKE_RETURN
    ///         { BODY }
    ///     }, FAILED).await
    /// }
    /// ```
    ///
    /// The key comes first, before anything is moved. Key and call are statements of their own, so that what they
    /// borrow is given back before the `.await` and asks nothing of the future. The braces of the block are the
    /// macro's, of edition 2024, in which temporaries of the body's tail go before the arguments, as in a plain
    /// `async fn`.
    fn async_body(&self, key: &ResolvedKeys<'_>, body: &Group) -> TokenStream {
        let rendered = key.expand(&private(self.args));
        let mut names = key.used().into_iter().map(|name| name.to_string());
        let hidden = names.any(|name| name.starts_with('_'));
        let hidden = hidden.then(|| quote!(#[allow(clippy::used_underscore_binding)]));
        let mut used = key.used();
        let rendered = lending(self.arguments.lend(&used), rendered);
        used.extend(self.words());
        if let Some(OnBusy::Fallback(_)) = self.args.on_busy {
            used.extend(self.arguments.hand_over());
        }
        let run = self.run(&self.arguments.move_in(&used), body);
        let key = made("__key");
        braced(body.span(), quote!(#hidden let #key = #rendered; #run))
    }

    /// All names in the options, arguments among them.
    fn words(&self) -> Vec<Ident> {
        let Args {
            wait,
            lease,
            max_hold,
            hold_at_least,
            client,
            ..
        } = self.args;
        let lengths = [wait, lease, max_hold, hold_at_least].into_iter().flatten();
        let lengths = lengths.map(|length| length.tokens().to_token_stream());
        let expressions = lengths.chain(client.iter().map(ToTokens::to_token_stream));
        expressions.flat_map(words).collect()
    }

    /// ```text
    /// // before
    /// #[distributed_lock(key = "order:<id>")]
    /// fn pay(&self, id: u64) -> Pin<Box<dyn Future<Output = Result<Receipt, PayError>> + Send + '_>> {
    ///     BEFORE
    ///     Box::pin(async move { BODY })
    /// }
    ///
    /// // after
    /// fn pay(&self, id: u64) -> Pin<Box<dyn Future<Output = Result<Receipt, PayError>> + Send + '_>> {
    ///     let __key = KEY;
    ///     BEFORE
    ///     Box::pin(async move {
    ///         let __call = CALL;
    ///         __call.run(async move { FAKE_RETURN { BODY } }, FAILED).await
    ///     })
    /// }
    /// ```
    ///
    /// The key is rendered where the names are still the user's: inside the block `#[async_trait]` calls `self`
    /// `__self`. The tail keeps its form, which other attributes look for too. What the block binds, it moves in
    /// itself.
    fn boxed_body(
        &self,
        key: &ResolvedKeys<'_>,
        place: Span,
        before: &TokenStream,
        pin: &TokenStream,
        block: &Group,
    ) -> TokenStream {
        let rendered = key.expand(&private(self.args));
        let key = made("__key");
        let run = self.run(&TokenStream::new(), block);
        let at_output = Span::mixed_site().located_at(self.output.span());
        let block = braced(self.output.span(), run);
        let tail = quote_spanned!(at_output=> (async move #block));
        braced(place, quote!(let #key = #rendered; #before #pin #tail))
    }

    /// ```text
    /// let __call = CALL;
    /// __call.run(async move {
    ///     MOVE_IN
    ///     FAKE_RETURN
    ///     let hold = ROOT::__private::v1::hold();     // guard = hold
    ///     '__body: { BODY }
    /// }, FAILED).await
    ///
    /// // on_busy = fallback(sold_out): the body is built only after the grant, for until then its arguments may be
    /// // the fallback's
    /// let __call = CALL;
    /// match __call.enter().await {
    ///     Ok(__inside) => __inside.run(async move { … }, FAILED).await,
    ///     Err(__error) if ROOT::__private::v1::is_busy(&__error) => {
    ///         let __fallback = sold_out;
    ///         __fallback(self, id, req, __error).await
    ///     }
    ///     Err(__error) => (FAILED)(__error),
    /// }
    /// ```
    ///
    /// It stands where the return type does: there rustc reports one that cannot carry a lock's failure. The inner
    /// braces are the user's own, with their spans and edition: what is half typed before them is reported once.
    fn run(&self, move_in: &TokenStream, body: &Group) -> TokenStream {
        let Self { args, output, .. } = self;
        let private = private(args);
        let configured = lending(self.arguments.lend(&self.words()), call(args));
        let call = made("__call");
        let guard = args.guard.as_ref().map(|guard| hold(args, guard));
        let fake_return = fake_return(output);
        // With a label, for rustc takes braces around one expression for the user's whim. All of it is the user's place,
        // so that a wrong type of the whole is reported like one without the attribute.
        let label = Lifetime::new("'__body", body.span());
        let block = quote!(#fake_return #guard #label: #body);
        let at_output = Span::mixed_site().located_at(output.span());
        let failed = failed(args, output);
        let Some(OnBusy::Fallback(path)) = &args.on_busy else {
            return quote_spanned! {at_output=>
                let #call = #configured;
                #call.run(async move { #move_in #block }, #failed).await
            };
        };
        let (inside, error) = (made("__inside"), made("__error"));
        let handed = self.arguments.hand_over();
        let at_path = Span::mixed_site().located_at(path.span());
        // Not called by its path: there rustc would advise `self.later`, and not a method `Self::later`.
        let fallback = quote_spanned!(at_path=> {
            let __fallback = #path;
            __fallback(#(#handed,)* #error).await
        });
        quote_spanned! {at_output=>
            let #call = #configured;
            match #call.enter().await {
                ::core::result::Result::Ok(#inside) => #inside.run(async move { #move_in #block }, #failed).await,
                ::core::result::Result::Err(#error) if #private::is_busy(&#error) => #fallback,
                ::core::result::Result::Err(#error) => (#failed)(#error),
            }
        }
    }
}

/// What makes the function's error of a lock's failure. The default names the public trait itself, as a pointer: rustc
/// then says once what an error type lacks.
///
/// ```text
///                              <OUTPUT as ROOT::LockResult>::from_lock_error as fn(ROOT::LockError) -> _
/// map_err = PayError::Lock     {
///                                  let __map_err: fn(ROOT::LockError) -> _ = PayError::Lock;
///                                  move |__error: ROOT::LockError|
///                                      <OUTPUT as ROOT::MapErrResult<_>>::from_mapped(__map_err(__error))
///                              }
/// on_busy = skip               ROOT::__private::v1::skip(<OUTPUT as ROOT::SkipResult>::skipped, …)
/// ```
fn failed(args: &Args, output: &Type) -> TokenStream {
    let (root, private) = (&args.root, private(args));
    let at_output = Span::mixed_site().located_at(output.span());
    let output = inferable(output);
    let failed = match &args.map_err {
        Some(function) => {
            // Its error type is that of the function's value: what does not fit is its mistake.
            let at_function = Span::mixed_site().located_at(function.span());
            let mapped = quote_spanned!(at_function=> __map_err(__error));
            let (map_err, error) = (
                Ident::new("__map_err", at_function),
                Ident::new("__error", at_function),
            );
            quote_spanned! {at_output=> {
                let #map_err: fn(#root::LockError) -> _ = #function;
                move |#error: #root::LockError| <#output as #root::MapErrResult<_>>::from_mapped(#mapped)
            }}
        }
        None => quote_spanned! {at_output=>
            <#output as #root::LockResult>::from_lock_error as fn(#root::LockError) -> _
        },
    };
    match &args.on_busy {
        Some(OnBusy::Skip) => quote_spanned! {at_output=>
            #private::skip(<#output as #root::SkipResult>::skipped, #failed)
        },
        _ => failed,
    }
}

/// ```text
/// wait = "5s", renew = true, on_lost = continue, namespace = "shop", client = self.locks
///
/// {
///     let __client = &(self.locks);
///     ROOT::__private::v1::Call::new(__key)
///         .wait(::core::time::Duration::new(5, 0)).renew(true).on_lost(ROOT::OnLost::Continue)
///         .namespace("shop").client(__client)
/// }
/// ```
///
/// The client has a statement of its own, so that it may be whatever dereferences to one.
fn call(args: &Args) -> TokenStream {
    let Args {
        wait,
        lease,
        renew,
        max_hold,
        hold_at_least,
        on_lost,
        strategy,
        release,
        client,
        namespace,
        root,
        ..
    } = args;
    let private = private(args);
    let key = made("__key");
    let new = match &args.key {
        Some(Keys::Several(_)) => quote!(several),
        _ => quote!(new),
    };
    let lengths = [
        ("wait", wait),
        ("lease", lease),
        ("max_hold", max_hold),
        ("hold_at_least", hold_at_least),
    ];
    let lengths = lengths.into_iter().filter_map(|(name, length)| {
        let option = made(name);
        let length = length.as_ref()?.expand(&quote!(#private::#option));
        Some(quote!(.#option(#length)))
    });
    let renew = renew.map(|renew| quote!(.renew(#renew)));
    let on_lost = on_lost.map(|on_lost| match on_lost {
        OnLost::Cancel => quote!(.on_lost(#root::OnLost::Cancel)),
        OnLost::Continue => quote!(.on_lost(#root::OnLost::Continue)),
    });
    let strategy = strategy.map(|strategy| {
        let strategy = Ident::new(&format!("{strategy:?}"), Span::mixed_site());
        quote!(.strategy(#root::Strategy::#strategy))
    });
    let release = release.map(|release| {
        let release = Ident::new(&format!("{release:?}"), Span::mixed_site());
        quote!(.release(#root::Release::#release))
    });
    let namespace = namespace
        .as_ref()
        .map(|namespace| quote!(.namespace(#namespace)));
    let call = quote! {
        #private::Call::#new(#key)
            #(#lengths)* #renew #on_lost #strategy #release #namespace
    };
    let Some(client) = client else {
        return call;
    };
    let named = Ident::new("__client", Span::mixed_site().located_at(client.span()));
    let borrowed = quote_spanned!(named.span()=> let #named = &(#client););
    quote!({ #borrowed #call.client(#named) })
}

/// ```text
/// { let Path(id) = &__arg0; KEY }
/// ```
fn lending(lent: TokenStream, value: TokenStream) -> TokenStream {
    match lent.is_empty() {
        true => value,
        false => quote!({ #lent #value }),
    }
}

/// All names in an expression.
fn words(tokens: TokenStream) -> Vec<Ident> {
    let words = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Ident(word) => vec![word],
        TokenTree::Group(group) => words(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
    });
    words.collect()
}

/// An edge on which the block returns the user's type: from it rustc knows that type before it looks at the body, so
/// a wrong `?`, `return` or tail is reported once and there.
///
/// ```text
/// -> Result<impl Iterator<Item = u8>, E>
///
/// if false {
///     let __output: Result<_, E> = loop {};
///     return __output;
/// }
/// ```
fn fake_return(output: &Type) -> TokenStream {
    let inferable = inferable(output);
    let at_output = Span::mixed_site().located_at(output.span());
    quote_spanned! {at_output=>
        #[allow(
            unknown_lints, unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop,
            clippy::let_unit_value, clippy::let_with_type_underscore, clippy::needless_return
        )]
        if false {
            let __output: #inferable = loop {};
            return __output;
        }
    }
}

/// `impl Trait` ⇒ `_`, for a type inside a body cannot hide.
fn inferable(output: &Type) -> Type {
    let mut output = output.clone();
    InferHidden.visit_type_mut(&mut output);
    output
}

struct InferHidden;

impl VisitMut for InferHidden {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if let Type::ImplTrait(hidden) = ty {
            *ty = Type::Infer(syn::TypeInfer {
                underscore_token: Token![_](hidden.span()),
            });
        } else {
            syn::visit_mut::visit_type_mut(self, ty);
        }
    }
}

/// ```text
/// key = "…"       let hold = ROOT::__private::v1::hold();
/// keys = […]      let hold = ROOT::__private::v1::holds();
/// ```
pub(crate) fn hold(args: &Args, guard: &Ident) -> TokenStream {
    let private = private(args);
    let hold = match &args.key {
        Some(Keys::Several(_)) => quote!(holds),
        _ => quote!(hold),
    };
    quote!(let #guard = #private::#hold();)
}

/// All that an expansion names, of the version that this macro was made with.
fn private(args: &Args) -> TokenStream {
    let root = &args.root;
    quote!(#root::__private::v1)
}

fn made(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// A block whose braces are of the call site: an attribute below this one may give their span to the names that it
/// makes, as `#[instrument(err)]` does, and finds them again only there.
fn braced(place: Span, stream: TokenStream) -> TokenStream {
    let mut group = Group::new(Delimiter::Brace, stream);
    group.set_span(Span::call_site().located_at(place));
    TokenTree::Group(group).into_token_stream()
}
