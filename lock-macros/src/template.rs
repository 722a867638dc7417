//! The key's template: literal text and placeholders.

use lock_core::key::is_unreserved;

/// A piece of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text that stands as it is.
    Text(String),
    /// A value.
    Value(Placeholder),
}

/// `<arg.field:raw>`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placeholder {
    /// As written between the brackets, without `:raw`.
    pub(crate) path: Vec<String>,
    /// Whether the value stands unescaped.
    pub(crate) raw: bool,
}

impl Placeholder {
    /// The argument, or `self`.
    pub(crate) fn root(&self) -> &str {
        &self.path[0]
    }

    pub(crate) fn text(&self) -> String {
        self.path.join(".")
    }
}

/// Reads a template. The error says what is wrong and what to write instead.
pub(crate) fn parse(template: &str) -> Result<Vec<Piece>, String> {
    if template.is_empty() {
        return Err("the key is empty: give the lock a name, as in \"order:<id>\"".into());
    }
    if template.trim() != template || template.chars().any(char::is_control) {
        return Err(
            "the key begins or ends with a blank, or has a control character: remove it".into(),
        );
    }
    for shape in ["#{", "${"] {
        if template.contains(shape) {
            return Err(format!(
                "`{shape}..}}` is no placeholder here: write `<id>`"
            ));
        }
    }
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = template;
    while let Some(sign) = rest.chars().next() {
        match sign {
            '<' | '>' if rest[1..].starts_with(sign) => {
                literal.push(sign);
                rest = &rest[2..];
            }
            '>' => return Err("a `>` stands alone: close a placeholder `<id>` with it, or write `>>` for the sign itself".into()),
            '<' => {
                let Some(end) = rest.find('>') else {
                    return Err(format!("`{rest}` opens a placeholder and never closes it: write `<id>`, or `<<` for the sign itself"));
                };
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Value(placeholder(&rest[1..end])?));
                rest = &rest[end + 1..];
            }
            sign => {
                literal.push(sign);
                rest = &rest[sign.len_utf8()..];
            }
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    check_separators(&pieces)?;
    Ok(pieces)
}

fn placeholder(inner: &str) -> Result<Placeholder, String> {
    if inner.is_empty() {
        return Err("`<>` names no argument: write `<id>`".into());
    }
    if inner.contains('<') {
        return Err(format!(
            "`<{inner}>` nests placeholders: write one beside the other, as in `<a>:<b>`"
        ));
    }
    let (path, raw) = match inner.split_once(':') {
        None => (inner, false),
        Some((path, "raw")) => (path, true),
        Some((path, format)) => {
            return Err(format!(
                "`<{inner}>` has the unknown form `:{format}`: write `<{path}>`, or `<{path}:raw>` to leave the value unescaped"
            ));
        }
    };
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    let is_identifier = |part: &str| {
        let name = part.strip_prefix("r#").unwrap_or(part);
        name.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && name
                .chars()
                .all(|sign| sign.is_alphanumeric() || sign == '_')
    };
    let is_index =
        |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
    if path[0] == "_" {
        return Err("`<_>` names no argument: give the argument a name".into());
    }
    if !is_identifier(&path[0]) && is_index(&path[0]) {
        return Err(format!(
            "`<{inner}>` counts arguments: write the argument's name, as in `<id>`"
        ));
    }
    if !is_identifier(&path[0])
        || !path[1..]
            .iter()
            .all(|part| is_identifier(part) || is_index(part))
    {
        return Err(format!(
            "`<{inner}>` is an expression: a placeholder is an argument or a field of one, as in `<req.id>`; compute the value before the call"
        ));
    }
    if path == ["self"] {
        return Err("`<self>` is the whole receiver: name a field of it, as in `<self.id>`".into());
    }
    Ok(Placeholder { path, raw })
}

/// Between two placeholders stands a character that no escaped value has, so that no two argument lists give one key.
fn check_separators(pieces: &[Piece]) -> Result<(), String> {
    let mut last: Option<&Placeholder> = None;
    let mut separated = true;
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                separated |= text
                    .bytes()
                    .any(|byte| !is_unreserved(byte) && byte != b'%');
            }
            Piece::Value(value) => {
                if let (Some(last), false) = (last, separated) {
                    let (a, b) = (last.text(), value.text());
                    return Err(format!(
                        "nothing separates `<{a}>` from `<{b}>` that a value cannot contain, so different values could give one key: write `<{a}>:<{b}>`"
                    ));
                }
                last = Some(value);
                separated = false;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, raw: bool) -> Piece {
        Piece::Value(Placeholder {
            path: text.split('.').map(str::to_owned).collect(),
            raw,
        })
    }

    fn text(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    #[test]
    fn every_form_is_read() {
        for (template, pieces) in [
            ("jobs", vec![text("jobs")]),
            ("order:<id>", vec![text("order:"), value("id", false)]),
            ("<id>", vec![value("id", false)]),
            (
                "{o:<id>}:pay",
                vec![text("{o:"), value("id", false), text("}:pay")],
            ),
            (
                "<a.b.0>/<self.c:raw>",
                vec![value("a.b.0", false), text("/"), value("self.c", true)],
            ),
            ("a<<b>>c", vec![text("a<b>c")]),
            ("<r#type>", vec![value("r#type", false)]),
            ("ü:<größe>", vec![text("ü:"), value("größe", false)]),
        ] {
            assert_eq!(parse(template), Ok(pieces), "{template}");
        }
    }

    #[test]
    fn every_mistake_is_told() {
        for template in [
            "", " a", "a ", "a\tb", "#{id}", "${id}", "<id", "id>", "<>", "<a<b>>", "<id:?>",
            "<a.b()>", "<a+1>", "<self>", "<_>", "<0>", "<a><b>", "<a>x<b>", "<a>-<b>", "<a>%<b>",
            "<a >", "<a.>",
        ] {
            assert!(parse(template).is_err(), "{template}");
        }
    }
}
