//! The leader: a role that one process of a fleet has at a time.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join;
use lock_core::{
    backend::{BackendError, Holder, TermStep},
    error::{LockError, LossReason},
    fencing::FencingToken,
    key::LockKey,
    lease::{MIN_LEASE, Moment},
    options::MAX_WAIT,
};

use crate::{
    acquire::{
        deadline::bounded,
        one,
        spec::{AcquireSpec, CallSite},
    },
    background::watched::Watched,
    events::{TARGET, metrics},
    guard::{Hold, LockGuard},
    lease::hold::HoldState,
    limits,
    lock::Lock,
    options::{ClientHandle, Settings},
};

/// A role that one process of a fleet has at a time, such as that of the scheduler.
///
/// Each process that can have the role calls [`run`](Self::run), and so becomes a *candidate*. One candidate leads. It
/// keeps the role for as long as its body runs and its lease is renewed. This time is called its *term*. When a term
/// ends, the next candidate leads, in the order in which the candidates queued.
///
/// The role of the leader `NAME` is the lock with the key `leader:NAME`. Everything that is promised about a lock
/// therefore holds for the role: two terms never overlap while their leases are valid, tokens rise, and a crash ends a
/// term with its lease. A leader needs a queue, so a Redlock and [Redisson's layout](crate::Layout::Redisson) refuse it
/// with [`LockError::Refused`].
///
/// This value and its clones know of their own terms only. Make one value for a role, and clone it: a second
/// `client.leader(NAME)` does not know that the first one leads.
///
/// # Fairness
/// Candidates lead in the order in which they queued. A candidate that resigns, or has queued for 24 hours, goes to the end
/// of the queue.
///
/// # Cancel safety
/// Every future of a leader can be dropped at any `.await`. Dropping the future of [`run`](Self::run) drops the body, and
/// then gives the role up in the background.
///
/// ```
/// use std::time::Duration;
///
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let leader = client.leader("scheduler").lease(Duration::from_secs(15));
/// let jobs = leader
///     .run(async |term| {
///         println!("leads with token {}, nobody led for {:?}", term.token(), term.vacant_for());
///         3
///     })
///     .await?;
/// assert_eq!(jobs, 3);
/// assert!(!leader.is_leader());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a leader does nothing until it runs"]
pub struct Leader {
    /// The role.
    lock: Lock,
    state: Arc<State>,
}

/// The state that the clones of a leader share.
#[derive(Default)]
struct State {
    /// The term of this process, from its grant until its role is given up.
    term: Watched<Option<Current>>,
    paused: Watched<bool>,
}

#[derive(Clone)]
struct Current {
    hold: Arc<HoldState>,
    since: Instant,
    /// Whether this process has resigned, and its body has not ended yet.
    resigned: bool,
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("lock", &self.lock)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}

/// The reason for the end of a term.
enum End<T> {
    /// The body has returned.
    Returned(T),
    /// The lease was lost, or the leader has resigned.
    Over,
}

impl Leader {
    pub(crate) fn new(client: ClientHandle, name: &str) -> Self {
        Self::of(name, Settings::new(client))
    }

    pub(crate) fn of(name: &str, mut settings: Settings) -> Self {
        settings.options.wait = Some(MAX_WAIT);
        settings.options.renew = Some(true);
        Self {
            lock: Lock::with(settings, LockKey::behind("leader:", name)),
            state: Arc::default(),
        }
    }

