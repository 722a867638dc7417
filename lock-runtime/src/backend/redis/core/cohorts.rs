//! The type [`Core`], and the cohorts that a client has on one server. A cohort is a group of neighbours in the queue that share one grant. The core
//! passes turns to members that are still waiting, and determines when a grant is given back to the server. `queue/grants.rs`
//! sends the commands.
//!
//! A lock usually has one cohort at most. It can have more after a failover in a Redis Cluster: while the session with the
//! new primary is used, the session with the old one can still receive grants. It can also have more after the server
//! has lost a grant. A grant therefore never makes the core forget a member that has taken its turn by another grant,
//! unless the hold of this member is lost.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use lock_core::{
    backend::Extend,
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, Moment},
    owner::OwnerId,
};

use crate::backend::redis::{
    core::{
        cohort::{Cohort, Departure, Turn},
        waiting::{Ended, Lines, Link, Parts},
    },
    protocol::grant::GrantSnapshot,
};

#[cfg(test)]
mod tests;

/// A cohort, and the session in which its members wait.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Entry {
    link: Link,
    cohort: Cohort,
    /// The moment at which another grant of the lock came, if it came during the turn of a member. The server has then
    /// usually lost this grant, so the member that has the turn is the last one, unless a later answer of the server
    /// describes the grant again.
    replaced: Option<Moment>,
    /// The moment at which the member that had the turn left, if the local deadline had passed. The other members queue again,
    /// and possibly share the grant again. A second release by the same member must therefore not release the grant. If the
    /// members do not share the grant again within a claim, the engine releases it.
    left: Option<Moment>,
}

/// The cohorts by lock, and by the token of the first member. The map is ordered, so that each run of a program visits
/// the cohorts in the same order.
pub(crate) type Entries = BTreeMap<(LockName, u64), Entry>;

impl Entry {
    /// Passes the turn to the next member that is still waiting, or to all such members of a cohort of readers. A member whose runtime is silent misses its turn: at its
    /// next poll, it queues again at its old place.
    fn pass<P: Parts>(
        &mut self,
        name: &LockName,
        now: Moment,
        lines: &mut Lines<P>,
        is_silent: &dyn Fn(&P::Caller) -> bool,
    ) -> Next {
        let mut next = Next::Nobody;
        while let Some(turn) = self.cohort.next(now) {
            let is_silent = lines.is_silent(self.link, name, turn.owner, is_silent);
            if lines.tell(self.link, name, turn.owner, Ended::Turn) {
                if is_silent {
                    next = next.max(Next::Silent);
                    continue;
                }
                self.cohort.enter(turn);
                next = Next::Inside;
                if !self.cohort.is_shared() {
                    break;
                }
            }
        }
        next
    }

    /// Returns the number of members that are still waiting for their turn.
    fn waiting<P: Parts>(&self, name: &LockName, lines: &Lines<P>) -> usize {
        let waits = |owner: &&OwnerId| lines.waits(self.link, name, **owner);
        self.cohort.to_come().iter().filter(waits).count()
    }

    fn has_waiting<P: Parts>(&self, name: &LockName, lines: &Lines<P>) -> bool {
        let mut to_come = self.cohort.to_come().iter();
        to_come.any(|owner| lines.waits(self.link, name, *owner))
    }

    /// The server describes the grant with these owners. If its member keeps the grant alone, and some of the owners behind
    /// it still wait, the server has lost the script that queued them: returns the token of the member.
    fn dissolve_again<P: Parts>(
        &mut self,
        name: &LockName,
        owners: &[OwnerId],
        lines: &Lines<P>,
    ) -> Option<FencingToken> {
        let turn = self.cohort.turn();
        if !self.cohort.is_dissolved() || self.cohort.is_queueing() {
            return None;
        }
        let waits = |owner: &&OwnerId| lines.waits(self.link, name, **owner);
        let behind = owners.iter().skip_while(|owner| **owner != turn.owner);
        let others = behind.skip(1).filter(waits).copied().collect();
        self.cohort.queue_again(others);
        let queueing = self.cohort.is_queueing();
        queueing.then(|| FencingToken::new(turn.token))
    }
}

/// The outcome of the search for the next member of a cohort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// No member is still waiting, or the local deadline of the grant has passed.
    Nobody,
    /// Members were waiting, but their runtimes do not run. They have missed their turns.
    Silent,
    /// A member has the turn.
    Inside,
}

