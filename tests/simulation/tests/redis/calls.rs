//! Random calls of the project's scripts, and changes that other clients make to the state of locks.

use std::sync::LazyLock;

use proptest::{
    prelude::*,
    sample::{Index, select},
};

use crate::{
    JUNK, Step,
    pair::{Pair, START, STEP, words},
};

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
macro_rules! part {
    ($path:literal) => {
        include_str!(concat!(
            "../../../../lock-runtime/src/backend/redis/protocol/",
            $path,
            ".lua"
        ))
    };
}

/// The scripts as the engine assembles them, with the names that the engine gives them. Each script begins with
/// [`FIXED_TIME`], which takes the time from the last argument and rounds the replies to `PTTL` up.
pub(crate) static SCRIPTS: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let (next_token, grant_next) = (part!("native/next_token"), part!("native/grant_next"));
    let (mark, owner) = (part!("quorum/mark"), part!("redisson/owner"));
    let (grant, tell) = (part!("redisson/grant"), part!("redisson/tell"));
    let scripts: &[(&str, &[&str])] = &[
        (
            "acquire",
            &[
                next_token,
                part!("native/acquire_free"),
                part!("native/acquire_queue"),
                grant_next,
                part!("native/acquire"),
            ],
        ),
        (
            "multi_acquire",
            &[next_token, grant_next, part!("native/multi_acquire")],
        ),
        (
            "release",
            &[
                part!("native/release_last"),
                next_token,
                grant_next,
                part!("native/release"),
            ],
        ),
        ("retain", &[next_token, grant_next, part!("native/retain")]),
        ("queue", &[next_token, grant_next, part!("native/queue")]),
        ("leave", &[next_token, grant_next, part!("native/leave")]),
        ("probe", &[next_token, grant_next, part!("native/probe")]),
        ("renew", &[part!("native/renew")]),
        ("dissolve", &[part!("native/dissolve")]),
        ("status", &[part!("native/status")]),
        (
            "acquire_shared",
            &[
                next_token,
                grant_next,
                part!("native/acquire_shared"),
                part!("native/acquire_queue"),
                part!("native/acquire"),
            ],
        ),
        ("quorum_probe", &[mark, part!("quorum/probe")]),
        ("quorum_admit", &[mark, part!("quorum/admit")]),
        ("quorum_take", &[next_token, mark, part!("quorum/take")]),
        ("quorum_raise_token", &[part!("quorum/raise_token")]),
        ("quorum_rejoin", &[mark, part!("quorum/rejoin")]),
        (
            "redisson_acquire",
            &[next_token, owner, grant, part!("redisson/acquire")],
        ),
        (
            "redisson_multi_acquire",
            &[next_token, owner, grant, part!("redisson/multi_acquire")],
        ),
        (
            "redisson_release",
            &[owner, tell, part!("redisson/release")],
        ),
        ("redisson_retain", &[owner, tell, part!("redisson/retain")]),
        ("redisson_leave", &[owner, tell, part!("redisson/leave")]),
        ("redisson_renew", &[owner, part!("redisson/renew")]),
        ("redisson_status", &[owner, part!("redisson/status")]),
        ("limit", &[next_token, grant_next, part!("native/limit")]),
        ("latch", &[next_token, grant_next, part!("native/latch")]),
    ];
    let whole = |parts: &[&str]| [&[FIXED_TIME], parts].concat().concat();
    scripts
        .iter()
        .map(|(name, parts)| (*name, whole(parts)))
        .collect()
});

const SESSIONS: [&str; 3] = [
    "5e5510000000000000000000000000a1",
    "5e5510000000000000000000000000b2",
    "5e5510000000000100000000000000c3",
];
const OWNERS: [&str; 3] = [
    "0a0000000000000000000000000000a1",
    "0b0000000000000000000000000000b2",
    "0c0000000000000000000000000000c3",
];
const LOCKS: [&str; 3] = ["{lock:a}", "{lock:b}", "{lock:c}"];
/// A call of a script with random arguments.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    script: usize,
    locks: (usize, usize),
    owner: usize,
    session: usize,
    lease: &'static str,
    wait: &'static str,
    claim: &'static str,
    /// A number that chooses the remaining arguments, such as the lower bound of the next token, and the time limit of
    /// the request. Each decimal digit of this number chooses one argument.
    choices: usize,
    /// The index of an argument, and the text that replaces the argument. If there is no text, this argument and all
    /// arguments after it are removed.
    junk: Option<(Index, Option<&'static str>)>,
    /// Whether the caller reads or takes permits.
    is_shared: bool,
}

