//! Accepts, renews, passes on, retains and releases grants. The [cohort registry](super::cohort_registry) makes the
//! decisions, and this file sends the commands.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{BackendError, BoxFuture, Extend, Released, Renewed, Status, Waiter},
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Moment},
};
use redis::Value;

use crate::{
    backend::redis::{
        protocol::{
            command::{Arg, claim_ms},
            grant::{GrantSnapshot, read_owner, short_name},
            request::not_understood,
            words::{caller, members, read_holder},
        },
        queue::{
            cohort_registry::{Known, Passed, TakenUp},
            renew_commands::renew,
            server::{RETRY_PAUSE, Server},
        },
        session::Session,
    },
    events::{TARGET, count},
};

/// The maximum number of waiters that one command reads, so that the command takes little of the server's time.
const WAITERS_AT_MOST: usize = 1000;

/// Creates the cohort of a grant that the server pushed, or described in an answer, unless this cohort or a later one is
/// known already. Returns true if the grant is new to this process, and a waiter was offered a turn.
pub(crate) fn take_up(
    server: &Arc<Server>,
    session: &Arc<Session>,
    name: &LockName,
    grant: &GrantSnapshot,
) -> bool {
    // The grant is possibly outdated if another server stores the lock now. The waiters of the lock have queued again
    // at that server, and its answers describe the present grant. A session that has ended has no waiters, so a grant to
    // it is only given back.
    if !session.has_ended() && !server.sessions.serves(session, name) {
        return false;
    }
    let TakenUp {
        requeue,
        give_back: unused,
        begun,
    } = server.cohorts.take_up(session, name, grant, server.now());
    for session in requeue {
        session.requeue(Some(name));
    }
    if let Some((token, until)) = unused {
        server
            .context
            .spawn(give_back(server.clone(), name.clone(), token, until));
    }
    begun
}

/// Carries out the tasks of a heartbeat for the cohorts of a session, as the cohort registry determines them.
pub(crate) fn carry_out_chores(server: &Arc<Server>, session: &Arc<Session>, now: Moment) {
    let chores = server.cohorts.heartbeat_chores(session, now);
    for name in chores.requeue {
        session.requeue(Some(&name));
    }
    for (name, token, until) in chores.release {
        let giving_back = give_back(server.clone(), name.clone(), token, until);
        server.context.spawn(giving_back);
    }
}