    /// Sets the lease time of a term, from one second to 24 hours. The engine renews the lease while the body runs. After
    /// a crash of the leader, nobody leads for at most the rest of this time.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock.settings.options.lease = Some(lease);
        self
    }

    /// Sets how long a term lasts at most. The leader then resigns: another candidate leads, or this process leads again
    /// if there is no other. Each term is shorter by a random part of up to a tenth, so that the leaders of several roles
    /// do not change at the same time. The shortest `max_term` is 10 ms.
    pub fn max_term(mut self, max_term: Duration) -> Self {
        let max_term = max_term.max(MIN_LEASE);
        // A body that blocks its thread does not see the end of its term. Its lease then runs out.
        self.lock.settings.options.max_hold = Some(max_term);
        self
    }

    /// Sets the name under which spans and metrics report the role. The default is `"unlabelled"`.
    pub fn label(mut self, label: &'static str) -> Self {
        self.lock.settings.site = CallSite::Label(label);
        self
    }

    /// Sets the namespace of the role, instead of the client's namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.lock.settings.namespace = Some(namespace.into());
        self
    }

    /// Waits for the role, and runs `body` while this process leads. Returns the value of the body when the body returns.
    ///
    /// If the lease is lost, or if this process resigns, the body is dropped at its next `.await`. The role is given up
    /// only after the body has been dropped. This process then becomes a candidate again, and calls `body` again when it
    /// leads next. A candidate waits without a limit, even if the server cannot be reached for a while.
    ///
    /// A body that blocks its thread cannot be dropped. It keeps the next leader out until it ends, but after
    /// [`resign`](Self::resign) at most until the end of the lease, which is then not renewed.
    ///
    /// An `Err` of the body is a value like any other: the call returns it, and the process is no longer a candidate. If the
    /// body panics, the role is given up, and the panic goes on.
    ///
    /// # Errors
    /// [`LockError::ShutDown`] if the client is shut down: a leader then resigns, and its body is dropped.
    /// [`LockError::Refused`], [`LockError::WrongLayout`], [`LockError::InvalidKey`] or [`LockError::InvalidOptions`] if the
    /// first wait for the role fails for a reason other than an unreachable server. A lost lease and an unreachable server are not
    /// errors. After the first term, the process becomes a candidate again after each failure, and logs it with level `WARN`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body, and then gives up the role or the place in the queue.
    ///
    /// ```
    /// # use lock_runtime::{LockClient, LockError, Term};
    /// # async fn jobs_missed(_: std::time::Duration) {}
    /// # async fn next_job() -> bool { false }
    /// async fn schedule(client: LockClient) -> Result<(), LockError> {
    ///     client.leader("scheduler").run(async |term: Term| {
    ///         if let Some(vacant) = term.vacant_for() {
    ///             jobs_missed(vacant).await;
    ///         }
    ///         while next_job().await {}
    ///     }).await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # schedule(LockClient::connect("memory:").await.unwrap()).await.unwrap();
    /// # }
    /// ```
    pub fn run<F, Fut>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<Fut::Output, LockError>> + use<F, Fut>
    where
        F: FnMut(Term) -> Fut,
        Fut: Future,
    {
        let leader = self.clone();
        async move { leader.campaign(body).await }
    }

    async fn campaign<F, Fut>(&self, mut body: F) -> Result<Fut::Output, LockError>
    where
        F: FnMut(Term) -> Fut,
        Fut: Future,
    {
        let spec = self.lock.spec()?;
        self.check(&spec).await?;
        let (mut failures, mut has_led) = (0, false);
        loop {
            tokio::select! {
                biased;
                () = self.state.paused.until(|paused| (!paused).then_some(())) => {}
                () = spec.shared.shutdown.begun() => return Err(LockError::ShutDown),
            }
            let entered = tokio::select! {
                biased;
                entered = one::enter(&spec, None) => entered,
                () = self.state.paused.until(|paused| paused.then_some(())) => continue,
            };
            match entered {
                Ok(entered) => {
                    (failures, has_led) = (0, true);
                    let guard = LockGuard::new(entered);
                    if let End::Returned(value) = self.lead(&spec, guard, &mut body).await {
                        return Ok(value);
                    }
                    // If the body has blocked its thread for its whole term, nothing else waits, and nobody could drop this
                    // future.
                    tokio::task::yield_now().await;
                }
                Err(LockError::Busy { .. } | LockError::Lost { .. }) => {}
                Err(error) if has_led || matches!(error, LockError::Unreachable { .. }) => {
                    if matches!(error, LockError::ShutDown) {
                        return Err(error);
                    }
                    tracing::warn!(target: TARGET, key = %spec.key, %error, "the campaign goes on after a failure");
                    failures += 1;
                    let chance = spec.shared.context.chance();
                    let pause = spec.terms.backoff.pause(failures, chance);
                    spec.shared.backend.sleep_until(spec.now() + pause).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns an error if the backend has no leaders.
    async fn check(&self, spec: &AcquireSpec) -> Result<(), LockError> {
        let backend = &spec.shared.backend;
        let nobody = FencingToken::new(0);
        let asking = backend.lead(&spec.name, nobody, TermStep::Lead);
        match bounded(backend, spec.now() + spec.terms.lease.time / 3, asking).await {
            Some(Err(error @ BackendError::Refused(_))) => {
                Err(LockError::from_backend(error, &spec.key, Duration::ZERO))
            }
            _ => Ok(()),
        }
    }

    /// Runs the body for one term.
    async fn lead<F, Fut>(
        &self,
        spec: &AcquireSpec,
        guard: LockGuard,
        body: &mut F,
    ) -> End<Fut::Output>
    where
        F: FnMut(Term) -> Fut,
        Fut: Future,
    {
        let (backend, name, token) = (&spec.shared.backend, &spec.name, guard.token());
        let leading = Leading::begin(&self.state, &guard, spec.site.label());
        let patience = (spec.terms.lease.time / 3).min(limits::RELEASE_PATIENCE);
        let note = || {
            bounded(
                backend,
                spec.now() + patience,
                backend.lead(name, token, TermStep::Lead),
            )
        };
        let vacant_for = match note().await {
            Some(Ok(Some(led))) => led.vacant_for,
            _ => None,
        };
        tracing::info!(target: TARGET, key = %spec.key, %token, ?vacant_for, "leads");
        let term = Term {
            hold: (*guard).clone(),
            vacant_for,
            state: self.state.clone(),
        };
        let ends = self.lock.settings.options.max_hold.map(|time| {
            let shorter =
                (time / 10).mul_f64(f64::from(spec.shared.context.chance()) / f64::from(u32::MAX));
            spec.now() + (time - shorter)
        });
        let end = {
            // A body that is to end is neither made nor polled.
            let (guard, body) = (&guard, &mut *body);
            let running = pin!(async move { guard.run(body(term)).await });
            tokio::select! {
                biased;
                () = self.state.until_resigned(token) => End::Over,
                () = spec.shared.shutdown.begun() => End::Over,
                ended = running => ended.map_or(End::Over, End::Returned),
                () = self.until_term_ends(spec, token, ends) => End::Over,
            }
        };
        leading.resign();
        // The record says from when nobody leads. It is written before the role is given up, over the same connection.
        join(note(), guard.release()).await;
        tracing::info!(target: TARGET, key = %spec.key, %token, "leads no longer");
        drop(leading);
        end
    }

    /// Keeps the record of the term, and waits until the term has to end: at `ends`, or because somebody dismisses the
    /// leader.
    async fn until_term_ends(&self, spec: &AcquireSpec, token: FencingToken, ends: Option<Moment>) {
        let (backend, every) = (&spec.shared.backend, spec.terms.lease.time / 3);
        loop {
            let next = spec.now() + every;
            backend
                .sleep_until(ends.map_or(next, |ends| ends.min(next)))
                .await;
            if ends.is_some_and(|ends| ends <= spec.now()) {
                return;
            }
            let noting = backend.lead(&spec.name, token, TermStep::Lead);
            if let Some(Ok(Some(led))) = bounded(backend, spec.now() + every, noting).await
                && led.dismissed
            {
                return;
            }
        }
    }

    /// Returns whether this process leads. The answer needs no command, and turns false before the role is given up, and
    /// at the local deadline of the lease, even if nothing else runs in this process.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        let term = self.state.term.get().clone();
        term.is_some_and(|term| !term.resigned && term.hold.is_valid())
    }

    /// Gives the role up, if this process has it. [`is_leader`](Self::is_leader) turns false at once. The body is dropped at
    /// its next `.await`, and then the role passes to the next candidate. This process goes to the end of the queue of
    /// candidates. Returns when the role is given up, or when the lease has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the role is given up nevertheless.
    pub async fn resign(&self) {
        let Some(hold) = self.state.resign() else {
            return;
        };
        let given_up = |term: &Option<Current>| {
            let term = term.as_ref();
            let has_role = term.is_some_and(|term| term.hold.token == hold.token);
            (!has_role).then_some(())
        };
        tokio::select! {
            biased;
            () = self.state.term.until(given_up) => {}
            _ = hold.wait_for_loss() => {}
        }
    }

    /// Gives the role up as [`resign`](Self::resign) does, without waiting, and does not become a candidate again until
    /// [`resume`](Self::resume) is called. A candidate leaves the queue.
    pub fn pause(&self) {
        self.state.paused.replace(true);
        self.state.resign();
    }

    /// Lets this process become a candidate again after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.state.paused.replace(false);
    }

    /// Asks the process that leads to resign. It does so within a third of its lease. Returns the process that was
    /// asked, or `None` if nobody leads, or if the leader has changed meanwhile. A body that blocks its thread does not notice
    /// the request.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status), and [`LockError::Refused`] for a client that must not
    /// change locks.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is unknown whether the leader is asked.
    pub async fn dismiss(&self) -> Result<Option<Holder>, LockError> {
        self.lock.spec()?; // the client may change locks
        let Some(holder) = self.holder().await? else {
            return Ok(None);
        };
        let Some(token) = holder.token else {
            return Ok(Some(holder));
        };
        let lock = self.lock.clone().wait(Duration::ZERO);
        let asking = lock.ask(|backend, name| backend.lead(name, token, TermStep::Dismiss));
        Ok(asking.await?.map(|_| holder))
    }

    /// Reads which process leads; `None` if nobody leads.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::status`](crate::Lock::status).
    pub async fn holder(&self) -> Result<Option<Holder>, LockError> {
        let lock = self.lock.clone().wait(Duration::ZERO);
        Ok(lock.status().await?.holder)
    }

    /// Watches which process leads. The calling process need not be a candidate.
    pub fn watch(&self) -> LeaderWatch {
        LeaderWatch {
            leader: self.clone(),
            seen: Role::Unknown {
                since: Instant::now(),
            },
        }
    }

    /// Asks who leads.
    async fn role(&self) -> Role {
        let since = Instant::now();
        let own = self.state.term.get().clone();
        if let Some(term) = own.filter(|term| !term.resigned && term.hold.is_valid()) {
            return Role::Leading {
                token: term.hold.token,
                since: term.since,
            };
        }
        match self.holder().await {
            Ok(Some(leader)) => Role::Following { leader, since },
            Ok(None) => Role::Vacant { since },
            Err(_) => Role::Unknown { since },
        }
    }
}

/// Returns the token of a term, unless this process has resigned from it.
fn leads(term: &Option<Current>) -> Option<FencingToken> {
    let term = term.as_ref().filter(|term| !term.resigned);
    term.map(|term| term.hold.token)
}

impl State {
    /// Waits until this process no longer leads with this token, or has to resign.
    async fn until_resigned(&self, token: FencingToken) {
        let over = |term: &Option<Current>| (leads(term) != Some(token)).then_some(());
        tokio::select! {
            biased;
            () = self.term.until(over) => {}
            // The role can have been granted at the moment of the pause.
            () = self.paused.until(|paused| paused.then_some(())) => {}
        }
    }

    /// Ends the present term of this process. Returns its hold.
    fn resign(&self) -> Option<Arc<HoldState>> {
        let hold = self.term.change(|term| {
            let term = term.as_mut()?;
            term.resigned = true;
            Some(term.hold.clone())
        })?;
        hold.stop_renewals();
        Some(hold)
    }
}

/// The present term of this process. Dropping this value says that the role is given up.
struct Leading<'a> {
    state: &'a State,
    token: FencingToken,
    label: &'static str,
}

