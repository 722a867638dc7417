//! The arguments of a function: their names outside and inside the body, and the names that a key can use.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::{
    Attribute, FieldPat, FnArg, Ident, Meta, Pat, PatIdent, Receiver, ReceiverKind, Signature,
    Token, Type, ext::IdentExt as _, parse_quote, visit_mut::VisitMut,
};

use crate::mistakes::{Mistakes, prefixed};

pub(crate) struct Arguments {
    pub(crate) receiver: Option<Receiver>,
    pub(crate) typed: Vec<Argument>,
}

pub(crate) struct Argument {
    /// The argument's name in the generated code before the body. The name is the argument's own name, or the only name
    /// that its pattern binds, or otherwise the generated name.
    pub(crate) outer: Ident,
    /// A generated name, which no code of the user can clash with.
    made: Ident,
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
        for (input, argument) in typed.zip(&mut arguments.typed) {
            let bound: Vec<_> = argument.bound().cloned().collect();
            argument.outer = match &bound[..] {
                [only] => only.clone(),
                _ => argument.made.clone(),
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
                    bound.visit_pat_mut(&mut typed.pat.clone());
                    let (name, parts) = match &*typed.pat {
                        Pat::Ident(pattern) => (Some(pattern.ident.clone()), bound.0.split_off(1)),
                        _ => (None, bound.0),
                    };
                    let made = made(arguments.typed.len());
                    arguments.typed.push(Argument {
                        outer: name.clone().unwrap_or_else(|| made.clone()),
                        made,
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

    /// Mentions each name that an argument binds, so that rustc does not report it as unused.
    pub(crate) fn mention(&self) -> TokenStream {
        let typed = self.typed.iter();
        typed.map(|argument| argument.mention(|_| true)).collect()
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
    /// let mut __arg1 = __arg1;
    /// let (a, _) = __arg1;
    /// let __arg2 = __arg2;
    /// ```
    ///
    /// The names in `used` occur in the options. After its binding, the generated code mentions each of them, so that
    /// rustc does not report them as unused in the body. The statement `let _ = id;` neither moves nor borrows the
    /// argument, so the size of the future stays the same.
    pub(crate) fn move_in(&self, used: &[Ident]) -> TokenStream {
        let receiver = self
            .receiver
            .as_ref()
            .filter(|receiver| !matches!(receiver.kind, ReceiverKind::Reference(..)));
        let receiver = receiver.map(|receiver| {
            let this = receiver.self_token;
            quote!(let _ = &#this;)
        });
        let typed = self.typed.iter().map(|argument| argument.move_in(used));
        quote!(#receiver #(#typed)*)
    }

    /// Mentions each name in `used` after a statement that binds the name again. `#[async_trait]` puts such statements
    /// into a boxed body, and the options do not use these bindings.
    ///
    /// ```text
    /// let id = id;    ⇒    let id = id; let _ = id;
    /// ```
    pub(crate) fn mention_in(&self, body: TokenStream, used: &[Ident]) -> TokenStream {
        let mut mentioned: Vec<TokenTree> = Vec::new();
        for mut tree in body {
            let in_macro =
                matches!(mentioned.last(), Some(TokenTree::Punct(last)) if last.as_char() == '!');
            if let TokenTree::Group(group) = &mut tree
                && !in_macro
            {
                let mut inner =
                    Group::new(group.delimiter(), self.mention_in(group.stream(), used));
                inner.set_span(group.span());
                *group = inner;
            }
            mentioned.push(tree);
            let name = bound_again(&mentioned).filter(|name| used.contains(name));
            let named = self
                .typed
                .iter()
                .find(|argument| argument.name.as_ref() == name);
            if let Some((name, argument)) = name.zip(named) {
                let (name, conditions) = (mention(name), &argument.conditions);
                mentioned.extend(quote!(#(#conditions)* let _ = #name;));
            }
        }
        mentioned.into_iter().collect()
    }

    /// Generates an error if the arguments of this name are all left out by their `cfg`. The error is at the key.
    ///
    /// ```text
    /// (#[cfg(unix)] id: u64)
    ///
    /// #[cfg(not(any(all(unix))))]
    /// let id = ::core::compile_error!("…");
    /// ```
    pub(crate) fn check_condition(&self, name: &Ident, key: Span) -> TokenStream {
        let is_named = |argument: &&Argument| {
            argument.outer == *name || argument.bound().any(|bound| bound == name)
        };
        let conditions = self.typed.iter().filter(is_named).map(Argument::condition);
        // Without a condition, the argument is always there. A `cfg_attr` does not show its condition.
        let Some(conditions) = conditions.collect::<Option<Vec<_>>>() else {
            return TokenStream::new();
        };
        let message = prefixed(format_args!(
            "`<{}>` names an argument that its `#[cfg]` leaves out here: write the function twice, each under its `cfg` and with a key of its own",
            name.unraw()
        ));
        quote_spanned! {Span::mixed_site().located_at(key)=>
            #[cfg(not(any(#(#conditions),*)))]
            let #name = ::core::compile_error!(#message);
        }
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

    /// Returns the condition under which the argument exists, as the argument of a `cfg`. Returns `None` if there is no
    /// condition, or if a `cfg_attr` contains it.
    fn condition(&self) -> Option<TokenStream> {
        let conditions = self.conditions.iter().map(|attr| match &attr.meta {
            Meta::List(list) if list.path.is_ident("cfg") => Some(&list.tokens),
            _ => None,
        });
        let conditions: Vec<_> = conditions.collect::<Option<_>>()?;
        (!conditions.is_empty()).then(|| quote!(all(#(#conditions),*)))
    }

    /// Returns whether the argument exists only under a `cfg`.
    pub(crate) fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
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
        let outer = mention(outer);
        quote!(#(#conditions)* let #pattern = &#outer;)
    }

    /// Returns whether the generated code has no name for the whole argument. The whole argument has no name if the
    /// argument is a pattern, and the signature stays unchanged.
    fn is_bound_by_pattern(&self) -> bool {
        !self.taken && !matches!(&self.pattern, Pat::Ident(pattern) if is_plain(pattern))
    }

    fn mention(&self, used: impl Fn(&Ident) -> bool) -> TokenStream {
        let (names, conditions) = (self.bound().filter(|name| used(name)), &self.conditions);
        names
            .map(mention)
            .map(|name| quote!(#(#conditions)* let _ = #name;))
            .collect()
    }

    fn move_in(&self, used: &[Ident]) -> TokenStream {
        let Self {
            outer,
            made,
            pattern,
            conditions,
            lints,
            ..
        } = self;
        let outer = mention(outer);
        let used = self.mention(|name| used.contains(name));
        match pattern {
            Pat::Ident(pattern) if is_plain(pattern) => {
                // clippy reports the binding of an unused name with a leading `_` to a plain value, but not to the
                // value of a `match`.
                let outer = match is_marked(&self.outer) {
                    true => quote!(match () { () => #outer }),
                    false => outer,
                };
                quote!(#(#conditions)* #(#lints)* let #pattern = #outer; #used)
            }
            Pat::Wild(_) => quote!(#(#conditions)* let #made = #outer;),
            // The generated variable is `mut` because the pattern can contain a `ref mut`.
            pattern => quote! {
                #(#conditions)* let mut #made = #outer;
                #(#conditions)* #(#lints)* let #pattern = #made;
                #used
            },
        }
    }
}

/// If the tokens end in `let name = name;` or `let mut name = name;`, returns the name.
fn bound_again(tokens: &[TokenTree]) -> Option<&Ident> {
    let [
        ..,
        TokenTree::Ident(word),
        TokenTree::Ident(name),
        TokenTree::Punct(is),
        TokenTree::Ident(value),
        TokenTree::Punct(end),
    ] = tokens
    else {
        return None;
    };
    let binds = (word == "let" || word == "mut") && is.as_char() == '=' && end.as_char() == ';';
    (binds && name == value).then_some(name)
}

/// Generates an expression for a variable of the user. clippy reports each use of a name that marks its variable as
/// unused. It leaves out generated code, and with `::<>`, the span of the name is that of generated code.
pub(crate) fn mention(name: &Ident) -> TokenStream {
    if !is_marked(name) {
        return name.to_token_stream();
    }
    let made = Span::mixed_site().located_at(name.span());
    quote_spanned!(made=> #name::<>)
}

/// Returns whether the name marks its variable as unused.
fn is_marked(name: &Ident) -> bool {
    let name = name.to_string();
    name.starts_with('_') && !name.starts_with("__")
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
/// Path((user, &mut ref id))  ⇒  Path((_, id @ _))
/// ```
///
/// With `@ _`, the span of a binding is that of generated code, so rustc and clippy do not report the binding.
/// The given names can also name functions. The pattern therefore also binds a variable that only shares its name with a
/// function, and is unused.
struct Lent<'a>(&'a [Ident]);

impl VisitMut for Lent<'_> {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        syn::visit_mut::visit_pat_mut(self, pattern);
        let made = Span::mixed_site();
        match pattern {
            Pat::Reference(reference) => *pattern = (*reference.pat).clone(),
            Pat::Ident(binding) if self.0.contains(&binding.ident) => {
                binding.by_ref = None;
                binding.mutability = None;
                binding
                    .subpat
                    .get_or_insert_with(|| (Token![@](made), parse_quote!(_)));
            }
            Pat::Ident(binding) => {
                let inner = binding.subpat.take().map(|(_, inner)| *inner);
                *pattern = inner.unwrap_or_else(|| parse_quote!(_));
            }
            _ => {}
        }
    }

    /// Rewrites `Pair { left }` to `Pair { left: _ }` or `Pair { left: left @ _ }`.
    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        syn::visit_mut::visit_field_pat_mut(self, field);
        field.colon_token.get_or_insert_default();
    }
}

#[derive(Default)]
struct Names(Vec<Ident>);

impl VisitMut for Names {
    fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
        self.0.push(pattern.ident.clone());
        syn::visit_mut::visit_pat_ident_mut(self, pattern);
    }
}
