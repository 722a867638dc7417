//! The latch: waits until several parts of some work are done, wherever they run.

use std::time::Duration;

use lock_core::{
    backend::{LatchStep, Round, RoundTerms},
    error::LockError,
    key::LockKey,
    lease::{MAX_LEASE, MIN_LEASE},
    options::OptionsError,
};

use crate::{limits, lock::Lock, options::ClientHandle};

/// Waits until all parts of some work are done. The parts and those who wait can run in any process.
///
/// The first use begins a *round*, which lasts for the `life` that this use names. Each part counts itself down when it is
/// done, by its name: a part that is repeated after a crash counts once. If all parts are counted, the round is reached. If
/// its life ends before, the round has expired. Who comes later still sees the result, until as much time has passed again.
/// [`restart`](Self::restart) begins the next round.
///
/// The number of parts and the life of a round are those that its first use has named. A latch of no parts is reached at once. The
/// latch `NAME` is stored under the key
/// `latch:NAME`, so a lock with the key `NAME` is something else. If the server loses its data, it forgets the parts that were
/// counted: the round is then not reached, and those who wait for it see that it expires. A Redlock and
/// [Redisson's layout](crate::Layout::Redisson) refuse latches, with
/// [`NoReaders`](crate::OptionsError::NoReaders).
///
/// # Fairness
/// All who wait for a round continue together: on one server, those of one process get one message.
///
/// # Cancel safety
/// [`wait`](Self::wait) can be dropped at any `.await`. If another method is dropped, it is unknown whether it has had an effect.
/// It can be called again, and then has its effect once.
///
/// ```
/// use std::time::Duration;
/// use lock_runtime::{Latched, LockClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?; // in a service: redis://…
/// let imported = client.latch("import:2026-11", 2, Duration::from_secs(3600));
///
/// imported.count_down("customers").await?;
/// imported.count_down("customers").await?; // a repeated part counts once
/// assert_eq!(imported.wait(Duration::from_millis(10)).await?, Latched::TimedOut);
/// imported.count_down("orders").await?;
/// assert_eq!(imported.wait(Duration::from_secs(60)).await?, Latched::Reached);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a latch does nothing until it is used"]
pub struct Latch {
    lock: Lock,
    terms: RoundTerms,
}

/// The result of waiting for a round of a [`Latch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Latched {
    /// All parts were counted.
    Reached,
    /// The round was over before all parts were counted: its life has ended, or somebody has begun the next round.
    Expired,
    /// The wait was over first.
    TimedOut,
}

/// A round of a [`Latch`]. It can change before the caller reads this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatchStatus {
    /// The number of the round. The number of a later round is higher.
    pub round: u64,
    /// The number of parts.
    pub parts: u32,
    /// The number of parts that are not counted yet.
    pub left: u32,
    /// The time left of the round.
    pub remaining: Duration,
}

impl LatchStatus {
    /// Returns whether all parts are counted.
    #[must_use]
    pub const fn is_reached(&self) -> bool {
        self.left == 0
    }

    /// Returns whether the life of the round has ended before all parts were counted.
    #[must_use]
    pub const fn is_expired(&self) -> bool {
        self.left > 0 && self.remaining.is_zero()
    }
}

impl From<Round> for LatchStatus {
    fn from(round: Round) -> Self {
        Self {
            round: round.generation,
            parts: round.parts,
            left: round.parts.saturating_sub(round.counted),
            remaining: round.remaining,
        }
    }
}

/// Returns how the round with this number has ended, or `None` if it is open.
fn end_of(generation: u64, present: &Round) -> Option<Latched> {
    let is_reached = if present.generation == generation {
        let status = LatchStatus::from(*present);
        if !status.is_reached() && !status.is_expired() {
            return None;
        }
        status.is_reached()
    } else {
        present.before == Some((generation, true))
    };
    Some(match is_reached {
        true => Latched::Reached,
        false => Latched::Expired,
    })
}

