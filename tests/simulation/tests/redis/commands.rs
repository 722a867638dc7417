//! Random commands, valid and invalid.

use proptest::{
    prelude::*,
    sample::{Index, select},
};

use crate::{JUNK, Step, calls::channels, pair::words};

/// The forms of commands: `k` is a key, `m` a member, `v` a value, `i` an integer, `t` a time to live, `T` a point in
/// time, `s` a score, `r` an end of a range, and `c` a channel.
const FORMS: &[&str] = &[
    "GET k",
    "SET k v",
    "SET k v PX t",
    "SET k v EX 100 NX",
    "SET k v PXAT T XX",
    "SET k v KEEPTTL GET",
    "SET k v NX GET",
    "SETNX k v",
    "STRLEN k",
    "MGET k k",
    "MSET k v k v",
    "INCR k",
    "DECR k",
    "INCRBY k i",
    "DECRBY k i",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k k",
    "TYPE k",
    "PERSIST k",
    "EXPIRE k 100",
    "PEXPIRE k t",
    "PEXPIREAT k T",
    "PEXPIREAT k T GT",
    "PEXPIREAT k T LT",
    "PEXPIRE k t NX",
    "PEXPIRE k t XX",
    "EXPIREAT k 4000000000",
    "HSET k m v",
    "HSET k m i m v",
    "HGET k m",
    "HDEL k m m",
    "HKEYS k",
    "HVALS k",
    "HLEN k",
    "HGETALL k",
    "HEXISTS k m",
    "HINCRBY k m i",
    "ZADD k s m",
    "ZADD k s m s m",
    "ZADD k NX s m s m",
    "ZADD k XX CH s m s m",
    "ZADD k GT CH s m",
    "ZADD k LT s m",
    "ZADD k INCR s m",
    "ZADD k XX INCR s m",
    "ZSCORE k m",
    "ZCARD k",
    "ZCOUNT k r r",
    "ZRANK k m",
    "ZREM k m m",
    "ZREMRANGEBYRANK k i i",
    "ZREMRANGEBYSCORE k r r",
    "ZRANGE k i i",
    "ZRANGE k i i WITHSCORES",
    "ZRANGE k i i REV WITHSCORES",
    "ZRANGE k r r BYSCORE",
    "ZRANGE k r r BYSCORE REV WITHSCORES",
    "ZRANGE k r r BYSCORE LIMIT i i",
    "ZPOPMIN k",
    "ZPOPMIN k i",
    "ZPOPMAX k",
    "ZPOPMAX k i",
    "LPUSH k v v",
    "RPUSH k v",
    "LLEN k",
    "LRANGE k i i",
    "PING",
    "PING v",
    "ECHO v",
    "SELECT i",
    "PUBLISH c v",
    "SUBSCRIBE c",
    "UNSUBSCRIBE c",
    "PUBSUB NUMSUB c",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "FLUSHALL",
    "SCRIPT EXISTS v",
    "CLIENT SETNAME v",
    "CLIENT GETNAME",
    "CLIENT KILL x",
    "EVALSHA v 0",
    "NONE v",
];
const RETURNS: &[&str] = &[
    "1",
    "2.9",
    "-2.9",
    "1e300",
    "0/0",
    "-1/0",
    "'a'",
    "true",
    "false",
    "nil",
    "{}",
    "{1, nil, 2}",
    "{false, true, {'a'}}",
    "{ok = 'a'}",
    "{err = 'A b'}",
    "{double = 1.5}",
    "function() end",
    "redis.error_reply('a')",
    "redis.error_reply('-A b')",
    "redis.error_reply(1)",
    "redis.status_reply('a')",
    "redis.sha1hex('a')",
    "redis.sha1hex(1)",
    "redis.sha1hex()",
    "none",
    "#KEYS",
    "ARGV[1]",
    "ARGV[2]",
    "tostring(1e15)",
    "string.format('%.0f', 1e18)",
    "redis.LOG_WARNING",
    "type(redis.log)",
];