/// Returns the channels of two of the three sessions. The tests subscribe only to these two channels.
pub(crate) fn channels() -> Vec<String> {
    let digest = |session: &str| sha1(session.as_bytes());
    let sessions = SESSIONS[..2].iter();
    sessions
        .map(|session| format!("lock:session:{}", digest(session)))
        .collect()
}

fn sha1(bytes: &[u8]) -> String {
    // The name of a session's channel contains the SHA-1 digest of the session. Script calls name a script by its
    // digest.
    sha1_smol::Sha1::from(bytes).digest().to_string()
}

impl Call {
    /// Returns the element of `of` that the decimal digit of `choices` at this place selects.
    fn choice<T: Copy>(&self, place: u32, of: &[T]) -> T {
        of[self.choices / 10_usize.pow(place) % of.len()]
    }

    /// Builds the Redis command for this call. Only a server knows the token of a grant, so the token is read from the
    /// simulated server.
    pub(crate) fn command(&self, pair: &mut Pair) -> Vec<String> {
        let (name, source) = &SCRIPTS[self.script];
        let is_redisson = name.starts_with("redisson");
        let lock = |lock: usize| {
            if is_redisson {
                format!("r{}", LOCKS[lock])
            } else {
                LOCKS[lock].to_owned()
            }
        };
        let companion = |at: usize| {
            let lock = lock(at);
            if is_redisson {
                format!("redisson_lock_token:{lock}")
            } else {
                format!("{lock}:queue")
            }
        };
        let (one, other) = self.locks;
        let (grant, fence, mark) = (
            lock(one),
            "{lock}:fence".to_owned(),
            "{lock}:mark".to_owned(),
        );
        let claim_key = |at: usize| format!("{}:claim", lock(at));
        let (owner, session) = (OWNERS[self.owner], SESSIONS[self.session]);
        let mode = match name.starts_with("acquire_shared") || self.is_shared {
            true => self.choice(0, &["r", "r", "r", "p1/2", "p2/3"]),
            false => "",
        };
        let takes_mode = matches!(
            *name,
            "acquire_shared" | "queue" | "leave" | "probe" | "multi_acquire"
        );
        let lease = if takes_mode {
            format!("{}{mode}", self.lease)
        } else {
            self.lease.into()
        };
        let (lease, wait, claim) = (lease.as_str(), self.wait, self.claim);
        let (now, second) = (pair.time, 1_000_000);
        let floor = self.choice(0, &[0, now - second, now + second]).to_string();
        let end = match self.choice(1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) {
            0 => (START - 1).to_string(),
            1 => (START * 2).to_string(),
            _ => String::new(),
        };
        // A grant begins with its token. In Redisson's layout a grant has no token, so the newest token of the counter
        // is used.
        let held = pair
            .simulated
            .get(if is_redisson { &fence } else { &grant }, START);
        let readers = pair.simulated.members(&grant, START as i64 / 1000);
        let reader = readers.get(self.choice(3, &[0, 0, 1]));
        let reader = reader.and_then(|reader| reader.split_once('|'));
        let held = held
            .or_else(|| reader.map(|(_, grant)| grant.to_owned()))
            .unwrap_or_default();
        let tokens = held.split('|').next().map(str::to_owned);
        let token = tokens
            .filter(|token| !token.is_empty())
            .unwrap_or_else(|| "1".to_owned());
        // Two requests of one owner can differ in these fields: `words`, which name the caller, and the time.
        let words = format!("shop/web/{}/pay", self.choice(3, &[1, 1, 2]));
        let tail = format!(
            "{lease}|{session}|{owner}|{words}|{}.{}",
            now / second,
            now % second
        );
        let member = format!("{owner}|{session}|{lease}|{wait}|{words}");
        let until = (now + self.choice(2, &[0, 1, 40]) * STEP * 1000).to_string();
        let earlier = (now - 1_000_000).to_string();
        let place = self.choice(4, &[&*until, &*earlier, "1"]);
        let leave = self.choice(2, &["enter", "abandon"]);
        let restart = self.choice(
            2,
            &["", "restart|", "restart|1", "restart|9900000000000000"],
        );
        let native = vec![grant.clone(), companion(one), fence.clone(), claim_key(one)];
        let limit = format!("{}:limit:fence", lock(one));
        // The lock of a semaphore has a fifth key.
        let limited = match self.is_shared && !is_redisson {
            true => [&native[..], std::slice::from_ref(&limit)].concat(),
            false => native.clone(),
        };
        let text = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<String>>()
        };
        let (keys, mut args) = match name.trim_start_matches("redisson_") {
            "acquire" | "acquire_shared" => {
                let mut args = text(&[&tail, lease, &floor, wait, claim, &end, place]);
                args.truncate(self.choice(2, &[6, 6, 6, 7]));
                let keys = if is_redisson || wait != "0" { 3 } else { 4 };
                match limited.len() {
                    5 => (limited, args),
                    _ => (native[..keys].to_vec(), args),
                }
            }
            "multi_acquire" => {
                let names = |at: usize| {
                    let claim = (!is_redisson).then(|| claim_key(at));
                    [lock(at), companion(at)].into_iter().chain(claim)
                };
                let keys = std::iter::once(fence)
                    .chain(names(one))
                    .chain(names(other))
                    .collect();
                (keys, text(&[lease, &floor, claim, &end, &tail, &tail]))
            }
            "release" => (limited, text(&[&format!("{token}|"), &floor, claim])),
            "retain" => (limited, text(&[&token, &until, lease, &floor, claim])),
            "queue" => {
                let next = OWNERS[(self.owner + 1) % 3];
                let neighbour = format!("{next}|{session}|{lease}|{wait}|{words}");
                (
                    limited,
                    text(&[session, &floor, claim, &end, &member, "", &neighbour, place]),
                )
            }
            "leave" => (
                limited,
                text(&[owner, &member, &floor, claim, leave, &tail, session]),
            ),
            "probe" => {
                let others = [lock(other), companion(other), claim_key(other), lock(other)];
                let limit = if self.is_shared { limit } else { grant.clone() };
                let lock = [fence, grant, companion(one), claim_key(one), limit];
                let keys = [&lock[..], &others].concat();
                (
                    keys,
                    text(&[session, &floor, claim, wait, &member, &member]),
                )
            }
            "renew" => (
                vec![grant, lock(other)],
                text(&[restart, &token, lease, "1", "0"]),
            ),
            "dissolve" => {
                let next = OWNERS[(self.owner + 1) % 3];
                let neighbour = format!("{next}|{session}|{lease}|{wait}|{words}");
                (
                    native[..2].to_vec(),
                    text(&[&token, owner, lease, &neighbour, place]),
                )
            }
            "status" => (native[..2].to_vec(), Vec::new()),
            "limit" => {
                let (set, number) = (
                    self.choice(3, &["set", "set", ""]),
                    self.choice(2, &["1", "3", "0", ""]),
                );
                let keys = [&native[..], &[limit]].concat();
                let until = if end.is_empty() {
                    (START * 2).to_string()
                } else {
                    end
                };
                (keys, text(&[set, number, &floor, claim, &until]))
            }
            "latch" => {
                let steps = ["count", "count", "keep", "join", "restart", "read"];
                let step = self.choice(3, &steps);
                let part = self.choice(2, &["a", "b", "c"]);
                let record = format!("{}:round:fence", lock(other));
                let round = pair.simulated.members(&record, START as i64 / 1000);
                let round = round.first().and_then(|round| round.split_once('|'));
                let round = round.map_or("1", |(round, _)| round);
                let own = [record, fence, grant, companion(one), claim_key(one)];
                let keys = match step {
                    "join" | "read" => own[..2].to_vec(),
                    _ => own.to_vec(),
                };
                let parts = self.choice(1, &["2", "1", "3", "0"]);
                let words = "shop/web/1/";
                (
                    keys,
                    text(&[step, round, part, parts, lease, &floor, claim, words]),
                )
            }
            "quorum_probe" => (vec![mark, fence], text(&[lease, &floor, "run"])),
            "quorum_admit" => (
                vec![mark, fence],
                text(&[&START.to_string(), wait, lease, "run"]),
            ),
            "quorum_take" => (
                vec![grant, fence, mark],
                text(&[&tail, lease, &floor, &until]),
            ),
            "quorum_raise_token" => (vec![grant, fence], text(&[owner, &floor])),
            "quorum_rejoin" => (
                vec![grant, fence, mark],
                text(&[&floor, &tail, lease, &until]),
            ),
            name => unreachable!("{name} is no script"),
        };
        if let Some((place, junk)) = self.junk.filter(|_| !args.is_empty()) {
            let place = place.index(args.len());
            match junk {
                // With this lease, a key of the real server can expire before the next command.
                Some("1") => {}
                // A server stores this score as it is, but only in a set with long members. The simulation never does.
                Some("-0") => {}
                Some(junk) => args[place] = junk.to_owned(),
                None => args.truncate(place),
            }
        }
        args.push(now.to_string());
        let start = text(&["EVALSHA", &sha1(source.as_bytes()), &keys.len().to_string()]);
        [start, keys, args].concat()
    }
}

