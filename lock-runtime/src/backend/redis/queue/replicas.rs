//! Waits until replicas of the server that stores a lock have acknowledged its grant.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, Replicated},
    fencing::FencingToken,
    key::LockName,
    lease::Moment,
    options::Replicas,
};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection};

use crate::backend::redis::{
    queue::{
        cohort_registry::Known,
        server::{RETRY_PAUSE, Retry, Server},
    },
    topology::single::Sessions,
    transport::connection::CallError,
};

/// How much longer than the time limit of its `WAIT` a call waits for the server's answer.
const ANSWER_PATIENCE: Duration = Duration::from_millis(200);

/// Waits until replicas have acknowledged the grant with this token. Repeats the request, over new connections, until
/// the server answers or refuses it, or the time is over.
pub(crate) async fn replicate(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    replicas: Replicas,
) -> Result<Replicated, BackendError> {
    // The server identifies the grant of a cohort by the token of the first member.
    let id = match server.cohorts.known(name, token) {
        Known::Itself => token.to_string(),
        Known::Turn(first) => first.to_string(),
        Known::Over => return Ok(Replicated::NotHeld),
    };
    let until = server.now() + replicas.within;
    let asking = async {
        loop {
            let node = server.sessions.sessions(name).await?;
            let asked = Asked {
                server: server.clone(),
                node,
                name: name.clone(),
                id: id.clone(),
                count: replicas.count,
                until,
            };
            // The connections belong to the engine's runtime, so that they outlive the runtime of the caller.
            let answer = server.context.spawn(async move { asked.ask().await }).await;
            let answer = answer.map_err(|panic| BackendError::Refused(panic.to_string()))?;
            match answer {
                Ok(replicated) => return Ok(replicated),
                Err(error) => {
                    if server.note_failure(error)? == Retry::Later {
                        server.context.sleep(RETRY_PAUSE).await;
                    }
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

/// A request for one grant, to one server.
struct Asked {
    server: Arc<Server>,
    node: Arc<Sessions>,
    name: LockName,
    /// The token that identifies the grant on the server.
    id: String,
    count: usize,
    until: Moment,
}

impl Asked {
    /// Sends the request over an idle connection, or over a new one. The server answers no other command of the
    /// connection until the replicas have answered, so a connection carries one request at a time.
    async fn ask(self) -> Result<Replicated, CallError> {
        let context = &self.server.context;
        let connection = match self.node.take_idle() {
            Some(connection) => connection,
            None => {
                let config = redis::AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None);
                let connecting = self.node.connector().connect(&config);
                let connected = context.timeout_at(self.until, connecting).await;
                let connected = connected.unwrap_or_else(|| Err(timed_out()));
                connected.map_err(|error| CallError::of(&error))?.0
            }
        };
        let answering = self.send(&connection);
        let answered = context.timeout_at(self.until + ANSWER_PATIENCE, answering);
        match answered.await.unwrap_or_else(|| Err(timed_out())) {
            Ok(replicated) => {
                self.node.put_idle(connection);
                Ok(replicated)
            }
            // The connection may lead to a server that is no longer the primary, so it is not used again.
            Err(error) => {
                self.node.connector().note_lost();
                Err(CallError::of(&error))
            }
        }
    }

    async fn send(&self, connection: &MultiplexedConnection) -> Result<Replicated, RedisError> {
        let renew = self.server.scripts.renew;
        // A lease of zero only reads how much of the lease is left.
        let check = renew.by_hash(&[self.name.as_str()], &["", &self.id, "0"]);
        // `WAIT` counts the replicas that have the newest write of its own connection. Adding zero to the token counter
        // is a write that changes nothing, and follows the grant in the server's history.
        let names = self.server.names(&self.name);
        let mut touch = redis::cmd("INCRBY");
        touch.arg(names.fence()).arg(0);
        let left = self.until.since(self.server.now()).as_millis().max(1); // a limit of 0 would be none
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.count)
            .arg(u64::try_from(left).unwrap_or(u64::MAX));
        // The three commands share one round trip, and the server carries them out in this order.
        let (checked, touched, acknowledged) = tokio::join!(
            biased;
            async { check.query_async::<Vec<i64>>(&mut connection.clone()).await },
            async { touch.query_async::<Value>(&mut connection.clone()).await },
            async { wait.query_async::<usize>(&mut connection.clone()).await },
        );
        let checked = match checked {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let by_source = renew.by_source(&check);
                by_source.query_async(&mut connection.clone()).await
            }
            checked => checked,
        }?;
        touched?;
        Ok(match checked.first() {
            Some(left) if *left < 0 => Replicated::NotHeld,
            _ => Replicated::By(acknowledged?),
        })
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
