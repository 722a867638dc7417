//! The way in: re-entry if an enclosing call is inside, else an attempt bounded by `wait`.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use lock_core::{
    backend::{Answer, Backend, BackendError, Leaving, Request},
    error::{BusyWith, LockError},
    key::{LockKey, LockName},
    lease::{Grant, LeaseTerms, Moment},
    options::Terms,
    owner::OwnerId,
};
use uuid::Uuid;

use crate::{
    client::Shared,
    entry::{Entered, Entry},
    hold::{Cover, HoldState},
    reentry::{self, Frame, SeveralLocks},
    stats::count,
};

/// How long one attempt that never queues may go unanswered.
const TRY_PATIENCE: Duration = Duration::from_secs(1);
/// How long leaving the queue may go unanswered at the end of `wait`.
const LEAVE_PATIENCE: Duration = Duration::from_millis(200);

/// What a caller wants, checked.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) terms: Terms,
}

impl Wanted {
    /// A new acquisition of it.
    pub(crate) fn request(&self) -> Request {
        Request {
            name: self.name.clone(),
            owner: OwnerId::from_u128(Uuid::new_v4().as_u128()),
            lease: self.terms.lease,
            wait: self.terms.wait,
        }
    }
}

/// Enters. The enclosing call is looked up here, at the first poll.
pub(crate) async fn enter(wanted: Wanted) -> Result<Entered, LockError> {
    counted(&wanted.shared, async {
        let entry = enter_one(&wanted, reentry::enclosing(), None).await?;
        Ok(Entered::one(entry).for_at_least(wanted.terms.hold_at_least))
    })
    .await
}

/// Runs what enters, unless the client is shut down, and counts what comes of it.
pub(crate) async fn counted(
    shared: &Arc<Shared>,
    entering: impl Future<Output = Result<Entered, LockError>>,
) -> Result<Entered, LockError> {
    // Counted before the look: shutting down either sees this call, or is seen by it.
    let _entering = shared.held.entering();
    let entered = if shared.closed.load(Ordering::Acquire) {
        Err(LockError::ShutDown)
    } else {
        entering.await
    };
    if let Err(error) = &entered {
        let counters = &shared.counters;
        match error {
            LockError::Busy { .. } => count(&counters.busy),
            LockError::Lost { .. } => {}
            _ => count(&counters.failed),
        }
        tracing::debug!(%error, "not acquired");
    }
    entered
}

