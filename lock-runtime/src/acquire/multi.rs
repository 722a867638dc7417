//! Acquires several locks. Every call takes its locks in the order of their names, so two calls with several locks
//! never deadlock.

use std::{collections::BTreeMap, future::Future, pin::pin, sync::Arc};

use futures_util::future::try_join_all;
use lock_core::{
    backend::{BackendError, MultiAnswer},
    error::LockError,
    lease::{CLAIM, LeaseTerms, MIN_RENEWED_LEASE, Renewal, claim_after},
};

use crate::acquire::{
    deadline::{answered, bounded, unless_shut_down},
    entry::{self, Entered, Entry},
    one,
    reentry::{self, Frame, MultiCall},
    replicas::{Waited, check_nested, replicas_until, replicated},
    spec::{AcquireSpec, Budget, busy_outside, busy_with_sibling, failed, too_late},
};
use crate::lease::hold::HoldState;
use crate::limits;

/// Enters several locks of one client, within the `wait` of the call.
///
/// If all locks are free, the call takes them in one step. If a lock is not free, the call takes the locks one after
/// another, and holds each lock while it waits for the next one. Fixed leases restart when the body begins. If a lock
/// is lost before the body begins, the call starts over unless its `wait` is over.
///
/// # Panics
/// Panics if `spec` is empty.
pub(crate) async fn enter(spec: Vec<AcquireSpec>) -> Result<(Entered, Arc<Frame>), LockError> {
    let mut in_order = spec.clone();
    // Of two equal keys, the one that writes counts.
    in_order.sort_by(|a, b| {
        let reads = |spec: &AcquireSpec| spec.terms.mode.is_shared();
        (&a.name, reads(a)).cmp(&(&b.name, reads(b)))
    });
    in_order.dedup_by(|a, b| a.name == b.name);
    let shared = in_order[0].shared.clone();
    let at_least = in_order[0].terms.hold_at_least;
    let mut budget = Budget::of(&in_order[0]);
    let enclosing = reentry::enclosing();
    let entering = pin!(async {
        check_nested(&in_order, enclosing.as_ref())?;
        let mut missed = 0;
        loop {
            let (specs, enclosing) = (in_order.clone(), enclosing.clone());
            // The engine offers only the complete set of locks.
            let acquiring = async move { acquire(&specs, budget, missed, enclosing).await };
            let mut acquisition = shared.carry_out(acquiring).await?;
            let Err(error) = acquisition.begin_body(&in_order) else {
                let entered = Entered::several(acquisition.entries).for_at_least(at_least);
                let names = spec.iter().map(|spec| &spec.name);
                acquisition.call.show(entered.named(names));
                let frame = acquisition
                    .innermost
                    .expect("a call enters at least one lock");
                return Ok((entered, frame));
            };
            // The call has not begun its body in time.
            missed += 1;
            let lost = acquisition.lost_before_the_body(&error, &in_order);
            budget = started_over(lost, error, budget)?;
        }
    });
    let ((entered, frame), record) = one::counted(&in_order, entering).await?;
    Ok((entered.recorded_by(record), frame))
}

/// Takes all locks of a call, and waits for their replicas. If the call loses a lock that it has taken, it starts over.
async fn acquire(
    specs: &[AcquireSpec],
    mut budget: Budget,
    missed: u32,
    enclosing: Option<Arc<Frame>>,
) -> Result<MultiAcquisition, LockError> {
    let backend = &specs[0].shared.backend;
    loop {
        let mut acquisition = MultiAcquisition::new(budget, enclosing.clone());
        let Err(error) = acquisition.enter(specs).await else {
            let until = backend.now() + claim_after(missed);
            for entry in &mut acquisition.entries {
                entry.wait_for_body(until);
            }
            return Ok(acquisition);
        };
        let lost = acquisition.lost_before_the_body(&error, specs);
        // Unless the server is unreachable, the call waits until the locks that it has taken are released, but no longer
        // than the time to leave after the end of `wait`.
        let answers = !matches!(error, LockError::Unreachable { .. });
        if answers && !acquisition.entries.is_empty() {
            let until = budget.waits_until() + specs[0].leave_patience();
            let leaving = Entered::several(acquisition.entries).leave(false);
            bounded(backend, until, leaving).await;
        }
        budget = started_over(lost, error, budget)?;
    }
}