impl<'a> Leading<'a> {
    fn begin(state: &'a State, guard: &LockGuard, label: &'static str) -> Self {
        let hold = guard.state().clone();
        let token = hold.token;
        state.term.replace(Some(Current {
            hold,
            since: Instant::now(),
            resigned: false,
        }));
        metrics::leads(label, 1.0);
        Self {
            state,
            token,
            label,
        }
    }

    /// Makes the leader say that it leads no longer, before its role is given up.
    fn resign(&self) {
        self.state.term.change(|term| {
            if let Some(term) = term.as_mut().filter(|term| term.hold.token == self.token) {
                term.resigned = true;
            }
        });
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        metrics::leads(self.label, -1.0);
        self.state.term.change(|term| {
            if term
                .as_ref()
                .is_some_and(|term| term.hold.token == self.token)
            {
                *term = None;
            }
        });
    }
}

/// The time in which this process leads.
#[derive(Clone)]
pub struct Term {
    hold: Hold,
    vacant_for: Option<Duration>,
    state: Arc<State>,
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("token", &self.token())
            .field("vacant_for", &self.vacant_for)
            .finish_non_exhaustive()
    }
}

impl Term {
    /// Returns the fencing token of the term. It is greater than that of each earlier term. Send it with every write, so
    /// that the resource can refuse the writes of an earlier leader.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Returns for how long nobody led before this term, by the server's clock, so that a scheduler can catch up. If the leader
    /// before crashed, or its call was dropped, the time begins up to a third of its lease earlier, so some jobs may run twice.
    /// If a leader crashes while it catches up, the next one does not learn of the rest: where each job counts, store which
    /// jobs are done. Returns `None` if no earlier term is known: nobody led in the last 30 days, the server has lost its
    /// state, or it did not answer.
    #[must_use]
    pub fn vacant_for(&self) -> Option<Duration> {
        self.vacant_for
    }

