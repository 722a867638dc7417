//! The function that is annotated: what can be guarded, and how its arguments are carried along.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Attribute, FnArg, Pat, PatIdent, ReturnType, Signature, Token, Type, Visibility,
    parse::{Parse, ParseStream, Parser},
    visit_mut::VisitMut,
};

use crate::fallback::error;

/// An item with a body that need not be finished yet: it stays as tokens.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) defaultness: Option<Token![default]>,
    pub(crate) sig: Signature,
    pub(crate) body: proc_macro2::Group,
}

impl Function {
    pub(crate) fn parse(item: TokenStream) -> syn::Result<Self> {
        let kind = item_kind(&item);
        if let Some(message) = kind.and_then(not_a_function) {
            return Err(error(&item, message));
        }
        let function = |input: ParseStream<'_>| {
            let attrs = input.call(Attribute::parse_outer)?;
            let vis = input.parse()?;
            let defaultness = input.parse()?;
            let sig: Signature = input.parse()?;
            if input.peek(Token![;]) {
                return Err(error(
                    &sig,
                    "this function has no body to guard: annotate the implementation",
                ));
            }
            let body = input.parse()?;
            Ok(Self {
                attrs,
                vis,
                defaultness,
                sig,
                body,
            })
        };
        function.parse2(item)
    }
}

/// The keyword that says what an item is.
fn item_kind(item: &TokenStream) -> Option<String> {
    item.clone().into_iter().find_map(|token| match token {
        proc_macro2::TokenTree::Ident(word) => {
            let word = word.to_string();
            [
                "fn", "impl", "struct", "enum", "mod", "trait", "const", "static", "type", "union",
                "use",
            ]
            .contains(&word.as_str())
            .then_some(word)
        }
        _ => None,
    })
}

fn not_a_function(kind: String) -> Option<&'static str> {
    match kind.as_str() {
        "fn" | "const" => None,
        "impl" => Some("an `impl` block is not guarded as a whole: annotate each method"),
        _ => Some(
            "only an `async fn` can be guarded: move the attribute to the function that does the work",
        ),
    }
}

/// Checks what the tokens of a signature can tell.
pub(crate) fn check(sig: &Signature) -> syn::Result<()> {
    if let Some(constness) = &sig.constness {
        return Err(error(
            constness,
            "a `const fn` cannot wait for a lock: remove `const`, and make it an `async fn`",
        ));
    }
    if let Some(abi) = &sig.abi {
        return Err(error(
            abi,
            "a function with a foreign ABI cannot be guarded: annotate an `async fn` that it calls",
        ));
    }
    if let Some(variadic) = &sig.variadic {
        return Err(error(
            variadic,
            "a variadic function cannot be guarded: annotate an `async fn` that it calls",
        ));
    }
    let ReturnType::Type(_, output) = &sig.output else {
        return Err(error(
            &sig.ident,
            format_args!(
                "`{}` returns nothing, and so could not tell that its lock was busy: return `Result<(), E>` with `E: From<lock_runtime::LockError>`",
                sig.ident
            ),
        ));
    };
    if let Type::ImplTrait(_) = &**output {
        return Err(error(
            output,
            "a bare `impl Trait` cannot tell that the lock was busy: return `Result<impl Trait, E>` with `E: From<lock_runtime::LockError>`",
        ));
    }
    Ok(())
}

/// An argument, taken apart so that it can move into the body's own block.
pub(crate) struct Argument {
    /// Its name in the outer function.
    pub(crate) outer: Ident,
    /// The name that a placeholder may use.
    pub(crate) name: Option<Ident>,
    pub(crate) ty: Type,
    /// What binds it inside the block.
    binding: TokenStream,
    attrs: Vec<Attribute>,
}

impl Argument {
    /// The statement that moves it in. An argument used by the key alone is no unused variable.
    pub(crate) fn moved(&self, in_key: bool) -> TokenStream {
        let Self { binding, attrs, .. } = self;
        let cfgs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
        let unused = in_key.then(|| quote!(#[allow(unused_variables)]));
        let cfgs: Vec<_> = cfgs.collect();
        quote!(#(#cfgs)* #unused #[allow(clippy::redundant_locals)] #binding)
    }
}

/// Names every argument of the outer function, and says how each is bound inside.
///
/// ```text
/// // before
/// fn f(mut a: A, (b, c): (B, C), _: D)
/// // after
/// fn f(a: A, __arg1: (B, C), __arg2: D)      let mut a = a; let (b, c) = __arg1; let __arg2 = __arg2;
/// ```
pub(crate) fn take_arguments(sig: &mut Signature) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for (index, input) in sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(typed) = input else { continue };
        let attrs = typed.attrs.clone();
        let ty = (*typed.ty).clone();
        let hidden = format_ident!("__arg{index}", span = Span::mixed_site());
        let (outer, name, binding) = match &*typed.pat {
            Pat::Ident(PatIdent {
                by_ref: None,
                mutability,
                ident,
                subpat: None,
                ..
            }) => (
                ident.clone(),
                Some(ident.clone()),
                quote!(let #mutability #ident = #ident;),
            ),
            Pat::Wild(_) => (hidden.clone(), None, quote!(let #hidden = #hidden;)),
            pat => {
                // What the pattern leaves in place lives as long as the argument would.
                (
                    hidden.clone(),
                    None,
                    quote!(let #hidden = #hidden; let #pat = #hidden;),
                )
            }
        };
        *typed.pat = syn::parse_quote!(#outer);
        arguments.push(Argument {
            outer,
            name,
            ty,
            binding,
            attrs,
        });
    }
    arguments
}

/// A type for a `let`, where `impl Trait` is not allowed.
pub(crate) fn nameable(output: &ReturnType) -> Option<Type> {
    struct Nameless;
    impl VisitMut for Nameless {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(_) = ty {
                *ty = syn::parse_quote!(_);
            }
            syn::visit_mut::visit_type_mut(self, ty);
        }
    }
    let ReturnType::Type(_, output) = output else {
        return None;
    };
    let mut output = (**output).clone();
    Nameless.visit_type_mut(&mut output);
    Some(output)
}

/// The block of a method that `#[async_trait]` has rewritten, split at its `Box::pin(async move { .. })`.
pub(crate) struct Boxed {
    pub(crate) before: Vec<syn::Stmt>,
    pub(crate) pin: syn::Expr,
    pub(crate) block: syn::Block,
}

/// `fn f(..) -> Pin<Box<dyn Future ..>> { ..; Box::pin(async move { .. }) }`
pub(crate) fn boxed(function: &Function) -> Option<Boxed> {
    let ReturnType::Type(_, output) = &function.sig.output else {
        return None;
    };
    let Type::Path(path) = &**output else {
        return None;
    };
    if path.path.segments.last()?.ident != "Pin" {
        return None;
    }
    let body = &function.body;
    let mut block: syn::Block = syn::parse2(quote!(#body)).ok()?;
    let Some(syn::Stmt::Expr(syn::Expr::Call(call), None)) = block.stmts.pop() else {
        return None;
    };
    match call.args.first()? {
        syn::Expr::Async(inner) if call.args.len() == 1 => Some(Boxed {
            before: block.stmts,
            pin: (*call.func).clone(),
            block: inner.block.clone(),
        }),
        _ => None,
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        Self::parse(input.parse()?)
    }
}