/// The members of a cohort that have to queue again, because the member that has the turn keeps the grant alone.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Dissolved {
    /// The session in which they wait.
    pub(crate) link: Link,
    /// The token by which the server identifies the grant.
    pub(crate) first: FencingToken,
    /// The member that keeps the grant.
    pub(crate) owner: OwnerId,
    pub(crate) others: VecDeque<OwnerId>,
}

/// The outcome of passing a turn to the next member of a cohort.
#[derive(Debug)]
pub(crate) enum Passed {
    /// This process knows no cohort that contains the token.
    Unknown,
    /// The next member of the cohort has the turn.
    On,
    /// The member that leaves no longer has the turn.
    Stale,
    /// No member of the cohort is left. The grant with this token (the token of the cohort's first member) has to be
    /// released.
    Ended(u64),
    /// The local deadline of the grant has passed, and members are still waiting in this session.
    Late(Link),
}

/// Which token a request to the server has to name, so that the server finds the grant of a holder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The request names the holder's own token, because the holder belongs to no known cohort.
    Itself,
    /// The request names this token, which is the token of the first member of the holder's cohort. The holder has the
    /// turn.
    Turn(u64),
    /// The engine must not send a request, because the holder has lost its turn.
    Over,
}

/// The tasks that a heartbeat (the periodic task of a session) has to carry out for the session's cohorts.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    /// The locks whose waiting members have to queue again, because the local deadline of the grant has passed.
    pub(crate) requeue: Vec<LockName>,
    /// The grants that have to be released because no member takes the turn. Each grant comes with the token of its
    /// last turn, and with the latest moment at which its lease can end.
    pub(crate) release: Vec<(LockName, FencingToken, Moment)>,
}

/// The tasks that the engine has to carry out after it has recorded a new grant.
#[derive(Debug, Default)]
pub(crate) struct TakenUp {
    /// The sessions whose waiters for the lock have to queue again.
    pub(crate) requeue: Vec<Link>,
    /// The token of a turn that has to be given back because no member takes it, and the latest moment at which the
    /// lease of its grant can end.
    pub(crate) give_back: Option<(FencingToken, Moment)>,
    /// Whether the grant is new to this process, and a waiter has got the turn.
    pub(crate) begun: bool,
    /// The token of a member that keeps the grant alone, if the server still describes the grant with other members.
    pub(crate) dissolve: Option<FencingToken>,
}

/// Returns the cohorts of a lock, ordered by their tokens.
fn of_lock<'a>(
    entries: &'a mut Entries,
    name: &LockName,
) -> impl DoubleEndedIterator<Item = &'a mut Entry> {
    let range = (name.clone(), 0)..=(name.clone(), u64::MAX);
    entries.range_mut(range).map(|(_, entry)| entry)
}

/// Returns the cohort that contains the token.
fn of_token<'a>(entries: &'a mut Entries, name: &LockName, token: u64) -> Option<&'a mut Entry> {
    of_lock(entries, name).rfind(|entry| entry.cohort.contains(token))
}

/// Returns whether the grant begins a cohort, or begins its suspended cohort again. If another grant had replaced the
/// known cohort of this grant, and no longer matters, an answer that describes the grant reverses the replacement.
fn may_begin(
    cohorts: &mut Entries,
    link: Link,
    name: &LockName,
    grant: &GrantSnapshot,
    now: Moment,
) -> bool {
    // A message or an answer can be late, so a grant with a lower token than a known grant is usually an older one. But
    // if the known grant is over, and the session sent the request that this answer belongs to after the known grant
    // had come from the same server, then the known grant is the older one. The server's tokens start again at a lower
    // number if the server has lost its data and its clock was set back.
    let is_past = |entry: &Entry| {
        (entry.cohort.is_over() || entry.cohort.until() <= now)
            && entry.cohort.was_known_at(grant.after())
            && entry.link == link
    };
    let is_newer = |entry: &mut Entry| {
        if entry.cohort.is_shared() && grant.mode.is_shared() {
            return false; // readers can be inside together
        }
        let is_later = entry.left.is_none() && entry.cohort.first() > grant.first;
        is_later && (grant.is_pushed || !is_past(entry))
    };
    let is_old = of_lock(cohorts, name).any(is_newer);
    let Some(known) = cohorts.get_mut(&(name.clone(), grant.first)) else {
        return !is_old;
    };
    if grant.is_pushed {
        return false;
    }
    known.replaced = known
        .replaced
        .filter(|replaced| is_old || grant.after() <= *replaced);
    known.cohort.is_suspended() && !is_old
}

