//! The calls that the benchmark measures: reads, writes, and calls that take a permit.

use std::{future::Future, pin::Pin, time::Duration};

use lock_runtime::LockClient;

use crate::{
    candidates::{Cycle, LEASE, Seat, WAIT},
    waiters::{Visit, Window, sit_all},
};

/// The number of permits of each semaphore.
const PERMITS: u32 = 10;
/// With [`Calls::Mixed`], each task writes once in this number of turns.
const WRITES_ONCE_IN: usize = 20;

/// The time that a call with [`Calls::LongReaders`] or [`Calls::LongWriters`] stays inside.
const STAY: Duration = Duration::from_millis(1);

/// The lock or permit that one call acquires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    Permit,
}

/// The locks or permits that the calls of each task acquire. Only the readers and writers whose names begin with `Long` stay inside for a time,
/// and only Rust locks have them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Calls {
    Readers,
    Writers,
    LongReaders,
    LongWriters,
    Mixed,
    Permits,
}

impl Calls {
    /// Returns the name of these calls in the tables, and in the orders to `Family.java`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Readers => "readers",
            Self::Writers => "writers",
            Self::LongReaders => "readers of 1 ms",
            Self::LongWriters => "writers of 1 ms",
            Self::Mixed => "mixed",
            Self::Permits => "permits",
        }
    }

    /// Returns what a task acquires in the turn with this number. The first turn of the task with the index N has the
    /// number N, so that the tasks write at different times.
    pub(crate) fn mode(self, turn: usize) -> Mode {
        match self {
            Self::Writers | Self::LongWriters => Mode::Write,
            Self::Mixed if turn.is_multiple_of(WRITES_ONCE_IN) => Mode::Write,
            Self::Readers | Self::LongReaders | Self::Mixed => Mode::Read,
            Self::Permits => Mode::Permit,
        }
    }
}

/// A lock that has modes. Each task has its own clone, and all clones share a connection.
pub(crate) trait Modes: Clone + Send + Sync + 'static {
    /// Acquires the lock in this mode, runs a body, and releases the lock. Returns `false` if the lock was not acquired
    /// by the time `until`.
    fn call<F: Future<Output = ()> + Send>(
        &self,
        mode: Mode,
        key: &str,
        until: u64,
        body: F,
    ) -> impl Future<Output = bool> + Send;
}

impl Modes for LockClient {
    async fn call<F: Future<Output = ()> + Send>(
        &self,
        mode: Mode,
        key: &str,
        _: u64,
        body: F,
    ) -> bool {
        let lock = self.lock(key).wait(WAIT).lease(LEASE);
        let called = match mode {
            Mode::Read => lock.read().run(body).await,
            Mode::Write => lock.write().run(body).await,
            Mode::Permit => {
                let semaphore = self.semaphore(key, PERMITS).wait(WAIT).lease(LEASE);
                semaphore.run(body).await
            }
        };
        called.expect("the call of this project enters");
        true
    }
}

/// The clone of a lock that one task uses.
#[derive(Debug, Clone)]
struct Caller<L> {
    lock: L,
    calls: Calls,
    turn: usize,
}

impl<L: Modes> Cycle for Caller<L> {
    async fn cycle<F: Future<Output = ()> + Send>(
        &mut self,
        seat: &Seat,
        until: u64,
        body: F,
    ) -> bool {
        let mode = self.calls.mode(self.turn);
        self.turn += 1;
        let calls = self.calls;
        let body = async move {
            body.await;
            if matches!(calls, Calls::LongReaders | Calls::LongWriters) {
                tokio::time::sleep(STAY).await;
            }
        };
        self.lock.call(mode, &seat.key, until, body).await
    }
}

/// Runs one task for each seat, and returns the visits of each task.
pub(crate) type Sit =
    Box<dyn Fn(Calls, Vec<Seat>, Window) -> Pin<Box<dyn Future<Output = Vec<Vec<Visit>>>>>>;

/// Returns the function that runs the tasks under this lock.
pub(crate) fn sit_under<L: Modes>(lock: L) -> Sit {
    Box::new(move |calls, seats, window| {
        let lock = lock.clone();
        let sitting = seats.into_iter().enumerate().map(move |(turn, seat)| {
            let lock = lock.clone();
            (Caller { lock, calls, turn }, seat)
        });
        Box::pin(sit_all(sitting, window, None))
    })
}