/// Ends the turn of the holder with this token. If another member of the cohort is waiting, that member gets the turn.
/// Passing the turn on usually needs no command to the server. If the release needs several commands, it runs in a task
/// of the engine, so that it does not depend on when the caller is polled. If the returned future is dropped, the task goes on beside the release that follows.
/// Neither of them repeats a command after the other has passed the turn on.
pub(crate) async fn release(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> Result<Released, BackendError> {
    if !needs_steps(server, name, token, retain_until) {
        return release_turn(server, name, token, retain_until, false).await;
    }
    let releasing = release_in_steps(server.clone(), name.clone(), token, retain_until);
    let released = server.context.spawn(releasing).await;
    released.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
}

/// Returns whether the release needs commands before the turn can be passed on: to retain the lock for the minimum hold
/// while other members of the cohort wait, or to restart a lease that was extended.
fn needs_steps(
    server: &Server,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> bool {
    let now = server.now();
    let retains = retain_until.is_some_and(|until| until > now)
        && server.cohorts.lease_of_others(name, token).is_some();
    retains || server.cohorts.stretched(name, token.get(), now).is_some()
}

async fn release_in_steps(
    server: Arc<Server>,
    name: LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> Result<Released, BackendError> {
    if let Some(until) = retain_until.filter(|until| *until > server.now())
        && let Some(lease) = server.cohorts.lease_of_others(&name, token)
    {
        return retain(&server, &name, token, until, lease).await;
    }
    while let Some(lease) = server.cohorts.stretched(&name, token.get(), server.now()) {
        // The grant possibly lasts longer than the lease that the next member of the cohort requested. The lease is
        // restarted before that member gets the turn, because a later restart could shorten a lease that the member has
        // extended.
        match renew(&server, &name, token, Extend::Restart(lease)).await? {
            Renewed::NotHeld => break,
            // The server took the restart for a late request, because its clock was set forward. The engine gives up the
            // connection, and reads the server's time again over the next one.
            Renewed::Until(until) if until > server.now() + lease => {
                server
                    .sessions
                    .connected(&name)
                    .await?
                    .1
                    .health
                    .mark_broken();
                server.context.sleep(RETRY_PAUSE).await;
            }
            Renewed::Until(_) => {}
        }
    }
    release_turn(&server, &name, token, retain_until, true).await
}

/// Offers the turn to the next member of the cohort, or releases the grant if no member is waiting. `is_member` is set if
/// the holder was a member of a cohort when its release began.
async fn release_turn(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
    is_member: bool,
) -> Result<Released, BackendError> {
    let (grant, is_cohort) = match server.cohorts.pass(name, token.get(), server.now()) {
        Passed::Unknown if is_member => return Ok(Released::NotHeld), // another release has passed the turn on
        Passed::Unknown => (token, false),
        Passed::Ended(first) => (FencingToken::new(first), true),
        Passed::Stale => return Ok(Released::NotHeld),
        Passed::On => return Ok(Released::Released),
        Passed::Late(session) => {
            // The waiting members of the cohort queue again. If the server still has the grant, these members share the
            // grant again. If the engine released the grant instead, the server would grant the lock to other callers.
            session.requeue(Some(name));
            return Ok(Released::NotHeld);
        }
    };
    let released = release_grant(server, name, grant, retain_until).await;
    if is_cohort && released.is_ok() {
        server.cohorts.forget(name, grant);
    }
    released
}

/// Releases the grant with this token. The server then grants the lock to the next waiter, or frees the lock if nobody
/// waits. With `retain_until`, the lock first stays taken on the server until that moment.
async fn release_grant(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> Result<Released, BackendError> {
    let names = server.names(name);
    let keys = names.keys_to_release();
    let claim = Arg::Text(claim_ms());
    let answered = match retain_until.filter(|until| *until > server.now()) {
        None => {
            let grant = format!("{token}|");
            let args = [Arg::Text(&grant), Arg::Floor, claim];
            server.run(name, server.scripts.release, &keys, &args).await
        }
        Some(until) => {
            let grant = token.to_string();
            let [at, left] = [Arg::At(until), Arg::Until(until)];
            let args = [Arg::Text(&grant), at, left, Arg::Floor, claim];
            server.run(name, server.scripts.retain, &keys, &args).await
        }
    };
    let answered = match answered {
        // The Redis key of the lock stores data that is not a grant of this layout.
        Err(BackendError::WrongLayout) => return Ok(Released::NotHeld),
        released => released?,
    };
    Ok(match answered.value {
        Value::Int(1) => Released::Released,
        _ if answered.again => Released::Unknown,
        _ => Released::NotHeld,
    })
}

/// Ends the cohort in which the member with this token has the turn, because the server no longer has the cohort's
/// grant. The waiting members of the cohort queue again.
pub(crate) fn lose(server: &Arc<Server>, name: &LockName, token: FencingToken) {
    if let Known::Turn(first) = server.cohorts.known(name, token) {
        server.lose_cohort(name, first);
        server.cohorts.forget_turn(name, token);
    }
}

/// Gives back the turn with this token, because no caller takes it.
pub(crate) fn give_back(
    server: Arc<Server>,
    name: LockName,
    token: FencingToken,
    lease_ends: Moment,
) -> BoxFuture<'static, ()> {
    let tasks = (server.track_cleanup(), server.track_release(lease_ends));
    Box::pin(async move {
        let until = lease_ends.max(server.now() + CLAIM);
        let releasing = release(&server, &name, token, None);
        if let Some(Ok(_)) = server.context.timeout_at(until, releasing).await {
            server.cohorts.forget_turn(&name, token);
        }
        drop(tasks);
    })
}

/// The time for which [`retain`] keeps the grant on the server after the minimum hold time. During this time, the next
/// member can take its turn and renew the grant. If this process ends meanwhile, the next caller waits this much
/// longer.
const RETAIN_MARGIN: Duration = Duration::from_millis(200);

/// Keeps the lock taken until `until`, and then offers the turn to the next member. The server keeps the lock taken
/// until `until` even if this process ends.
async fn retain(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    until: Moment,
    lease: Duration,
) -> Result<Released, BackendError> {
    let rest = until.since(server.now());
    // To allow for clock drift, the local deadline comes before the end of the lease, but the deadline must not come
    // before `until`. The new lease is therefore longer than the time left until `until`.
    let lease = lease.max(rest + rest / 1000 + RETAIN_MARGIN);
    let lease_ends = server.now() + lease;
    match server.cohorts.known(name, token) {
        Known::Turn(_)
            if renew(server, name, token, Extend::To(lease)).await? == Renewed::NotHeld =>
        {
            return Ok(Released::NotHeld);
        }
        _ => {}
    }
    if server.cohorts.retain(name, token) {
        let releasing = release_at(server.clone(), until, name.clone(), token, lease_ends);
        server.context.spawn(releasing);
    }
    Ok(Released::Released)
}

fn release_at(
    server: Arc<Server>,
    moment: Moment,
    name: LockName,
    token: FencingToken,
    lease_ends: Moment,
) -> BoxFuture<'static, ()> {
    let task = server.track_acquisition();
    Box::pin(async move {
        let ends = lease_ends.max(moment + CLAIM);
        tokio::select! {
            biased;
            () = server.context.sleep_until(moment) => give_back(server.clone(), name, token, ends).await,
            // The client is shutting down, so no other member of the cohort gets a turn. One command makes the server
            // retain the lock until `moment`, even without this process.
            () = server.shutdown.begun() => {
                if let Some(first) = server.cohorts.end(&name, token) {
                    let _release = server.track_release(lease_ends);
                    let retaining = release_grant(&server, &name, first, Some(moment));
                    if let Some(Ok(_)) = server.context.timeout_at(ends, retaining).await {
                        server.cohorts.forget(&name, first);
                    }
                }
            }
        }
        drop(task);
    })
}

/// Releases a lock in the background. Repeats the request until the server answers. Gives up when the lease has
/// ended on the server, but not before a claim (2 s) has passed.
pub(crate) fn release_in_background(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
    lease_ends: Option<Moment>,
    latest_end: Moment,
) {
    let tracked_until =
        lease_ends.map_or_else(|| server.now() + CLAIM, |ends| ends.max(latest_end));
    let task = server.track_release(tracked_until);
    let releasing = release_until(
        server.clone(),
        name.clone(),
        token,
        retain_until,
        lease_ends,
        latest_end,
    );
    server.context.spawn(async move {
        releasing.await;
        drop(task);
    });
}

async fn release_until(
    server: Arc<Server>,
    name: LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
    lease_ends: Option<Moment>,
    latest_end: Moment,
) {
    // An earlier member of the cohort may have extended the lease.
    let of_cohort = server.cohorts.latest_end(&name, token);
    let latest_end = of_cohort.map_or(latest_end, |ends| ends.max(latest_end));
    let until = latest_end.max(server.now() + CLAIM);
    let releasing = release(&server, &name, token, retain_until);
    let released = server.context.timeout_at(until, releasing).await;
    if let Some(Ok(_)) = released {
        server.cohorts.forget_turn(&name, token);
    }
    let Some(lease_ends) = lease_ends else {
        return; // the hold was lost before, and the loss has been counted already
    };
    let (address, key) = (server.address(), server.key(&name));
    match released {
        Some(Ok(Released::Released)) => {
            count(&server.counters.released);
            tracing::debug!(target: TARGET, server = %address, %key, %token, "released in the background");
        }
        // The caller has possibly sent a request to release before, whose answer was not read.
        Some(Ok(Released::NotHeld | Released::Unknown)) if server.now() < lease_ends => {
            count(&server.counters.release_unknown);
        }
        Some(Ok(Released::NotHeld | Released::Unknown)) => {}
        Some(Err(error)) => {
            count(&server.counters.release_failed);
            // The end of a shutdown ends the release. The log names the failure that the shutdown did not outwait.
            let error = match (error, server.last_error()) {
                (BackendError::ShutDown, Some(cause)) => BackendError::Unreachable(cause),
                (error, _) => error,
            };
            tracing::warn!(target: TARGET, server = %address, %key, %token, %error, "release failed, the lease ends by itself");
        }
        None => {
            count(&server.counters.release_failed);
            tracing::warn!(target: TARGET, server = %address, %key, %token, "release not answered, the lease has ended by itself");
        }
    }
}

/// Reads from the server who holds a lock, and how many callers wait for it.
pub(crate) async fn status(server: &Arc<Server>, name: &LockName) -> Result<Status, BackendError> {
    let names = server.names(name);
    let keys = match server.layout() {
        Layout::Native => vec![names.grant(), names.companion()],
        // A script with a single key runs even while the slot of this key moves to another server.
        Layout::Redisson => vec![names.grant()],
    };
    let answered = server.run(name, server.scripts.status, &keys, &[]).await?;
    type Seen = (usize, Option<Vec<u8>>, i64, (u64, u64));
    let (queued, held, left, (seconds, micros)): Seen =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    let held = held.as_deref().map(String::from_utf8_lossy);
    let now = i128::from(seconds) * 1_000_000 + i128::from(micros);
    let left = u64::try_from(left).ok().map(Duration::from_millis);
    let mut holder = held
        .as_deref()
        .and_then(|held| read_holder(held, left, now));
    let mut others = held.as_deref().map_or(0, members).saturating_sub(1);
    // The server does not know which member of a cohort has the turn, because only the cohort's process knows it.
    if let Some(holder) = &mut holder
        && let Some(token) = holder.token
        && let Some((turn, waiting)) = server.cohorts.seen(name, token.get())
    {
        (holder.token, holder.owner) = (Some(FencingToken::new(turn.token)), turn.owner);
        others = waiting;
    }
    Ok(Status::new(holder, queued + others))
}

/// Reads the first waiters in the queue of a lock.
pub(crate) async fn waiters(
    server: &Arc<Server>,
    name: &LockName,
    limit: usize,
) -> Result<Vec<Waiter>, BackendError> {
    let Some(script) = server.scripts.waiters else {
        return Ok(Vec::new()); // this layout has no queue
    };
    let names = server.names(name);
    if limit == 0 {
        return Ok(Vec::new());
    }
    let last = limit.min(WAITERS_AT_MOST).to_string();
    let keys = [names.companion()];
    let answered = server.run(name, script, &keys, &[Arg::Text(&last)]).await?;
    let (now, entries): (u64, Vec<(Vec<u8>, f64)>) =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    let waiters = entries.iter();
    Ok(waiters
        .filter_map(|(entry, place)| read_waiter(str::from_utf8(entry).ok()?, *place, now))
        .collect())
}

/// Parses an entry of a queue. Returns `None` if the entry is not a waiter.
fn read_waiter(entry: &str, place: f64, now: u64) -> Option<Waiter> {
    let mut fields = entry.split('|');
    let owner = read_owner(fields.next()?)?;
    let session_id = fields.next()?;
    let wait: u64 = fields.nth(1)?.parse().ok()?;
    let words = fields.next().unwrap_or_default();
    // A place is a whole number below 2^53, so the conversion is exact.
    let place = Duration::from_micros(place as u64);
    let now = Duration::from_micros(now);
    let mut waiter = Waiter::new(owner, short_name(session_id));
    waiter.queued_for = now.saturating_sub(place);
    waiter.remaining = (place + Duration::from_millis(wait)).saturating_sub(now);
    waiter.caller = caller(words);
    Some(waiter)
}
