//! The simulated server against a real one: the same random sequences of commands, and of calls of the project's own
//! scripts, have the same replies, pushes and keys at both, byte for byte.
//!
//! `SIMULATION_SEQUENCES` is the number of sequences of each test, 400 without it. 10,000 take about a minute with
//! `--release`, and a million belong into a night.
//!
//! Time stands still at the simulated server, and nearly so at the real one, because a sequence takes it a few
//! milliseconds: what is left of a lease is rounded up to [`STEP`]. Scripts get the time as their last argument, and a step
//! in time shortens all leases.

use std::{
    env,
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    sync::LazyLock,
};

use lock_simulation::redis::{ConnectionId, Mode, Output, Redis};
use proptest::{
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, TestCaseError, TestRunner},
};
use support::server::RedisServer;

/// What leases are rounded up to, in ms.
const STEP: u64 = 250;
/// The time in scripts at the beginning of a sequence, in µs.
const START: u64 = 1_800_000_000_000_000;
/// How often a sequence is tried before a difference counts: the real server may be slow.
const TRIES: usize = 3;
const END: &str = "the end of the sequence";

const FIXED_TIME: &str = "local real, micros = redis, table.remove(ARGV)
local redis = setmetatable({}, { __index = real })
redis.call = function(name, ...)
  if name == 'TIME' then
    return { string.sub(micros, 1, -7), tostring(tonumber(string.sub(micros, -6))) }
  end
  local reply = real.call(name, ...)
  if name == 'PTTL' and reply > 0 then
    return math.ceil(reply / 250) * 250
  end
  return reply
end
";
/// Shortens all leases by ARGV[1] ms.
const PASS_TIME: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 and left < 1e8 then
    redis.call('PEXPIRE', key, math.ceil(left / 250) * 250 - ARGV[1])
  end
end";
/// All keys, with what they hold and when they expire.
const DUMP: &str = "local found, keys = {}, redis.call('KEYS', '*')
table.sort(keys)
for i, key in ipairs(keys) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  left = left > 1e8 and redis.call('PEXPIRETIME', key) or math.ceil(left / 250) * 250
  local value = kind == 'string' and redis.call('GET', key) or kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'list' and redis.call('LRANGE', key, 0, -1) or redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  found[i] = { key, kind, string.format('%.0f', left), value }
end
return found";

macro_rules! part {
    ($path:literal) => {
        include_str!(concat!(
            "../../../lock-runtime/src/backend/redis/protocol/",
            $path,
            ".lua"
        ))
    };
}

/// The scripts as the engine puts them together, by the names that it gives them.
static SCRIPTS: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let (next_token, grant_next) = (part!("native/next_token"), part!("native/grant_next"));
    let (mark, owner) = (part!("quorum/mark"), part!("redisson/owner"));
    let grant = part!("redisson/grant");
    let scripts: &[(&str, &[&str])] = &[
        ("acquire", &[part!("native/acquire_free"), next_token, grant_next, part!("native/acquire")]),
        ("multi_acquire", &[next_token, grant_next, part!("native/multi_acquire")]),
        ("release", &[part!("native/release_last"), next_token, grant_next, part!("native/release")]),
        ("retain", &[next_token, grant_next, part!("native/retain")]),
        ("queue", &[next_token, grant_next, part!("native/queue")]),
        ("leave", &[next_token, grant_next, part!("native/leave")]),
        ("unsubscribe", &[part!("native/unsubscribe")]),
        ("probe", &[next_token, grant_next, part!("native/probe")]),
        ("renew", &[part!("native/renew")]),
        ("status", &[part!("native/status")]),
        ("quorum_probe", &[mark, part!("quorum/probe")]),
        ("quorum_admit", &[mark, part!("quorum/admit")]),
        ("quorum_take", &[next_token, mark, part!("quorum/take")]),
        ("quorum_raise_token", &[part!("quorum/raise_token")]),
        ("quorum_rejoin", &[mark, part!("quorum/rejoin")]),
        ("redisson_acquire", &[next_token, owner, grant, part!("redisson/acquire")]),
        ("redisson_multi_acquire", &[next_token, owner, grant, part!("redisson/multi_acquire")]),
        ("redisson_release", &[owner, part!("redisson/release")]),
        ("redisson_retain", &[owner, part!("redisson/retain")]),
        ("redisson_leave", &[owner, part!("redisson/leave")]),
        ("redisson_renew", &[owner, part!("redisson/renew")]),
        ("redisson_status", &[owner, part!("redisson/status")]),
    ];
    let whole = |parts: &[&str]| [&[FIXED_TIME], parts].concat().concat();
    scripts.iter().map(|(name, parts)| (*name, whole(parts))).collect()
});

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    Command(Vec<String>),
    Script(Call),
    Mode(Mode),
    Pass(u64),
}

