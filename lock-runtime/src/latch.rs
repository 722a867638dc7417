//! The latch: waits until several parts of some work are done, wherever they run.

use std::time::Duration;

use lock_core::{
    backend::{LatchStep, Round, RoundTerms},
    error::LockError,
    key::{LockKey, LockName},
    lease::{MAX_LEASE, MIN_LEASE},
    options::{MAX_PARTS, OptionsError, Strategy},
};

use crate::{acquire::one, guard::LockGuard, limits, lock::Lock, options::ClientHandle};

/// Waits until all parts of some work are done. The parts and those who wait can run in any process.
///
/// The first use begins a *round*, which lasts for the `life` that this use names. Each part counts itself down when it is
/// done, by its name: a part that is repeated after a crash counts once. If all parts are counted, the round is reached. If
/// its life ends before, the round has expired. Who comes later still sees the result, until as much time has passed again.
/// [`restart`](Self::restart) begins the next round.
///
/// The number of parts and the life of a round are those that its first use has named. A latch of no parts is reached at once,
/// and 100,000 parts are the most. If the server loses its data, it forgets the parts that were counted: the round is then not
/// reached, and those who wait for it see that it has expired. A Redlock and
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

impl From<&Round> for LatchStatus {
    fn from(round: &Round) -> Self {
        Self {
            round: round.generation,
            parts: round.parts,
            left: round.parts.saturating_sub(round.counted),
            remaining: round.remaining,
        }
    }
}

/// Returns how the round with this number has ended, or `None` if it is open. A round that the server has forgotten has expired.
fn end_of(generation: u64, present: Option<&Round>) -> Option<Latched> {
    let is_reached = match present {
        Some(present) if present.generation == generation => {
            let status = LatchStatus::from(present);
            if !status.is_reached() && !status.is_expired() {
                return None;
            }
            status.is_reached()
        }
        Some(present) => present.earlier.contains(&(generation, true)),
        None => false,
    };
    Some(match is_reached {
        true => Latched::Reached,
        false => Latched::Expired,
    })
}

impl Latch {
    pub(crate) fn new(client: ClientHandle, name: &str, parts: u32, life: Duration) -> Self {
        let key = LockKey::behind("latch:", name);
        let lock = Lock::new(client, key).read().label("latch");
        Self {
            lock: lock.replicas(0).strategy(Strategy::Handoff),
            terms: RoundTerms { parts, life },
        }
    }

    /// Counts a part that is done in the present round, unless it is counted already. The name of a part is not empty, and has at
    /// most 1,024 bytes. Returns the present round afterwards. If the round was reached before, or has expired, nothing is counted:
    /// see [`is_reached`](LatchStatus::is_reached) and [`is_expired`](LatchStatus::is_expired). If somebody begins the next round meanwhile, the part counts in neither of
    /// them unless it was counted before. Waits for the answers of the server for as long as the client's `wait`.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status), and [`LockError::InvalidOptions`] if the life of the
    /// latch is shorter than 10 ms or longer than 24 hours, if it has more than 100,000 parts, if the name of the part is empty or
    /// too long, or if the client's backend has no latches.
    pub async fn count_down(&self, part: impl AsRef<str>) -> Result<LatchStatus, LockError> {
        let part = LockKey::new(part.as_ref()).map_err(|_| OptionsError::PartOutOfRange)?;
        let joined = self.join(&self.lock).await?;
        let step = LatchStep::Count(joined.generation, part);
        let counted = self.ask(&self.lock, Some(joined.generation), step).await?;
        Ok(LatchStatus::from(&counted.unwrap_or(joined)))
    }

