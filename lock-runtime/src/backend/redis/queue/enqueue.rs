//! Sends the requests that queue a session's waiters, after a short wait for more callers to share the request. One
//! request can queue many callers of one lock.

use std::{sync::Arc, time::Duration};

use lock_core::key::LockName;
use redis::Value;
use tokio::sync::oneshot;

use crate::backend::redis::{
    core::{Core, Ended, waiting::ToSend},
    protocol::{
        command::claim_ms,
        grant::GrantSnapshot,
        request::{decode, ends},
        scripts,
    },
    queue::{
        cleanup::until_closed,
        grants::take_up,
        server::{Retry, Server},
    },
    session::{Session, shared_core::Engine},
    transport::{call_error::CallError, connection::Connection},
};
use crate::events::TARGET;
use crate::limits;

/// Starts a task that sends the unsent requests of all waiters for this lock. Does nothing if such a task is running.
pub(crate) fn enqueue(server: &Arc<Server>, session: &Arc<Session>, name: &LockName) {
    if session.lines(|lines, link| lines.begin_sending(link, name)) {
        let sending = send_all(server.clone(), session.clone(), name.clone());
        server.context.spawn(sending);
    }
}

async fn send_all(server: Arc<Server>, session: Arc<Session>, name: LockName) {
    loop {
        until_batch_ready(&server, &session, &name).await;
        let batch = session.lines(|lines, link| lines.next_batch(link, &name));
        if batch.is_empty() {
            return;
        }
        let Some(connection) = session.connected() else {
            if session.has_ended() {
                // Nobody sends requests over this session any more, so its callers start over.
                return session.lines(|lines, link| {
                    lines.end_link(link);
                    lines.end_sending(link, &name);
                });
            }
            // The requests of this batch are sent over the session's next connection. If the session has already
            // connected again, this task sends them.
            session.lines(|lines, link| {
                lines.put_back(link, &name, &batch);
                lines.end_sending(link, &name);
            });
            if session.connected().is_some()
                && session.lines(|lines, link| lines.begin_sending(link, &name))
            {
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
                    return session.lines(|lines, link| lines.end_sending(link, &name));
                }
                session.lines(|lines, link| lines.put_back(link, &name, &batch));
                if retry == Retry::Later {
                    server.context.sleep(limits::RETRY_PAUSE).await;
                }
            }
            Err(error) => session.lines(|lines, link| {
                for one in &batch {
                    lines.tell(link, &name, one.owner, Ended::Failed(error.clone()));
                }
            }),
        }
    }
}

/// Waits up to [`limits::BATCH_WINDOW`] for more callers to share the request. As long as callers of this session are queued,
/// they get the lock before the new callers, so the wait does not delay the turns of the new callers. The wait has only
/// one cost: a caller of another process that queues in the meantime gets an earlier place.
async fn until_batch_ready(server: &Server, session: &Session, name: &LockName) {
    // Yields, so that callers that are about to queue for this lock can run first.
    tokio::task::yield_now().await;
    let (batch, is_ready) = oneshot::channel();
    session.lines(|lines, link| lines.await_batch(link, name, batch));
    let deadline = server.now() + limits::BATCH_WINDOW;
    let _ = server.context.timeout_at(deadline, is_ready).await;
}

/// Sends one request for several callers of one lock.
async fn send_batch(
    server: &Arc<Server>,
    session: &Arc<Session>,
    name: &LockName,
    batch: &[ToSend<Engine>],
    connection: &Arc<Connection>,
) -> Result<(), CallError> {
    let mut sending = Vec::with_capacity(batch.len());
    let mut asked = Vec::with_capacity(batch.len());
    for ToSend {
        owner,
        request,
        stored,
    } in batch
    {
        // While `under_way` exists, the caller neither takes its turn nor leaves the queue. `under_way` is dropped
        // after the answer was applied.
        if let Some(under_way) = request.send()
            && session.lines(|lines, link| lines.waits(link, name, *owner))
        {
            request.carry(connection);
            sending.push(under_way);
            asked.push((request, *stored));
        }
    }
    let Some((first, _)) = asked.first() else {
        return Ok(());
    };
    let shortest = asked.iter().min_by_key(|(request, _)| request.wait);
    let not_after = shortest.map_or_else(String::new, |(request, _)| request.not_after(connection));
    let now = server.now();
    let members: Vec<(String, String)> = asked
        .iter()
        .zip(0..)
        .map(|((request, stored), number)| {
            // If the answer is lost, the callers ask for places in the same order.
            let first = now + Duration::from_micros(number);
            (
                request.member(),
                request.place_to_request(connection, stored.place, first),
            )
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
    let grants: Vec<(String, u64)> = match next() {
        Value::Nil => Vec::new(),
        grants @ Value::Array(_) => decode(grants)?,
        _ => return Err(connection.too_late()),
    };
    let left: i64 = decode(next())?;
    let mut places = Vec::with_capacity(asked.len());
    for (request, _) in &asked {
        if let Some(place) = decode::<Option<u64>>(next())? {
            places.push((request.owner, place));
        }
    }
    session.queued(name, &places, ends(left, sent));
    if grants.is_empty() {
        // The grant on the server, if there is one, belongs to another session. If one of these callers was a member of
        // a grant, the server has therefore lost that grant.
        for (_, stored) in &asked {
            let first = stored.granted;
            let lose = |core: &mut Core<_>| {
                let is_lost = core.has_lost(name, first, sent);
                is_lost && core.lose(name, first).is_some()
            };
            if server.core.with(lose) {
                tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(name), "the server has lost a grant");
            }
        }
    }
    drop(sending);
    let grants = grants.iter();
    for grant in grants.filter_map(|(grant, left)| GrantSnapshot::parse(grant, *left, sent)) {
        take_up(server, session, name, &grant);
    }
    Ok(())
}
