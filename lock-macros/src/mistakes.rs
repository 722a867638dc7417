//! The mistakes found in one use of the attribute. Each mistake becomes one diagnostic, and all diagnostics have the
//! same prefix.

use std::fmt::Display;

use proc_macro2::Span;
use quote::ToTokens;

/// A collection of mistakes, so that a user sees all mistakes of one attribute at once.
#[derive(Default)]
pub(crate) struct Mistakes(Option<syn::Error>);

impl Mistakes {
    /// Adds a mistake that rustc reports at these tokens.
    pub(crate) fn add(&mut self, place: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(place, prefixed(message)));
    }

    /// Adds a mistake that rustc reports at this span.
    pub(crate) fn add_at(&mut self, place: Span, message: impl Display) {
        self.push(syn::Error::new(place, prefixed(message)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(crate) fn into_error(self) -> Option<syn::Error> {
        self.0
    }

    fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }
}

pub(crate) fn prefixed(message: impl Display) -> String {
    format!("#[distributed_lock] {message}")
}

/// Gives tests access to the error messages.
#[cfg(test)]
impl Mistakes {
    pub(crate) fn messages(self) -> Vec<String> {
        self.0
            .into_iter()
            .flatten()
            .map(|error| error.to_string())
            .collect()
    }
}
