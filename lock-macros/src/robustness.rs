//! Checks of properties that hold for any input: no two argument lists give the same key, and the macro never panics.
//!
//! The checks take bytes as input, so that a coverage-guided fuzzer can search for counterexamples. `lock-fuzz` runs
//! such a fuzzer, and stores the inputs that reach new code. The tests in this file run the checks on the stored
//! inputs. The property tests in `cases` build inputs from words that the macro recognises.

use std::fmt;

use lock_core::key::{KeyBuilder, KeyError, LockKey, LockName, MAX_KEY_BYTES, escape};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;
use syn::{ImplItem, Item, LitStr, Signature, TraitItem, TypeTraitObject, visit_mut::VisitMut};

use crate::{
    signature::Declared,
    template::{self, Piece, Placeholder},
};

#[cfg(test)]
mod cases;

/// The byte that separates the texts in an input of [`keys`]: FF, which never occurs in UTF-8 text.
const NO_TEXT: u8 = 0xFF;

/// Checks that different values have different keys, and that equal values have the same key.
///
/// The input consists of a template, the values of a first list, the values of a second list, and a namespace. Each
/// list has one value for each placeholder of the template. The byte FF separates each text, including each single
/// value, from the next text. If the input ends early, a missing value of the first list is `0`, and a missing value of
/// the second list is copied from the first list. Returns whether the input was a useful test: the two lists differed,
/// and both gave a key.
///
/// # Panics
/// Panics if different values give the same key, or equal values give different keys.
pub fn keys(data: &[u8]) -> bool {
    let mut texts = data
        .split(|byte| *byte == NO_TEXT)
        .map(|text| String::from_utf8_lossy(text).into_owned());
    let Ok(pieces) = template::parse(&texts.next().unwrap_or_default()) else {
        return false;
    };
    let holes: Vec<_> = pieces.iter().filter_map(hole).collect();
    // The value of a placeholder with `:raw` is not escaped. Different values can then give the same key, so the check
    // does not apply.
    if holes.iter().any(|hole| hole.raw) {
        return false;
    }
    let mut tuple = |missing: &[String]| -> Vec<String> {
        missing
            .iter()
            .map(|missing| texts.next().unwrap_or_else(|| missing.clone()))
            .collect()
    };
    let left = tuple(&vec!["0".to_owned(); holes.len()]);
    let right = tuple(&left);
    let space = tuple(&["0".to_owned()]).remove(0);

    let (Some(left_key), Some(right_key)) = (
        rendered(&pieces, &left, |key, value| key.part("part", value)),
        rendered(&pieces, &right, |key, value| {
            key.part("part", &ByCharacter(value))
        }),
    ) else {
        return false;
    };
    assert_eq!(
        left == right,
        left_key == right_key,
        "{left:?} and {right:?} give `{left_key}` and `{right_key}`"
    );
    read_back(&pieces, &left, &left_key);
    read_back(&pieces, &right, &right_key);
    name_read_back(&space, &left_key);
    left != right
}

fn hole(piece: &Piece) -> Option<&Placeholder> {
    match piece {
        Piece::Text(_) => None,
        Piece::Placeholder(hole) => Some(hole),
    }
}

/// Renders a key as the expansion does. Returns `None` if a value is empty or the key is too long.
fn rendered(
    pieces: &[Piece],
    values: &[String],
    part: impl Fn(KeyBuilder, &str) -> KeyBuilder,
) -> Option<LockKey> {
    let mut rest = values.iter();
    let key = pieces
        .iter()
        .fold(KeyBuilder::new(), |key, piece| match piece {
            Piece::Text(text) => key.text(text),
            Piece::Placeholder(_) => part(key, rest.next().expect("a value for each placeholder")),
        });
    match key.build() {
        Ok(key) => Some(key),
        Err(KeyError::EmptyPart { .. }) if values.iter().any(String::is_empty) => None,
        Err(KeyError::TooLong { bytes }) if bytes > MAX_KEY_BYTES => None,
        Err(error) => panic!("{values:?}: {error}"),
    }
}

