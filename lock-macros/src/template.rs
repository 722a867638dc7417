//! Second stage of the expansion: parses the text of a key into literal pieces and placeholders.
//!
//! This module checks only the grammar. [`key`](crate::key) checks the names against the signature.

use std::{error::Error, fmt};

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Literal text of the key. The parser has already replaced `<<` and `>>` by `<` and `>`.
    Text(String),
    Placeholder(Placeholder),
}

/// A placeholder, such as `<arg.field.0:raw>` or `<arg.field..>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placeholder {
    /// The text between the brackets, which names the placeholder in errors.
    pub(crate) written: String,
    /// The name of the argument, or `self`.
    pub(crate) head: String,
    /// The path from the argument to the value, as names or tuple indices.
    pub(crate) fields: Vec<String>,
    /// Whether the value is written into the key without escaping.
    pub(crate) raw: bool,
    /// Whether the placeholder stands for the items of a list, so that the template gives one key for each item.
    pub(crate) each: bool,
}

/// Returns the placeholders that stand for the items of a list.
pub(crate) fn lists(pieces: &[Piece]) -> impl Iterator<Item = &Placeholder> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Placeholder(placeholder) if placeholder.each => Some(placeholder),
        _ => None,
    })
}

/// Why a text is not a valid key template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateError {
    Empty,
    BlankEnds,
    ControlCharacter,
    Unclosed {
        rest: String,
    },
    StrayClose,
    EmptyPlaceholder,
    EmptyList,
    ListNotLast {
        piece: String,
    },
    ListFormat {
        piece: String,
        path: String,
    },
    TwoLists {
        first: String,
        second: String,
    },
    Nested {
        piece: String,
    },
    Format {
        path: String,
        format: String,
    },
    Wildcard,
    Expression {
        piece: String,
    },
    NoSeparator {
        left: String,
        between: String,
        right: String,
    },
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("the key is empty: give the lock a name, as in `key = \"order:<id>\"`")
            }
            Self::BlankEnds => f.write_str("the key begins or ends with a blank: remove it"),
            Self::ControlCharacter => f.write_str(
                "the key has a control character, a line separator or a mark of writing direction: remove it",
            ),
            Self::Unclosed { rest } => write!(
                f,
                "`{rest}` opens a placeholder that is never closed: write `<name>`, or `<<` for a literal `<`"
            ),
            Self::StrayClose => f.write_str("a `>` closes nothing: write `>>` for a literal `>`"),
            Self::EmptyPlaceholder => f.write_str(
                "the placeholder `<>` is empty: write the name of an argument, as in `<id>`",
            ),
            Self::EmptyList => f.write_str(
                "the placeholder `<..>` is empty: write the name of an argument that is a list, as in `<ids..>`",
            ),
            Self::ListNotLast { piece } => write!(
                f,
                "`<{piece}>` is not a list: `..` comes last, after an argument or its field, and stands for each item, as in `<ids..>`"
            ),
            Self::ListFormat { piece, path } => write!(
                f,
                "`<{piece}>`: each key contains the `Display` text of its item, escaped; write `<{path}..>`"
            ),
            Self::TwoLists { first, second } => write!(
                f,
                "`<{first}>` and `<{second}>` are two lists in one key: write a key for each, as in `keys = [\"a:<{first}>\", \"b:<{second}>\"]`, or make one list of pairs before the call"
            ),
            Self::Nested { piece } => write!(
                f,
                "`{piece}` opens a placeholder inside another: close the first one, as in `<a>:<b>`, or write `<<` for a literal `<`"
            ),
            Self::Format { path, format } => write!(
                f,
                "`<{path}:{format}>`: the key contains the value's `Display` text; write `<{path}>`, or `<{path}:raw>` to leave it unescaped"
            ),
            Self::Wildcard => {
                f.write_str("`<_>` names no argument: give the argument a name and write that")
            }
            Self::Expression { piece } => write!(
                f,
                "`<{piece}>` is not an argument or a field of one: write `<arg>` or `<arg.field>`, and compute anything else before the call"
            ),
            Self::NoSeparator {
                left,
                between,
                right,
            } => {
                if between.is_empty() {
                    write!(f, "nothing separates `<{left}>` from `<{right}>`")?;
                } else {
                    write!(
                        f,
                        "`{between}` does not separate `<{left}>` from `<{right}>`, because values can contain it"
                    )?;
                }
                write!(
                    f,
                    ", so different arguments could give one key: write `<{left}>:<{right}>`"
                )
            }
        }
    }
}

impl Error for TemplateError {}

