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
    hold::{HoldState, Plan},
    stats::count,
    sync::lock,
};

/// A claim is confirmed when its hold has run this long: shorter holds stay at two commands.
const CONFIRM_AFTER: Duration = Duration::from_millis(100);
/// A renewal that got no answer is tried again after this, as long as the local deadline allows.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What is due for a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Extend the lease to this, counted from now.
    Renew(Duration),
    /// Read whether the grant stands.
    Check,
}

/// Decides what is due: a planned renewal happens until its end, a claim is confirmed to the rest of its lease, and a
/// lease that stands whole is only read.
fn step(plan: Option<Plan>, claim: bool, lease_ends: Moment, now: Moment) -> Step {
    match plan {
        Some(plan) if plan.until.is_none_or(|until| now < until) => Step::Renew(plan.lease),
        _ if claim => Step::Renew(lease_ends.since(now)),
        _ => Step::Check,
    }
}

/// When a hold is due again: each third of its lease, and at its deadline.
fn next_due(lease: Duration, deadline: Moment, now: Moment) -> Moment {
    (now + lease / 3).min(deadline)
}

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
        let mut due = next_due(hold.terms.time, deadline, now);
        if hold.is_claim() {
            due = due.min(now + CONFIRM_AFTER);
        }
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
        let step = step(hold.plan(), hold.is_claim(), lease_ends, now);
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
                keeper.insert(&hold, next_due(lease, deadline, now));
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Moment {
        Moment::new(SECOND * seconds)
    }

    #[test]
    fn a_plan_renews_until_its_end() {
        let endless = Plan {
            lease: 30 * SECOND,
            until: None,
        };
        let ending = Plan {
            until: Some(at(100)),
            ..endless
        };
        for claim in [false, true] {
            let step = |plan, now| step(Some(plan), claim, at(120), at(now));
            assert_eq!(step(endless, 1000), Step::Renew(30 * SECOND));
            assert_eq!(step(ending, 99), Step::Renew(30 * SECOND));
        }
        assert_eq!(step(Some(ending), false, at(120), at(100)), Step::Check);
    }

    #[test]
    fn a_claim_becomes_the_rest_of_its_lease() {
        let over = Plan {
            lease: 30 * SECOND,
            until: Some(at(1)),
        };
        for plan in [None, Some(over)] {
            assert_eq!(step(plan, true, at(30), at(1)), Step::Renew(29 * SECOND));
            assert_eq!(step(plan, false, at(30), at(1)), Step::Check);
        }
    }

    #[test]
    fn a_hold_is_due_each_third_and_at_its_deadline() {
        assert_eq!(next_due(30 * SECOND, at(30), at(0)), at(10));
        assert_eq!(next_due(30 * SECOND, at(30), at(25)), at(30));
    }
}
