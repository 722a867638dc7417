//! The wire format of commands and replies.

use std::sync::Arc;

use super::{
    data::Fault,
    numbers::{integer, write_double, write_integer},
};

/// The reply to a command.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(Fault),
    Error(Fault),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Double(f64),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// Members with their scores.
    Scored(Vec<(Arc<[u8]>, f64)>),
    /// One member with its score, or an empty reply.
    Popped(Option<(Arc<[u8]>, f64)>),
    Push(Vec<Reply>),
    /// Several replies to one command.
    Many(Vec<Reply>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Status(Fault::Borrowed("OK"));

    pub(crate) fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(bytes.to_vec())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, resp3: bool) {
        match self {
            Self::Status(text) => write_line(out, b'+', text),
            Self::Error(text) => write_line(out, b'-', text),
            Self::Int(value) => write_header(out, b':', *value),
            Self::Bulk(bytes) => write_bulk(out, bytes),
            Self::Null if resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::Double(value) => write_score(out, *value, resp3),
            Self::Array(items) => write_array(out, b'*', items, resp3),
            Self::Push(items) => write_array(out, if resp3 { b'>' } else { b'*' }, items, resp3),
            Self::Many(replies) => replies.iter().for_each(|reply| reply.write(out, resp3)),
            Self::Map(pairs) => {
                let (kind, count) = if resp3 {
                    (b'%', pairs.len())
                } else {
                    (b'*', pairs.len() * 2)
                };
                write_length(out, kind, count);
                for (key, value) in pairs {
                    key.write(out, resp3);
                    value.write(out, resp3);
                }
            }
            Self::Scored(pairs) => {
                write_length(out, b'*', if resp3 { pairs.len() } else { pairs.len() * 2 });
                for (member, score) in pairs {
                    if resp3 {
                        write_length(out, b'*', 2);
                    }
                    write_bulk(out, member);
                    write_score(out, *score, resp3);
                }
            }
            Self::Popped(popped) => {
                write_length(out, b'*', if popped.is_some() { 2 } else { 0 });
                if let Some((member, score)) = popped {
                    write_bulk(out, member);
                    write_score(out, *score, resp3);
                }
            }
        }
    }
}

/// Writes one line of a reply. Line breaks in the text become spaces.
fn write_line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    let breaks = |byte| matches!(byte, b'\r' | b'\n');
    out.extend(
        text.bytes()
            .map(|byte| if breaks(byte) { b' ' } else { byte }),
    );
    out.extend_from_slice(b"\r\n");
}

fn write_header(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    write_integer(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the number of items or bytes that follow.
pub(crate) fn write_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    write_header(out, kind, i64::try_from(length).unwrap_or(i64::MAX));
}

fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn write_score(out: &mut Vec<u8>, score: f64, resp3: bool) {
    if resp3 {
        out.push(b',');
        write_double(out, score);
        out.extend_from_slice(b"\r\n");
    } else {
        let mut text = Vec::with_capacity(24);
        write_double(&mut text, score);
        write_bulk(out, &text);
    }
}

fn write_array(out: &mut Vec<u8>, kind: u8, items: &[Reply], resp3: bool) {
    write_length(out, kind, items.len());
    for item in items {
        item.write(out, resp3);
    }
}

/// The result of parsing the received bytes.
pub(crate) enum Parsed<'a> {
    /// A complete command, which may be empty, and its length in bytes.
    Command(Vec<&'a [u8]>, usize),
    Incomplete,
    /// The bytes are not a command, so the connection has to be closed.
    Broken(&'static str),
}

/// Parses the next command.
pub(crate) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((first, mut at)) = line(bytes, 0) else {
        return Parsed::Incomplete;
    };
    let Some(count) = first.strip_prefix(b"*") else {
        let words = first.split(u8::is_ascii_whitespace);
        return Parsed::Command(words.filter(|word| !word.is_empty()).collect(), at);
    };
    let Some(count) = integer(count).filter(|count| *count <= 1_048_576) else {
        return Parsed::Broken("ERR Protocol error: invalid multibulk length");
    };
    let count = usize::try_from(count).unwrap_or_default();
    let mut args = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let Some((header, start)) = line(bytes, at) else {
            return Parsed::Incomplete;
        };
        let Some(length) = header.strip_prefix(b"$") else {
            return Parsed::Broken("ERR Protocol error: expected '$'");
        };
        let length = integer(length).and_then(|length| usize::try_from(length).ok());
        let Some(length) = length.filter(|length| *length <= 512 << 20) else {
            return Parsed::Broken("ERR Protocol error: invalid bulk length");
        };
        if bytes.len() < start + length + 2 {
            return Parsed::Incomplete;
        }
        args.push(&bytes[start..start + length]);
        at = start + length + 2;
    }
    Parsed::Command(args, at)
}

/// Returns the line that begins at `start`, and where the next line begins. Returns `None` if the line is not complete.
fn line(bytes: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(start..)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = &rest[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), start + end + 1))
}
