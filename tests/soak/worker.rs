//! A worker process: tasks that lock in all ways there are, and say what they saw.

use std::{
    io::{BufRead, Write},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_runtime::{Hold, LockClient, LockError, Release, Strategy, distributed_lock};
use tokio::time::sleep;

use crate::{
    dice::Dice,
    ledger::Visit,
    plan::{COLD, DELETED_FROM, HOT, NAMESPACE, Outcomes, WARM, now},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What a task needs.
#[derive(Clone)]
struct Task {
    client: LockClient,
    out: Arc<Mutex<Vec<u8>>>,
    outcomes: Arc<Outcomes>,
    slow: bool,
}

/// Runs until the host says stop.
pub(crate) async fn work(url: &str, tasks: u64, seed: u64, faults: bool) {
    // The bodies that panic do so on purpose.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&PANIC) {
            eprintln!("{panic}");
        }
    }));
    let client = loop {
        let builder = LockClient::builder().url(url).namespace(NAMESPACE);
        // Without faults nothing may have to wait for the end of a lease.
        let lease = if faults { 3 * SECOND } else { 30 * SECOND };
        match builder.lease(lease).connect().await {
            Ok(client) => break client,
            // The server is down for the moment.
            Err(error) => eprintln!("{error}"),
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            // A line, or the end of the host.
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            stop.store(true, Ordering::Release);
        }
    });
    let task = Task {
        client: client.clone(),
        out: Arc::default(),
        outcomes: Arc::default(),
        slow: faults,
    };
    let mut running = tokio::task::JoinSet::new();
    for number in 0..tasks {
        let (task, stop) = (task.clone(), stop.clone());
        let mut dice = Dice::new(seed ^ (number << 32));
        running.spawn(async move {
            while !stop.load(Ordering::Acquire) {
                task.clone().step(&mut dice).await;
            }
        });
    }
    let telling = tokio::spawn({
        let task = task.clone();
        async move {
            loop {
                sleep(100 * MS).await;
                task.tell();
            }
        }
    });
    while let Some(ended) = running.join_next().await {
        ended.expect("a task catches what its bodies throw");
    }
    client.shutdown().await;
    telling.abort();
    task.tell();
    println!("ended");
}

const PANIC: &str = "a body panics, as it shall";

/// Who is inside, from its first instruction to its last, or until the hold is lost.
struct Inside {
    task: Task,
    hold: Hold,
    visit: Visit,
    /// A moment up to which the hold was known to stand.
    stands_until: AtomicU64,
}

impl Inside {
    /// `None` if the hold has ended before its body could begin.
    fn begin(task: &Task, key: u32, asked: u64) -> Option<Self> {
        let hold = Hold::current().expect("a body has a hold");
        let entered = now();
        let inside = Self {
            visit: Visit {
                key,
                token: hold.token().get(),
                asked,
                entered,
                ended: 0,
            },
            task: task.clone(),
            hold,
            stands_until: AtomicU64::new(entered),
        };
        // The process may have stood still since the grant.
        inside.look().then_some(inside)
    }

    /// Looks how long the hold stands at least.
    fn look(&self) -> bool {
        let remaining = self.hold.remaining();
        let until = now() + u64::try_from(remaining.as_nanos()).unwrap_or(0);
        if !remaining.is_zero() {
            self.stands_until.fetch_max(until, Ordering::AcqRel);
        }
        !remaining.is_zero()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let ended = now().min(self.stands_until.load(Ordering::Acquire));
        let visit = Visit {
            ended: ended.max(self.visit.entered),
            ..self.visit
        };
        let mut out = self.task.out.lock().expect("nobody panics here");
        let _ = writeln!(out, "{}", visit.line());
    }
}

#[distributed_lock(key = "<key>", wait = "20s", client = &task.client)]
async fn guarded(task: &Task, key: u32, awaits: u32, asked: u64) -> Result<(), LockError> {
    task.body(key, awaits, asked).await;
    Ok(())
}

/// The same, and the call returns when its release is on its way.
#[distributed_lock(key = "<key>", wait = "20s", client = &task.client, release = background)]
async fn guarded_released_behind(
    task: &Task,
    key: u32,
    awaits: u32,
    asked: u64,
) -> Result<(), LockError> {
    task.body(key, awaits, asked).await;
    Ok(())
}

#[distributed_lock(keys = ["<a>", "<b>"], wait = "20s", client = &task.client, guard = holds)]
async fn both(task: &Task, a: u32, b: u32, awaits: u32) -> Result<(), LockError> {
    let entered = now();
    for _ in 0..awaits {
        task.pause(a).await;
    }
    for (hold, key) in holds.iter().zip([a, b]) {
        let stands = !hold.remaining().is_zero();
        let visit = Visit {
            key,
            token: hold.token().get(),
            asked: 0,
            entered,
            ended: if stands { now() } else { entered },
        };
        let mut out = task.out.lock().expect("nobody panics here");
        let _ = writeln!(out, "{}", visit.line());
    }
    Ok(())
}

