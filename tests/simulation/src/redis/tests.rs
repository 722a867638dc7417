//! Unit tests of the server as a whole.

use super::*;

const NOW: u64 = 1_000_000_000_000_000;

struct World {
    redis: Redis,
    id: ConnectionId,
    now: u64,
}

impl World {
    fn new() -> Self {
        let mut redis = Redis::new("run".to_owned());
        let id = redis.connect();
        let mut world = Self {
            redis,
            id,
            now: NOW,
        };
        world.ask(&["HELLO", "3"]);
        world
    }

    fn outputs(&mut self, id: ConnectionId, args: &[&str]) -> Vec<Output> {
        self.redis.receive(id, &encode(args), self.now)
    }

    /// Sends a command on the first connection, and returns the bytes that this connection receives.
    fn ask(&mut self, args: &[&str]) -> String {
        let id = self.id;
        let outputs = self.outputs(id, args).into_iter();
        let bytes = outputs.flat_map(|output| match output {
            Output::Bytes(to, bytes) if to == id => bytes,
            Output::Bytes(..) | Output::Closed(_) => Vec::new(),
        });
        String::from_utf8(bytes.collect()).unwrap()
    }

    fn eval(&mut self, script: &str, args: &[&str]) -> String {
        let command = [&["EVAL", script, "0"], args].concat();
        self.ask(&command)
    }
}

fn encode(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        bytes += &format!("${}\r\n{arg}\r\n", arg.len());
    }
    bytes.into_bytes()
}

#[test]
fn commands_may_be_cut_anywhere() {
    let bytes = [encode(&["SET", "a", "x\r\ny"]), encode(&["GET", "a"])].concat();
    for cut in 0..bytes.len() {
        let mut redis = Redis::new("run".to_owned());
        let id = redis.connect();
        let mut outputs = redis.receive(id, &bytes[..cut], NOW);
        outputs.extend(redis.receive(id, &bytes[cut..], NOW));
        let bytes = outputs.into_iter().flat_map(|output| match output {
            Output::Bytes(_, bytes) => bytes,
            Output::Closed(_) => Vec::new(),
        });
        let bytes: Vec<u8> = bytes.collect();
        assert_eq!(bytes, b"+OK\r\n$4\r\nx\r\ny\r\n", "cut at {cut}");
    }
}

#[test]
fn lua_values_become_replies() {
    let mut world = World::new();
    for (script, reply) in [
        (
            "return {1, 2.9, -2.9, 'a', nil, 'b'}",
            "*4\r\n:1\r\n:2\r\n:-2\r\n$1\r\na\r\n",
        ),
        ("return {false, true, {}}", "*3\r\n_\r\n:1\r\n*0\r\n"),
        ("return {err = 'A b'}", "-A b\r\n"),
        ("return {ok = 'a'}", "+a\r\n"),
        ("return 1e300", ":-9223372036854775808\r\n"),
        ("return function() end", "_\r\n"),
        ("return redis.error_reply('a')", "-ERR a\r\n"),
        ("return redis.error_reply('A b')", "-A b\r\n"),
        ("return redis.status_reply('a')", "+a\r\n"),
        (
            "return tostring(redis.call('GET', 'none'))",
            "$5\r\nfalse\r\n",
        ),
        ("return redis.call('PING').ok", "$4\r\nPONG\r\n"),
    ] {
        assert_eq!(world.eval(script, &[]), reply, "{script}");
    }
}

