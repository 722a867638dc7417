//! Commands for strings.

use super::{
    super::{
        data::{DataSet, Entry, Fault, Value, WRONG_TYPE},
        numbers::{integer, write_integer},
        resp::Reply,
    },
    Answer, NOT_AN_INTEGER, SYNTAX, integer_arg, is_word, wrong_number,
};

pub(crate) fn get(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let text = data.text(args[1], ms)?;
    Ok(text.map_or(Reply::Null, |text| Reply::bulk(text)))
}

pub(crate) fn strlen(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let text = data.text(args[1], ms)?;
    Ok(Reply::count(text.map_or(0, |text| text.len())))
}

pub(crate) fn mget(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let keys = args[1..].iter();
    let texts = keys.map(|key| match data.text(key, ms) {
        Ok(Some(text)) => Reply::bulk(text),
        _ => Reply::Null,
    });
    Ok(Reply::Array(texts.collect()))
}

pub(crate) fn mset(data: &mut DataSet, _: i64, args: &[&[u8]]) -> Answer {
    if args.len().is_multiple_of(2) {
        return Err(wrong_number("mset"));
    }
    for pair in args[1..].chunks_exact(2) {
        data.put(pair[0], Value::Text(pair[1].to_vec()), None);
    }
    Ok(Reply::OK)
}

pub(crate) fn setnx(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    if data.entry(args[1], ms).is_some() {
        return Ok(Reply::Int(0));
    }
    data.put(args[1], Value::Text(args[2].to_vec()), None);
    Ok(Reply::Int(1))
}

/// The options of SET.
#[derive(Default)]
struct SetOptions<'a> {
    if_absent: bool,
    if_present: bool,
    keeps_expiry: bool,
    gets: bool,
    /// The argument of the expiry, whether its unit is seconds instead of milliseconds, and whether it is a point in
    /// time instead of a duration.
    expiry: Option<(&'a [u8], bool, bool)>,
}

impl<'a> SetOptions<'a> {
    fn parse(args: &[&'a [u8]]) -> Result<Self, Fault> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let has_expiry = options.expiry.is_some() || options.keeps_expiry;
            if is_word(option, "NX") && !options.if_present {
                options.if_absent = true;
            } else if is_word(option, "XX") && !options.if_absent {
                options.if_present = true;
            } else if is_word(option, "GET") {
                options.gets = true;
            } else if is_word(option, "KEEPTTL") && options.expiry.is_none() {
                options.keeps_expiry = true;
            } else {
                let is_seconds = is_word(option, "EX") || is_word(option, "EXAT");
                let is_moment = is_word(option, "PXAT") || is_word(option, "EXAT");
                if has_expiry || !(is_seconds || is_moment || is_word(option, "PX")) {
                    return Err(SYNTAX);
                }
                let number = args.next().ok_or(SYNTAX)?;
                options.expiry = Some((number, is_seconds, is_moment));
            }
        }
        Ok(options)
    }

    fn expires(&self, ms: i64) -> Result<Option<i64>, Fault> {
        let Some((number, is_seconds, is_moment)) = self.expiry else {
            return Ok(None);
        };
        let invalid = || Fault::Borrowed("ERR invalid expire time in 'set' command");
        let number = integer_arg(number)?;
        let factor = if is_seconds { 1000 } else { 1 };
        let number = number
            .checked_mul(factor)
            .filter(|number| *number > 0)
            .ok_or_else(invalid)?;
        let base = if is_moment { 0 } else { ms };
        number.checked_add(base).ok_or_else(invalid).map(Some)
    }
}

pub(crate) fn set(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (key, value) = (args[1], args[2]);
    if args.len() == 3 {
        data.put(key, Value::Text(value.to_vec()), None);
        return Ok(Reply::OK);
    }
    let options = SetOptions::parse(&args[3..])?;
    let expires = options.expires(ms)?;
    let entry = data.entry(key, ms);
    let (exists, old_expiry) = (
        entry.is_some(),
        entry.as_ref().and_then(|entry| entry.expires),
    );
    let reply = match entry.map(|entry| &entry.value) {
        _ if !options.gets => Reply::OK,
        Some(Value::Text(text)) => Reply::bulk(text),
        Some(_) => return Err(WRONG_TYPE),
        None => Reply::Null,
    };
    if options.if_absent && exists || options.if_present && !exists {
        return Ok(if options.gets { reply } else { Reply::Null });
    }
    let expires = if options.keeps_expiry {
        old_expiry
    } else {
        expires
    };
    data.put(key, Value::Text(value.to_vec()), expires);
    Ok(reply)
}

pub(crate) fn incr(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    add(data, ms, args[1], 1)
}

pub(crate) fn decr(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    add(data, ms, args[1], -1)
}

pub(crate) fn incrby(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let by = integer_arg(args[2])?;
    add(data, ms, args[1], by)
}

pub(crate) fn decrby(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let by = integer_arg(args[2])?;
    let by = by
        .checked_neg()
        .ok_or(Fault::Borrowed("ERR decrement would overflow"))?;
    add(data, ms, args[1], by)
}

fn add(data: &mut DataSet, ms: i64, key: &[u8], by: i64) -> Answer {
    let (entry, old) = match data.entry(key, ms) {
        None => (None, 0),
        Some(Entry {
            value: Value::Text(text),
            ..
        }) => {
            let old = integer(text).ok_or(NOT_AN_INTEGER)?;
            (Some(text), old)
        }
        Some(_) => return Err(WRONG_TYPE),
    };
    let new = old
        .checked_add(by)
        .ok_or(Fault::Borrowed("ERR increment or decrement would overflow"))?;
    match entry {
        Some(text) => {
            text.clear();
            write_integer(text, new);
        }
        None => {
            let mut text = Vec::with_capacity(20);
            write_integer(&mut text, new);
            data.put(key, Value::Text(text), None);
        }
    }
    Ok(Reply::Int(new))
}
