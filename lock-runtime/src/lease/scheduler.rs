//! Renewal: the engine's thread extends leases while their bodies run. Holds that are due together are renewed by few
//! commands, and each has a fate of its own: one lock's failure touches no other, and a blocked or finished user runtime
//! stops none.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Extend, Renewed, ToRenew},
    lease::Moment,
};
use tokio::sync::Notify;

use crate::{
    background::{Context, shutdown::CancellationToken, sync::lock},
    events::{TARGET, count},
    lease::{
        Applied, Requested,
        due_queue::{DueQueue, Scheduled},
        hold::{HoldState, UnconfirmedRelease},
        policy,
    },
};

/// A renewal that got no answer is tried again after this, as long as the local deadline allows.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A renewal without an answer for so long counts as failed. It goes on all the same.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// The holds of one client, by when something is due for them.
#[derive(Debug)]
pub(crate) struct RenewalScheduler {
    context: Arc<Context>,
    schedule: Mutex<DueQueue<HoldState>>,
    earlier: Arc<Notify>,
    started: AtomicBool,
    ending: CancellationToken,
    releases: Mutex<Releases>,
}

/// Releases that wait for their answers.
#[derive(Debug, Default)]
struct Releases {
    /// When each goes on without its caller, in this order.
    unconfirmed: VecDeque<(Moment, Weak<dyn UnconfirmedRelease>)>,
    /// When the scheduler will wake for them by itself.
    armed: Option<Moment>,
}

impl Releases {
    /// Drops the oldest ones as far as they are confirmed, as most are long before their time.
    fn skip_confirmed(&mut self) {
        let confirmed =
            |(_, releasing): &(_, Weak<dyn UnconfirmedRelease>)| releasing.strong_count() == 0;
        while self.unconfirmed.front().is_some_and(confirmed) {
            self.unconfirmed.pop_front();
        }
    }
}

