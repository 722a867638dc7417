//! Detects literal text that was probably meant as a placeholder, in the syntax of `format!`, of Spring's expression
//! language, of SQL or of routers. If the macro accepted such text as a part of the key, all calls would have the same
//! key and share one lock.

use lock_core::key::{KeyError, LockKey, LockName};
use syn::ext::IdentExt as _;

use crate::{
    parameters::{Argument, Arguments},
    template::{Piece, is_name},
};

/// Returns the error message for the first text that looks like a placeholder, if there is one.
pub(crate) fn find(pieces: &[Piece], arguments: &Arguments) -> Option<String> {
    let names = Named::of(arguments);
    pieces
        .iter()
        .enumerate()
        .find_map(|(index, piece)| match piece {
            Piece::Text(text) => braced(text, &names)
                .or_else(|| signed(text, index == 0, &names))
                .or_else(|| enclosed(text, &names)),
            Piece::Placeholder(_) => None,
        })
}

/// All names that the arguments bind, including `self`.
struct Named(Vec<String>);

impl Named {
    fn of(arguments: &Arguments) -> Self {
        let bound = arguments.typed.iter().flat_map(Argument::bound);
        let mut names: Vec<String> = bound.map(|name| name.unraw().to_string()).collect();
        if arguments.receiver.is_some() {
            names.push("self".into());
        }
        Self(names)
    }

    /// Returns whether the path begins with the name of an argument.
    fn has(&self, path: &str) -> bool {
        let head = path.split('.').next().unwrap_or_default();
        self.0.iter().any(|name| name == head)
    }
}

/// Finds `{}`, `{0}`, `{id}`, `{id:?}`, `#{id}`, `${id}`.
fn braced(text: &str, names: &Named) -> Option<String> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        // If a hash tag contains a placeholder, its closing brace is in a later piece of the key. If this piece has no
        // closing brace, the search therefore ends.
        let (inside, next) = after.split_once('}')?;
        if let Some(sign) = before.chars().last().filter(|sign| "#$".contains(*sign)) {
            let path = inside.trim_start_matches('#');
            if is_path(path) {
                return Some(format!(
                    "`{sign}{{{inside}}}` is taken literally here: write `<{path}>` for the value of an argument"
                ));
            }
        }
        let (path, format) = match inside.split_once(':') {
            Some((path, format)) => (path, Some(format)),
            None => (inside, None),
        };
        let is_format = format.is_none_or(|format| matches!(format, "?" | "#?"));
        if is_format && (path.is_empty() || path.bytes().all(|byte| byte.is_ascii_digit())) {
            return Some(format!(
                "`{{{inside}}}` is a `format!` argument, and braces are a hash tag here: write `<name>` with the name of an argument"
            ));
        }
        if is_format && names.has(path) {
            return Some(format!(
                "`{{{inside}}}` is a hash tag, because braces are literal: write `<{path}>` for the argument"
            ));
        }
        rest = next;
    }
    None
}

/// Finds `#id`, `$id` and `%id` anywhere, and `:id` at the start of the key or of a path segment. At any other
/// position, a colon is a separator.
fn signed(text: &str, begins_key: bool, names: &Named) -> Option<String> {
    text.match_indices(['#', '$', '%', ':']).find_map(|(at, sign)| {
        let path = leading_path(&text[at + 1..]);
        let begins_segment = text[..at].ends_with('/') || (at == 0 && begins_key);
        let is_separator = sign == ":" && !begins_segment;
        (names.has(path) && !is_separator).then(|| {
            format!(
                "`{sign}{path}` is taken literally here: write `<{path}>` for the value of the argument"
            )
        })
    })
}

/// Finds `[id]`, `(id)` and `<<id>>`. The template parser has already turned `<<id>>` into the text `<id>`.
fn enclosed(text: &str, names: &Named) -> Option<String> {
    text.match_indices(['[', '(', '<']).find_map(|(at, open)| {
        let (close, written) = match open {
            "[" => (']', ["[", "]"]),
            "(" => (')', ["(", ")"]),
            _ => ('>', ["<<", ">>"]),
        };
        let path = leading_path(&text[at + 1..]);
        let is_closed = text[at + 1 + path.len()..].starts_with(close);
        (is_closed && names.has(path)).then(|| {
            format!(
                "`{}{path}{}` is taken literally here: write `<{path}>` for the value of the argument",
                written[0], written[1]
            )
        })
    })
}

