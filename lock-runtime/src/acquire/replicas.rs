//! Waits until enough replicas have the grants of a call. The body of the call starts only after this wait. A nested
//! call that enters what is held does not wait: the call that acquired the lock has decided about its replicas.

use std::{pin::pin, sync::Arc};

use futures_util::future::{join_all, select_all};
use lock_core::{
    backend::Replicated,
    error::LockError,
    lease::{CLAIM, Moment},
    options::{Mode, OptionsError, Replicas},
};

use crate::{
    acquire::{
        deadline::{answered, bounded, unless_shut_down},
        entry::{Entered, Entry},
        reentry::Frame,
        spec::{AcquireSpec, Budget, busy_outside, failed, too_late},
    },
    lease::hold::HoldState,
};

/// Refuses a nested call that wants more than the call that acquired a lock which the nested call would enter: more
/// replicas, or more permits, or to write while that call only reads.
pub(crate) fn check_nested(
    specs: &[AcquireSpec],
    enclosing: Option<&Arc<Frame>>,
) -> Result<(), LockError> {
    for spec in specs {
        let wanted = spec.terms.replicas.count;
        let frame = enclosing.and_then(|frame| frame.find(&spec.shared, &spec.name));
        let outer = frame.filter(|frame| !frame.hold.has_ended());
        match (outer.map(|frame| frame.hold.mode()), spec.terms.mode) {
            (Some(Mode::Permits { take: held, .. }), Mode::Permits { take: wanted, .. })
                if wanted > held =>
            {
                return Err(OptionsError::MorePermitsThanHeld { wanted, held }.into());
            }
            (Some(Mode::Permits { .. }), Mode::Permits { .. }) => {}
            (Some(held), wanted) if held.is_shared() && held != wanted => {
                return Err(OptionsError::Upgrade.into());
            }
            _ => {}
        }
        if let Some(hold) = frame.map(|frame| &frame.hold)
            && wanted > hold.replicas
            && !hold.has_ended()
        {
            let held = hold.replicas;
            return Err(OptionsError::MoreReplicasThanHeld { wanted, held }.into());
        }
    }
    Ok(())
}

/// The result of a wait for replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Enough replicas have the grants.
    Replicated,
    /// At least one of the grants is lost.
    Lost,
}

/// Waits until as many replicas as the call needs have the grant of a new entry. Returns the entry, and whether its body
/// can begin. If not, the call has to wait for the lock again, because the server has lost the grant. If too few replicas acknowledge the grant, gives the lock back before
/// the call fails.
pub(crate) async fn with_replicas(
    spec: &AcquireSpec,
    budget: Budget,
    entry: Entry,
) -> Result<(Entry, bool), LockError> {
    let hold = entry.hold().clone();
    let until = replicas_until(spec, budget);
    // While the engine waits for the replicas, the lock is not offered to the caller.
    hold.wait_for_body(until + CLAIM);
    let waiting = pin!(replicated(spec, budget, vec![hold]));
    let answer = unless_shut_down(&spec.shared, until + 2 * spec.leave_patience(), waiting).await;
    let error = match answer {
        Ok(Some(Ok(Waited::Replicated))) => return Ok((entry, true)),
        Ok(Some(Ok(Waited::Lost))) => return Ok((entry, false)),
        Ok(Some(Err(error))) | Err(error) => error,
        Ok(None) => too_late(spec, budget, true).await,
    };
    let has_time = budget.waits() && spec.now() < budget.waits_until();
    if has_time && matches!(error, LockError::Busy { .. }) {
        return Ok((entry, false)); // the call waits for the lock again
    }
    let leaving = Entered::one(entry).leave(false);
    bounded(
        &spec.shared.backend,
        spec.now() + spec.leave_patience(),
        leaving,
    )
    .await;
    Err(match error {
        // Before the call had left, its own hold counted as the holder of the lock.
        LockError::Busy { .. } => busy_outside(spec, budget, None),
        error => error,
    })
}

/// Waits until as many replicas as the call needs have the grants of these holds. The locks must have the same shard.
/// Fails if too few replicas acknowledge the grants in time.
pub(crate) async fn replicated(
    spec: &AcquireSpec,
    budget: Budget,
    holds: Vec<Arc<HoldState>>,
) -> Result<Waited, LockError> {
    // The grant of a caller that has queued lasts only for its claim (2 s) until a renewal confirms the grant. The
    // grant is confirmed here, so that the replicas receive the whole lease.
    for hold in holds.iter().filter(|hold| hold.is_claim()) {
        let until = budget.answers_until(spec);
        answered(spec, budget, until, hold.clone().confirm()).await?;
    }
    let until = replicas_until(spec, budget);
    loop {
        let replicas = Replicas {
            within: until.since(spec.now()),
            ..spec.terms.replicas
        };
        let grants: Vec<_> = holds.iter().map(|hold| (&hold.name, hold.token)).collect();
        let asking = spec.shared.backend.replicate(&grants, replicas);
        let losses = holds.iter().map(|hold| Box::pin(hold.wait_for_loss()));
        let answer = tokio::select! {
            biased;
            answered = asking => answered,
            _ = select_all(losses) => return Ok(Waited::Lost),
        };
        let (count, ends) = match answer {
            Err(error) => return Err(failed(spec, budget, error)),
            Ok(Replicated::NotHeld) => return Ok(Waited::Lost),
            Ok(Replicated::By { count, until }) => (count, until),
        };
        // The body starts only if at least two thirds of its lease are left on the replicas.
        let now = spec.now();
        let lease = spec.terms.lease.time;
        if count >= replicas.count && ends.since(now) >= lease * 2 / 3 {
            return Ok(Waited::Replicated);
        }
        if now >= until || count < replicas.count {
            return Err(LockError::NotReplicated {
                key: spec.key.clone(),
                wanted: replicas.count,
                acknowledged: if count < replicas.count { count } else { 0 },
            });
        }
        let renewed_by = until.max(now + spec.leave_patience());
        let renewals = holds
            .iter()
            .map(|hold| answered(spec, budget, renewed_by, hold.clone().renew(lease)));
        for renewed in join_all(renewals).await {
            if renewed?.is_err() {
                return Ok(Waited::Lost);
            }
        }
    }
}

/// Returns the moment until which a call waits for replicas. The wait for replicas is part of the acquisition, so it
/// ends with the time limit of the acquisition at the latest.
pub(crate) fn replicas_until(spec: &AcquireSpec, budget: Budget) -> Moment {
    let now = spec.now();
    let limit = if budget.waits() {
        budget.waits_until()
    } else {
        budget.answers_until(spec)
    };
    limit.min(now + spec.terms.replicas.within)
}
