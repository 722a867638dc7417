//! The heartbeat of a session: a periodic task on the engine's thread. The heartbeat probes the locks that callers wait
//! for, lets the members of a cohort queue again whose grant has run out, and gives up a connection that has not answered for 2 s.
//! `limits::HEARTBEAT` and `probe_after` in `session/mod.rs` determine when each lock is probed.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lock_core::lease::Moment;
use redis::{ParsingError, Value};

use crate::backend::redis::{
    core::waiting::ToSend,
    protocol::{command::claim_ms, grant::GrantSnapshot, request::ends, scripts},
    queue::{
        grants::{carry_out_chores, take_up},
        server::Server,
    },
    session::{Session, shared_core::Engine},
    transport::connection::Connection,
};
use crate::events::{TARGET, count, metrics};
use crate::limits;

/// The largest number of locks that one probe covers.
const PROBE_BATCH: usize = 100;

/// Runs the heartbeat until the session has ended or the backend is dropped. The heartbeat sleeps while the session is idle.
pub(crate) async fn beat(session: Arc<Session>, server: Weak<Server>) {
    let mut next_beat = Moment::new(Duration::ZERO);
    loop {
        let (wake, parking) = {
            let Some(server) = server.upgrade() else {
                return;
            };
            // A session can end while a member of one of its cohorts has the turn. The heartbeat then continues until
            // the grants of the session are released.
            let is_needed = || server.core.with(|core| core.need_heartbeat(session.link));
            if session.has_ended() && (server.sessions.is_closed() || !is_needed()) {
                return;
            }
            let now = server.now();
            let connection = session.latest();
            if next_beat <= now {
                next_beat = now + limits::HEARTBEAT;
                carry_out_chores(&server, &session, now);
                if let Some(connection) = &connection {
                    check_silence(connection, now);
                }
            }
            let working = connection.filter(|connection| !connection.health.is_broken());
            let next_probe =
                working.and_then(|connection| probe_due(&server, &session, connection, now));
            let wake = next_probe.map_or(next_beat, |probe| probe.min(next_beat));
            (server.context.sleep_until(wake), session.parking().clone())
        };
        parking.park(|| session.is_idle()).await;
        tokio::select! {
            biased;
            () = wake => {}
            () = session.earlier() => {}
        }
    }
}

/// Probes the locks whose probe is due. Returns the moment of the next probe, or `None` if no probe is scheduled.
fn probe_due(
    server: &Arc<Server>,
    session: &Arc<Session>,
    connection: Arc<Connection>,
    now: Moment,
) -> Option<Moment> {
    // With many locks, the time between two probes of a lock is longer than `limits::HEARTBEAT`, to limit the load on the
    // server.
    let locks = session.lines(|lines, link| lines.locks(link));
    let locks = u32::try_from(locks).unwrap_or(u32::MAX);
    let period = limits::HEARTBEAT.max(limits::PROBE_SHARE.saturating_mul(locks));
    let mut due = session.lines(|lines, link| lines.due(link, now, now + period, PROBE_BATCH));
    let is_full = due.len() == PROBE_BATCH;
    let shard = |due: &ToSend<Engine>| server.sessions.shard(&due.request.names.lock);
    due.sort_by_key(shard);
    for due in due.chunk_by(|a, b| shard(a) == shard(b)) {
        let (server, session) = (server.clone(), session.clone());
        let (connection, due) = (connection.clone(), due.to_vec());
        let context = server.context.clone();
        context.spawn(async move { probe(&server, &session, &connection, &due, period).await });
    }
    if is_full {
        Some(now + limits::PROBE_SHARE * PROBE_BATCH as u32)
    } else {
        session.lines(|lines, link| lines.next_probe(link))
    }
}

/// Gives up a connection that has unanswered commands, and that has brought no answer for [`limits::SILENCE`].
fn check_silence(connection: &Connection, now: Moment) {
    if connection.silent_for(now) > connection.patience(limits::SILENCE) {
        connection.health.mark_lost("no answer");
    }
}

