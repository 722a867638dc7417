//! The commands that the server knows. Each command has the same arity as in Redis, and is refused in the same states
//! and contexts.

mod channels;
mod clients;
mod cluster;
mod hashes;
mod keys;
mod lists;
mod replication;
mod server;
mod sorted_sets;
mod strings;

use super::{
    ConnectionId,
    data::{DataSet, Fault},
    numbers::integer,
    resp::Reply,
    script,
    state::{Kind, State},
};

pub(crate) use channels::{is_allowed_to_subscribers, tell, unsubscribe_all};

/// The result of a command. The text of an error begins with an error code, such as `ERR`.
pub(crate) type Answer = Result<Reply, Fault>;

pub(crate) const SYNTAX: Fault = Fault::Borrowed("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Fault =
    Fault::Borrowed("ERR value is not an integer or out of range");

/// The connection that sends a command, and the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) id: ConnectionId,
    /// The server's clock, in µs.
    pub(crate) now: u64,
}

impl Caller {
    /// The server's clock, in ms.
    pub(crate) fn ms(self) -> i64 {
        millis(self.now)
    }
}

pub(crate) fn millis(micros: u64) -> i64 {
    i64::try_from(micros / 1000).unwrap_or(i64::MAX)
}

/// The function that carries out a command. The first argument is the name of the command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Run {
    /// A function that needs only the data, the time in ms, and the arguments.
    Data(fn(&mut DataSet, i64, &[&[u8]]) -> Answer),
    Server(fn(&mut State, Caller, &[&[u8]]) -> Answer),
}

/// A command of the simulated server.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The number of arguments including the name; a negative number is a minimum.
    arity: i8,
    flags: u8,
    run: Run,
}

const WRITES: u8 = 1;
const GROWS: u8 = 2;
const NO_SCRIPT: u8 = 4;
const LOADING: u8 = 8;
const CONTAINER: u8 = 16;
/// The flag of a command that a Sentinel knows.
const SENTINEL: u8 = 32;
/// The flag of a command that only a Sentinel knows.
const ONLY_SENTINEL: u8 = 64;

impl Command {
    /// Returns whether the command can change data.
    pub(crate) fn writes(&self) -> bool {
        self.flags & WRITES != 0
    }

    /// Returns whether the command can need more memory.
    pub(crate) fn grows(&self) -> bool {
        self.flags & GROWS != 0
    }

    pub(crate) fn is_allowed_in_scripts(&self) -> bool {
        self.flags & NO_SCRIPT == 0
    }

    pub(crate) fn is_allowed_while_loading(&self) -> bool {
        self.flags & LOADING != 0
    }

    pub(crate) fn takes(&self, count: usize) -> bool {
        let count = i8::try_from(count).unwrap_or(i8::MAX);
        if self.arity < 0 {
            count >= -self.arity
        } else {
            count == self.arity
        }
    }

    /// Returns whether a server of this kind knows the command.
    pub(crate) fn is_known_to(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Sentinel(_) => self.flags & (SENTINEL | ONLY_SENTINEL) != 0,
            Kind::Store | Kind::Node(_) => self.flags & ONLY_SENTINEL == 0,
        }
    }

    /// Returns the keys among the arguments of the command.
    pub(crate) fn keys<'a, 'b>(&self, args: &'b [&'a [u8]]) -> Vec<&'b &'a [u8]> {
        match (self.name, self.run) {
            ("eval" | "evalsha", _) => {
                let count = args.get(2).and_then(|count| integer(count));
                let count = count.and_then(|count| usize::try_from(count).ok());
                args.iter()
                    .skip(3)
                    .take(count.unwrap_or_default())
                    .collect()
            }
            ("dbsize" | "flushall" | "flushdb" | "keys" | "scan", _) | (_, Run::Server(_)) => {
                Vec::new()
            }
            ("del" | "unlink" | "exists" | "mget", _) => args.iter().skip(1).collect(),
            ("mset", _) => args.iter().skip(1).step_by(2).collect(),
            _ => args.iter().skip(1).take(1).collect(),
        }
    }

    pub(crate) fn run(&self, state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
        if self.writes() {
            state.offset += 1;
        }
        match self.run {
            Run::Data(run) => run(&mut state.data, caller.ms(), args),
            Run::Server(run) => run(state, caller, args),
        }
    }
}

const fn data(
    name: &'static str,
    arity: i8,
    flags: u8,
    run: fn(&mut DataSet, i64, &[&[u8]]) -> Answer,
) -> Command {
    let run = Run::Data(run);
    Command {
        name,
        arity,
        flags,
        run,
    }
}

const fn server(
    name: &'static str,
    arity: i8,
    flags: u8,
    run: fn(&mut State, Caller, &[&[u8]]) -> Answer,
) -> Command {
    let run = Run::Server(run);
    Command {
        name,
        arity,
        flags,
        run,
    }
}

/// Returns a command with subcommands, which are separate commands in the table.
const fn container(name: &'static str, flags: u8) -> Command {
    server(name, -2, CONTAINER | flags, |_, _, args| {
        Err(unknown_subcommand(args))
    })
}

