//! Waits until replicas of the server that stores a lock have acknowledged the grant of this lock.
//!
//! In a Redis Cluster, the lock can move to another server during the wait, and the replicas of its former server then do
//! not count. The engine therefore checks during the wait, and once more after it, that the server still stores the
//! grants. If not, the engine asks the server that stores the grants now.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use lock_core::{
    backend::{BackendError, Replicated},
    fencing::FencingToken,
    key::LockName,
    lease::{Moment, less_drift},
    options::Replicas,
};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::backend::redis::{
    core::cohorts::Known,
    protocol::request::not_understood,
    queue::server::Server,
    topology::node::Node,
    transport::{call_error::CallError, connection::Connection, wait_connections::WaitConnection},
};
use crate::limits;

/// Asks the server to wait until enough of its replicas have acknowledged these grants, for at most the time
/// `replicas.within`. If the request fails, asks again until the server answers or refuses the request. Gives up
/// [`limits::LEAVE_PATIENCE`] after the end of this time.
pub(crate) async fn replicate(
    server: &Arc<Server>,
    grants: &[(&LockName, FencingToken)],
    replicas: Replicas,
) -> Result<Replicated, BackendError> {
    let mut asked = Vec::with_capacity(grants.len());
    for (name, token) in grants {
        // The server identifies the grant of a cohort by the token of the cohort's first member.
        let id = match server.core.with(|core| core.known(name, *token)) {
            Known::Itself => token.to_string(),
            Known::Turn(first) => first.to_string(),
            Known::Over => return Ok(Replicated::NotHeld),
        };
        asked.push(Grant { name, id });
    }
    let until = server.now() + replicas.within;
    let asked = Asked {
        server,
        grants: asked,
        // The server may read this count as a signed 32-bit number.
        count: replicas.count.min(i32::MAX as usize),
        until,
        without_permit: AtomicUsize::new(0),
    };
    let mut answer = pin!(asked.answer());
    let context = &server.context;
    let name = asked.grants[0].name;
    let patience = server.patience(name, limits::LEAVE_PATIENCE);
    let answered = context.timeout_at(until + patience, answer.as_mut());
    if let Some(answered) = answered.await {
        return answered;
    }
    let is_unasked = asked.without_permit.load(Ordering::Acquire) > 0;
    if is_unasked && server.is_answering(Some(name), patience / 2).await {
        return Ok(Replicated::By { count: 0, until });
    }
    let detail = server.last_error();
    Err(BackendError::Unreachable(
        detail.unwrap_or_else(|| "no answer".into()),
    ))
}

/// A request to wait until replicas have acknowledged grants.
struct Asked<'a> {
    server: &'a Arc<Server>,
    grants: Vec<Grant<'a>>,
    count: usize,
    until: Moment,
    /// The number of requests that wait until another call has left its connection.
    without_permit: AtomicUsize,
}

/// Counts one request that waits until another call has left its connection.
struct WithoutPermit<'a>(&'a AtomicUsize);

impl<'a> WithoutPermit<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for WithoutPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A grant, and the token that identifies it on the server.
struct Grant<'a> {
    name: &'a LockName,
    id: String,
}

/// A server that stores grants.
struct Place {
    node: Arc<Node>,
    connection: Arc<Connection>,
    /// Whether the slot of the grants is still moving to this server.
    is_moving: bool,
}

/// The answer of one server for some grants.
struct Acknowledged<'a> {
    grants: &'a [Grant<'a>],
    by: Place,
    count: usize,
    /// A moment until which the grants are valid, according to the data on each of the replicas.
    until: Moment,
}

/// The reason why a request has no answer.
enum Unanswered {
    /// One of the grants no longer exists.
    NotHeld,
    Failed(CallError),
}