/// Records that a new grant replaces the known grants of the lock, which the server has usually lost. A grant to readers
/// replaces no grants to readers. Returns the sessions whose waiting members have to queue again.
fn replace_others(
    cohorts: &mut Entries,
    name: &LockName,
    is_shared: bool,
    now: Moment,
) -> Vec<Link> {
    let (mut requeue, mut forgotten) = (Vec::new(), Vec::new());
    let replaced = |other: &&mut Entry| !(is_shared && other.cohort.is_shared());
    for other in of_lock(cohorts, name).filter(replaced) {
        if !other.cohort.is_over() && other.replaced.is_none() {
            requeue.push(other.link);
        }
        other.replaced = Some(now);
        if !other.cohort.is_unsettled() || other.cohort.is_past(now) {
            forgotten.push((name.clone(), other.cohort.first()));
        }
    }
    for key in forgotten {
        cohorts.remove(&key);
    }
    requeue
}

/// The callers that wait and the grants of a client, on one server or one Redis Cluster.
pub(crate) struct Core<P: Parts> {
    pub(crate) lines: Lines<P>,
    pub(crate) cohorts: Entries,
}

impl<P: Parts> Default for Core<P> {
    fn default() -> Self {
        Self {
            lines: Lines::default(),
            cohorts: Entries::new(),
        }
    }
}

impl<P: Parts> Core<P> {
    /// Applies a change to the cohort that contains the token.
    fn with_token<T>(
        &mut self,
        name: &LockName,
        token: u64,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        of_token(&mut self.cohorts, name, token).map(change)
    }

    /// Applies a change to the cohort whose first member has this token.
    fn with_first<T>(
        &mut self,
        name: &LockName,
        first: u64,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        self.cohorts.get_mut(&(name.clone(), first)).map(change)
    }

    /// Returns the grant by which this owner has the turn. Returns `None` if it does not have the turn, if the server has
    /// usually lost the grant, or if the local deadline has passed.
    pub(crate) fn grant_of(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
    ) -> Option<Grant> {
        let mut present = of_lock(&mut self.cohorts, name).filter(|entry| entry.replaced.is_none());
        present.find_map(|entry| entry.cohort.grant_of(owner, now))
    }

    /// Creates the cohort of a grant that the server pushed, or described in an answer, unless this cohort or a later
    /// one is known already. A suspended cohort (one whose local deadline has passed) is created again if the answer to a request
    /// describes its grant.
    pub(crate) fn take_up(
        &mut self,
        link: Link,
        name: &LockName,
        grant: &GrantSnapshot,
        now: Moment,
        is_silent: &dyn Fn(&P::Caller) -> bool,
    ) -> TakenUp {
        let mut chores = TakenUp::default();
        if !self.lines.has_id(link, &grant.session_id) {
            return chores; // the grant belongs to an earlier session of these callers, which they have left
        }
        let is_new = self
            .lines
            .note_grant(link, name, &grant.owners, grant.first);
        if grant.is_pushed && !is_new {
            return chores; // each grant is pushed once, so this is a repeated message
        }
        let Some(mut cohort) = Cohort::new(grant, now) else {
            return chores;
        };
        if !may_begin(&mut self.cohorts, link, name, grant, now) {
            if !grant.is_pushed
                && let Some(entry) = self.cohorts.get_mut(&(name.clone(), grant.first))
            {
                chores.dissolve = entry.dissolve_again(name, &grant.owners, &self.lines);
            }
            return chores;
        }
        let key = (name.clone(), grant.first);
        if let Some(suspended) = self.cohorts.get(&key) {
            cohort.continue_from(&suspended.cohort);
        }
        let mut entry = Entry {
            link,
            cohort,
            replaced: None,
            left: None,
        };
        if !grant.is_pushed {
            let lines = &mut self.lines;
            lines.set_grant(link, name, &grant.owners, grant.first);
        }
        let is_known = self.cohorts.contains_key(&key);
        let next = entry.pass(name, now, &mut self.lines, is_silent);
        let passed = next == Next::Inside;
        chores.begun = passed && !is_known;
        if let ([owner], Next::Nobody) = (&grant.owners[..], next) {
            // The only owner of the grant could not get its turn. Either the deadline of the grant has passed, or one of
            // three cases applies:
            // - The owner has left. Its clean-up has possibly ended before the grant, because the queue of a promoted
            //   replica can be outdated. A grant that was pushed is therefore given back, like that of a whole cohort.
            // - The owner already holds the lock by this grant, because the answer to its own request granted the lock.
            //   The server pushes no such grant.
            // - The owner holds the lock with an older token, because the server has granted the lock to the owner
            //   twice. The server's second grant is given back.
            let twice = |other: &mut Entry| {
                other.cohort.is_inside(*owner) && other.cohort.first() < grant.first
            };
            if of_lock(&mut self.cohorts, name).any(twice) {
                chores.give_back = Some((FencingToken::new(grant.first), grant.until()));
                return chores;
            }
            if !grant.is_pushed && !self.lines.waits(link, name, *owner) {
                return chores;
            }
        }
        let suspended = self.cohorts.remove(&key);
        let waiting = entry.has_waiting(name, &self.lines);
        if passed || waiting {
            chores.requeue = replace_others(&mut self.cohorts, name, entry.cohort.is_shared(), now);
        }
        if !passed && waiting {
            // The local deadline of the grant has passed, so the members queue again.
            chores.requeue.push(link);
            self.cohorts
                .extend(suspended.map(|suspended| (key, suspended)));
            return chores;
        }
        if !passed {
            // All members have left, so the grant is given back to the server.
            let token = FencingToken::new(entry.cohort.turn().token);
            chores.give_back = Some((token, entry.cohort.latest_end()));
            entry.cohort.end();
        }
        self.cohorts.insert(key, entry);
        chores
    }