#[test]
fn replies_become_lua_values_of_resp2() {
    let mut world = World::new();
    world.ask(&["ZADD", "z", "1.5", "a", "inf", "b"]);
    world.ask(&["HSET", "h", "f", "v"]);
    for (script, reply) in [
        (
            "return type(redis.call('ZSCORE', 'z', 'a'))",
            "$6\r\nstring\r\n",
        ),
        (
            "return table.concat(redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES'), ' ')",
            "$11\r\na 1.5 b inf\r\n",
        ),
        (
            "return table.concat(redis.call('HGETALL', 'h'), ' ')",
            "$3\r\nf v\r\n",
        ),
        ("return #redis.call('ZPOPMIN', 'none')", ":0\r\n"),
        (
            "return redis.pcall('GET', 'h').err",
            "$65\r\nWRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
    ] {
        assert_eq!(world.eval(script, &[]), reply, "{script}");
    }
}

#[test]
fn numbers_become_arguments() {
    let mut world = World::new();
    for (number, text) in [
        ("1e16", "10000000000000000"),
        ("1e17", "1e+17"),
        ("0.1", "0.10000000000000001"),
        ("-0", "-0"),
    ] {
        let reply = world.eval(
            &format!("redis.call('SET', 'n', {number}) return redis.call('GET', 'n')"),
            &[],
        );
        assert_eq!(reply, format!("${}\r\n{text}\r\n", text.len()), "{number}");
    }
}

#[test]
fn errors_reach_the_client_with_their_own_code() {
    let mut world = World::new();
    world.ask(&["HSET", "h", "f", "v"]);
    for (script, start) in [
        ("return redis.call('GET', 'h')", "-WRONGTYPE "),
        (
            "local fine, held = pcall(redis.call, 'GET', 'h') error(held, 0)",
            "-WRONGTYPE ",
        ),
        ("error('a')", "-ERR user_script:1: a "),
        (
            "x = 1",
            "-ERR user_script:1: Attempt to modify a readonly table ",
        ),
        (
            "string.x = 1",
            "-ERR user_script:1: Attempt to modify a readonly table ",
        ),
        (
            "return x",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'x' ",
        ),
        (
            "redis.call('NONE')",
            "-ERR Unknown Redis command called from script ",
        ),
        (
            "redis.call('GET')",
            "-ERR Wrong number of args calling Redis command from script ",
        ),
        (
            "redis.call('SUBSCRIBE', 'a')",
            "-ERR This Redis command is not allowed from script ",
        ),
        (
            "redis.call('GET', {})",
            "-ERR Lua redis lib command arguments must be strings or integers ",
        ),
        (
            "return 1 2",
            "-ERR Error compiling script (new function): user_script:1: ",
        ),
    ] {
        let reply = world.eval(script, &[]);
        assert!(reply.starts_with(start), "{script}: {reply}");
    }
    // The server still works after the failed scripts.
    assert_eq!(world.ask(&["HGET", "h", "f"]), "$1\r\nv\r\n");
}

#[test]
fn an_error_names_its_line() {
    let mut world = World::new();
    let reply = world.eval("local a = 1\nredis.call('GET')\nreturn a", &[]);
    assert!(reply.ends_with(", on @user_script:2.\r\n"), "{reply}");
}

#[test]
fn keys_expire_before_a_script_or_after_it() {
    let mut world = World::new();
    world.ask(&["SET", "a", "1", "PX", "10"]);
    let script = "return {redis.call('EXISTS', 'a'), redis.call('PTTL', 'a')}";
    world.now += 10_999;
    assert_eq!(world.eval(script, &[]), "*2\r\n:1\r\n:0\r\n");
    world.now += 1;
    assert_eq!(world.eval(script, &[]), "*2\r\n:0\r\n:-2\r\n");
    assert_eq!(
        world.eval(
            "redis.call('SET', 'b', 1, 'PX', 5) return redis.call('PTTL', 'b')",
            &[]
        ),
        ":5\r\n"
    );
}

#[test]
fn a_full_server_lets_a_script_go_on_that_has_written() {
    let mut world = World::new();
    world.redis.set_mode(Mode::OutOfMemory);
    assert_eq!(
        world.ask(&["SET", "a", "1"]),
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    );
    let reply = world.eval("return redis.call('SET', 'a', 1)", &[]);
    assert!(reply.starts_with("-OOM command not allowed"), "{reply}");
    let script = "redis.call('DEL', 'b') return redis.call('SET', 'a', 1)";
    assert_eq!(world.eval(script, &[]), "+OK\r\n");
}

#[test]
fn a_replica_refuses_the_first_write() {
    let mut world = World::new();
    world.redis.set_mode(Mode::ReadOnly);
    assert!(world.ask(&["DEL", "a"]).starts_with("-READONLY "));
    let reply = world.eval("redis.call('GET', 'a') redis.call('DEL', 'a')", &[]);
    assert!(reply.starts_with("-READONLY "), "{reply}");
    assert_eq!(world.eval("return redis.call('GET', 'a')", &[]), "_\r\n");
}

#[test]
fn a_server_that_loads_answers_only_what_needs_no_data() {
    let mut world = World::new();
    world.redis.set_mode(Mode::Loading);
    for command in [&["GET", "a"][..], &["EVAL", "return 1", "0"], &["PING"]] {
        assert!(world.ask(command).starts_with("-LOADING "), "{command:?}");
    }
    assert_eq!(world.ask(&["CLIENT", "ID"]), ":1\r\n");
}

#[test]
fn a_connection_that_kills_itself_gets_its_reply_first() {
    let mut world = World::new();
    let id = world.id;
    let bytes = [
        encode(&["CLIENT", "KILL", "ID", "1"]),
        encode(&["SET", "a", "1"]),
    ]
    .concat();
    assert_eq!(
        world.redis.receive(id, &bytes, NOW),
        [Output::Bytes(id, b":1\r\n".to_vec()), Output::Closed(id)]
    );
    assert_eq!(world.redis.keys(NOW), [""; 0]);
    assert_eq!(world.outputs(id, &["PING"]), []);
}

#[test]
fn a_connection_that_is_killed_hears_nothing_more() {
    let mut world = World::new();
    let other = world.redis.connect();
    world.outputs(other, &["SUBSCRIBE", "a"]);
    let id = world.id;
    assert_eq!(
        world.outputs(id, &["CLIENT", "KILL", "ID", "2"]),
        [Output::Closed(other), Output::Bytes(id, b":1\r\n".to_vec())]
    );
    assert_eq!(world.ask(&["PUBLISH", "a", "x"]), ":0\r\n");
    assert_eq!(world.ask(&["CLIENT", "KILL", "ID", "2"]), ":0\r\n");
}

#[test]
fn a_publisher_hears_its_own_message_before_its_reply() {
    let mut world = World::new();
    world.ask(&["SUBSCRIBE", "a"]);
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n";
    assert_eq!(
        world.ask(&["PUBLISH", "a", "x"]),
        format!("{message}:1\r\n")
    );
    assert_eq!(
        world.eval("redis.call('PUBLISH', 'a', 'x') return 5", &[]),
        format!("{message}:5\r\n")
    );
    world.ask(&["MULTI"]);
    world.ask(&["PUBLISH", "a", "x"]);
    assert_eq!(world.ask(&["EXEC"]), format!("*1\r\n{message}:1\r\n"));
}

#[test]
fn a_restart_closes_connections_and_forgets_scripts() {
    let mut world = World::new();
    world.ask(&["SET", "a", "1"]);
    world.ask(&["SCRIPT", "LOAD", "return 1"]);
    let closed = world
        .redis
        .restart("next".to_owned(), Persistence::Everything, NOW);
    assert_eq!(closed, [Output::Closed(world.id)]);
    assert_eq!(world.redis.connect(), ConnectionId(1));
    assert_eq!(world.ask(&["GET", "a"]), "$1\r\n1\r\n");
    let reply = world.ask(&["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"]);
    assert_eq!(reply, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert!(world.ask(&["INFO", "server"]).contains("run_id:next\r\n"));
    world
        .redis
        .restart("last".to_owned(), Persistence::Nothing, NOW);
    assert_eq!(world.redis.keys(NOW), [""; 0]);
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let mut world = World::new();
    world.ask(&["ZADD", "z", "1", "a"]);
    let before = world.redis.snapshot();
    world.ask(&["ZADD", "z", "2", "b"]);
    world.redis.load(before);
    assert_eq!(world.ask(&["ZCARD", "z"]), ":1\r\n");
}

#[test]
fn servers_of_one_thread_do_not_share_scripts() {
    let (mut one, mut other) = (World::new(), World::new());
    one.eval("return 1", &[]);
    let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(one.ask(&["EVALSHA", hash, "0"]), ":1\r\n");
    assert!(other.ask(&["EVALSHA", hash, "0"]).starts_with("-NOSCRIPT"));
}

#[test]
fn a_transaction_runs_at_its_end() {
    let mut world = World::new();
    assert_eq!(world.ask(&["MULTI"]), "+OK\r\n");
    assert_eq!(world.ask(&["INCR", "a"]), "+QUEUED\r\n");
    assert_eq!(world.redis.get("a", NOW), None);
    assert_eq!(world.ask(&["EXEC"]), "*1\r\n:1\r\n");
    assert_eq!(world.redis.get("a", NOW).as_deref(), Some("1"));
}

/// After the clock was set back, new callers have places just behind the newest earlier place, although the clock shows
/// an earlier time. The queue then still must not expire before its last waiter gives up.
#[test]
fn a_queue_outlasts_its_waiters_after_a_step_back() {
    let script = include_str!(
        "../../../../lock-runtime/src/backend/redis/protocol/native/acquire_queue.lua"
    );
    let mut world = World::new();
    world.ask(&["SET", "grant", "7|60000|session|ff|"]);
    let queue_up = |world: &mut World, owner: u64, wait: &str| {
        let asked = format!("60000|session|{owner:032x}|shop/host/1/pay|0");
        let command = ["EVAL", script, "4", "grant", "queue", "fence", "claim"];
        let args = [&asked, "60000", "0", wait];
        let queued = world.ask(&[&command[..], &args].concat());
        assert!(queued.contains("queued"), "{queued}");
    };
    queue_up(&mut world, 1, "1000");
    world.now -= 300_000_000;
    for owner in 2..400 {
        queue_up(&mut world, owner, "60000");
        let left = world.ask(&["PTTL", "queue"]);
        let left: u64 = left.trim().trim_start_matches(':').parse().unwrap();
        assert!(left > 60_000, "the queue expires in {left} ms");
        world.now += 1_000_000;
    }
}
