//! Commands for keys of any type, and their expiry.

use super::{
    super::{
        data::{DataSet, Fault},
        resp::Reply,
    },
    Answer, SYNTAX, integer_arg, is_word,
};

pub(crate) fn del(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let keys = args[1..].iter();
    Ok(Reply::count(
        keys.filter(|key| data.remove(key, ms)).count(),
    ))
}

pub(crate) fn exists(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let keys = args[1..].iter();
    let living = keys.filter(|key| data.entry(key, ms).is_some());
    Ok(Reply::count(living.count()))
}

pub(crate) fn type_of(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let entry = data.entry(args[1], ms);
    let name = entry.map_or("none", |entry| entry.value.type_name());
    Ok(Reply::Status(name.into()))
}

pub(crate) fn flushall(data: &mut DataSet, _: i64, args: &[&[u8]]) -> Answer {
    let is_known = args.len() < 2 || is_word(args[1], "SYNC") || is_word(args[1], "ASYNC");
    if args.len() > 2 || !is_known {
        return Err(SYNTAX);
    }
    data.clear();
    Ok(Reply::OK)
}

/// Counts the keys, including expired keys that have not been accessed since they expired.
pub(crate) fn dbsize(data: &mut DataSet, _: i64, _: &[&[u8]]) -> Answer {
    Ok(Reply::count(data.len()))
}

pub(crate) fn expire(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    set_expiry(data, ms, args, "expire", 1000, ms)
}

pub(crate) fn pexpire(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    set_expiry(data, ms, args, "pexpire", 1, ms)
}

pub(crate) fn expireat(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    set_expiry(data, ms, args, "expireat", 1000, 0)
}

pub(crate) fn pexpireat(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    set_expiry(data, ms, args, "pexpireat", 1, 0)
}

/// The conditions under which a command such as `EXPIRE` sets the expiry.
#[derive(Default)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn parse(options: &[&[u8]]) -> Result<Self, Fault> {
        let mut conditions = Self::default();
        for option in options {
            let condition = match option.to_ascii_uppercase().as_slice() {
                b"NX" => &mut conditions.if_none,
                b"XX" => &mut conditions.if_some,
                b"GT" => &mut conditions.if_later,
                b"LT" => &mut conditions.if_earlier,
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Err(format!("ERR Unsupported option {option}").into());
                }
            };
            *condition = true;
        }
        if conditions.if_none
            && (conditions.if_some || conditions.if_later || conditions.if_earlier)
        {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into(),
            );
        }
        if conditions.if_later && conditions.if_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    fn allow(&self, old: Option<i64>, new: i64) -> bool {
        // A key without an expiry is compared as if it expired later than any other key.
        let later = old.is_some_and(|old| new > old);
        let earlier = old.is_none_or(|old| new < old);
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && !later
            || self.if_earlier && !earlier)
    }
}

fn set_expiry(
    data: &mut DataSet,
    ms: i64,
    args: &[&[u8]],
    name: &str,
    factor: i64,
    base: i64,
) -> Answer {
    let conditions = Conditions::parse(&args[3..])?;
    let number = integer_arg(args[2])?;
    let invalid = || Fault::from(format!("ERR invalid expire time in '{name}' command"));
    let expires = number
        .checked_mul(factor)
        .and_then(|number| number.checked_add(base))
        .ok_or_else(invalid)?;
    let Some(entry) = data.entry(args[1], ms) else {
        return Ok(Reply::Int(0));
    };
    if !conditions.allow(entry.expires, expires) {
        return Ok(Reply::Int(0));
    }
    entry.expires = Some(expires);
    entry.extended = Some(expires.saturating_sub(ms));
    if expires <= ms {
        data.remove(args[1], i64::MIN);
    }
    Ok(Reply::Int(1))
}

pub(crate) fn persist(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let entry = data.entry(args[1], ms);
    let expired = entry.and_then(|entry| entry.expires.take());
    Ok(Reply::Int(expired.is_some().into()))
}

pub(crate) fn pttl(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    remaining(data, ms, args[1], |expires| (expires - ms).max(0))
}

pub(crate) fn ttl(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    remaining(data, ms, args[1], |expires| {
        ((expires - ms).max(0) + 500) / 1000
    })
}

pub(crate) fn pexpiretime(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    remaining(data, ms, args[1], |expires| expires)
}

fn remaining(data: &mut DataSet, ms: i64, key: &[u8], of: impl Fn(i64) -> i64) -> Answer {
    Ok(Reply::Int(match data.entry(key, ms) {
        None => -2,
        Some(entry) => entry.expires.map_or(-1, of),
    }))
}

pub(crate) fn keys(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let keys = data.living(ms).map(|(key, _)| key);
    let matching = keys.filter(|key| matches(args[1], key));
    Ok(Reply::Array(matching.map(Reply::bulk).collect()))
}

/// Returns all keys at once, regardless of `COUNT`.
pub(crate) fn scan(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let invalid = || Fault::Borrowed("ERR invalid cursor");
    let cursor = std::str::from_utf8(args[1]).map_err(|_| invalid())?;
    let cursor: u64 = cursor.parse().map_err(|_| invalid())?;
    let (mut pattern, mut kind) = (&b"*"[..], None);
    for option in args[2..].chunks(2) {
        let &[name, value] = option else {
            return Err(SYNTAX);
        };
        if is_word(name, "COUNT") {
            if integer_arg(value)? < 1 {
                return Err(SYNTAX);
            }
        } else if is_word(name, "MATCH") {
            pattern = value;
        } else if is_word(name, "TYPE") {
            kind = Some(value);
        } else {
            return Err(SYNTAX);
        }
    }
    let found = data.living(ms).filter(|(key, entry)| {
        cursor == 0
            && matches(pattern, key)
            && kind.is_none_or(|kind| is_word(kind, entry.value.type_name()))
    });
    let found = found.map(|(key, _)| Reply::bulk(key)).collect();
    Ok(Reply::Array(vec![Reply::bulk(b"0"), Reply::Array(found)]))
}

/// Returns whether a text matches a pattern with `*`, `?`, `[a-c]`, `[^a]` and `\`.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        [b'?', rest @ ..] => !text.is_empty() && matches(rest, &text[1..]),
        [b'[', rest @ ..] => {
            let Some((&first, text)) = text.split_first() else {
                return false;
            };
            let (found, rest) = in_class(rest, first);
            found && matches(rest, text)
        }
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => {
            text.first() == Some(literal) && matches(rest, &text[1..])
        }
    }
}

/// Reads the character class with which `class` begins. Returns whether the byte is in it, and the pattern after it.
fn in_class(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (negated, mut class) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    loop {
        class = match class {
            [] => return (found != negated, class),
            [b']', rest @ ..] => return (found != negated, rest),
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
            [start, b'-', end, rest @ ..] => {
                found |= (*start.min(end)..=*start.max(end)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match() {
        for (pattern, text) in [
            ("*", ""),
            ("a*c", "abbc"),
            ("?[b-d][^x]", "acy"),
            ("\\*", "*"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern}");
        }
        for (pattern, text) in [("", "a"), ("a*c", "abb"), ("[^b]", "b"), ("\\*", "a")] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern}");
        }
    }
}