/// Returns the path, such as `self.id`, at the start of a text.
fn leading_path(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
    text[..end.unwrap_or(text.len())].trim_end_matches('.')
}

fn is_path(text: &str) -> bool {
    text.split('.').all(|name| is_name(name) || name == "self")
}

/// Returns the error if every key of this template is invalid, for all values. For example, the braces of the template
/// are not one hash tag, or the template ends with a reserved suffix. Only templates without raw values are checked,
/// because a raw value, unlike an escaped value, can turn an invalid key into a valid one.
pub(crate) fn unusable(pieces: &[Piece]) -> Option<KeyError> {
    let mut sample = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => sample.push_str(text),
            Piece::Placeholder(placeholder) if placeholder.raw => return None,
            Piece::Placeholder(_) => sample.push('0'),
        }
    }
    let key = LockKey::new(sample);
    key.and_then(|key| LockName::new("namespace", &key)).err()
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;
    use crate::template;

    fn found(key: &str) -> Option<String> {
        let arguments = Arguments::read(
            &parse_quote!(async fn f(&self, id: u64, (a, b): (u8, u8), r#type: u8) -> R),
        );
        find(&template::parse(key).unwrap(), &arguments)
    }

    #[test]
    fn foreign_placeholders_are_recognised() {
        for (key, says) in [
            ("order:{id}", "write `<id>`"),
            ("order:{id.0}", "write `<id.0>`"),
            ("order:{id:?}", "write `<id>`"),
            ("order:{self.id}", "write `<self.id>`"),
            ("order:{a}", "write `<a>`"),
            ("order:{type}", "write `<type>`"),
            ("order:{}", "`format!`"),
            ("order:{0}", "`format!`"),
            ("order:{:?}", "`format!`"),
            ("order:#id", "write `<id>`"),
            ("order:#id.name:x", "write `<id.name>`"),
            ("order:#{id}", "write `<id>`"),
            ("order:#{#id}", "write `<id>`"),
            ("order:${id}", "write `<id>`"),
            ("order:${order.id}", "write `<order.id>`"),
            ("a:$id", "`$id` is taken literally here: write `<id>`"),
            (":id", "write `<id>`"),
            ("orders/:id/items", "write `<id>`"),
            ("%id", "write `<id>`"),
            ("order[id]", "`[id]` is taken literally here: write `<id>`"),
            ("order(self.id)", "write `<self.id>`"),
            ("<<id>>", "`<<id>>` is taken literally here: write `<id>`"),
        ] {
            let message = found(key).unwrap_or_default();
            assert!(message.contains(says), "{key}: {message}");
        }
    }

    #[test]
    fn hash_tags_and_numbers_are_not() {
        for key in [
            "{order:<id>}:pay",
            "{orders}",
            "{id:<id>}",
            "issue#42",
            "issue#<id>",
            "${<id>}",
            "a#c",
            "{id:x}",
            "order:id",
            "<id>:id",
            "{order}:id",
            "a:$ids",
            "100%",
            "[ids]",
            "(id",
            "id]",
            "<<other>>",
            "<<<id>>>",
            "[<id>]",
        ] {
            assert_eq!(found(key), None, "{key}");
        }
    }

    #[test]
    fn braces_are_one_hash_tag() {
        for key in ["{a", "a}", "{a}{b}", "{a}:{<id>}", "{}a"] {
            assert_eq!(
                unusable(&template::parse(key).unwrap()),
                Some(KeyError::StrayBrace),
                "{key}"
            );
        }
        for key in ["a", "{a}", "{a:<id>}:b", "{<id>}"] {
            assert_eq!(unusable(&template::parse(key).unwrap()), None, "{key}");
        }
    }
}