impl From<CallError> for Unanswered {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

impl Asked<'_> {
    /// Asks until the servers answer or refuse the request.
    async fn answer(&self) -> Result<Replicated, BackendError> {
        let mut together = self.grants.len();
        loop {
            let error = match self.ask_all(together).await {
                Ok(replicated) => return Ok(replicated),
                Err(Unanswered::NotHeld) => return Ok(Replicated::NotHeld),
                Err(Unanswered::Failed(error)) => error,
            };
            // While a slot moves, a server refuses a command with several keys if some of the keys are missing (TRYAGAIN).
            together = match &error {
                CallError::NotReady(_) if self.server.sessions.is_cluster() => 1,
                _ => self.grants.len(),
            };
            self.server.note_failure(error)?;
            self.server.context.sleep(limits::RETRY_PAUSE).await;
        }
    }

    /// Sends one request for each `together` grants, and waits for the answers.
    async fn ask_all(&self, together: usize) -> Result<Replicated, Unanswered> {
        let asking = self.grants.chunks(together).map(|grants| self.ask(grants));
        let answers = try_join_all(asking).await?;
        let weakest = answers.iter().map(|one| (one.count, one.until));
        let weakest = weakest.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
        let (count, until) = weakest.expect("a request names at least one grant");
        if self.server.sessions.is_cluster() && count >= self.count {
            // A lock can move between the acknowledgement of its replicas and the last answer.
            let checks = answers.iter().map(|one| self.check(&one.by, one.grants));
            try_join_all(checks).await?;
        }
        Ok(Replicated::By { count, until })
    }

