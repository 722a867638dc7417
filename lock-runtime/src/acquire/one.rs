//! Acquires one lock: by re-entry if an enclosing call holds the lock, otherwise by an attempt that takes at most
//! `wait`.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Holder, Leaving},
    error::{BusyWith, HeldBy, LockError},
    lease::{Grant, Moment, claim_after},
    options::{Mode, OptionsError, Strategy},
};

use crate::{
    acquire::{
        deadline::{answered, bounded, unless_shut_down},
        entry::{Entered, Entry},
        record::CallRecord,
        reentry::Frame,
        replicas::{check_nested, with_replicas},
        spec::{AcquireSpec, Budget, busy_outside, busy_with_sibling, failed, too_late},
    },
    background::{FORKED, Polled, is_forked},
    events::{TARGET, count},
    lease::{
        hold::{HoldState, RenewalDemand},
        release::EntryTicket,
    },
};

/// Enters a lock for a call nested in `enclosing`.
pub(crate) async fn enter(
    spec: &AcquireSpec,
    enclosing: Option<&Arc<Frame>>,
) -> Result<Entered, LockError> {
    let entering = pin!(async {
        check_nested(std::slice::from_ref(spec), enclosing)?;
        let budget = Budget::of(spec);
        let entry = enter_one(spec, &budget, enclosing, false).await?;
        Ok(Entered::one(entry).for_at_least(spec.terms.hold_at_least))
    });
    let (entered, record) = counted(std::slice::from_ref(spec), entering).await?;
    Ok(entered.recorded_by(record))
}

/// Runs `entering`, which enters the locks of `specs`. Counts and logs a failure. Returns the output of `entering`, and
/// the record (the spans and metrics) of the call.
pub(crate) async fn counted<T>(
    specs: &[AcquireSpec],
    // `entering` is pinned, because a future that is passed by value would be stored twice in the caller's future.
    entering: Pin<&mut impl Future<Output = Result<T, LockError>>>,
) -> Result<(T, CallRecord), LockError> {
    let shared = &specs[0].shared;
    if !shared.backend.maintains_leases() && is_forked() {
        return Err(LockError::Unreachable {
            key: specs[0].key.clone(),
            waited: Duration::ZERO,
            detail: FORKED.into(),
        });
    }
    let mut record = CallRecord::begin(specs);
    // The call is registered before it asks the backend for a lock, and `unless_shut_down` checks for a shutdown before
    // the request is sent. So either the shutdown sees this call, or this call sees the shutdown.
    let _entering = shared.registry.entering();
    let entered = record.acquiring(entering).await;
    if let Err(error) = &entered {
        record.failed(error);
        let counters = &shared.counters;
        match error {
            LockError::Busy { .. } => count(&counters.busy),
            LockError::Lost { .. } => {}
            _ => count(&counters.failed),
        }
        tracing::debug!(target: TARGET, %error, "lock not acquired");
    }
    Ok((entered?, record))
}

/// Enters one lock of a call nested in `enclosing`, without counting a failure. Makes only one try if a wait for the
/// lock could cause a deadlock.
pub(crate) async fn enter_one(
    spec: &AcquireSpec,
    budget: &Budget,
    enclosing: Option<&Arc<Frame>>,
    is_one_of_several: bool,
) -> Result<Entry, LockError> {
    let out_of_order =
        |frame: &Arc<Frame>| frame.is_out_of_order(&spec.shared, &spec.name, is_one_of_several);
    let once = !budget.waits();
    let out_of_order = !once && enclosing.is_some_and(out_of_order);
    let once = once || out_of_order;
    let entered = enter_now(spec, budget, once, enclosing, is_one_of_several).await;
    match entered {
        Err(LockError::Busy {
            key,
            waited,
            held_by,
            ..
        }) if out_of_order => Err(LockError::Busy {
            key,
            waited,
            with: BusyWith::OutOfOrder,
            held_by,
        }),
        entered => entered,
    }
}