/// Sends one probe for the locks of these waiting requests. If the grant of a lock has expired, the probe grants the
/// lock to the next waiter. The probe also finds grants about which the message to the waiter was lost. If the server
/// has lost a queue, the queue's callers queue again.
async fn probe(
    server: &Arc<Server>,
    session: &Arc<Session>,
    connection: &Connection,
    awaited: &[ToSend<Engine>],
    next: Duration,
) {
    let members: Vec<String> = awaited.iter().map(|one| one.request.member()).collect();
    let next = next.as_millis().to_string();
    let mut keys = vec![awaited[0].request.names.fence()];
    let mut args = vec![
        &*session.session_id,
        connection.floor.as_str(),
        claim_ms(),
        &next,
    ];
    for (ToSend { request, .. }, member) in awaited.iter().zip(&members) {
        keys.extend([request.names.grant(), request.names.companion()]);
        keys.extend(request.names.claim());
        keys.push(request.names.limit().unwrap_or(request.names.grant()));
        args.push(member);
    }
    let (found, sent) = match connection.run(&scripts::PROBE, &keys, &args).await {
        Ok((Value::Array(found), sent)) => (found, sent),
        Ok(_) => return,
        Err(error) => {
            tracing::debug!(target: TARGET, server = %server.address(), %error, "a probe of the locks that callers wait for has failed");
            server.note(error.to_string());
            let _ = server.note_failure(error);
            for ToSend { request, .. } in awaited {
                server.dismiss_moved(session, &request.names.lock);
            }
            return;
        }
    };
    for found in found {
        if let Err(error) = take_in(server, session, awaited, found, sent) {
            tracing::warn!(target: TARGET, server = %server.address(), %error, "the client does not understand the answer to a probe");
        }
    }
}

/// Applies the result of a probe for one lock. The probe was sent at `asked`.
fn take_in(
    server: &Arc<Server>,
    session: &Arc<Session>,
    awaited: &[ToSend<Engine>],
    found: Value,
    asked: Moment,
) -> Result<(), ParsingError> {
    let fields: Vec<Value> = redis::from_redis_value(found)?;
    let mut fields = fields.into_iter();
    let mut next = || fields.next().unwrap_or(Value::Nil);
    let (what, number): (String, usize) = (
        redis::from_redis_value(next())?,
        redis::from_redis_value(next())?,
    );
    let Some(about) = awaited.get(number.wrapping_sub(1)) else {
        return Ok(());
    };
    let (name, first) = (&about.request.names.lock, about.stored.granted);
    match what.as_str() {
        // The probe found a grant of this session. If this process does not know the grant yet, the message about the
        // grant is late or was lost.
        "held" => {
            let (grant, left): (String, u64) = (
                redis::from_redis_value(next())?,
                redis::from_redis_value(next())?,
            );
            // A hold of this session can end without a release, for instance if its body outlasts a fixed lease. The
            // lock is therefore probed again when the lease ends.
            if Duration::from_millis(left) < limits::HEARTBEAT {
                session.probe_after(name, asked + Duration::from_millis(left));
            }
            if let Some(grant) = GrantSnapshot::parse(&grant, left, asked)
                && take_up(server, session, name, &grant)
            {
                count(&server.counters.missed_wakeups);
                metrics::missed_wakeup();
                tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(name), "a probe found a grant whose message did not arrive");
            }
        }
        "ends" => session.probe_after(name, ends(redis::from_redis_value(next())?, asked)),
        // The caller has neither a place nor a grant on the server, but this process knows a grant of the caller.
        _ if server.core.with(|core| core.has_lost(name, first, asked)) => {
            tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(name), "the server has lost a grant");
            server.lose_cohort(name, first);
        }
        _ => {
            tracing::debug!(target: TARGET, server = %server.address(), key = %server.key(name), "the server has lost the queue, so the waiting callers queue again");
            session.requeue(Some(name));
        }
    }
    Ok(())
}