impl Latch {
    pub(crate) fn new(client: ClientHandle, name: &str, parts: u32, life: Duration) -> Self {
        let key = LockKey::behind("latch:", name);
        Self {
            lock: Lock::new(client, key).read().label("latch"),
            terms: RoundTerms { parts, life },
        }
    }

    /// Counts a part that is done in the present round, unless it is counted already. The name of a part is not empty, and has at
    /// most 1,024 bytes. Returns the round afterwards. If the round is over, nothing is counted, and
    /// [`is_expired`](LatchStatus::is_expired) says so. Waits for the answer of the server for as long as the client's `wait`.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status), and [`LockError::InvalidOptions`] if the life of the
    /// latch is shorter than 10 ms or longer than 24 hours, or if the client's backend has no latches.
    pub async fn count_down(&self, part: impl AsRef<str>) -> Result<LatchStatus, LockError> {
        let part = LockKey::new(part.as_ref())?;
        let step = LatchStep::Count(self.terms, part);
        let counted = self.change(&self.lock, step);
        counted.await.map(LatchStatus::from)
    }

    /// Waits for the end of the present round, but at most for `wait`. With a `wait` of zero, only looks.
    ///
    /// # Errors
    /// Returns the same errors as [`count_down`](Self::count_down).
    pub async fn wait(&self, wait: Duration) -> Result<Latched, LockError> {
        let backend = &self.lock.settings.client.shared.backend;
        let until = backend.now() + wait;
        let look = async |left: Duration| {
            let lock = self.lock.clone().wait(left.max(limits::TRY_PATIENCE));
            self.change(&lock, LatchStep::Join(self.terms)).await
        };
        let mut round = look(wait).await?;
        let generation = round.generation;
        loop {
            if let Some(end) = end_of(generation, &round) {
                return Ok(end);
            }
            let left = until.since(backend.now());
            if left.is_zero() {
                return Ok(Latched::TimedOut);
            }
            // While the round is open, its lock is kept, and readers wait for it.
            let waiting = self.lock.clone().wait(left.min(limits::LATCH_LOOK));
            let entered = match waiting.lease(limits::LATCH_LEASE).acquire().await {
                Ok(guard) => Some(guard.release().await),
                Err(LockError::Busy { .. }) => None,
                Err(error) => return Err(error),
            };
            round = look(until.since(backend.now())).await?;
            if entered.is_some() && end_of(generation, &round).is_none() {
                // The server had lost the lock, or those who waited for an earlier round have not left yet.
                backend
                    .sleep_until(backend.now() + limits::LATCH_PAUSE)
                    .await;
            }
        }
    }

    /// Begins the next round, unless `round` is not the present round: so several callers that end the same round begin one
    /// round together. Those who still wait for a round that was not reached get [`Latched::Expired`]. Returns the present
    /// round.
    ///
    /// # Errors
    /// Returns the same errors as [`count_down`](Self::count_down).
    pub async fn restart(&self, round: u64) -> Result<LatchStatus, LockError> {
        let step = LatchStep::Restart(self.terms, round);
        let restarted = self.change(&self.lock, step);
        restarted.await.map(LatchStatus::from)
    }

    /// Reads the present round; `None` if no round has begun, or if the last one is forgotten.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn status(&self) -> Result<Option<LatchStatus>, LockError> {
        let lock = self.lock.clone().wait(Duration::ZERO);
        let asking = lock.ask(|backend, name| backend.latch(name, LatchStep::Read));
        Ok(asking.await?.map(LatchStatus::from))
    }

    /// Carries out a step that begins a round if there is none. Waits for the answer for as long as `lock` waits.
    async fn change(&self, lock: &Lock, step: LatchStep) -> Result<Round, LockError> {
        lock.spec()?; // the client may change locks, and has readers
        if !(MIN_LEASE..=MAX_LEASE).contains(&self.terms.life) {
            return Err(OptionsError::LifeOutOfRange.into());
        }
        let asking = lock.ask(|backend, name| backend.latch(name, step));
        let round = asking.await?;
        Ok(round.expect("this step begins a round if there is none"))
    }
}
