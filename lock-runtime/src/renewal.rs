//! Renewal: the engine's thread extends leases while their bodies run. Holds that are due together are renewed by few
//! commands, and each has a fate of its own: one lock's failure touches no other, and a blocked or finished user runtime
//! stops none.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Renewed, ToRenew},
    error::LossReason,
    lease::Moment,
};
use tokio::sync::Notify;

use crate::{
    clock, engine,
    hold::HoldState,
    plan::{self, Step},
    stats::count,
    sync::lock,
};

/// A renewal that got no answer is tried again after this, as long as the local deadline allows.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The holds of one client, by when something is due for them.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    schedule: Mutex<Schedule>,
    earlier: Arc<Notify>,
    started: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeMap<Moment, Vec<Arc<HoldState>>>,
    /// When the keeper will wake by itself.
    armed: Option<Moment>,
}

impl Schedule {
    fn insert(&mut self, hold: &Arc<HoldState>, due: Moment) {
        let holds = self.due.entry(due).or_default();
        hold.kept_at.move_to(due, holds.len());
        holds.push(hold.clone());
    }

    /// False if it was not there.
    fn remove(&mut self, hold: &HoldState) -> bool {
        let Some((due, place)) = hold.kept_at.take() else {
            return false;
        };
        if let Entry::Occupied(mut entry) = self.due.entry(due) {
            let holds = entry.get_mut();
            holds.swap_remove(place);
            if let Some(moved) = holds.get(place) {
                moved.kept_at.move_to(due, place);
            }
            if holds.is_empty() {
                entry.remove();
            }
        }
        true
    }

    /// Takes all holds that are due.
    fn take_due(&mut self, now: Moment) -> Vec<Arc<HoldState>> {
        let mut taken = Vec::new();
        while let Some(entry) = self.due.first_entry() {
            if *entry.key() > now {
                break;
            }
            let holds = entry.remove();
            for hold in &holds {
                hold.kept_at.take();
            }
            taken.extend(holds);
        }
        taken
    }
}

impl Keeper {
    /// Keeps a hold until it is forgotten; one whose backend keeps it needs no keeping.
    pub(crate) fn keep(self: &Arc<Self>, hold: &Arc<HoldState>) {
        let Some(deadline) = hold.deadline() else {
            return;
        };
        let now = clock::boot::now();
        let due = plan::first_due(hold.terms.time, deadline, hold.is_claim(), now);
        self.insert(hold, due);
        if !self.started.swap(true, Ordering::AcqRel) {
            engine::spawn(keep_all(Arc::downgrade(self), self.earlier.clone()));
        }
    }

    /// Makes a hold due for a renewal to `lease` by a third of it from now: a nested entry has asked for it.
    pub(crate) fn hurry(&self, hold: &Arc<HoldState>, lease: Duration) {
        let now = clock::boot::now();
        let due = now + lease / 3;
        let mut schedule = lock(&self.schedule);
        // A hold that is being tended right now is not in the schedule, and will see its new plan.
        if hold.kept_at.due().is_some_and(|planned| due < planned) && schedule.remove(hold) {
            drop(schedule);
            self.insert(hold, due);
        }
    }

    fn insert(&self, hold: &Arc<HoldState>, due: Moment) {
        let mut schedule = lock(&self.schedule);
        if !hold.kept_at.is_kept() {
            return;
        }
        schedule.insert(hold, due);
        if schedule.armed.is_none_or(|armed| due < armed) {
            schedule.armed = Some(due);
            self.earlier.notify_one();
        }
    }

    /// Keeps a hold no longer.
    pub(crate) fn forget(&self, hold: &Arc<HoldState>) {
        let mut schedule = lock(&self.schedule);
        hold.kept_at.end();
        schedule.remove(hold);
    }

    /// Takes all holds that are due, and says when the next one is.
    fn take_due(&self, now: Moment) -> (Vec<Arc<HoldState>>, Option<Moment>) {
        let mut schedule = lock(&self.schedule);
        let taken = schedule.take_due(now);
        schedule.armed = schedule.due.keys().next().copied();
        (taken, schedule.armed)
    }

