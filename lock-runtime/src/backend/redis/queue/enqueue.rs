//! Sends the requests that queue a session's waiters, after a short wait for more callers to share the request. One
//! request can queue many callers of one lock.

use std::{sync::Arc, time::Duration};

use lock_core::key::LockName;
use redis::Value;

use crate::backend::redis::{
    protocol::{
        command::claim_ms,
        grant::GrantSnapshot,
        request::{AcquireRequest, decode, ends},
        scripts,
    },
    queue::{
        cleanup::until_closed,
        grants::take_up,
        server::{Retry, Server},
    },
    session::{Session, waiters::Told},
    transport::{call_error::CallError, connection::Connection},
};
use crate::events::TARGET;
use crate::limits;

/// Starts a task that sends the unsent requests of all waiters for this lock. Does nothing if such a task is running.
pub(crate) fn enqueue(server: &Arc<Server>, session: &Arc<Session>, name: &LockName) {
    if session.waiters.begin_sending(name) {
        let sending = send_all(server.clone(), session.clone(), name.clone());
        server.context.spawn(sending);
    }
}

async fn send_all(server: Arc<Server>, session: Arc<Session>, name: LockName) {
    let waiters = &session.waiters;
    loop {
        until_batch_ready(&server, &session, &name).await;
        let batch = waiters.next_batch(&name);
        if batch.is_empty() {
            return;
        }
        let Some(connection) = session.connected() else {
            if session.has_ended() {
                // Nobody sends requests over this session any more, so its callers start over.
                return waiters.clear();
            }
            // The requests of this batch are sent over the session's next connection. If the session has already
            // connected again, this task sends them.
            waiters.put_back(&name, &batch);
            waiters.end_sending(&name);
            if session.connected().is_some() && waiters.begin_sending(&name) {
                continue;
            }
            return;
        };
        let Err(error) = send_batch(&server, &session, &name, &batch, &connection).await else {
            continue;
        };
        match server.note_failure(error) {
            Ok(retry) => {
                if server.dismiss_moved(&session, &name) {
                    return waiters.end_sending(&name);
                }
                waiters.put_back(&name, &batch);
                if retry == Retry::Later {
                    server.context.sleep(limits::RETRY_PAUSE).await;
                }
            }
            Err(error) => {
                let mut told = Told::default();
                for request in &batch {
                    waiters.tell(&name, request.owner, Err(error.clone()), &mut told);
                }
            }
        }
    }
}

/// Waits up to [`limits::BATCH_WINDOW`] for more callers to share the request. As long as callers of this session are queued,
/// they get the lock before the new callers, so the wait does not delay the turns of the new callers. The wait has only
/// one cost: a caller of another process that queues in the meantime gets an earlier place.
async fn until_batch_ready(server: &Server, session: &Session, name: &LockName) {
    // Yields, so that callers that are about to queue for this lock can run first.
    tokio::task::yield_now().await;
    if let Some(ready) = session.waiters.batch_ready(name) {
        let deadline = server.now() + limits::BATCH_WINDOW;
        let _ = server.context.timeout_at(deadline, ready).await;
    }
}

/// Sends one request for several callers of one lock.
async fn send_batch(
    server: &Arc<Server>,
    session: &Arc<Session>,
    name: &LockName,
    batch: &[Arc<AcquireRequest>],
    connection: &Arc<Connection>,
) -> Result<(), CallError> {
    let mut sending = Vec::with_capacity(batch.len());
    let mut asked = Vec::with_capacity(batch.len());
    for request in batch {
        // While `under_way` exists, the caller neither takes its turn nor leaves the queue. `under_way` is dropped
        // after the answer was applied.
        if let Some(under_way) = request.send()
            && session.waiters.waits(name, request.owner)
        {
            request.carry(connection);
            sending.push(under_way);
            asked.push(request);
        }
    }
    let Some(first) = asked.first() else {
        return Ok(());
    };
    let shortest = asked.iter().min_by_key(|request| request.wait);
    let not_after = shortest.map_or_else(String::new, |request| request.not_after(connection));
    let now = server.now();
    let members: Vec<(String, String)> = asked
        .iter()
        .zip(0..)
        .map(|(request, number)| {
            // If the answer is lost, the callers ask for places in the same order.
            let first = now + Duration::from_micros(number);
            (request.member(), request.place_to_request(now, first))
        })
        .collect();
    let keys = first.names.keys();
    let mut args = vec![
        &*session.session_id,
        &connection.floor,
        claim_ms(),
        &not_after,
    ];
    for (member, place) in &members {
        args.extend([member.as_str(), place]);
    }
    let answer = connection.run(&scripts::QUEUE, &keys, &args).await;
    let answer = answer.and_then(|(reply, sent)| Ok((decode::<Vec<Value>>(reply)?, sent)));
    if let Err(CallError::Broken(_)) = answer {
        // A caller could now leave the queue over another connection, and the server could carry out this request
        // afterwards and queue the caller again. The callers therefore cannot leave before the server has closed the
        // broken connection.
        until_closed(server, session, connection, first).await;
    }
    let (reply, sent) = answer?;
    let mut fields = reply.into_iter();
    let mut next = || fields.next().unwrap_or(Value::Nil);
    let (held, left): (Option<String>, Option<i64>) = (decode(next())?, decode(next())?);
    if held.as_deref() == Some("late") {
        // The server's clock was set forward, or the request was delayed. The engine gives up this connection, and
        // reads the server's time again over the next connection.
        connection.health.mark_demoted();
        return Err(CallError::Demoted("the request came too late".into()));
    }
    let mut places = Vec::with_capacity(asked.len());
    for request in &asked {
        if let Some(place) = decode::<Option<u64>>(next())? {
            places.push((&***request, place));
        }
    }
    session.queued(name, &places, ends(left.unwrap_or_default(), sent));
    if held.is_none() {
        // The grant on the server, if there is one, belongs to another session. If one of these callers was a member of
        // a grant, the server has therefore lost that grant.
        let lost = asked.iter().map(|request| request.newest_grant());
        for first in lost.filter(|first| server.cohorts.has_lost(name, *first, sent)) {
            tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(name), "the server has lost a grant");
            server.cohorts.lose(name, first);
        }
    }
    drop(sending);
    if let (Some(held), Some(left)) = (held, left.and_then(|left| u64::try_from(left).ok()))
        && let Some(grant) = GrantSnapshot::parse(&held, left, sent)
    {
        take_up(server, session, name, &grant);
    }
    Ok(())
}