/// All commands that the server knows.
static COMMANDS: &[Command] = &[
    server("asking", 1, 0, cluster::asking),
    server("auth", -2, NO_SCRIPT | LOADING | SENTINEL, server::auth),
    container("client", SENTINEL),
    server(
        "client|getname",
        2,
        NO_SCRIPT | LOADING | SENTINEL,
        clients::getname,
    ),
    server("client|id", 2, NO_SCRIPT | LOADING | SENTINEL, clients::id),
    server(
        "client|kill",
        -3,
        NO_SCRIPT | LOADING | SENTINEL,
        clients::kill,
    ),
    server(
        "client|list",
        -2,
        NO_SCRIPT | LOADING | SENTINEL,
        clients::list,
    ),
    server("client|no-evict", 3, NO_SCRIPT | LOADING, clients::switch),
    server("client|no-touch", 3, NO_SCRIPT | LOADING, clients::switch),
    server(
        "client|setinfo",
        4,
        NO_SCRIPT | LOADING | SENTINEL,
        clients::setinfo,
    ),
    server(
        "client|setname",
        3,
        NO_SCRIPT | LOADING | SENTINEL,
        clients::setname,
    ),
    container("cluster", 0),
    server("cluster|info", 2, LOADING, cluster::info),
    server("cluster|keyslot", 3, LOADING, cluster::keyslot),
    server("cluster|slots", 2, LOADING, cluster::slots),
    container("config", 0),
    server("config|get", -3, NO_SCRIPT | LOADING, server::config_get),
    server(
        "config|resetstat",
        2,
        NO_SCRIPT | LOADING,
        server::config_set,
    ),
    server("config|set", -4, NO_SCRIPT | LOADING, server::config_set),
    data("dbsize", 1, 0, keys::dbsize),
    data("decr", 2, WRITES | GROWS, strings::decr),
    data("decrby", 3, WRITES | GROWS, strings::decrby),
    data("del", -2, WRITES, keys::del),
    server("discard", 1, NO_SCRIPT | LOADING, server::discard),
    server("echo", 2, LOADING, server::echo),
    server("eval", -3, NO_SCRIPT, script::eval),
    server("evalsha", -3, NO_SCRIPT, script::evalsha),
    server("exec", 1, NO_SCRIPT | LOADING, server::exec),
    data("exists", -2, 0, keys::exists),
    data("expire", -3, WRITES, keys::expire),
    data("expireat", -3, WRITES, keys::expireat),
    data("flushall", -1, WRITES, keys::flushall),
    data("flushdb", -1, WRITES, keys::flushall),
    data("get", 2, 0, strings::get),
    data("hdel", -3, WRITES, hashes::hdel),
    server("hello", -1, NO_SCRIPT | LOADING | SENTINEL, clients::hello),
    data("hexists", 3, 0, hashes::hexists),
    data("hget", 3, 0, hashes::hget),
    data("hgetall", 2, 0, hashes::hgetall),
    data("hincrby", 4, WRITES | GROWS, hashes::hincrby),
    data("hkeys", 2, 0, hashes::hkeys),
    data("hlen", 2, 0, hashes::hlen),
    data("hset", -4, WRITES | GROWS, hashes::hset),
    data("hvals", 2, 0, hashes::hvals),
    data("incr", 2, WRITES | GROWS, strings::incr),
    data("incrby", 3, WRITES | GROWS, strings::incrby),
    server("info", -1, LOADING | SENTINEL, server::info),
    data("keys", 2, 0, keys::keys),
    data("llen", 2, 0, lists::llen),
    data("lpush", -3, WRITES | GROWS, lists::lpush),
    data("lrange", 4, 0, lists::lrange),
    data("mget", -2, 0, strings::mget),
    data("mset", -3, WRITES | GROWS, strings::mset),
    server("multi", 1, NO_SCRIPT | LOADING, server::multi),
    data("persist", 2, WRITES, keys::persist),
    data("pexpire", -3, WRITES, keys::pexpire),
    data("pexpireat", -3, WRITES, keys::pexpireat),
    data("pexpiretime", 2, 0, keys::pexpiretime),
    server("ping", -1, SENTINEL, server::ping),
    data("pttl", 2, 0, keys::pttl),
    server("publish", 3, LOADING, channels::publish),
    container("pubsub", SENTINEL),
    server("pubsub|channels", -2, SENTINEL, channels::active),
    server("pubsub|numsub", -2, SENTINEL, channels::numsub),
    server("quit", -1, NO_SCRIPT | LOADING | SENTINEL, clients::quit),
    server("role", 1, NO_SCRIPT | LOADING | SENTINEL, replication::role),
    data("rpush", -3, WRITES | GROWS, lists::rpush),
    data("scan", -2, 0, keys::scan),
    container("script", 0),
    server("script|exists", -3, NO_SCRIPT, script::exists),
    server("script|flush", -2, NO_SCRIPT, script::flush),
    server("script|load", 3, NO_SCRIPT, script::load),
    server("select", 2, LOADING, server::select),
    container("sentinel", ONLY_SENTINEL),
    server(
        "sentinel|get-master-addr-by-name",
        3,
        NO_SCRIPT | LOADING | ONLY_SENTINEL,
        replication::primary_of_group,
    ),
    data("set", -3, WRITES | GROWS, strings::set),
    data("setnx", 3, WRITES | GROWS, strings::setnx),
    data("strlen", 2, 0, strings::strlen),
    server(
        "subscribe",
        -2,
        NO_SCRIPT | LOADING | SENTINEL,
        channels::subscribe,
    ),
    server("time", 1, LOADING, server::time),
    data("ttl", 2, 0, keys::ttl),
    data("type", 2, 0, keys::type_of),
    data("unlink", -2, WRITES, keys::del),
    server(
        "unsubscribe",
        -1,
        NO_SCRIPT | LOADING | SENTINEL,
        channels::unsubscribe,
    ),
    server("wait", 3, NO_SCRIPT, replication::wait),
    data("zadd", -4, WRITES | GROWS, sorted_sets::zadd),
    data("zcard", 2, 0, sorted_sets::zcard),
    data("zcount", 4, 0, sorted_sets::zcount),
    data("zpopmax", -2, WRITES, sorted_sets::zpopmax),
    data("zpopmin", -2, WRITES, sorted_sets::zpopmin),
    data("zrange", -4, 0, sorted_sets::zrange),
    data("zrank", 3, 0, sorted_sets::zrank),
    data("zrem", -3, WRITES, sorted_sets::zrem),
    data("zremrangebyrank", 4, WRITES, sorted_sets::zremrangebyrank),
    data("zremrangebyscore", 4, WRITES, sorted_sets::zremrangebyscore),
    data("zscore", 3, 0, sorted_sets::zscore),
];

