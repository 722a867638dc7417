//! Renewal: the engine's thread extends leases while their bodies run, each hold by itself, so that one lock's
//! failure touches no other and a blocked or finished user runtime stops none.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Renewed},
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
    due: BTreeMap<(Moment, HoldId), Arc<HoldState>>,
    /// When the keeper will wake by itself.
    armed: Option<Moment>,
}

/// A hold's address; the schedule keeps the hold alive, so it is not given away twice.
type HoldId = usize;

fn id(hold: &Arc<HoldState>) -> HoldId {
    Arc::as_ptr(hold) as usize
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
        let planned = hold.kept_at.due();
        // A hold that is being tended right now is not in the schedule, and will see its new plan.
        if let Some(planned) = planned.filter(|planned| due < *planned)
            && schedule.due.remove(&(planned, id(hold))).is_some()
        {
            drop(schedule);
            self.insert(hold, due);
        }
    }

    fn insert(&self, hold: &Arc<HoldState>, due: Moment) {
        let mut schedule = lock(&self.schedule);
        if !hold.kept_at.move_to(due) {
            return;
        }
        schedule.due.insert((due, id(hold)), hold.clone());
        if schedule.armed.is_none_or(|armed| due < armed) {
            schedule.armed = Some(due);
            self.earlier.notify_one();
        }
    }

    /// Keeps a hold no longer.
    pub(crate) fn forget(&self, hold: &Arc<HoldState>) {
        let mut schedule = lock(&self.schedule);
        if let Some(due) = hold.kept_at.end() {
            schedule.due.remove(&(due, id(hold)));
        }
    }

    /// Takes all holds that are due, and says when the next one is.
    fn take_due(&self, now: Moment) -> (Vec<Arc<HoldState>>, Option<Moment>) {
        let mut schedule = lock(&self.schedule);
        let mut taken = Vec::new();
        while let Some(entry) = schedule.due.first_entry() {
            if entry.key().0 > now {
                break;
            }
            taken.push(entry.remove());
        }
        schedule.armed = schedule.due.keys().next().map(|(due, _)| *due);
        (taken, schedule.armed)
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
            for hold in due {
                // A task of its own: a server that is slow for one key delays no other.
                engine::spawn(tend(keeper.clone(), hold));
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

/// Does what is due for one hold, again and again while the server does not answer, until the local deadline.
async fn tend(keeper: Arc<Keeper>, hold: Arc<HoldState>) {
    while hold.loss().is_none() && hold.kept_at.is_kept() {
        let Some(deadline) = hold.deadline() else {
            return;
        };
        let now = clock::boot::now();
        let begun = hold.begun();
        let lease_ends = begun + hold.terms.time;
        let step = plan::step(hold.plan(), hold.is_claim(), lease_ends, now);
        let answer = {
            let backend = hold.backend();
            let answer = match step {
                Step::Renew(lease) => backend.renew(&hold.name, hold.token, lease),
                Step::Check => backend.check(&hold.name, hold.token),
            };
            clock::boot::timeout_at(deadline, answer).await
        };
        match answer {
            Some(Ok(Renewed::Until(until))) => {
                // What was asked for before the lease began anew is not its.
                if let Step::Renew(lease) = step
                    && hold.begun() == begun
                {
                    hold.extend_deadline(until);
                    hold.confirm_claim();
                    count(&hold.counters().renewed);
                    tracing::debug!(key = %hold.key, token = %hold.token, ?lease, "lease renewed");
                }
                let lease = hold.plan().map_or(hold.terms.time, |plan| plan.lease);
                let deadline = hold.deadline().unwrap_or(until);
                keeper.insert(&hold, plan::next_due(lease, deadline, now));
                // A nested entry may have come meanwhile, and found the hold nowhere in the schedule.
                if let Some(plan) = hold.plan().filter(|plan| plan.lease < lease) {
                    keeper.hurry(&hold, plan.lease);
                }
                return;
            }
            Some(Ok(Renewed::NotHeld)) => {
                // Released meanwhile is no loss.
                if hold.kept_at.is_kept() {
                    hold.lose(LossReason::NotHeld);
                }
                return;
            }
            Some(Err(error)) => {
                count(&hold.counters().renewal_failed);
                tracing::warn!(key = %hold.key, token = %hold.token, %error, "renewal failed, trying again");
                if error == BackendError::ShutDown {
                    return;
                }
                clock::boot::sleep_until((clock::boot::now() + RETRY_AFTER).min(deadline)).await;
            }
            None => {}
        }
    }
}