async fn enter_now(
    spec: &AcquireSpec,
    budget: &Budget,
    once: bool,
    enclosing: Option<&Arc<Frame>>,
    is_one_of_several: bool,
) -> Result<Entry, LockError> {
    let inside = enclosing.and_then(|frame| frame.find(&spec.shared, &spec.name));
    if let Some(frame) = inside {
        let waits_until = if once {
            spec.now()
        } else {
            budget.waits_until()
        };
        let hold = &frame.hold;
        let turn = frame.turns().next(&spec.shared.backend);
        loop {
            // A shutdown waits until this hold has ended, so it neither refuses nor interrupts the calls that re-enter
            // the hold.
            let come = bounded(&spec.shared.backend, waits_until, turn.come()).await;
            if come.is_none() {
                return Err(busy_with_sibling(spec, *budget));
            }
            // If the hold has ended, the lock is acquired from the backend, like a lock that no enclosing call holds.
            if hold.has_ended() {
                break;
            }
            // This future is boxed, so that the future of a caller that waits for its turn stays small.
            let limit = frame.limit();
            let demand = Box::pin(extend_enclosing(spec, budget, hold, limit)).await?;
            // The turn has a time limit until the caller has read the answer to the extension of the lease. If the
            // caller is never polled again, the turn passes to the next call.
            if !turn.begin_body() {
                if spec.now() >= waits_until {
                    return Err(busy_with_sibling(spec, *budget));
                }
                continue;
            }
            let Some(ticket) = EntryTicket::again(hold) else {
                break;
            };
            if spec.terms.mode == Mode::Write && !hold.may_write() {
                return Err(OptionsError::Upgrade.into());
            }
            count(&spec.shared.counters.reentered);
            tracing::debug!(target: TARGET, key = %spec.key, token = %hold.token, "lock re-entered");
            let limit = demand.as_ref().map_or(limit, RenewalDemand::until);
            let level = frame.level().inner(turn, limit);
            return Ok(Entry::again(ticket, level, demand));
        }
    }
    let (mut budget, mut attempt, mut missed) = (*budget, None, 0);
    loop {
        let acquired = acquire(spec, &budget, once, is_one_of_several, attempt, missed).await?;
        budget = budget.answered();
        attempt = acquired.attempt;
        missed += u32::from(acquired.is_missed);
        if let Some(entry) = acquired.granted {
            // The body of a call with one lock begins in this poll.
            let hold = entry.hold();
            if hold.is_fresh() && (is_one_of_several || hold.begin_body()) {
                return Ok(entry);
            }
            missed += u32::from(hold.give_up_unused(spec.now()) || hold.is_given_up());
        }
        // The lock was lost or given back before the body began, so the call waits for it again. If the server still has
        // the grant, dropping the entry gives the grant back.
        if once {
            return Err(busy_outside(spec, budget, None));
        }
    }
}

/// Extends the lease of an entry to its whole time before the lock is offered, unless enough of the lease is left. If the
/// answer comes so late that too little of the lease is left again, extends the lease once more. Returns `false` if the
/// lease is lost.
async fn confirm(spec: &AcquireSpec, budget: Budget, entry: &Entry) -> Result<bool, LockError> {
    let hold = entry.hold();
    while !hold.is_fresh() {
        if hold.loss().is_some() {
            return Ok(false);
        }
        let until = budget.answers_until(spec);
        let confirming = answered(spec, budget, until, hold.clone().confirm());
        tokio::select! {
            biased;
            confirmed = confirming => confirmed?,
            _ = hold.wait_for_loss() => {}
        }
    }
    Ok(true)
}

/// Extends the lease of an enclosing call's hold, if necessary, for a nested call. If the nested call asks for a
/// renewed lease, returns its demand for renewal. `limit` is the moment at which the renewals for the enclosing call
/// end.
async fn extend_enclosing(
    spec: &AcquireSpec,
    budget: &Budget,
    hold: &Arc<HoldState>,
    limit: Option<Moment>,
) -> Result<Option<RenewalDemand>, LockError> {
    hold.not_lost()?;
    let until = budget.answers_until(spec);
    let demand = answered(
        spec,
        *budget,
        until,
        hold.clone().extend_for(spec.terms.lease, limit),
    )
    .await?;
    hold.not_lost()?;
    Ok(demand)
}

/// Begins the hold of a lock that has been granted. With `offer`, the lock is given back if the call does not begin its
/// body by this moment.
pub(crate) fn begin(
    spec: &AcquireSpec,
    grant: Grant,
    offer: Option<(Moment, Option<Polled>)>,
) -> Entry {
    Entry::began(EntryTicket::counted(HoldState::begin(
        spec.shared.clone(),
        spec.key.clone(),
        spec.name.clone(),
        (spec.site.label(), spec.site.function()),
        spec.terms.lease,
        (spec.terms.replicas.count, spec.terms.mode),
        grant,
        offer,
    )))
}

/// The outcome of an attempt that has not failed.
struct Acquired {
    /// `None` if the attempt has missed its turn, or if the lock was lost before it was offered to the caller.
    granted: Option<Entry>,
    is_missed: bool,
    /// Queues again at its old place if the call does not take the lock. `None` if the backend has no queue.
    attempt: Option<Box<dyn Attempt>>,
}