/// Returns an argument of this kind for a command.
fn argument(command: &str, kind: &'static str) -> BoxedStrategy<String> {
    let of = |texts: &'static [&'static str]| select(texts).prop_map(str::to_owned).boxed();
    match kind {
        // Most keys hold the type that the command expects.
        "k" if command.starts_with('H') => of(&["h", "h", "h", "h", "a"]),
        "k" if command.starts_with('Z') => of(&["z", "z", "z", "z", "a"]),
        "k" => of(&["a", "b", "b", "h", "z"]),
        "m" => of(&["x", "y", "z", "1"]),
        "v" => of(&["", "v", "w", "10", "-3", "9223372036854775806", "two words"]),
        "i" => of(&["0", "1", "2", "-1", "-2", "5", "100"]),
        "t" => of(&["1000", "60000", "0", "-1", "100000"]),
        "T" => of(&[
            "4000000000000",
            "4100000000000",
            "4200000000000",
            "1000",
            "0",
        ]),
        "s" => of(&[
            "0",
            "1",
            "2",
            "2.5",
            "-1",
            "inf",
            "-inf",
            "1e17",
            "1800000000000000",
            "0.1",
        ]),
        "r" => of(&[
            "0", "1", "(1", "2.5", "(2.5", "-inf", "+inf", "(inf", "-1", "",
        ]),
        "c" => select(channels()).boxed(),
        word => Just(word.to_owned()).boxed(),
    }
}

fn command() -> impl Strategy<Value = Vec<String>> {
    let form = select(FORMS).prop_flat_map(|form| {
        form.split(' ')
            .map(|kind| argument(form, kind))
            .collect::<Vec<_>>()
    });
    let junk = (
        any::<Index>(),
        proptest::option::of(select(JUNK)),
        any::<bool>(),
    );
    (form, proptest::option::weighted(0.15, junk)).prop_map(|(mut args, junk)| {
        match junk {
            // The arguments of `SUBSCRIBE` and `UNSUBSCRIBE` are not changed, so that each of these commands names one
            // channel. An `UNSUBSCRIBE` without a channel would get a reply for each channel of the connection, in an
            // undefined order.
            _ if args[0].ends_with("SUBSCRIBE") => {}
            None => {}
            Some((_, None, _)) => args.truncate(1 + args.len() / 3),
            Some((_, Some(junk), true)) => args.push(junk.to_owned()),
            // On the real server, a key with a time to live of 1 ms can expire before the next command.
            Some((_, Some("1"), _)) if args.iter().any(|arg| arg == "PEXPIRE" || arg == "PX") => {}
            Some((place, Some(junk), false)) => {
                let place = place.index(args.len());
                args[place] = junk.to_owned();
            }
        }
        args
    })
}

pub(crate) fn any_command() -> impl Strategy<Value = Step> {
    let eval = |source: String, args: Vec<String>| {
        [words("EVAL"), vec![source, "0".to_owned()], args].concat()
    };
    let called = command().prop_map(move |args| {
        eval(
            "local reply = redis.call(unpack(ARGV)) return reply".to_owned(),
            args,
        )
    });
    let tried =
        command().prop_map(move |args| eval("return {redis.pcall(unpack(ARGV))}".to_owned(), args));
    let number = select(
        &[
            "1e16",
            "1e17",
            "-0",
            "0.1",
            "-1.5e-7",
            "123456789012345678",
            "1/0",
        ][..],
    );
    let number = number.prop_map(move |number| {
        eval(
            format!("redis.call('SET', 'a', {number}) return redis.call('GET', 'a') .. ''"),
            Vec::new(),
        )
    });
    let returned =
        select(RETURNS).prop_map(move |value| eval(format!("return ({value})"), words("a b")));
    let left = argument("TTL", "k").prop_map(move |key| {
        eval(
            "local left = redis.call('TTL', ARGV[1]) return left > 1e6 and 'long' or left"
                .to_owned(),
            vec![key],
        )
    });
    prop_oneof![12 => command(), 2 => called, 2 => tried, 1 => number, 1 => returned, 1 => left]
        .prop_map(Step::Command)
}
