//! Cleans up acquisitions that their callers have abandoned: removes their owners and their grants from the server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{backend::BackendError, lease::Moment};
use tokio::sync::oneshot;

use crate::{
    backend::redis::{
        protocol::request::{AcquireRequest, Left},
        queue::{
            grants::{give_back, take_up},
            server::{RETRY_PAUSE, Server},
        },
        session::Session,
        transport::{call_error::CallError, connection::Connection},
    },
    background::lock,
    events::TARGET,
};

/// The newest request of an acquisition, and the session that sends it.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) session: Arc<Session>,
    pub(crate) request: Arc<AcquireRequest>,
}

/// The time limit for each step of a clean-up over the connection that carried the acquisition's newest request.
const SAME_CONNECTION_PATIENCE: Duration = Duration::from_secs(1);
/// The time limit for one try to clean up over the engine's home session.
const HOME_PATIENCE: Duration = Duration::from_secs(2);
/// The time that a clean-up waits for the acquisition's own connection, whose runtime might be blocked. After this
/// time, the clean-up also sends a request to leave the queue over the home session (the engine's own session).
const HEDGE: Duration = Duration::from_millis(20);

/// Revokes requests whose callers did not read the answers in time. Releases the locks that these answers may have
/// granted.
pub(crate) fn revoke(server: &Arc<Server>, session: &Arc<Session>, now: Moment) {
    for request in session.unanswered.revoke_overdue(now) {
        tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), "a caller did not read its answer in time, so a lock that the answer granted is given back");
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

/// Waits until all requests that the session sent for this acquisition have ended. If this takes longer than
/// [`SAME_CONNECTION_PATIENCE`], gives up the connection that carried the newest request, and waits until the server,
/// too, has closed that connection. Returns the connection that carried the newest request, or `None` if no request was
/// sent.
async fn end(server: &Arc<Server>, sent: &Sent) -> Option<Arc<Connection>> {
    let Sent { session, request } = sent;
    let patience = server.now() + server.patience(&request.names.lock, SAME_CONNECTION_PATIENCE);
    let ended = server.context.timeout_at(patience, request.end()).await;
    let carried = request.carried_by();
    if ended.is_none()
        && let Some(connection) = &carried
    {
        // The requests have not ended, because the runtime of the session is not running, or the server is not
        // answering.
        connection.health.mark_broken();
        until_closed(server, session, connection, request).await;
    }
    carried
}

/// Waits until the server can no longer carry out requests that were sent over a broken connection. After a connection
/// has broken, the server can still read and carry out requests that the client sent before. Returns earlier if
/// `request` can no longer have an effect, or if the client has shut down.
pub(crate) async fn until_closed(
    server: &Arc<Server>,
    session: &Arc<Session>,
    connection: &Connection,
    request: &AcquireRequest,
) {
    let closing = async {
        // The loop also ends if the server no longer stores any lock, because such a server refuses the old requests, and
        // if the client has shut down, because the home session then has no connection any more.
        while !server.sessions.is_closed()
            && let Some(home) = server.sessions.home_beside(session)
        {
            if let Ok(home) = home.connection().await
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
            // The session closes the broken connection on the server before any request uses the session's next
            // connection.
            () = session.succeeds(&connection.identity) => {}
            () = closing => {}
        }
    };
    server.context.timeout_at(request.run_out(), closed).await;
}

/// Removes everything that an abandoned acquisition may have left on the server.
pub(crate) async fn clean_up(server: Arc<Server>, sent: Sent) {
    let (gone, _) = oneshot::channel();
    give_up(server, sent, gone).await;
}

