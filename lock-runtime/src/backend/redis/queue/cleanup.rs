//! Cleans up acquisitions that their callers have abandoned, so that nothing of them stays on the server.

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

/// The newest request of an acquisition, and the session that sends it.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) session: Arc<Session>,
    pub(crate) request: Arc<AcquireRequest>,
}

/// How long a clean-up waits for the connection that carried the request.
const SAME_CONNECTION_PATIENCE: Duration = Duration::from_secs(1);
/// How long one try of a clean-up over the home session may take.
const HOME_PATIENCE: Duration = Duration::from_secs(2);
/// How long an abandoned acquisition waits for its own connection to leave, before the home session leaves as well: the
/// runtime that drives its own connection may not be polled.
const HEDGE: Duration = Duration::from_millis(20);

/// Gives back the turn or the place of an acquisition. An unanswered request of the caller itself may be carried out
/// after the turn was given back, and be granted the lock, so the owner leaves the queue as well.
pub(crate) async fn give_up(server: Arc<Server>, sent: Sent, offer: Option<u64>) {
    if let Some(token) = offer {
        sent.session.waiters.remove(&sent.request);
        // No request may be sent again after the release.
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

/// Gives back locks that may have been granted by answers that their callers did not read in time.
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

/// Waits until no request is under way. Returns the connection that carried the newest one, if there was one.
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

/// Waits until nothing that was sent over a broken connection can still be carried out. The server may not have read
/// all of it yet.
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
            // A new connection of the session closes the previous one first.
            () = session.succeeds(&connection.identity) => {}
            () = closing => {}
        }
    };
    server.context.timeout_at(request.run_out(), closed).await;
}

/// Makes sure that nothing of an acquisition stays on the server. If all its requests are answered, the home session
/// leaves on its behalf, because nobody may be driving its own session. Otherwise its own connection keeps the order of
/// request and leaving. If that connection does not answer, it is closed on the server before the home session leaves.
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
    // An unanswered request may be carried out later, unless its connection is closed first.
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
        // The loop below closes it on the server, so nobody else can use it either.
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
            // A late request that cannot be stopped may still arrive, until it is past its own time limit.
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
