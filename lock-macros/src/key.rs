//! Resolves the placeholders of a key against the arguments of its function.

use lock_core::{advice::advised, options::Mode};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Ident, Index, Member, Receiver, Type, ext::IdentExt as _, spanned::Spanned as _};

use crate::{
    attribute_args::{Key, Keys},
    lookalikes,
    mistakes::Mistakes,
    parameters::{Argument, Arguments, mention},
    suggest,
    template::{Piece, Placeholder},
    types::{last_segment, ungrouped},
};

/// A piece of a key: literal text or a resolved placeholder.
pub(crate) enum Part<'a> {
    Text(&'a str),
    Value {
        placeholder: &'a Placeholder,
        source: Source<'a>,
    },
}

/// The argument, or the part of an argument, that a placeholder refers to.
pub(crate) enum Source<'a> {
    Receiver(&'a Receiver),
    Argument(&'a Argument),
    /// A name in the pattern of an argument.
    Part(&'a Argument, &'a Ident),
}

/// All keys of a call, checked against the signature.
pub(crate) enum ResolvedKeys<'a> {
    One(Resolved<'a>),
    Several(Vec<Resolved<'a>>),
}

impl<'a> ResolvedKeys<'a> {
    pub(crate) fn read(keys: &'a Keys, arguments: &'a Arguments, mistakes: &mut Mistakes) -> Self {
        let mut read = |key| Resolved::read(key, arguments, mistakes);
        match keys {
            Keys::One(key) => Self::One(read(key)),
            Keys::Several(keys) => Self::Several(keys.iter().map(read).collect()),
        }
    }

    /// Returns the names that the keys use, except `self`.
    pub(crate) fn used(&self) -> Vec<Ident> {
        match self {
            Self::One(key) => key.used(),
            Self::Several(keys) => keys.iter().flat_map(Resolved::used).collect(),
        }
    }

    /// Generates an error for each name in a key whose arguments are all left out by their `cfg`.
    pub(crate) fn check_conditions(&self, arguments: &Arguments) -> TokenStream {
        let keys = match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        };
        let mut checked = Vec::new();
        let checks = keys
            .iter()
            .flat_map(Resolved::names)
            .filter_map(|(name, literal)| {
                let is_new = !checked.contains(name);
                checked.push(name.clone());
                is_new.then(|| arguments.check_condition(name, literal))
            });
        checks.collect()
    }

    /// Generates the code that renders one key, several keys, or one key for each item of a list.
    ///
    /// ```text
    /// ["cart:<cart>", "item:<ids..>", read "rates"]
    ///
    /// ROOT::__private::v1::Keys::new()
    ///     .one(ROOT::__private::v1::key().text("cart:").part("cart", &cart).build())
    ///     .each(ITEMS, |__item| ROOT::__private::v1::key().text("item:").part("ids..", &__item).build())
    ///     .reading(ROOT::__private::v1::Keys::new().one(ROOT::__private::v1::key().text("rates").build()))
    /// ```
    pub(crate) fn expand(&self, private: &TokenStream) -> TokenStream {
        match self {
            Self::One(key) => key.expand(private),
            Self::Several(keys) if keys.iter().all(Resolved::is_plain) => {
                let keys = keys.iter().map(|key| key.expand(private));
                quote!([#(#keys),*])
            }
            Self::Several(keys) => {
                let keys = keys.iter().map(|key| {
                    let rendered = key.expand(private);
                    let added = match key.list() {
                        None => quote!(.one(#rendered)),
                        Some((placeholder, source)) => {
                            let items = key.items(placeholder, source, private);
                            let item = item(key.place(placeholder, source));
                            quote!(.each(#items, |#item| #rendered))
                        }
                    };
                    match key.mode {
                        None => added,
                        Some(Mode::Read) => quote!(.reading(#private::Keys::new() #added)),
                        Some(_) => quote!(.writing(#private::Keys::new() #added)),
                    }
                });
                quote!(#private::Keys::new() #(#keys)*)
            }
        }
    }
}

/// A key, checked against the signature.
pub(crate) struct Resolved<'a> {
    parts: Vec<Part<'a>>,
    literal: Span,
    mode: Option<Mode>,
}

impl Source<'_> {
    /// Returns the variable that the generated key code reads, or `None` for `self`.
    fn name(&self) -> Option<&Ident> {
        match self {
            Self::Receiver(_) => None,
            Self::Argument(argument) => Some(&argument.outer),
            Self::Part(_, name) => Some(name),
        }
    }
}

impl<'a> Resolved<'a> {
    /// Resolves the placeholders, and reports each placeholder that refers to no argument.
    fn read(key: &'a Key, arguments: &'a Arguments, mistakes: &mut Mistakes) -> Self {
        let mut parts = Vec::new();
        for piece in &key.pieces {
            match piece {
                Piece::Text(text) => parts.push(Part::Text(text)),
                Piece::Placeholder(placeholder) => {
                    let source = source(key, placeholder, arguments, mistakes);
                    parts.extend(source.map(|source| Part::Value {
                        placeholder,
                        source,
                    }));
                }
            }
        }
        if let Some(message) = lookalikes::find(&key.pieces, arguments) {
            mistakes.add(&key.literal, message);
        } else if let Some(error) = lookalikes::unusable(&key.pieces) {
            mistakes.add(&key.literal, advised(&error));
        }
        Self {
            parts,
            literal: key.literal.span(),
            mode: key.mode,
        }
    }

    /// Returns whether the key stands for one lock, and has no mode of its own.
    fn is_plain(&self) -> bool {
        self.list().is_none() && self.mode.is_none()
    }

    /// Returns the names that the key uses, except `self`, and the span of the key.
    fn names(&self) -> impl Iterator<Item = (&Ident, Span)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Value { source, .. } => Some((source.name()?, self.literal)),
            Part::Text(_) => None,
        })
    }

    /// Returns the names that the key uses, except `self`.
    fn used(&self) -> Vec<Ident> {
        self.names().map(|(name, _)| name.clone()).collect()
    }

    /// Generates the code that renders the key. The generated code only borrows the values, so the body can move the
    /// values afterwards.
    ///
    /// ```text
    /// "order:<id>:<req.user.0:raw>"
    ///
    /// ROOT::__private::v1::key()
    ///     .text("order:").part("id", &id).text(":").raw("req.user.0:raw", &req.user.0)
    ///     .build()
    /// ```
    fn expand(&self, private: &TokenStream) -> TokenStream {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => quote!(.text(#text)),
            Part::Value {
                placeholder,
                source,
            } => self.value(placeholder, source),
        });
        quote!(#private::key() #(#parts)* .build())
    }

    /// If the key has a placeholder for the items of a list, returns this placeholder and the argument that contains
    /// the list.
    fn list(&self) -> Option<(&'a Placeholder, &Source<'a>)> {
        self.parts.iter().find_map(|part| match part {
            Part::Value {
                placeholder,
                source,
            } if placeholder.each => Some((*placeholder, source)),
            _ => None,
        })
    }

    /// Generates the code of an iterator that borrows the items of a list. The macro does not know the type of the
    /// list. The generated code is therefore the same for all types, and rustc's method resolution picks the trait that
    /// fits the type.
    ///
    /// ```text
    /// {
    ///     use ROOT::__private::v1::{ItemsBehind as _, ItemsBehindTwo as _, ItemsOf as _};
    ///     (&&&&ROOT::__private::v1::Items(&ids)).__key_items()
    /// }
    /// ```
    fn items(
        &self,
        placeholder: &Placeholder,
        source: &Source<'_>,
        private: &TokenStream,
    ) -> TokenStream {
        let list = self.reference(placeholder, source);
        let generated = Span::mixed_site().located_at(self.place(placeholder, source));
        quote_spanned! {generated=> {
            use #private::{ItemsBehind as _, ItemsBehindTwo as _, ItemsOf as _};
            (&&&&#private::Items(#list)).__key_items()
        }}
    }

    /// Returns the span for errors about a value in the key. For a whole argument, this span is that of the argument's
    /// type. For a field, or for a name in a pattern, the signature does not show the type. Under a `cfg`, the argument
    /// can have several types. The span is then that of the key's literal.
    fn place(&self, placeholder: &Placeholder, source: &Source<'_>) -> Span {
        match source {
            Source::Argument(argument)
                if placeholder.fields.is_empty() && !argument.is_conditional() =>
            {
                argument.ty.span()
            }
            _ => self.literal,
        }
    }

    fn value(&self, placeholder: &Placeholder, source: &Source<'_>) -> TokenStream {
        let place = self.place(placeholder, source);
        let generated = Span::mixed_site().located_at(place);
        let method = Ident::new(if placeholder.raw { "raw" } else { "part" }, generated);
        let written = &placeholder.written;
        let value = if placeholder.each {
            let item = item(place);
            quote_spanned!(generated=> &#item)
        } else {
            self.reference(placeholder, source)
        };
        quote_spanned!(generated=> .#method(#written, #value))
    }

    /// Generates a borrow of the value. The argument's name keeps the user's hygiene.
    fn reference(&self, placeholder: &Placeholder, source: &Source<'_>) -> TokenStream {
        let place = self.place(placeholder, source);
        let mut name = match source {
            Source::Receiver(receiver) => Ident::new("self", receiver.self_token.span()),
            Source::Argument(argument) => argument.outer.clone(),
            Source::Part(_, name) => (*name).clone(),
        };
        name.set_span(name.span().located_at(place));
        // `Arguments::lend` has already bound each name in the parameter's pattern as a reference, so no `&` is added.
        if let Source::Part(argument, _) = source
            && argument.is_lent()
            && placeholder.fields.is_empty()
        {
            return mention(&name);
        }
        let fields = placeholder.fields.iter().map(|field| self.member(field));
        let generated = Span::mixed_site().located_at(place);
        let name = mention(&name);
        quote_spanned!(generated=> &#name #(.#fields)*)
    }

    /// Returns the name or the index of a field of the user's type. The returned member has the span of generated code.
    /// With the span of the key's literal, rustc would suggest replacing the whole literal with the name of another
    /// field.
    fn member(&self, field: &str) -> Member {
        let place = Span::mixed_site().located_at(self.literal);
        match field.parse() {
            Ok(index) => Member::Unnamed(Index { index, span: place }),
            Err(_) => {
                // Raw, because the name can be a keyword in the edition of this macro, but not in the user's.
                Member::Named(Ident::new_raw(field.trim_start_matches("r#"), place))
            }
        }
    }
}

/// Returns the name of the generated variable that is bound to one item of a list.
fn item(place: Span) -> Ident {
    Ident::new("__item", Span::mixed_site().located_at(place))
}

fn source<'a>(
    key: &Key,
    placeholder: &Placeholder,
    arguments: &'a Arguments,
    mistakes: &mut Mistakes,
) -> Option<Source<'a>> {
    let written = &placeholder.written;
    let message = if placeholder.head == "self" {
        match &arguments.receiver {
            None => format!(
                "`<{written}>` needs a method, and this function has no `self`: name one of its arguments"
            ),
            Some(_) if placeholder.fields.is_empty() => {
                format!(
                    "`<{written}>` is the whole value: write the field that identifies it, as in `<self.id>`"
                )
            }
            Some(receiver) => return Some(Source::Receiver(receiver)),
        }
    } else {
        let is_named = |name: &Ident| name.unraw() == placeholder.head.trim_start_matches("r#");
        let named = arguments
            .typed
            .iter()
            .find(|argument| argument.name.as_ref().is_some_and(is_named));
        let mut parts = arguments.typed.iter().filter_map(|argument| {
            let part = argument.parts.iter().find(|name| is_named(name));
            part.map(|name| Source::Part(argument, name))
        });
        let part = parts.next();
        match named {
            None if part.is_some() => return part,
            Some(argument) => {
                if placeholder.fields.is_empty()
                    && !placeholder.each
                    && !argument.is_conditional()
                    && is_option(&argument.ty)
                {
                    mistakes.add(
                        &argument.ty,
                        format_args!(
                            "`<{written}>` is an `Option`, and all absent values would share one lock: take the value itself, or unwrap it before the call"
                        ),
                    );
                    return None;
                }
                return Some(Source::Argument(argument));
            }
            None if arguments.has_hidden_patterns() => {
                let head = &placeholder.head;
                format!(
                    "`<{written}>` names no argument, and `#[async_trait]` binds the names in a pattern inside the body: give the argument one name, as in `{head}: Path<u64>`, and write `<{head}.0>`"
                )
            }
            None => unknown(placeholder, arguments),
        }
    };
    mistakes.add(&key.literal, message);
    None
}

fn unknown(placeholder: &Placeholder, arguments: &Arguments) -> String {
    let written = &placeholder.written;
    let names = arguments.names();
    let known = || names.iter().map(String::as_str);
    match suggest::nearest(&placeholder.head, known()) {
        Some(meant) => {
            let rest = &written[placeholder.head.len()..];
            format!(
                "`<{written}>` names no argument: did you mean `<{meant}{rest}>`? The arguments are {}",
                suggest::list(known())
            )
        }
        None if arguments.receiver.is_some() => {
            let names = names.iter().map(|name| format!("<{name}>"));
            let known: Vec<String> = names.chain([format!("<self.{written}>")]).collect();
            format!(
                "`<{written}>` names no argument: write {}",
                suggest::alternatives(known.iter().map(String::as_str))
            )
        }
        None if names.is_empty() => {
            format!(
                "`<{written}>` names no argument, because this function has none: write `<<{written}>>` if it is literal text"
            )
        }
        None => format!(
            "`<{written}>` names no argument: write one of {}",
            suggest::list(known())
        ),
    }
}

/// Returns whether the tokens show that the type is an `Option`, possibly behind references.
fn is_option(ty: &Type) -> bool {
    match ungrouped(ty) {
        Type::Reference(reference) => is_option(&reference.elem),
        named => last_segment(named).is_some_and(|last| last.ident == "Option"),
    }
}
