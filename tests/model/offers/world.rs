//! The world around the two cores: the callers, the links, the server and the clock, as a model for the checker.

use std::collections::VecDeque;

use stateright::{Model, Property};

use crate::{
    server::{Found, Owner, Reply, Request, Run, Server},
    table::{Acquisition, Core, Event, State, Step},
};

pub(crate) type Tick = u8;
pub(crate) type Token = u8;
/// The server's time in its finer unit, which is also the score of a waiter.
pub(crate) type Place = u8;
pub(crate) type Id = usize;
pub(crate) type ClientId = usize;

/// The parts of a tick in the server's finer unit.
pub(crate) const TICK: Place = 8;
pub(crate) const CLAIM: Tick = 2;

/// An error that is planted into the table. Each one has to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    TakeIgnoresUntil,
    WithdrawsWhatIsTaken,
    PassesOnWhileDissolving,
    HeldStaysQueued,
    NobodyReleases,
    PutBackForgotten,
    SuspectIsSkipped,
    PushedGrantIsReadAsQueued,
    NamesChangeWithTheLink,
    ConfirmingRestartsTheOffer,
    NamesEndWithTheirStates,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Left,
    Lost,
    Busy,
    Unreachable,
    Dropped,
}

#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The client of each caller. The callers of a client share a runtime.
    pub(crate) clients: Vec<ClientId>,
    pub(crate) lease: Tick,
    /// The lease to which a holder extends its own.
    pub(crate) longer: Tick,
    pub(crate) wait: Tick,
    /// A caller that is polled at any time or never again. The others are polled as soon as they are woken.
    pub(crate) slow: Option<Id>,
    /// The steps before the first explored state. All due steps follow each of them.
    pub(crate) prefix: Vec<Action>,
    pub(crate) budget: Budget,
}

/// How often something may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Ticks that begin while steps are due.
    pub(crate) late: u8,
    pub(crate) breaks: u8,
    pub(crate) drops: u8,
    pub(crate) extends: u8,
}

impl Terms {
    pub(crate) fn client(&self, id: Id) -> ClientId {
        self.clients[id]
    }

    pub(crate) fn beside(&self, id: Id) -> Vec<Id> {
        let same = |other: &Id| *other != id && self.clients[*other] == self.clients[id];
        (0..self.clients.len()).filter(same).collect()
    }

    fn horizon(&self) -> Tick {
        3 + self.wait + self.budget.late + self.longer + 2 * CLAIM
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    Idle,
    Waiting,
    /// The body runs on a lease that is valid until this moment.
    Inside(Tick),
    Ended(End),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Push(Found),
    Reply(Request, Reply, Tick),
}

/// A client with its link. After a break, the server may still read what was written to the old link, and counts the old
/// link as a receiver, until it notices the break or the new link kills the old one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) core: Core,
    requests: VecDeque<(Request, Tick)>,
    messages: VecDeque<Message>,
    old: Option<VecDeque<Request>>,
    /// Whether the core was called in this tick.
    ticked: bool,
}

/// The entries and faults that an observer of all processes has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seen {
    token: Token,
    token_fell: bool,
    /// The first place of each caller: its first score in the queue, or the sending of a request that is granted.
    places: Vec<Option<Place>>,
    /// The callers whose place the server gave up, because a lease ended before their turn or nobody listened.
    excused: Vec<Id>,
    overtaken: bool,
    /// Consecutive quiet ticks with a free lock and a waiter.
    neglected: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: Tick,
    pub(crate) server: Server,
    pub(crate) clients: [Client; 2],
    pub(crate) callers: Vec<Caller>,
    budget: Budget,
    pub(crate) seen: Seen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Begin(Id),
    Poll(Id),
    Drop(Id),
    Done(Id),
    Extend(Id),
    /// The server reads the next request of a client.
    Serve(ClientId),
    /// The client reads the next message.
    Receive(ClientId),
    /// The engine calls the core because of the time.
    Call(ClientId),
    Break(ClientId),
    /// The server reads the next request from the old link.
    ServeOld(ClientId),
    Notice(ClientId),
    Connect(ClientId),
    Tick,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) terms: Terms,
    pub(crate) planted: Option<Planted>,
}

impl World {
    fn new(terms: &Terms) -> Self {
        let acquisition = Acquisition {
            state: State::Unsent,
            name: 0,
            place: None,
            asked: 0,
            missed: 0,
            suspect: false,
            wait_until: 0,
            result: None,
            is_woken: false,
        };
        let client = |id| {
            let mut client = Client::default();
            client.core.up = true;
            client.core.answered = 1;
            client.ticked = true;
            client.core.of = vec![acquisition.clone(); terms.clients.len()];
            for (of, _) in client
                .core
                .of
                .iter_mut()
                .zip(&terms.clients)
                .filter(|(_, of)| **of != id)
            {
                of.state = State::Gone;
            }
            client
        };
        Self {
            now: 1,
            server: Server::default(),
            clients: [client(0), client(1)],
            callers: vec![Caller::Idle; terms.clients.len()],
            budget: terms.budget,
            seen: Seen {
                places: vec![None; terms.clients.len()],
                ..Seen::default()
            },
        }
    }

