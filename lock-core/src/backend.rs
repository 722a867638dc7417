//! The contract between the engine and its backends: one Redis server, a Redlock on several Redis servers, and the
//! in-process backend.
//!
//! A backend supplies primitives such as acquire, renew and release. The engine adds pauses between tries, scheduled
//! renewal, re-entry and loss detection. Every request that changes a lock names an owner or a token, so a request that
//! is sent twice has the same effect as one that is sent once.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use crate::{
    error::HeldBy,
    fencing::FencingToken,
    key::{LockKey, LockName},
    lease::{Grant, LeaseTerms, Moment},
    options::{Mode, Replicas},
    owner::OwnerId,
};

/// A future that a backend returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The parameters of one acquisition.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name of the lock.
    pub name: LockName,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// The length of the lease, and whether the lease is renewed.
    pub lease: LeaseTerms,
    /// Which other callers can be inside the lock.
    pub mode: Mode,
    /// The longest time for which the acquisition waits. With a `wait` of zero, the acquisition makes one attempt and
    /// never queues. For a caller with [`Strategy::Spin`](crate::options::Strategy::Spin), the engine makes one such
    /// attempt after another.
    pub wait: Duration,
    /// The path of the annotated function, or the label of a lock of the explicit API. Empty if the caller has neither.
    pub function: &'static str,
}

/// The result of an attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The lock was granted to the request's owner.
    Granted(Grant),
    /// The lock is held or has waiters, and the request is not allowed to queue.
    Busy,
    /// The attempt has missed its turn, because its caller's runtime does not run. It can queue again at its old place
    /// ([`Attempt::again`]).
    Missed,
}

/// The result of an attempt to take several locks in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiAnswer {
    /// All locks were granted. The grants are in the order of the requests.
    Granted(Vec<Grant>),
    /// No lock was taken. The value of this variant is the index of the first request whose lock is not free.
    Busy(usize),
}

/// The result of leaving the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The owner is no longer in the queue, or was never in the queue.
    Left,
    /// The owner was granted the lock before it could leave the queue, and now holds the lock.
    Granted(Grant),
}

/// What a renewal does to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// Only reads whether the grant still exists, and changes nothing.
    Check,
    /// Makes the lease end after this time, counted from now. A lease that already ends later stays unchanged.
    To(Duration),
    /// Makes the lease end after this time, counted from now, even if the lease then ends earlier than before. The
    /// caller must ensure that no code relies on the old end of the lease. For example, no code relies on it before the
    /// body begins.
    Restart(Duration),
}

impl Extend {
    /// Returns how long the renewed lease is to last from now, or zero for a check.
    #[must_use]
    pub fn lease(self) -> Duration {
        match self {
            Self::Check => Duration::ZERO,
            Self::To(lease) | Self::Restart(lease) => lease,
        }
    }

    /// Returns whether the renewal can make the lease end earlier than before.
    #[must_use]
    pub fn is_restart(self) -> bool {
        matches!(self, Self::Restart(_))
    }
}

/// One of several grants to renew or check.
#[derive(Debug, Clone, Copy)]
pub struct ToRenew<'a> {
    /// The name of the lock.
    pub name: &'a LockName,
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// What to do with the grant's lease.
    pub extend: Extend,
}

/// The result of a renewal or a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The grant is valid at least until this moment.
    Until(Moment),
    /// The grant with this token no longer exists.
    NotHeld,
}

/// The result of waiting until replicas have acknowledged some grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicated {
    /// `count` replicas have acknowledged the grants.
    By {
        /// The number of replicas.
        count: usize,
        /// A moment until which all of the grants are valid, according to the data on each of these replicas.
        until: Moment,
    },
    /// One of the grants no longer exists.
    NotHeld,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The release ended the grant with this token.
    Released,
    /// The grant with this token no longer existed, so the release changed nothing.
    NotHeld,
    /// The request was sent more than once, because an answer was lost, and the grant no longer existed when the answered
    /// copy arrived. An earlier copy has ended the grant, or the grant was gone before.
    Unknown,
}

/// A step in the record of a leader, which says when a leader was last known to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermStep {
    /// The leader leads, or is about to give its role up.
    Lead,
    /// Somebody asks the leader to resign.
    Dismiss,
}