/// Acquires the lock from the backend, and begins its hold. For a lock on a server, all steps are independent of when the
/// caller is polled. A caller that is not polled in time does not get the lock: the engine gives it back. `before` is the
/// attempt of an earlier call of this function, and `missed` counts the locks and turns that the caller has not taken.
async fn acquire(
    spec: &AcquireSpec,
    budget: &Budget,
    once: bool,
    is_one_of_several: bool,
    before: Option<Box<dyn Attempt>>,
    missed: u32,
) -> Result<Acquired, LockError> {
    let backend = &spec.shared.backend;
    let spins = spec.terms.strategy == Strategy::Spin && !once;
    let attempt = before
        .map(|mut attempt| {
            attempt.again();
            attempt
        })
        .or_else(|| {
            let wait = match once {
                true => Duration::ZERO,
                false => budget.waits_until().since(backend.now()),
            };
            (!spins).then(|| backend.attempt(spec.request(wait)))
        });
    let is_in_process = backend.maintains_leases();
    let polled = (!is_in_process)
        .then(|| spec.shared.context.polled())
        .flatten();
    let (owned, budget) = (spec.clone(), *budget);
    let acquiring = async move {
        let (spec, offered_for) = (&owned, claim_after(missed));
        let (grant, attempt) = granted(spec, &budget, once, attempt).await?;
        let mut acquired = Acquired {
            granted: None,
            is_missed: grant.is_none(),
            attempt,
        };
        let Some(grant) = grant else {
            return Ok(acquired);
        };
        let is_silent = polled.as_ref().is_some_and(|polled| {
            let runtimes = spec.shared.context.runtimes();
            runtimes.is_silent(polled, spec.now())
        });
        if is_silent {
            // The other callers of a runtime that does not run are possibly next. Each would keep the lock from callers
            // that run. Dropping the entry gives the lock back.
            let until = spec.now();
            drop(begin(spec, grant, Some((until, polled))));
            acquired.is_missed = true;
            return Ok(acquired);
        }
        let offer = (!is_in_process).then(|| (spec.now() + offered_for, polled));
        let mut entry = begin(spec, grant, offer);
        // A shutdown gives back the locks whose bodies have not begun. It has not seen a lock that was granted since.
        let mut stands = !(spec.shared.shutdown.has_begun() && entry.hold().give_up());
        // A call with several locks waits for the replicas of all its locks together. The futures are boxed, because few
        // calls need them.
        if stands && spec.terms.needs_replicas() && !is_one_of_several {
            (entry, stands) = Box::pin(with_replicas(spec, budget.answered(), entry)).await?;
            entry.hold().wait_for_body(spec.now() + offered_for);
        }
        if stands && (entry.hold().is_fresh() || Box::pin(confirm(spec, budget, &entry)).await?) {
            acquired.granted = Some(entry);
        }
        Ok(acquired)
    };
    if is_one_of_several {
        return acquiring.await; // a step of the call's acquisition, which `multi` carries out
    }
    spec.shared.carry_out(acquiring).await
}

/// Waits until the backend grants the lock. Returns `None` for the grant if the attempt has missed its turn. A caller that
/// spins passes no attempt.
async fn granted(
    spec: &AcquireSpec,
    budget: &Budget,
    once: bool,
    attempt: Option<Box<dyn Attempt>>,
) -> Result<(Option<Grant>, Option<Box<dyn Attempt>>), LockError> {
    let now = spec.now();
    let until = if once {
        budget.answers_until(spec).min(now + spec.try_patience())
    } else {
        budget.waits_until()
    };
    if until <= now && !once {
        return Err(busy_outside(spec, *budget, None));
    }
    let Some(mut attempt) = attempt else {
        let grant = Box::pin(spin(spec, budget)).await?;
        return Ok((Some(grant), None));
    };
    let mut entering = attempt.enter();
    let quiet_until = until.min(budget.quiet_until());
    let mut entered = unless_shut_down(&spec.shared, quiet_until, &mut entering).await?;
    if entered.is_none() && quiet_until < until {
        // The future is boxed, because few calls wait this long.
        let waiting = enter_and_report(spec, budget, until, &mut entering);
        entered = Box::pin(waiting).await?;
    }
    drop(entering);
    match entered {
        Some(Ok(Answer::Granted(grant))) => Ok((Some(grant), Some(attempt))),
        Some(Ok(Answer::Missed)) => Ok((None, Some(attempt))),
        Some(Ok(Answer::Busy)) => Err(busy_outside(spec, *budget, attempt.held_by())),
        Some(Err(error)) => Err(failed(spec, *budget, error)),
        None if once => {
            // An attempt that does not wait has joined no queue. If the lock was granted to the attempt, dropping the
            // attempt gives the grant back.
            let was_answered = attempt.was_answered();
            drop(attempt);
            Err(too_late(spec, *budget, was_answered).await)
        }
        // The future of `leave` is boxed, so that the future of a call that gets its lock in time stays small.
        None => {
            let grant = Box::pin(leave(spec, budget, attempt)).await?;
            Ok((Some(grant), None))
        }
    }
}