/// A value whose `Display` writes one character at a time.
struct ByCharacter<'a>(&'a str);

impl fmt::Display for ByCharacter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .chars()
            .try_for_each(|character| write!(f, "{character}"))
    }
}

/// Checks that the values can be read back from the key, so no other values give the same key. Reading values back is a
/// stronger check than comparing two keys. A comparison finds a fault only if the input happens to contain two lists of
/// values that give the same key.
fn read_back(pieces: &[Piece], values: &[String], key: &LockKey) {
    let mut rest = values.iter();
    let mut expected = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => expected.push_str(text),
            Piece::Placeholder(_) => {
                let value = rest.next().expect("a value for each placeholder");
                let part = escape(value);
                assert!(part.bytes().all(escaping_yields), "{value:?} ⇒ {part:?}");
                assert_eq!(unescaped(&part), value.as_bytes(), "{part:?}");
                expected.push_str(&part);
            }
        }
    }
    assert_eq!(key.as_str(), expected);
    assert_eq!(readings(pieces, &expected), 1, "readings of `{expected}`");
}

/// Checks that the namespace and the key can be read back from the name under which a backend stores the lock.
fn name_read_back(space: &str, key: &LockKey) {
    let Ok(name) = LockName::new(space, key) else {
        return;
    };
    let name = name.as_str();
    let whole = name
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'));
    let (part, rest) = whole.unwrap_or(name).split_once(':').expect("a namespace");
    assert!(part.bytes().all(escaping_yields), "`{name}`");
    assert_eq!(unescaped(part), space.as_bytes(), "`{name}`");
    assert_eq!(rest, key.as_str(), "`{name}`");
}

/// Returns whether an escaped value can contain the byte. The set of bytes is copied from the documentation, so that
/// the check is independent of lock-core's code.
fn escaping_yields(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~-%".contains(&byte)
}

