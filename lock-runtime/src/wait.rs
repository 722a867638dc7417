//! The way in: re-entry if an enclosing call is inside, else an attempt bounded by `wait`.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Answer, Backend, BackendError, BoxFuture, Leaving, Request},
    error::{BusyWith, LockError},
    key::{LockKey, LockName},
    lease::{Grant, Moment},
    options::{Strategy, Terms},
    owner::OwnerId,
};
use pin_project_lite::pin_project;
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
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_millis(200);

/// What a caller wants, checked.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: LockKey,
    pub(crate) name: LockName,
    pub(crate) terms: Terms,
}

impl Wanted {
    /// A new acquisition of it, which waits so long.
    pub(crate) fn request(&self, wait: Duration) -> Request {
        Request {
            name: self.name.clone(),
            owner: OwnerId::from_u128(Uuid::new_v4().as_u128()),
            lease: self.terms.lease,
            wait,
            strategy: self.terms.strategy,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.shared.backend.now()
    }
}

/// The time of one call, whatever it does in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    started: Moment,
    wait: Duration,
}

impl Budget {
    /// Of a call that starts now.
    pub(crate) fn of(wanted: &Wanted) -> Self {
        Self {
            started: wanted.now(),
            wait: wanted.terms.wait,
        }
    }

    /// Whether the call waits at all.
    pub(crate) fn waits(self) -> bool {
        !self.wait.is_zero()
    }

    /// Until when it waits for others to leave.
    pub(crate) fn waits_until(self) -> Moment {
        self.started + self.wait
    }

    /// Until when a server may answer.
    pub(crate) fn answers_until(self) -> Moment {
        self.started + self.wait.max(TRY_PATIENCE)
    }

    /// Until when one attempt, or what ends a wait, that starts now may be answered.
    pub(crate) fn grace(self, now: Moment) -> Moment {
        self.answers_until().max(now + LEAVE_PATIENCE)
    }
}

/// Enters. The enclosing call is looked up here, at the first poll.
pub(crate) async fn enter(wanted: &Wanted) -> Result<Entered, LockError> {
    let entering = pin!(async {
        let budget = Budget::of(wanted);
        let entry = enter_one(wanted, &budget, reentry::enclosing(), None).await?;
        Ok(Entered::one(entry).for_at_least(wanted.terms.hold_at_least))
    });
    counted(&wanted.shared, entering).await
}

/// Runs what enters, unless the client is shut down, and counts what comes of it.
pub(crate) async fn counted(
    shared: &Arc<Shared>,
    // Pinned: a future that is given away whole is kept twice.
    entering: Pin<&mut impl Future<Output = Result<Entered, LockError>>>,
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
    budget: &Budget,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Result<Entry, LockError> {
    let out_of_order =
        |frame: &Arc<Frame>| frame.is_out_of_order(&wanted.shared, &wanted.name, several.is_some());
    let once = !budget.waits();
    let out_of_order = !once && enclosing.as_ref().is_some_and(out_of_order);
    let entered = enter_now(wanted, budget, once || out_of_order, enclosing, several).await;
    match entered {
        Err(LockError::Busy { key, waited, .. }) if out_of_order => Err(LockError::Busy {
            key,
            waited,
            with: BusyWith::OutOfOrder,
        }),
        entered => entered,
    }
}

async fn enter_now(
    wanted: &Wanted,
    budget: &Budget,
    once: bool,
    enclosing: Option<Arc<Frame>>,
    several: Option<&Arc<SeveralLocks>>,
) -> Result<Entry, LockError> {
    let inside = enclosing
        .as_ref()
        .and_then(|frame| frame.find(&wanted.shared, &wanted.name));
    if let Some(frame) = inside {
        let waits_until = if once {
            wanted.now()
        } else {
            budget.waits_until()
        };
        let turn = frame.turn().acquire_owned();
        let Some(turn) = bounded(&wanted.shared.backend, waits_until, turn).await else {
            return Err(busy(wanted, *budget, BusyWith::Sibling));
        };
        let turn = turn.expect("a frame's semaphore is never closed");
        let (hold, outer) = (&frame.hold, enclosing.clone());
        // If that hold has ended, the lock is acquired like any other.
        if let Some(duty) = hold.enter_again() {
            // Boxed: who waits for others does not need it.
            let cover = Box::pin(enter_again(wanted, budget, hold)).await?;
            let frame = Frame::new(hold.clone(), outer, Some(turn), several.cloned());
            return Ok(Entry::again(duty, frame, cover));
        }
    }
    let grant = acquire(wanted, budget, once).await?;
    Ok(begin(wanted, grant, enclosing, several))
}

/// Enters a hold of an enclosing call, whose lease shall last long enough.
async fn enter_again(
    wanted: &Wanted,
    budget: &Budget,
    hold: &Arc<HoldState>,
) -> Result<Option<Cover>, LockError> {
    hold.not_lost()?;
    let until = budget.answers_until();
    let cover = answered(
        wanted,
        *budget,
        until,
        hold.clone().cover(wanted.terms.lease),
    )
    .await?;
    hold.not_lost()?;
    count(&wanted.shared.counters.reentered);
    tracing::debug!(key = %wanted.key, token = %hold.token, "entered again");
    Ok(cover)
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

/// What the backend answers to a renewal, until then.
pub(crate) fn answered<'a, T>(
    wanted: &'a Wanted,
    budget: Budget,
    until: Moment,
    renewal: impl Future<Output = Result<T, BackendError>> + 'a,
) -> impl Future<Output = Result<T, LockError>> + 'a {
    bounded(&wanted.shared.backend, until, renewal).map(move |answer| match answer {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) => Err(failed(wanted, budget, error)),
        None => Err(unreachable(wanted, budget)),
    })
}