/// A call of a script, made of choices.
#[derive(Debug, Clone)]
struct Call {
    script: usize,
    locks: (usize, usize),
    owner: usize,
    session: usize,
    lease: &'static str,
    wait: &'static str,
    claim: &'static str,
    /// Selects the floor, the end of the request, the token, and the words of the script, by its digits.
    choices: usize,
    /// What stands in the place of an argument, or removes it.
    junk: Option<(Index, Option<&'static str>)>,
}

/// Both servers, and what was sent to them.
struct Pair {
    real: TcpStream,
    simulated: Redis,
    id: ConnectionId,
    time: u64,
    sent: Vec<u8>,
    answered: Vec<u8>,
    log: String,
}

fn encode(args: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        let _ = write!(bytes, "${}\r\n{arg}\r\n", arg.len());
    }
    bytes.into_bytes()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

impl Pair {
    fn new(port: u16) -> Self {
        let real = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        real.set_nodelay(true).expect("a socket can be set up");
        let mut simulated = Redis::new("run".to_owned());
        let id = simulated.connect();
        let mut pair = Self {
            real,
            simulated,
            id,
            time: START,
            sent: Vec::new(),
            answered: Vec::new(),
            log: String::new(),
        };
        // Its reply has the version and the number of the connection.
        pair.real.write_all(&encode(&words("HELLO 3"))).expect("the server reads");
        let _ = pair.real.read(&mut [0; 4096]).expect("the server answers");
        pair.simulated.receive(id, &encode(&words("HELLO 3")), START);
        pair
    }

    fn simulate(&mut self, args: &[String]) {
        let outputs = self.simulated.receive(self.id, &encode(args), START);
        for output in outputs {
            match output {
                Output::Bytes(_, bytes) => self.answered.extend(bytes),
                Output::Closed(_) => panic!("no step closes a connection"),
            }
        }
    }

    fn both(&mut self, args: &[String]) {
        let _ = writeln!(self.log, "  {args:?}");
        self.simulate(args);
        self.sent.extend(encode(args));
    }

    fn eval(&mut self, source: &str, args: &[String]) {
        let command = [words("EVAL"), vec![source.to_owned(), "0".to_owned()], args.to_vec()];
        self.both(&command.concat());
    }

    fn set_mode(&mut self, mode: Mode) {
        // A transaction would queue what sets the real server's mode.
        self.both(&words("DISCARD"));
        let _ = writeln!(self.log, "  {mode:?}");
        self.simulated.set_mode(mode);
        let memory = u8::from(mode == Mode::OutOfMemory);
        self.sent.extend(encode(&words(&format!("CONFIG SET maxmemory {memory}"))));
        self.sent.extend(encode(&words("REPLICAOF NO ONE")));
        self.answered.extend(b"+OK\r\n+OK\r\n");
        if mode == Mode::ReadOnly {
            self.sent.extend(encode(&words("REPLICAOF 127.0.0.1 1")));
            self.answered.extend(b"+OK\r\n");
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Command(args) => self.both(args),
            Step::Script(call) => {
                let args = call.command(self);
                self.both(&args);
            }
            Step::Mode(mode) => self.set_mode(*mode),
            Step::Pass(steps) => {
                self.time += steps * STEP * 1000;
                self.eval(PASS_TIME, &[(steps * STEP).to_string()]);
            }
        }
    }

