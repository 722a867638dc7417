//! A script, and the commands that run it on a server.

use std::{fmt, io, sync::Arc};

use redis::{Cmd, RedisResult, Value};

/// A Lua script that the server runs atomically.
pub(crate) struct Script {
    /// The name under which metrics count the script.
    pub(crate) name: Arc<str>,
    source: String,
    hash: String,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// Creates the script whose source consists of these parts.
    pub(crate) fn new(name: &str, parts: &[&str]) -> Self {
        let source = parts.concat();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self {
            name: name.to_ascii_lowercase().into(),
            source,
            hash,
        }
    }

    /// Returns the command that runs the script by its hash. The command fails if the server has not cached the script.
    pub(crate) fn by_hash(&self, keys: &[&str], args: &[impl AsRef<str>]) -> Cmd {
        // Memory for the whole command is reserved at once, so that adding the arguments does not allocate again.
        let args = args.iter().map(AsRef::as_ref);
        let parts = keys.iter().copied().chain(args.clone());
        let bytes = self.hash.len() + 8 + parts.map(str::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), "EVALSHA".len() + bytes);
        command.arg("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys);
        for arg in args {
            command.arg(arg);
        }
        command
    }

    /// Returns a command that has the arguments of `by_hash`, and the script's source instead of its hash. A server
    /// that runs this command caches the script.
    pub(crate) fn by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns an error if the script gives no reply of this form. The reply then belongs to another command, and so
    /// does each later reply over the same connection.
    pub(crate) fn checked(&self, reply: Value) -> RedisResult<Value> {
        if gives(&self.name, &reply) {
            return Ok(reply);
        }
        let detail = format!("a reply that the script `{}` does not give", self.name);
        Err(io::Error::new(io::ErrorKind::InvalidData, detail).into())
    }
}

/// Returns whether the script with this name gives replies of this form. Only the scripts that run often are checked.
fn gives(name: &str, reply: &Value) -> bool {
    let name = name.trim_start_matches("redisson_");
    let name = name.trim_start_matches("cluster_");
    let name = name.trim_end_matches("_shared");
    let begins_with_text = |fields: &[Value]| matches!(fields.first(), Some(Value::BulkString(_)));
    match (name, reply) {
        // A token is a time in µs, or follows one (`next_token.lua`). The other scripts give small numbers.
        ("acquire", Value::Int(token)) => *token > 1,
        ("acquire" | "leave", Value::Array(fields)) => begins_with_text(fields),
        ("release" | "retain" | "downgrade", Value::Int(number)) => matches!(number, 0 | 1),
        ("dissolve", Value::Int(_)) => true,
        ("lead" | "latch", Value::Nil | Value::Array(_)) => true,
        ("limit", Value::Nil | Value::BulkString(_)) => true,
        ("renew", Value::Array(left)) => left.iter().all(|left| matches!(left, Value::Int(_))),
        ("queue", Value::Array(fields)) => {
            let places = matches!(
                fields[..],
                [Value::Nil | Value::Array(_), Value::Int(_), ..]
            );
            places || begins_with_text(fields)
        }
        ("probe", Value::Array(found)) => found.iter().all(|it| matches!(it, Value::Array(_))),
        (
            "acquire" | "leave" | "release" | "retain" | "downgrade" | "renew" | "dissolve"
            | "queue" | "probe" | "lead" | "latch" | "limit",
            _,
        ) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script takes the replies of itself, and none of those of the other scripts that run often.
    #[test]
    fn a_reply_of_another_script_is_refused() {
        let text = |text: &str| Value::BulkString(text.into());
        let token = Value::Int(1_700_000_000_000_000);
        let place = Value::Array(vec![text("queued"), text("7"), Value::Int(9)]);
        let places = Value::Array(vec![Value::Nil, Value::Int(9), text("7")]);
        let left = Value::Array(vec![Value::Int(9), Value::Int(-1)]);
        let found = Value::Array(vec![Value::Array(vec![text("gone"), Value::Int(1)])]);
        let replies = [
            token,
            Value::Int(0),
            place,
            places,
            left,
            found,
            Value::Okay,
            Value::Nil,
        ];
        for (name, given) in [
            ("ACQUIRE", &[0, 2][..]),
            ("REDISSON_ACQUIRE", &[0, 2]),
            ("RELEASE", &[1]),
            ("REDISSON_CLUSTER_RETAIN", &[1]),
            ("LEAVE", &[2]),
            ("QUEUE", &[2, 3]),
            ("RENEW", &[4]),
            ("DISSOLVE", &[0, 1]),
            ("PROBE", &[5]),
        ] {
            let script = Script::new(name, &[]);
            for (number, reply) in replies.iter().enumerate() {
                let checked = script.checked(reply.clone());
                assert_eq!(
                    checked.is_ok(),
                    given.contains(&number),
                    "{name}: {reply:?}"
                );
            }
        }
        assert!(Script::new("STATUS", &[]).checked(Value::Nil).is_ok());
    }
}