    /// Takes in what became of a renewal or a check that was asked for at `now`. False if it is to be tried again.
    fn settle(&self, asked: &Asked, answer: Result<Renewed, BackendError>, now: Moment) -> bool {
        let hold = &asked.hold;
        match answer {
            // An answer that comes after the deadline revives nothing.
            Ok(Renewed::Until(_)) if hold.loss().is_some() => {}
            Ok(Renewed::Until(until)) => {
                // What was asked for before the lease began anew is not its.
                if let Step::Renew(lease) = asked.step
                    && hold.begun() == asked.begun
                {
                    hold.extend_deadline(until);
                    hold.confirm_claim();
                    count(&hold.counters().renewed);
                    tracing::debug!(key = %hold.key, token = %hold.token, ?lease, "lease renewed");
                }
                let lease = hold.plan().map_or(hold.terms.time, |plan| plan.lease);
                let deadline = hold.deadline().unwrap_or(until);
                self.insert(hold, plan::next_due(lease, deadline, now));
                // A nested entry may have come meanwhile, and found the hold nowhere in the schedule.
                if let Some(plan) = hold.plan().filter(|plan| plan.lease < lease) {
                    self.hurry(hold, plan.lease);
                }
            }
            Ok(Renewed::NotHeld) => {
                // Released meanwhile is no loss.
                if hold.kept_at.is_kept() {
                    hold.lose(LossReason::NotHeld);
                }
            }
            Err(error) => {
                count(&hold.counters().renewal_failed);
                tracing::warn!(key = %hold.key, token = %hold.token, %error, "renewal failed, trying again");
                return error == BackendError::ShutDown;
            }
        }
        true
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.earlier.notify_one();
    }
}

/// The keeper's loop. It ends with its client.
async fn keep_all(keeper: Weak<Keeper>, earlier: Arc<Notify>) {
    loop {
        let next = {
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let (due, next) = keeper.take_due(clock::boot::now());
            let together = due
                .first()
                .map_or(1, |hold| hold.backend().renews_together());
            let mut due = due.into_iter().peekable();
            while due.peek().is_some() {
                // A task of its own: a server that is slow for some keys delays no others.
                let holds = due.by_ref().take(together).collect();
                engine::spawn(tend(keeper.clone(), holds));
            }
            next
        };
        match next {
            Some(next) => tokio::select! {
                () = clock::boot::sleep_until(next) => {}
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
    begun: Moment,
    step: Step,
}

impl Asked {
    fn of(hold: Arc<HoldState>, now: Moment) -> Self {
        let begun = hold.begun();
        let lease_ends = begun + hold.terms.time;
        let step = plan::step(hold.plan(), hold.is_claim(), lease_ends, now);
        Self { hold, begun, step }
    }

    fn to_renew(&self) -> ToRenew<'_> {
        ToRenew {
            name: &self.hold.name,
            token: self.hold.token,
            lease: match self.step {
                Step::Renew(lease) => lease,
                Step::Check => Duration::ZERO,
            },
        }
    }
}

/// Whether there is anything to do for a hold. A deadline that has passed is seen here.
fn is_tended(hold: &HoldState) -> bool {
    hold.kept_at.is_kept() && hold.loss().is_none()
}

/// When the first of those that are still tended is lost; `None` if none is.
fn first_deadline<'a>(holds: impl Iterator<Item = &'a Arc<HoldState>>) -> Option<Moment> {
    let tended = holds.filter(|hold| is_tended(hold));
    tended.filter_map(|hold| hold.deadline()).min()
}

/// Does what is due for these holds of one client, again and again while the server does not answer, for each until its
/// local deadline.
async fn tend(keeper: Arc<Keeper>, mut holds: Vec<Arc<HoldState>>) {
    loop {
        let now = clock::boot::now();
        let asked: Vec<_> = holds
            .drain(..)
            .filter(|hold| is_tended(hold))
            .map(|hold| Asked::of(hold, now))
            .collect();
        let Some(answers) = answers(&asked).await else {
            return;
        };
        for (asked, answer) in asked.into_iter().zip(answers) {
            if !keeper.settle(&asked, answer, now) {
                holds.push(asked.hold);
            }
        }
        let Some(deadline) = first_deadline(holds.iter()) else {
            return;
        };
        clock::boot::sleep_until((clock::boot::now() + RETRY_AFTER).min(deadline)).await;
    }
}

/// What the backend answers for these holds; `None` if meanwhile all of them were lost or released. The request of one
/// that is lost goes on for the others.
async fn answers(asked: &[Asked]) -> Option<Vec<Result<Renewed, BackendError>>> {
    let backend = asked.first()?.hold.backend();
    let grants: Vec<_> = asked.iter().map(Asked::to_renew).collect();
    let mut answers = backend.renew_all(&grants);
    loop {
        let deadline = first_deadline(asked.iter().map(|asked| &asked.hold))?;
        if let Some(answers) = clock::boot::timeout_at(deadline, &mut answers).await {
            return Some(answers);
        }
    }
}
