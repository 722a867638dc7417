//! The names of locks, how values become part of these names, and the errors of wrong names with their texts.

use std::{
    error::Error,
    fmt::{self, Display},
    sync::Arc,
};

use crate::advice::Advice;

/// The maximum length of a stored name in bytes, including the namespace and the braces of the hash tag.
pub const MAX_KEY_BYTES: usize = 1024;

/// The maximum number of keys in one call. The limit exists because a Redis server serves no other client while it
/// takes the locks of one call.
pub const MAX_KEYS: usize = 1000;

/// A value that can fill a placeholder of a key: any [`Display`] type, such as `u64`, `&str`, `Uuid` or your own
/// `OrderId`. An `Option` or `()` cannot fill a placeholder, because all absent values would share one lock.
///
/// Different values must have different `Display` texts, because two values with the same text share one lock.
#[diagnostic::on_unimplemented(
    message = "#[distributed_lock] `{Self}` cannot be part of a lock's key",
    label = "this value stands in the key and must implement `Display`",
    note = "a key part is any `Display` type; write `<arg.field>` to use a field of the value, or implement `std::fmt::Display` for it",
    note = "for one lock for each item of a list, write `keys = \"item:<items..>\"` instead of `key`",
    note = "an `Option` is refused because absent values would all share one lock: unwrap it before the call"
)]
pub trait KeyPart {
    /// Writes the value's text, unescaped.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    fn write_part(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> KeyPart for T {
    fn write_part(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// The reason why a key is refused. When this error is returned, nothing has been sent to the server, and the guarded
/// body has not run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is empty.
    Empty,
    /// The namespace is empty.
    EmptyNamespace,
    /// The value of this placeholder is empty. Empty values are refused because they would all share one lock.
    EmptyPart {
        /// The placeholder as written, without its brackets.
        placeholder: &'static str,
    },
    /// The key and its namespace together are longer than [`MAX_KEY_BYTES`].
    TooLong {
        /// The length, in bytes, of the part of the key that was rendered. Rendering stops soon after
        /// [`MAX_KEY_BYTES`], so the whole key can be longer than `bytes`.
        bytes: usize,
    },
    /// The key has a control character, a line separator or a mark of writing direction: see [`is_control`].
    ControlCharacter,
    /// The key has a brace outside a Redis Cluster hash tag, so the lock's Redis keys could not share one slot.
    StrayBrace,
    /// The name is reserved for the counter that issues all fencing tokens.
    ReservedName,
    /// The key has a hash tag and ends with a reserved suffix, such as `:queue`. The engine stores the state of locks
    /// in Redis keys with these suffixes.
    ReservedSuffix {
        /// The reserved suffix.
        suffix: &'static str,
    },
    /// The list of keys is empty, so nothing would be locked.
    NoKeys,
    /// The call names more than [`MAX_KEYS`] keys.
    TooManyKeys,
    /// The `Display` implementation of this placeholder's value returned an error.
    Unprintable {
        /// The placeholder as written, without its brackets.
        placeholder: &'static str,
    },
}

impl Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the key is empty"),
            Self::EmptyNamespace => f.write_str("the namespace is empty"),
            Self::EmptyPart { placeholder } => write!(f, "the value of `<{placeholder}>` is empty"),
            Self::TooLong { bytes } => write!(
                f,
                "the key has at least {bytes} bytes, more than the {MAX_KEY_BYTES} bytes allowed with its namespace"
            ),
            Self::ControlCharacter => f.write_str(
                "the key has a control character, a line separator or a mark of writing direction",
            ),
            Self::StrayBrace => f.write_str("the key has a brace outside a `{hash tag}`"),
            Self::ReservedName => write!(
                f,
                "`{FENCE}` is the name of the counter that issues all fencing tokens"
            ),
            Self::ReservedSuffix { suffix } => write!(
                f,
                "the key ends with `{suffix}`, a suffix that is reserved for the stored state of locks"
            ),
            Self::NoKeys => f.write_str("the list of keys is empty"),
            Self::TooManyKeys => write!(f, "the list has more than {MAX_KEYS} keys"),
            Self::Unprintable { placeholder } => {
                write!(f, "the `Display` of the value of `<{placeholder}>` failed")
            }
        }
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::Empty => &Advice("give the lock a name"),
            Self::EmptyNamespace => &Advice("name a namespace, or leave it out"),
            Self::EmptyPart { .. } => {
                &Advice("check the value before the call: all empty values would share one lock")
            }
            Self::TooLong { .. } => {
                &Advice("use an identifier or a digest instead of the whole value")
            }
            Self::ControlCharacter => &Advice("remove it"),
            Self::StrayBrace => &Advice("write one non-empty pair of braces, or none"),
            Self::ReservedName => &Advice("choose another name"),
            Self::ReservedSuffix { .. } => &Advice("choose another ending"),
            Self::TooManyKeys => {
                &Advice("take the locks in several calls, or use one lock for a group of keys")
            }
            Self::NoKeys => &Advice("check the list before the call: there is nothing to lock"),
            Self::Unprintable { .. } => return None,
        })
    }
}

