//! The way into several locks: in the order of their names, the same for every call, so that no two calls wait for each
//! other.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, Together},
    error::LockError,
    lease::{LeaseTerms, MIN_RENEWED_LEASE, Moment, Renewal},
};

use crate::{
    entry::{Entered, Entry},
    reentry::{self, Frame, SeveralLocks},
    wait::{self, Wanted},
};

/// Enters all of these locks of one client, within the `wait` that they share.
///
/// They are taken in one step if all are free, else one after the other: those that are had already are kept while
/// the next one is waited for, and their leases begin anew with the body.
///
/// # Panics
/// Without any.
pub(crate) async fn enter(wanted: Vec<Wanted>) -> Result<Entered, LockError> {
    let mut in_order = wanted.clone();
    in_order.sort_by(|a, b| a.name.cmp(&b.name));
    in_order.dedup_by(|a, b| a.name == b.name);
    let shared = in_order[0].shared.clone();
    let at_least = in_order[0].terms.hold_at_least;
    let now = || shared.backend.now();
    let mut way = Way {
        started: now(),
        entries: Vec::with_capacity(in_order.len()),
        earlier: 0,
        innermost: reentry::enclosing(),
        call: Arc::default(),
    };
    wait::counted(&shared, async {
        if let Err(error) = way.enter(&in_order).await {
            // After an answer that somebody else is inside, nothing is left to the background.
            if matches!(error, LockError::Busy { .. }) && !way.entries.is_empty() {
                Entered::several(way.entries).leave().await;
            }
            return Err(seen_from_start(error, now().since(way.started)));
        }
        let entered = Entered::several(way.entries).for_at_least(at_least);
        way.call
            .show(entered.named(wanted.iter().map(|wanted| &wanted.name)));
        Ok(entered)
    })
    .await
}

/// How far one call has come.
struct Way {
    started: Moment,
    entries: Vec<Entry>,
    /// How many of the entries were there before the newest step.
    earlier: usize,
    /// What the next lock is nested in.
    innermost: Option<Arc<Frame>>,
    call: Arc<SeveralLocks>,
}

impl Way {
    async fn enter(&mut self, wanted: &[Wanted]) -> Result<(), LockError> {
        let mut rest = wanted;
        while !rest.is_empty() {
            // Up to the first lock that an enclosing call is inside of: its siblings take turns, and whoever waits for
            // a turn holds nothing that comes later in the order.
            let new = rest
                .iter()
                .take_while(|wanted| !self.is_enclosed(wanted))
                .count();
            let (some, others) = rest.split_at(new.max(1));
            if !self.take_together(some).await? {
                for wanted in some {
                    self.take(wanted).await?;
                }
            }
            rest = others;
        }
        self.begin(wanted).await
    }

    fn is_enclosed(&self, wanted: &Wanted) -> bool {
        let enclosing = self.innermost.as_ref();
        enclosing.is_some_and(|frame| frame.find(&wanted.shared, &wanted.name).is_some())
    }

    fn push(&mut self, entry: Entry) {
        self.innermost = Some(entry.frame().clone());
        self.entries.push(entry);
    }

    /// Takes them in one step if all of them are free.
    async fn take_together(&mut self, wanted: &[Wanted]) -> Result<bool, LockError> {
        let [first, _, ..] = wanted else {
            return Ok(false);
        };
        let first = what_is_left(first, self.started);
        let started = first.shared.backend.now();
        let requests = wanted
            .iter()
            .map(|wanted| what_is_left(wanted, self.started).request());
        let taking = first.shared.backend.acquire_together(requests.collect());
        let grants = match wait::within_wait(&first, started, taking).await {
            Some(Ok(Together::Granted(grants))) => grants,
            Some(Ok(Together::Busy(index))) if first.terms.wait.is_zero() => {
                return Err(wait::busy_outside(&wanted[index], started));
            }
            // One by one they are waited for, and a request that got lost is sent again.
            Some(Ok(Together::Busy(_)) | Err(BackendError::Unreachable(_))) => return Ok(false),
            Some(Err(error)) => return Err(wait::failed(&first, started, error)),
            None => return Err(wait::unreachable(&first, started)),
        };
        self.earlier = self.entries.len();
        for (wanted, grant) in wanted.iter().zip(grants) {
            let entry = wait::begin(wanted, grant, self.innermost.take(), Some(&self.call));
            self.push(entry);
        }
        Ok(true)
    }

    /// Takes one, and keeps what is had already while that lasts.
    async fn take(&mut self, wanted: &Wanted) -> Result<(), LockError> {
        let meanwhile = what_is_left(wanted, self.started);
        // A lease too short to be renewed is longer meanwhile.
        let lease = LeaseTerms {
            time: meanwhile.terms.lease.time.max(MIN_RENEWED_LEASE),
            renewal: Renewal::WhileHeld {
                max_hold: Some(meanwhile.terms.wait),
            },
        };
        for entry in &mut self.entries {
            if entry.has_begun() && !entry.is_covered() {
                let cover = wait::cover(&meanwhile, entry.hold(), lease).await?;
                entry.set_cover(cover);
            }
        }
        let wanted = what_is_left(wanted, self.started);
        let entry = wait::enter_one(&wanted, self.innermost.clone(), Some(&self.call)).await?;
        self.earlier = self.entries.len();
        self.push(entry);
        Ok(())
    }

    /// The body begins: the leases of what was had before the newest step begin with it.
    async fn begin(&mut self, wanted: &[Wanted]) -> Result<(), LockError> {
        for (entry, wanted) in self.entries[..self.earlier].iter_mut().zip(wanted) {
            let cover = wait::cover(
                &what_is_left(wanted, self.started),
                entry.hold(),
                wanted.terms.lease,
            )
            .await?;
            entry.set_cover(cover);
            if entry.has_begun() {
                entry.hold().begin_anew();
            }
        }
        Ok(())
    }
}

/// What is wanted of one lock, within what is left of the `wait` of the whole call.
fn what_is_left(wanted: &Wanted, started: Moment) -> Wanted {
    let waited = wanted.shared.backend.now().since(started);
    let mut wanted = wanted.clone();
    wanted.terms.wait = wanted.terms.wait.saturating_sub(waited);
    wanted
}

/// The same failure, seen from the start of the whole call.
fn seen_from_start(error: LockError, since_start: Duration) -> LockError {
    match error {
        LockError::Busy { key, with, .. } => LockError::Busy {
            key,
            waited: since_start,
            with,
        },
        LockError::Unreachable { key, detail, .. } => LockError::Unreachable {
            key,
            waited: since_start,
            detail,
        },
        other => other,
    }
}
