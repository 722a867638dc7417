//! Generates the expansion for incorrect input: the errors and the annotated item itself. The expansion keeps the item,
//! so that uses of the item cause no further errors.

use proc_macro2::{Group, TokenStream};
use quote::quote;

use crate::{attribute_args::Args, expand, parameters::Arguments, signature::Declared};

/// Appends the errors to the item.
///
/// ```text
/// // before
/// #[distributed_lock(kye = "order:<id>", guard = hold)]
/// async fn pay(id: u64) -> Result<(), E> { BODY }
///
/// // after
/// async fn pay(id: u64) -> Result<(), E> { let _ = id; let hold = ROOT::__private::v1::hold(); BODY }
///
/// compile_error!("#[distributed_lock] `kye` is not an option: did you mean `key`?");
/// ```
pub(crate) fn expand(item: TokenStream, args: &Args, errors: &syn::Error) -> TokenStream {
    let item = Declared::read(item.clone()).map_or(item, |function| with_names(function, args));
    let errors = errors.to_compile_error();
    quote!(#item #errors)
}

/// Adds statements to the start of the body. They mention the arguments, because rustc would report an argument that only
/// the missing key uses as unused. They declare the variable whose name the option `guard` gives, because the body uses
/// this variable. If an argument has this name, the body possibly uses the argument, so there is no declaration.
fn with_names(function: Declared, args: &Args) -> TokenStream {
    let Declared {
        attrs,
        vis,
        defaultness,
        sig,
        body,
    } = function;
    let arguments = Arguments::read(&sig);
    let hidden = |guard: &&syn::Ident| arguments.names().contains(&guard.to_string());
    let guard = args.guard.as_ref().filter(|guard| !hidden(guard));
    let guard = guard.map(|guard| expand::hold(args, guard));
    let body = match body {
        Some(body) => {
            let (mentions, stream) = (arguments.mention(), body.stream());
            let mut named = Group::new(body.delimiter(), quote!(#mentions #guard #stream));
            named.set_span(body.span());
            quote!(#named)
        }
        None => quote!(;),
    };
    quote!(#(#attrs)* #vis #defaultness #sig #body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;

    fn fallen_back(args: TokenStream, item: TokenStream) -> String {
        let mut mistakes = Mistakes::default();
        let args = Args::read(args, &mut mistakes);
        expand(item, &args, &mistakes.into_error().expect("a mistake")).to_string()
    }

    #[test]
    fn the_item_stays_beside_the_error() {
        let item = quote!(
            async fn pay(id: u64) -> R {
                half.typed
            }
        );
        let text = fallen_back(quote!(kye = "order:<id>"), item);
        let kept = quote!(
            async fn pay(id: u64) -> R {
                let _ = id;
                half.typed
            }
        );
        assert!(text.contains(&kept.to_string()), "{text}");
        assert_eq!(text.matches("compile_error").count(), 1, "{text}");
    }

    #[test]
    fn the_guard_stays_bound() {
        let item = quote!(
            async fn pay(id: u64) -> R {
                hold.token()
            }
        );
        let text = fallen_back(quote!(kye = "order:<id>", guard = hold), item);
        let bound = quote!({
            let _ = id;
            let hold = ::lock_runtime::__private::v1::hold();
            hold.token()
        });
        assert!(text.contains(&bound.to_string()), "{text}");
    }
}
