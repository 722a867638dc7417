//! Compares the complete expansion of each form of function with the expected code.

use proc_macro2::TokenStream;
use quote::quote;

/// Compares token streams as text, because `TokenStream` does not implement `PartialEq`.
#[track_caller]
fn expands(args: TokenStream, before: TokenStream, after: TokenStream) {
    assert_eq!(crate::locked(args, before).to_string(), after.to_string());
}

fn fake(output: TokenStream) -> TokenStream {
    quote! {
        if false {
            if let ::core::option::Option::Some(__output) = ::core::option::Option::<#output>::None {
                return __output;
            }
        }
    }
}

fn failed(output: TokenStream) -> TokenStream {
    quote!(<#output as ::lock_runtime::LockResult>::from_lock_error as fn(::lock_runtime::LockError) -> _)
}

#[test]
fn a_function_with_all_options() {
    let fake = fake(quote!(Result<Receipt, PayError>));
    expands(
        quote! {
            key = "order:<id>:<req.user.0:raw>", wait = "5s", lease = LEASE, renew = true, max_hold = "10m",
            hold_at_least = Limits::MIN, on_lost = continue, client = state.locks, namespace = "shop", guard = hold,
            crate = ::locks, mode = read, strategy = handoff, release = background, replicas = 2
        },
        quote! {
            /// Pays.
            #[inline]
            pub(crate) async fn pay<T: Display>(id: T, mut req: Req) -> Result<Receipt, PayError> { body }
        },
        quote! {
            /// Pays.
            #[inline]
            pub(crate) async fn pay<T: Display>(id: T, req: Req) -> Result<Receipt, PayError> {
                let __key = ::locks::__private::v1::key()
                    .text("order:").part("id", &id).text(":").raw("req.user.0:raw", &req.r#user.0).build();
                let __call = { let __client = &(state.locks); ::locks::__private::v1::Call::new(&::locks::__private::v1::Site { label: "order:<id>:<req.user.0:raw>", function: ::core::concat!(::core::module_path!(), "::pay") }, __key)
                    .wait(::locks::__private::v1::length(5u64, 0u32))
                    .lease({ const __CHECKED: ::locks::__private::v1::Length = ::locks::__private::v1::lease(LEASE); __CHECKED })
                    .max_hold(::locks::__private::v1::length(600u64, 0u32))
                    .hold_at_least(const { ::locks::__private::v1::hold_at_least(Limits::MIN) })
                    .renew(true)
                    .on_lost(::locks::OnLost::Continue)
                    .mode(::locks::Mode::Read)
                    .strategy(::locks::Strategy::Handoff)
                    .release(::locks::Release::Background)
                    .replicas(2usize)
                    .namespace("shop")
                    .client(__client) };
                __call.run(async move {
                    let id = id; let _ = id;
                    let mut req = req; let _ = req;
                    #fake let hold = ::locks::__private::v1::hold(); match () { () => { body } }
                }, <Result<Receipt, PayError> as ::locks::LockResult>::from_lock_error as fn(::locks::LockError) -> _).await
            }
        },
    );
}

#[test]
fn arguments_of_every_form() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "k"),
        quote! {
            async fn f(
                mut self: Box<Self>,
                (a, mut b): Pair,
                _: Guard,
                ref c: C,
                #[cfg(unix)] #[expect(unused_variables)] d: D,
                r#type: u8,
                _e: E,
            ) -> Result<(), E> { body }
        },
        quote! {
            async fn f(
                mut self: Box<Self>,
                __arg0: Pair,
                __arg1: Guard,
                c: C,
                #[cfg(unix)] d: D,
                r#type: u8,
                _e: E,
            ) -> Result<(), E> {
                let __key = ::lock_runtime::__private::v1::key().text("k").build();
                let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "k", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                __call.run(async move {
                    let _ = &self;
                    let mut __arg0 = __arg0;
                    let (a, mut b) = __arg0;
                    let __arg1 = __arg1;
                    let mut __arg2 = c;
                    let ref c = __arg2;
                    #[cfg(unix)] #[expect(unused_variables)] let d = d;
                    let r#type = r#type;
                    let _e = match () { () => _e::<> };
                    #fake match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn parts_of_patterns_are_lent() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "<id>", client = app.locks),
        quote! {
            async fn f(State(app): State<App>, Path(Pair { user, mut id }): Path<Pair>) -> Result<(), E> { body }
        },
        quote! {
            async fn f(app: State<App>, __arg1: Path<Pair>) -> Result<(), E> {
                let __key = {
                    let Path(Pair { user: _, id: id @ _ }) = &__arg1;
                    ::lock_runtime::__private::v1::key().part("id", id).build()
                };
                let __call = {
                    let State(app @ _) = &app;
                    { let __client = &(app.locks); ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<id>", function: ::core::concat!(::core::module_path!(), "::f") }, __key).client(__client) }
                };
                __call.run(async move {
                    let mut __arg0 = app;
                    let State(app) = __arg0;
                    let _ = app;
                    let mut __arg1 = __arg1;
                    let Path(Pair { user, mut id }) = __arg1;
                    let _ = id;
                    #fake match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn a_condition_of_a_key_is_checked() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    let message = "#[distributed_lock] `<id>` names an argument that its `#[cfg]` leaves out here: write the function twice, each under its `cfg` and with a key of its own";
    expands(
        quote!(key = "<id>:<name>"),
        quote! {
            async fn f(
                #[cfg(unix)] #[cfg(test)] id: u64,
                #[cfg(windows)] id: Option<u64>,
                #[cfg_attr(unix, cfg(test))] name: u8,
            ) -> Result<(), E> { body }
        },
        quote! {
            async fn f(
                #[cfg(unix)] #[cfg(test)] id: u64,
                #[cfg(windows)] id: Option<u64>,
                #[cfg_attr(unix, cfg(test))] name: u8,
            ) -> Result<(), E> {
                #[cfg(not(any(all(unix, test), all(windows))))]
                let id = ::core::compile_error!(#message);
                let __key = ::lock_runtime::__private::v1::key()
                    .part("id", &id).text(":").part("name", &name).build();
                let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<id>:<name>", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                __call.run(async move {
                    #[cfg(unix)] #[cfg(test)] let id = id;
                    #[cfg(unix)] #[cfg(test)] let _ = id;
                    #[cfg(windows)] let id = id;
                    #[cfg(windows)] let _ = id;
                    #[cfg_attr(unix, cfg(test))] let name = name;
                    #[cfg_attr(unix, cfg(test))] let _ = name;
                    #fake match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn a_borrowed_self_is_captured_by_its_use() {
    let (fake, failed) = (fake(quote!(Result<_, E>)), failed(quote!(Result<_, E>)));
    expands(
        quote!(key = "<self.id>"),
        quote!(
            async fn f(&mut self) -> Result<impl Display + '_, E> {
                body
            }
        ),
        quote! {
            async fn f(&mut self) -> Result<impl Display + '_, E> {
                let __key = ::lock_runtime::__private::v1::key().part("self.id", &self.r#id).build();
                let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<self.id>", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                __call.run(async move {
                    #fake match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn a_method_under_async_trait() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "<self.id>:<id>", client = self.locks, guard = hold),
        quote! {
            fn f<'a>(&'a self, id: u64) -> ::core::pin::Pin<Box<
                dyn ::core::future::Future<Output = Result<(), E> > + ::core::marker::Send + 'a> > {
                before();
                Box::pin(async move { let __self = self; let id = id; inner })
            }
        },
        quote! {
            fn f<'a>(&'a self, id: u64) -> ::core::pin::Pin<Box<
                dyn ::core::future::Future<Output = Result<(), E> > + ::core::marker::Send + 'a> > {
                let __key = ::lock_runtime::__private::v1::key()
                    .part("self.id", &self.r#id).text(":").part("id", &id).build();
                before();
                Box::pin(async move {
                    let __call = { let __client = &(self.locks); ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<self.id>:<id>", function: ::core::concat!(::core::module_path!(), "::f") }, __key).client(__client) };
                    __call.run(async move {
                        #fake let hold = ::lock_runtime::__private::v1::hold(); match () { () => { let __self = self; let id = id; let _ = id; inner } }
                    }, #failed).await
                })
            }
        },
    );
}

#[test]
fn a_function_that_returns_a_future() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "<id>"),
        quote! {
            fn f(&self, id: u64) -> impl Future<Output = Result<(), E> > + Send {
                before();
                async move { inner(id) }
            }
        },
        quote! {
            fn f(&self, id: u64) -> impl Future<Output = Result<(), E> > + Send {
                let __key = ::lock_runtime::__private::v1::key().part("id", &id).build();
                before();
                async move {
                    let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<id>", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                    __call.run(async move { #fake match () { () => { inner(id) } } }, #failed).await
                }
            }
        },
    );
}

#[test]
fn names_bound_again_are_mentioned() {
    for (body, mentioned) in [
        ("let id = id; body", "let id = id; let _ = id; body"),
        ("let mut id = id;", "let mut id = id; let _ = id;"),
        (
            "let f = async { let id = id; };",
            "let f = async { let id = id; let _ = id; };",
        ),
        (
            "#[cfg(test)] let on = on;",
            "#[cfg(test)] let on = on; #[cfg(unix)] let _ = on;",
        ),
        ("let other = other;", "let other = other;"),
        ("let id = other;", "let id = other;"),
        ("quoted! { let id = id; }", "quoted! { let id = id; }"),
    ] {
        let item: TokenStream = format!(
            "fn f(id: u64, #[cfg(unix)] on: u8, other: u8) -> BoxFuture<R> {{ Box::pin(async move {{ {body} }}) }}"
        )
        .parse()
        .unwrap();
        let expanded = crate::locked(quote!(key = "<id>:<on>"), item).to_string();
        let mentioned: TokenStream = format!("{{ {mentioned} }}").parse().unwrap();
        assert!(
            expanded.contains(&mentioned.to_string()),
            "{body}: {expanded}"
        );
    }
}

#[test]
fn several_keys() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(keys = ["account:<from>", "account:<to>"], guard = holds),
        quote!(
            async fn transfer(from: u64, to: u64) -> Result<(), E> {
                body
            }
        ),
        quote! {
            async fn transfer(from: u64, to: u64) -> Result<(), E> {
                let __key = [
                    ::lock_runtime::__private::v1::key().text("account:").part("from", &from).build(),
                    ::lock_runtime::__private::v1::key().text("account:").part("to", &to).build()
                ];
                let __call = ::lock_runtime::__private::v1::Call::several(&::lock_runtime::__private::v1::Site { label: "account:<from>, account:<to>", function: ::core::concat!(::core::module_path!(), "::transfer") }, __key);
                __call.run(async move {
                    let from = from; let _ = from;
                    let to = to; let _ = to;
                    #fake let holds = ::lock_runtime::__private::v1::holds(); match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn keys_of_a_list() {
    let failed = failed(quote!(Result<(), E>));
    let fake = fake(quote!(Result<(), E>));
    expands(
        quote!(keys = ["cart:<cart>", "item:<ids..>", read "rates"]),
        quote!(
            async fn ship(cart: u64, ids: &[u64]) -> Result<(), E> {
                body
            }
        ),
        quote! {
            async fn ship(cart: u64, ids: &[u64]) -> Result<(), E> {
                let __key = ::lock_runtime::__private::v1::Keys::new()
                    .one(::lock_runtime::__private::v1::key().text("cart:").part("cart", &cart).build())
                    .each(
                        {
                            use ::lock_runtime::__private::v1::{ItemsBehind as _, ItemsBehindTwo as _, ItemsOf as _};
                            (&&&&::lock_runtime::__private::v1::Items(&ids)).__key_items()
                        },
                        |__item| ::lock_runtime::__private::v1::key().text("item:").part("ids..", &__item).build()
                    )
                    .reading(::lock_runtime::__private::v1::Keys::new().one(::lock_runtime::__private::v1::key().text("rates").build()));
                let __call = ::lock_runtime::__private::v1::Call::several(&::lock_runtime::__private::v1::Site { label: "cart:<cart>, item:<ids..>, rates", function: ::core::concat!(::core::module_path!(), "::ship") }, __key);
                __call.run(async move {
                    let cart = cart; let _ = cart;
                    let ids = ids; let _ = ids;
                    #fake match () { () => { body } }
                }, #failed).await
            }
        },
    );
}

#[test]
fn only_a_reader_names_its_mode() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    for (options, named) in [
        (
            quote!(mode = read),
            quote!(.mode(::lock_runtime::Mode::Read)),
        ),
        (quote!(mode = write), quote!()),
        (quote!(mode = exclusive), quote!()),
    ] {
        expands(
            quote!(keys = ["a", "b"], #options),
            quote!(
                async fn f() -> Result<(), E> {
                    body
                }
            ),
            quote! {
                async fn f() -> Result<(), E> {
                    let __key = [
                        ::lock_runtime::__private::v1::key().text("a").build(),
                        ::lock_runtime::__private::v1::key().text("b").build()
                    ];
                    let __call = ::lock_runtime::__private::v1::Call::several(&::lock_runtime::__private::v1::Site { label: "a, b", function: ::core::concat!(::core::module_path!(), "::f") }, __key) #named;
                    __call.run(async move { #fake match () { () => { body } } }, #failed).await
                }
            },
        );
    }
}

#[test]
fn permits_of_a_semaphore() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    for (options, permits) in [
        (quote!(permits = 10), quote!(.permits(1u32, 10u32))),
        (
            quote!(take = 2, permits = 1_0u32),
            quote!(.permits(2u32, 10u32)),
        ),
        (
            quote!(permits = limits::GPUS, take = jobs),
            quote!(.permits(jobs, limits::GPUS)),
        ),
    ] {
        expands(
            quote!(key = "gpu:<host>", #options),
            quote!(
                async fn train(host: Host, jobs: u32) -> Result<(), E> {
                    body
                }
            ),
            {
                let used = options.to_string().contains("jobs");
                let used = used.then(|| quote!(let _ = jobs;));
                quote! {
                    async fn train(host: Host, jobs: u32) -> Result<(), E> {
                        let __key = ::lock_runtime::__private::v1::key().text("gpu:").part("host", &host).build();
                        let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "gpu:<host>", function: ::core::concat!(::core::module_path!(), "::train") }, __key) #permits;
                        __call.run(async move {
                            let host = host; let _ = host;
                            let jobs = jobs; #used
                            #fake match () { () => { body } }
                        }, #failed).await
                    }
                }
            },
        );
    }
}

#[test]
fn a_number_of_permits_can_be_a_part_of_a_pattern() {
    let expanded = crate::locked(
        quote!(key = "gpu", permits = *limit, take = size.gpus),
        quote!(
            async fn train(Config { limit, .. }: Config, (_, size): (Job, Size)) -> Result<(), E> {
                body
            }
        ),
    )
    .to_string();
    for part in [
        quote!(let Config { limit: limit @ _, .. } = &limit;),
        quote!(let (_, size @ _) = &size;),
        quote!(.permits(size.gpus, *limit)),
        quote!(let (_, size) = __arg1; let _ = size;),
    ] {
        assert!(expanded.contains(&part.to_string()), "{part}: {expanded}");
    }
}

#[test]
fn a_failure_becomes_what_the_options_say() {
    let mapped = |path: TokenStream| {
        quote! {{
            let __map_err: fn(::lock_runtime::LockError) -> _ = #path;
            move |__error: ::lock_runtime::LockError|
                <Result<Option<()>, E> as ::lock_runtime::MapErrResult<_>>::from_mapped(__map_err(__error))
        }}
    };
    let wrap = mapped(quote!(wrap));
    let closure = quote!(|error| E::Lock(error));
    for (options, failed) in [
        (
            quote!(map_err = PayError::Lock),
            mapped(quote!(PayError::Lock)),
        ),
        (quote!(map_err = #closure), mapped(closure)),
        (
            quote!(on_busy = skip),
            quote!(::lock_runtime::__private::v1::skip(
                <Result<Option<()>, E> as ::lock_runtime::SkipResult>::skipped,
                <Result<Option<()>, E> as ::lock_runtime::LockResult>::from_lock_error
                    as fn(::lock_runtime::LockError) -> _
            )),
        ),
        (
            quote!(map_err = wrap, on_busy = skip),
            quote!(::lock_runtime::__private::v1::skip(
                <Result<Option<()>, E> as ::lock_runtime::SkipResult>::skipped,
                #wrap
            )),
        ),
        (
            quote!(on_busy = error),
            quote!(
                <Result<Option<()>, E> as ::lock_runtime::LockResult>::from_lock_error
                    as fn(::lock_runtime::LockError) -> _
            ),
        ),
    ] {
        let fake = fake(quote!(Result<Option<()>, E>));
        expands(
            quote!(key = "k", #options),
            quote!(
                async fn f() -> Result<Option<()>, E> {
                    body
                }
            ),
            quote! {
                async fn f() -> Result<Option<()>, E> {
                    let __key = ::lock_runtime::__private::v1::key().text("k").build();
                    let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "k", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                    __call.run(async move { #fake match () { () => { body } } }, #failed).await
                }
            },
        );
    }
}

#[test]
fn a_fallback_takes_the_arguments_that_the_body_did_not() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "<self.id>", on_busy = fallback(Self::later)),
        quote! {
            async fn f(&self, mut order: Order, (a, _): Pair) -> Result<(), E> { body }
        },
        quote! {
            async fn f(&self, order: Order, a: Pair) -> Result<(), E> {
                let __key = ::lock_runtime::__private::v1::key().part("self.id", &self.r#id).build();
                let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "<self.id>", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                match __call.enter().await {
                    ::core::result::Result::Ok(__inside) => __inside.run(async move {
                        let mut order = order; let _ = order;
                        let mut __arg1 = a;
                        let (a, _) = __arg1;
                        let _ = a;
                        #fake match () { () => { body } }
                    }, #failed).await,
                    ::core::result::Result::Err(__error) if ::lock_runtime::__private::v1::is_busy(&__error) =>
                        { let __fallback = Self::later; __fallback(self, order, a, __error).await },
                    ::core::result::Result::Err(__error) => (#failed)(__error),
                }
            }
        },
    );
}

#[test]
fn a_fallback_of_a_method_under_async_trait() {
    let (fake, failed) = (fake(quote!(Result<(), E>)), failed(quote!(Result<(), E>)));
    expands(
        quote!(key = "k", on_busy = fallback(later)),
        quote! {
            fn f<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<Output = Result<(), E> > + 'a> > {
                Box::pin(async move { let __self = self; let id = id; inner })
            }
        },
        quote! {
            fn f<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<Output = Result<(), E> > + 'a> > {
                let __key = ::lock_runtime::__private::v1::key().text("k").build();
                Box::pin(async move {
                    let __call = ::lock_runtime::__private::v1::Call::new(&::lock_runtime::__private::v1::Site { label: "k", function: ::core::concat!(::core::module_path!(), "::f") }, __key);
                    match __call.enter().await {
                        ::core::result::Result::Ok(__inside) => __inside.run(async move {
                            #fake match () { () => { let __self = self; let id = id; let _ = id; inner } }
                        }, #failed).await,
                        ::core::result::Result::Err(__error) if ::lock_runtime::__private::v1::is_busy(&__error) =>
                            { let __fallback = later; __fallback(self, id, __error).await },
                        ::core::result::Result::Err(__error) => (#failed)(__error),
                    }
                })
            }
        },
    );
}

#[test]
fn a_fallback_needs_every_argument() {
    for (item, says) in [
        (
            quote! { async fn f(#[cfg(unix)] a: u8) -> Result<(), E> { body } },
            "under `#[cfg]`",
        ),
        (
            quote! { fn f((a, b): Pair) -> Pin<Box<dyn Future<Output = Result<(), E> > > > {
                Box::pin(async move { body })
            } },
            "a pattern cannot",
        ),
    ] {
        let expanded = crate::locked(quote!(key = "k", on_busy = fallback(g)), item).to_string();
        assert!(expanded.contains(says), "{expanded}");
    }
}

#[test]
fn a_half_typed_body_still_expands() {
    let expanded = crate::locked(
        quote!(key = "k"),
        quote!(async fn f() -> R { let x = a. ; if }),
    )
    .to_string();
    assert!(expanded.contains("let x = a . ; if"), "{expanded}");
    assert!(!expanded.contains("compile_error"), "{expanded}");
}

#[test]
fn mistakes_of_attribute_key_and_function_are_told_together() {
    let before: TokenStream = "async fn f(id: u64) -> R { body }".parse().unwrap();
    let expanded = crate::locked(quote!(key = "<di>", wait = "5"), before.clone()).to_string();
    assert!(
        expanded.contains("async fn f (id : u64) -> R { let _ = id ; body }"),
        "{expanded}"
    );
    assert_eq!(expanded.matches("compile_error").count(), 2, "{expanded}");
}
