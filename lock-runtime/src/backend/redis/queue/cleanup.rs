//! The end of an acquisition that its caller has left: nothing of it stays on the server.

use std::{sync::Arc, time::Duration};

use lock_core::{backend::BackendError, fencing::FencingToken, lease::Moment};

use crate::backend::redis::{
    protocol::request::{AcquireRequest, Left},
    queue::{
        grants::{give_back, take_up},
        server::{RETRY_PAUSE, Server},
    },
    session::Session,
    transport::connection::{CallError, Connection},
};
use crate::events::TARGET;

/// The newest request of an acquisition, and the session that it is sent in.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) session: Arc<Session>,
    pub(crate) request: Arc<AcquireRequest>,
}

/// How long a clean-up trusts the connection that carried the request.
const SAME_CONNECTION_PATIENCE: Duration = Duration::from_secs(1);
/// How long one try of a clean-up over the home session may take.
const HOME_PATIENCE: Duration = Duration::from_secs(2);
/// How long a caller's leaving waits for the caller's own connection, before the engine's takes part: nobody may drive the
/// runtime of the former.
const HEDGE: Duration = Duration::from_millis(20);

/// Gives back what an acquisition has got: its turn, or its place. A request of the caller itself that has no answer may be
/// carried out after the turn was given back, and be granted the lock: so the owner leaves as well.
pub(crate) async fn give_up(server: Arc<Server>, sent: Sent, offer: Option<u64>) {
    if let Some(token) = offer {
        sent.session.waiters.remove(&sent.request);
        // Nothing of it is sent again after the release.
        end(&server, &sent).await;
        let name = sent.request.names.lock.clone();
        let ends = server.now() + sent.request.lease;
        give_back(server.clone(), name, FencingToken::new(token), ends).await;
        if sent.request.is_answered() {
            return;
        }
    }
    clean_up(server, sent).await;
}

/// Gives up what the answers may have granted whose callers have not come back for them.
pub(crate) fn revoke(server: &Arc<Server>, session: &Arc<Session>, now: Moment) {
    for request in session.unanswered.overdue(now) {
        if request.revoke(now) {
            tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), "a caller did not come back for its answer");
            let sent = Sent {
                session: session.clone(),
                request,
            };
            let (engine, task) = (server.clone(), server.track_cleanup());
            server.context.spawn(async move {
                clean_up(engine, sent).await;
                drop(task);
            });
        }
    }
}

/// Ends when no request is under way any more, and returns the connection that carried the newest one, if one did.
async fn end(server: &Arc<Server>, sent: &Sent) -> Option<Arc<Connection>> {
    let Sent { session, request } = sent;
    let patience = server.now() + SAME_CONNECTION_PATIENCE;
    let ended = server.context.timeout_at(patience, request.end()).await;
    let carried = request.carried_by();
    if ended.is_none()
        && let Some(connection) = &carried
    {
        // Nobody drives the runtime of that session, or the server is silent.
        connection.health.mark_broken();
        until_closed(server, session, connection, request).await;
    }
    carried
}

/// Ends when nothing that was sent over a connection which is broken can be carried out any more: the server may not have
/// read all of it yet.
pub(crate) async fn until_closed(
    server: &Arc<Server>,
    session: &Session,
    connection: &Connection,
    request: &AcquireRequest,
) {
    let closing = async {
        loop {
            if let Ok(home) = server.sessions.home().connection().await
                && (!home.may_kill || home.kill(&connection.identity).await.is_ok())
            {
                return;
            }
            server.context.sleep(RETRY_PAUSE).await;
        }
    };
    let closed = async {
        tokio::select! {
            biased;
            // The first thing that a new connection of the session does is to close the one before.
            () = session.succeeds(&connection.identity) => {}
            () = closing => {}
        }
    };
    server.context.timeout_at(request.run_out(), closed).await;
}

/// Makes sure that nothing of an acquisition stays behind. Where all its requests are answered, the home session leaves for
/// it, because nobody may drive its own. Else its own connection keeps the order of request and leaving; where that does
/// not answer, it is closed on the server before the home session leaves.
pub(crate) async fn clean_up(server: Arc<Server>, sent: Sent) {
    sent.session.waiters.remove(&sent.request);
    let Some(connection) = end(&server, &sent).await else {
        return;
    };
    let Sent { session, request } = sent;
    let left = |left| {
        if let Left::Held(grant) = left {
            take_up(&server, &session, &request.names.lock, &grant);
        }
    };
    let leave_by_home = async || -> Option<Arc<Connection>> {
        let home = server.sessions.home().connection().await.ok()?;
        left(request.leave(&home, true).await.ok()?);
        Some(home)
    };
    // A request that is not answered may be carried out later, unless its connection is closed before.
    let answered = request.is_answered();
    if answered {
        let patience = server.now() + HOME_PATIENCE;
        if let Some(Some(_)) = server.context.timeout_at(patience, leave_by_home()).await {
            return;
        }
    } else if !connection.health.is_broken() {
        let patience = server.now() + SAME_CONNECTION_PATIENCE;
        let hedge = async {
            server.context.sleep(HEDGE).await;
            leave_by_home().await;
            std::future::pending::<()>().await;
        };
        let leaving = async {
            tokio::select! {
                biased;
                left = request.leave(&connection, true) => left,
                () = hedge => unreachable!("the hedge does not end"),
            }
        };
        match server.context.timeout_at(patience, leaving).await {
            Some(Ok(answer)) => return left(answer),
            Some(Err(CallError::Refused(BackendError::WrongLayout))) => return,
            Some(Err(CallError::Refused(error))) => {
                tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), %error, "an abandoned acquisition runs out by itself");
                return;
            }
            _ => {}
        }
        // It is closed on the server below, and of no use to anybody else either.
        connection.health.mark_broken();
    }
    let until = request.run_out();
    let mut backoff = RETRY_PAUSE;
    while server.now() < until && !server.sessions.is_closed() {
        let leaving = async {
            let home = server.sessions.home().connection().await.ok()?;
            if home.may_kill && !answered {
                home.kill(&connection.identity).await.ok()?;
            }
            leave_by_home().await?;
            // A late request that cannot be stopped may still come, until it refuses itself.
            (answered || home.may_kill).then_some(())
        };
        let patience = server.now() + HOME_PATIENCE;
        if let Some(Some(())) = server.context.timeout_at(patience, leaving).await {
            return;
        }
        server.context.sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(1));
    }
    tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), "an abandoned acquisition could not be cleaned up; it has run out by itself");
}
