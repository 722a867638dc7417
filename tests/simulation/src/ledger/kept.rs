//! The checks of what a call must keep: its place in the queue, and its lease if the lease is renewed.

use super::{
    Ledger,
    granted::{PLACE_SLACK, keeps_timing},
    servers::{Broken, SETTLED},
    state::{Call, CallId, State},
};
use crate::{
    faults::Fault,
    network::ServerId,
    plan::Store,
    redis::{Redis, StoredGrant, StoredQueue, StoredWaiter},
};

/// The longest time, in milliseconds, for which a waiting caller is not in the queue, in addition to the longest lease
/// and the delays of messages.
const ABSENT: u64 = 500;
/// The number of times that the extension of a grant can be a little shorter than the one before.
const EXTENSIONS: u32 = 2;

impl Ledger {
    /// Checks that nobody overtakes a call that the engine queues again, even under another owner. A queue names owners, so
    /// the judge knows the place of a call only if the call is the only one of its process.
    pub(super) fn check_kept_place(
        &self,
        state: &mut State,
        key: &str,
        queues: &[(ServerId, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        let keeps = |fault: &Fault| {
            let moves = matches!(fault, Fault::MoveSlot | Fault::Join);
            moves || keeps_timing(fault) || *fault == Fault::Partition
        };
        let is_known = self.plan.tasks == 1 && self.plan.replicas == 0;
        if !is_known || !self.plan.faults.iter().all(keeps) {
            return None;
        }
        let late = 1_000 * (PLACE_SLACK + 3 * self.plan.delay);
        let State {
            calls,
            hosts,
            places,
            ..
        } = state;
        places.retain(|id, _| calls.contains_key(id));
        queues.iter().find_map(|(server, queue)| {
            let clock = self.network.peek(*server, |_, ms| Some(ms))?;
            let age = |place: u64| (1_000 * clock.unsigned_abs()).saturating_sub(place);
            queue.waiters.iter().find_map(|waiter| {
                let host = hosts.get(&waiter.session)?;
                let is_here = |call: &Call| call.wanted.host == *host && !call.is_forgotten;
                let mut here = calls.iter().filter(|(_, call)| is_here(call));
                let (CallId(number), call) = here.next().filter(|_| here.next().is_none())?;
                let is_of_it = call.waits
                    && call.wanted.queues
                    && !call.wanted.is_multi
                    && call.wanted.keys[0] == key
                    // An older entry belongs to a call that has ended.
                    && age(waiter.place) < 1_000 * (now - call.asked + 1);
                if !is_of_it {
                    return None;
                }
                // The entry of an earlier owner name can stay for a moment.
                let is_behind =
                    |other: &StoredWaiter| other.session == waiter.session && other.place < waiter.place;
                if queue.waiters.iter().any(is_behind) {
                    return None;
                }
                let first = *places.entry(CallId(*number)).or_insert(waiter.place);
                let overtakes =
                    |other: &StoredWaiter| first + late < other.place && other.place < waiter.place;
                let other = queue.waiters.iter().find(|other| overtakes(other))?;
                let seen = format!(
                    "call {number} waits for {key} on server {server} at place {}, and was at {first} before {other:?}",
                    waiter.place
                );
                Some(("a call keeps its place", seen))
            })
        })
    }

    /// Checks that a new caller queues behind the callers that had queued before the server's clock was set back.
    pub(super) fn check_new_place(
        &self,
        state: &State,
        key: &str,
        queues: &[(ServerId, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        let plan = &self.plan;
        let sets = |fault: &Fault| matches!(fault, Fault::ClockBack | Fault::ClockAhead);
        let is_certain = plan.faults.iter().all(sets)
            && plan.slow == 0
            && plan.runtimes == 1
            && plan.replicas == 0
            // If a grant ends without a release, the callers of its process can be removed from the queue. They then
            // return to their old places.
            && plan.ways.iter().all(|way| way.is_orderly());
        if !is_certain {
            return None;
        }
        let seen = &state.keys.get(key)?.seen;
        let since = 1_000 * (now - state.compared.0 + 1);
        queues.iter().find_map(|(server, queue)| {
            let before = &seen.get(server)?.waiters;
            let clock = self
                .network
                .peek(*server, |_, ms| 1_000 * ms.unsigned_abs());
            let stays = |waiter: &StoredWaiter| before.contains(&waiter.owner);
            // A caller that returns has an older place.
            let is_recent = |waiter: &StoredWaiter| clock.abs_diff(waiter.place) <= since;
            let mut waiters = queue.waiters.iter();
            let new = waiters.find(|waiter| is_recent(waiter) && !stays(waiter))?;
            let other = waiters.find(|waiter| waiter.place > clock + since && stays(waiter))?;
            let seen = format!("{key} on server {server}: {new:?} is before {other:?}");
            Some(("a new caller queues behind all others", seen))
        })
    }

    /// Checks that each caller that waits for its turn is in the queue or has a grant. A queue names owners, so the judge
    /// compares the number of callers of each process.
    pub(super) fn check_queued(
        &self,
        state: &mut State,
        key: &str,
        grants: &[(ServerId, StoredGrant)],
        queues: &[(ServerId, StoredQueue)],
        now: u64,
    ) -> Option<Broken> {
        let plan = &self.plan;
        let is_certain = plan.store.has_queue()
            && plan.slow == 0
            && plan.replicas == 0
            && plan.ways.iter().all(|way| way.is_prompt())
            && plan.faults.iter().all(Fault::keeps_clocks);
        if !is_certain {
            return None;
        }
        let State {
            calls,
            hosts,
            absent,
            ..
        } = state;
        let queued = queues.iter().flat_map(|(_, queue)| &queue.waiters);
        let granted = grants
            .iter()
            .flat_map(|(_, grant)| vec![&grant.session; grant.owners.len()]);
        let sessions: Vec<_> = queued
            .map(|waiter| &waiter.session)
            .chain(granted)
            .collect();
        let is_settled = state.disturbed == 0 || !state.in_fault && state.disturbed + SETTLED < now;
        (0..plan.processes + plan.spares).find_map(|host| {
            let waits = |call: &&Call| {
                let wanted = &call.wanted;
                call.waits && wanted.host == host && wanted.queues && wanted.keys == [key]
            };
            let waiting = calls.values().filter(waits).count();
            let is_here =
                |session: &&&String| hosts.get(**session).is_none_or(|its| *its == host);
            let known = sessions.iter().filter(is_here).count();
            let entry = (key.to_owned(), host);
            if waiting <= known || !is_settled {
                absent.remove(&entry);
                return None;
            }
            let since = *absent.entry(entry).or_insert(now);
            let late = state.longest_lease + ABSENT + 4 * plan.delay;
            (now > since + late).then(|| {
                let seen = format!(
                    "{waiting} callers of host {host} wait for {key} since {since} ms, with {known} entries"
                );
                ("a caller that waits is in the queue", seen)
            })
        })
    }

    /// Checks that the extensions of a grant do not become shorter, each by the time that its messages take.
    pub(super) fn check_extensions(
        &self,
        state: &mut State,
        key: &str,
        server: ServerId,
        grant: &StoredGrant,
    ) -> Option<Broken> {
        // If a call waits for replicas, its client writes the time that is left of the grant again.
        if self.plan.replicas > 0 {
            return None;
        }
        let seen = state.keys.get_mut(key)?.seen.entry(server).or_default();
        let now = grant.extended.map(|time| (grant.command, time));
        let before = std::mem::replace(&mut seen.extended, now);
        let (Some((stored, time)), Some((before, earlier))) = (now, before) else {
            seen.shorter = 0;
            return None;
        };
        // The callers of one grant can ask for different leases.
        if stored != before || earlier < time || earlier - time > 2 * self.plan.delay {
            seen.shorter = 0;
        } else if time < earlier {
            seen.shorter += 1;
        }
        (seen.shorter > EXTENSIONS).then(|| {
            let seen = format!("{key} on server {server}: {grant:?}, {earlier} ms before");
            ("the extensions of a grant do not become shorter", seen)
        })
    }

    /// Checks that a client keeps its connection while slots move and nothing else happens. The engine can give up the
    /// connection of a call that is polled late.
    pub(super) fn check_connection(
        &self,
        state: &mut State,
        server: ServerId,
        session: &str,
    ) -> Option<Broken> {
        let mut faults = self.plan.faults.iter();
        if self.plan.slow > 0 || !faults.all(|fault| matches!(fault, Fault::MoveSlot | Fault::Join))
        {
            return None;
        }
        let listener = |redis: &Redis, _| redis.listener(session);
        let new = self.network.peek(server, listener)?;
        let old = state.listeners.insert((server, session.to_owned()), new)?;
        (old != new).then(|| {
            let seen = format!("server {server}: {new:?} has replaced {old:?}");
            ("a connection outlasts the move of a slot", seen)
        })
    }

    /// Checks that a lease that is renewed does not end if nothing keeps the renewals from the server of the lock.
    pub(super) fn check_cause(&self, state: &State, key: &str, number: u64) -> Option<Broken> {
        let inside = state.keys.get(key)?.inside.get(&number)?;
        let wanted = &state.calls.get(&inside.call)?.wanted;
        let server = inside.server?;
        let is_move = |fault: &Fault| matches!(fault, Fault::MoveSlot | Fault::Join);
        let moves = self.plan.faults.iter().any(is_move);
        let answers = |fault: &Fault| match fault {
            Fault::MoveSlot | Fault::Join | Fault::ForgetScripts | Fault::OutOfMemory => true,
            // Only the server of the lock matters. The lock can be on another server by now if slots move.
            Fault::Stop => {
                let mut silent = state.silent.iter();
                silent.all(|(its, at)| *at < inside.entered || *its != server && !moves)
            }
            _ => false,
        };
        let is_certain = inside.hold.loss().is_some()
            && wanted.renewed
            && wanted.max_hold.is_none()
            && wanted.keys.len() == 1
            && self.plan.store != Store::Redisson
            && self.plan.faults.iter().all(answers);
        is_certain.then(|| {
            let seen = format!("{}: {:?}", inside.name(key), inside.hold.loss());
            ("a lease that can be renewed does not end", seen)
        })
    }
}
