//! When a client connects, finds the rights that its Redis user lacks, and tells how to grant these rights.

use futures_util::future::join_all;
use lock_core::{
    key::{FENCE, LockKey},
    layout::{DEFAULT_NAMESPACE, Layout},
    options::AccessMode,
};
use once_cell::sync::Lazy;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::redis::{
    preflight::acl::{
        CHANNEL, EVERY_SCRIPT, KEY, NATIVE_CLUSTER_SCRIPTS, NATIVE_SCRIPTS,
        REDISSON_CLUSTER_SCRIPTS, REDISSON_SCRIPTS, ScriptCommand,
    },
    protocol::layout::Names,
    transport::{
        connection::Connection,
        connector::Needs,
        refusal::{Refused, refused},
        script::Script,
    },
};

/// The channel on which `connect` checks whether the user may subscribe and publish.
pub(crate) const CHECK_CHANNEL: &str = "lock:session:check";
/// The pattern of the channels on which Redisson announces that a lock is free.
pub(crate) const REDISSON_CHANNELS: &str = "&redisson_lock__channel:*";
/// The commands that scripts of all layouts use to read locks. A client with read-only access needs no other commands.
const READING: &[&str] = &["get", "pttl", "zrange", "zcard", "hget", "hkeys"];
/// A hash that no script has. An `EVALSHA` with this hash runs nothing.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

static RIGHTS: Lazy<Script> = Lazy::new(|| Script::new("rights", &[include_str!("rights.lua")]));

/// A key that the client needs, and the pattern that gives the user the right to the key.
struct NeededKey {
    name: String,
    /// Another key. If the user has the right to this other key, the user does not need the right to `name`.
    or: Option<String>,
    pattern: String,
}

/// Returns the commands that the client's scripts run.
fn scripts_of(
    needs: &Needs,
    is_cluster: bool,
) -> impl Iterator<Item = &'static ScriptCommand> + use<> {
    let (of_layout, of_cluster) = match needs.layout {
        Layout::Native => (NATIVE_SCRIPTS, NATIVE_CLUSTER_SCRIPTS),
        Layout::Redisson => (REDISSON_SCRIPTS, REDISSON_CLUSTER_SCRIPTS),
    };
    let of_cluster = if is_cluster { of_cluster } else { &[] };
    let scripts = [EVERY_SCRIPT, of_layout, of_cluster];
    let access = needs.access;
    let is_needed = move |command: &&ScriptCommand| {
        access != AccessMode::ReadOnly || READING.contains(&command.right)
    };
    scripts.into_iter().flatten().filter(is_needed)
}

/// Returns the name, inside the namespace, of a key that does not exist. The name begins with a brace and ends with
/// `:check`. The keys of native locks that begin with a brace end with a brace, `:queue` or `:claim`, so no lock has a
/// key of this name.
fn unused_key(needs: &Needs) -> String {
    let key = LockKey::new("check").expect("a valid key");
    let name = Layout::Native.name(needs.namespace.as_deref(), &key);
    name.map_or_else(
        |_| "{lock:check}:check".to_owned(),
        |name| format!("{name}:check"),
    )
}

/// Returns the keys of an example lock that the client could use. In Redisson's layout, returns at most the key of the
/// token counter, because the client does not know which names its callers will lock.
fn keys_of(needs: &Needs, is_cluster: bool) -> Vec<NeededKey> {
    let fence = if needs.is_redlock {
        "~lock:fence*"
    } else {
        "~lock:fence"
    };
    let counter = |name: &str| NeededKey {
        name: name.to_owned(),
        or: None,
        pattern: fence.to_owned(),
    };
    let reads_only = needs.access == AccessMode::ReadOnly;
    let of = |key: &str| {
        let key = LockKey::new(key).ok()?;
        let name = needs.layout.name(needs.namespace.as_deref(), &key).ok()?;
        Some(Names::new(needs.layout, name, is_cluster))
    };
    let (Layout::Native, Some(names), Some(tagged)) = (needs.layout, of("check"), of("{check}"))
    else {
        return match of("check") {
            _ if reads_only => Vec::new(),
            Some(names) if is_cluster => vec![NeededKey {
                name: names.fence().to_owned(),
                or: None,
                pattern: format!("~{DEFAULT_NAMESPACE}:*"),
            }],
            _ => vec![counter(FENCE)],
        };
    };
    let (namespace, _) = tagged.grant().split_once(':').unwrap_or_default();
    let mut keys: Vec<_> = names
        .keys()
        .iter()
        .zip(tagged.keys().iter())
        .filter(|(name, _)| **name != names.fence())
        .map(|(name, tagged)| NeededKey {
            name: (*name).to_owned(),
            // If all lock names of the client have hash tags, the client needs only this key.
            or: Some((*tagged).to_owned()),
            pattern: format!("~{{{namespace}:*"),
        })
        .collect();
    if reads_only {
        return keys;
    }
    if is_cluster {
        keys.push(NeededKey {
            name: names.fence().to_owned(),
            or: None,
            pattern: format!("~{namespace}:*"),
        });
    } else {
        keys.push(counter(FENCE));
    }
    if needs.is_redlock {
        keys.push(counter("lock:fence:whole"));
    }
    keys
}