    /// Returns how much time is left until the local deadline of the lease.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Waits until the term is over: the body has ended, the lease is lost, or this process has resigned. The method is for
    /// tasks that the body has spawned; the body itself is dropped.
    ///
    /// # Cancel safety
    /// The future can be dropped, and the method can be called again.
    pub async fn lost(&self) {
        tokio::select! {
            biased;
            _ = self.hold.lost() => {}
            () = self.state.until_resigned(self.token()) => {}
        }
    }

    /// Returns why the lease of the term was lost, or `None` if it was not lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.hold.loss()
    }
}

/// The leader of a role, as one process sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Role {
    /// This process leads, with this fencing token.
    Leading {
        /// The fencing token of the term.
        token: FencingToken,
        /// When the term began.
        since: Instant,
    },
    /// Another process leads.
    Following {
        /// The process that leads.
        leader: Holder,
        /// When this process learnt of the leader.
        since: Instant,
    },
    /// Nobody leads.
    Vacant {
        /// When this process learnt that nobody leads.
        since: Instant,
    },
    /// The server has not answered, or was not asked yet.
    Unknown {
        /// Since when this process does not know who leads.
        since: Instant,
    },
}

impl Role {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leading { token, .. }, Self::Leading { token: other, .. }) => token == other,
            (Self::Following { leader, .. }, Self::Following { leader: other, .. }) => {
                leader.owner == other.owner
            }
            (Self::Vacant { .. }, Self::Vacant { .. })
            | (Self::Unknown { .. }, Self::Unknown { .. }) => true,
            _ => false,
        }
    }
}

