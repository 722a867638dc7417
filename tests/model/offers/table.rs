//! The core of one client: a state for each acquisition, one table of rows, and the grant that neighbours share. It has
//! no socket, clock or task. Its inputs are method calls, and its outputs are collected in [`Step::out`].

use crate::{
    server::{Found, Owner, PutBack, Reply, Request},
    world::{CLAIM, End, Id, Place, Planted, Terms, Tick, Token},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Nothing was sent under this name.
    Unsent,
    /// The own request is unanswered, or is sent over the next link.
    Asked,
    /// The server has the owner in its queue, or in a grant whose turn belongs to another member.
    Queued,
    /// The owner has the turn, and the server has to confirm the grant before the turn can be taken. An offer that was
    /// made before keeps its end.
    Confirming(Token, Option<Tick>),
    /// The caller may take the turn until this moment.
    Offered(Token, Tick),
    /// The body runs.
    Held(Hold),
    /// The wait is over, and the caller still awaits the answer to its last try.
    LastTry,
    /// The caller has left. The answer to a request under way decides what is left on the server.
    Leaving,
    /// The turn was withdrawn. The next poll queues the acquisition at its old place, under a new name.
    Parked,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    /// When the turn was taken.
    pub(crate) since: Tick,
    /// The local deadline.
    pub(crate) until: Tick,
    /// When the lease ends, if the server confirms the whole of it.
    pub(crate) ends: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Begin,
    Poll,
    Drop,
    Done,
    Extend,
    Tick,
    Broken,
    Up,
    /// The own reply is "queued".
    Placed,
    /// The own reply names a grant that is not the owner's turn: it is released already, or ended.
    Stale,
    /// The server no longer has the owner in its queue.
    Missing,
    /// The server has taken the owner out of its queue.
    Left,
    /// The owner's turn comes.
    Turn(Token),
    /// The server has confirmed the shared grant.
    Confirmed,
    /// The server no longer has the shared grant.
    Lost,
    /// Another caller on the same runtime did not take its offer.
    Suspect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Ask,
    Enter,
    Abandon,
    /// Confirms the grant for a claim.
    Confirm,
    /// Confirms the grant for the whole lease of the hold.
    Cover,
    Wake,
    PassOn,
    /// The server no longer has the grant of this owner's turn.
    Lose,
    /// Asks the other callers of the runtime.
    SuspectOthers,
    Dissolve,
    Finish(End),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Acquisition {
    pub(crate) state: State,
    pub(crate) name: u8,
    pub(crate) place: Option<Place>,
    /// When the first request was sent, by the server's clock. Stands in for a place that is not known.
    pub(crate) asked: Place,
    pub(crate) missed: u8,
    pub(crate) suspect: bool,
    pub(crate) wait_until: Tick,
    pub(crate) result: Option<End>,
    pub(crate) is_woken: bool,
}

/// A grant of this client. `rest` are the members whose turns are to come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    pub(crate) first: Token,
    next: Token,
    pub(crate) turn: Owner,
    pub(crate) rest: Vec<Owner>,
    pub(crate) until: Tick,
    /// The time that the server last confirmed. A turn is taken only while two thirds of it are left.
    valid: Tick,
    /// The members that a dissolve under way puts back.
    dissolve: Option<PutBack>,
    /// A member wants another lease, but the place of a later member is not known yet.
    wants: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Core {
    pub(crate) of: Vec<Acquisition>,
    pub(crate) up: bool,
    /// The sending of the newest command that is answered.
    pub(crate) answered: Tick,
    pub(crate) share: Option<Share>,
    /// The unanswered releases.
    pub(crate) releases: Vec<(Token, PutBack)>,
    /// The owner of each unanswered request that can queue an owner or take it out of the queue. A name can be in here
    /// after its acquisition has ended or has got a new name.
    unanswered: Vec<Owner>,
    probing: bool,
}

/// One call of the core.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) terms: &'a Terms,
    pub(crate) now: Tick,
    /// The server's clock in its finer unit.
    pub(crate) micros: Place,
    pub(crate) planted: Option<Planted>,
    pub(crate) out: Vec<Request>,
}

