//! What each shape of function becomes, whole.

use proc_macro2::TokenStream;
use quote::quote;

/// Compares texts of tokens, so that the expectation is code to read.
#[track_caller]
fn expands(args: TokenStream, before: TokenStream, after: TokenStream) {
    assert_eq!(crate::locked(args, before).to_string(), after.to_string());
}

fn fake(output: TokenStream) -> TokenStream {
    quote! {
        #[allow(
            unknown_lints, unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop,
            clippy::let_unit_value, clippy::let_with_type_underscore, clippy::needless_return
        )]
        if false {
            let __output: #output = loop {};
            return __output;
        }
    }
}

#[test]
fn a_function_with_all_options() {
    let fake = fake(quote!(Result<Receipt, PayError>));
    expands(
        quote! {
            key = "order:<id>:<req.user.0:raw>", wait = "5s", lease = LEASE, renew = true, max_hold = "10m",
            on_lost = continue, client = state.locks, namespace = "shop", guard = hold, crate = ::locks
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
                    .text("order:").part("id", &id).text(":").raw("req.user.0:raw", &req.user.0).build();
                let __call = ::locks::__private::v1::Call::new(__key)
                    .wait(::core::time::Duration::new(5u64, 0u32))
                    .lease(LEASE)
                    .renew(true)
                    .max_hold(::core::time::Duration::new(600u64, 0u32))
                    .on_lost(::locks::OnLost::Continue)
                    .namespace("shop")
                    .client(&(state.locks));
                __call.run(async move {
                    #[allow(unused_variables)]
                    let id = id;
                    #[allow(unused_variables)]
                    let mut req = req;
                    { #fake let hold = ::locks::__private::v1::hold(); body }
                }).await
            }
        },
    );
}

#[test]
fn arguments_of_every_form() {
    let fake = fake(quote!(Result<(), E>));
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
            ) -> Result<(), E> { body }
        },
        quote! {
            async fn f(
                mut self: Box<Self>,
                __arg0: Pair,
                __arg1: Guard,
                __arg2: C,
                #[cfg(unix)] d: D,
                r#type: u8,
            ) -> Result<(), E> {
                let __key = ::lock_runtime::__private::v1::key().text("k").build();
                let __call = ::lock_runtime::__private::v1::Call::new(__key);
                __call.run(async move {
                    let _ = &self;
                    let __arg0 = __arg0;
                    let (a, mut b) = __arg0;
                    let __arg1 = __arg1;
                    let __arg2 = __arg2;
                    let ref c = __arg2;
                    #[cfg(unix)] #[expect(unused_variables)] let d = d;
                    let r#type = r#type;
                    { #fake body }
                }).await
            }
        },
    );
}

#[test]
fn a_borrowed_self_is_captured_by_its_use() {
    let fake = fake(quote!(Result<_, E>));
    expands(
        quote!(key = "<self.id>"),
        quote!(
            async fn f(&mut self) -> Result<impl Display + '_, E> {
                body
            }
        ),
        quote! {
            async fn f(&mut self) -> Result<impl Display + '_, E> {
                let __key = ::lock_runtime::__private::v1::key().part("self.id", &self.id).build();
                let __call = ::lock_runtime::__private::v1::Call::new(__key);
                __call.run(async move {
                    { #fake body }
                }).await
            }
        },
    );
}

#[test]
fn a_method_under_async_trait() {
    let fake = fake(quote!(Result<(), E>));
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
                    .part("self.id", &self.id).text(":").part("id", &id).build();
                before();
                Box::pin(async move {
                    let __call = ::lock_runtime::__private::v1::Call::new(__key).client(&(self.locks));
                    __call.run(async move {
                        { #fake let hold = ::lock_runtime::__private::v1::hold(); let __self = self; let id = id; inner }
                    }).await
                })
            }
        },
    );
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
        expanded.contains("async fn f (id : u64) -> R { body }"),
        "{expanded}"
    );
    assert_eq!(expanded.matches("compile_error").count(), 2, "{expanded}");
}