    /// Waits for the end of the present round, but at most for `wait`, which is 24 hours at most. With a `wait` of zero, only
    /// looks.
    ///
    /// # Errors
    /// Returns the same errors as [`count_down`](Self::count_down).
    pub async fn wait(&self, wait: Duration) -> Result<Latched, LockError> {
        let backend = &self.lock.settings.client.shared.backend;
        let until = backend.now() + wait;
        let answers = |left: Duration| self.lock.clone().wait(left.max(limits::TRY_PATIENCE));
        let generation = self.join(&answers(wait)).await?.generation;
        let mut earliest = backend.now();
        loop {
            let left = until.since(backend.now());
            let step = LatchStep::Keep(generation);
            let round = self.ask(&answers(left), Some(generation), step).await?;
            if let Some(end) = end_of(generation, round.as_ref()) {
                return Ok(end);
            }
            let left = until.since(backend.now());
            if left.is_zero() {
                return Ok(Latched::TimedOut);
            }
            // If the server has lost the lock, or lets nobody wait, the next request is not sent at once.
            if backend.now() < earliest {
                backend.sleep_until(earliest).await;
                continue;
            }
            earliest = backend.now() + limits::LATCH_PAUSE.min(left);
            // While the round is open, its lock is kept, and readers wait for it. They protect nothing, so they are nested in no
            // other call.
            let lock = self.lock.clone().lease(limits::LATCH_LEASE);
            let mut spec = lock.wait(left.min(limits::LATCH_LOOK)).spec()?;
            spec.name = self.lock_of(generation)?;
            match one::enter(&spec, None).await {
                Ok(entered) => drop(LockGuard::new(entered).release().await),
                Err(LockError::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins the next round, unless `round` is not the present round: so several callers that end the same round begin one
    /// round together. The number of a round is known from [`count_down`](Self::count_down) and [`status`](Self::status). A
    /// caller that reads it after [`wait`](Self::wait) can read that of the next round already. Those who still wait for a round that was not reached get [`Latched::Expired`]. Returns the present
    /// round.
    ///
    /// # Errors
    /// Returns the same errors as [`count_down`](Self::count_down).
    pub async fn restart(&self, round: u64) -> Result<LatchStatus, LockError> {
        self.check()?;
        let step = LatchStep::Restart(self.terms, round);
        let restarted = self.ask(&self.lock, Some(round), step).await?;
        let present = restarted.expect("this step begins a round if there is none");
        Ok(LatchStatus::from(&present))
    }

    /// Reads the present round; `None` if no round has begun, or if the last one is forgotten.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn status(&self) -> Result<Option<LatchStatus>, LockError> {
        let round = self.read().await?;
        Ok(round.as_ref().map(LatchStatus::from))
    }

    /// Returns the number of callers that wait for the present round.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn waiting(&self) -> Result<usize, LockError> {
        let Some(round) = self.read().await? else {
            return Ok(0);
        };
        let of_round = self.lock_of(round.generation)?;
        let asking = self
            .lock
            .ask(|backend, _| Box::pin(async move { backend.status(&of_round).await }));
        Ok(asking.await?.waiters)
    }

    async fn read(&self) -> Result<Option<Round>, LockError> {
        let lock = self.lock.clone().wait(Duration::ZERO);
        self.ask(&lock, None, LatchStep::Read).await
    }

    /// Reads the present round, and begins the first one if there is none.
    async fn join(&self, lock: &Lock) -> Result<Round, LockError> {
        self.check()?;
        let joined = self.ask(lock, None, LatchStep::Join(self.terms)).await?;
        Ok(joined.expect("this step begins a round if there is none"))
    }

    /// Checks that the client may change locks and has readers, and that the terms are in range.
    fn check(&self) -> Result<(), LockError> {
        self.lock.spec()?;
        let RoundTerms { parts, life } = self.terms;
        if parts > MAX_PARTS || !(MIN_LEASE..=MAX_LEASE).contains(&life) {
            return Err(OptionsError::LatchOutOfRange.into());
        }
        Ok(())
    }

    /// Returns the name of the lock for which those wait who wait for this round. It lies in the hash slot of the latch.
    fn lock_of(&self, generation: u64) -> Result<LockName, LockError> {
        let name = self.lock.spec_name()?;
        Ok(LockName::stored(&format!("{name}:{generation}")))
    }

    /// Carries out a step. Waits for the answer for as long as `lock` waits.
    async fn ask(
        &self,
        lock: &Lock,
        generation: Option<u64>,
        step: LatchStep,
    ) -> Result<Option<Round>, LockError> {
        let of_round = generation.map(|round| self.lock_of(round)).transpose()?;
        let asking = lock.ask(|backend, name| {
            Box::pin(async move { backend.latch(name, of_round.as_ref(), step).await })
        });
        asking.await
    }
}