/// Parses the text of a key.
pub(crate) fn parse(text: &str) -> Result<Vec<Piece>, TemplateError> {
    if text.is_empty() {
        return Err(TemplateError::Empty);
    }
    // The check for control characters comes before the check for blanks. A line break at the start or the end of the
    // key fails both checks, and "control character" is the better message.
    if text.chars().any(lock_core::key::is_control) {
        return Err(TemplateError::ControlCharacter);
    }
    if text.trim() != text {
        return Err(TemplateError::BlankEnds);
    }
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['<', '>']) {
        literal.push_str(&rest[..at]);
        let here = &rest[at..];
        if let Some(after) = here.strip_prefix("<<") {
            literal.push('<');
            rest = after;
        } else if let Some(after) = here.strip_prefix(">>") {
            literal.push('>');
            rest = after;
        } else if let Some(inside) = here.strip_prefix('<') {
            let (inside, after) = inside
                .split_once('>')
                .ok_or_else(|| TemplateError::Unclosed { rest: here.into() })?;
            if inside.contains('<') {
                return Err(TemplateError::Nested {
                    piece: format!("<{inside}>"),
                });
            }
            if !literal.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Placeholder(placeholder(inside)?));
            rest = after;
        } else {
            return Err(TemplateError::StrayClose);
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    separated(&pieces)?;
    one_list(&pieces)?;
    Ok(pieces)
}

/// Parses the text between the brackets.
fn placeholder(inside: &str) -> Result<Placeholder, TemplateError> {
    let expression = || TemplateError::Expression {
        piece: inside.into(),
    };
    if inside.is_empty() {
        return Err(TemplateError::EmptyPlaceholder);
    }
    // `a::b` is a path expression, not a placeholder with a format.
    let (path, format) = match inside.split_once(':') {
        Some((_, format)) if format.starts_with(':') => return Err(expression()),
        Some((path, format)) => (path, Some(format)),
        None => (inside, None),
    };
    let (path, each) = match path.split_once("..") {
        Some(("", "")) => return Err(TemplateError::EmptyList),
        Some((list, "")) => (list, true),
        Some(_) => {
            return Err(TemplateError::ListNotLast {
                piece: inside.into(),
            });
        }
        None => (path, false),
    };
    if format.is_some_and(|format| each || format.ends_with("..")) {
        return Err(TemplateError::ListFormat {
            piece: inside.into(),
            path: path.into(),
        });
    }
    let mut names = path.split('.');
    let head = names.next().unwrap_or_default();
    let fields: Vec<String> = names.map(str::to_owned).collect();
    if head == "_" {
        return Err(TemplateError::Wildcard);
    }
    if !(is_name(head) || head == "self")
        || !fields.iter().all(|field| is_name(field) || is_index(field))
    {
        return Err(expression());
    }
    match format {
        None | Some("raw") => Ok(Placeholder {
            written: inside.into(),
            head: head.into(),
            fields,
            raw: format.is_some(),
            each,
        }),
        Some(format) => Err(TemplateError::Format {
            path: path.into(),
            format: format.into(),
        }),
    }
}

/// Returns whether the text can be a Rust name. Keywords are included, because `<type>` can name an argument `r#type`.
pub(crate) fn is_name(text: &str) -> bool {
    use syn::{ext::IdentExt as _, parse::Parser as _};

    let nameless = ["_", "self", "Self", "super", "crate"].contains(&text);
    !nameless
        && syn::Ident::parse_any
            .parse_str(text)
            .is_ok_and(|name| name == text)
}

fn is_index(text: &str) -> bool {
    // A tuple index has no leading zeros and fits into 32 bits.
    text.parse::<u32>()
        .is_ok_and(|index| index.to_string() == text)
}

/// Refuses two list placeholders in one key, because such a key would stand for all pairs of items of the two lists.
fn one_list(pieces: &[Piece]) -> Result<(), TemplateError> {
    let mut lists = lists(pieces);
    match (lists.next(), lists.next()) {
        (Some(first), Some(second)) => Err(TemplateError::TwoLists {
            first: first.written.clone(),
            second: second.written.clone(),
        }),
        _ => Ok(()),
    }
}

/// Refuses two placeholders without a separator between them, because different values could give the same key.
fn separated(pieces: &[Piece]) -> Result<(), TemplateError> {
    let mut left: Option<&Placeholder> = None;
    let mut between = "";
    for piece in pieces {
        match piece {
            Piece::Text(text) => between = text,
            Piece::Placeholder(right) => {
                if let Some(left) = left
                    && between.chars().all(escaping_yields)
                {
                    return Err(TemplateError::NoSeparator {
                        left: left.written.clone(),
                        between: between.into(),
                        right: right.written.clone(),
                    });
                }
                left = Some(right);
                between = "";
            }
        }
    }
    Ok(())
}

