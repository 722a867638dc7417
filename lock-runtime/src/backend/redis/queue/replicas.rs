//! Waits until replicas of the server that stores a lock have acknowledged the grant of this lock.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, Replicated},
    fencing::FencingToken,
    key::LockName,
    lease::{Moment, less_drift},
    options::Replicas,
};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::redis::{
    queue::{
        cohort_registry::Known,
        server::{RETRY_PAUSE, Server},
    },
    transport::{call_error::CallError, connection::Connection, wait_connections::WaitConnection},
};

/// The time for which a call waits for the server's answer after the time limit of the command `WAIT` has passed.
const ANSWER_PATIENCE: Duration = Duration::from_millis(200);

/// Asks the server to wait until enough of its replicas have acknowledged these grants, for at most the time
/// `replicas.within`. If the request fails, asks again until the server answers or refuses the request. Gives up
/// [`ANSWER_PATIENCE`] after the end of this time.
pub(crate) async fn replicate(
    server: &Arc<Server>,
    grants: &[(&LockName, FencingToken)],
    replicas: Replicas,
) -> Result<Replicated, BackendError> {
    // The server identifies the grant of a cohort by the token of the cohort's first member.
    let mut ids = Vec::with_capacity(grants.len());
    for (name, token) in grants {
        ids.push(match server.cohorts.known(name, *token) {
            Known::Itself => token.to_string(),
            Known::Turn(first) => first.to_string(),
            Known::Over => return Ok(Replicated::NotHeld),
        });
    }
    let names: Vec<_> = grants.iter().map(|(name, _)| *name).collect();
    let until = server.now() + replicas.within;
    let asked = Asked {
        server,
        names,
        ids,
        // The server may read this count as a signed 32-bit number.
        count: replicas.count.min(i32::MAX as usize),
        until,
    };
    let asking = async {
        loop {
            match asked.ask().await {
                Ok(replicated) => return Ok(replicated),
                Err(error) => {
                    server.note_failure(error)?;
                    server.context.sleep(RETRY_PAUSE).await;
                }
            }
        }
    };
    let answered = server.context.timeout_at(until + ANSWER_PATIENCE, asking);
    answered.await.unwrap_or_else(|| {
        let detail = server.last_error();
        Err(BackendError::Unreachable(
            detail.unwrap_or_else(|| "no answer".into()),
        ))
    })
}

/// A request to wait until replicas have acknowledged grants.
struct Asked<'a> {
    server: &'a Arc<Server>,
    names: Vec<&'a LockName>,
    /// The tokens that identify the grants on the server.
    ids: Vec<String>,
    count: usize,
    until: Moment,
}

impl Asked<'_> {
    /// Sends the request to wait for replicas over a connection that no other call uses, and waits for the server's
    /// answer. Gives up if the connection of the engine's home session breaks, or if the server is no longer the
    /// primary.
    async fn ask(&self) -> Result<Replicated, CallError> {
        let (sessions, name) = (&self.server.sessions, self.names[0]);
        let home = sessions.home_connection(name).await;
        let home = home.map_err(CallError::Refused)?;
        tokio::select! {
            biased;
            answer = self.ask_beside(&home) => answer,
            () = home.health.until_broken() => Err(CallError::Broken("the connection was lost".into())),
        }
    }

    async fn ask_beside(&self, home: &Connection) -> Result<Replicated, CallError> {
        let node = self.server.sessions.sessions(self.names[0]).await;
        let node = node.map_err(CallError::Refused)?;
        let connecting = home.wait_connections.take(node.connector(), &home.address);
        let connection = connecting.await.map_err(|error| CallError::of(&error))?;
        self.send(connection)
            .await
            .map_err(|error| CallError::of(&error))
    }

    async fn send(&self, connection: WaitConnection<'_>) -> Result<Replicated, RedisError> {
        let renew = self.server.scripts.renew;
        let mut redis = connection.redis.clone();
        let keys: Vec<_> = self.names.iter().map(|name| name.as_str()).collect();
        // `WAIT` counts only the replicas that have received the newest write of its own connection. The script
        // therefore first writes each grant again over this connection, unchanged. The lease "0" tells the script to
        // extend no lease.
        let mut args = vec!["touch"];
        args.extend(self.ids.iter().flat_map(|id| [id.as_str(), "0"]));
        let sent = self.server.now();
        let touch = renew.by_hash(&keys, &args);
        let left: Vec<i64> = match touch.query_async(&mut redis).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                renew.by_source(&touch).query_async(&mut redis).await?
            }
            left => left?,
        };
        let shortest = left
            .iter()
            .copied()
            .min()
            .filter(|_| left.len() == keys.len());
        let Some(Ok(shortest)) = shortest.map(u64::try_from) else {
            return Ok(Replicated::NotHeld);
        };
        let known_until = sent + less_drift(Duration::from_millis(shortest));
        // The time limit of `WAIT` leaves time for the answer to arrive before `until`. A limit of 0 would make `WAIT`
        // wait without a limit.
        let answered = self.server.now();
        let round_trip = answered.since(sent);
        let limit = self.until.since(answered).saturating_sub(round_trip);
        let mut wait = redis::cmd("WAIT");
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        let count = wait
            .arg(self.count)
            .arg(limit)
            .query_async(&mut redis)
            .await?;
        connection.put_back();
        Ok(Replicated::By {
            count,
            until: known_until,
        })
    }
}