pub(crate) fn call() -> impl Strategy<Value = Step> {
    // Most calls use the native layout, which has the most states. About half of these calls request a lock.
    let script = prop_oneof![
        4 => Just(0_usize),
        1 => Just(2_usize),
        1 => Just(4_usize),
        2 => Just(5_usize),
        4 => Just(10_usize),
        4 => 0..11_usize,
        2 => 11..16_usize,
        2 => 16..SCRIPTS.len()
    ];
    let lock = || prop_oneof![4 => Just(0_usize), 1 => 0..3_usize];
    let leases = &["10000", "30000", "500", "250", "0", "-5", "1500.5"];
    let times = (
        select(&leases[..]),
        select(&["0", "5000", "60000"][..]),
        select(&["5000", "500"][..]),
    );
    let junk = (
        any::<Index>(),
        proptest::option::weighted(0.8, select(JUNK)),
    );
    let junk = proptest::option::weighted(0.05, junk);
    let times = prop_oneof![3 => Just(("10000", "60000", "5000")), 2 => times];
    let who = ((lock(), lock()), 0..3_usize, 0..15_usize, any::<bool>());
    (script, who, times, 0..10_000_usize, junk).prop_map(|(script, who, times, choices, junk)| {
        let ((locks, owner, session, is_shared), (lease, wait, claim)) = (who, times);
        // Most calls use the session that belongs to the owner.
        let session = if session < 3 { session } else { owner };
        Step::Script(Call {
            script,
            locks,
            owner,
            session,
            lease,
            wait,
            claim,
            choices,
            junk,
            is_shared,
        })
    })
}

