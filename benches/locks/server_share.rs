//! Measures the server's share: how much of the server's time the commands of one lock and unlock take. The server's
//! share does not depend on the client that sends the commands.
//!
//! Several connections send pipelines at the same time, and each connection sends one long pipeline after another, so
//! that the server is the bottleneck. Each lock-unlock pair has its own key. `cpu_us` is the server's processor time
//! for one lock and unlock, including the time for reading and answering the commands. `busy` is the share of the time
//! in which the server was working. A rate shows the server's limit only if `busy` is close to 1. `less_us` is the
//! processor time that one lock and unlock save if a command is removed from this project's scripts.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, aio::MultiplexedConnection};
use support::server::RedisServer;
use uuid::Uuid;

use crate::{
    baselines::{SET_RELEASE, SHA_ACQUIRE, SHA_RELEASE, Tuning, connect, load},
    candidates::LEASE,
    clock::{nanos, now},
    options::Pace,
    report::{Figure, Run, Table},
};

/// The number of connections that send pipelines.
const LANES: usize = 4;
/// The number of lock-unlock pairs in a pipeline. Each pair consists of two commands.
const DEPTH: u64 = 250;

/// The factor by which a run of this workload is shorter than a run of the other workloads. The shorter time is enough,
/// because the figures of this workload do not depend on which thread runs which task.
const PARTS: u32 = 4;

/// The first parts of the script with which `lock_runtime` acquires a lock. These parts of the script take a free lock.
const ACQUIRE: &str = concat!(
    include_str!("../../lock-runtime/src/backend/redis/protocol/native/next_token.lua"),
    include_str!("../../lock-runtime/src/backend/redis/protocol/native/acquire_free.lua"),
    "return redis.error_reply('not free')"
);
/// The first part of the script with which `lock_runtime` releases a lock. This part of the script frees a lock for
/// which nobody waits.
const RELEASE: &str = concat!(
    include_str!("../../lock-runtime/src/backend/redis/protocol/native/release_last.lua"),
    "return redis.error_reply('somebody waits')"
);

/// A fencing token with as many digits as a real one. The first token of a new server is the time in µs since 1970.
const FIRST_TOKEN: u64 = 1_700_000_000_000_000;

/// The claim of this project's locks, in ms. A claim is the time within which a process must confirm a grant.
const CLAIM_MS: &str = "2000";
/// The `wait` of this project's locks in the other workloads, in ms.
const WAIT_MS: &str = "60000";

/// An edit of a script: a part of the script's text, and the text that replaces this part.
type Edit = (&'static str, &'static str);

const NO_EXISTS: Edit = ("redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ", "");
const NO_QUEUE: Edit = (
    "redis.call('EXISTS', KEYS[1], KEYS[2])",
    "redis.call('EXISTS', KEYS[1])",
);
const NO_INCR: Edit = (
    "redis.call('INCRBY', fence, count) - count + 1",
    "floor + 0",
);
const NO_SET: Edit = (
    "redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', ARGV[2])",
    "",
);
const NO_GET: Edit = ("redis.call('GET', KEYS[1])", "ARGV[1]");
const NO_ZPOPMIN: Edit = ("redis.call('ZPOPMIN', KEYS[2])", "{}");

/// A variant of this project's scripts, in which a command is removed or made cheaper. `than` is the name of the
/// variant with which this variant is compared. The variant without `SET` stores no grant that `GET` could check. This
/// variant therefore also lacks `GET`, and is compared with the variant that lacks only `GET`.
struct Without {
    name: &'static str,
    acquire: &'static [Edit],
    release: &'static [Edit],
    than: &'static str,
}

const OURS: &str = "ours";
const UNCHECKED: &str = "ours, without GET";