/// Returns whether an escaped value can contain this character.
fn escaping_yields(character: char) -> bool {
    character == '%' || (character.is_ascii() && lock_core::key::is_unreserved(character as u8))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    fn hole(written: &str, head: &str, fields: &[&str], raw: bool) -> Piece {
        Piece::Placeholder(Placeholder {
            written: written.into(),
            head: head.into(),
            fields: fields.iter().map(|&field| field.into()).collect(),
            raw,
            each: written.ends_with(".."),
        })
    }

    #[test]
    fn every_form_of_placeholder() {
        let id = || hole("id", "id", &[], false);
        let a = || hole("a", "a", &[], false);
        let b = || hole("b", "b", &[], false);
        for (template, pieces) in [
            ("nightly", vec![text("nightly")]),
            ("<id>", vec![id()]),
            ("order:<id>", vec![text("order:"), id()]),
            (
                "<a>:<b.c.0>/x",
                vec![
                    a(),
                    text(":"),
                    hole("b.c.0", "b", &["c", "0"], false),
                    text("/x"),
                ],
            ),
            ("<self.id>", vec![hole("self.id", "self", &["id"], false)]),
            ("<id:raw>", vec![hole("id:raw", "id", &[], true)]),
            ("<r#type>", vec![hole("r#type", "r#type", &[], false)]),
            ("<type>", vec![hole("type", "type", &[], false)]),
            (
                "{order:<id>}:pay",
                vec![text("{order:"), id(), text("}:pay")],
            ),
            ("a<<b>>c", vec![text("a<b>c")]),
            ("<a>>><b>", vec![a(), text(">"), b()]),
            ("<_x>", vec![hole("_x", "_x", &[], false)]),
            (
                "item:<ids..>:<id>",
                vec![
                    text("item:"),
                    hole("ids..", "ids", &[], false),
                    text(":"),
                    id(),
                ],
            ),
            (
                "<self.cart.0..>",
                vec![hole("self.cart.0..", "self", &["cart", "0"], false)],
            ),
            (
                "<größe>é<b>",
                vec![hole("größe", "größe", &[], false), text("é"), b()],
            ),
        ] {
            assert_eq!(parse(template), Ok(pieces), "{template}");
        }
    }

    #[test]
    fn every_mistake_is_named() {
        use TemplateError as E;
        let expression = |piece: &str| E::Expression {
            piece: piece.into(),
        };
        let format = |format: &str| E::Format {
            path: "id".into(),
            format: format.into(),
        };
        let listed = |piece: &str| E::ListFormat {
            piece: piece.into(),
            path: "ids".into(),
        };
        let not_last = |piece: &str| E::ListNotLast {
            piece: piece.into(),
        };
        for (template, error) in [
            ("", E::Empty),
            (" a", E::BlankEnds),
            ("a\n", E::ControlCharacter),
            ("a\u{0}b", E::ControlCharacter),
            ("a:<id", E::Unclosed { rest: "<id".into() }),
            ("a>b", E::StrayClose),
            ("<<id>", E::StrayClose),
            ("<>", E::EmptyPlaceholder),
            (
                "<a<b>>",
                E::Nested {
                    piece: "<a<b>".into(),
                },
            ),
            ("<id:?>", format("?")),
            ("<id:>", format("")),
            ("<..>", E::EmptyList),
            ("<ids..:raw>", listed("ids..:raw")),
            ("<ids:raw..>", listed("ids:raw..")),
            ("<ids..:?>", listed("ids..:?")),
            ("<..ids>", not_last("..ids")),
            ("<ids..name>", not_last("ids..name")),
            ("<ids...>", not_last("ids...")),
            ("<0..5>", not_last("0..5")),
            ("<ids[..]>", not_last("ids[..]")),
            ("<ids()..>", expression("ids()..")),
            ("<_..>", E::Wildcard),
            (
                "<a..>:<b>:<c..>",
                E::TwoLists {
                    first: "a..".into(),
                    second: "c..".into(),
                },
            ),
            ("<_>", E::Wildcard),
            ("<_.0>", E::Wildcard),
            ("< id>", expression(" id")),
            ("<id()>", expression("id()")),
            ("<id.>", expression("id.")),
            ("<.id>", expression(".id")),
            ("<0>", expression("0")),
            ("<a.00>", expression("a.00")),
            ("<a.self>", expression("a.self")),
            ("<a::B>", expression("a::B")),
            ("<Self>", expression("Self")),
            ("<a.crate>", expression("a.crate")),
        ] {
            assert_eq!(parse(template), Err(error), "{template}");
        }
    }

    #[test]
    fn a_separator_is_what_no_value_yields() {
        for between in ["", "x", "-", "%", "a-b_c.d~9%2F"] {
            let parsed = parse(&format!("<a>{between}<b>"));
            assert!(
                matches!(parsed, Err(TemplateError::NoSeparator { .. })),
                "{between}"
            );
        }
        assert!(matches!(
            parse("<a..>-<b>"),
            Err(TemplateError::NoSeparator { .. })
        ));
        for between in [":", "/", "|", "x:y", "é", "}", "<<", " "] {
            assert!(parse(&format!("<a>{between}<b>")).is_ok(), "{between}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn no_text_of_telling_characters_panics(text in "[<>:._a-c0#r{} ]{0,12}") {
            let _ = parse(&text);
        }

        #[test]
        fn literal_text_comes_back(text in "[a-z<>{}:/]{1,12}") {
            let escaped = text.replace('<', "<<").replace('>', ">>");
            prop_assert_eq!(parse(&escaped), Ok(vec![Piece::Text(text)]));
        }
    }
}
