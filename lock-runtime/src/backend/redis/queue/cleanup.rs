//! Cleans up acquisitions that their callers have abandoned: removes their owners and their grants from the server.

use std::{sync::Arc, time::Duration};

use lock_core::backend::BackendError;
use tokio::sync::oneshot;

use crate::{
    backend::redis::{
        protocol::request::{AcquireRequest, Left},
        queue::{
            grants::{give_back, take_up},
            server::Server,
        },
        session::Session,
        transport::{call_error::CallError, connection::Connection},
    },
    events::TARGET,
    limits,
};

/// The newest request of an acquisition, and the session that sends it.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) session: Arc<Session>,
    pub(crate) request: Arc<AcquireRequest>,
}

/// Waits until the server can no longer carry out requests that were sent over a broken connection. After a connection
/// has broken, the server can still read and carry out requests that the client sent before. The session closes the broken
/// connection on the server before any request uses the next connection. Returns earlier if `request` can no longer have
/// an effect, or if the session has ended.
pub(crate) async fn until_closed(
    server: &Server,
    session: &Session,
    connection: &Connection,
    request: &AcquireRequest,
) {
    let closed = session.succeeds(connection);
    server.context.timeout_at(request.run_out(), closed).await;
}

/// Removes everything that an abandoned acquisition may have left on the server.
pub(crate) async fn clean_up(server: Arc<Server>, sent: Sent) {
    let (gone, _) = oneshot::channel();
    give_up(server, sent, gone).await;
}

/// Removes everything that an abandoned acquisition may have left on the server. If the acquisition has a turn, gives this
/// turn back. If it has none, or if a request of the caller is unanswered, sends a request to leave. The server carries out the requests of a connection in order, so the request to leave goes over the connection
/// of the unanswered request. If that connection breaks, the request to leave goes over the next one, after the server has
/// closed the first one.
///
/// Drops `gone` after the first answer to a request to leave the queue, or when this function ends. If the answer names the
/// place of the owner, sends this place first. A caller that starts over does not use its new owner name before.
pub(crate) async fn give_up(server: Arc<Server>, sent: Sent, gone: oneshot::Sender<u64>) {
    let (name, owner) = (&sent.request.names.lock, sent.request.owner);
    sent.session
        .lines(|lines, link| lines.leave_list(link, name, owner));
    let Sent { session, request } = &sent;
    let mut gone = Some(gone);
    let mut left = |left, by: &Connection| {
        let gone = gone.take();
        if let (Some(gone), Left::Out { place: Some(place) }) = (gone, &left) {
            let _ = gone.send(*place);
        }
        // The grants of a former primary no longer count.
        let elsewhere = |latest: Arc<Connection>| latest.address != by.address;
        if let Left::Held(grant) = left
            && !session.latest().is_some_and(elsewhere)
        {
            take_up(&server, session, &request.names.lock, &grant);
        }
    };
    request.end().await;
    let Some(connection) = request.carried_by() else {
        return; // no request was sent
    };
    // The server can carry out an unanswered request until the server has closed the connection of this request.
    let mut settled = request.is_answered();
    let name = &request.names.lock;
    let turn = server.core.with(|core| core.turn_of(name, request.owner));
    if let Some((token, ends)) = turn {
        give_back(server.clone(), name.clone(), token, ends).await;
        if settled {
            return;
        }
    }
    if !connection.health.is_broken() {
        match request.leave(&connection, true).await {
            Ok(answer) => return left(answer, &connection),
            Err(CallError::Refused(BackendError::WrongLayout)) => return,
            Err(CallError::Refused(error)) => {
                tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(name), %error, "the server refuses to clean up an abandoned acquisition, which expires by itself");
                return;
            }
            // The server has answered the request to leave. The server carries out the requests of a connection in
            // order, so all earlier requests of this acquisition have ended.
            Err(CallError::Moved(to)) => {
                server.sessions.moved(&to);
                settled = true;
            }
            Err(CallError::Ask(_) | CallError::NotReady(_)) => settled = true,
            Err(CallError::Broken(_) | CallError::Demoted(_)) => {}
        }
        // The next connection closes this one on the server, so from now on no other task may use it.
        if !settled {
            connection.health.mark_broken();
        }
    }
    let until = request.run_out();
    let mut backoff = limits::RETRY_PAUSE;
    while server.now() < until && !server.sessions.is_closed() {
        let leaving = async {
            if !settled {
                until_closed(&server, session, &connection, request).await;
            }
            let (_, next) = server.sessions.connected(name).await.ok()?;
            match request.leave(&next, true).await {
                Ok(answer) => left(answer, &next),
                Err(error) => {
                    // A slot that moves again and again redirects each try. Its server answers, so the next try follows soon.
                    if matches!(error, CallError::Moved(_) | CallError::Ask(_)) {
                        backoff = limits::RETRY_PAUSE;
                    }
                    let _ = server.note_failure(error);
                    return None;
                }
            }
            // If the client is not allowed to close connections on the server, the server can carry out the unanswered
            // request until the request's time limit has passed. The loop repeats the request to leave until that time
            // limit.
            (settled || next.may_kill).then_some(())
        };
        let patience = server.now() + server.patience(name, limits::CLEANUP_PATIENCE);
        if let Some(Some(())) = server.context.timeout_at(patience, leaving).await {
            return;
        }
        server.context.sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(1));
    }
    tracing::warn!(target: TARGET, server = %server.address(), key = %server.key(name), "an abandoned acquisition could not be cleaned up, and expires by itself");
}