/// Enters one lock from inside `enclosing`.
pub(crate) async fn enter_one(
    wanted: &Wanted,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Result<Entry, LockError> {
    let (shared, name) = (&wanted.shared, &wanted.name);
    let out_of_order = |frame: &Arc<Frame>| frame.is_out_of_order(shared, name, several.is_some());
    if !wanted.terms.wait.is_zero() && enclosing.as_ref().is_some_and(out_of_order) {
        let mut once = wanted.clone();
        once.terms.wait = Duration::ZERO;
        return match enter_now(&once, enclosing, several).await {
            Err(LockError::Busy { key, waited, .. }) => Err(LockError::Busy {
                key,
                waited,
                with: BusyWith::OutOfOrder,
            }),
            entered => entered,
        };
    }
    enter_now(wanted, enclosing, several).await
}

async fn enter_now(
    wanted: &Wanted,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Result<Entry, LockError> {
    let started = wanted.shared.backend.now();
    if let Some(frame) = enclosing
        .as_ref()
        .and_then(|frame| frame.find(&wanted.shared, &wanted.name))
        && let Some(entry) = enter_again(wanted, frame, enclosing.clone(), several).await?
    {
        return Ok(entry);
    }
    let grant = acquire(wanted, started).await?;
    Ok(begin(wanted, grant, enclosing, several))
}

/// A hold begins with its grant.
pub(crate) fn begin(
    wanted: &Wanted,
    grant: Grant,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Entry {
    let shared = &wanted.shared;
    count(&shared.counters.acquired);
    if grant.queued {
        count(&shared.counters.waited);
    }
    tracing::debug!(key = %wanted.key, token = %grant.token, queued = grant.queued, "acquired");
    let duty = HoldState::begin(
        shared.clone(),
        wanted.key.clone(),
        wanted.name.clone(),
        wanted.terms.lease,
        grant,
    );
    let frame = Frame::new(duty.hold().clone(), enclosing, None, several.cloned());
    Entry::began(duty, frame)
}

/// Enters the hold of an enclosing call, in turn with its siblings. `None` if that hold has ended.
async fn enter_again(
    wanted: &Wanted,
    frame: &Arc<Frame>,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Result<Option<Entry>, LockError> {
    let backend = &wanted.shared.backend;
    let started = backend.now();
    let deadline = started + wanted.terms.wait;
    let turn = bounded(backend, deadline, frame.turn().acquire_owned()).await;
    let turn = match turn {
        Some(turn) => turn.expect("a frame's semaphore is never closed"),
        None => return Err(busy(wanted, started, BusyWith::Sibling)),
    };
    let hold = &frame.hold;
    let Some(duty) = hold.enter_again() else {
        return Ok(None);
    };
    if let Some(lost) = hold.lost_error() {
        return Err(lost);
    }
    let cover = cover(wanted, hold, wanted.terms.lease).await?;
    if let Some(lost) = hold.lost_error() {
        return Err(lost);
    }
    count(&wanted.shared.counters.reentered);
    tracing::debug!(key = %wanted.key, token = %hold.token, "entered again");
    let frame = Frame::new(hold.clone(), enclosing, Some(turn), several.cloned());
    Ok(Some(Entry::again(duty, frame, cover)))
}

/// Makes the lease of a hold last for `lease` from now, within what is left of `wait`.
pub(crate) async fn cover(
    wanted: &Wanted,
    hold: &Arc<HoldState>,
    lease: LeaseTerms,
) -> Result<Option<Cover>, LockError> {
    let started = wanted.shared.backend.now();
    let patience = wanted.terms.wait.max(TRY_PATIENCE);
    let covering = hold.cover(lease);
    match bounded(&wanted.shared.backend, started + patience, covering).await {
        Some(Ok(cover)) => Ok(cover),
        Some(Err(error)) => Err(failed(wanted, started, error)),
        None => Err(unreachable(wanted, started)),
    }
}

/// Bounds what takes locks, `None` if it takes longer than `wait`, or than one attempt may.
pub(crate) async fn within_wait<F: Future>(
    wanted: &Wanted,
    started: Moment,
    taking: F,
) -> Option<F::Output> {
    let wait = wanted.terms.wait;
    let patience = if wait.is_zero() { TRY_PATIENCE } else { wait };
    bounded(&wanted.shared.backend, started + patience, taking).await
}

/// Acquires from the backend, within `wait`.
async fn acquire(wanted: &Wanted, started: Moment) -> Result<Grant, LockError> {
    let backend = &wanted.shared.backend;
    let mut attempt = backend.attempt(wanted.request());
    match within_wait(wanted, started, attempt.enter()).await {
        Some(Ok(Answer::Granted(grant))) => return Ok(grant),
        Some(Ok(Answer::Busy)) => return Err(busy_outside(wanted, started)),
        Some(Err(error)) => return Err(failed(wanted, started, error)),
        // One attempt stands in no queue. Dropped, it gives back what it may have got.
        None if wanted.terms.wait.is_zero() => return Err(unreachable(wanted, started)),
        None => {}
    }
    // Leaving the queue decides. Without an answer the attempt, dropped, goes on leaving behind our back.
    match bounded(backend, backend.now() + LEAVE_PATIENCE, attempt.leave()).await {
        Some(Ok(Leaving::Granted(grant))) => Ok(grant),
        Some(Ok(Leaving::Left)) => Err(busy_outside(wanted, started)),
        Some(Err(error)) => Err(failed(wanted, started, error)),
        None => Err(unreachable(wanted, started)),
    }
}

pub(crate) fn failed(wanted: &Wanted, started: Moment, error: BackendError) -> LockError {
    LockError::from_backend(
        error,
        &wanted.key,
        wanted.shared.backend.now().since(started),
    )
}

fn busy(wanted: &Wanted, started: Moment, with: BusyWith) -> LockError {
    LockError::Busy {
        key: wanted.key.clone(),
        waited: wanted.shared.backend.now().since(started),
        with,
    }
}

pub(crate) fn busy_outside(wanted: &Wanted, started: Moment) -> LockError {
    let with = if wanted.shared.held.contains(&wanted.name) {
        BusyWith::ThisProcess
    } else {
        BusyWith::AnotherProcess
    };
    busy(wanted, started, with)
}

pub(crate) fn unreachable(wanted: &Wanted, started: Moment) -> LockError {
    let backend = &wanted.shared.backend;
    LockError::Unreachable {
        key: wanted.key.clone(),
        waited: backend.now().since(started),
        detail: backend.trouble().unwrap_or_else(|| "no answer".into()),
    }
}

/// Bounds `future` by the backend's clock; `None` if `deadline` came first. What is ready at once needs no timer.
pub(crate) async fn bounded<F: Future>(
    backend: &Arc<dyn Backend>,
    deadline: Moment,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    if let Poll::Ready(output) =
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    {
        return Some(output);
    }
    let timer = backend.sleep_until(deadline);
    tokio::select! {
        biased;
        output = future => Some(output),
        () = timer => None,
    }
}
