//! The server: the state that it stores for one lock, and for each script a function that decides as the script does.
//!
//! The scripts are in `lock-runtime/src/backend/redis/protocol/native/*.lua`. Each function has the name of the script
//! that it models.

use crate::{
    broken::Broken,
    few::Few,
    scenario::Terms,
    state::{CallerId, ProcessId, Tick},
};

/// A fencing token. After a loss of the counter, the server takes the next token from its clock, so tokens have the
/// unit of [`micros`].
pub(crate) type Token = u16;
/// A waiter's score in the queue, in the unit of [`micros`].
pub(crate) type Place = u16;

const MICROS_A_TICK: i16 = 16;

/// Returns the server's `TIME`, which has 16 steps in each tick. In one tick, the server makes fewer than 16 grants and
/// queues fewer than 16 waiters, so tokens and places stay distinct.
pub(crate) fn micros(clock: Tick) -> u16 {
    u16::try_from(i16::from(clock) * MICROS_A_TICK).unwrap_or(0)
}

/// The grant, which the real server stores as the string `token|lease|session|owner owner …` with an expiry. The model
/// stores no session, because the first owner determines the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    /// The token of the first owner, which identifies the grant. Each further owner has the next higher token.
    pub(crate) token: Token,
    pub(crate) lease: Tick,
    pub(crate) owners: Few<CallerId>,
    pub(crate) expires: Tick,
    /// The end of the claim, or `None` for a confirmed grant. Only the properties use this time, and the real server
    /// does not store it.
    pub(crate) claimed_until: Option<Tick>,
}

/// A waiter, which the real server stores as the member `owner|session|lease|wait` of a sorted set. The model stores
/// only the owner, which determines the session, the lease and the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) owner: CallerId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) clock: Tick,
    /// The number of waiters that have queued in this tick. The number is added to the places of new waiters, so that
    /// no two waiters get the same place.
    pub(crate) into_tick: Place,
    pub(crate) grant: Option<Grant>,
    /// The waiters in the order of their places.
    pub(crate) queue: Vec<Member>,
    pub(crate) queue_expires: Tick,
    pub(crate) fence: Token,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Acquired {
    /// The owner is granted the lock for its whole lease.
    Taken(Token),
    /// The owner already has this grant, from an earlier request.
    Held(Found),
    Queued(Place),
    Busy,
    Late,
}

/// The reply to a batch: the place of each member that queues, and the current grant if it belongs to the same session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Joined {
    pub(crate) members: Few<(CallerId, Option<Place>)>,
    pub(crate) found: Option<Found>,
    pub(crate) late: bool,
}

/// A message that `PUBLISH` sends to the session of the first owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Push {
    pub(crate) owners: Few<CallerId>,
    pub(crate) token: Token,
}

/// One run of a script: the inputs other than the request, and the effects other than the reply.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) terms: &'a Terms,
    pub(crate) broken: Option<Broken>,
    pub(crate) floor: Token,
    /// For each process, whether the server counts a subscriber of its session's notification channel.
    pub(crate) heard: Vec<bool>,
    pub(crate) pushes: Vec<Push>,
    pub(crate) granted: Vec<Grant>,
    /// Whether a waiter was passed over because its `wait` was over or it could not be notified.
    pub(crate) skipped: bool,
}

impl Run<'_> {
    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }
}

impl Server {
    pub(crate) fn new(clock: Tick) -> Self {
        Self {
            clock,
            into_tick: 0,
            grant: None,
            queue: Vec::new(),
            queue_expires: 0,
            fence: 0,
        }
    }

    /// Makes the server lose its grant, its queue and its counter of tokens. The clock is unchanged.
    pub(crate) fn lose_state(&mut self) {
        *self = Self::new(self.clock);
    }

    /// Removes the grant if it has expired, and the queue if it has expired.
    pub(crate) fn expire(&mut self) {
        if self.grant.is_some_and(|grant| grant.expires <= self.clock) {
            self.grant = None;
        }
        if self.queue.is_empty() || self.queue_expires <= self.clock {
            self.queue.clear();
            self.queue_expires = 0;
        }
    }