/// Follows who leads.
///
/// ```
/// use lock_runtime::{LockClient, Role};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let mut watch = client.leader("scheduler").watch();
/// assert!(matches!(watch.changed().await, Role::Vacant { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LeaderWatch {
    leader: Leader,
    seen: Role,
}

impl LeaderWatch {
    /// Returns what the last call of [`changed`](Self::changed) has returned; `Unknown` before the first one.
    #[must_use]
    pub fn seen(&self) -> &Role {
        &self.seen
    }

    /// Waits until somebody else leads, or nobody, or until the server stops answering, or answers again. The first call
    /// usually returns at once. A term of this process is seen when it begins and when it ends. Other changes are seen within a
    /// third of the lease: the method asks the server that often.
    ///
    /// # Cancel safety
    /// The future can be dropped, and the method can be called again.
    pub async fn changed(&mut self) -> Role {
        let backend = &self.leader.lock.settings.client.shared.backend;
        let lease = self.leader.lock.settings.options.lease;
        let every = lease.unwrap_or(self.leader.lock.settings.client.defaults.lease) / 3;
        loop {
            let own = leads(&self.leader.state.term.get());
            let role = self.leader.role().await;
            if !role.is_same(&self.seen) {
                self.seen = role.clone();
                return role;
            }
            let changed = |term: &Option<Current>| (leads(term) != own).then_some(());
            tokio::select! {
                biased;
                () = self.leader.state.term.until(changed) => {}
                () = backend.sleep_until(backend.now() + every) => {}
            }
        }
    }
}