/// Lets a call start over if it has lost a lock that it had taken (`lost`), because its body has not begun. If the `wait` of
/// the call is over, the call fails with `Busy` instead.
fn started_over(
    lost: Option<&AcquireSpec>,
    error: LockError,
    budget: Budget,
) -> Result<Budget, LockError> {
    match lost {
        Some(lost) if budget.waits_until() > lost.now() => Ok(budget.answered()),
        Some(lost) => Err(busy_outside(lost, budget, None)),
        None => Err(error),
    }
}

/// The progress of one call that enters several locks.
struct MultiAcquisition {
    budget: Budget,
    entries: Vec<Entry>,
    /// The number of `entries` before the latest step. In one step, the call takes one lock or several locks.
    earlier: usize,
    /// The innermost frame so far: the frame of the lock taken last, or else of the enclosing call.
    innermost: Option<Arc<Frame>>,
    call: Arc<MultiCall>,
}

impl MultiAcquisition {
    fn new(budget: Budget, enclosing: Option<Arc<Frame>>) -> Self {
        Self {
            budget,
            entries: Vec::new(),
            earlier: 0,
            innermost: enclosing,
            call: Arc::default(),
        }
    }

    /// Returns the lock whose loss caused `error`, if this call had taken that lock. If this call has re-entered the
    /// lock, returns the lock only if the hold of the enclosing call has ended.
    fn lost_before_the_body<'a>(
        &self,
        error: &LockError,
        spec: &'a [AcquireSpec],
    ) -> Option<&'a AcquireSpec> {
        let LockError::Lost { key, token, .. } = error else {
            return None;
        };
        let own = self.entries.iter();
        let mut own = own.filter(|entry| entry.has_begun() || entry.hold().has_ended());
        let hold = own
            .find(|entry| entry.hold().key == *key && entry.hold().token == *token)?
            .hold();
        spec.iter().find(|spec| spec.name == hold.name)
    }

    async fn enter(&mut self, spec: &[AcquireSpec]) -> Result<(), LockError> {
        let mut rest = spec;
        while !rest.is_empty() {
            // A step takes several locks together. The step ends before a lock that an enclosing call holds, and before
            // a lock in another slot of a Redis Cluster. Before it re-enters a lock that an enclosing call holds, the
            // call sometimes has to wait for its turn. During this wait, it must not hold any lock that sorts later.
            let shard = |spec: &AcquireSpec| spec.shared.backend.shard(&spec.name);
            let first = shard(&rest[0]);
            let new = rest
                .iter()
                .take_while(|spec| !self.is_enclosed(spec) && shard(spec) == first)
                .count();
            let (some, others) = rest.split_at(new.max(1));
            if !self.take_together(some).await? {
                for spec in some {
                    self.take(spec).await?;
                }
            }
            rest = others;
        }
        self.begin(spec).await
    }

    fn is_enclosed(&self, spec: &AcquireSpec) -> bool {
        let enclosing = self.innermost.as_ref();
        enclosing.is_some_and(|frame| frame.find(&spec.shared, &spec.name).is_some())
    }

    fn push(&mut self, mut entry: Entry) {
        // The loss of a lock does not count while the call waits for its other locks.
        let until = self.budget.waits_until().max(entry.hold().backend().now());
        entry.wait_for_body(until + CLAIM);
        if entry.has_begun() {
            entry.hold().take();
        }
        let outer = self.innermost.take();
        self.innermost = Some(entry.frame(outer, Some(self.call.clone())));
        self.entries.push(entry);
    }

    /// Runs `step`, and ends it with an error if one of the locks taken so far is lost.
    async fn unless_lost<T>(
        &self,
        step: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let done = tokio::select! {
            biased;
            done = step => done?,
            () = entry::loss_of_one(&self.entries) => return Err(self.loss()),
        };
        self.not_lost()?;
        Ok(done)
    }

    fn loss(&self) -> LockError {
        let lost = self.entries.iter().map(|entry| entry.hold().not_lost());
        lost.filter_map(Result::err)
            .next()
            .expect("one of the call's locks is lost")
    }

    /// Takes all locks of `spec` in one step if they are free. Returns `true` if the locks were taken.
    async fn take_together(&mut self, spec: &[AcquireSpec]) -> Result<bool, LockError> {
        let [first, _, ..] = spec else {
            return Ok(false);
        };
        let budget = self.budget;
        let until = if budget.waits() {
            // The answer of a far server can come after the end of `wait`. If the locks are free, the call enters
            // nevertheless. The check in `too_late` takes the other half of the time to leave.
            let waits_until = budget.waits_until();
            let asked = first.now().min(waits_until);
            waits_until.max(asked + first.leave_patience() / 2)
        } else {
            budget.answers_until(first)
        };
        let wait = budget.waits_until().since(first.now());
        let backend = first.shared.backend.clone();
        let requests = spec.iter().map(|spec| spec.request(wait));
        let taking = backend.acquire_multi(requests.collect());
        let taken = self.unless_lost(async {
            match unless_shut_down(&first.shared, until, taking).await? {
                // If `unless_lost` then finds that a lock taken earlier is lost, it drops the new entries. Dropping the
                // entries gives their grants back.
                Some(Ok(MultiAnswer::Granted(grants))) => {
                    let entries = spec.iter().zip(grants);
                    let entries = entries.map(|(spec, grant)| one::begin(spec, grant, None));
                    Ok(Some(Ok(entries.collect::<Vec<_>>())))
                }
                Some(Ok(MultiAnswer::Busy(index))) => Ok(Some(Err(index))),
                // After this error, `enter` takes the locks one by one, so that the error of `enter` names the refused
                // lock.
                Some(Err(BackendError::Refused(_) | BackendError::WrongLayout)) => Ok(None),
                // If too few nodes of a Redlock have answered, `enter` takes the locks one by one, because a request
                // for a single lock is repeated until `wait` is over.
                Some(Err(BackendError::Unreachable(_))) if budget.waits() => Ok(None),
                Some(Err(error)) => Err(failed(first, budget, error)),
                // The request for several locks can take more answers than one, so the check of the server decides.
                None => Err(too_late(first, budget, true).await),
            }
        });
        let taken = taken.await?;
        if taken.is_some() {
            self.budget = budget.answered();
        }
        let entries = match taken {
            Some(Ok(entries)) => entries,
            Some(Err(index)) if !budget.waits() => {
                return Err(busy_outside(&spec[index], budget, None));
            }
            Some(Err(_)) | None => return Ok(false),
        };
        self.earlier = self.entries.len();
        for entry in entries {
            self.push(entry);
        }
        Ok(true)
    }

    /// Takes one lock. While the call waits for this lock, the engine renews the leases of the locks taken so far.
    async fn take(&mut self, spec: &AcquireSpec) -> Result<(), LockError> {
        let budget = self.budget;
        // While the call waits for its other locks, a lease that is too short to be renewed is made longer.
        let lease = spec.terms.lease.time;
        let meanwhile = LeaseTerms {
            time: lease.max(MIN_RENEWED_LEASE.min(lease + limits::RENEWAL_MARGIN)),
            renewal: Renewal::WhileHeld {
                max_hold: Some(budget.waits_until().since(spec.now())),
            },
        };
        let without_demand = self
            .entries
            .iter_mut()
            .filter(|entry| budget.waits() && entry.has_begun() && !entry.has_demand());
        let extensions = without_demand.map(async |entry| {
            let extending = entry.hold().clone().extend_for(meanwhile, None);
            let until = budget.answers_until(spec);
            let demand = answered(spec, budget, until, extending).await?;
            entry.set_demand(demand);
            Ok::<_, LockError>(())
        });
        try_join_all(extensions).await?;
        let entering = one::enter_one(spec, &budget, self.innermost.as_ref(), true);
        let entry = self.unless_lost(entering).await?;
        self.earlier = self.entries.len();
        self.push(entry);
        Ok(())
    }

    /// Prepares the locks for the body: restarts or extends the leases of the locks taken before the latest step, and
    /// confirms every lease of which too little is left.
    async fn begin(&mut self, spec: &[AcquireSpec]) -> Result<(), LockError> {
        let budget = self.budget;
        let earlier = self.entries[..self.earlier].iter_mut().zip(spec);
        let begins = earlier.map(async |(entry, spec)| {
            let hold = entry.hold().clone();
            let until = budget.answers_until(spec);
            if entry.has_begun() && spec.terms.lease.renewal == Renewal::Fixed {
                // The restart removes the time that was added to the lease while the call waited.
                entry.set_demand(None);
                answered(spec, budget, until, hold.restart()).await
            } else {
                let extending = hold.extend_for(spec.terms.lease, entry.limit());
                let demand = answered(spec, budget, until, extending).await?;
                entry.set_demand(demand);
                Ok(())
            }
        });
        try_join_all(begins).await?;
        self.not_lost()?;
        let begun = || {
            let entries = self.entries.iter().zip(spec);
            entries.filter(|(entry, _)| entry.has_begun())
        };
        // A shutdown refuses this wait, but not a call that only re-enters locks.
        if spec[0].terms.needs_replicas() && begun().next().is_some() {
            let mut shards = BTreeMap::<u16, Vec<Arc<HoldState>>>::new();
            for (entry, spec) in begun() {
                let shard = spec.shared.backend.shard(&spec.name);
                shards.entry(shard).or_default().push(entry.hold().clone());
            }
            let replicating = shards.into_values().map(async |holds| {
                let first = holds[0].clone();
                match replicated(&spec[0], budget, holds).await? {
                    Waited::Replicated => Ok(()),
                    Waited::Lost => Err(first.not_lost().err().unwrap_or_else(|| first.not_held())),
                }
            });
            let waiting = self.unless_lost(try_join_all(replicating));
            let until = replicas_until(&spec[0], budget) + 2 * spec[0].leave_patience();
            let waited = unless_shut_down(&spec[0].shared, until, pin!(waiting)).await?;
            let Some(waited) = waited else {
                let first = begun().next().map(|(entry, _)| entry.hold().clone());
                return Err(match (too_late(&spec[0], budget, true).await, first) {
                    // The server answers, so the call was polled too late. It starts over.
                    (LockError::Busy { .. }, Some(hold)) => hold.not_held(),
                    (error, _) => error,
                });
            };
            waited?;
        }
        // All leases are confirmed in parallel. If the leases were confirmed one after another, too little of the first
        // lease could be left when the last lease is confirmed.
        while !begun().all(|(entry, _)| entry.hold().is_fresh()) {
            let confirms = begun().map(|(entry, spec)| {
                let until = budget.answers_until(spec);
                answered(spec, budget, until, entry.hold().clone().confirm())
            });
            self.unless_lost(try_join_all(confirms)).await?;
        }
        Ok(())
    }

    /// Begins the body, if all locks are still held. This method is called while the caller is polled.
    fn begin_body(&mut self, spec: &[AcquireSpec]) -> Result<(), LockError> {
        for (entry, spec) in self.entries.iter_mut().zip(spec) {
            if !entry.take_turn() {
                // The turn has passed to another call, because the body did not begin in time.
                return Err(busy_with_sibling(spec, self.budget));
            }
            let is_held = match entry.has_begun() {
                true => entry.hold().is_fresh() && entry.hold().begin_body(),
                false => entry.step_in(),
            };
            if !is_held {
                return Err(entry.hold().not_held());
            }
        }
        self.not_lost()
    }

    fn not_lost(&self) -> Result<(), LockError> {
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| entry.hold().not_lost())
    }
}