    pub(crate) fn is_queued(&self, owner: CallerId) -> bool {
        self.queue.iter().any(|member| member.owner == owner)
    }

    pub(crate) fn holds(&self, owner: CallerId) -> bool {
        self.grant.is_some_and(|grant| grant.owners.contains(owner))
    }

    /// Returns whether the waiter is live: its `wait` is not over (in the scripts: `head[2] + wait * 1000 > now`).
    pub(crate) fn is_living(&self, member: Member, terms: &Terms) -> bool {
        member.place + micros(terms.wait(member.owner)) > micros(self.clock)
    }

    fn found(&self, grant: Grant) -> Found {
        Found {
            token: grant.token,
            owners: grant.owners,
            left: (grant.expires - self.clock).min(grant.lease),
        }
    }

    /// Takes `count` consecutive tokens, and returns the first.
    fn next_tokens(&mut self, run: &Run<'_>, count: usize) -> Token {
        let mut first = self.fence + 1;
        if first < run.floor && !run.is(Broken::CounterStartsAgain) {
            first = first.max(micros(self.clock));
        }
        let count = if run.is(Broken::OneTokenForACohort) {
            1
        } else {
            Token::try_from(count).unwrap_or(Token::MAX)
        };
        self.fence = first + count - 1;
        first
    }

    fn give(&mut self, run: &Run<'_>, owners: Few<CallerId>, claim: Option<Tick>) -> Grant {
        let token = self.next_tokens(run, owners.len());
        let lease = owners
            .iter()
            .next()
            .map_or(0, |first| run.terms.lease(first));
        let time = claim.map_or(lease, |claim| claim.min(lease));
        let grant = Grant {
            token,
            lease,
            owners,
            expires: self.clock + time,
            claimed_until: claim.map(|_| self.clock + run.terms.claim),
        };
        self.grant = Some(grant);
        grant
    }

    fn pop_first(&mut self) -> Option<Member> {
        (!self.queue.is_empty()).then(|| self.queue.remove(0))
    }