impl Step<'_> {
    /// The table. An event that has no row changes nothing.
    pub(crate) fn on(&mut self, owner: Owner, event: Event) {
        use self::{Do::*, Event::*, State::*};
        let now = self.now;
        let has = |planted| self.planted == Some(planted);
        let of = &self.core.of[owner.id];
        let before = if of.name == owner.name {
            of.state
        } else {
            Gone
        };
        let (up, fresh) = (self.core.up, self.is_fresh());
        let (over, late) = (now >= of.wait_until, now > of.wait_until);
        let offer = now
            + if of.missed > 0 || of.suspect {
                1
            } else {
                CLAIM
            };
        let hold = |token| self.hold(token);
        let (after, then): (State, &[Do]) = match (before, event) {
            // A request is sent, or sent again because its answer may be lost.
            (Unsent, Begin) if up => (Asked, &[Ask]),
            (Unsent | Asked | Queued, Up) => (Asked, &[Ask]),
            (Queued, Missing | Lost) | (Asked, Stale) => (Asked, &[Ask]),
            (Confirming(..) | Offered(..), Up) => (before, &[Ask]),
            (Confirming(..) | Offered(..), Lost) => (Asked, &[Ask]),
            (Leaving, Up) => (Leaving, &[Abandon]),

            // The own reply is "queued". An acquisition that holds or has left is queued once too often.
            (Asked, Placed) => (Queued, &[]),
            (Confirming(..) | Offered(..), Placed) => (Queued, &[Lose]),
            (Held(_), Placed) if has(Planted::HeldStaysQueued) => (before, &[]),
            (Held(_) | Leaving | Parked | Gone, Placed) => (before, &[Abandon]),

            // The turn comes.
            (Asked | Queued, Turn(_)) if of.suspect && has(Planted::SuspectIsSkipped) => {
                (before, &[PassOn])
            }
            (Asked | Queued | LastTry, Turn(token)) if fresh => (Offered(token, offer), &[Wake]),
            (Asked | Queued | LastTry, Turn(token)) => (Confirming(token, None), &[Confirm]),
            (_, Turn(_)) => (before, &[PassOn]),

            // The turn is confirmed, taken, declined or withdrawn.
            (Confirming(token, until), Confirmed) if fresh => {
                (Offered(token, until.unwrap_or(offer)), &[Wake])
            }
            (Confirming(..), Confirmed) => (before, &[Confirm]),
            (Offered(token, _), Poll) if fresh || has(Planted::TakeIgnoresUntil) => {
                (Held(hold(token)), &[Cover])
            }
            (Offered(token, _), Poll) if has(Planted::ConfirmingRestartsTheOffer) => {
                (Confirming(token, None), &[Confirm])
            }
            (Offered(token, until), Poll) => (Confirming(token, Some(until)), &[Confirm]),
            (Confirming(..) | Offered(..), Drop) => (Gone, &[PassOn]),
            (Offered(_, until) | Confirming(_, Some(until)), Tick) if now >= until => {
                (Parked, &[SuspectOthers, PassOn])
            }
            (Confirming(..), Tick) if late => (Gone, &[Finish(End::Unreachable), PassOn]),
            (Held(held), Tick)
                if has(Planted::WithdrawsWhatIsTaken) && now >= held.since + CLAIM =>
            {
                (Parked, &[PassOn])
            }
            (Parked, Poll) if over => (Gone, &[Finish(End::Busy)]),
            (Parked, Poll) => (if up { Asked } else { Unsent }, &[Ask]),

            // The hold.
            (Held(held), Confirmed) => (Held(self.extended(held)), &[]),
            (Held(held), Up) if held.until < held.ends => (before, &[Cover]),
            (Held(held), Extend) => (
                Held(Hold {
                    ends: now + self.terms.longer,
                    ..held
                }),
                &[Dissolve],
            ),
            (Held(_), Done | Drop) => (Gone, &[PassOn]),
            (Held(held), Tick) if now >= held.until => (Gone, &[Finish(End::Lost), PassOn]),
            (Held(_), Lost) => (Gone, &[Finish(End::Lost)]),

            // The wait is over.
            (Unsent, Tick) if over => (Gone, &[Finish(End::Unreachable)]),
            (Parked, Tick) if over => (Gone, &[Finish(End::Busy)]),
            (Asked | Queued, Tick) if over && up => (LastTry, &[Enter]),
            (Asked | Queued, Tick) if over => (Leaving, &[Finish(End::Unreachable)]),
            (LastTry, Left | Stale) => (Gone, &[Finish(End::Busy)]),
            (LastTry, Broken) => (Leaving, &[Finish(End::Unreachable)]),
            (LastTry, Tick) if late => (Leaving, &[Finish(End::Unreachable)]),

            // The caller has left.
            (Unsent | Parked, Drop) => (Gone, &[]),
            (Queued, Drop) if up => (Leaving, &[Abandon]),
            (Asked | Queued | LastTry, Drop) => (Leaving, &[]),
            (Leaving, Left | Stale) => (Gone, &[]),

            // Another caller of the runtime is silent.
            (Asked | Queued, Suspect) => (before, &[Wake]),
            _ => (before, &[]),
        };
        let of = &mut self.core.of[owner.id];
        if of.name == owner.name {
            of.state = after;
            of.suspect = event == Suspect || of.suspect && event != Poll;
            if after == Parked && event == Tick {
                of.missed = (of.missed + 1).min(2);
                of.name += 1;
                of.place = of.place.or(Some(of.asked));
            }
        }
        for next in then {
            self.carry_out(owner, *next);
        }
    }

    fn carry_out(&mut self, owner: Owner, what: Do) {
        let first = self.core.share.as_ref().map_or(0, |share| share.first);
        match what {
            Do::Ask => self.ask(owner.id),
            Do::Enter => self.send(Request::Enter(owner)),
            Do::Abandon => self.send(Request::Abandon(owner)),
            Do::Confirm => self.send(Request::Renew(first, CLAIM)),
            Do::Cover => {
                if let State::Held(hold) = self.core.of[owner.id].state
                    && hold.until < hold.ends
                {
                    self.send(Request::Renew(first, hold.ends - self.now));
                }
            }
            Do::Wake => self.core.of[owner.id].is_woken = true,
            Do::PassOn => self.pass_on(),
            Do::Lose => self.lose(Some(owner)),
            Do::SuspectOthers => {
                for id in self.terms.beside(owner.id) {
                    self.on(self.owner(id), Event::Suspect);
                }
            }
            Do::Dissolve => self.dissolve(),
            Do::Finish(end) => {
                let of = &mut self.core.of[owner.id];
                of.result = Some(end);
                of.is_woken = true;
            }
        }
    }

    pub(crate) fn owner(&self, id: Id) -> Owner {
        let name = self.core.of[id].name;
        Owner { id, name }
    }

    fn state(&self, owner: Owner) -> State {
        let of = &self.core.of[owner.id];
        if of.name == owner.name {
            of.state
        } else {
            State::Gone
        }
    }

    /// Nothing is written while the link is broken: the rows of `Up` send it again.
    fn send(&mut self, request: Request) {
        if self.core.up {
            self.core.unanswered.extend(request.owner());
            self.out.push(request);
        }
    }

    fn ask(&mut self, id: Id) {
        let owner = self.owner(id);
        let busy = |state| !matches!(state, State::Unsent | State::Parked | State::Gone);
        let is_alone =
            (0..self.core.of.len()).all(|other| other == id || !busy(self.core.of[other].state));
        let micros = self.micros;
        let of = &mut self.core.of[id];
        let is_first = of.asked == 0;
        if is_first {
            of.asked = micros;
        }
        let place = of.place.or((!is_first).then_some(of.asked));
        self.send(if is_first && is_alone {
            Request::Acquire(owner, place)
        } else {
            Request::Queue(owner, place)
        });
    }

    fn is_fresh(&self) -> bool {
        let share = self.core.share.as_ref();
        share
            .is_some_and(|share| share.until.saturating_sub(self.now) * 3 >= share.valid.max(1) * 2)
    }

    fn hold(&self, token: Token) -> Hold {
        let until = self.core.share.as_ref().map_or(0, |share| share.until);
        let ends = self.now + self.terms.lease;
        let is_ignored = self.planted == Some(Planted::TakeIgnoresUntil);
        Hold {
            token,
            since: self.now,
            until: if is_ignored { ends } else { until.min(ends) },
            ends,
        }
    }

    /// An answer that comes after the deadline extends nothing.
    fn extended(&self, hold: Hold) -> Hold {
        let until = self.core.share.as_ref().map_or(0, |share| share.until);
        let until = hold.until.max(until.min(hold.ends));
        Hold {
            until: if self.now < hold.until {
                until
            } else {
                hold.until
            },
            ..hold
        }
    }

    /// Gives the turn to the next member. While a dissolve is under way, nothing is passed on in memory: the release
    /// carries the put-back list.
    fn pass_on(&mut self) {
        let passes_on = self.planted == Some(Planted::PassesOnWhileDissolving);
        let Some(share) = &mut self.core.share else {
            return;
        };
        let first = share.first;
        let back = share.dissolve.take();
        match back {
            Some(back) if !passes_on => return self.release(first, back),
            _ if share.rest.is_empty() => return self.release(first, Vec::new()),
            _ => {}
        }
        let owner = share.rest.remove(0);
        let token = share.next;
        share.turn = owner;
        share.next += 1;
        self.on(owner, Event::Turn(token));
    }

    fn waits(&self, owner: Owner) -> bool {
        matches!(self.state(owner), State::Asked | State::Queued)
    }

    fn release(&mut self, first: Token, mut back: PutBack) {
        back.retain(|(owner, _)| self.waits(*owner));
        self.core.share = None;
        self.core.releases.push((first, back.clone()));
        self.send(Request::Release(first, back));
    }

    fn dissolve(&mut self) {
        let passes_on = self.planted == Some(Planted::PassesOnWhileDissolving);
        let Some(mut share) = self.core.share.take() else {
            return;
        };
        let back = share.rest.iter().filter(|owner| self.waits(**owner));
        let back: Option<PutBack> = back
            .map(|owner| Some((*owner, self.core.of[owner.id].place?)))
            .collect();
        share.wants = back.is_none();
        let (turn, ready) = (share.turn, back.is_some());
        if let Some(back) = back {
            if !passes_on {
                share.rest.clear();
            }
            share.dissolve = Some(back);
        }
        self.core.share = Some(share);
        if ready {
            self.send_dissolve(turn);
        }
    }

    fn send_dissolve(&mut self, keep: Owner) {
        let now = self.now;
        if let Some(share) = &self.core.share
            && let Some(back) = &share.dissolve
            && let State::Held(hold) = self.state(keep)
        {
            let mut back = back.clone();
            back.retain(|(owner, _)| self.waits(*owner));
            self.send(Request::Dissolve(
                share.first,
                keep,
                hold.ends.saturating_sub(now),
                back,
            ));
        }
    }

    /// Ends the share that the server no longer has. Its members queue again at their places, except one that is queued.
    fn lose(&mut self, queued: Option<Owner>) {
        if let Some(share) = self.core.share.take() {
            let back = share.dissolve.into_iter().flatten().map(|(owner, _)| owner);
            let members = std::iter::once(share.turn).chain(share.rest).chain(back);
            for owner in members.filter(|owner| Some(*owner) != queued) {
                self.on(owner, Event::Lost);
            }
        }
    }

    /// Takes up a grant of this client that a reply or a push describes, which is valid until `until`. Returns whether
    /// it is the present share.
    fn learn(&mut self, found: &Found, until: Tick) -> bool {
        if self
            .core
            .releases
            .iter()
            .any(|(first, _)| *first == found.first)
        {
            return false;
        }
        match self.core.share.as_ref().map(|share| share.first) {
            Some(first) if first == found.first => {
                self.confirm(until);
                return true;
            }
            Some(first) if first > found.first => return false,
            Some(_) => self.lose(None), // the server has granted the lock again
            None => {}
        }
        let is_wanted =
            |owner: &&Owner| !matches!(self.state(**owner), State::Leaving | State::Gone);
        if self.planted == Some(Planted::NobodyReleases)
            && found.owners.iter().find(is_wanted).is_none()
        {
            return false;
        }
        self.core.share = Some(Share {
            first: found.first,
            next: found.first,
            turn: found.owners[0],
            rest: found.owners.clone(),
            until,
            valid: found.left,
            dissolve: None,
            wants: false,
        });
        self.pass_on();
        self.core
            .share
            .as_ref()
            .is_some_and(|share| share.first == found.first)
    }

    fn confirm(&mut self, until: Tick) {
        let now = self.now;
        if let Some(share) = &mut self.core.share {
            if until > share.until {
                share.until = until;
                share.valid = until.saturating_sub(now);
            }
            let turn = share.turn;
            self.on(turn, Event::Confirmed);
        }
    }

    /// A message from the server. A push is dated by the newest command that was answered before it.
    pub(crate) fn pushed(&mut self, found: &Found) {
        self.learn(found, self.core.answered + found.left);
    }

    /// A reply that names the owner in a grant. The turn may belong to another member, or the grant may be released.
    fn granted(&mut self, owner: Owner, found: &Found, sent: Tick) {
        self.learn(found, sent + found.left);
        let is_listed = self
            .core
            .share
            .as_ref()
            .is_some_and(|share| share.rest.contains(&owner));
        let is_placed = is_listed && self.state(owner) == State::Asked;
        self.on(
            owner,
            if is_placed {
                Event::Placed
            } else {
                Event::Stale
            },
        );
    }

    pub(crate) fn replied(&mut self, request: &Request, reply: &Reply, sent: Tick) {
        self.core.answered = self.core.answered.max(sent);
        if let Some(owner) = request.owner() {
            let mut unanswered = self.core.unanswered.iter();
            let index = unanswered.position(|other| *other == owner);
            index.map(|index| self.core.unanswered.remove(index));
        }
        match (request, reply) {
            (
                Request::Acquire(owner, _) | Request::Queue(owner, _),
                Reply::Queued(place, found),
            ) => {
                let of = &mut self.core.of[owner.id];
                if of.name == owner.name && *place > 0 {
                    of.place = Some(*place);
                }
                // A script that queues can also grant. A reply that names the owner in a grant grants.
                let is_granted = |found: &&Found| found.owners.contains(owner);
                match found.as_ref().filter(is_granted) {
                    Some(found) if self.planted != Some(Planted::PushedGrantIsReadAsQueued) => {
                        self.granted(*owner, found, sent);
                    }
                    _ => self.on(*owner, Event::Placed),
                }
                if self.core.share.as_ref().is_some_and(|share| share.wants) {
                    self.dissolve();
                }
            }
            (Request::Enter(owner) | Request::Abandon(owner), Reply::Left) => {
                self.on(*owner, Event::Left);
            }
            (
                Request::Acquire(owner, _) | Request::Enter(owner) | Request::Abandon(owner),
                Reply::Granted(found),
            ) => self.granted(*owner, found, sent),
            (Request::Release(first, _), Reply::Released(held)) => {
                let back = self
                    .core
                    .releases
                    .iter()
                    .position(|(released, _)| released == first);
                let back = back.map_or_else(Vec::new, |index| self.core.releases.remove(index).1);
                for (owner, _) in back.into_iter().filter(|_| !held) {
                    self.on(owner, Event::Missing);
                }
            }
            (Request::Renew(first, _) | Request::Dissolve(first, ..), Reply::Renewed(left)) => {
                if let Some(share) = self
                    .core
                    .share
                    .as_mut()
                    .filter(|share| share.first == *first)
                {
                    if matches!(request, Request::Dissolve(..)) {
                        share.dissolve = None;
                    }
                    match left {
                        Some(left) => self.confirm(sent + left),
                        None => self.lose(None),
                    }
                }
            }
            (Request::Probe(owner), Reply::Probed(found, is_gone)) => {
                self.core.probing = false;
                if let Some(found) = found {
                    self.learn(found, sent + found.left);
                }
                if *is_gone && self.owner(owner.id) == *owner {
                    for id in 0..self.core.of.len() {
                        self.on(self.owner(id), Event::Missing);
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn broken(&mut self) {
        (self.core.up, self.core.probing) = (false, false);
        if self.planted == Some(Planted::PutBackForgotten)
            && let Some(share) = &mut self.core.share
        {
            share.dissolve = None;
        }
        for id in 0..self.core.of.len() {
            self.on(self.owner(id), Event::Broken);
        }
    }

    /// The new link. Releases and a dissolve go before the requests, which go in the order of the places.
    pub(crate) fn connected(&mut self) {
        (self.core.up, self.core.answered) = (true, self.now);
        for (first, back) in self.core.releases.clone() {
            self.send(Request::Release(first, back));
        }
        if let Some(turn) = self.core.share.as_ref().map(|share| share.turn) {
            self.send_dissolve(turn);
        }
        // The old link may have queued an owner whose acquisition has ended, holds or has got a new name.
        let mut unanswered = std::mem::take(&mut self.core.unanswered);
        unanswered.dedup();
        let forgotten = self.planted == Some(Planted::NamesEndWithTheirStates);
        for owner in unanswered.into_iter().filter(|_| !forgotten) {
            match self.state(owner) {
                State::Gone => self.send(Request::Abandon(owner)),
                State::Held(_) => self.send(Request::Queue(owner, self.core.of[owner.id].place)),
                _ => {}
            }
        }
        let mut order: Vec<Id> = (0..self.core.of.len()).collect();
        order.sort_by_key(|id| {
            let of = &self.core.of[*id];
            let asked = (of.asked > 0).then_some(of.asked);
            (of.place.or(asked).unwrap_or(Place::MAX), *id)
        });
        for id in order {
            if self.planted == Some(Planted::NamesChangeWithTheLink) && self.waits(self.owner(id)) {
                self.core.of[id].name += 1;
            }
            self.on(self.owner(id), Event::Up);
        }
    }

    /// The next moment: withdraws, tells of a loss, ends waits, renews an offer and probes.
    pub(crate) fn ticked(&mut self) {
        for id in 0..self.core.of.len() {
            self.on(self.owner(id), Event::Tick);
        }
        match &self.core.share {
            Some(share) => {
                let soon = (share.until.saturating_sub(self.now + 1)) * 3 < share.valid * 2;
                if soon && matches!(self.state(share.turn), State::Offered(..)) {
                    self.send(Request::Renew(share.first, CLAIM));
                }
            }
            None => {
                let queued = (0..self.core.of.len()).map(|id| self.owner(id));
                let mut queued = queued.filter(|owner| self.state(*owner) == State::Queued);
                if let Some(owner) = queued.next().filter(|_| self.core.up && !self.core.probing) {
                    self.core.probing = true;
                    self.send(Request::Probe(owner));
                }
            }
        }
    }
}
