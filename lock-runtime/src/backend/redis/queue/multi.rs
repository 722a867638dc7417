//! Sends the one request that takes several locks, and repeats it until the server answers. `native/multi_acquire.lua` decides
//! all or nothing. `acquire/multi.rs` takes the locks one after another if they are not all free.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    backend::{BackendError, MultiAnswer, Request},
    fencing::FencingToken,
    lease::{Grant, less_drift},
};
use redis::Value;

use crate::backend::redis::{
    core::acquisition::Event,
    protocol::{
        command::{claim_ms, millis},
        request::{AcquireRequest, decode},
    },
    queue::{
        attempt::RedisAttempt,
        cleanup::Sent,
        server::{Retry, Server},
    },
    transport::{call_error::CallError, connection::Connection},
};

/// Gives back the locks that the attempts may have been granted. Waits until these locks are given back, so that the
/// next attempts do not find them taken.
async fn give_back(attempts: &mut Vec<RedisAttempt>) {
    attempts.iter_mut().for_each(RedisAttempt::start_over);
    join_all(attempts.iter_mut().map(RedisAttempt::cleaned)).await;
    attempts.clear();
}

/// Requests several locks at once, and repeats the request until the server answers it.
pub(crate) async fn acquire_multi(
    server: Arc<Server>,
    requests: Vec<Request>,
) -> Result<MultiAnswer, BackendError> {
    // Each requested lock has an attempt of its own. An attempt that is dropped before it is settled gives back its
    // lock.
    let mut attempts: Vec<RedisAttempt> = Vec::new();
    let mut unsure = false;
    loop {
        if server.is_shutting_down() {
            return Err(BackendError::ShutDown);
        }
        let sent = attempts.first().and_then(|attempt| attempt.sent.as_ref());
        let session = sent.map(|sent| sent.session.clone());
        let (session, connection) = match session {
            Some(session) => match server
                .sessions
                .connection(&session, &requests[0].name)
                .await
            {
                Ok(connection) => (session, connection),
                Err(error) if server.is_shutting_down() => return Err(error),
                Err(_) => {
                    // The locks have moved to another server. The next try uses another session, and so needs new
                    // attempts.
                    give_back(&mut attempts).await;
                    continue;
                }
            },
            None => {
                let (node, connection) = server.sessions.connected(&requests[0].name).await?;
                (node.session().clone(), connection)
            }
        };
        if attempts.is_empty() {
            unsure = false;
            let under_way = requests.iter().map(|request| {
                // Each attempt has a new owner name, so that the clean-up of an earlier attempt does not give back the
                // lock of this attempt.
                let request = Request {
                    owner: server.context.new_owner(),
                    ..request.clone()
                };
                let mut attempt = RedisAttempt::new(server.clone(), request.clone());
                attempt.task = Some(server.track_acquisition());
                attempt.sent = Some(Sent {
                    session: session.clone(),
                    request: Arc::new(server.acquire_request(&request, &session)),
                });
                attempt
            });
            attempts.extend(under_way);
        }
        let asked: Vec<_> = attempts
            .iter()
            .filter_map(|attempt| attempt.sent.as_ref())
            .map(|sent| sent.request.clone())
            .collect();
        for args in &asked {
            args.ask();
            args.carry(&connection);
        }
        let answer = ask(&asked, &connection, unsure).await;
        if answer.is_ok() {
            asked.iter().for_each(|args| args.answered());
        }
        match answer {
            Ok(together) => {
                // No await follows, so the caller cannot be dropped while only some of the attempts are settled.
                for attempt in &mut attempts {
                    attempt.settle(Event::Left { was_queued: false });
                }
                return Ok(together);
            }
            Err(error) => match server.recover(error).await {
                Ok(retry) => unsure |= retry == Retry::Now,
                Err(error) => {
                    for attempt in &mut attempts {
                        if !unsure {
                            attempt.settle(Event::Left { was_queued: false }); // the server took no lock
                        }
                    }
                    return Err(error);
                }
            },
        }
    }
}

/// Sends one request for all locks over `connection`.
async fn ask(
    all: &[Arc<AcquireRequest>],
    connection: &Connection,
    unsure: bool,
) -> Result<MultiAnswer, CallError> {
    let Some(first) = all.first() else {
        return Ok(MultiAnswer::Granted(Vec::new()));
    };
    let (lease, not_after) = (millis(first.lease), first.not_after(connection));
    let tails: Vec<String> = all.iter().map(|args| args.tail(connection)).collect();
    let mut keys = vec![first.names.fence()];
    let mut args = vec![&lease, &connection.floor, claim_ms(), &not_after];
    for (lock, tail) in all.iter().zip(&tails) {
        keys.extend([lock.names.grant(), lock.names.companion()]);
        keys.extend(lock.names.claim());
        args.push(tail);
    }
    let again = String::from("again");
    if unsure && all.iter().any(|lock| lock.mode.is_shared()) {
        args.push(&again);
    }
    let script = first.scripts.multi_acquire;
    let (reply, sent) = connection.run(script, &keys, &args).await?;
    match reply {
        Value::Int(0) => Err(connection.too_late()),
        Value::Int(busy) => Ok(MultiAnswer::Busy(
            usize::try_from(busy - 1).unwrap_or_default(),
        )),
        granted => {
            let granted: Vec<(u64, u64)> = decode(granted)?;
            let grants = all.iter().zip(granted);
            Ok(MultiAnswer::Granted(
                grants
                    .map(|(args, (token, left))| {
                        let left = Duration::from_millis(left).min(args.lease);
                        Grant {
                            token: FencingToken::new(token),
                            valid_until: Some(sent + less_drift(left)),
                            validity: left,
                            queued: false,
                            handoff: None,
                        }
                    })
                    .collect(),
            ))
        }
    }
}
