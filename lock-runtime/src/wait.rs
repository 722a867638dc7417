//! The way in: re-entry if an enclosing call is inside, else an attempt bounded by `wait`.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use lock_core::{
    backend::{Answer, Backend, Leaving, Request},
    error::{BusyWith, LockError},
    key::{LockKey, LockName},
    lease::{Grant, Moment},
    options::Terms,
    owner::OwnerId,
};
use uuid::Uuid;

use crate::{
    client::Shared,
    hold::{Cover, EntryDuty, HoldState},
    reentry::{self, Frame},
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

/// One entered call. Dropped, it leaves in the background.
#[derive(Debug)]
pub(crate) struct Entry {
    // In the order in which they end: the demand for renewal, the entry itself, the frame with the turn among siblings.
    cover: Option<Cover>,
    duty: EntryDuty,
    frame: Arc<Frame>,
}

impl Entry {
    pub(crate) fn hold(&self) -> &Arc<HoldState> {
        self.duty.hold()
    }

    /// What those nested in this entry see around them.
    pub(crate) fn frame(&self) -> &Arc<Frame> {
        &self.frame
    }

    /// Leaves, and releases if nobody else is inside.
    pub(crate) async fn leave(self) {
        drop(self.cover);
        self.duty.leave().await;
        drop(self.frame);
    }
}

/// Enters. The enclosing call is looked up here, at the first poll.
pub(crate) async fn enter(wanted: Wanted) -> Result<Entry, LockError> {
    let started = wanted.shared.backend.now();
    let entered = try_enter(&wanted, started).await;
    if let Err(error) = &entered {
        let counters = &wanted.shared.counters;
        match error {
            LockError::Busy { .. } => count(&counters.busy),
            LockError::Lost { .. } => {}
            _ => count(&counters.failed),
        }
        tracing::debug!(key = %wanted.key, %error, "not acquired");
    }
    entered
}

async fn try_enter(wanted: &Wanted, started: Moment) -> Result<Entry, LockError> {
    let shared = &wanted.shared;
    // Counted before the look: shutting down either sees this call, or is seen by it.
    let _entering = shared.held.entering();
    if shared.closed.load(Ordering::Acquire) {
        return Err(LockError::ShutDown);
    }
    let enclosing = reentry::enclosing();
    if let Some(frame) = enclosing
        .as_ref()
        .and_then(|frame| frame.find(shared, &wanted.name))
        && let Some(entry) = enter_again(wanted, frame, enclosing.clone(), started).await?
    {
        return Ok(entry);
    }
    let grant = acquire(wanted, started).await?;
    let counters = &shared.counters;
    count(&counters.acquired);
    if grant.queued {
        count(&counters.waited);
    }
    tracing::debug!(key = %wanted.key, token = %grant.token, queued = grant.queued, "acquired");
    let duty = HoldState::begin(
        shared.clone(),
        wanted.key.clone(),
        wanted.name.clone(),
        wanted.terms.lease,
        grant,
    );
    let frame = Frame::new(duty.hold().clone(), enclosing, None);
    Ok(Entry {
        cover: None,
        duty,
        frame,
    })
}

/// Enters the hold of an enclosing call, in turn with its siblings. `None` if that hold has ended.
async fn enter_again(
    wanted: &Wanted,
    frame: &Arc<Frame>,
    enclosing: Option<Arc<Frame>>,
    started: Moment,
) -> Result<Option<Entry>, LockError> {
    let backend = &wanted.shared.backend;
    let deadline = started + wanted.terms.wait;
    let turn = bounded(backend, deadline, frame.turn().acquire_owned()).await;
    let turn = match turn {
        Some(turn) => turn.expect("a frame's semaphore is never closed"),
        None => return Err(busy(wanted, started, BusyWith::Sibling)),
    };
    let hold = &frame.hold;
    let lost = || {
        hold.loss().map(|reason| LockError::Lost {
            key: wanted.key.clone(),
            token: hold.token,
            reason,
        })
    };
    let Some(duty) = hold.enter_again() else {
        return Ok(None);
    };
    if let Some(lost) = lost() {
        return Err(lost);
    }
    let deadline = deadline.max(started + TRY_PATIENCE);
    let cover = match bounded(backend, deadline, hold.cover(wanted.terms.lease)).await {
        Some(cover) => cover.map_err(|error| {
            LockError::from_backend(error, &wanted.key, backend.now().since(started))
        })?,
        None => return Err(unreachable(wanted, started)),
    };
    if let Some(lost) = lost() {
        return Err(lost);
    }
    count(&wanted.shared.counters.reentered);
    tracing::debug!(key = %wanted.key, token = %hold.token, "entered again");
    let frame = Frame::new(hold.clone(), enclosing, Some(turn));
    Ok(Some(Entry { cover, duty, frame }))
}

/// Acquires from the backend, within `wait`.
async fn acquire(wanted: &Wanted, started: Moment) -> Result<Grant, LockError> {
    let backend = &wanted.shared.backend;
    let wait = wanted.terms.wait;
    let mut attempt = backend.attempt(Request {
        name: wanted.name.clone(),
        owner: OwnerId::from_u128(Uuid::new_v4().as_u128()),
        lease: wanted.terms.lease,
        wait,
    });
    let patience = if wait.is_zero() { TRY_PATIENCE } else { wait };
    let failed = |error| LockError::from_backend(error, &wanted.key, backend.now().since(started));
    match bounded(backend, started + patience, attempt.enter()).await {
        Some(Ok(Answer::Granted(grant))) => return Ok(grant),
        Some(Ok(Answer::Busy)) => return Err(busy_outside(wanted, started)),
        Some(Err(error)) => return Err(failed(error)),
        // One attempt stands in no queue. Dropped, it gives back what it may have got.
        None if wait.is_zero() => return Err(unreachable(wanted, started)),
        None => {}
    }
    // Leaving the queue decides. Without an answer the attempt, dropped, goes on leaving behind our back.
    match bounded(backend, backend.now() + LEAVE_PATIENCE, attempt.leave()).await {
        Some(Ok(Leaving::Granted(grant))) => Ok(grant),
        Some(Ok(Leaving::Left)) => Err(busy_outside(wanted, started)),
        Some(Err(error)) => Err(failed(error)),
        None => Err(unreachable(wanted, started)),
    }
}

fn busy(wanted: &Wanted, started: Moment, with: BusyWith) -> LockError {
    LockError::Busy {
        key: wanted.key.clone(),
        waited: wanted.shared.backend.now().since(started),
        with,
    }
}

fn busy_outside(wanted: &Wanted, started: Moment) -> LockError {
    let with = if wanted.shared.held.contains(&wanted.name) {
        BusyWith::ThisProcess
    } else {
        BusyWith::AnotherProcess
    };
    busy(wanted, started, with)
}

fn unreachable(wanted: &Wanted, started: Moment) -> LockError {
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
