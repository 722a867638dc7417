//! Conversions between Lua values and replies, as in Redis. Scripts use RESP2.

use std::sync::Arc;

use mlua::{Lua, Table, Value};

use super::super::{
    data::Fault,
    numbers::{write_double, write_integer},
    resp::Reply,
};

/// The largest depth of nested tables in the result of a script.
const DEEPEST: usize = 1000;

/// Writes an argument of `redis.call`. Returns false if the argument is neither a string nor a number.
pub(super) fn write_argument(out: &mut Vec<u8>, value: &Value) -> bool {
    match value {
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) if number.unsigned_abs() < 100_000_000_000_000_000 => {
            write_integer(out, *number);
        }
        Value::Integer(number) => write_double(out, *number as f64),
        Value::Number(number) => write_double(out, *number),
        _ => return false,
    }
    true
}

/// Converts the reply to a command into the Lua value that a script gets.
pub(super) fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Int(number) => Value::Integer(*number),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Null => Value::Boolean(false),
        Reply::Double(score) => score_to_lua(lua, *score)?,
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set("ok", &**text)?;
            Value::Table(table)
        }
        Reply::Error(text) => Value::Table(error_to_lua(lua, text)?),
        Reply::Array(items) | Reply::Push(items) | Reply::Many(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        Reply::Map(pairs) => {
            let table = lua.create_table_with_capacity(pairs.len() * 2, 0)?;
            for (key, value) in pairs {
                table.raw_push(to_lua(lua, key)?)?;
                table.raw_push(to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
        Reply::Scored(pairs) => Value::Table(scored_to_lua(lua, pairs)?),
        Reply::Popped(popped) => Value::Table(scored_to_lua(lua, popped.as_slice())?),
    })
}

fn score_to_lua(lua: &Lua, score: f64) -> mlua::Result<Value> {
    let mut text = Vec::with_capacity(24);
    write_double(&mut text, score);
    Ok(Value::String(lua.create_string(&text)?))
}

fn scored_to_lua(lua: &Lua, pairs: &[(Arc<[u8]>, f64)]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(pairs.len() * 2, 0)?;
    for (member, score) in pairs {
        table.raw_push(lua.create_string(member)?)?;
        table.raw_push(score_to_lua(lua, *score)?)?;
    }
    Ok(table)
}

/// Converts an error into the Lua table that a script gets.
pub(super) fn error_to_lua(lua: &Lua, text: &str) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 3)?;
    table.raw_set("err", text)?;
    Ok(table)
}

/// Drops the fraction of a number, as in an integer reply. NaN and numbers that are out of range become the smallest
/// integer.
fn truncated(number: f64) -> i64 {
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number);
    if fits { number as i64 } else { i64::MIN }
}

/// Converts the result of a script to a reply.
pub(super) fn to_reply(value: &Value, depth: usize) -> Reply {
    match value {
        Value::String(text) => Reply::bulk(&text.as_bytes()),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(truncated(*number)),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(_) if depth > DEEPEST => {
            Reply::Error(Fault::Borrowed("ERR reached lua stack limit"))
        }
        Value::Table(table) => table_to_reply(table, depth),
        _ => Reply::Null,
    }
}

fn table_to_reply(table: &Table, depth: usize) -> Reply {
    let text = |name: &str| match table.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.to_string_lossy()),
        _ => None,
    };
    if let Some(error) = text("err") {
        return Reply::Error(error.into());
    }
    if let Some(status) = text("ok") {
        return Reply::Status(status.into());
    }
    match table.raw_get::<Value>("double") {
        Ok(Value::Number(number)) => return Reply::Double(number),
        Ok(Value::Integer(number)) => return Reply::Double(number as f64),
        _ => {}
    }
    let mut items = Vec::with_capacity(table.raw_len());
    loop {
        match table.raw_get::<Value>(items.len() + 1) {
            Ok(Value::Nil) | Err(_) => return Reply::Array(items),
            Ok(item) => items.push(to_reply(&item, depth + 1)),
        }
    }
}
