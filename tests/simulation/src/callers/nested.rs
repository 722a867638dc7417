//! Callers whose bodies enter their own locks again.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lock_runtime::{Hold, InCurrentHold, Lock, LockError};
use tokio::time::{Instant, sleep, timeout};

use super::{Caller, Process, SHORTEST_RENEWED, Way};
use crate::{faults::Fault, late::Lateness, ledger::CallId, process::on_runtime};

/// The longest time by which a nested call exceeds its `wait` if it is polled without delay: 200 ms to leave, and the
/// delays of messages.
const NESTED_LONGER: Duration = Duration::from_millis(700);
/// The `wait` of nested calls beside a call that is not polled.
const UNPOLLED_WAIT: Duration = Duration::from_secs(8);

impl Caller {
    pub(super) async fn entering_again(self: &Arc<Self>, way: Way) {
        let key = self.key();
        let (lock, call) = self.begin(way, &key);
        let this = self.clone();
        let (wait, lease) = (
            self.chance.pick(&self.process.plan.waits),
            self.chance.pick(&self.process.plan.leases),
        );
        let inner = self.process.client.lock(&key).wait(wait).lease(lease);
        let inner = inner.renew(lease >= SHORTEST_RENEWED && self.has_habit(70));
        let calling = lock.run(async move {
            let _inside = this.enter(call);
            let outer = Hold::current().expect("the body runs within a hold");
            this.work().await;
            match way {
                Way::Siblings if this.leaves_unpolled() => {
                    this.process.ledger.lasts_long(call);
                    if this.has_habit(50) {
                        this.leave_turn_unpolled(inner, &outer).await;
                    } else {
                        this.leave_unpolled(inner, &outer).await;
                    }
                }
                Way::Siblings => {
                    let beside = AtomicBool::new(false);
                    let (first, second) = tokio::join!(
                        inner.run(this.again(&outer, Some(&beside))),
                        inner.run(this.again(&outer, Some(&beside)))
                    );
                    this.check_memory(&first, &outer);
                    this.check_memory(&second, &outer);
                }
                Way::TakenAlong => {
                    let (this, outer) = (this.clone(), outer.clone());
                    let task = async move {
                        let entered = inner.run(this.again(&outer, None)).await;
                        this.check_memory(&entered, &outer);
                    };
                    let stop = self.process.stop.clone();
                    let task = on_runtime(self.runtime, task.in_current_hold());
                    let _ = tokio::spawn(stop.while_running(self.runtime, task)).await;
                }
                _ => {
                    let asked = Instant::now();
                    let began = OnceLock::new();
                    let entering = inner.run(async {
                        let _ = began.set(asked.elapsed());
                        this.again(&outer, None).await;
                    });
                    this.check_memory(&entering.await, &outer);
                    let took = match (began.into_inner(), this.late) {
                        (None, Lateness::Never) => Some(asked.elapsed()),
                        (began, _) => began, // a call that is polled late also fails late
                    };
                    if let Some(took) = took {
                        this.check_nested_wait(&outer, wait, took);
                    }
                }
            }
            if !this.process.plan.is_ordered() && this.has_habit(50) {
                this.process.ledger.lasts_long(call);
                this.check_renewals_end(&outer, call).await;
            }
            this.work().await;
        });
        let ended = self.late(calling).await;
        self.end(call, ended.err());
    }

    /// Checks that a server without free memory does not refuse a nested call.
    fn check_memory(&self, entered: &Result<(), LockError>, outer: &Hold) {
        if let Err(error @ LockError::Refused { .. }) = entered
            && outer.loss().is_none()
        {
            let seen = format!("{} with token {}: {error}", outer.key(), outer.token());
            let ledger = &self.process.ledger;
            ledger.violated("a nested call needs no memory", seen);
        }
    }

    /// Checks that a nested call has begun its body, or has failed, within its `wait`. A turn that a call has taken in
    /// time lasts for a claim, but a call that is polled without delay needs less time.
    fn check_nested_wait(&self, outer: &Hold, wait: Duration, took: Duration) {
        let Process { ledger, plan, .. } = &self.process;
        let longer = match self.late {
            // All calls of a runtime that is blocked are polled late.
            _ if plan.faults.contains(&Fault::BlockRuntime) => return,
            Lateness::Never if !plan.faults.contains(&Fault::StopProcess) => NESTED_LONGER,
            _ if ledger.is_disturbed() => return,
            _ => Duration::from_millis(2_050),
        };
        if outer.loss().is_none() && took > wait + longer {
            let seen = format!("{}: {took:?} of {wait:?}", outer.key());
            ledger.violated("a nested call begins within its `wait`", seen);
        }
    }

