//! Generates the expansion for incorrect input: the errors and the annotated item itself. The expansion keeps the item,
//! so that uses of the item cause no further errors.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;

use crate::{attribute_args::Args, expand};

/// Appends the errors to the item.
///
/// ```text
/// // before
/// #[distributed_lock(kye = "order:<id>", guard = hold)]
/// async fn pay(id: u64) -> Result<(), E> { BODY }
///
/// // after
/// #[allow(unused_variables)]
/// async fn pay(id: u64) -> Result<(), E> { let hold = ROOT::__private::v1::hold(); BODY }
///
/// compile_error!("#[distributed_lock] `kye` is not an option: did you mean `key`?");
/// ```
pub(crate) fn expand(item: TokenStream, args: &Args, errors: &syn::Error) -> TokenStream {
    let item = with_guard(item, args);
    let errors = errors.to_compile_error();
    // Some arguments are used only in the key. This expansion leaves the key out, so rustc would report these arguments
    // as unused.
    quote!(#[allow(unused_variables)] #item #errors)
}

/// Adds a declaration of the variable whose name the option `guard` gives, because the body uses this variable. If the
/// signature already contains the name, the function leaves the item unchanged, because the body possibly uses an
/// argument of that name.
fn with_guard(item: TokenStream, args: &Args) -> TokenStream {
    let Some(guard) = &args.guard else {
        return item;
    };
    let mut trees: Vec<TokenTree> = item.into_iter().collect();
    let (function, hidden) = match trees.split_last() {
        Some((_, signature)) => (names(signature, "fn"), names(signature, &guard.to_string())),
        None => return TokenStream::new(),
    };
    if function
        && !hidden
        && let Some(TokenTree::Group(body)) = trees.last_mut()
        && body.delimiter() == Delimiter::Brace
    {
        let (hold, stream, place) = (expand::hold(args, guard), body.stream(), body.span());
        *body = Group::new(Delimiter::Brace, quote!(#hold #stream));
        body.set_span(place);
    }
    trees.into_iter().collect()
}

/// Returns whether the word occurs among the tokens.
fn names(trees: &[TokenTree], word: &str) -> bool {
    trees.iter().any(|tree| match tree {
        TokenTree::Ident(name) => name == word,
        TokenTree::Group(group) => names(&group.stream().into_iter().collect::<Vec<_>>(), word),
        _ => false,
    })
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
        let text = fallen_back(quote!(kye = "order:<id>"), item.clone());
        assert!(text.contains(&item.to_string()), "{text}");
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
            let hold = ::lock_runtime::__private::v1::hold();
            hold.token()
        });
        assert!(text.contains(&bound.to_string()), "{text}");
    }
}
