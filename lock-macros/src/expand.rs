//! Last stage of the expansion: generates the locked function from a function and its options.
//!
//! The generated code only calls functions of `lock_runtime::__private`, which contains the logic. Generated names have
//! the span `mixed_site`, so they cannot clash with the user's names.

use lock_core::options::Mode;
use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Token, Type, ext::IdentExt as _, spanned::Spanned as _, visit_mut::VisitMut};

use crate::{
    attribute_args::{Args, Keys},
    key::ResolvedKeys,
    mistakes::Mistakes,
    parameters::{Argument, Arguments, mention},
    permits::Count,
    shape::{Body, is_called},
    signature::Function,
    value::OnBusy,
};

/// Generates the locked function. If this function adds a mistake to `mistakes`, the caller discards the generated
/// code.
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
        name: &function.sig.ident,
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

/// Refuses a `main` without the option `client`, because no client can be installed before `main` runs.
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

/// The parts of a function and its options from which the guarded body is generated.
struct Guarded<'a> {
    args: &'a Args,
    name: &'a Ident,
    output: &'a Type,
    arguments: &'a Arguments,
}

impl Guarded<'_> {
    /// Generates the body of a guarded `async fn`.
    ///
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
    ///         let _ = id;             // the key uses `id`
    ///         let mut req = req;
    ///         FAKE_RETURN
    ///         match () { () => { BODY } }
    ///     }, FAILED).await
    /// }
    /// ```
    ///
    /// `KEY`, `CALL`, `FAKE_RETURN` and `FAILED` stand for the code that [`ResolvedKeys::expand`], [`call`],
    /// [`fake_return`] and [`failed`] generate.
    ///
    /// The generated code renders the key first, before it moves any argument. The key and the call are created in
    /// separate statements, so the borrows in these statements end before the `.await`, and the future does not store
    /// them.
    fn async_body(&self, key: &ResolvedKeys<'_>, body: &Group) -> TokenStream {
        let rendered = key.expand(&private(self.args));
        let rendered = lending(self.arguments.lend(&key.used()), rendered);
        let run = self.run(&self.arguments.move_in(&self.used(key)), body);
        let checks = key.check_conditions(self.arguments);
        let key = made("__key");
        braced(body.span(), quote!(#checks let #key = #rendered; #run))
    }

    /// Returns all names that the options use.
    fn used(&self, key: &ResolvedKeys<'_>) -> Vec<Ident> {
        let mut used = key.used();
        used.extend(self.words());
        if let Some(OnBusy::Fallback(_)) = self.args.on_busy {
            used.extend(self.arguments.hand_over());
        }
        used
    }

    /// Returns the identifiers in the expressions of the durations, of the numbers of permits and of `client` that may
    /// name arguments.
    fn words(&self) -> Vec<Ident> {
        let Args {
            wait,
            lease,
            max_hold,
            hold_at_least,
            permits,
            take,
            client,
            ..
        } = self.args;
        let lengths = [wait, lease, max_hold, hold_at_least].into_iter().flatten();
        let lengths = lengths.map(|length| length.tokens().to_token_stream());
        let counts = [permits, take].into_iter().flatten();
        let counts = counts.map(|count| count.tokens().to_token_stream());
        let expressions = lengths.chain(counts);
        let expressions = expressions.chain(client.iter().map(ToTokens::to_token_stream));
        expressions.flat_map(words).collect()
    }

    /// Generates the body of a guarded function that returns a future.
    ///
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
    ///         __call.run(async move { FAKE_RETURN match () { () => { BODY } } }, FAILED).await
    ///     })
    /// }
    /// ```
    ///
    /// The generated code renders the key before the `async move` block, because `#[async_trait]` renames `self` to
    /// `__self` inside that block. The tail expression keeps the form `Box::pin(async move { … })`, because other
    /// attributes also look for this form. The block needs no bindings for the arguments, because `async move` moves
    /// the captured arguments into the block. If the function returns `impl Future`, its tail expression is the
    /// `async move` block without `Box::pin`.
    fn boxed_body(
        &self,
        key: &ResolvedKeys<'_>,
        place: Span,
        before: &TokenStream,
        pin: &TokenStream,
        block: &Group,
    ) -> TokenStream {
        let rendered = key.expand(&private(self.args));
        let checks = key.check_conditions(self.arguments);
        let place_inside = block.span();
        let block = self.arguments.mention_in(block.stream(), &self.used(key));
        let run = self.run(&TokenStream::new(), &grouped(place_inside, block));
        let key = made("__key");
        let block = braced(place_inside, run);
        let future = quote_spanned!(place_inside=> async move #block);
        let tail = match pin.is_empty() {
            true => future,
            false => quote_spanned!(place_inside=> #pin(#future)),
        };
        braced(place, quote!(#checks let #key = #rendered; #before #tail))
    }

    /// Generates the call that runs the body under its locks.
    ///
    /// ```text
    /// let __call = CALL;
    /// __call.run(async move {
    ///     MOVE_IN
    ///     FAKE_RETURN
    ///     let hold = ROOT::__private::v1::hold();     // guard = hold
    ///     match () { () => { BODY } }
    /// }, FAILED).await
    ///
    /// // on_busy = fallback(sold_out): the body is built only after the grant, because until then the fallback may
    /// // need the arguments
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
    /// The generated code has the span of the return type. If that type cannot carry a lock error, rustc therefore
    /// reports the mistake at the return type.
    ///
    /// The braces around the body are the user's own tokens. The keywords and the braces of the `async move` block have
    /// the span of these braces. The code between them therefore has the user's spans and edition: rustc reports
    /// incomplete code only once, and the lints and the coverage of the body are those of a plain function. Temporaries
    /// of the body's tail expression are dropped at the end of the arm of `match`, before the arguments, as in a plain
    /// `async fn` of each edition.
    fn run(&self, move_in: &TokenStream, body: &Group) -> TokenStream {
        let Self { args, output, .. } = self;
        let private = private(args);
        let configured = lending(self.arguments.lend(&self.words()), call(args, self.name));
        let call = made("__call");
        let guard = args.guard.as_ref().map(|guard| hold(args, guard));
        let fake_return = fake_return(output);
        let block = braced(
            body.span(),
            quote!(#move_in #fake_return #guard match () { () => #body }),
        );
        let block = quote_spanned!(body.span()=> async move #block);
        let at_output = Span::mixed_site().located_at(output.span());
        let failed = failed(args, output);
        let Some(OnBusy::Fallback(path)) = &args.on_busy else {
            return quote_spanned! {at_output=>
                let #call = #configured;
                #call.run(#block, #failed).await
            };
        };
        let (inside, error) = (made("__inside"), made("__error"));
        let handed = self.arguments.hand_over();
        let handed = handed.iter().map(mention);
        let at_path = Span::mixed_site().located_at(path.span());
        // The generated code binds the path of the fallback to a variable before it calls the fallback. If the user
        // wrote the name of a method without `Self::`, such as `later`, rustc then suggests `Self::later`, which is
        // right. For a direct call, rustc would suggest `self.later`, which is wrong.
        let fallback = quote_spanned!(at_path=> {
            let __fallback = #path;
            __fallback(#(#handed,)* #error).await
        });
        quote_spanned! {at_output=>
            let #call = #configured;
            match #call.enter().await {
                ::core::result::Result::Ok(#inside) => #inside.run(#block, #failed).await,
                ::core::result::Result::Err(#error) if #private::is_busy(&#error) => #fallback,
                ::core::result::Result::Err(#error) => (#failed)(#error),
            }
        }
    }
}

/// Generates the function that converts a lock error into the result of the user's function. By default, the generated
/// code is `LockResult::from_lock_error`, cast to a function pointer, so that rustc reports an unsuitable error type
/// only once.
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
pub(crate) fn failed(args: &Args, output: &Type) -> TokenStream {
    let (root, private) = (&args.root, private(args));
    let at_output = Span::mixed_site().located_at(output.span());
    let output = inferable(output);
    let failed = match &args.map_err {
        Some(function) => {
            // The call of `__map_err` has the span of the option's value. If the user's function returns a wrong error
            // type, rustc therefore reports the mistake at that value.
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

/// Generates the `Call` with the options that the attribute sets.
///
/// ```text
/// key = "order:<id>", wait = "5s", renew = true, on_lost = continue, namespace = "shop", client = self.locks
///
/// {
///     let __client = &(self.locks);
///     ROOT::__private::v1::Call::new(&ROOT::__private::v1::Site {
///         label: "order:<id>",
///         function: ::core::concat!(::core::module_path!(), "::pay"),
///     }, __key)
///         .wait(ROOT::__private::v1::length(5, 0)).renew(true).on_lost(ROOT::OnLost::Continue)
///         .namespace("shop").client(__client)
/// }
/// ```
///
/// `permits = GPUS, take = jobs` becomes `.permits(jobs, GPUS)`. Without `take`, a call takes one permit.
///
/// A separate statement binds a reference to the value of `client`. The value can therefore have any type that
/// dereferences to a client.
pub(crate) fn call(args: &Args, name: &Ident) -> TokenStream {
    let Args {
        wait,
        lease,
        renew,
        max_hold,
        hold_at_least,
        on_lost,
        mode,
        permits,
        take,
        strategy,
        release,
        replicas,
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
    let label = args.key.as_ref().map(Keys::label);
    let lengths = [
        ("wait", wait),
        ("lease", lease),
        ("max_hold", max_hold),
        ("hold_at_least", hold_at_least),
    ];
    let lengths = lengths.into_iter().filter_map(|(name, length)| {
        let length = length.as_ref()?.expand(&private, name);
        let option = made(name);
        Some(quote!(.#option(#length)))
    });
    let renew = renew.map(|renew| quote!(.renew(#renew)));
    let on_lost = on_lost.map(|on_lost| {
        let on_lost = Ident::new(&format!("{on_lost:?}"), Span::mixed_site());
        quote!(.on_lost(#root::OnLost::#on_lost))
    });
    // The mode of a call is `Write` by default.
    let mode = mode.filter(|mode| *mode != Mode::default()).map(|mode| {
        let mode = Ident::new(&format!("{mode:?}"), Span::mixed_site());
        quote!(.mode(#root::Mode::#mode))
    });
    let permits = permits.as_ref().map(|permits| {
        let take = take.as_ref().map_or_else(|| quote!(1u32), Count::expand);
        let (of, option) = (permits.expand(), made("permits"));
        quote!(.#option(#take, #of))
    });
    let strategy = strategy.map(|strategy| {
        let strategy = Ident::new(&format!("{strategy:?}"), Span::mixed_site());
        quote!(.strategy(#root::Strategy::#strategy))
    });
    let release = release.map(|release| {
        let release = Ident::new(&format!("{release:?}"), Span::mixed_site());
        quote!(.release(#root::Release::#release))
    });
    let replicas = replicas.map(|replicas| quote!(.replicas(#replicas)));
    let namespace = namespace
        .as_ref()
        .map(|namespace| quote!(.namespace(#namespace)));
    let name = format!("::{}", name.unraw());
    let function = quote!(::core::concat!(::core::module_path!(), #name));
    let call = quote! {
        #private::Call::#new(&#private::Site { label: #label, function: #function }, #key)
            #(#lengths)* #renew #on_lost #mode #permits #strategy #release #replicas #namespace
    };
    let Some(client) = client else {
        return call;
    };
    let named = Ident::new("__client", Span::mixed_site().located_at(client.span()));
    let borrowed = quote_spanned!(named.span()=> let #named = &(#client););
    quote!({ #borrowed #call.client(#named) })
}

/// Wraps an expression in a block that begins with the bindings made by [`Arguments::lend`], if there are any.
///
/// ```text
/// { let Path(id) = &__arg0; KEY }
/// ```
fn lending(lent: TokenStream, value: TokenStream) -> TokenStream {
    match lent.is_empty() {
        true => value,
        false => quote!({ #lent #value }),
    }
}

/// Returns the identifiers in an expression that may name variables: all except the names of fields and methods, and the
/// parts of paths, as in `Duration::from_secs(order.wait)`.
fn words(tokens: TokenStream) -> Vec<Ident> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let sign = |place: usize| match tokens.get(place) {
        Some(TokenTree::Punct(sign)) => sign.as_char(),
        _ => ' ',
    };
    let names_no_variable = |place: usize| {
        let before = (sign(place.wrapping_sub(2)), sign(place.wrapping_sub(1)));
        let is_member = before.1 == '.' && before.0 != '.';
        is_member || before == (':', ':') || (sign(place + 1), sign(place + 2)) == (':', ':')
    };
    let words = tokens.iter().enumerate().map(|(place, token)| match token {
        TokenTree::Ident(word) if !names_no_variable(place) => vec![word.clone()],
        TokenTree::Group(group) => words(group.stream()),
        _ => Vec::new(),
    });
    words.flatten().collect()
}

/// Generates an unreachable `return` of the user's return type at the start of the block. Because of this `return`,
/// rustc knows the type before it checks the body. rustc therefore reports a wrong `?`, `return` or tail expression
/// only once, where the user wrote the expression.
///
/// ```text
/// -> Result<impl Iterator<Item = u8>, E>
///
/// if false {
///     if let ::core::option::Option::Some(__output) = ::core::option::Option::<Result<_, E>>::None {
///         return __output;
///     }
/// }
/// ```
///
/// Because of `if false`, rustc reserves no stack for the value, also without optimization.
pub(crate) fn fake_return(output: &Type) -> TokenStream {
    let inferable = inferable(output);
    let at_output = Span::mixed_site().located_at(output.span());
    quote_spanned! {at_output=>
        if false {
            if let ::core::option::Option::Some(__output) = ::core::option::Option::<#inferable>::None {
                return __output;
            }
        }
    }
}

/// Replaces `impl Trait` by `_`, because `impl Trait` is not allowed as the type of a variable.
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
                attrs: Vec::new(),
                underscore_token: Token![_](hidden.span()),
            });
        } else {
            syn::visit_mut::visit_type_mut(self, ty);
        }
    }
}

/// Generates the declaration of the variable whose name the option `guard` gives. The variable contains the hold of the
/// lock, or the holds of several locks.
///
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

/// Returns the path of the lock-runtime module that the generated code uses. The module has a version (`v1`), which
/// belongs to this version of the macro.
pub(crate) fn private(args: &Args) -> TokenStream {
    let root = &args.root;
    quote!(#root::__private::v1)
}

pub(crate) fn made(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Generates a block whose braces have the span of the user's own braces. If the last token of an item or a block came
/// from a macro, the lints and the coverage of rustc would leave out the whole item or block.
pub(crate) fn braced(place: Span, stream: TokenStream) -> TokenStream {
    TokenTree::Group(grouped(place, stream)).into_token_stream()
}

fn grouped(place: Span, stream: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, stream);
    group.set_span(place);
    group
}