    /// Checks that the renewals that nested calls have asked for have ended, if the engine does not renew the lease for
    /// the call itself.
    async fn check_renewals_end(&self, outer: &Hold, call: CallId) {
        let ledger = &self.process.ledger;
        let Some((lease, false)) = ledger.lease_of(call) else {
            return;
        };
        // Until then, the answer to a renewal may arrive.
        sleep(Duration::from_millis(20 + 4 * self.process.plan.delay)).await;
        let (before, began) = (outer.remaining(), Instant::now());
        sleep(self.habits.millis(100..1_500)).await;
        let (left, took) = (outer.remaining(), began.elapsed());
        // The confirmation of a grant moves the end of its lease.
        // A check moves the end of the lease, too, because the client allows less for the drift of the clocks when less
        // of the lease is left.
        let end = before.max(lease) + Duration::from_millis(20) + took / 50;
        if left + took > end && !ledger.is_disturbed() {
            let seen = format!("{before:?} left, and {left:?} left {took:?} later");
            ledger.violated("renewals end with the nested call that asks for them", seen);
        }
    }

    /// Returns whether the body of this call leaves a nested call unpolled. The call can then outlast its lease, and
    /// lose its place.
    fn leaves_unpolled(&self) -> bool {
        let plan = &self.process.plan;
        plan.unpolled && !plan.is_ordered() && self.unpolled.percent(50)
    }

    /// Makes three nested calls. The second call gets its turn after the first call, but is not polled. Checks that the
    /// third call nevertheless enters.
    async fn leave_unpolled(&self, inner: Lock, outer: &Hold) {
        let beside = AtomicBool::new(false);
        let inner = inner.wait(UNPOLLED_WAIT);
        let mut first = Box::pin(inner.run(self.again(outer, Some(&beside))));
        if timeout(Duration::from_millis(5), &mut first).await.is_ok() {
            return;
        }
        let mut second = Box::pin(inner.run(self.again(outer, Some(&beside))));
        let has_ended = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_ready())).await;
        let _ = first.await;
        let third = inner.run(self.again(outer, Some(&beside))).await;
        let may_fail = outer.loss().is_some() || beside.load(Ordering::Acquire);
        if matches!(third, Err(LockError::Busy { .. })) && !may_fail {
            let seen = format!("{} with token {}", outer.key(), outer.token());
            let ledger = &self.process.ledger;
            ledger.violated("a sibling that is not polled passes its turn on", seen);
        }
        if !has_ended {
            let _ = second.await;
        }
    }

    /// Makes two nested calls. The first call takes its turn, needs a longer lease, and is not polled again. Checks that
    /// the second call nevertheless enters.
    async fn leave_turn_unpolled(&self, inner: Lock, outer: &Hold) {
        let beside = AtomicBool::new(false);
        let inner = inner.lease(self.process.plan.longest_lease());
        let inner = inner.wait(UNPOLLED_WAIT);
        let mut first = Box::pin(inner.run(self.again(outer, Some(&beside))));
        let has_ended = poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_ready())).await;
        if has_ended {
            return;
        }
        if !beside.load(Ordering::Acquire) {
            let second = inner.run(self.again(outer, Some(&beside))).await;
            // A call that is polled late can miss its turn again and again.
            let is_certain = self.late == Lateness::Never && outer.loss().is_none();
            if is_certain && matches!(second, Err(LockError::Busy { .. })) {
                let seen = format!("{} with token {}", outer.key(), outer.token());
                let ledger = &self.process.ledger;
                ledger.violated("a sibling that is not polled passes its turn on", seen);
            }
        }
        let _ = first.await;
    }

    /// Runs the body of a nested call, and checks that the call is an entry into the hold `outer`. Sibling calls share
    /// the flag `beside`, which is set while one of them runs its body.
    async fn again(&self, outer: &Hold, beside: Option<&AtomicBool>) {
        let hold = Hold::current().expect("the body runs within a hold");
        let ledger = &self.process.ledger;
        let is_lost = || outer.loss().is_some();
        if hold.token() != outer.token() && !is_lost() {
            ledger.violated(
                "a nested call enters the enclosing hold",
                format!("token {} inside {}", hold.token(), outer.token()),
            );
        }
        if let Some(beside) = beside {
            if beside.swap(true, Ordering::AcqRel) && !is_lost() {
                let seen = format!(
                    "two sibling calls run their bodies for {} with token {} at the same time",
                    hold.key(),
                    hold.token()
                );
                ledger.violated("siblings take turns", seen);
            }
            self.work().await;
            beside.store(false, Ordering::Release);
        } else {
            self.work().await;
        }
    }
}