const WITHOUT: [Without; 6] = [
    Without {
        name: "ours, without EXISTS",
        acquire: &[NO_EXISTS],
        release: &[],
        than: OURS,
    },
    Without {
        name: "ours, EXISTS of one key",
        acquire: &[NO_QUEUE],
        release: &[],
        than: OURS,
    },
    Without {
        name: "ours, without INCRBY",
        acquire: &[NO_INCR],
        release: &[],
        than: OURS,
    },
    Without {
        name: UNCHECKED,
        acquire: &[],
        release: &[NO_GET],
        than: OURS,
    },
    Without {
        name: "ours, without GET, SET",
        acquire: &[NO_SET],
        release: &[NO_GET],
        than: UNCHECKED,
    },
    Without {
        name: "ours, without ZPOPMIN",
        acquire: &[],
        release: &[NO_ZPOPMIN],
        than: OURS,
    },
];

fn edited(script: &str, edits: &[Edit]) -> String {
    edits.iter().fold(script.to_owned(), |script, (from, to)| {
        assert!(
            script.contains(from),
            "the script has changed and no longer contains {from}"
        );
        script.replace(from, to)
    })
}

/// The two commands of a lock and unlock. Each `Arc<str>` is the SHA-1 hash of a script, which `EVALSHA` takes.
#[derive(Debug, Clone)]
enum Pair {
    Empty(Arc<str>),
    Set(Arc<str>),
    Redisson([Arc<str>; 2]),
    Ours { scripts: [Arc<str>; 2], draws: bool },
}

/// The arguments of one lock and unlock.
struct Turn {
    key: String,
    owner: String,
    fence: String,
    token: u64,
}

fn evalsha(hash: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(hash).arg(keys.len()).arg(keys).arg(args);
    command
}

impl Pair {
    fn commands(&self, turn: &Turn) -> [Cmd; 2] {
        let lease = LEASE.as_millis().to_string();
        let (key, owner) = (turn.key.as_str(), turn.owner.as_str());
        match self {
            Self::Empty(script) => [0, 1].map(|_| evalsha(script, &[key], &[])),
            Self::Set(script) => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(owner).arg("NX").arg("PX").arg(&lease);
                [set, evalsha(script, &[key], &[owner])]
            }
            Self::Redisson([acquire, release]) => {
                let channel = format!("channel:{key}");
                [
                    evalsha(acquire, &[key], &[&lease, owner]),
                    evalsha(release, &[key, &channel], &[&lease, owner]),
                ]
            }
            Self::Ours { scripts, .. } => {
                let queue = format!("{key}:queue");
                let claim = format!("{key}:claim");
                let keys = [key, &queue, &turn.fence, &claim];
                let tail = format!("{lease}|lock:session:{owner}|{owner}");
                let floor = FIRST_TOKEN.to_string();
                let [acquire, release] = scripts;
                let args = [&tail, &lease, &floor, WAIT_MS, CLAIM_MS, "", ""];
                let grant = format!("{}|", turn.token);
                [
                    evalsha(acquire, &keys[..3], &args),
                    evalsha(release, &keys, &[&grant, &floor, CLAIM_MS]),
                ]
            }
        }
    }

    /// Returns whether each acquisition increments the fencing token.
    fn draws(&self) -> bool {
        matches!(self, Self::Ours { draws: true, .. })
    }
}

/// Sends pipelines of lock-unlock pairs over one connection until the time `until`. Returns the number of pairs that
/// were sent.
async fn lane(mut connection: MultiplexedConnection, pair: Pair, until: u64) -> u64 {
    let marker = Uuid::new_v4().simple().to_string();
    let fence = format!("lock:fence:{marker}");
    let counter: redis::RedisResult<()> = redis::cmd("SET")
        .arg(&fence)
        .arg(FIRST_TOKEN)
        .query_async(&mut connection)
        .await;
    counter.expect("the token counter of this connection can be set");
    let mut turns = 0;
    while now() < until {
        let mut pipeline = Pipeline::new();
        for number in turns..turns + DEPTH {
            let token = FIRST_TOKEN + if pair.draws() { number + 1 } else { 0 };
            let turn = Turn {
                key: format!("{{lock:bench:{marker}:{number}}}"),
                owner: marker.clone(),
                fence: fence.clone(),
                token,
            };
            let [first, second] = pair.commands(&turn);
            pipeline.add_command(first).ignore().add_command(second);
        }
        let released: Vec<u64> = pipeline
            .query_async(&mut connection)
            .await
            .expect("the commands of a pipeline run");
        assert!(
            released.iter().all(|released| *released == 1),
            "each pair releases its lock"
        );
        turns += DEPTH;
    }
    turns
}