/// The record of a leader after a [step](TermStep).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Led {
    /// For how long nobody led before this term. `None` if no earlier term is known.
    pub vacant_for: Option<Duration>,
    /// Whether the holder is asked to resign.
    pub dismissed: bool,
}

/// How long the record of a leader is kept after the last step.
pub const TERM_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A request about the number of permits that an operator has set for a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStep {
    /// Only reads the number.
    Read,
    /// Sets the number, which then replaces those of all callers. With `None`, each caller's own number counts again. A request
    /// that reaches the server after this moment changes nothing.
    Set(Option<u32>, Moment),
}

/// A request about a latch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LatchStep {
    /// Only reads the present round.
    Read,
    /// Reads the present round, and begins the first round if there is none.
    Join(RoundTerms),
    /// Keeps the lock of this round while it is open, so that readers of the lock wait for its end.
    Keep(u64),
    /// Counts this part in this round, unless it is counted already, or the round is over.
    Count(u64, LockKey),
    /// Begins the next round if this is the present round.
    Restart(RoundTerms, u64),
}

/// The terms of a round of a latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTerms {
    /// The number of parts.
    pub parts: u32,
    /// How long the round lasts.
    pub life: Duration,
}

/// The present round of a latch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The number of the round: the number of a later round is higher.
    pub generation: u64,
    /// The number of parts.
    pub parts: u32,
    /// The number of parts that are counted.
    pub counted: u32,
    /// The time left of the round; zero if the round is over.
    pub remaining: Duration,
    /// The numbers of the newest earlier rounds, and whether all of their parts were counted.
    pub earlier: Vec<(u64, bool)>,
}

/// A snapshot of the state of a lock. The state can change before the caller reads the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The holder, if the lock is held. If readers hold the lock, this is the first of them.
    pub holder: Option<Holder>,
    /// The other readers, if several hold the lock; at most 1,000.
    pub others: Vec<Holder>,
    /// The number of waiters in the queue.
    pub waiters: usize,
}

impl Status {
    /// Describes a lock with this holder and this number of waiters.
    #[must_use]
    pub fn new(holder: Option<Holder>, waiters: usize) -> Self {
        Self {
            holder,
            others: Vec::new(),
            waiters,
        }
    }
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The identity of the acquisition that holds the lock.
    pub owner: OwnerId,
    /// The holder's fencing token; `None` for a holder without a token, such as a plain Redisson lock.
    pub token: Option<FencingToken>,
    /// The time left of the holder's lease; `None` if the backend itself keeps the lease from ending, as the in-process
    /// backend does for a renewed lease without `max_hold`.
    pub remaining: Option<Duration>,
    /// The length of the holder's lease. For a kept lock, this is the time for which the lock was kept when its hold
    /// ended. `None` in Redisson's layout, and for the in-process backend.
    pub lease: Option<Duration>,
    /// Which other callers can be inside the lock.
    pub mode: Mode,
    /// Whether the hold has ended, and the lock is only kept for the rest of its `hold_at_least`. The other fields
    /// describe the hold that has ended. If callers of the last holder's session wait for the lock, that session keeps
    /// the lock, and only its own client sees that the lock is kept.
    pub kept: bool,
    /// How long ago the lock was granted, by the server's clock, as far as this client knows that clock. `None` for a
    /// holder without this information, such as a holder in Redisson's layout. If the lock was granted to a cohort,
    /// this is the time since the grant to the first member.
    pub held_for: Option<Duration>,
    /// Where the holder runs; `None` for a holder without this information, such as a holder in Redisson's layout. If
    /// the lock was granted to a cohort, [`Caller::function`] is the function of the first member.
    pub caller: Option<Caller>,
}

impl Holder {
    /// Describes a holder of which only the owner is known.
    #[must_use]
    pub fn new(owner: OwnerId) -> Self {
        Self {
            owner,
            token: None,
            remaining: None,
            lease: None,
            mode: Mode::Write,
            kept: false,
            held_for: None,
            caller: None,
        }
    }
}

/// The application, the process and the function of a call that holds a lock or waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caller {
    /// The name of the application: the setting `application` of the client; by default the name of the executable.
    pub application: String,
    /// The name of the host.
    pub host: String,
    /// The id of the process.
    pub pid: u32,
    /// The path of the annotated function, such as `shop::orders::pay`, or the label of a lock of the explicit API.
    /// Empty if the call has neither.
    pub function: String,
}