/// The name of a lock, rendered and checked, without its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// Wraps a rendered text without escaping it.
    ///
    /// # Errors
    /// Returns [`KeyError`] if the text is empty, has control characters or is longer than [`MAX_KEY_BYTES`].
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        if text.is_empty() {
            Err(KeyError::Empty)
        } else if text.len() > MAX_KEY_BYTES {
            Err(KeyError::TooLong { bytes: text.len() })
        } else if text.chars().any(is_control) {
            Err(KeyError::ControlCharacter)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// Wraps the name of something that is stored as a lock, behind this prefix.
    ///
    /// # Errors
    /// Returns the same errors as [`new`](Self::new), also for an empty name.
    pub fn behind(prefix: &str, name: &str) -> Result<Self, KeyError> {
        match name.is_empty() {
            true => Err(KeyError::Empty),
            false => Self::new([prefix, name].concat()),
        }
    }

    /// Returns the rendered text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of the counter that issues all fencing tokens of a server.
pub const FENCE: &str = "lock:fence";

/// The beginning of the keys under which the permits of semaphores are stored.
pub const PERMITS: &str = "permits:";

/// Returns whether a name is that of a token counter: [`FENCE`], or the counter of a hash slot in a Redis Cluster.
fn is_counter(name: &str) -> bool {
    let of_slot = || name.strip_prefix("lock:{")?.strip_suffix("}:fence");
    name == FENCE || of_slot().is_some()
}

/// The suffixes of the Redis keys that store a lock's queue, a lock's claim, and the token counter of a hash slot. A
/// key with a hash tag must not end with one of these suffixes. Any other key can end with such a suffix, because the
/// key is wrapped in braces, so that its stored name ends with a brace.
const RESERVED_SUFFIXES: [&str; 3] = [":queue", ":claim", ":fence"];

/// The name under which a backend stores a lock.
///
/// In the native layout, the stored name consists of the escaped namespace and the key. The stored name has exactly one
/// Redis Cluster hash tag, so all Redis keys of one lock share a slot. A key that contains a hash tag keeps that tag. A
/// key without a hash tag is wrapped in braces together with its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Joins a namespace and a key. The namespace is escaped, so different pairs of a namespace and a key never give
    /// the same name.
    ///
    /// # Errors
    /// Returns [`KeyError::EmptyNamespace`] for an empty namespace, [`KeyError::TooLong`] for a name of more than
    /// [`MAX_KEY_BYTES`], [`KeyError::StrayBrace`] for a key whose braces are not one hash tag, and
    /// [`KeyError::ReservedSuffix`] for a key with a hash tag that ends with a reserved suffix.
    ///
    /// ```
    /// # use lock_core::key::{LockKey, LockName};
    /// let name = |key: &str| LockName::new("shop", &LockKey::new(key).unwrap()).unwrap().to_string();
    /// assert_eq!(name("order:42"), "{shop:order:42}");
    /// assert_eq!(name("{order:42}:pay"), "shop:{order:42}:pay");
    /// ```
    pub fn new(namespace: &str, key: &LockKey) -> Result<Self, KeyError> {
        if namespace.is_empty() {
            return Err(KeyError::EmptyNamespace);
        }
        let namespace = escape(namespace);
        let key = key.as_str();
        if !key.contains(['{', '}']) {
            return Self::bounded(["{", &namespace, ":", key, "}"].concat());
        }
        let tagged = key
            .split_once('{')
            .and_then(|(before, rest)| {
                rest.split_once('}')
                    .map(|(tag, after)| (before, tag, after))
            })
            .is_some_and(|(before, tag, after)| {
                !tag.is_empty()
                    && ![before, tag, after]
                        .iter()
                        .any(|part| part.contains(['{', '}']))
            });
        if !tagged {
            return Err(KeyError::StrayBrace);
        }
        match RESERVED_SUFFIXES
            .iter()
            .find(|suffix| key.ends_with(*suffix))
        {
            Some(suffix) => Err(KeyError::ReservedSuffix { suffix }),
            None => Self::bounded([&*namespace, ":", key].concat()),
        }
    }

    /// Returns the key as is, with the namespace (if any) in front of it. This function is for locks whose names other
    /// software, such as Redisson, defines without escaping.
    ///
    /// No hash tag is added to the name. A caller that needs all Redis keys of a lock in one slot has to write a hash
    /// tag into the key.
    ///
    /// # Errors
    /// Returns [`KeyError::EmptyNamespace`] for an empty namespace, [`KeyError::TooLong`] for a name of more than
    /// [`MAX_KEY_BYTES`], and [`KeyError::ReservedName`] for the name of a token counter.
    pub fn plain(namespace: Option<&str>, key: &LockKey) -> Result<Self, KeyError> {
        let name = match namespace {
            None => key.0.clone(),
            Some("") => return Err(KeyError::EmptyNamespace),
            Some(namespace) => format!("{namespace}:{key}").into(),
        };
        if is_counter(&name) {
            Err(KeyError::ReservedName)
        } else {
            Self::bounded(name)
        }
    }

    fn bounded(name: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, KeyError> {
        let bytes = name.as_ref().len();
        if bytes > MAX_KEY_BYTES {
            Err(KeyError::TooLong { bytes })
        } else {
            Ok(Self(name.into()))
        }
    }

    /// Wraps a name that is already in its stored form, such as a name that a server has sent.
    #[must_use]
    pub fn stored(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name in its stored form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Renders a key template: literal text is kept as is, and values are escaped unless they are added by
/// [`raw`](Self::raw).
#[derive(Debug)]
pub struct KeyBuilder {
    text: String,
    error: Option<KeyError>,
}

impl KeyBuilder {
    /// Creates a builder whose key is still empty.
    #[must_use]
    pub fn new() -> Self {
        Self {
            text: String::with_capacity(48),
            error: None,
        }
    }

    /// Adds literal text of the template.
    #[must_use]
    pub fn text(mut self, literal: &str) -> Self {
        self.text.push_str(literal);
        self
    }

    /// Adds a value, with every byte outside `[A-Za-z0-9._~-]` percent-escaped.
    #[must_use]
    pub fn part<T: KeyPart + ?Sized>(self, placeholder: &'static str, value: &T) -> Self {
        self.value(placeholder, value, true)
    }

    /// Adds a value without escaping it, for a placeholder `<arg:raw>`.
    #[must_use]
    pub fn raw<T: KeyPart + ?Sized>(self, placeholder: &'static str, value: &T) -> Self {
        self.value(placeholder, value, false)
    }

    fn value<T: KeyPart + ?Sized>(
        mut self,
        placeholder: &'static str,
        value: &T,
        escape: bool,
    ) -> Self {
        // The builder reports only its first error, so values after that error are not rendered.
        if self.error.is_some() {
            return self;
        }
        let start = self.text.len();
        let mut bounded = Bounded {
            out: &mut self.text,
            escape,
        };
        let written = value.write_part(&mut bounded);
        if self.text.len() > MAX_KEY_BYTES {
            let bytes = self.text.len();
            self.error = Some(KeyError::TooLong { bytes });
        } else if written.is_err() {
            self.error = Some(KeyError::Unprintable { placeholder });
        } else if self.text.len() == start {
            self.error = Some(KeyError::EmptyPart { placeholder });
        }
        self
    }

    /// Returns the finished key.
    ///
    /// # Errors
    /// Returns the [`KeyError`] of the first invalid value. If each value is valid but the whole key is invalid,
    /// returns the [`KeyError`] of the key.
    pub fn build(self) -> Result<LockKey, KeyError> {
        match self.error {
            Some(error) => Err(error),
            None => LockKey::new(self.text),
        }
    }
}

impl Default for KeyBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes a value into a key, up to the maximum length of a key.
struct Bounded<'a> {
    out: &'a mut String,
    escape: bool,
}

impl fmt::Write for Bounded<'_> {
    /// Fails once the key exceeds [`MAX_KEY_BYTES`]. This failure stops a `Display` implementation that writes
    /// endlessly.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            if self.out.len() > MAX_KEY_BYTES {
                return Err(fmt::Error);
            }
            if self.escape {
                escape_char(char, self.out);
            } else {
                self.out.push(char);
            }
        }
        Ok(())
    }
}