/// Returns the command that these arguments call, or an error if there is no such command. The case of letters in the
/// name does not matter.
pub(crate) fn find(args: &[&[u8]]) -> Result<&'static Command, Fault> {
    let command = named(&[args[0]]).ok_or_else(|| unknown_command(args))?;
    if command.flags & CONTAINER == 0 || args.len() == 1 {
        return Ok(command);
    }
    named(&[args[0], b"|", args[1]]).ok_or_else(|| unknown_subcommand(args))
}

/// Returns the command whose name consists of these parts.
fn named(parts: &[&[u8]]) -> Option<&'static Command> {
    let mut lower = [0; 40];
    let mut length = 0;
    for part in parts {
        lower
            .get_mut(length..)?
            .get_mut(..part.len())?
            .copy_from_slice(part);
        length += part.len();
    }
    let lower = &mut lower[..length];
    lower.make_ascii_lowercase();
    let found = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower));
    found.ok().map(|place| &COMMANDS[place])
}

pub(crate) fn unknown_command(args: &[&[u8]]) -> Fault {
    let cut = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(128)]).into_owned();
    let name = cut(args[0]);
    let mut shown = String::new();
    for arg in &args[1..] {
        if shown.len() >= 128 {
            break;
        }
        let room = 128 - shown.len();
        let arg = String::from_utf8_lossy(&arg[..arg.len().min(room)]);
        shown = format!("{shown}'{arg}' ");
    }
    format!("ERR unknown command '{name}', with args beginning with: {shown}").into()
}

pub(crate) fn wrong_number(name: &str) -> Fault {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

fn unknown_subcommand(args: &[&[u8]]) -> Fault {
    let name = String::from_utf8_lossy(args[0]).to_uppercase();
    let sub = String::from_utf8_lossy(args[1]);
    format!("ERR unknown subcommand '{sub}'. Try {name} HELP.").into()
}

/// Parses an argument that has to be an integer.
pub(crate) fn integer_arg(text: &[u8]) -> Result<i64, Fault> {
    integer(text).ok_or(NOT_AN_INTEGER)
}

/// Returns whether an argument is this word, ignoring case.
pub(crate) fn is_word(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

/// Returns the indices of the elements from `start` to `end` inclusive. Negative values of `start` and `end` count from
/// the last element.
pub(crate) fn index_range(start: i64, end: i64, count: usize) -> std::ops::Range<usize> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let absolute = |index: i64| {
        if index < 0 {
            index.saturating_add(count)
        } else {
            index
        }
    };
    let start = absolute(start).clamp(0, count);
    let end = absolute(end).saturating_add(1).clamp(start, count);
    usize::try_from(start).unwrap_or_default()..usize::try_from(end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found() {
        for command in COMMANDS {
            let name = command.name.to_uppercase();
            let args: Vec<&[u8]> = name.split('|').map(str::as_bytes).collect();
            assert_eq!(find(&args).unwrap().name, command.name);
        }
        assert!(find(&[b"a name that is longer than any"]).is_err());
        assert!(find(&[b"CLIENT", b"NONE"]).is_err());
    }
}