    /// Passes the turn to the next member when the member with this token leaves.
    pub(crate) fn pass(
        &mut self,
        name: &LockName,
        token: u64,
        now: Moment,
        is_silent: &dyn Fn(&P::Caller) -> bool,
    ) -> Passed {
        let Some(entry) = of_token(&mut self.cohorts, name, token) else {
            return Passed::Unknown;
        };
        let first = entry.cohort.first();
        match entry.cohort.leave(token) {
            Departure::Stale => return Passed::Stale,
            Departure::Ended => return Passed::Ended(first),
            // In a session that has ended, nobody shares the grant again.
            Departure::Suspended if self.lines.has_ended(entry.link) => {
                entry.cohort.end();
                return Passed::Ended(first);
            }
            Departure::Suspended => {
                entry.left.get_or_insert(now);
                return Passed::Stale;
            }
            Departure::OthersStay => return Passed::On,
            Departure::Free => {}
        }
        if entry.replaced.is_some() {
            // The waiting members of the cohort have queued again. If the server still has the grant, the release lets
            // them enter.
            entry.cohort.end();
            return Passed::Ended(first);
        }
        if entry.pass(name, now, &mut self.lines, is_silent) == Next::Inside {
            return Passed::On;
        }
        if entry.has_waiting(name, &self.lines) {
            entry.cohort.suspend();
            entry.left = Some(now);
            return Passed::Late(entry.link);
        }
        entry.cohort.end();
        Passed::Ended(first)
    }

    /// Records that the lock has to stay taken until `until` after the member with this token has left. Returns until when it
    /// has to stay taken after the last member has left, because members that read can leave in any order.
    pub(crate) fn retain(
        &mut self,
        name: &LockName,
        token: FencingToken,
        until: Option<Moment>,
    ) -> Option<Moment> {
        let retain = |entry: &mut Entry| match entry.cohort.is_shared() {
            true => entry.cohort.retain(token.get(), until),
            false => until,
        };
        self.with_token(name, token.get(), retain).unwrap_or(until)
    }

    /// Returns the latest known moment at which the lease of the member with this token can end on the server. Returns
    /// `None` if this process knows no cohort that contains the token.
    pub(crate) fn latest_end(&mut self, name: &LockName, token: FencingToken) -> Option<Moment> {
        self.with_token(name, token.get(), |entry| entry.cohort.latest_end())
    }

    /// Returns the token of the turn that this owner has, and the latest moment at which the lease of its grant can end. A
    /// grant that the server has usually lost does not count.
    pub(crate) fn turn_of(
        &mut self,
        name: &LockName,
        owner: OwnerId,
    ) -> Option<(FencingToken, Moment)> {
        let present = of_lock(&mut self.cohorts, name).filter(|entry| entry.replaced.is_none());
        present.rev().find_map(|entry| {
            let turn = entry.cohort.turn_of(owner)?;
            Some((FencingToken::new(turn.token), entry.cohort.latest_end()))
        })
    }