fn escape_char(char: char, out: &mut String) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    for byte in char.encode_utf8(&mut [0; 4]).bytes() {
        if is_unreserved(byte) {
            out.push(byte.into());
        } else {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)].into());
            out.extend(['%', high, low]);
        }
    }
}

/// Returns whether a key must not contain this character. A log or a terminal would not show such a character, would
/// break the line there, or would reorder the text around it.
#[must_use]
pub fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{061C}' | '\u{200E}' | '\u{200F}' // directional marks
                | '\u{2028}' | '\u{2029}' // line and paragraph separators
                | '\u{202A}'..='\u{202E}' // directional embeddings and overrides
                | '\u{2066}'..='\u{2069}' // directional isolates
        )
}

/// Returns whether escaping leaves this byte unchanged. An escaped value consists of unreserved bytes and `%`, so a
/// template can use any other byte as a separator.
#[must_use]
pub const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-')
}

/// Returns the percent-escaped form that a text has in a key. A user name or a password in a URL has the same form.
#[must_use]
pub fn escape(text: &str) -> String {
    if text.bytes().all(is_unreserved) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|char| escape_char(char, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn key(value: &str) -> Result<LockKey, KeyError> {
        KeyBuilder::new().text("order:").part("id", value).build()
    }

    #[test]
    fn values_are_escaped_and_literals_are_not() {
        let key = KeyBuilder::new()
            .text("{a}:")
            .part("x", "a:b/c%d é")
            .text("|")
            .raw("y", "r:w")
            .build();
        assert_eq!(key.unwrap().as_str(), "{a}:a%3Ab%2Fc%25d%20%C3%A9|r:w");
    }

    /// A value whose `Display` writes far more than a key can hold, and counts its writes.
    struct Endless(Cell<usize>);
    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            while self.0.get() < 1_000_000 {
                self.0.set(self.0.get() + 1);
                f.write_str("é:")?;
            }
            Ok(())
        }
    }

    #[test]
    fn a_value_is_printed_to_the_limit_of_a_key() {
        for raw in [true, false] {
            let endless = Endless(Cell::new(0));
            let key = KeyBuilder::new().text("k:");
            let key = match raw {
                true => key.raw("endless", &endless),
                false => key.part("endless", &endless),
            };
            // A value after the first error is not rendered, and its own error does not replace the first error.
            let after = Endless(Cell::new(0));
            let refused = key.text(":").part("after", &after).build();
            let Err(KeyError::TooLong { bytes }) = refused else {
                panic!("{refused:?}");
            };
            assert!(
                bytes > MAX_KEY_BYTES && bytes < MAX_KEY_BYTES + 16,
                "{bytes}"
            );
            assert!(endless.0.get() <= MAX_KEY_BYTES, "{:?}", endless.0);
            assert_eq!(after.0.get(), 0);
        }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        for (error, says) in [
            (KeyError::Empty, "give the lock a name"),
            (KeyError::EmptyNamespace, "the namespace is empty"),
            (KeyError::EmptyPart { placeholder: "id" }, "`<id>` is empty"),
            (
                KeyError::TooLong { bytes: 2000 },
                "2000 bytes, more than the 1024",
            ),
            (KeyError::ControlCharacter, "remove it"),
            (KeyError::StrayBrace, "or none"),
            (KeyError::ReservedName, "`lock:fence`"),
            (KeyError::ReservedSuffix { suffix: ":queue" }, "`:queue`"),
            (KeyError::Unprintable { placeholder: "id" }, "`<id>` failed"),
        ] {
            let advice = error.source().map(ToString::to_string);
            let text = format!("{error} {}", advice.unwrap_or_default());
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_plain_name_is_what_it_says() {
        let key = |text: &str| LockKey::new(text).unwrap();
        let plain = |namespace, text| LockName::plain(namespace, &key(text));
        assert_eq!(plain(None, "{a}b}").unwrap().as_str(), "{a}b}");
        assert_eq!(plain(Some("shop"), "a").unwrap().as_str(), "shop:a");
        assert_eq!(plain(Some(""), "a"), Err(KeyError::EmptyNamespace));
        for fence in [plain(None, "lock:fence"), plain(Some("lock"), "fence")] {
            assert_eq!(fence, Err(KeyError::ReservedName));
        }
    }

    #[test]
    fn an_empty_part_is_named() {
        assert_eq!(key(""), Err(KeyError::EmptyPart { placeholder: "id" }));
        assert_eq!(LockKey::new(""), Err(KeyError::Empty));
    }

    #[test]
    fn a_key_is_bounded_and_printable() {
        assert!(LockKey::new("k".repeat(MAX_KEY_BYTES)).is_ok());
        assert_eq!(
            LockKey::new("k".repeat(MAX_KEY_BYTES + 1)),
            Err(KeyError::TooLong {
                bytes: MAX_KEY_BYTES + 1
            })
        );
        assert!(matches!(
            key(&"x".repeat(100_000)),
            Err(KeyError::TooLong { .. })
        ));
        for char in [
            '\n', '\u{85}', '\u{2028}', '\u{2029}', '\u{202E}', '\u{2066}', '\u{200F}',
        ] {
            let key = LockKey::new(format!("a{char}b"));
            assert_eq!(key, Err(KeyError::ControlCharacter), "{char:?}");
        }
        // A value that is escaped can contain control characters.
        assert_eq!(key("a\u{202E}b").unwrap().as_str(), "order:a%E2%80%AEb");
        assert!(LockKey::new("日本語 עברית \u{200B}").is_ok());
    }

    #[test]
    fn a_namespace_counts() {
        let native = |key: &LockKey| LockName::new("é", key).map(|name| name.as_str().len());
        let plain = |key: &LockKey| LockName::plain(Some("é"), key).map(|name| name.as_str().len());
        let key = |bytes: usize| LockKey::new("k".repeat(bytes)).unwrap();
        // The native name is `{%C3%A9:…}`, 9 bytes longer than the key. The plain name is `é:…`, 3 bytes longer than
        // the key.
        assert_eq!(native(&key(MAX_KEY_BYTES - 9)), Ok(MAX_KEY_BYTES));
        let bytes = MAX_KEY_BYTES + 1;
        assert_eq!(
            native(&key(MAX_KEY_BYTES - 8)),
            Err(KeyError::TooLong { bytes })
        );
        assert_eq!(plain(&key(MAX_KEY_BYTES - 3)), Ok(MAX_KEY_BYTES));
        assert_eq!(
            plain(&key(MAX_KEY_BYTES - 2)),
            Err(KeyError::TooLong { bytes })
        );
        let tagged = LockKey::new(format!("{{a}}{}", "k".repeat(MAX_KEY_BYTES - 9))).unwrap();
        assert_eq!(
            native(&tagged),
            Err(KeyError::TooLong {
                bytes: MAX_KEY_BYTES + 1
            })
        );
    }

    #[test]
    fn a_failing_display_is_an_error() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                Err(fmt::Error)
            }
        }
        let key = KeyBuilder::new().text("k:").part("b", &Broken).build();
        assert_eq!(key, Err(KeyError::Unprintable { placeholder: "b" }));
    }

    #[test]
    fn names_have_exactly_one_hash_tag() {
        let name = |key: &str| {
            LockName::new("n:s", &LockKey::new(key).unwrap()).map(|name| name.as_str().to_owned())
        };
        assert_eq!(name("a:queue"), Ok("{n%3As:a:queue}".into()));
        assert_eq!(name("x{a}y"), Ok("n%3As:x{a}y".into()));
        for stray in ["a}b", "a{b", "{}", "{a}}", "{a}{b}", "{{a}", "}a{"] {
            assert_eq!(name(stray), Err(KeyError::StrayBrace), "{stray}");
        }
        for suffix in RESERVED_SUFFIXES {
            let refused = Err(KeyError::ReservedSuffix { suffix });
            assert_eq!(name(&format!("{{a}}{suffix}")), refused);
        }
        assert_eq!(
            LockName::new("", &LockKey::new("a").unwrap()),
            Err(KeyError::EmptyNamespace)
        );
    }
}