/// Returns the processor time that the server's process has used, in µs.
pub(crate) async fn worked(connection: &mut MultiplexedConnection) -> f64 {
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(connection)
        .await
        .expect("the server reports its processor time");
    let seconds = info.lines().filter_map(|line| {
        let (name, seconds) = line.split_once(':')?;
        let counts = ["used_cpu_sys", "used_cpu_user"].contains(&name);
        counts.then(|| seconds.trim().parse::<f64>().ok())?
    });
    seconds.sum::<f64>() * 1e6
}

async fn run(server: &RedisServer, pair: &Pair, span: Duration) -> Run {
    let url = server.url();
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        lanes.push(connect(&url, Tuning::Ours).await);
    }
    let mut asking = connect(&url, Tuning::Ours).await;
    let before = worked(&mut asking).await;
    let begin = now();
    let until = begin + nanos(span);
    let lanes: Vec<_> = lanes
        .into_iter()
        .map(|connection| tokio::spawn(lane(connection, pair.clone(), until)))
        .collect();
    let mut turns = 0;
    for lane in lanes {
        turns += lane
            .await
            .expect("a task that sends pipelines does not panic");
    }
    let micros = (now() - begin) as f64 / 1e3;
    let worked = worked(&mut asking).await - before;
    // Delete the token counters, and the keys that an edited script has left behind.
    let flushed: redis::RedisResult<()> = redis::cmd("FLUSHALL").query_async(&mut asking).await;
    flushed.expect("FLUSHALL deletes all keys");
    Run::from([
        (Figure::Rate, turns as f64 / micros * 1e6),
        (Figure::Throughput, 2.0 * turns as f64 / micros * 1e6),
        (Figure::Processor, worked / turns as f64),
        (Figure::Busy, worked / micros),
    ])
}

/// Measures all pairs of commands on a new server, and returns their table.
pub(crate) async fn measure(pace: Pace) -> Table {
    let server = RedisServer::start().await;
    let mut connection = connect(&server.url(), Tuning::Ours).await;
    let mut pairs = vec![
        (
            "two empty scripts",
            Pair::Empty(load(&mut connection, "return 1").await),
            None,
        ),
        (
            "SET NX PX, compare-and-delete",
            Pair::Set(load(&mut connection, SET_RELEASE).await),
            None,
        ),
        (
            "Redisson's pair",
            Pair::Redisson([
                load(&mut connection, SHA_ACQUIRE).await,
                load(&mut connection, SHA_RELEASE).await,
            ]),
            None,
        ),
        (
            OURS,
            Pair::Ours {
                scripts: [
                    load(&mut connection, ACQUIRE).await,
                    load(&mut connection, RELEASE).await,
                ],
                draws: true,
            },
            None,
        ),
    ];
    for Without {
        name,
        acquire,
        release,
        than,
    } in WITHOUT
    {
        let scripts = [
            load(&mut connection, &edited(ACQUIRE, acquire)).await,
            load(&mut connection, &edited(RELEASE, release)).await,
        ];
        let draws = !acquire.contains(&NO_INCR);
        pairs.push((name, Pair::Ours { scripts, draws }, Some(than)));
    }
    let title = "the server alone: locks and unlocks at keys of their own, pipelined";
    let mut table = Table::new("S", title);
    for _ in 0..pace.rounds {
        let mut round: Vec<(&str, f64)> = Vec::new();
        for (name, pair, than) in &pairs {
            let mut figures = run(&server, pair, pace.span / PARTS).await;
            let micros = figures[&Figure::Processor];
            let than = than.and_then(|than| round.iter().find(|(name, _)| *name == than));
            if let Some((_, whole)) = than {
                figures.insert(Figure::Less, whole - micros);
            }
            round.push((name, micros));
            table.add(*name, figures);
        }
    }
    table
}