    pub(crate) fn of(&self, terms: &Terms, id: Id) -> &Acquisition {
        &self.clients[terms.client(id)].core.of[id]
    }

    /// Returns a step that is due before the next tick.
    fn due(&self) -> Option<Action> {
        let due = |id: ClientId| {
            let client = &self.clients[id];
            let has = |is: bool, action| is.then_some(action);
            has(!client.core.up, Action::Connect(id))
                .or(has(!client.ticked, Action::Call(id)))
                .or(has(!client.messages.is_empty(), Action::Receive(id)))
                .or(has(!client.requests.is_empty(), Action::Serve(id)))
        };
        let idle = self
            .callers
            .iter()
            .position(|caller| *caller == Caller::Idle);
        due(0).or(due(1)).or(idle.map(Action::Begin))
    }
}

impl Scenario {
    fn step<T>(
        &self,
        world: &mut World,
        client: ClientId,
        call: impl FnOnce(&mut Step<'_>) -> T,
    ) -> T {
        let terms = &self.terms;
        let micros = world.server.micros(world.now);
        let now = world.now;
        let mut step = Step {
            core: &mut world.clients[client].core,
            terms,
            now,
            micros,
            planted: self.planted,
            out: Vec::new(),
        };
        let result = call(&mut step);
        let out = step.out;
        world.clients[client]
            .requests
            .extend(out.into_iter().map(|request| (request, now)));
        for id in (0..world.callers.len()).filter(|id| terms.client(*id) == client) {
            if let (Caller::Inside(until), State::Held(hold)) = (
                &mut world.callers[id],
                world.clients[client].core.of[id].state,
            ) {
                *until = hold.until;
            }
            if world.of(terms, id).result == Some(End::Lost) {
                world.callers[id] = Caller::Ended(End::Lost);
            }
            if world.of(terms, id).is_woken && terms.slow != Some(id) {
                self.poll(world, id);
            }
        }
        result
    }

    fn poll(&self, world: &mut World, id: Id) {
        let client = self.terms.client(id);
        world.clients[client].core.of[id].is_woken = false;
        if world.callers[id] != Caller::Waiting {
            return;
        }
        self.step(world, client, |step| step.on(step.owner(id), Event::Poll));
        if let Some(end) = world.of(&self.terms, id).result {
            world.callers[id] = Caller::Ended(end);
        }
        if let State::Held(hold) = world.of(&self.terms, id).state
            && world.callers[id] == Caller::Waiting
        {
            world.callers[id] = Caller::Inside(hold.until);
            world.seen.token_fell |= hold.token <= world.seen.token;
            world.seen.token = hold.token;
            world.seen.overtaken |=
                self.overtakes(world, id, |other| self.terms.client(other) == client);
        }
    }

    /// Returns whether a caller enters or is granted the lock although another one joined before it and waits in time.
    fn overtakes(&self, world: &World, id: Id, counts: impl Fn(Id) -> bool) -> bool {
        let places = &world.seen.places;
        (0..places.len())
            .filter(|other| places[*other].is_some() && places[*other] < places[id])
            .any(|other| {
                let of = world.of(&self.terms, other);
                let waits = matches!(of.state, State::Asked | State::Queued);
                let in_time = of.missed == 0 && world.now < of.wait_until;
                let is_excused = world.seen.excused.contains(&other);
                world.callers[other] == Caller::Waiting
                    && waits
                    && in_time
                    && !is_excused
                    && counts(other)
            })
    }

    fn serve(&self, world: &mut World, client: ClientId, request: &Request) -> Reply {
        let terms = &self.terms;
        let heard = |client: &Client| client.core.up || client.old.is_some();
        let mut run = Run {
            terms: &self.terms,
            now: world.now,
            from: client,
            heard: [heard(&world.clients[0]), heard(&world.clients[1])],
            pushes: Vec::new(),
            skipped: Vec::new(),
        };
        let expired = world.server.expire(world.now);
        world
            .seen
            .excused
            .extend(expired.iter().map(|owner| owner.id));
        let had = world.server.grant.clone();
        let reply = world.server.execute(&mut run, request);
        let (pushes, skipped) = (run.pushes, run.skipped);
        let seen = &mut world.seen;
        seen.excused.extend(skipped.iter().map(|owner| owner.id));
        seen.excused.sort_unstable();
        seen.excused.dedup();
        for (place, owner) in &world.server.queue {
            seen.places[owner.id].get_or_insert(*place);
        }
        for owner in world.server.grant.iter().flat_map(|grant| &grant.owners) {
            let asked = world.clients[terms.client(owner.id)].core.of[owner.id].asked;
            seen.places[owner.id].get_or_insert(asked);
        }
        if let Some(grant) = world.server.grant.clone()
            && had.as_ref().is_none_or(|had| had.first != grant.first)
        {
            let owners = |owners: &[Owner], id| {
                owners.contains(&Owner {
                    id,
                    name: world.of(&self.terms, id).name,
                })
            };
            let knows = |id| {
                let name = Owner {
                    id,
                    name: world.of(&self.terms, id).name,
                };
                !owners(&grant.owners, id)
                    && (world.server.is_queued(name)
                        || had.as_ref().is_some_and(|had| owners(&had.owners, id)))
            };
            let overtakes = |owner: &Owner| self.overtakes(world, owner.id, knows);
            let overtaken = grant.owners.iter().any(overtakes);
            world.seen.overtaken |= overtaken;
        }
        for (to, push) in pushes {
            if world.clients[to].core.up {
                world.clients[to].messages.push_back(Message::Push(push));
            }
        }
        reply
    }

    fn apply(&self, world: &mut World, action: Action) {
        let terms = &self.terms;
        match action {
            Action::Begin(id) => {
                world.callers[id] = Caller::Waiting;
                let client = terms.client(id);
                world.clients[client].core.of[id].wait_until = world.now + terms.wait;
                self.step(world, client, |step| step.on(step.owner(id), Event::Begin));
            }
            Action::Poll(id) => self.poll(world, id),
            Action::Drop(id) => {
                world.budget.drops -= 1;
                world.callers[id] = Caller::Ended(End::Dropped);
                self.step(world, terms.client(id), |step| {
                    step.on(step.owner(id), Event::Drop);
                });
            }
            Action::Done(id) => {
                world.callers[id] = Caller::Ended(End::Left);
                self.step(world, terms.client(id), |step| {
                    step.on(step.owner(id), Event::Done);
                });
            }
            Action::Extend(id) => {
                world.budget.extends -= 1;
                self.step(world, terms.client(id), |step| {
                    step.on(step.owner(id), Event::Extend);
                });
            }
            Action::Serve(id) => {
                if let Some((request, sent)) = world.clients[id].requests.pop_front() {
                    let reply = self.serve(world, id, &request);
                    world.clients[id]
                        .messages
                        .push_back(Message::Reply(request, reply, sent));
                }
            }
            Action::Receive(id) => match world.clients[id].messages.pop_front() {
                Some(Message::Push(found)) => self.step(world, id, |step| step.pushed(&found)),
                Some(Message::Reply(request, reply, sent)) => {
                    self.step(world, id, |step| step.replied(&request, &reply, sent));
                }
                None => {}
            },
            Action::Call(id) => {
                world.clients[id].ticked = true;
                self.step(world, id, |step| {
                    step.ticked();
                });
            }
            Action::Break(id) => {
                world.budget.breaks -= 1;
                let client = &mut world.clients[id];
                client.messages.clear();
                client.old = Some(
                    client
                        .requests
                        .drain(..)
                        .map(|(request, _)| request)
                        .collect(),
                );
                self.step(world, id, |step| {
                    step.broken();
                });
            }
            Action::ServeOld(id) => {
                let old = world.clients[id].old.as_mut();
                if let Some(request) = old.and_then(VecDeque::pop_front) {
                    self.serve(world, id, &request);
                }
            }
            Action::Notice(id) => world.clients[id].old = None,
            Action::Connect(id) => {
                world.clients[id].old = None;
                self.step(world, id, |step| {
                    step.connected();
                });
            }
            Action::Tick => {
                let quiet = world.due().is_none();
                if !quiet {
                    world.budget.late -= 1;
                }
                world.now += 1;
                let expired = world.server.expire(world.now);
                world
                    .seen
                    .excused
                    .extend(expired.iter().map(|owner| owner.id));
                let waits = |id: Id| {
                    let of = world.of(terms, id);
                    let is_on_time = terms.slow != Some(id) && world.now <= of.wait_until;
                    matches!(of.state, State::Asked | State::Queued) && is_on_time
                };
                let is_free = quiet && world.server.grant.is_none() && expired.is_empty();
                let neglects = is_free && (0..world.callers.len()).any(waits);
                world.seen.neglected = if neglects {
                    world.seen.neglected + 1
                } else {
                    0
                };
                for client in &mut world.clients {
                    client.ticked = false;
                }
            }
        }
    }

    fn is_settled(&self, world: &World) -> bool {
        world.now >= self.terms.horizon() && world.due().is_none()
    }
}

pub(crate) const EXCLUSION: &str = "two bodies never run at once on valid leases";
const TOKENS: &str = "each body has a higher token than all earlier bodies";
pub(crate) const ORDER: &str = "no waiter that is polled in time is overtaken";
pub(crate) const TOLD: &str = "nothing is stored for an owner that is told neither way";
pub(crate) const FREE: &str = "no waiter that is polled waits for a free lock";
pub(crate) const REACHED: &str = "a call is unreachable only after a broken link or a late tick";
const OVER: &str = "in the end each caller has entered or has an error, and nothing is stored";

fn excludes(_: &Scenario, world: &World) -> bool {
    let valid = |caller: &&Caller| matches!(caller, Caller::Inside(until) if world.now < *until);
    world.callers.iter().filter(valid).count() <= 1
}

fn tells(scenario: &Scenario, world: &World) -> bool {
    let terms = &scenario.terms;
    (0..2).all(|id| {
        let client = &world.clients[id];
        if !client.core.up
            || !client.requests.is_empty()
            || !client.messages.is_empty()
            || !client.ticked
        {
            return true;
        }
        let is_mine = |owner: &Owner| terms.client(owner.id) == id;
        let grant = world
            .server
            .grant
            .as_ref()
            .filter(|grant| is_mine(&grant.owners[0]));
        let share = client.core.share.as_ref().map(|share| share.first);
        let mut queued = world
            .server
            .queue
            .iter()
            .map(|(_, owner)| owner)
            .filter(|owner| is_mine(owner));
        let waits = |owner: &Owner| {
            let of = &client.core.of[owner.id];
            of.name == owner.name && matches!(of.state, State::Asked | State::Queued)
        };
        grant.is_none_or(|grant| share == Some(grant.first)) && queued.all(waits)
    })
}

fn reaches(scenario: &Scenario, world: &World) -> bool {
    let (left, all) = (world.budget, scenario.terms.budget);
    let is_disturbed = left.late < all.late || left.breaks < all.breaks;
    is_disturbed || !world.callers.contains(&Caller::Ended(End::Unreachable))
}

fn ends(scenario: &Scenario, world: &World) -> bool {
    let has_ended = |id: Id| {
        matches!(world.callers[id], Caller::Ended(_))
            || scenario.terms.slow == Some(id) && world.of(&scenario.terms, id).is_woken
    };
    let is_empty = world.server.grant.is_none() && world.server.queue.is_empty();
    !scenario.is_settled(world) || is_empty && (0..world.callers.len()).all(has_ended)
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.terms);
        for action in &self.terms.prefix {
            self.apply(&mut world, *action);
            while let Some(due) = world.due().filter(|due| !matches!(due, Action::Begin(_))) {
                self.apply(&mut world, due);
            }
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let budget = world.budget;
        for (id, caller) in world.callers.iter().enumerate() {
            let waits = *caller == Caller::Waiting;
            let is_inside = matches!(caller, Caller::Inside(_));
            let mut may = |is: bool, action| actions.extend(is.then_some(action));
            may(*caller == Caller::Idle, Action::Begin(id));
            may(
                waits && self.terms.slow == Some(id) && world.of(&self.terms, id).is_woken,
                Action::Poll(id),
            );
            may(waits && budget.drops > 0, Action::Drop(id));
            may(is_inside, Action::Done(id));
            may(is_inside && budget.extends > 0, Action::Extend(id));
        }
        for (id, client) in world.clients.iter().enumerate() {
            let mut may = |is: bool, action| actions.extend(is.then_some(action));
            may(!client.requests.is_empty(), Action::Serve(id));
            may(!client.messages.is_empty(), Action::Receive(id));
            may(!client.ticked, Action::Call(id));
            may(client.core.up && budget.breaks > 0, Action::Break(id));
            may(
                client.old.as_ref().is_some_and(|old| !old.is_empty()),
                Action::ServeOld(id),
            );
            may(
                client.old.as_ref().is_some_and(VecDeque::is_empty),
                Action::Notice(id),
            );
            may(!client.core.up, Action::Connect(id));
        }
        let may_tick = world.due().is_none() || budget.late > 0;
        if may_tick && world.now < self.terms.horizon() {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        self.apply(&mut world, action);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, excludes),
            Property::always(TOKENS, |_, world: &World| !world.seen.token_fell),
            Property::always(ORDER, |_, world: &World| !world.seen.overtaken),
            Property::always(TOLD, tells),
            Property::always(FREE, |_, world: &World| world.seen.neglected < 2),
            Property::always(REACHED, reaches),
            Property::always(OVER, ends),
        ]
    }
}