impl Caller {
    /// The maximum length of each text that describes a caller, in bytes.
    pub const LONGEST: usize = 64;

    /// Describes a caller. Keeps only the end of a text that is longer than [`LONGEST`](Self::LONGEST). Control
    /// characters and invisible characters are replaced, so that a caller can be shown on a terminal.
    #[must_use]
    pub fn new(application: &str, host: &str, pid: u32, function: &str) -> Self {
        // With invisible characters, or with characters that change the direction of the text, the text of one caller
        // could look like the text of another caller.
        let is_hidden = |char: char| {
            matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
                || char.is_control()
        };
        let visible = |text| {
            let shown = Self::end_of(text).replace(is_hidden, "\u{fffd}");
            Self::end_of(&shown).to_owned()
        };
        Self {
            application: visible(application),
            host: visible(host),
            pid,
            function: visible(function),
        }
    }

    /// Returns the last characters of a text, at most [`LONGEST`](Self::LONGEST) bytes. The end is kept because the end
    /// of a function's path identifies the function better than the beginning.
    #[must_use]
    pub fn end_of(text: &str) -> &str {
        let mut start = text.len().saturating_sub(Self::LONGEST);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        &text[start..]
    }
}

/// Writes a text such as ``shop@web-3 (pid 4711) `shop::orders::pay` ``.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} (pid {})", self.application, self.host, self.pid)?;
        if !self.function.is_empty() {
            write!(f, " `{}`", self.function)?;
        }
        Ok(())
    }
}

/// A caller that waits in the queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The identity of the acquisition that waits.
    pub owner: OwnerId,
    /// A short name of the waiter's session. Waiters with the same name belong to one client.
    pub session: String,
    /// How long the caller has been in the queue, by the server's clock.
    pub queued_for: Duration,
    /// How much longer the caller waits, by the server's clock. Zero if the caller's `wait` is over, but the caller's
    /// entry is still in the queue.
    pub remaining: Duration,
    /// Where the waiter runs; `None` for a waiter without this information.
    pub caller: Option<Caller>,
}

impl Waiter {
    /// Describes a waiter that has just joined the queue, and of which only the owner and the session are known.
    #[must_use]
    pub fn new(owner: OwnerId, session: String) -> Self {
        Self {
            owner,
            session,
            queued_for: Duration::ZERO,
            remaining: Duration::ZERO,
            caller: None,
        }
    }
}

/// The reason why a backend could not answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendError {
    /// The server did not answer, because the server is down, cut off or too slow. The caller can repeat the call.
    Unreachable(String),
    /// The server answered with an error, for example because the server is out of memory or read-only, or because the
    /// Redis user lacks a right.
    Refused(String),
    /// The server stores something else under the lock's name: a lock in another layout, or other data.
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

/// One acquisition in progress. If the attempt is dropped before its caller has received an answer, the backend removes
/// the attempt's grant or its place in the queue in the background.
pub trait Attempt: Send {
    /// Tries to take the lock, and queues if the request has a `wait`. A queued attempt waits for its turn without a
    /// time limit: the caller of this method bounds the wait.
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>>;

    /// Prepares another call of [`enter`](Self::enter), because the attempt has missed its turn, or because its caller has
    /// not taken the grant in time, so that the engine has given it back. The attempt then queues again at its old place,
    /// if the backend has a queue. This method is called while the caller is polled.
    fn again(&mut self) {}

    /// Leaves the queue, or returns the grant if the lock was granted before the attempt could leave. Either answer
    /// ends the attempt.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>>;

    /// Returns what the backend reported about the holder when it last refused the lock to this attempt, or when the
    /// attempt left the queue. Sends no request.
    fn held_by(&self) -> Option<Box<HeldBy>> {
        None
    }

    /// Returns whether an answer to a request of this attempt has come, so that it is known that the lock was taken.
    fn was_answered(&self) -> bool {
        true
    }
}

/// An iteration over the locks of a store, in steps.
pub trait Scan: Send {
    /// Runs the next step, and returns the names that the step has found; the list can be empty. Returns `None` after
    /// the last step. The same name can be returned by several steps. If the future is dropped, the next call repeats
    /// the step.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<LockName>>, BackendError>>;
}

