//! Invalid use still yields the item, so that one mistake is one error.

use proc_macro2::TokenStream;
use quote::quote;

/// The message that every error of the attribute starts with.
const PREFIX: &str = "#[distributed_lock] ";

/// An error of the attribute.
pub(crate) fn error(spanned: impl quote::ToTokens, message: impl std::fmt::Display) -> syn::Error {
    syn::Error::new_spanned(spanned, format!("{PREFIX}{message}"))
}

/// An error of the attribute at a span.
pub(crate) fn error_at(span: proc_macro2::Span, message: impl std::fmt::Display) -> syn::Error {
    syn::Error::new(span, format!("{PREFIX}{message}"))
}

/// The error, and the item as it was.
pub(crate) fn beside(error: &syn::Error, item: TokenStream) -> TokenStream {
    let error = error.to_compile_error();
    quote!(#item #error)
}

/// Of several known names the one that was probably meant.
pub(crate) fn did_you_mean<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|known| (distance(written, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

/// How many letters have to be inserted, removed or exchanged.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_proposed_and_far_ones_are_not() {
        let known = ["wait", "lease", "namespace"];
        assert_eq!(did_you_mean("leese", known), Some("lease"));
        assert_eq!(did_you_mean("namspace", known), Some("namespace"));
        assert_eq!(did_you_mean("color", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