    /// Removes an owner from the queue. Returns whether the owner was in the queue.
    fn remove(&mut self, owner: CallerId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|member| member.owner != owner);
        self.queue.len() < before
    }

    /// Shortens the grant if it would last longer than its lease. A grant can last too long if the clock was set back.
    fn clamp(&mut self) {
        if let Some(held) = &mut self.grant {
            held.expires = held.expires.min(self.clock + held.lease);
        }
    }

    /// Returns the owners of the head's cohort: the head, and the live waiters directly behind it that belong to the
    /// same process and request the same lease, at most `cohort_limit` owners in total. Removes these waiters, and the
    /// dead waiters between them, from the queue.
    fn cohort(&mut self, run: &mut Run<'_>, head: CallerId) -> Few<CallerId> {
        let terms = run.terms;
        let mut owners = Few::from_iter([head]);
        while owners.len() < terms.cohort_limit
            && let Some(next) = self.queue.first().copied()
        {
            let lives = self.is_living(next, terms);
            let joins = (terms.process_of(next.owner) == terms.process_of(head)
                || run.is(Broken::CohortOfTwoSessions))
                && (terms.lease(next.owner) == terms.lease(head)
                    || run.is(Broken::CohortOfTwoLeases));
            if lives && !joins {
                break;
            }
            self.queue.remove(0);
            if lives {
                owners.push(next.owner);
            } else {
                run.skipped = true;
            }
        }
        owners
    }

    /// Runs `grant_next.lua`: grants the lock to the first live waiter that can be notified and to its cohort, or
    /// deletes the grant if there is no such waiter.
    fn grant_next(&mut self, run: &mut Run<'_>) {
        while let Some(head) = self.pop_first() {
            if self.is_living(head, run.terms) {
                let claim = if run.is(Broken::PushedForTheWholeLease) {
                    run.terms.lease(head.owner)
                } else {
                    run.terms.claim
                };
                let owners = self.cohort(run, head.owner);
                let grant = self.give(run, owners, Some(claim));
                let process = run.terms.process_of(head.owner);
                if run.heard[process] {
                    run.pushes.push(Push {
                        owners,
                        token: grant.token,
                    });
                    run.granted.push(grant);
                    return;
                }
                if run.is(Broken::GivenUnheard) {
                    run.granted.push(grant);
                    return;
                }
            }
            run.skipped = true;
            if run.is(Broken::DeadHeadStays) {
                self.queue.insert(0, head);
                break;
            }
        }
        self.grant = None;
    }

    fn take(&mut self, run: &mut Run<'_>, owner: CallerId) -> Acquired {
        let grant = self.give(run, Few::from_iter([owner]), None);
        run.granted.push(grant);
        Acquired::Taken(grant.token)
    }

    /// Runs `acquire_free.lua`, and then `acquire_queue.lua` and `acquire.lua` if the lock is taken or the queue is not
    /// empty.
    pub(crate) fn acquire(
        &mut self,
        run: &mut Run<'_>,
        owner: CallerId,
        not_after: Option<Tick>,
    ) -> Acquired {
        if not_after.is_some_and(|limit| self.clock > limit) {
            return Acquired::Late;
        }
        if self.grant.is_none() && (self.queue.is_empty() || run.is(Broken::Barging)) {
            return self.take(run, owner);
        }
        if self.grant.is_none() {
            // Only the head of the queue may take the lock. If another caller requests the lock, the first live waiter
            // gets it.
            if self.queue[0].owner == owner {
                self.remove(owner);
                return self.take(run, owner);
            }
            self.grant_next(run);
        }
        let Some(held) = self.grant else {
            return self.take(run, owner); // `grant_next` found no live waiter that could be notified
        };
        if held.owners.contains(owner) && !run.is(Broken::QueuesBehindItself) {
            return Acquired::Held(self.found(held));
        }
        if run.terms.wait(owner) == 0 {
            self.clamp();
            return Acquired::Busy;
        }
        Acquired::Queued(self.join(run, owner, None))
    }

    /// Queues an owner at its old place or at the end, unless the owner is in the queue already (as `ZADD NX` does).
    /// The `wait` counts from the place, which is a time. If the clock has jumped ahead, the owner's `wait` can seem to
    /// be over at its old place. The owner then queues at the end, because at its old place the server would remove the
    /// owner as dead.
    fn join(&mut self, run: &Run<'_>, owner: CallerId, place: Option<Place>) -> Place {
        let stands = |place: &Place| {
            let place = *place;
            self.is_living(Member { place, owner }, run.terms) || run.is(Broken::DeadPlaceStands)
        };
        let place = place.filter(stands);
        let place = match place {
            Some(place) if !run.is(Broken::PlaceForgotten) => place,
            _ => {
                let now = micros(self.clock) + self.into_tick;
                match self.queue.last() {
                    // Even if the clock was set back, the place is behind all older waiters.
                    Some(last) if !run.is(Broken::PlaceByClockAlone) => now.max(last.place + 1),
                    _ => now,
                }
            }
        };
        if let Some(member) = self.queue.iter().find(|member| member.owner == owner) {
            return member.place;
        }
        let index = self.queue.partition_point(|member| member.place <= place);
        self.queue.insert(index, Member { place, owner });
        self.into_tick += 1;
        let wait = run.terms.wait(owner);
        self.queue_expires = self.queue_expires.max(self.clock + 2 * wait + 1);
        place
    }

    /// Runs `queue.lua`: queues several callers of one process, except callers that own the current grant.
    pub(crate) fn queue(
        &mut self,
        run: &mut Run<'_>,
        members: Few<(CallerId, Option<Place>)>,
        not_after: Option<Tick>,
    ) -> Joined {
        if not_after.is_some_and(|limit| self.clock > limit) {
            return Joined {
                members: Few::from_iter([]),
                found: None,
                late: true,
            };
        }
        let members = members.iter().map(|(owner, place)| {
            let holds = self.holds(owner) && !run.is(Broken::BatchQueuesBehindItself);
            (owner, (!holds).then(|| self.join(run, owner, place)))
        });
        let members: Few<_> = members.collect();
        let held = self.grant;
        if held.is_none() {
            self.grant_next(run); // the owners learn of the grant from a push
        }
        let session = |owners: Option<CallerId>| owners.map(|owner| run.terms.process_of(owner));
        let asks = session(members.iter().next().map(|(owner, _)| owner));
        let is_mine = |held: &Grant| session(held.owners.iter().next()) == asks;
        Joined {
            members,
            found: held.filter(is_mine).map(|held| self.found(held)),
            late: false,
        }
    }

    /// Runs `release_last.lua`, and then `release.lua` if the queue is not empty. Returns whether the lock was held
    /// with this token.
    pub(crate) fn release(&mut self, run: &mut Run<'_>, token: Token) -> bool {
        let Some(held) = self.grant else {
            return false;
        };
        if held.token != token && !run.is(Broken::ReleaseOfAnyToken) {
            return false;
        }
        self.grant_next(run);
        true
    }

    /// Runs `renew.lua`. If `lease` is 0, the script is a check, which extends nothing. Returns the time left of the
    /// grant, or `None` if the lock is not held with this token.
    pub(crate) fn renew(
        &mut self,
        run: &Run<'_>,
        owner: CallerId,
        token: Token,
        lease: Tick,
    ) -> Option<Tick> {
        let clock = self.clock;
        if run.is(Broken::RenewalResurrects) && self.grant.is_none_or(|held| held.token != token) {
            self.grant = Some(Grant {
                token,
                lease,
                owners: Few::from_iter([owner]),
                expires: clock + lease,
                claimed_until: None,
            });
        }
        let held = self.grant.as_mut().filter(|held| held.token == token)?;
        // No grant lasts longer than its lease, even if the clock was set back.
        let mut left = held.expires - clock;
        if left > held.lease {
            left = held.lease;
            if lease > 0 {
                held.expires = clock + left;
            }
        }
        if lease > 0 {
            held.claimed_until = None;
        }
        if lease <= left {
            return Some(left);
        }
        held.lease = held.lease.max(lease);
        held.expires = clock + lease;
        Some(lease)
    }

    /// Runs `leave.lua`. If the caller owns the current grant, returns that grant, so that the caller can enter. With
    /// `abandon`, a grant whose only owner is the caller is released instead. The grant of a cohort is returned even
    /// with `abandon`, because only the cohort's process may release it.
    pub(crate) fn leave(
        &mut self,
        run: &mut Run<'_>,
        owner: CallerId,
        abandon: bool,
    ) -> Option<Found> {
        if self.remove(owner) {
            return None;
        }
        let held = self.grant.filter(|held| held.owners.contains(owner))?;
        if run.is(Broken::LeaveChecksTheQueueOnly) {
            return None;
        }
        if abandon && (held.owners.len() == 1 || run.is(Broken::LeaveFreesTheCohort)) {
            self.grant_next(run);
            return None;
        }
        Some(self.found(held))
    }

    /// Runs `probe.lua`. Returns the grant, if it belongs to the process `session`. Also returns whether the server has
    /// lost `member`, so that `member` is neither in the queue nor an owner of the grant.
    pub(crate) fn probe(
        &mut self,
        run: &mut Run<'_>,
        session: ProcessId,
        member: CallerId,
    ) -> (Option<Found>, bool) {
        if self.grant.is_some() {
            self.clamp();
        } else if self.is_queued(member) {
            self.grant_next(run);
        }
        let found = self
            .grant
            .filter(|held| {
                held.owners
                    .iter()
                    .next()
                    .is_some_and(|owner| run.terms.process_of(owner) == session)
            })
            .map(|held| self.found(held));
        (found, !self.is_queued(member) && !self.holds(member))
    }
}

/// A grant and its remaining time, as a reply describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Found {
    pub(crate) token: Token,
    pub(crate) owners: Few<CallerId>,
    pub(crate) left: Tick,
}