impl RenewalScheduler {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            schedule: Mutex::default(),
            earlier: Arc::default(),
            started: AtomicBool::new(false),
            ending: CancellationToken::new(),
            releases: Mutex::default(),
        }
    }

    /// Renews and checks a hold until it is removed; one whose backend maintains its lease needs neither.
    pub(crate) fn schedule(self: &Arc<Self>, hold: &Arc<HoldState>) {
        let Some(deadline) = hold.deadline() else {
            return;
        };
        let now = self.context.now();
        let (renews, claim) = (hold.plan().is_some(), hold.is_claim());
        let due = policy::first_due(hold.terms.time, deadline, renews, claim, now);
        self.insert(hold, due);
        if !self.started.swap(true, Ordering::AcqRel) {
            let scheduler = Arc::downgrade(self);
            self.context.spawn(run(scheduler, self.earlier.clone()));
        }
    }

    /// Makes a hold due by then. One that is being tended right now is not in the schedule, and sees what has changed.
    pub(crate) fn bring_forward(&self, hold: &Arc<HoldState>, due: Moment) {
        if lock(&self.schedule).bring_forward(hold, due) {
            self.earlier.notify_one();
        }
    }

    /// A release whose caller has not read its answer by then goes on in the background.
    pub(crate) fn watch_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment) {
        let mut releases = lock(&self.releases);
        releases.skip_confirmed();
        releases.unconfirmed.push_back((until, release));
        if releases.armed.is_none_or(|armed| until < armed) {
            releases.armed = Some(until);
            self.earlier.notify_one();
        }
    }

    /// Lets the releases go on whose callers have not read their answers, and says when to look again: not before the
    /// scheduler would wake by itself, so that a release does not wake it for nothing.
    fn finish_releases(&self, now: Moment) -> Option<Moment> {
        let mut late = Vec::new();
        let next = {
            let mut releases = lock(&self.releases);
            if releases.armed.is_none_or(|armed| now < armed) {
                return releases.armed;
            }
            loop {
                releases.skip_confirmed();
                match releases.unconfirmed.front() {
                    Some((until, _)) if *until <= now => {}
                    _ => break,
                }
                let first = releases.unconfirmed.pop_front();
                late.extend(first.and_then(|(_, releasing)| releasing.upgrade()));
            }
            releases.armed = releases.unconfirmed.front().map(|(until, _)| *until);
            releases.armed
        };
        late.iter()
            .for_each(|releasing| releasing.go_on_in_background());
        next
    }

    fn insert(&self, hold: &Arc<HoldState>, due: Moment) {
        let mut schedule = lock(&self.schedule);
        // Under the lock: who sets it meanwhile finds no entry, and leaves it to this.
        let due = hold.unused_until().map_or(due, |until| due.min(until));
        if !self.ending.is_cancelled() && schedule.insert(hold, due) {
            self.earlier.notify_one();
        }
    }

    /// Renews and checks a hold no longer.
    pub(crate) fn remove(&self, hold: &Arc<HoldState>) {
        let mut schedule = lock(&self.schedule);
        hold.due_entry().end();
        schedule.remove(hold);
    }

    /// Renews and checks nothing from now on: the client has ended.
    pub(crate) fn end(&self) {
        let mut schedule = lock(&self.schedule);
        self.ending.cancel();
        schedule.clear();
    }

    /// Takes in what became of a renewal or a check that was asked for at `now`. False if it is to be tried again.
    fn settle(&self, asked: &Asked, answer: Result<Renewed, BackendError>, now: Moment) -> bool {
        let hold = &asked.hold;
        match answer {
            Ok(answer) => {
                // Lost or released, it is renewed no longer.
                let Ok(applied) = hold.apply(asked.requested, answer) else {
                    return true;
                };
                if applied == Applied::Renewed {
                    count(&hold.counters().renewed);
                    tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, extend = ?asked.extend, "lease renewed");
                }
                let lease = hold.plan().map_or(hold.terms.time, |plan| plan.lease);
                let renews = hold.step(now) != Extend::Check;
                if let Some(deadline) = hold.deadline() {
                    self.insert(hold, policy::next_due(lease, deadline, renews, now));
                }
                // A nested entry may have come meanwhile, and found the hold nowhere in the schedule.
                if let Some(plan) = hold.plan().filter(|plan| plan.lease < lease) {
                    self.bring_forward(hold, self.context.now() + plan.lease / 3);
                }
            }
            Err(error) => {
                asked.failed(&error);
                return error == BackendError::ShutDown;
            }
        }
        true
    }
}

impl Drop for RenewalScheduler {
    fn drop(&mut self) {
        self.earlier.notify_one();
    }
}

/// The loop of a scheduler. It ends with its client.
async fn run(scheduler: Weak<RenewalScheduler>, earlier: Arc<Notify>) {
    loop {
        let next = {
            let Some(scheduler) = scheduler.upgrade() else {
                return;
            };
            let now = scheduler.context.now();
            let (due, next) = lock(&scheduler.schedule).take_due(now);
            let next = next.into_iter().chain(scheduler.finish_releases(now)).min();
            let together = due.first().map_or(1, |hold| hold.backend().renewal_batch());
            let mut due = due.into_iter().peekable();
            while due.peek().is_some() {
                // A task of its own: a server that is slow for some keys delays no others.
                let holds = due.by_ref().take(together).collect();
                scheduler.context.spawn(tend(scheduler.clone(), holds));
            }
            next.map(|next| scheduler.context.sleep_until(next))
        };
        match next {
            Some(wake) => tokio::select! {
                biased;
                () = wake => {}
                () = earlier.notified() => {}
            },
            None => earlier.notified().await,
        }
    }
}

/// What is asked of the backend for one hold.
#[derive(Debug)]
struct Asked {
    hold: Arc<HoldState>,
    extend: Extend,
    requested: Requested,
    /// Whether it counts as failed already.
    has_failed: AtomicBool,
}

