//! Accepts, renews, passes on, retains and releases grants. The [core](super::super::core) makes the decisions, and this file
//! sends the commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, BoxFuture, Released, Renewed, Status, Waiter},
    fencing::FencingToken,
    key::LockName,
    layout::Layout,
    lease::{CLAIM, Moment, less_drift},
    owner::OwnerId,
};
use redis::Value;

use crate::{
    backend::redis::{
        core::cohorts::{Dissolved, Known, Passed, TakenUp},
        protocol::{
            command::{Arg, claim_ms, millis},
            grant::{GrantSnapshot, read_owner, short_name},
            request::not_understood,
            scripts,
            words::{caller, members, read_holder},
        },
        queue::server::Server,
        session::Session,
    },
    events::{TARGET, count},
};

/// The maximum number of waiters that one command reads, so that the command takes little of the server's time.
const WAITERS_AT_MOST: usize = 1000;

/// Creates the cohort of a grant that the server pushed, or described in an answer, unless this cohort or a later one is
/// known already. Returns true if the grant is new to this process, and a waiter has got the turn.
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
        dissolve: again,
    } = server.core.take_up(session.link, name, grant, server.now());
    for link in requeue {
        server.requeue(link, name);
    }
    if let Some((token, until)) = unused {
        server
            .context
            .spawn(give_back(server.clone(), name.clone(), token, until));
    }
    if let Some(token) = again {
        let (server, name) = (server.clone(), name.clone());
        server.context.clone().spawn(async move {
            let _ = dissolve(&server, &name, token, Some(Duration::ZERO)).await;
        });
    }
    begun
}

/// Carries out the tasks of a heartbeat for the cohorts of a session, as the core determines them.
pub(crate) fn carry_out_chores(server: &Arc<Server>, session: &Arc<Session>, now: Moment) {
    let chores = server
        .core
        .with(|core| core.heartbeat_chores(session.link, now));
    for name in chores.requeue {
        session.requeue(Some(&name));
    }
    for (name, token, until) in chores.release {
        let giving_back = give_back(server.clone(), name.clone(), token, until);
        server.context.spawn(giving_back);
    }
}

/// Ends the turn of the holder with this token. If another member of the cohort is waiting, that member gets the turn.
/// Passing the turn on usually needs no command to the server. If the other members have to queue again before, this is
/// done in a task of the engine, so that it does not depend on when the caller is polled.
pub(crate) async fn release(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> Result<Released, BackendError> {
    let retains = retain_until.is_some_and(|until| until > server.now());
    if !server
        .core
        .with(|core| core.dissolves(name, token, retains))
    {
        return release_turn(server, name, token, retain_until).await;
    }
    let (server, name) = (server.clone(), name.clone());
    let context = server.context.clone();
    let releasing = async move {
        let lease = (!retains).then_some(Duration::ZERO);
        // If the server refuses this, it decides about the release as well.
        let _ = dissolve(&server, &name, token, lease).await;
        release_turn(&server, &name, token, retain_until).await
    };
    let released = context.spawn(releasing).await;
    released.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())))
}

/// Lets the holder with this token keep its grant alone, if other members of its cohort wait that want less than `lease`;
/// `None` stands for more than any lease. One script extends the lease to `lease`, and queues the others again at their
/// places. Returns `None` if nobody has to queue again.
pub(crate) async fn dissolve(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    lease: Option<Duration>,
) -> Result<Option<Renewed>, BackendError> {
    let dissolved = server.core.with(|core| core.dissolve(name, token, lease));
    let Some(dissolved) = dissolved else {
        return Ok(None);
    };
    // The others get no turn in memory any more, so this does not stop when the holder's call is dropped.
    let lease = lease.unwrap_or_default();
    let queueing = queue_others(server.clone(), name.clone(), token, dissolved, lease);
    let queued = server.context.spawn(queueing).await;
    let queued = queued.unwrap_or_else(|panic| Err(BackendError::Unreachable(panic.to_string())));
    queued.map(Some)
}

async fn queue_others(
    server: Arc<Server>,
    name: LockName,
    token: FencingToken,
    dissolved: Dissolved,
    lease: Duration,
) -> Result<Renewed, BackendError> {
    let Dissolved {
        link,
        first,
        owner,
        others,
    } = dissolved;
    let names = server.names(&name);
    let (grant, owner, wanted) = (first.to_string(), owner.to_string(), millis(lease));
    let has_turn = || {
        let known = server.core.with(|core| core.known(&name, token));
        matches!(known, Known::Turn(_))
    };
    let mut is_first = true;
    while has_turn() {
        // While the slot of the lock moves, only a script with one key is carried out.
        let is_alone = !is_first && server.sessions.is_cluster();
        // Members can have left since the last try. A member leaves only after the answer (`under_way`), or the server could
        // queue it again after it has left.
        let entries = match is_alone {
            true => Vec::new(),
            false => server
                .core
                .with(|core| core.lines.places(link, &name, &others)),
        };
        let entries = entries.into_iter().filter_map(|(request, place)| {
            let under_way = request.send()?;
            Some((under_way, request, place))
        });
        let entries: Vec<_> = entries.collect();
        let keys = [names.grant(), names.companion()];
        let keys = if is_alone { &keys[..1] } else { &keys };
        let mut args = vec![Arg::Text(&grant), Arg::Text(&owner), Arg::Text(&wanted)];
        let texts = entries.iter();
        let texts: Vec<_> = texts
            .map(|(_, request, place)| (request.member(), place.to_string()))
            .collect();
        for (member, place) in &texts {
            args.extend([Arg::Text(member), Arg::Text(place)]);
        }
        // The second time is for a server that has forgotten the script.
        let tries = AtomicUsize::new(0);
        let is_wanted = || tries.fetch_add(1, Ordering::Relaxed) < 2 && has_turn();
        if !lease.is_zero() {
            let until = server.now() + lease;
            server
                .core
                .with(|core| core.note_request(&name, token, until));
        }
        let queueing = server.run_while(&name, &scripts::DISSOLVE, keys, &args, &is_wanted);
        let Some(answered) = queueing.await? else {
            is_first = false;
            continue;
        };
        let left: i64 =
            redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
        let Ok(left) = u64::try_from(left) else {
            server.lose_cohort(&name, first.get());
            return Ok(Renewed::NotHeld);
        };
        let until = answered.sent + less_drift(Duration::from_millis(left));
        let now = server.now();
        let (waiting, confirmed) = server.core.with(|core| {
            core.has_queued(&name, token);
            let waits = |owner: &&OwnerId| core.lines.waits(link, &name, **owner);
            let waiting = others.iter().filter(waits).count();
            (waiting, core.confirm(&name, token, until, now))
        });
        if entries.len() < waiting {
            server.requeue(link, &name); // the places of some others were not known
        }
        return Ok(match confirmed {
            true => Renewed::Until(until),
            false => Renewed::NotHeld,
        });
    }
    // The holder has left, and its release lets the others enter.
    server.requeue(link, &name);
    Ok(Renewed::NotHeld)
}