impl Task {
    /// Some time inside; longer where an operator may delete the key meanwhile.
    async fn pause(&self, key: u32) {
        if key >= DELETED_FROM {
            sleep(20 * MS).await;
        } else if self.slow {
            sleep(MS).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    async fn body(&self, key: u32, awaits: u32, asked: u64) {
        let Some(inside) = Inside::begin(self, key, asked) else {
            return;
        };
        for _ in 0..awaits {
            inside.look();
            self.pause(key).await;
        }
        inside.look();
    }

    /// One call, and what became of it.
    async fn step(self, dice: &mut Dice) {
        let key = self.key(dice);
        let awaits = u32::try_from(dice.below(3)).unwrap_or(0);
        let release = match dice.below(2) {
            0 => Release::Confirmed,
            _ => Release::Background,
        };
        let lock = self.client.lock(key.to_string()).wait(20 * SECOND);
        let lock = lock.release(release);
        let outcomes = self.outcomes.clone();
        outcomes.begun.fetch_add(1, Ordering::Relaxed);
        let (asked, mut tries) = (now(), false);
        let call = async {
            match dice.below(100) {
                0..50 if release == Release::Background => {
                    guarded_released_behind(&self, key, awaits, asked).await
                }
                0..50 => guarded(&self, key, awaits, asked).await,
                50..60 => lock.run(self.body(key, awaits, asked)).await,
                // Enters twice.
                60..68 => match lock.acquire().await {
                    Ok(guard) => {
                        let twice = guarded(&self, key, awaits, asked);
                        let entered = guard.run(twice).await.and_then(|twice| twice);
                        guard.release().await;
                        entered
                    }
                    Err(error) => Err(error),
                },
                68..74 => {
                    tries = true;
                    let lock = lock.wait(Duration::ZERO);
                    lock.run(self.body(key, awaits, 0)).await
                }
                74..80 => {
                    let other = self.key(dice);
                    both(
                        &self,
                        key.min(other),
                        key.max(other) + u32::from(key == other),
                        awaits,
                    )
                    .await
                }
                80..84 => {
                    let lock = lock.strategy(Strategy::Notify);
                    lock.run(self.body(key, awaits, 0)).await
                }
                84..88 => {
                    let lock = lock.strategy(Strategy::Spin);
                    lock.run(self.body(key, awaits, 0)).await
                }
                88..90 => {
                    let lock = lock.hold_at_least(5 * MS);
                    lock.run(self.body(key, awaits, 0)).await
                }
                90..92 => {
                    // Longer than its lease.
                    let lock = lock.lease(20 * MS);
                    let late = async {
                        self.body(key, 1, asked).await;
                        sleep(40 * MS).await;
                    };
                    lock.run(late).await
                }
                92..93 => {
                    lock.run(async {
                        self.body(key, awaits, asked).await;
                        std::panic::panic_any(PANIC);
                    })
                    .await
                }
                _ => {
                    // Given up at any instant.
                    let patience = Duration::from_micros(dice.below(3000));
                    let call = lock.run(self.body(key, awaits, 0));
                    return tokio::time::timeout(patience, call).await.ok();
                }
            }
            .into()
        };
        let outcome = match AssertUnwindSafe(call).catch_unwind().await {
            Err(_) => &outcomes.panicked,
            Ok(None) => &outcomes.cancelled,
            Ok(Some(Ok(()))) => &outcomes.completed,
            Ok(Some(Err(LockError::Busy { .. }))) if tries => &outcomes.busy,
            Ok(Some(Err(LockError::Busy { .. }))) => &outcomes.waited_in_vain,
            Ok(Some(Err(LockError::Lost { .. }))) => &outcomes.lost,
            Ok(Some(Err(LockError::Unreachable { .. }))) => &outcomes.unreachable,
            Ok(Some(Err(error))) => {
                eprintln!("{error}");
                &outcomes.refused
            }
        };
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    /// A key: a few that all want, some, and many that are nearly always free.
    fn key(&self, dice: &mut Dice) -> u32 {
        let (from, count) = match dice.below(10) {
            0 => (0, HOT),
            1..4 => (HOT, WARM),
            4 if self.slow => (DELETED_FROM, WARM),
            _ => (HOT + WARM, COLD),
        };
        from + u32::try_from(dice.below(count.into())).unwrap_or(0)
    }

    /// Hands on what was seen.
    fn tell(&self) {
        let mut out = std::mem::take(&mut *self.out.lock().expect("nobody panics here"));
        let _ = writeln!(out, "{}", self.outcomes.line());
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(&out).and_then(|()| stdout.flush());
    }
}
