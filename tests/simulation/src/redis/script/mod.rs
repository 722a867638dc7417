//! The commands for scripts: EVAL, EVALSHA and SCRIPT.

mod convert;
mod engine;

use std::sync::Arc;

use super::{
    commands::{Answer, Caller, NOT_AN_INTEGER, is_word},
    data::Fault,
    numbers::integer,
    resp::Reply,
    state::{Hash, State},
};

const NO_SCRIPT: Fault = Fault::Borrowed("NOSCRIPT No matching script. Please use EVAL.");

fn hash_of(source: &[u8]) -> Hash {
    let mut hash = [0; 40];
    let digits = sha1_smol::Sha1::from(source).digest().to_string();
    hash.copy_from_slice(digits.as_bytes());
    hash
}

fn parse_hash(text: &[u8]) -> Option<Hash> {
    let mut hash: Hash = text.try_into().ok()?;
    hash.make_ascii_lowercase();
    Some(hash)
}

type Split<'a> = (&'a [&'a [u8]], &'a [&'a [u8]]);

/// Splits the arguments of `EVAL` or `EVALSHA` into the keys and the other arguments of the script.
fn arguments<'a>(args: &'a [&'a [u8]]) -> Result<Split<'a>, Fault> {
    let count = integer(args[2]).ok_or(NOT_AN_INTEGER)?;
    let Ok(count) = usize::try_from(count) else {
        return Err("ERR Number of keys can't be negative".into());
    };
    if count > args.len() - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    Ok(args[3..].split_at(count))
}

pub(crate) fn eval(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let (keys, values) = arguments(args)?;
    let hash = hash_of(args[1]);
    learn(state, &hash, args[1])?;
    engine::run(state, caller, &hash, keys, values)
}

pub(crate) fn evalsha(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let hash = parse_hash(args[1]).ok_or(NO_SCRIPT)?;
    let (keys, values) = arguments(args)?;
    let source = state.scripts.get(&hash).ok_or(NO_SCRIPT)?;
    if !engine::is_compiled(&hash) {
        engine::compile(&hash, source)?;
    }
    engine::run(state, caller, &hash, keys, values)
}

/// Compiles a script and stores it.
fn learn(state: &mut State, hash: &Hash, source: &[u8]) -> Result<(), Fault> {
    if !engine::is_compiled(hash) {
        engine::compile(hash, source)?;
    }
    if !state.scripts.contains_key(hash) {
        state.scripts.insert(*hash, Arc::from(source));
    }
    Ok(())
}

pub(crate) fn load(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let hash = hash_of(args[2]);
    learn(state, &hash, args[2])?;
    Ok(Reply::bulk(&hash))
}

pub(crate) fn exists(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let knows = |hash: &&[u8]| {
        let hash = parse_hash(hash);
        hash.is_some_and(|hash| state.scripts.contains_key(&hash))
    };
    let known = args[2..].iter().map(|hash| Reply::Int(knows(hash).into()));
    Ok(Reply::Array(known.collect()))
}

pub(crate) fn flush(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let is_known = args.len() < 3 || is_word(args[2], "SYNC") || is_word(args[2], "ASYNC");
    if args.len() > 3 || !is_known {
        return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
    }
    state.scripts.clear();
    Ok(Reply::OK)
}