/// Returns changes that other clients make to the state of locks.
pub(crate) fn meddling() -> impl Strategy<Value = Step> {
    let commands = [
        "DEL {lock:a}",
        "SET {lock:a} x",
        "HSET {lock:a} f v",
        "PERSIST {lock:a}",
        "DEL {lock:a}:queue",
        "ZADD {lock:a}:queue 5 x",
        "SET {lock:a}:queue x",
        "DEL {lock}:fence",
        "SET {lock}:fence x",
        "SET {lock}:fence 3",
        "PEXPIRE {lock:a} 900000",
        "SET redisson_lock_token:r{lock:a} 7",
        "HSET redisson_lock_token:r{lock:a} f v",
        "DEL r{lock:a}",
        "HSET r{lock:a} 11111111-2222-4333-8444-555555555555:1 1",
        "PERSIST r{lock:a}",
        "SET r{lock:a} x",
        "SET {lock}:mark x",
        "SET {lock}:mark whole|1|10000",
        "SET {lock}:mark lost|1800000000000000",
        "DEL {lock}:mark",
        "SET {lock:a} 5|10000|5e5510000000000000000000000000a1|0a0000000000000000000000000000a1 PX 20000",
        "SUBSCRIBE lock:session:CHANNEL",
        "UNSUBSCRIBE lock:session:CHANNEL",
    ];
    let command = prop_oneof![1 => Just("DEL {lock:a}"), 3 => select(commands.to_vec())];
    let lock = prop_oneof![2 => Just(0_usize), 1 => 0..3_usize];
    (command, lock, 0..2_usize).prop_map(|(command, lock, session)| {
        let command = command.replace("{lock:a}", LOCKS[lock]);
        Step::Command(words(
            &command.replace("lock:session:CHANNEL", &channels()[session]),
        ))
    })
}