    /// Carries a sequence out at both servers; a difference is an error.
    fn compare(&mut self, steps: &[Step]) -> Result<(), String> {
        (self.time, self.log) = (START, String::new());
        self.sent.clear();
        self.answered.clear();
        self.both(&words("FLUSHALL"));
        steps.iter().for_each(|step| self.step(step));
        self.set_mode(Mode::Normal);
        for channel in channels() {
            self.both(&["UNSUBSCRIBE".to_owned(), channel]);
        }
        self.eval(DUMP, &[]);
        self.both(&["ECHO".to_owned(), END.to_owned()]);
        let sent = std::mem::take(&mut self.sent);
        self.real.write_all(&sent).expect("the server reads");
        self.sent = sent;
        let mut answered = Vec::new();
        while !answered.ends_with(format!("{END}\r\n").as_bytes()) {
            let mut buffer = [0; 65536];
            let count = self.real.read(&mut buffer).expect("the server answers");
            assert_ne!(count, 0, "the server has closed the connection:\n{}", self.log);
            answered.extend_from_slice(&buffer[..count]);
        }
        if answered == self.answered {
            return Ok(());
        }
        let lines = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.split("\r\n").map(str::to_owned).collect::<Vec<_>>()
        };
        // The dump is the longest of all, and always the same.
        self.log.truncate(self.log.rfind("  [\"EVAL\"").unwrap_or_default());
        let (real, simulated) = (lines(&answered), lines(&self.answered));
        let same = real.iter().zip(&simulated).take_while(|(one, other)| one == other).count();
        let show = |lines: &[String]| {
            let end = lines.len().min(same + 12);
            lines[same.saturating_sub(6)..end].join("\n  ")
        };
        Err(format!(
            "after\n{}the replies differ from line {same} on; real:\n  {}\nsimulated:\n  {}",
            self.log,
            show(&real),
            show(&simulated)
        ))
    }
}

/// Two of the three sessions may listen.
fn channels() -> Vec<String> {
    let digest = |session: &str| sha1(session.as_bytes());
    let sessions = SESSIONS[..2].iter();
    sessions.map(|session| format!("lock:session:{}", digest(session))).collect()
}

fn sha1(bytes: &[u8]) -> String {
    // The server's own digest is what scripts are called by.
    sha1_smol::Sha1::from(bytes).digest().to_string()
}