impl Asked {
    fn of(hold: Arc<HoldState>, now: Moment) -> Self {
        let extend = hold.step(now);
        let requested = hold.request(extend, now);
        Self {
            hold,
            extend,
            requested,
            has_failed: AtomicBool::new(false),
        }
    }

    /// It has failed, or has no answer yet. A check that fails is no renewal: its lease is fixed.
    fn failed(&self, error: &BackendError) {
        let is_renewal = matches!(self.extend, Extend::To(_));
        if is_renewal && !self.has_failed.swap(true, Ordering::AcqRel) {
            self.hold.renewal_failed(error);
        }
    }

    fn to_renew(&self) -> ToRenew<'_> {
        ToRenew {
            name: &self.hold.name,
            token: self.hold.token,
            extend: self.extend,
        }
    }
}

/// Whether there is anything to do for a hold. A deadline that has passed is seen here.
fn is_tended(hold: &HoldState) -> bool {
    hold.due_entry().is_scheduled()
        && hold.loss().is_none()
        && !hold.give_up_unused(hold.backend().now())
}

/// When the first of those that are still tended is lost; `None` if none is.
fn first_deadline<'a>(holds: impl Iterator<Item = &'a Arc<HoldState>>) -> Option<Moment> {
    let tended = holds.filter(|hold| is_tended(hold));
    tended.filter_map(|hold| hold.deadline()).min()
}

/// Does what is due for these holds of one client, again and again while the server does not answer, for each until its
/// local deadline.
async fn tend(scheduler: Arc<RenewalScheduler>, mut holds: Vec<Arc<HoldState>>) {
    loop {
        let now = scheduler.context.now();
        let asked: Vec<_> = holds
            .drain(..)
            .filter(|hold| is_tended(hold))
            .map(|hold| Asked::of(hold, now))
            .collect();
        let Some(answers) = answers(&scheduler, &asked).await else {
            return;
        };
        for (asked, answer) in asked.into_iter().zip(answers) {
            if !scheduler.settle(&asked, answer, now) {
                holds.push(asked.hold);
            }
        }
        let Some(deadline) = first_deadline(holds.iter()) else {
            return;
        };
        let retry = scheduler.context.now() + RETRY_AFTER;
        scheduler.context.sleep_until(retry.min(deadline)).await;
    }
}

/// What the backend answers for these holds; `None` if meanwhile all of them were lost or released, or the client has
/// ended. If one hold is lost in the meantime, the request continues for the others.
async fn answers(
    scheduler: &RenewalScheduler,
    asked: &[Asked],
) -> Option<Vec<Result<Renewed, BackendError>>> {
    let backend = asked.first()?.hold.backend();
    let grants: Vec<_> = asked.iter().map(Asked::to_renew).collect();
    let mut answers = backend.renew_all(&grants);
    let context = &scheduler.context;
    let asked_at = context.now();
    let mut is_awaited = false;
    loop {
        let deadline = first_deadline(asked.iter().map(|asked| &asked.hold))?;
        let patience = asked_at + ANSWER_PATIENCE;
        let until = if is_awaited {
            deadline
        } else {
            deadline.min(patience)
        };
        let answered = tokio::select! {
            biased;
            () = scheduler.ending.cancelled() => return None,
            answered = context.timeout_at(until, &mut answers) => answered,
        };
        if answered.is_some() {
            return answered;
        }
        if !is_awaited && context.now() >= patience {
            is_awaited = true;
            let error = backend.last_error().unwrap_or_else(|| "no answer".into());
            let error = BackendError::Unreachable(error);
            let tended = asked.iter().filter(|asked| is_tended(&asked.hold));
            tended.for_each(|asked| asked.failed(&error));
        }
    }
}

/// The renewals of a client, as long as it lives: dropped, it ends them.
#[derive(Debug)]
pub(crate) struct Renewals(pub(crate) Arc<RenewalScheduler>);

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.end();
    }
}