fn unescaped(part: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = part;
    while let Some((&first, _)) = rest.as_bytes().split_first() {
        let (byte, length) = match first {
            b'%' => (u8::from_str_radix(&rest[1..3], 16).expect("two digits"), 3),
            other => (other, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// Returns the number of ways in which a key can be split into the texts of its template and the values between them.
fn readings(pieces: &[Piece], key: &str) -> usize {
    let key = key.as_bytes();
    // For each position in the key, the number of ways to read the bytes before it as the pieces before the current
    // piece.
    let mut ways = vec![0_usize; key.len() + 1];
    ways[0] = 1;
    for piece in pieces {
        let mut next = vec![0_usize; key.len() + 1];
        for (start, &count) in ways.iter().enumerate().filter(|(_, count)| **count > 0) {
            let rest = &key[start..];
            let ends = match piece {
                Piece::Text(text) if rest.starts_with(text.as_bytes()) => text.len()..=text.len(),
                #[allow(clippy::reversed_empty_ranges)]
                Piece::Text(_) => 1..=0,
                Piece::Placeholder(_) => {
                    1..=rest
                        .iter()
                        .take_while(|byte| escaping_yields(**byte))
                        .count()
                }
            };
            for length in ends {
                next[start + length] = next[start + length].saturating_add(count);
            }
        }
        ways = next;
    }
    ways[key.len()]
}

/// A word for invisible delimiters, which plain text cannot express. In an input, a group after this word becomes a
/// group with invisible delimiters, like those around a `macro_rules` fragment.
const INVISIBLE: &str = "invisible";

/// The maximum depth of nested groups. Deeper nesting overflows the stack of any recursive parser, such as syn.
const DEPTH: usize = 32;

/// The maximum number of `..` in an input. With more `..`, syn can take minutes to print an expression. For example,
/// for `-..-.._..` the time doubles with each `-..`.
const RANGES: usize = 8;

/// Checks that the macro generates valid tokens for any input, and that each error message comes from the macro.
///
/// The input consists of the attribute's arguments, a NUL, and the item below the attribute (a plain function if it is
/// missing). Returns whether the macro accepted the attribute.
///
/// # Panics
/// Panics if the macro generates invalid tokens, or if an error message does not come from the macro.
pub fn tokens(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    if text.matches("..").count() > RANGES {
        return false;
    }
    let (args, item) = text.split_once('\0').unwrap_or((
        &text,
        "async fn f(&self, id: u64) -> Result<(), E> { body }",
    ));
    let (Some(args), Some(item)) = (lexed(args), lexed(item)) else {
        return false;
    };
    let output = crate::locked(args.clone(), item.clone());
    let written = output.to_string();
    if let Err(error) = written.parse::<TokenStream>() {
        panic!("{error}: {written}");
    }
    // An input that contains `compile_error` is not checked further, because its own errors cannot be distinguished
    // from the errors of the macro.
    if names(&args, "compile_error") || names(&item, "compile_error") {
        return false;
    }
    let (rest, messages) = errors(output);
    for message in &messages {
        let said = message.strip_prefix("#[distributed_lock] ");
        assert!(
            said.is_some_and(|said| !said.trim().is_empty()),
            "{message:?}"
        );
    }
    if messages.is_empty() {
        locked(&item, &rest);
    } else {
        kept(&item, &rest);
    }
    messages.is_empty()
}

/// Checks that the expansion of a refused item contains the item. The body of a function may begin with more statements.
fn kept(item: &TokenStream, output: &TokenStream) {
    let Some(before) = Declared::read(item.clone()) else {
        assert_eq!(output.to_string(), item.to_string());
        return;
    };
    let after = Declared::read(output.clone()).unwrap_or_else(|| panic!("{item}\n⇒ {output}"));
    let parts = |function: Declared| {
        let Declared {
            attrs,
            vis,
            defaultness,
            sig,
            body,
        } = function;
        let head = quote!(#(#attrs)* #vis #defaultness #sig).to_string();
        (head, body.map(|body| body.stream().to_string()))
    };
    let (before, after) = (parts(before), parts(after));
    assert_eq!(before.0, after.0);
    match (before.1, after.1) {
        (Some(before), Some(after)) => assert!(after.ends_with(&before), "{item}\n⇒ {output}"),
        (before, after) => assert_eq!(before, after),
    }
}

/// Checks that the expansion of an accepted function contains the lock, and that the function's name, return type and
/// number of arguments stay the same. Parses the function in each context where a function can be written: as a free
/// item, in an `impl` and in a trait.
fn locked(item: &TokenStream, output: &TokenStream) {
    assert!(names(output, "__private"), "no lock: {output}");
    for (before, after) in signatures(item).into_iter().zip(signatures(output)) {
        let Some(mut before) = before else { continue };
        let mut sums = Sums(false);
        sums.visit_return_type_mut(&mut before.output);
        if sums.0 {
            continue;
        }
        let after = after.unwrap_or_else(|| panic!("{item}\n⇒ {output}"));
        assert_eq!(before.ident, after.ident);
        assert_eq!(before.inputs.len(), after.inputs.len(), "{output}");
        let (before, after) = (before.output, after.output);
        assert_eq!(quote!(#before).to_string(), quote!(#after).to_string());
    }
}

/// A visitor that finds out whether a type ends with a `+`. A type that ends with a `+` is not checked, because the
/// generated code has `as` after the type, and syn would parse this `as` as another bound. Only a trait object can end
/// with a `+`, and no function can return a trait object.
struct Sums(bool);

impl VisitMut for Sums {
    fn visit_type_trait_object_mut(&mut self, sum: &mut TypeTraitObject) {
        self.0 |= sum.bounds.trailing_punct();
        syn::visit_mut::visit_type_trait_object_mut(self, sum);
    }
}

/// Parses a function as a free item, in an `impl` and in a trait.
fn signatures(tokens: &TokenStream) -> [Option<Signature>; 3] {
    let parsed = || tokens.clone();
    [
        match syn::parse2(parsed()) {
            Ok(Item::Fn(function)) => Some(function.sig),
            _ => None,
        },
        match syn::parse2(parsed()) {
            Ok(ImplItem::Fn(function)) => Some(function.sig),
            _ => None,
        },
        match syn::parse2(parsed()) {
            Ok(TraitItem::Fn(function)) => Some(function.sig),
            _ => None,
        },
    ]
}

fn lexed(text: &str) -> Option<TokenStream> {
    grouped(text.parse().ok()?, DEPTH)
}

/// Converts each `invisible(tokens)` into a group with invisible delimiters.
fn grouped(tokens: TokenStream, depth: usize) -> Option<TokenStream> {
    let mut trees: Vec<TokenTree> = Vec::new();
    for tree in tokens {
        let TokenTree::Group(group) = tree else {
            trees.push(tree);
            continue;
        };
        let stream = grouped(group.stream(), depth.checked_sub(1)?)?;
        let mut delimiter = group.delimiter();
        if matches!(trees.last(), Some(TokenTree::Ident(word)) if word == INVISIBLE) {
            trees.pop();
            delimiter = Delimiter::None;
        }
        trees.push(Group::new(delimiter, stream).into());
    }
    Some(trees.into_iter().collect())
}

fn names(tokens: &TokenStream, word: &str) -> bool {
    tokens.clone().into_iter().any(|tree| match tree {
        TokenTree::Ident(name) => name == word,
        TokenTree::Group(group) => names(&group.stream(), word),
        _ => false,
    })
}

/// Removes each `::core::compile_error! { "…" }` from the end of the tokens. Returns the remaining tokens, and the
/// messages in reverse order.
fn errors(tokens: TokenStream) -> (TokenStream, Vec<String>) {
    let mut trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut messages = Vec::new();
    while let Some(start) = trees.len().checked_sub(8)
        && let [.., TokenTree::Group(message)] = &trees[start..]
        && trees[start..start + 7].iter().map(ToString::to_string).eq([
            ":",
            ":",
            "core",
            ":",
            ":",
            "compile_error",
            "!",
        ])
        && let Ok(message) = syn::parse2::<LitStr>(message.stream())
    {
        messages.push(message.value());
        trees.truncate(start);
    }
    (trees.into_iter().collect(), messages)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, thread};

    use super::*;

    /// Runs a check on the inputs that `lock-fuzz` has stored.
    fn replayed(target: &str, check: fn(&[u8]) -> bool) {
        for kept in ["seeds", "corpus"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../lock-fuzz")
                .join(kept)
                .join(target);
            let files: Vec<_> = fs::read_dir(&folder)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
                .map(|file| file.unwrap().path())
                .collect();
            let mut telling = 0;
            for file in &files {
                let data = fs::read(file).unwrap();
                // The parser syn recurses, and its stack frames are large in an unoptimised build, so the check needs a
                // large stack.
                let tried = thread::Builder::new()
                    .stack_size(64 << 20)
                    .spawn(move || check(&data));
                match tried.unwrap().join() {
                    Ok(tells) => telling += usize::from(tells),
                    Err(_) => panic!("the check failed on the input {}", file.display()),
                }
            }
            assert!(
                telling > 0,
                "none of the {} files in {} is a useful test",
                files.len(),
                folder.display()
            );
        }
    }

    #[test]
    fn kept_keys_hold() {
        replayed("keys", keys);
    }

    #[test]
    fn kept_tokens_hold() {
        replayed("tokens", tokens);
    }

    #[test]
    fn a_key_that_can_be_cut_in_two_ways_is_seen() {
        let pieces = |text| template::parse(text).unwrap();
        assert_eq!(readings(&pieces("a:<x>:<y>"), "a:b%3A:c"), 1);
        assert_eq!(readings(&pieces("a:<x>"), "a:b:c"), 0);
        let mut touching = pieces("<x>:<y>");
        touching.remove(1);
        assert_eq!(readings(&touching, "abc"), 2);
    }

    #[test]
    fn messages_are_seen() {
        let output =
            quote!(fn f() {} ::core::compile_error! { "a" } ::core::compile_error! { "b" });
        let (rest, messages) = errors(output);
        assert_eq!(
            rest.to_string(),
            quote!(
                fn f() {}
            )
            .to_string()
        );
        assert_eq!(messages, ["b", "a"]);
    }
}