/// Waits further for the lock, and reports once who holds it.
async fn enter_and_report(
    spec: &AcquireSpec,
    budget: &Budget,
    until: Moment,
    entering: &mut BoxFuture<'_, Result<Answer, BackendError>>,
) -> Result<Option<Result<Answer, BackendError>>, LockError> {
    if spec.shared.registry.may_report_wait(&spec.name, spec.now()) {
        let asking = async {
            let status = spec.shared.backend.status(&spec.name);
            let holder = match bounded(&spec.shared.backend, until, status).await {
                Some(Ok(status)) => status.holder,
                _ => None,
            };
            report_wait(spec, budget, holder);
        };
        let entered = unless_shut_down(&spec.shared, until, &mut *entering);
        tokio::select! {
            biased;
            entered = entered => return entered,
            () = asking => {}
        }
    }
    unless_shut_down(&spec.shared, until, entering).await
}

/// Reports that a call still waits, and who holds the lock.
fn report_wait(spec: &AcquireSpec, budget: &Budget, holder: Option<Holder>) {
    let waited = spec.now().since(budget.started());
    let held_by = holder.map(|holder| HeldBy::new(holder, None));
    let function = spec.site.function();
    match held_by {
        Some(held_by) => {
            tracing::info!(target: TARGET, key = %spec.key, function, ?waited, "still waiting for the lock, {held_by}");
        }
        None => {
            tracing::info!(target: TARGET, key = %spec.key, function, ?waited, "still waiting for the lock, whose holder is not known");
        }
    }
}

/// Leaves the queue and returns an error. If the lock was granted before the attempt could leave the queue, returns the
/// grant instead. If the server does not answer in time, drops the attempt, which then leaves the queue in the
/// background.
async fn leave(
    spec: &AcquireSpec,
    budget: &Budget,
    mut attempt: Box<dyn Attempt>,
) -> Result<Grant, LockError> {
    let backend = &spec.shared.backend;
    let was_answered = attempt.was_answered();
    let left = {
        let now = backend.now();
        let patience = now + spec.leave_patience();
        let late = async {
            backend.sleep_until(now + patience.since(now) / 2).await;
            let late = too_late(spec, *budget, was_answered).await;
            backend.sleep_until(patience).await;
            late
        };
        tokio::select! {
            biased;
            left = attempt.leave() => left,
            late = late => return Err(late),
        }
    };
    match left {
        Ok(Leaving::Granted(grant)) => Ok(grant),
        Ok(Leaving::Left) => Err(busy_outside(spec, *budget, attempt.held_by())),
        Err(error) => Err(failed(spec, *budget, error)),
    }
}

/// Tries to take the lock again and again, and sleeps between two tries. Makes the last try at the end of `wait`.
async fn spin(spec: &AcquireSpec, budget: &Budget) -> Result<Grant, LockError> {
    let (shared, backend) = (&spec.shared, &spec.shared.backend);
    let deadline = budget.waits_until();
    let (mut failed_tries, mut was_answered) = (0, false);
    let mut has_reported = false;
    loop {
        let began = backend.now();
        let after = began.max(deadline) + spec.leave_patience() / 2;
        let until = (began + spec.try_patience()).min(after);
        let mut attempt = backend.attempt(spec.request(Duration::ZERO));
        let tried = unless_shut_down(shared, until, attempt.enter()).await?;
        let is_last = backend.now() >= deadline;
        let held_by = is_last.then(|| attempt.held_by()).flatten();
        if !has_reported && began >= budget.quiet_until() {
            has_reported = true;
            if shared.registry.may_report_wait(&spec.name, began) {
                let holder = attempt.held_by().map(|held_by| held_by.holder);
                report_wait(spec, budget, holder);
            }
        }
        drop(attempt);
        match tried {
            Some(Ok(Answer::Granted(grant))) => {
                let queued = failed_tries > 0;
                return Ok(Grant { queued, ..grant });
            }
            Some(Ok(Answer::Busy | Answer::Missed)) if is_last => {
                return Err(busy_outside(spec, *budget, held_by));
            }
            None if is_last => return Err(too_late(spec, *budget, was_answered).await),
            Some(Ok(Answer::Busy | Answer::Missed)) => was_answered = true,
            None => {}
            Some(Err(BackendError::Unreachable(_))) if !is_last => {}
            Some(Err(error)) => return Err(failed(spec, *budget, error)),
        }
        failed_tries += 1;
        let chance = shared.context.chance();
        let next = backend.now() + spec.terms.backoff.pause(failed_tries, chance);
        unless_shut_down(shared, next.min(deadline), std::future::pending::<()>()).await?;
    }
}