/// Removes everything that an abandoned acquisition may have left on the server. If the acquisition was offered a turn,
/// gives this turn back. If it was offered no turn, or if a request of the caller is unanswered, sends a request to
/// leave, because the server can still carry out the unanswered request:
/// - If all requests are answered, the request to leave goes over the engine's home session. The runtime of the
///   acquisition's session is not used, because it is possibly blocked, or has ended.
/// - If a request is unanswered, the request to leave goes over the acquisition's own connection, so that it arrives
///   after the unanswered request.
/// - If the acquisition's own connection does not answer, the engine closes this connection on the server. After that,
///   the home session sends the request to leave.
/// - If a step takes longer than 20 ms, the home session sends a request to leave, too.
///
/// Drops `gone` after the first answer to a request to leave the queue, or when this function ends. A caller that starts
/// over does not use its new owner name before `gone` is dropped. If an unanswered request has an effect after that
/// answer, a further request to leave removes this effect.
pub(crate) async fn give_up(server: Arc<Server>, sent: Sent, gone: oneshot::Sender<()>) {
    let gone = Mutex::new(Some(gone));
    sent.session.waiters.remove(&sent.request);
    let Sent { session, request } = &sent;
    let left = |left, by: &Connection| {
        lock(&gone).take();
        let Left::Held(grant) = left else {
            return;
        };
        // During a failover, the home session can still be connected to the old primary, whose grants no longer count.
        let elsewhere = |latest: Arc<Connection>| latest.address != by.address;
        if !session.latest().is_some_and(elsewhere) {
            take_up(&server, session, &request.names.lock, &grant);
        }
    };
    let leave_by_home = async || -> Option<Arc<Connection>> {
        let home = server.sessions.home_connection(&request.names.lock);
        let home = home.await.ok()?;
        match request.leave(&home, true).await {
            Ok(answer) => left(answer, &home),
            Err(error) => {
                let _ = server.note_failure(error);
                return None;
            }
        }
        Some(home)
    };
    let hedge = async || {
        server.context.sleep(HEDGE).await;
        leave_by_home().await;
        std::future::pending::<()>().await;
    };
    // If the session sent a request on a runtime that no longer runs, `end` waits for a long time. Meanwhile, `hedge`
    // sends a request to leave over the engine's home session.
    let ended = tokio::select! {
        biased;
        ended = end(&server, &sent) => ended,
        () = hedge() => unreachable!("the hedge does not end"),
    };
    let Some(connection) = ended else {
        return;
    };
    // The server can carry out an unanswered request until the server has closed the connection of this request.
    let answered = request.is_answered() && !request.is_cut_off();
    let name = &request.names.lock;
    if let Some((token, ends)) = server.cohorts.offered_to(name, request.owner) {
        give_back(server.clone(), name.clone(), token, ends).await;
        if answered {
            return;
        }
    }
    let mut settled = answered;
    if answered {
        let patience = server.now() + server.patience(&request.names.lock, HOME_PATIENCE);
        if let Some(Some(_)) = server.context.timeout_at(patience, leave_by_home()).await {
            return;
        }
    } else if !connection.health.is_broken() {
        let patience = server.now() + connection.patience(SAME_CONNECTION_PATIENCE);
        let leaving = async {
            tokio::select! {
                biased;
                left = request.leave(&connection, true) => left,
                () = hedge() => unreachable!("the hedge does not end"),
            }
        };
        match server.context.timeout_at(patience, leaving).await {
            Some(Ok(answer)) => return left(answer, &connection),
            Some(Err(CallError::Refused(BackendError::WrongLayout))) => return,
            Some(Err(CallError::Refused(error))) => {
                tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), %error, "the server refuses to clean up an abandoned acquisition, which expires by itself");
                return;
            }
            // The server has answered the request to leave. The server carries out the requests of a connection in
            // order, so all earlier requests of this acquisition have ended.
            Some(Err(CallError::Moved(to))) => {
                server.sessions.moved(&to);
                settled = true;
            }
            Some(Err(CallError::Ask(_) | CallError::NotReady(_))) => settled = true,
            _ => {}
        }
        // The loop below closes this connection on the server, so from now on no other task may use the connection.
        if !settled {
            connection.health.mark_broken();
        }
    }
    let until = request.run_out();
    let mut backoff = RETRY_PAUSE;
    while server.now() < until && !server.sessions.is_closed() {
        let leaving = async {
            let home = server.sessions.home_connection(&request.names.lock);
            let home = home.await.ok()?;
            if home.may_kill && !settled {
                home.kill(&connection.identity).await.ok()?;
            }
            leave_by_home().await?;
            // If the client is not allowed to close connections on the server, the server can carry out the unanswered
            // request until the request's time limit has passed. The loop repeats the request to leave until that time
            // limit.
            (settled || home.may_kill).then_some(())
        };
        let patience = server.now() + server.patience(&request.names.lock, HOME_PATIENCE);
        if let Some(Some(())) = server.context.timeout_at(patience, leaving).await {
            return;
        }
        server.context.sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(1));
    }
    tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(&request.names.lock), "an abandoned acquisition could not be cleaned up, and expires by itself");
}