    /// Determines what the heartbeat of a session has to do for the session's cohorts. If the local deadline of a grant has
    /// passed, the grant's waiting members queue again. Removes a released cohort if no caller of the session waits for its
    /// lock. Removes the replaced and ended cohorts of all sessions whose grants are past. Releases the grant of a suspended
    /// cohort whose last member has left, if nobody shares the grant again.
    pub(crate) fn heartbeat_chores(&mut self, link: Link, now: Moment) -> Chores {
        let mut chores = Chores::default();
        // The session of a member that has left may be idle, so each session does this for all sessions.
        for ((name, _), entry) in &mut self.cohorts {
            let has_left = entry.left.is_some_and(|left| left + CLAIM <= now);
            if has_left && entry.cohort.is_suspended() {
                let last = FencingToken::new(entry.cohort.turn().token);
                let ends = entry.cohort.end_by(now + CLAIM);
                entry.left = None;
                chores.release.push((name.clone(), last, ends));
            }
        }
        let ours = |entry: &Entry| entry.link == link;
        self.cohorts.retain(|(name, _), entry| {
            let is_unneeded = entry.cohort.is_released() && !self.lines.are_at(link, name);
            let is_closed = entry.replaced.is_some() || entry.cohort.is_ended();
            // A request to release the grant can still be under way. If the registry forgot a grant that the server still
            // has, members could share the grant again, and the release would then end their turns.
            let is_past = is_closed && entry.cohort.is_past(now);
            !(is_past || (is_unneeded && ours(entry)))
        });
        for ((name, _), entry) in &mut self.cohorts {
            if !ours(entry) || entry.cohort.is_over() {
                continue;
            }
            if entry.cohort.is_late(now) && entry.has_waiting(name, &self.lines) {
                entry.cohort.suspend();
                chores.requeue.push(name.clone());
            }
        }
        chores
    }

    /// Returns whether an ended session still needs its heartbeat. The heartbeat ends turns whose grant has run out, releases suspended
    /// cohorts, and removes old cohorts. A member that holds the lock needs no heartbeat.
    pub(crate) fn need_heartbeat(&self, link: Link) -> bool {
        let is_needed = |entry: &Entry| {
            let cohort = &entry.cohort;
            match cohort.is_suspended() {
                true => entry.left.is_some(),
                false => cohort.is_over(),
            }
        };
        let mut ours = self.cohorts.values().filter(|entry| entry.link == link);
        // A caller that still waits can get a turn.
        !self.lines.is_empty(link) || ours.any(is_needed)
    }

    /// Returns which token a request has to name to identify the grant of the holder with this token.
    pub(crate) fn known(&mut self, name: &LockName, token: FencingToken) -> Known {
        let token = token.get();
        match of_token(&mut self.cohorts, name, token) {
            Some(Entry { cohort, .. }) if cohort.has_turn(token) => Known::Turn(cohort.first()),
            Some(_) => Known::Over,
            None => Known::Itself,
        }
    }

    /// Records that the member with this token asks for a lease that ends at `until`.
    pub(crate) fn note_request(&mut self, name: &LockName, token: FencingToken, until: Moment) {
        self.with_token(name, token.get(), |entry| {
            entry.cohort.note_request(token.get(), until);
        });
    }

    /// Applies the answer of the server, which confirms the grant until `until`, to a request of the member with this token.
    /// Returns false if the cohort ignores the answer. The cohort does so if that member no longer has the turn, or if that
    /// member holds the lock and the local deadline passed before the answer came.
    pub(crate) fn confirm(
        &mut self,
        name: &LockName,
        token: FencingToken,
        until: Moment,
        now: Moment,
    ) -> bool {
        let confirm = |entry: &mut Entry| entry.cohort.confirm(token.get(), until, now);
        self.with_token(name, token.get(), confirm).unwrap_or(false)
    }

    /// Lets the member with this token keep its grant alone, if others wait that want less than `lease`; `None` stands for
    /// more than any lease. Returns `None` if nobody has to queue again.
    pub(crate) fn dissolve(
        &mut self,
        name: &LockName,
        token: FencingToken,
        lease: Option<Duration>,
    ) -> Option<Dissolved> {
        let entry = of_token(&mut self.cohorts, name, token.get())?;
        let more = lease.is_none_or(|lease| lease > entry.cohort.lease());
        let wants_more = more && entry.has_waiting(name, &self.lines);
        let others = entry.cohort.dissolve(token.get(), wants_more).clone();
        (!others.is_empty()).then(|| Dissolved {
            link: entry.link,
            first: FencingToken::new(entry.cohort.first()),
            owner: entry.cohort.turn().owner,
            others,
        })
    }