/// Acquires from the backend.
async fn acquire(wanted: &Wanted, budget: &Budget, once: bool) -> Result<Grant, LockError> {
    let backend = &wanted.shared.backend;
    let now = backend.now();
    let (wait, until) = if once {
        let patience = now + TRY_PATIENCE;
        (Duration::ZERO, budget.answers_until().min(patience))
    } else {
        let until = budget.waits_until();
        (until.since(now), until)
    };
    if wait.is_zero() && !once {
        return Err(busy_outside(wanted, *budget));
    }
    if wanted.terms.strategy == Strategy::Spin && !once {
        return Box::pin(spin(wanted, budget)).await;
    }
    let mut attempt = backend.attempt(wanted.request(wait));
    match bounded(backend, until, attempt.enter()).await {
        Some(Ok(Answer::Granted(grant))) => return Ok(grant),
        Some(Ok(Answer::Busy)) => return Err(busy_outside(wanted, *budget)),
        Some(Err(error)) => return Err(failed(wanted, *budget, error)),
        // One attempt stands in no queue. Dropped, it gives back what it may have got.
        None if once => return Err(unreachable(wanted, *budget)),
        None => {}
    }
    // Leaving the queue decides. Without an answer the attempt, dropped, goes on leaving behind our back.
    match bounded(backend, backend.now() + LEAVE_PATIENCE, attempt.leave()).await {
        Some(Ok(Leaving::Granted(grant))) => Ok(grant),
        Some(Ok(Leaving::Left)) => Err(busy_outside(wanted, *budget)),
        Some(Err(error)) => Err(failed(wanted, *budget, error)),
        None => Err(unreachable(wanted, *budget)),
    }
}

/// Tries, sleeps, and tries again.
async fn spin(wanted: &Wanted, budget: &Budget) -> Result<Grant, LockError> {
    let backend = &wanted.shared.backend;
    let deadline = budget.waits_until();
    let mut failed_tries = 0;
    let mut answers = false;
    loop {
        let began = backend.now();
        let until = deadline.min(began + TRY_PATIENCE);
        let mut attempt = backend.attempt(wanted.request(Duration::ZERO));
        answers = match bounded(backend, until, attempt.enter()).await {
            Some(Ok(Answer::Granted(grant))) => {
                let queued = failed_tries > 0;
                return Ok(Grant { queued, ..grant });
            }
            Some(Ok(Answer::Busy)) => true,
            Some(Err(BackendError::Unreachable(_))) => false,
            // One that the deadline cut short says nothing.
            None => answers && backend.now().since(began) < LEAVE_PATIENCE,
            Some(Err(error)) => return Err(failed(wanted, *budget, error)),
        };
        failed_tries += 1;
        let chance = Uuid::new_v4().as_fields().0;
        let next = backend.now() + wanted.terms.backoff.pause(failed_tries, chance);
        backend.sleep_until(next.min(deadline)).await;
        if next >= deadline {
            return Err(if answers {
                busy_outside(wanted, *budget)
            } else {
                unreachable(wanted, *budget)
            });
        }
    }
}

pub(crate) fn failed(wanted: &Wanted, budget: Budget, error: BackendError) -> LockError {
    LockError::from_backend(error, &wanted.key, wanted.now().since(budget.started))
}

fn busy(wanted: &Wanted, budget: Budget, with: BusyWith) -> LockError {
    LockError::Busy {
        key: wanted.key.clone(),
        waited: wanted.now().since(budget.started),
        with,
    }
}

pub(crate) fn busy_outside(wanted: &Wanted, budget: Budget) -> LockError {
    let with = if wanted.shared.held.contains(&wanted.name) {
        BusyWith::ThisProcess
    } else {
        BusyWith::AnotherProcess
    };
    busy(wanted, budget, with)
}

pub(crate) fn unreachable(wanted: &Wanted, budget: Budget) -> LockError {
    let trouble = wanted.shared.backend.trouble();
    LockError::Unreachable {
        key: wanted.key.clone(),
        waited: wanted.now().since(budget.started),
        detail: trouble.unwrap_or_else(|| "no answer".into()),
    }
}

/// Bounds `future` by the backend's clock; `None` if `deadline` came first. What is ready at once needs no timer.
pub(crate) fn bounded<F: Future>(
    backend: &Arc<dyn Backend>,
    deadline: Moment,
    future: F,
) -> Bounded<'_, F> {
    Bounded {
        backend,
        deadline,
        future,
        timer: None,
    }
}

pin_project! {
    /// The future of [`bounded`].
    pub(crate) struct Bounded<'a, F> {
        backend: &'a Arc<dyn Backend>,
        deadline: Moment,
        #[pin]
        future: F,
        timer: Option<BoxFuture<'static, ()>>,
    }
}

impl<F: Future> Future for Bounded<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let (backend, deadline) = (&**this.backend, *this.deadline);
        let timer = this
            .timer
            .get_or_insert_with(|| backend.sleep_until(deadline));
        timer.as_mut().poll(cx).map(|()| None)
    }
}
