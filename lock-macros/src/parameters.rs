//! The arguments of a function: their names outside and inside the body, and the names that a key can use.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Attribute, FieldPat, FnArg, Ident, Pat, PatIdent, Receiver, Signature, Type,
    ext::IdentExt as _, parse_quote, visit::Visit, visit_mut::VisitMut,
};

use crate::mistakes::Mistakes;

pub(crate) struct Arguments {
    pub(crate) receiver: Option<Receiver>,
    pub(crate) typed: Vec<Argument>,
}

pub(crate) struct Argument {
    /// The argument's name in the generated code before the body. The name is the argument's own name, or the only name
    /// that its pattern binds, or otherwise a generated name.
    pub(crate) outer: Ident,
    /// The name that the whole argument is bound to, if there is one.
    pub(crate) name: Option<Ident>,
    /// The names that the argument's pattern binds to parts of the argument.
    pub(crate) parts: Vec<Ident>,
    pub(crate) ty: Type,
    pattern: Pat,
    /// Whether the pattern in the signature has been replaced by the name `outer`.
    taken: bool,
    /// The argument's `cfg` attributes. The code that the macro generates for the argument repeats them.
    conditions: Vec<Attribute>,
    /// The argument's lint attributes, such as `#[allow(..)]`, which move into the body together with the argument's
    /// binding.
    lints: Vec<Attribute>,
}