    /// Records that the member with this token reads from now on, so that readers can be inside beside it.
    pub(crate) fn downgrade(&mut self, name: &LockName, token: FencingToken) {
        self.with_token(name, token.get(), |entry| {
            entry.cohort.downgrade(token.get());
        });
    }

    /// Records that the server has queued the other members of the cohort again in which the member with this token has the
    /// turn.
    pub(crate) fn has_queued(&mut self, name: &LockName, token: FencingToken) {
        self.with_token(name, token.get(), |entry| {
            entry.cohort.has_queued(token.get());
        });
    }

    /// Whether other members have to queue again before the member with this token leaves: because the server has not
    /// queued them yet, or because the lock then stays taken (`retains`).
    pub(crate) fn dissolves(
        &mut self,
        name: &LockName,
        token: FencingToken,
        retains: bool,
    ) -> bool {
        of_token(&mut self.cohorts, name, token.get()).is_some_and(|entry| {
            let waits = retains && entry.has_waiting(name, &self.lines);
            (entry.cohort.is_queueing() || waits) && entry.cohort.has_turn(token.get())
        })
    }

    /// Limits an extension to the lease that all members of the cohort want, while others wait.
    pub(crate) fn shared(
        &mut self,
        name: &LockName,
        token: FencingToken,
        extend: Extend,
    ) -> Extend {
        match (extend, of_token(&mut self.cohorts, name, token.get())) {
            (Extend::To(lease), Some(entry))
                if entry.cohort.is_queueing() || entry.has_waiting(name, &self.lines) =>
            {
                Extend::To(lease.min(entry.cohort.lease()))
            }
            _ => extend,
        }
    }

    /// Removes the cohort whose first member has this token, because the server has confirmed the release of its grant.
    /// If callers are waiting for the lock, only marks the cohort as released. This method does nothing while a member
    /// of the cohort has the turn.
    pub(crate) fn forget(&mut self, name: &LockName, first: FencingToken) {
        let key = (name.clone(), first.get());
        let is_over = |entry: &&mut Entry| entry.cohort.is_over() && entry.left.is_none();
        let Some(entry) = self.cohorts.get_mut(&key).filter(is_over) else {
            return;
        };
        if self.lines.are_at(entry.link, name) {
            entry.cohort.mark_released();
        } else {
            self.cohorts.remove(&key);
        }
    }

    /// Removes the cohort, as [`forget`](Self::forget) does, if the member with this token had the last turn. The
    /// session calls this method after the server has answered this member's release. The release of an earlier member
    /// does not end the grant, because that member only passes its turn on. If other members are behind the first member,
    /// the first member, too, only passes its turn on, although the grant has the first member's token.
    pub(crate) fn forget_turn(&mut self, name: &LockName, token: FencingToken) {
        let of_last = self.with_token(name, token.get(), |entry| {
            let cohort = &entry.cohort;
            (cohort.turn().token == token.get()).then(|| cohort.first())
        });
        if let Some(Some(first)) = of_last {
            self.forget(name, FencingToken::new(first));
        }
    }

    /// Ends the cohort whose first member has this token, because the server no longer has the cohort's grant. Returns
    /// the session in which the cohort's members wait, or `None` if this process does not know the grant.
    pub(crate) fn lose(&mut self, name: &LockName, first: u64) -> Option<Link> {
        self.with_first(name, first, |entry| {
            entry.cohort.end();
            entry.link
        })
    }

    /// The answer to a request that was sent at `asked` has shown that an owner has neither a place nor a grant on the server.
    /// `granted` is its newest grant that was known then ([`Stored::granted`](super::Stored::granted)). Returns
    /// whether the server has lost this grant. Returns false if the cohort is over, or if the owner has queued again because
    /// one member keeps the grant alone.
    pub(crate) fn has_lost(&mut self, name: &LockName, granted: u64, asked: Moment) -> bool {
        self.with_first(name, granted, |Entry { cohort, .. }| {
            !cohort.is_over() && !cohort.is_dissolved() && cohort.was_known_at(asked)
        })
        .unwrap_or(false)
    }

    /// Returns the newest turn in the cohort whose first member has this token, and the number of members that are
    /// still waiting. Returns `None` if this process does not know the grant, or if its last member has left.
    pub(crate) fn seen(&self, name: &LockName, first: u64) -> Option<(Turn, usize)> {
        let entry = self.cohorts.get(&(name.clone(), first))?;
        let is_known = entry.left.is_none();
        is_known.then(|| (entry.cohort.turn(), entry.waiting(name, &self.lines)))
    }
}