    /// Asks the server that stores these grants. If the grants are moving to another server, asks the other server.
    async fn ask<'b>(&self, grants: &'b [Grant<'b>]) -> Result<Acknowledged<'b>, Unanswered> {
        let sessions = &self.server.sessions;
        let (node, connection) = sessions
            .connected(grants[0].name)
            .await
            .map_err(CallError::Refused)?;
        let is_moving = false;
        let place = Place {
            node,
            connection,
            is_moving,
        };
        let to = match self.ask_at(place, grants).await {
            Err(Unanswered::Failed(CallError::Ask(to))) => to,
            answer => return answer,
        };
        // The slot map can lose this server while the engine connects to it, and the move can be cancelled.
        let lost =
            || CallError::Broken("the lock is moving to a server without a connection".into());
        let context = &self.server.context;
        let connecting =
            context.timeout_at(context.now() + limits::SLOT_PAUSE, sessions.redirected(&to));
        let (node, connection) = connecting.await.and_then(Result::ok).ok_or_else(lost)?;
        let is_moving = true;
        let place = Place {
            node,
            connection,
            is_moving,
        };
        self.ask_at(place, grants).await
    }

    /// Asks this server. Gives up if the connection of the session breaks, or if the server no longer
    /// stores the grants.
    async fn ask_at<'b>(
        &self,
        by: Place,
        grants: &'b [Grant<'b>],
    ) -> Result<Acknowledged<'b>, Unanswered> {
        let (count, until) = tokio::select! {
            biased;
            answer = self.wait(&by, grants) => answer?,
            () = by.connection.health.until_broken() => {
                return Err(CallError::Broken("the connection was lost".into()).into());
            }
            failure = self.until_gone(&by, grants) => return Err(failure),
        };
        Ok(Acknowledged {
            grants,
            by,
            count,
            until,
        })
    }

    /// In a Redis Cluster, waits until a check fails, and returns the failure. Outside of a cluster, never completes.
    async fn until_gone(&self, place: &Place, grants: &[Grant<'_>]) -> Unanswered {
        if !self.server.sessions.is_cluster() {
            return std::future::pending().await;
        }
        loop {
            self.server.context.sleep(limits::SLOT_PAUSE).await;
            if let Err(failure) = self.check(place, grants).await {
                return failure;
            }
        }
    }

    /// Checks that the server still stores the grants.
    async fn check(&self, place: &Place, grants: &[Grant<'_>]) -> Result<(), Unanswered> {
        let (keys, args) = words("", grants);
        let renew = self.server.scripts.renew;
        let running = if place.is_moving {
            place.connection.run_while_moving(renew, &keys, &args)
        } else {
            place.connection.run(renew, &keys, &args)
        };
        let (left, _) = running.await?;
        let left = shortest(left, grants).map_err(CallError::Refused)?;
        left.map(drop).ok_or(Unanswered::NotHeld)
    }

    /// Sends the request to wait for replicas over a connection that no other call uses, and waits for the answer.
    async fn wait(
        &self,
        place: &Place,
        grants: &[Grant<'_>],
    ) -> Result<(usize, Moment), Unanswered> {
        let connection = &place.connection;
        let failed = |error: RedisError| connection.failed_beside(&error);
        let waits = WithoutPermit::new(&self.without_permit);
        let permit = connection.wait_connections.permit().await;
        drop(waits);
        let connecting =
            connection
                .wait_connections
                .take(permit, place.node.connector(), &connection.address);
        let waiting = connecting.await.map_err(failed)?;
        let sent = self.server.now();
        let touching = self.touch(&waiting, place.is_moving, grants);
        let left = touching.await.map_err(|error| {
            let error = failed(error);
            if matches!(error, CallError::Broken(_)) {
                // The server has probably closed the other connections that were idle, too.
                connection.wait_connections.forget_idle();
            }
            error
        })?;
        let left = shortest(left, grants).map_err(CallError::Refused)?;
        let left = left.ok_or(Unanswered::NotHeld)?;
        let known_until = sent + less_drift(left);
        // The time limit of `WAIT` leaves time for the answer to arrive before `until`, in a cluster also for the last
        // check. A limit of 0 would make `WAIT` wait without a limit.
        let answered = self.server.now();
        let round_trips = if self.server.sessions.is_cluster() {
            2
        } else {
            1
        };
        // The time of the first request is only an estimate of a round trip, and can be much too long.
        let rest = self.until.since(answered);
        let round_trips =
            (round_trips * answered.since(sent)).min(limits::LEAVE_PATIENCE.max(rest / 4));
        let limit = rest.saturating_sub(round_trips);
        let mut wait = redis::cmd("WAIT");
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        let count = wait
            .arg(self.count)
            .arg(limit)
            .query_async(&mut waiting.redis.clone())
            .await
            .map_err(failed)?;
        waiting.put_back();
        Ok((count, known_until))
    }

    /// Writes each grant again over this connection, unchanged, because `WAIT` counts only the replicas that have
    /// received the newest write of its own connection.
    async fn touch(
        &self,
        connection: &WaitConnection<'_>,
        is_moving: bool,
        grants: &[Grant<'_>],
    ) -> Result<Value, RedisError> {
        let renew = self.server.scripts.renew;
        let mut redis = connection.redis.clone();
        let (keys, args) = words("touch", grants);
        let touch = renew.by_hash(&keys, &args);
        if is_moving {
            let (_, left) = redis.send_asking(&renew.by_source(&touch))?;
            return left.receive().await?.extract_error();
        }
        match touch.query_async(&mut redis).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                renew.by_source(&touch).query_async(&mut redis).await
            }
            left => left,
        }
    }
}

/// Returns the keys and the arguments of the script that renews grants. The lease "0" tells the script to extend no
/// lease.
fn words<'a>(mode: &'a str, grants: &'a [Grant<'_>]) -> (Vec<&'a str>, Vec<&'a str>) {
    let keys = grants.iter().map(|grant| grant.name.as_str()).collect();
    let ids = grants.iter().flat_map(|grant| [grant.id.as_str(), "0"]);
    (keys, std::iter::once(mode).chain(ids).collect())
}

/// Returns the shortest time that is left of the leases of these grants, according to the answer of the script. Returns
/// `None` if the server no longer has one of the grants.
fn shortest(left: Value, grants: &[Grant<'_>]) -> Result<Option<Duration>, BackendError> {
    let left: Vec<i64> = redis::from_redis_value(left).map_err(|error| not_understood(&error))?;
    let shortest = left.iter().min().filter(|_| left.len() == grants.len());
    let shortest = shortest.and_then(|left| u64::try_from(*left).ok());
    Ok(shortest.map(Duration::from_millis))
}