impl Arguments {
    /// Reads the arguments, and replaces each pattern in the signature by a plain name.
    ///
    /// ```text
    /// async fn f(mut id: u64, State(app): State<App>, (a, b): Pair, _: Guard)
    ///
    /// async fn f(id: u64, app: State<App>, __arg2: Pair, __arg3: Guard)
    /// ```
    ///
    /// If a pattern binds only one name, attributes below `#[distributed_lock]` can use that name for the whole
    /// argument, as in `#[instrument(skip(app))]`.
    pub(crate) fn take(sig: &mut Signature) -> Self {
        let mut arguments = Self::read(sig);
        let typed = sig.inputs.iter_mut().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(typed),
            FnArg::Receiver(_) => None,
        });
        for (index, (input, argument)) in typed.zip(&mut arguments.typed).enumerate() {
            let bound: Vec<_> = argument.bound().cloned().collect();
            argument.outer = match &bound[..] {
                [only] => only.clone(),
                _ => made(index),
            };
            argument.taken = true;
            let outer = &argument.outer;
            *input.pat = parse_quote!(#outer);
            input.attrs.retain(|attr| !is_lint(attr));
        }
        arguments
    }

    /// Reads the arguments of a signature that stays unchanged.
    pub(crate) fn read(sig: &Signature) -> Self {
        let mut arguments = Self {
            receiver: None,
            typed: Vec::new(),
        };
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => arguments.receiver = Some(receiver.clone()),
                FnArg::Typed(typed) => {
                    let (conditions, lints) = (
                        typed
                            .attrs
                            .iter()
                            .filter(|attr| is_condition(attr))
                            .cloned()
                            .collect(),
                        typed
                            .attrs
                            .iter()
                            .filter(|attr| is_lint(attr))
                            .cloned()
                            .collect(),
                    );
                    let mut bound = Names::default();
                    bound.visit_pat(&typed.pat);
                    let (name, parts) = match &*typed.pat {
                        Pat::Ident(pattern) => (Some(pattern.ident.clone()), bound.0.split_off(1)),
                        _ => (None, bound.0),
                    };
                    let outer = name.clone().unwrap_or_else(|| made(arguments.typed.len()));
                    arguments.typed.push(Argument {
                        outer,
                        name,
                        parts,
                        ty: (*typed.ty).clone(),
                        pattern: (*typed.pat).clone(),
                        taken: false,
                        conditions,
                        lints,
                    });
                }
            }
        }
        arguments
    }

    /// Returns the names with which a placeholder can begin, except `self`.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.typed.iter().flat_map(Argument::bound);
        let names = names.map(|name| name.unraw().to_string());
        names.filter(|name| !is_hidden_pattern(name)).collect()
    }

    /// Returns whether another attribute has moved the user's patterns into the body. This macro does not look for
    /// patterns in the body.
    pub(crate) fn has_hidden_patterns(&self) -> bool {
        let names = self
            .typed
            .iter()
            .filter_map(|argument| argument.name.as_ref());
        let mut names = names.map(ToString::to_string);
        names.any(|name| is_hidden_pattern(&name))
    }

    /// Returns the names of all arguments, `self` first, to be passed by value to another function.
    pub(crate) fn hand_over(&self) -> Vec<Ident> {
        let receiver = self.receiver.iter();
        let receiver = receiver.map(|receiver| Ident::new("self", receiver.self_token.span));
        let typed = self.typed.iter().map(|argument| argument.outer.clone());
        receiver.chain(typed).collect()
    }

    /// Refuses arguments that cannot be passed to another function by [`hand_over`](Self::hand_over).
    pub(crate) fn check_hand_over(&self, mistakes: &mut Mistakes) {
        for argument in &self.typed {
            if !argument.conditions.is_empty() {
                mistakes.add(
                    &argument.outer,
                    "an argument under `#[cfg]` cannot be handed to a fallback: write the function twice, each under its `cfg`",
                );
            } else if argument.is_bound_by_pattern() {
                mistakes.add(
                    &argument.pattern,
                    "a pattern cannot be handed to a fallback from a boxed future: give the argument a name, and take it apart inside",
                );
            }
        }
    }

    /// Generates the bindings that move every argument into the body's block, as rustc itself does for an `async fn`.
    /// The arguments move in the order of the signature, so they are dropped in reverse order, each after the variables
    /// that its pattern binds. Unused arguments are moved too, including arguments with the pattern `_`.
    ///
    /// ```text
    /// (self, mut id: u64, (a, _): Pair, _: Guard)
    ///
    /// let _ = &self;                  // captures all of `self`, even if the body uses only one field or none
    /// let mut id = id;
    /// let __arg1 = __arg1;
    /// let (a, _) = __arg1;
    /// let __arg2 = __arg2;
    /// ```
    pub(crate) fn move_in(&self, used: &[Ident]) -> TokenStream {
        let receiver = self
            .receiver
            .as_ref()
            .filter(|receiver| receiver.reference.is_none());
        let receiver = receiver.map(|receiver| {
            let this = receiver.self_token;
            quote!(let _ = &#this;)
        });
        let typed = self.typed.iter().map(|argument| argument.move_in(used));
        quote!(#receiver #(#typed)*)
    }

    /// Generates a binding for each name that occurs both in an argument's pattern and in the options. Without these
    /// bindings, the options could use only whole arguments, because the patterns are bound inside the body.
    ///
    /// ```text
    /// (Path((user, mut id)): Path<(u64, u64)>, Pair { left, .. }: Pair)
    ///
    /// let Path((_, id)) = &__arg0;    // <id>
    /// ```
    pub(crate) fn lend(&self, used: &[Ident]) -> TokenStream {
        self.typed
            .iter()
            .map(|argument| argument.lend(used))
            .collect()
    }
}

impl Argument {
    /// Returns all names that the argument binds in the body.
    pub(crate) fn bound(&self) -> impl Iterator<Item = &Ident> {
        self.name.iter().chain(&self.parts)
    }

    /// Returns whether [`lend`](Arguments::lend) binds the names in the pattern as references.
    pub(crate) fn is_lent(&self) -> bool {
        self.taken
    }

    fn lend(&self, used: &[Ident]) -> TokenStream {
        let plain = matches!(&self.pattern, Pat::Ident(pattern) if is_plain(pattern));
        if !self.taken || plain || !self.bound().any(|name| used.contains(name)) {
            return TokenStream::new();
        }
        let (outer, conditions) = (&self.outer, &self.conditions);
        let mut pattern = self.pattern.clone();
        Lent(used).visit_pat_mut(&mut pattern);
        // `used` contains every identifier in the options, including the names of methods and fields. This pattern
        // therefore also binds a variable that only shares its name with a method or a field. Such a variable is
        // unused, and rustc must not report the variable.
        quote!(#(#conditions)* #[allow(unused_variables)] let #pattern = &#outer;)
    }

    /// Returns whether the generated code has no name for the whole argument. The whole argument has no name if the
    /// argument is a pattern, and the signature stays unchanged.
    fn is_bound_by_pattern(&self) -> bool {
        !self.taken && !matches!(&self.pattern, Pat::Ident(pattern) if is_plain(pattern))
    }

    fn move_in(&self, used: &[Ident]) -> TokenStream {
        let Self {
            outer,
            pattern,
            conditions,
            lints,
            ..
        } = self;
        match pattern {
            Pat::Ident(pattern) if is_plain(pattern) => {
                // If the key, the client or the fallback uses the argument, rustc must not report the argument as
                // unused in the body.
                let used = used
                    .contains(outer)
                    .then(|| quote!(#[allow(unused_variables)]));
                // clippy reports each use of a name with a leading `_`. Here only generated code uses the name, so the
                // lint is off.
                let hidden = outer.to_string().starts_with('_');
                let hidden = hidden.then(|| {
                    quote!(#[allow(clippy::used_underscore_binding, clippy::no_effect_underscore_binding)])
                });
                quote!(#(#conditions)* #(#lints)* #used #hidden let #pattern = #outer;)
            }
            Pat::Wild(_) => quote!(#(#conditions)* let #outer = #outer;),
            // The variable `outer` is `mut` because the pattern can contain a `ref mut`.
            pattern => {
                // If the key or the client uses a name of the pattern, rustc must not report that name as unused in the
                // body.
                let used = self.bound().filter(|name| used.contains(name));
                let used = used.map(|name| quote!(#(#conditions)* let _ = &#name;));
                quote! {
                    #(#conditions)* #[allow(unused_mut)] let mut #outer = #outer;
                    #(#conditions)* #(#lints)* let #pattern = #outer;
                    #(#used)*
                }
            }
        }
    }
}

/// Returns whether this name is of the form that `#[async_trait]` gives to an argument that the user wrote as a
/// pattern.
fn is_hidden_pattern(name: &str) -> bool {
    name.starts_with("__arg")
}

fn made(index: usize) -> Ident {
    format_ident!("__arg{index}", span = Span::mixed_site())
}

/// Returns whether the pattern is `name` or `mut name`.
fn is_plain(pattern: &PatIdent) -> bool {
    pattern.by_ref.is_none() && pattern.subpat.is_none()
}

fn is_condition(attr: &Attribute) -> bool {
    attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr")
}

fn is_lint(attr: &Attribute) -> bool {
    ["allow", "expect", "warn", "deny", "forbid"]
        .iter()
        .any(|level| attr.path().is_ident(level))
}

/// Rewrites a pattern so that it only borrows the argument, and binds only the given names.
///
/// ```text
/// Path((user, &mut ref id))  ⇒  Path((_, id))
/// ```
struct Lent<'a>(&'a [Ident]);

impl VisitMut for Lent<'_> {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        syn::visit_mut::visit_pat_mut(self, pattern);
        match pattern {
            Pat::Reference(reference) => *pattern = (*reference.pat).clone(),
            Pat::Ident(binding) if self.0.contains(&binding.ident) => {
                binding.by_ref = None;
                binding.mutability = None;
            }
            Pat::Ident(binding) => {
                let inner = binding.subpat.take().map(|(_, inner)| *inner);
                *pattern = inner.unwrap_or_else(|| parse_quote!(_));
            }
            _ => {}
        }
    }

    /// Rewrites `Pair { left }` to `Pair { left: _ }` if the new pattern must not bind `left`.
    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        syn::visit_mut::visit_field_pat_mut(self, field);
        if !matches!(*field.pat, Pat::Ident(_)) {
            field.colon_token.get_or_insert_default();
        }
    }
}

#[derive(Default)]
struct Names(Vec<Ident>);

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.0.push(pattern.ident.clone());
        syn::visit::visit_pat_ident(self, pattern);
    }
}