/// Offers the turn to the next member of the cohort, or releases the grant if no member is waiting.
async fn release_turn(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    retain_until: Option<Moment>,
) -> Result<Released, BackendError> {
    let retain_until = server
        .core
        .with(|core| core.retain(name, token, retain_until));
    let (grant, is_cohort) = match server.core.pass(name, token.get(), server.now()) {
        Passed::Unknown => (token, false),
        Passed::Ended(first) => (FencingToken::new(first), true),
        Passed::Stale => return Ok(Released::NotHeld),
        Passed::On => return Ok(Released::Released),
        Passed::Late(link) => {
            // The waiting members of the cohort queue again. If the server still has the grant, these members share the
            // grant again. If the engine released the grant instead, the server would grant the lock to other callers.
            server.requeue(link, name);
            return Ok(Released::NotHeld);
        }
    };
    let released = release_grant(server, name, grant, retain_until).await;
    if is_cohort && released.is_ok() {
        server.core.with(|core| core.forget(name, grant));
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
    if let Known::Turn(first) = server.core.with(|core| core.known(name, token)) {
        server.lose_cohort(name, first);
        server.core.with(|core| core.forget_turn(name, token));
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
            server.core.with(|core| core.forget_turn(&name, token));
        }
        drop(tasks);
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
    let of_cohort = server.core.with(|core| core.latest_end(&name, token));
    let latest_end = of_cohort.map_or(latest_end, |ends| ends.max(latest_end));
    let until = latest_end.max(server.now() + CLAIM);
    let releasing = release(&server, &name, token, retain_until);
    let released = server.context.timeout_at(until, releasing).await;
    if let Some(Ok(_)) = released {
        server.core.with(|core| core.forget_turn(&name, token));
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

/// Turns the grant of the writer with this token into that of a reader. Returns false if the server no longer has it.
pub(crate) async fn downgrade(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
) -> Result<bool, BackendError> {
    // The other members of its cohort want to write, so they queue again.
    dissolve(server, name, token, None).await?;
    let known = server.core.with(|core| {
        // The message about a reader that enters beside it can come before the answer.
        core.downgrade(name, token);
        core.known(name, token)
    });
    let grant = match known {
        Known::Itself => token,
        Known::Turn(first) => FencingToken::new(first),
        Known::Over => return Ok(false),
    };
    let (names, grant) = (server.names(name), grant.to_string());
    let args = [Arg::Text(&grant), Arg::Floor, Arg::Text(claim_ms())];
    let keys = names.keys_to_release();
    let answered = server.run(name, &scripts::DOWNGRADE, &keys, &args).await?;
    Ok(answered.value == Value::Int(1))
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
    type Seen = (usize, Option<Vec<u8>>, i64, (u64, u64), Vec<(Vec<u8>, u64)>);
    let (queued, held, left, (seconds, micros), readers): Seen =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    let held = held.as_deref().map(String::from_utf8_lossy);
    let now = i128::from(seconds) * 1_000_000 + i128::from(micros);
    let left = u64::try_from(left).ok().map(Duration::from_millis);
    let mut holder = held
        .as_deref()
        .and_then(|held| read_holder(held, left, now));
    let is_shared = holder
        .as_ref()
        .is_some_and(|holder| holder.mode.is_shared());
    let mut others = match is_shared {
        true => 0, // all owners of a grant of readers are inside
        false => held.as_deref().map_or(0, members).saturating_sub(1),
    };
    // The server does not know which member of a cohort has the turn, because only the cohort's process knows it.
    if !is_shared
        && let Some(holder) = &mut holder
        && let Some(token) = holder.token
        && let Some((turn, waiting)) = server.core.with(|core| core.seen(name, token.get()))
    {
        (holder.token, holder.owner) = (Some(FencingToken::new(turn.token)), turn.owner);
        others = waiting;
    }
    let mut status = Status::new(holder, queued + others);
    let readers = readers.iter().filter_map(|(grant, left)| {
        let left = Duration::from_millis(*left);
        read_holder(&String::from_utf8_lossy(grant), Some(left), now)
    });
    status.others.extend(readers);
    Ok(status)
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
