//! A worker process of the soak. Its tasks acquire locks in many ways, and report their visits to the host.

use std::{
    io::{BufRead, Write},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_runtime::{Hold, Lock, LockClient, LockError, Release, Strategy, distributed_lock};
use support::clock::now;
use tokio::{sync::watch, time::sleep};

use crate::{
    dice::Dice,
    ledger::Visit,
    plan::{
        BUFFERED, BUFFERED_FROM, COLD, Course, DELETED_FROM, HOT, NAMESPACE, Outcomes, Poller,
        SLOW, SLOW_FROM, WARM,
    },
    slow::Pace,
};

const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The number of witnesses. A witness is a task that polls its futures without delay, and locks only the keys of slow
/// pollers with long pauses.
const WITNESSES: u64 = 6;
/// The greatest absolute value of [`Task::balance`]. If the balance exceeds this limit, the pollers that have made too
/// many visits pause.
const BALANCE: i64 = 64;

/// The shared state and the settings that a task needs for its calls.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) client: LockClient,
    out: Arc<Mutex<Vec<u8>>>,
    pub(crate) outcomes: Arc<Outcomes>,
    pub(crate) poller: Poller,
    /// Whether the bodies of this task read.
    reads: bool,
    /// The number of worker processes. Each process has slow pollers with keys of their own.
    processes: u32,
    /// Twice the number of visits of slow pollers, minus the number of visits of prompt pollers (`Poller::Prompt`). If
    /// prompt pollers have made two thirds of the visits, the balance is zero.
    balance: Arc<AtomicI64>,
    pub(crate) stop: watch::Receiver<bool>,
    course: Course,
}

/// The host's orders to a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    /// The number of this worker process.
    pub(crate) place: u32,
    pub(crate) processes: u32,
    pub(crate) tasks: u64,
    pub(crate) seed: u64,
    pub(crate) course: Course,
}

/// Runs the tasks until the host ends, or orders the worker to stop.
pub(crate) async fn work(url: &str, orders: Orders) {
    let Orders {
        place,
        processes,
        tasks,
        seed,
        course,
    } = orders;
    // Some bodies panic on purpose. This hook does not print their panics.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&PANIC) {
            eprintln!("{panic}");
        }
    }));
    let client = loop {
        let builder = LockClient::builder().url(url).namespace(NAMESPACE);
        match builder.lease(course.lease()).connect().await {
            Ok(client) => break client,
            // A fault has stopped the server, so the worker tries again.
            Err(error) => eprintln!("{error}"),
        }
    };
    let (stopping, stop) = watch::channel(false);
    std::thread::spawn(move || {
        // `read_line` returns when the host has written a line or has ended.
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        stopping.send_replace(true);
    });
    let task = Task {
        client: client.clone(),
        out: Arc::default(),
        outcomes: Arc::default(),
        poller: Poller::Prompt,
        reads: false,
        processes,
        balance: Arc::default(),
        stop,
        course,
    };
    let mut running = tokio::task::JoinSet::new();
    for number in 0..tasks {
        let task = task.clone();
        let mut dice = Dice::new(seed ^ (number << 32));
        running.spawn(async move {
            while !task.is_stopped() {
                task.is_its_turn().await;
                task.clone().step(&mut dice).await;
            }
        });
    }
    for number in 0..WITNESSES {
        let task = task.clone();
        let mut dice = Dice::new(seed ^ ((tasks + number) << 32));
        running.spawn(async move {
            while !task.is_stopped() {
                task.witness(&mut dice).await;
            }
        });
    }
    // For each of the prompt tasks above, two slow pollers with pauses of a few ms run. In addition, `SLOW` slow
    // pollers pause for up to three claims (6 s), and one slow poller makes buffers of futures.
    let slow = u32::try_from(2 * tasks).unwrap_or(u32::MAX) + SLOW + 1;
    for number in 0..slow {
        let task = task.as_poller(Poller::Forgotten);
        let mut dice = Dice::new(seed ^ (u64::from(number) << 48));
        running.spawn(async move {
            let pace = Pace::of(number, place);
            while !task.is_stopped() {
                if let Pace::Brief = pace {
                    task.is_its_turn().await;
                }
                task.poll_slowly(pace, &mut dice).await;
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
        ended.expect("a task catches the panics of its bodies");
    }
    client.shutdown().await;
    telling.abort();
    task.tell();
    println!("ended");
}

const PANIC: &str = "a body panics on purpose";

/// A caller inside its body. The value is created at the beginning of the body, and dropped at the body's end or when
/// the hold is lost.
struct Inside {
    task: Task,
    hold: Hold,
    visit: Visit,
    /// The latest known moment, in ns, until which the hold is certainly valid.
    stands_until: AtomicU64,
}

impl Inside {
    /// Begins a visit. Returns `None` if the hold has ended before its body could begin.
    fn begin(task: &Task, key: u32, asked: u64) -> Option<Self> {
        let hold = Hold::current().expect("a body runs inside a hold");
        let entered = now();
        let inside = Self {
            visit: Visit {
                key,
                token: hold.token().get(),
                poller: task.poller,
                reads: task.reads,
                asked,
                entered,
                ended: 0,
            },
            task: task.clone(),
            hold,
            stands_until: AtomicU64::new(entered),
        };
        // The hold has possibly ended already, because a fault can stop the process after the grant.
        inside.look().then_some(inside)
    }

    /// Records the time until which the hold is certain to be valid. Returns whether the hold is valid now.
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
        self.task.note(visit);
    }
}

#[distributed_lock(key = "<key>", wait = "20s", client = &task.client)]
async fn guarded(task: &Task, key: u32, awaits: u32, asked: u64) -> Result<(), LockError> {
    task.body(key, awaits, asked).await;
    Ok(())
}

/// Like [`guarded`], but the call does not wait until its release is confirmed.
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
            poller: task.poller,
            reads: false,
            asked: 0,
            entered,
            ended: if stands { now() } else { entered },
        };
        task.note(visit);
    }
    Ok(())
}