/// Returns the rights that the user lacks, as rules for `ACL SETUSER`. Takes one round trip if the user has the rights
/// that the guides list, and changes nothing on the server.
pub(crate) async fn missing_rights(
    connection: &Connection,
    needs: &Needs,
    is_cluster: bool,
) -> Vec<String> {
    let scripts: Vec<_> = scripts_of(needs, is_cluster).collect();
    let keys = keys_of(needs, is_cluster);
    let key = unused_key(needs);
    let of_scripts = scripts.iter().map(|command| {
        let arguments = command.harmless.iter().map(|&argument| match argument {
            KEY => key.as_str(),
            CHANNEL => CHECK_CHANNEL,
            argument => argument,
        });
        command.right.split('|').chain(arguments).collect()
    });
    let of_keys = keys.iter().map(|key| vec!["get", &key.name]);
    let words: Vec<Vec<&str>> = of_scripts.chain(of_keys).collect();
    let asking = async {
        let errors = errors_of(connection, words).await?;
        let (of_scripts, of_keys) = errors.split_at(scripts.len().min(errors.len()));
        let mut missing = Vec::new();
        for (command, error) in scripts.iter().zip(of_scripts) {
            match refused(error) {
                Some(Refused::Command) => missing.push(format!("+{}", command.right)),
                Some(Refused::Channel) => missing.push("&lock:session:*".to_owned()),
                // The code below checks the rights to keys, with names of keys that the client uses.
                Some(Refused::Key) | None => {}
            }
        }
        let denied = |error: &String| refused(error) == Some(Refused::Key);
        let denied: Vec<_> = keys
            .iter()
            .zip(of_keys)
            .filter(|(_, error)| denied(error))
            .collect();
        let denied: Vec<_> = denied.into_iter().map(|(key, _)| key).collect();
        missing.extend(without_substitute(connection, denied).await?);
        Ok::<_, RedisError>(missing)
    };
    let of_user = async |command: &[&str]| {
        let mut words = redis::cmd(command[0]);
        words.arg(&command[1..]);
        connection.try_command(&words).await
    };
    let is_missing =
        |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
    let by_hash = of_user(&["EVALSHA", NO_SCRIPT, "0"]);
    let waiting = async {
        if needs.replicas {
            // This `WAIT` does not wait, because it asks for zero replicas.
            of_user(&["WAIT", "0", "0"]).await?;
        }
        Ok(())
    };
    let moving = async {
        if is_cluster {
            of_user(&["ASKING"]).await?;
        }
        Ok(())
    };
    let (of_scripts, by_hash, waiting, moving) =
        tokio::join!(biased; asking, by_hash, waiting, moving);
    let mut missing = match of_scripts {
        Ok(missing) => missing,
        Err(error) if is_missing(&error) => vec!["+eval".to_owned()],
        Err(_) => Vec::new(),
    };
    let others = [
        ("evalsha", by_hash.map(drop)),
        ("wait", waiting),
        ("asking", moving),
    ];
    let others = others
        .iter()
        .filter(|(_, asked)| asked.as_ref().is_err_and(is_missing));
    missing.extend(others.map(|(right, _)| format!("+{right}")));
    let mut unique = Vec::new();
    for right in missing {
        if !unique.contains(&right) {
            unique.push(right);
        }
    }
    unique
}

/// Returns the patterns of the `denied` keys, which the user may not read. Omits each key whose substitute
/// (`NeededKey::or`) the user may read.
async fn without_substitute(
    connection: &Connection,
    denied: Vec<&NeededKey>,
) -> Result<Vec<String>, RedisError> {
    let asking = denied.into_iter().map(async |key| {
        let errors = match &key.or {
            Some(other) => errors_of(connection, vec![vec!["get", other]]).await?,
            None => return Ok(Some(key.pattern.clone())),
        };
        let is_denied = errors.iter().any(|error| refused(error).is_some());
        Ok(is_denied.then(|| key.pattern.clone()))
    });
    let asked = join_all(asking).await.into_iter();
    Ok(asked
        .collect::<Result<Vec<_>, RedisError>>()?
        .into_iter()
        .flatten()
        .collect())
}

/// Runs these commands in a script. Returns the error of each command, or an empty text if there is none.
async fn errors_of(
    connection: &Connection,
    commands: Vec<Vec<&str>>,
) -> Result<Vec<String>, RedisError> {
    let mut words = Vec::new();
    for command in commands {
        words.push(command.len().to_string());
        words.extend(command.into_iter().map(str::to_owned));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // The script gets the keys in `ARGV`, not in `KEYS`, so that the server checks the right to each key separately. In
    // a Redis Cluster, the server checks the right to a key before it checks whether it stores the key.
    let by_source = RIGHTS.by_source(&RIGHTS.by_hash(&[], &words));
    let errors = connection.try_command(&by_source).await?;
    Ok(redis::from_redis_value(errors)?)
}

/// Returns advice on how an administrator grants the missing rights.
pub(crate) fn advice(missing: &[String], user: &str) -> String {
    let missing = missing.join(" ");
    format!("an administrator grants the rights with `ACL SETUSER {user} {missing}`")
}