/// A store of locks. All methods can be called from any thread. Methods that do not return a future never block.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time of the local clock, which all deadlines refer to.
    fn now(&self) -> Moment;

    /// Waits until `deadline` by the local clock.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;

    /// Returns whether the backend itself keeps the leases of live holders from ending, so that the engine has nothing
    /// to renew or check.
    fn maintains_leases(&self) -> bool;

    /// Begins an acquisition. No request is sent before the future of [`Attempt::enter`] is polled.
    fn attempt(&self, request: Request) -> Box<dyn Attempt>;

    /// Takes several locks in one step if each of them is free and has no waiters; otherwise takes none, and never
    /// queues. If the future is dropped before it completes, the backend releases the taken locks in the background.
    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>>;

    /// Ends a grant: passes the lock to the next waiter, or frees the lock if nobody waits. If `retain_until` is later
    /// than now, the lock first stays taken until that moment. After a release, the grant can no longer be renewed.
    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Starts a release in the background. The backend retries the release until the server answers, or until
    /// `latest_end`, but at least for a claim (2 s). `latest_end` is the latest end of the lease that any request of the
    /// hold has asked for. It is later than the end of the lease if an answer was not read.
    ///
    /// A `lease_ends` of `None` means that the lease was lost, or that no call has taken the lock. If the backend still has
    /// the grant, it removes the grant, but the statistics do not count this removal as a release.
    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
        latest_end: Moment,
    );

    /// Extends, restarts or checks a lease.
    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        extend: Extend,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>>;

    /// Turns the grant with this token, which a writer has, into that of a reader, and lets the readers enter that are next.
    /// Returns false if the grant no longer exists. A backend without readers returns [`BackendError::Refused`].
    fn downgrade<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        let _ = (name, token);
        Box::pin(std::future::ready(Err(without_readers())))
    }

    /// Adds a step to the record of the leader whose role is this lock, and returns the record. Returns `None`, and
    /// changes nothing, if the grant with this token no longer exists. A backend without a queue returns
    /// [`BackendError::Refused`].
    fn lead<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        step: TermStep,
    ) -> BoxFuture<'a, Result<Option<Led>, BackendError>> {
        let _ = (name, token, step);
        Box::pin(std::future::ready(Err(without_leaders())))
    }

    /// Reads or sets the number of permits of the semaphore that is stored as this lock, and lets the callers enter that
    /// fit now. Returns the number that an operator has set. A backend without semaphores returns [`BackendError::Refused`].
    fn limit<'a>(
        &'a self,
        name: &'a LockName,
        step: LimitStep,
    ) -> BoxFuture<'a, Result<Option<u32>, BackendError>> {
        let _ = (name, step);
        Box::pin(std::future::ready(Err(without_readers())))
    }

    /// Reads or changes the latch with this name, and returns its round afterwards; `None` if there is none. `lock` is the lock of
    /// the round that the step names: it lets its readers in when the round is over. A backend without readers returns
    /// [`BackendError::Refused`].
    fn latch<'a>(
        &'a self,
        name: &'a LockName,
        lock: Option<&'a LockName>,
        step: LatchStep,
    ) -> BoxFuture<'a, Result<Option<Round>, BackendError>> {
        let _ = (name, lock, step);
        Box::pin(std::future::ready(Err(without_readers())))
    }

    /// Waits until [`Replicas::count`] replicas have acknowledged the grants, but not longer than [`Replicas::within`].
    /// The locks must have the same [`shard`](Self::shard). A backend without replicas returns
    /// [`BackendError::Refused`].
    fn replicate<'a>(
        &'a self,
        grants: &'a [(&'a LockName, FencingToken)],
        replicas: Replicas,
    ) -> BoxFuture<'a, Result<Replicated, BackendError>> {
        let _ = (grants, replicas);
        let refusal = "a lock on a Redlock has no replicas, remove the option `replicas`";
        Box::pin(std::future::ready(Err(BackendError::Refused(
            refusal.into(),
        ))))
    }

    /// Returns the maximum number of grants that one command renews or checks.
    fn renewal_batch(&self) -> usize {
        1
    }

    /// Renews or checks several grants, and returns the answers in the same order. A failure to renew one grant does
    /// not affect the other grants.
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

    /// Waits until the server has changed: another server has taken over its locks, or it has restarted. The server may
    /// then lack grants, so the engine renews or checks all its holds. If the server changes while nobody waits, the
    /// next wait ends at once. By default, the wait never ends.
    fn server_changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Returns why the latest unanswered command got no answer, or `None` if no command has failed recently. A caller
    /// that gives up because of missing answers includes this text in its error.
    fn last_error(&self) -> Option<String>;

    /// Returns the reason for a missing answer, beginning with the address of the server.
    fn no_answer(&self) -> String {
        let server = self.server();
        match self.last_error() {
            Some(error) if error.contains(&server) => error,
            Some(error) => format!("{server}: {error}"),
            None => format!("{server}: no answer"),
        }
    }

    /// Returns whether the client has lost its connection for this lock, or could not make one. A call then reports an
    /// unreachable server.
    fn is_cut_off(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Returns the address of the server, or the addresses of the servers that were named, without credentials.
    fn server(&self) -> String {
        "memory:".into()
    }

    /// Returns the number of releases and of attempts that can have left something on the server, because no answer has
    /// confirmed their end yet.
    fn unconfirmed(&self) -> usize {
        0
    }

    /// Reads who holds the lock, and how many waiters the lock has.
    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>>;

    /// Begins an iteration over the names of the locks that are held. The iteration returns each stored name that
    /// contains `part`, and the caller filters these names further. Each step takes little of the server's time.
    fn scan(&self, part: &str) -> Result<Box<dyn Scan>, BackendError> {
        let _ = part;
        Err(only_on_a_server())
    }

    /// Reads the first waiters in the queue of a lock, at most `limit`, in the order of the queue. Callers that wait
    /// without a place in the queue are not included.
    fn waiters<'a>(
        &'a self,
        name: &'a LockName,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Waiter>, BackendError>> {
        let _ = (name, limit);
        Box::pin(std::future::ready(Err(only_on_a_server())))
    }

    /// Returns the number of the shard that stores a lock. In a Redis Cluster, this number is the lock's hash slot.
    /// [`acquire_multi`](Self::acquire_multi) can take locks in one step only if their shards are equal.
    fn shard(&self, name: &LockName) -> u16 {
        let _ = name;
        0
    }

    /// Returns whether the server that stores `name` answers within the time `within`. If `name` is `None`, returns
    /// whether every server answers. For a Redlock, returns whether a majority of the nodes answers.
    ///
    /// If this method returns `true`, the server works, and a command without an answer is merely delayed.
    fn is_answering<'a>(
        &'a self,
        name: Option<&'a LockName>,
        within: Duration,
    ) -> BoxFuture<'a, bool> {
        let _ = (name, within);
        Box::pin(std::future::ready(true))
    }

    /// Returns the round trip that the connection to the server that stores `name` has shown, or zero if it is not known.
    /// The engine waits longer for an answer that comes from far away.
    fn round_trip(&self, name: &LockName) -> Duration {
        let _ = name;
        Duration::ZERO
    }

    /// Makes all waiting attempts and all later attempts end with [`BackendError::ShutDown`].
    fn begin_shutdown(&self);

    /// Waits until the grants and the places in the queue of all abandoned attempts are removed.
    fn cleaned_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Waits until each background release is done or its lease has ended, but not beyond `until`, and then closes the
    /// backend.
    fn close(&self, until: Moment) -> BoxFuture<'_, ()>;
}

/// Returns the error of a backend that has no queue, and therefore no leaders.
#[must_use]
pub fn without_leaders() -> BackendError {
    let refusal = "candidates need a queue, which a Redlock and Redisson's layout do not have";
    BackendError::Refused(refusal.into())
}

/// Returns the error of a backend that has no readers.
#[must_use]
pub fn without_readers() -> BackendError {
    BackendError::Refused("a Redlock and Redisson's layout have no readers".into())
}

/// Returns the error of a backend that stores its locks in this process, and therefore cannot list locks or waiters.
fn only_on_a_server() -> BackendError {
    let refusal = "in-process locks cannot be listed, and have no queue that others can read";
    BackendError::Refused(refusal.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_keeps_the_ends_of_long_texts() {
        let long = format!("{}::pay", "é".repeat(100));
        let caller = Caller::new("a\nb\u{202e}c", &"\0".repeat(64), 1, &long);
        assert_eq!(caller.application, "a\u{fffd}b\u{fffd}c");
        assert!(caller.host.len() <= Caller::LONGEST, "{caller}");
        let kept = caller.function.len();
        assert!(kept <= Caller::LONGEST && kept > Caller::LONGEST - 2);
        assert!(caller.function.ends_with("é::pay"), "{caller}");
    }

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