/// Compares random sequences.
fn run(steps: impl Strategy<Value = Vec<Step>>) {
    let sequences = env::var("SIMULATION_SEQUENCES").ok();
    let cases = sequences.map_or(400, |cases| cases.parse().expect("a number of sequences"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = RedisServer::builder().arg("--databases", "1");
    let server = runtime.block_on(server.start());
    let pair = std::cell::RefCell::new(Pair::new(server.port()));
    for (_, source) in SCRIPTS.iter() {
        let mut pair = pair.borrow_mut();
        let load = encode(&[&["SCRIPT".to_owned(), "LOAD".to_owned()][..], &[source.clone()]].concat());
        pair.real.write_all(&load).expect("the server reads");
        let _ = pair.real.read(&mut [0; 64]).expect("the server answers");
        let id = pair.id;
        pair.simulated.receive(id, &load, START);
    }
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    });
    let result = runner.run(&steps, |steps| {
        let mut compared = Ok(());
        for _ in 0..TRIES {
            compared = pair.borrow_mut().compare(&steps);
            if compared.is_ok() {
                break;
            }
        }
        compared.map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

const SESSIONS: [&str; 3] = [
    "5e5510000000000000000000000000a1",
    "5e5510000000000000000000000000b2",
    "5e5510000000000000000000000000c3",
];
const OWNERS: [&str; 3] = [
    "0a0000000000000000000000000000a1",
    "0b0000000000000000000000000000b2",
    "0c0000000000000000000000000000c3",
];
const LOCKS: [&str; 3] = ["{lock:a}", "{lock:b}", "{lock:c}"];
const JUNK: &[&str] = &[
    "", "0", "1", "-1", "x", "a|b", " 1", "1 ", "+1", "01", "1.5", "-0", "0x1f", "1e17", "1e400", "nan", "inf", "-inf",
    "(1", "(", "9223372036854775807", "-9223372036854775808", "NX", "GET", "WITHSCORES",
];

impl Call {
    /// The digit of the choices at this place.
    fn choice<T: Copy>(&self, place: u32, of: &[T]) -> T {
        of[self.choices / 10_usize.pow(place) % of.len()]
    }

    /// The command, with what only the server knows: the token of a grant.
    fn command(&self, pair: &mut Pair) -> Vec<String> {
        let (name, source) = &SCRIPTS[self.script];
        let is_redisson = name.starts_with("redisson");
        let lock = |lock: usize| if is_redisson { format!("r{}", LOCKS[lock]) } else { LOCKS[lock].to_owned() };
        let companion = |at: usize| {
            let lock = lock(at);
            if is_redisson { format!("redisson_lock_token:{lock}") } else { format!("{lock}:queue") }
        };
        let (one, other) = self.locks;
        let (grant, fence, mark) = (lock(one), "{lock}:fence".to_owned(), "{lock}:mark".to_owned());
        let claim_key = |at: usize| format!("{}:claim", lock(at));
        let (owner, session) = (OWNERS[self.owner], SESSIONS[self.session]);
        let (lease, wait, claim) = (self.lease, self.wait, self.claim);
        let (now, second) = (pair.time, 1_000_000);
        let floor = self.choice(0, &[0, now - second, now + second]).to_string();
        let end = self.choice(1, &[String::new, || (START - 1).to_string(), || (START * 2).to_string()])();
        let held = pair.simulated.get(&grant, START).unwrap_or_default();
        let tokens = held.split('|').next().map(str::to_owned);
        let token = tokens.filter(|token| !token.is_empty()).unwrap_or_else(|| "1".to_owned());
        let tail = format!("{lease}|{session}|{owner}");
        let member = format!("{owner}|{session}|{lease}|{wait}");
        let marker = format!("notify|{session}");
        let until = (now + self.choice(2, &[0, 1, 40]) * STEP * 1000).to_string();
        let leave = self.choice(2, &["enter", "abandon"]);
        let restart = self.choice(2, &["", "restart|", "restart|1", "restart|9900000000000000"]);
        let native = vec![grant.clone(), companion(one), fence.clone(), claim_key(one)];
        let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        let (keys, mut args) = match name.trim_start_matches("redisson_") {
            "acquire" => {
                let mut args = text(&[&tail, lease, &floor, wait, claim, &end, &marker]);
                args.truncate(self.choice(2, &[6, 6, 7]));
                (native[..3].to_vec(), args)
            }
            "multi_acquire" => {
                let keys = [&[fence][..], &native[..2], &[lock(other), companion(other)]].concat();
                (keys, text(&[lease, &floor, claim, &end, &tail, &tail]))
            }
            "release" => (native, text(&[&format!("{token}|"), &floor, claim])),
            "retain" => (native, text(&[&token, &until, lease, &floor, claim])),
            "queue" => {
                let neighbour = format!("{}|{session}|{lease}|{wait}", OWNERS[(self.owner + 1) % 3]);
                (native, text(&[session, &floor, claim, &end, &member, "", &neighbour, &until]))
            }
            "leave" => (native, text(&[owner, &member, &floor, claim, leave, &tail, session])),
            "unsubscribe" => (vec![companion(one)], vec![marker]),
            "probe" => {
                let others = [lock(other), companion(other), claim_key(other)];
                let keys = [&[fence, grant, companion(one), claim_key(one)][..], &others].concat();
                (keys, text(&[session, &floor, claim, wait, &member, &member]))
            }
            "renew" => (vec![grant, lock(other)], text(&[restart, &token, lease, "1", "0"])),
            "status" => (native[..2].to_vec(), Vec::new()),
            "quorum_probe" => (vec![mark, fence], text(&[lease, &floor])),
            "quorum_admit" => (vec![mark, fence], text(&[&START.to_string(), wait, lease])),
            "quorum_take" => (vec![grant, fence, mark], text(&[&tail, lease, &floor, &until])),
            "quorum_raise_token" => (vec![grant, fence], text(&[owner, &floor])),
            "quorum_rejoin" => (vec![grant, fence, mark], text(&[&floor, &tail, lease, &until])),
            name => unreachable!("{name} is no script"),
        };
        if let Some((place, junk)) = self.junk.filter(|_| !args.is_empty()) {
            let place = place.index(args.len());
            match junk {
                Some(junk) => args[place] = junk.to_owned(),
                None => args.truncate(place),
            }
        }
        args.push(now.to_string());
        let start = text(&["EVALSHA", &sha1(source.as_bytes()), &keys.len().to_string()]);
        [start, keys, args].concat()
    }
}

fn mode() -> impl Strategy<Value = Step> {
    select(&[Mode::Normal, Mode::OutOfMemory, Mode::ReadOnly][..]).prop_map(Step::Mode)
}

fn call() -> impl Strategy<Value = Step> {
    // Most belong to the native layout, where the state is richest.
    let script = prop_oneof![3 => 0..10_usize, 1 => 10..15_usize, 1 => 15..SCRIPTS.len()];
    let leases = &["10000", "10000", "10000", "30000", "500", "250", "0", "-5", "1500.5"];
    let times = (select(&leases[..]), select(&["0", "5000", "60000"][..]), select(&["5000", "500"][..]));
    let junk = (any::<Index>(), proptest::option::weighted(0.8, select(JUNK)));
    let junk = proptest::option::weighted(0.1, junk);
    let who = ((0..3_usize, 0..3_usize), 0..3_usize, 0..3_usize);
    (script, who, times, 0..1000_usize, junk).prop_map(|(script, who, times, choices, junk)| {
        let ((locks, owner, session), (lease, wait, claim)) = (who, times);
        Step::Script(Call { script, locks, owner, session, lease, wait, claim, choices, junk })
    })
}

/// What somebody else does to the state of locks.
fn meddling() -> impl Strategy<Value = Step> {
    let commands = [
        "DEL {lock:a}", "SET {lock:a} x", "HSET {lock:a} f v", "PERSIST {lock:a}", "DEL {lock:a}:queue", "ZADD {lock:a}:queue 5 x",
        "SET {lock:a}:queue x", "DEL {lock}:fence", "SET {lock}:fence x", "SET {lock}:fence 3", "PEXPIRE {lock:a} 900000",
        "SET redisson_lock_token:r{lock:a} 7", "HSET redisson_lock_token:r{lock:a} f v", "DEL r{lock:a}",
        "HSET r{lock:a} 11111111-2222-4333-8444-555555555555:1 1", "PERSIST r{lock:a}", "SET r{lock:a} x",
        "SET {lock}:mark x", "SET {lock}:mark whole|1|10000", "SET {lock}:mark lost|1800000000000000", "DEL {lock}:mark",
        "SET {lock:a} 5|10000|5e5510000000000000000000000000a1|0a0000000000000000000000000000a1 PX 20000",
        "SUBSCRIBE lock:session:CHANNEL", "UNSUBSCRIBE lock:session:CHANNEL",
    ];
    (select(commands.to_vec()), 0..3_usize, 0..2_usize).prop_map(|(command, lock, session)| {
        let command = command.replace("{lock:a}", LOCKS[lock]);
        Step::Command(words(&command.replace("lock:session:CHANNEL", &channels()[session])))
    })
}

/// The forms of commands: k is a key, m a member, v a value, i an integer, t a lease, T a moment, s a score, r an end of a
/// range, c a channel.
const FORMS: &[&str] = &[
    "GET k", "SET k v", "SET k v PX t", "SET k v EX 100 NX", "SET k v PXAT T XX", "SET k v KEEPTTL GET", "SET k v NX GET", "SETNX k v",
    "STRLEN k", "MGET k k", "MSET k v k v", "INCR k", "DECR k", "INCRBY k i", "DECRBY k i", "DEL k k", "UNLINK k",
    "EXISTS k k k", "TYPE k", "PERSIST k", "EXPIRE k 100", "PEXPIRE k t", "PEXPIRE k i", "PEXPIREAT k T", "PEXPIREAT k T GT",
    "PEXPIREAT k T LT", "PEXPIRE k t NX", "PEXPIRE k t XX", "EXPIREAT k 4000000000",
    "HSET k m v", "HSET k m i m v", "HGET k m", "HDEL k m m", "HKEYS k", "HVALS k", "HLEN k", "HGETALL k", "HEXISTS k m",
    "HINCRBY k m i", "ZADD k s m", "ZADD k s m s m", "ZADD k NX s m s m", "ZADD k XX CH s m s m", "ZADD k GT CH s m",
    "ZADD k LT s m", "ZADD k INCR s m", "ZADD k XX INCR s m", "ZSCORE k m", "ZCARD k", "ZCOUNT k r r", "ZRANK k m", "ZREM k m m",
    "ZREMRANGEBYRANK k i i", "ZREMRANGEBYSCORE k r r", "ZRANGE k i i", "ZRANGE k i i WITHSCORES", "ZRANGE k i i REV WITHSCORES",
    "ZRANGE k r r BYSCORE", "ZRANGE k r r BYSCORE REV WITHSCORES", "ZRANGE k r r BYSCORE LIMIT i i", "ZPOPMIN k",
    "ZPOPMIN k i", "ZPOPMAX k", "ZPOPMAX k i", "LPUSH k v v", "RPUSH k v", "LLEN k", "LRANGE k i i", "PING", "PING v", "ECHO v",
    "SELECT i", "PUBLISH c v", "SUBSCRIBE c", "UNSUBSCRIBE c", "PUBSUB NUMSUB c", "MULTI", "EXEC", "EXEC", "DISCARD", "FLUSHALL",
    "SCRIPT EXISTS v", "CLIENT SETNAME v", "CLIENT GETNAME", "CLIENT KILL x", "EVALSHA v 0", "NONE v",
];
const RETURNS: &[&str] = &[
    "1", "2.9", "-2.9", "1e300", "0/0", "-1/0", "'a'", "true", "false", "nil", "{}", "{1, nil, 2}", "{false, true, {'a'}}", "{ok = 'a'}",
    "{err = 'A b'}", "{double = 1.5}", "function() end", "redis.error_reply('a')", "redis.error_reply('-A b')",
    "redis.error_reply(1)", "redis.status_reply('a')", "redis.sha1hex('a')", "redis.sha1hex(1)", "redis.sha1hex()", "none",
    "#KEYS", "ARGV[1]", "ARGV[2]", "tostring(1e15)", "string.format('%.0f', 1e18)", "redis.LOG_WARNING", "type(redis.log)",
];

fn argument(kind: &'static str) -> BoxedStrategy<String> {
    let of = |texts: &'static [&'static str]| select(texts).prop_map(str::to_owned).boxed();
    match kind {
        "k" => of(&["a", "b", "c", "d"]),
        "m" => of(&["x", "y", "z", "1"]),
        "v" => of(&["", "v", "w", "10", "-3", "9223372036854775806", "two words"]),
        "i" => of(&["0", "1", "2", "-1", "-2", "5", "100"]),
        "t" => of(&["1000", "60000", "0", "-1", "100000"]),
        "T" => of(&["4000000000000", "4100000000000", "4200000000000", "1000", "0"]),
        "s" => of(&["0", "1", "2", "2.5", "-1", "inf", "-inf", "1e17", "1800000000000000", "0.1"]),
        "r" => of(&["0", "1", "(1", "2.5", "(2.5", "-inf", "+inf", "(inf", "-1", ""]),
        "c" => select(channels()).boxed(),
        word => Just(word.to_owned()).boxed(),
    }
}

fn command() -> impl Strategy<Value = Vec<String>> {
    let form = select(FORMS).prop_flat_map(|form| form.split(' ').map(argument).collect::<Vec<_>>());
    let junk = (any::<Index>(), proptest::option::of(select(JUNK)), any::<bool>());
    (form, proptest::option::weighted(0.15, junk)).prop_map(|(mut args, junk)| {
        match junk {
            None => {}
            Some((_, None, _)) => args.truncate(1 + args.len() / 3),
            Some((_, Some(junk), true)) => args.push(junk.to_owned()),
            Some((place, Some(junk), false)) => {
                let place = place.index(args.len());
                args[place] = junk.to_owned();
            }
        }
        args
    })
}

fn any_command() -> impl Strategy<Value = Step> {
    let eval = |source: String, args: Vec<String>| [words("EVAL"), vec![source, "0".to_owned()], args].concat();
    let called = command().prop_map(move |args| {
        eval("local reply = redis.call(unpack(ARGV)) return reply".to_owned(), args)
    });
    let tried = command().prop_map(move |args| eval("return {redis.pcall(unpack(ARGV))}".to_owned(), args));
    let number = select(&["1e16", "1e17", "-0", "0.1", "-1.5e-7", "123456789012345678", "1/0"][..]);
    let number = number.prop_map(move |number| {
        eval(format!("redis.call('SET', 'a', {number}) return redis.call('GET', 'a') .. ''"), Vec::new())
    });
    let returned = select(RETURNS).prop_map(move |value| eval(format!("return ({value})"), words("a b")));
    let left = argument("k").prop_map(move |key| {
        eval("local left = redis.call('TTL', ARGV[1]) return left > 1e6 and 'long' or left".to_owned(), vec![key])
    });
    prop_oneof![12 => command(), 2 => called, 2 => tried, 1 => number, 1 => returned, 1 => left]
        .prop_map(Step::Command)
}

#[test]
fn commands_have_the_replies_and_effects_of_a_real_server() {
    let step = prop_oneof![30 => any_command(), 1 => mode(), 1 => (1..8_u64).prop_map(|steps| Step::Pass(steps * 4))];
    run(proptest::collection::vec(step, 1..40));
}

#[test]
fn scripts_have_the_replies_and_effects_of_a_real_server() {
    let step = prop_oneof![20 => call(), 3 => meddling(), 3 => (1..50_u64).prop_map(Step::Pass), 1 => mode()];
    let listening = Step::Command([words("SUBSCRIBE"), channels()].concat());
    run(proptest::collection::vec(step, 1..40).prop_map(move |mut steps| {
        steps.insert(0, listening.clone());
        steps
    }));
}
