//! The contract behind which Redis, the in-process backend and a quorum stand.
//!
//! A backend supplies primitives; waiting, renewal, re-entry and loss are the engine's. Every primitive is named by
//! an owner or a token, so that sending it twice is doing it once.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use crate::{
    fencing::FencingToken,
    key::LockName,
    lease::{Grant, LeaseTerms, Moment},
    options::Strategy,
    owner::OwnerId,
};

/// A future that a backend returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an acquisition asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lock.
    pub name: LockName,
    /// The acquisition's identity.
    pub owner: OwnerId,
    /// What is asked of the lease.
    pub lease: LeaseTerms,
    /// How long to wait; zero is one attempt that does not.
    pub wait: Duration,
    /// How to wait. To spin is the engine's: such a request does not wait.
    pub strategy: Strategy,
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Inside.
    Granted(Grant),
    /// Not free, and the request may not queue.
    Busy,
}

/// What an attempt to take several locks as one came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiAnswer {
    /// Inside all of them, in the order of the requests.
    Granted(Vec<Grant>),
    /// None of them was taken; the index of the first that is not free.
    Busy(usize),
}

/// What leaving the queue found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The owner was queued, or was unknown: it is neither any more.
    Left,
    /// The owner had been granted meanwhile, and is inside.
    Granted(Grant),
}

/// What becomes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// Nothing: it is only read whether the grant stands.
    Check,
    /// It lasts this long from now, unless it lasts longer already.
    To(Duration),
    /// It lasts this long from now, be that later or earlier. Nobody relies on it yet.
    Restart(Duration),
}

impl Extend {
    /// How long it shall last from now; zero for a check.
    #[must_use]
    pub fn lease(self) -> Duration {
        match self {
            Self::Check => Duration::ZERO,
            Self::To(lease) | Self::Restart(lease) => lease,
        }
    }

    /// Whether it may end the lease earlier.
    #[must_use]
    pub fn is_restart(self) -> bool {
        matches!(self, Self::Restart(_))
    }
}

/// A grant that is to be renewed, or checked, among others.
#[derive(Debug, Clone, Copy)]
pub struct ToRenew<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The grant.
    pub token: FencingToken,
    /// What becomes of its lease.
    pub extend: Extend,
}

/// What a renewal or a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The grant stands, at least until this moment.
    Until(Moment),
    /// The key is not held under this token any more.
    NotHeld,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lock was held under this token, and is not any more.
    Released,
    /// The lease had ended before; nothing was touched.
    NotHeld,
}

/// What is seen of a lock from outside. It may be stale when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The holder, if the lock is held.
    pub holder: Option<Holder>,
    /// How many queue; on a Redis server each process that waits by `notify` is one more.
    pub waiters: usize,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The acquisition that was granted.
    pub owner: OwnerId,
    /// Its fencing token; `None` where it takes none, as a plain lock of Redisson's.
    pub token: Option<FencingToken>,
    /// What is left of its lease; `None` while the backend itself keeps it.
    pub remaining: Option<Duration>,
}

/// Why a backend could not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendError {
    /// No answer: the server is down, cut off or too slow. Worth another try.
    Unreachable(String),
    /// The server answers, and refuses: out of memory, read-only, missing rights.
    Refused(String),
    /// The server has something else under the lock's name: a lock in another layout, or other data.
    WrongLayout,
    /// The client was shut down.
    ShutDown,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(detail) => write!(f, "the lock server cannot be reached: {detail}"),
            Self::Refused(detail) => write!(f, "the lock server refused: {detail}"),
            Self::WrongLayout => {
                f.write_str("the lock server has other data under the lock's name")
            }
            Self::ShutDown => f.write_str("the lock client was shut down"),
        }
    }
}

impl std::error::Error for BackendError {}

/// One acquisition under way. Dropped before it was settled by an answer, it gives back whatever it may have got, in
/// the background: neither a hold nor a place in the queue stays behind.
pub trait Attempt: Send {
    /// Tries, and queues if the request may wait; ends with the grant, in queue order, however long that takes.
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>>;

    /// Leaves the queue, unless the grant came first. An answer settles the attempt.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>>;
}

/// A place where locks live. All methods may be called from any thread; none but those that return a future waits.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The local clock, on which all deadlines count.
    fn now(&self) -> Moment;

    /// Ends at `deadline` by the local clock.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;

    /// Whether the backend keeps the leases of living holders by itself, so that nothing has to be renewed or checked.
    fn maintains_leases(&self) -> bool;

    /// Begins an acquisition. Nothing is sent before [`Attempt::enter`] is polled.
    fn attempt(&self, request: Request) -> Box<dyn Attempt>;

    /// Takes several locks, in one step, if each of them is free and waited for by nobody; else none. Nothing queues.
    /// Dropped before its answer it gives back, in the background, whatever it may have got.
    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>>;

    /// Gives the lock to the next waiter, or frees it; at `retain_until`, if that is later than now. Either way the grant
    /// cannot be renewed any more.
    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// The same without being awaited, tried again until the lease ends by itself. On a backend that does not keep leases by
    /// itself, one that was lost has no end: what the server still has of it is given back, and counts as no release.
    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
    );

    /// Extends, restarts or checks a lease.
    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        extend: Extend,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>>;

    /// How many grants are renewed and checked by one command, at most.
    fn renewal_batch(&self) -> usize {
        1
    }

    /// Renews and checks several grants, and answers in their order. None of them fails because of another one.
    fn renew_all<'a>(
        &'a self,
        grants: &'a [ToRenew<'a>],
    ) -> BoxFuture<'a, Vec<Result<Renewed, BackendError>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(grants.len());
            for grant in grants {
                answers.push(self.renew(grant.name, grant.token, grant.extend).await);
            }
            answers
        })
    }

    /// What kept the newest unanswered command from being answered, for the error message of a caller that gave up.
    fn last_error(&self) -> Option<String>;

    /// Reads who holds the lock.
    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>>;

    /// Whether the server answers within this time. Then a command of which nothing is heard is one of many.
    fn is_answering(&self, within: Duration) -> BoxFuture<'_, bool> {
        let _ = within;
        Box::pin(std::future::ready(true))
    }

    /// From now on every attempt ends with [`BackendError::ShutDown`], also one that is waiting.
    fn begin_shutdown(&self);

    /// Ends when nothing is left of the attempts that were given up.
    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Closes when every release in the background has ended, or its lease has; at `until` at the latest.
    fn close(&self, until: Moment) -> BoxFuture<'_, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_kept_the_server() {
        let text = |error: BackendError| error.to_string();
        assert!(
            text(BackendError::Unreachable("no route".into()))
                .ends_with("cannot be reached: no route")
        );
        assert!(text(BackendError::Refused("OOM".into())).ends_with("refused: OOM"));
        assert!(text(BackendError::WrongLayout).contains("other data"));
        assert!(text(BackendError::ShutDown).contains("shut down"));
    }
}