impl Task {
    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits as long as pollers of this kind have made more than their share of the visits. Slow pollers thus make a
    /// third of all visits.
    async fn is_its_turn(&self) {
        loop {
            let balance = self.balance.load(Ordering::Relaxed);
            let ahead = match self.poller {
                Poller::Prompt => -balance,
                _ => balance,
            };
            if ahead <= BALANCE || self.is_stopped() {
                return;
            }
            sleep(MS).await;
        }
    }

    fn note(&self, visit: Visit) {
        let weight = match self.poller {
            Poller::Prompt => -1,
            _ => 2,
        };
        self.balance.fetch_add(weight, Ordering::Relaxed);
        let mut out = self
            .out
            .lock()
            .expect("no thread panics while it holds this mutex");
        let _ = writeln!(out, "{}", visit.line());
    }

    /// Stays inside the body for some time.
    async fn pause(&self, key: u32) {
        match self.course.step_at(key) {
            Some(step) => sleep(step).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Returns a copy of this task whose visits are counted for this kind of poller.
    pub(crate) fn as_poller(&self, poller: Poller) -> Self {
        Self {
            poller,
            ..self.clone()
        }
    }

    /// Returns a lock with this key, and a copy of this task for its body. A fifth of the bodies read.
    pub(crate) fn lock(&self, key: u32, dice: &mut Dice) -> (Lock, Self) {
        let lock = self.client.lock(key.to_string());
        let reads = dice.below(5) == 0;
        let task = Self {
            reads,
            ..self.clone()
        };
        (if reads { lock.read() } else { lock }, task)
    }

    pub(crate) async fn body(&self, key: u32, awaits: u32, asked: u64) {
        let Some(inside) = Inside::begin(self, key, asked) else {
            return;
        };
        for _ in 0..awaits {
            inside.look();
            self.pause(key).await;
        }
        inside.look();
    }

    /// Makes one call for a key of slow pollers with long pauses, and polls the call without delay.
    async fn witness(&self, dice: &mut Dice) {
        let key = match dice.below(2) {
            0 => BUFFERED_FROM + u32::try_from(dice.below(BUFFERED.into())).unwrap_or(0),
            _ => {
                let all = self.processes * SLOW;
                SLOW_FROM + u32::try_from(dice.below(all.into())).unwrap_or(0)
            }
        };
        let awaits = 1 + u32::try_from(dice.below(2)).unwrap_or(0);
        Outcomes::count(&self.outcomes.begun);
        let (lock, task) = self.lock(key, dice);
        let lock = lock.wait(60 * SECOND);
        let result = lock.run(task.body(key, awaits, now())).await;
        Outcomes::count(self.outcomes.of(&result, false));
        sleep(10 * MS).await;
    }

    /// Makes one call and counts its result.
    async fn step(self, dice: &mut Dice) {
        let key = self.key(dice);
        let awaits = u32::try_from(dice.below(3)).unwrap_or(0);
        let release = match dice.below(2) {
            0 => Release::Confirmed,
            _ => Release::Background,
        };
        let (lock, inside) = self.lock(key, dice);
        let lock = lock.wait(20 * SECOND).release(release);
        let outcomes = self.outcomes.clone();
        Outcomes::count(&outcomes.begun);
        let (asked, mut tries) = (now(), false);
        let call = async {
            match dice.below(100) {
                0..50 if release == Release::Background => {
                    guarded_released_behind(&self, key, awaits, asked).await
                }
                0..50 => guarded(&self, key, awaits, asked).await,
                50..60 => lock.run(inside.body(key, awaits, asked)).await,
                // Acquires a guard of the lock, and then makes a nested call for the same lock inside the guard.
                60..68 => match lock.write().acquire().await {
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
                    lock.run(inside.body(key, awaits, 0)).await
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
                80..88 => {
                    tries = self.course.has_long_queues();
                    let lock = lock.strategy(Strategy::Spin);
                    lock.run(inside.body(key, awaits, 0)).await
                }
                88..90 => {
                    let lock = lock.hold_at_least(5 * MS);
                    lock.run(inside.body(key, awaits, 0)).await
                }
                90..92 => {
                    // This body takes longer than its lease.
                    let lock = lock.lease(20 * MS);
                    let late = async {
                        inside.body(key, 1, asked).await;
                        sleep(40 * MS).await;
                    };
                    lock.run(late).await
                }
                92..93 => {
                    lock.run(async {
                        inside.body(key, awaits, asked).await;
                        std::panic::panic_any(PANIC);
                    })
                    .await
                }
                _ => {
                    // Drops the call at a random instant.
                    let patience = Duration::from_micros(dice.below(3000));
                    let call = lock.run(inside.body(key, awaits, 0));
                    return tokio::time::timeout(patience, call).await.ok();
                }
            }
            .into()
        };
        let outcome = match AssertUnwindSafe(call).catch_unwind().await {
            Err(_) => &outcomes.panicked,
            Ok(None) => &outcomes.cancelled,
            Ok(Some(result)) => outcomes.of(&result, tries),
        };
        Outcomes::count(outcome);
    }

    /// Returns a random key: one of the few hot keys that all callers want, of the warm keys, or of the many cold keys,
    /// which are nearly always free. In a run with faults, also returns keys that an operator deletes from time to
    /// time.
    pub(crate) fn key(&self, dice: &mut Dice) -> u32 {
        let (from, count) = match dice.below(10) {
            0 => (0, HOT),
            1..4 => (HOT, WARM),
            4 if self.course == Course::Faults => (DELETED_FROM, WARM),
            _ => (HOT + WARM, COLD),
        };
        from + u32::try_from(dice.below(count.into())).unwrap_or(0)
    }

    /// Reports to the host the visits since the previous report, and the counts of all results so far.
    fn tell(&self) {
        let mut out = std::mem::take(
            &mut *self
                .out
                .lock()
                .expect("no thread panics while it holds this mutex"),
        );
        let _ = writeln!(out, "{}", self.outcomes.line());
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(&out).and_then(|()| stdout.flush());
    }
}
