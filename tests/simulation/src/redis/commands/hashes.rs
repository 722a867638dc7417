//! Commands for hashes.

use super::{
    super::{
        data::{DataSet, Fault, Hash},
        numbers::{integer, write_integer},
        resp::Reply,
    },
    Answer, integer_arg, wrong_number,
};

fn value_of<'a>(hash: &'a mut Hash, field: &[u8]) -> Option<&'a mut Vec<u8>> {
    let found = hash.iter_mut().find(|(name, _)| name == field);
    found.map(|(_, value)| value)
}

pub(crate) fn hset(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    if args.len() % 2 == 1 {
        return Err(wrong_number("hset"));
    }
    let hash = data.hash_or_new(args[1], ms)?;
    let mut added = 0;
    for pair in args[2..].chunks_exact(2) {
        match value_of(hash, pair[0]) {
            Some(value) => *value = pair[1].to_vec(),
            None => {
                hash.push((pair[0].to_vec(), pair[1].to_vec()));
                added += 1;
            }
        }
    }
    Ok(Reply::Int(added))
}

pub(crate) fn hincrby(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let by = integer_arg(args[3])?;
    let hash = data.hash_or_new(args[1], ms)?;
    let old = match value_of(hash, args[2]) {
        Some(value) => integer(value).ok_or(Fault::Borrowed("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old
        .checked_add(by)
        .ok_or(Fault::Borrowed("ERR increment or decrement would overflow"))?;
    let mut text = Vec::with_capacity(20);
    write_integer(&mut text, new);
    match value_of(hash, args[2]) {
        Some(value) => *value = text,
        None => hash.push((args[2].to_vec(), text)),
    }
    Ok(Reply::Int(new))
}

pub(crate) fn hget(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    let value = hash.and_then(|hash| value_of(hash, args[2]));
    Ok(value.map_or(Reply::Null, |value| Reply::bulk(value)))
}

pub(crate) fn hexists(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    let value = hash.and_then(|hash| value_of(hash, args[2]));
    Ok(Reply::Int(value.is_some().into()))
}

pub(crate) fn hlen(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    Ok(Reply::count(hash.map_or(0, |hash| hash.len())))
}

pub(crate) fn hdel(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let Some(hash) = data.hash(args[1], ms)? else {
        return Ok(Reply::Int(0));
    };
    let before = hash.len();
    hash.retain(|(name, _)| !args[2..].contains(&&**name));
    let removed = before - hash.len();
    data.remove_empty(args[1]);
    Ok(Reply::count(removed))
}

pub(crate) fn hkeys(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    let fields = hash.into_iter().flatten();
    Ok(Reply::Array(
        fields.map(|(name, _)| Reply::bulk(name)).collect(),
    ))
}

pub(crate) fn hvals(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    let fields = hash.into_iter().flatten();
    Ok(Reply::Array(
        fields.map(|(_, value)| Reply::bulk(value)).collect(),
    ))
}

pub(crate) fn hgetall(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let hash = data.hash(args[1], ms)?;
    let fields = hash.into_iter().flatten();
    let pairs = fields.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value)));
    Ok(Reply::Map(pairs.collect()))
}
