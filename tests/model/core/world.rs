//! The world around two clients: their callers, their links, the server and the clock, as a model for the checker.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use lock_core::options::Mode;
use stateright::{Model, Property};

use crate::{
    Planted,
    client::{Client, Message, Stage, at},
    server::{
        CLAIM, ClientId, Id, LONGER, Owner, Place, Reply, Request, Run, Server, Tick, Token, WAIT,
        fits,
    },
};

/// How often something may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Ticks that begin while steps are due.
    pub(crate) late: u8,
    pub(crate) breaks: u8,
    pub(crate) drops: u8,
    pub(crate) extends: u8,
    pub(crate) downgrades: u8,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Scenario {
    /// The client of each caller.
    pub(crate) clients: Vec<ClientId>,
    /// The mode of each caller.
    pub(crate) modes: Vec<Mode>,
    /// The callers that are polled at any time or never again. The others are polled as soon as they are woken.
    pub(crate) slow: Vec<Id>,
    /// The steps before the first explored state. All due steps follow each of them.
    pub(crate) prefix: Vec<Action>,
    pub(crate) budget: Budget,
    pub(crate) planted: Option<Planted>,
}

/// An observer of all processes.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Seen {
    token: Token,
    /// The highest token of a writer.
    written: Token,
    token_fell: bool,
    /// The first place of each caller on the server.
    places: Vec<Option<Place>>,
    /// The callers whose place the server gave up, because a lease ended before their turn or nobody listened.
    excused: BTreeSet<Id>,
    overtaken: bool,
    /// Consecutive quiet ticks with a free lock and a waiter.
    neglected: u8,
}

#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "the core has no equality, so equal hashes have to do, as in the checker"
)]
#[derive(Clone, Debug, Hash)]
pub(crate) struct World {
    now: Tick,
    server: Server,
    clients: [Arc<Client>; 2],
    budget: Budget,
    seen: Seen,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let hash = |world: &Self| BuildHasherDefault::<DefaultHasher>::default().hash_one(world);
        hash(self) == hash(other)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Begin(Id),
    Poll(Id),
    /// The body ends, or the caller drops its call before.
    Stop(Id),
    Extend(Id),
    /// A writer lets readers be inside beside it.
    Downgrade(Id),
    /// The server reads the next request of a client.
    Serve(ClientId),
    /// The client reads the next message.
    Receive(ClientId),
    /// The timers and the heartbeat of a client run.
    Call(ClientId),
    /// The client sends the requests of callers that share a batch.
    Batch(ClientId),
    Break(ClientId),
    /// The server reads the next request from the broken link.
    ServeOld(ClientId),
    /// The server notices that the link is broken.
    Notice(ClientId),
    Connect(ClientId),
    Tick,
}

impl World {
    fn stage(&self, scenario: &Scenario, id: Id) -> Stage {
        self.clients[scenario.clients[id]].calls[&id].stage
    }

    /// Returns the steps of a client that are due before the next tick.
    fn steps(&self, id: ClientId) -> impl Iterator<Item = Action> {
        let client = &self.clients[id];
        let steps = [
            (!client.up, Action::Connect(id)),
            (!client.ticked, Action::Call(id)),
            (!client.messages.is_empty(), Action::Receive(id)),
            (!client.requests.is_empty(), Action::Serve(id)),
            (client.has_batch(), Action::Batch(id)),
        ];
        steps
            .into_iter()
            .filter_map(|(is_due, step)| is_due.then_some(step))
    }

    /// Returns a step that is due before the next tick, or a call that begins before it.
    fn due(&self, scenario: &Scenario) -> Option<Action> {
        let mut ids = 0..scenario.clients.len();
        let idle = ids.find(|id| self.stage(scenario, *id) == Stage::Idle);
        let mut steps = self.steps(0).chain(self.steps(1));
        steps.next().or(idle.map(Action::Begin))
    }
}

impl Scenario {
    fn horizon(&self) -> Tick {
        3 + WAIT + LONGER + 2 * CLAIM + Tick::from(self.budget.late)
    }

    /// Takes one step of a client, and records the bodies that begin in it.
    fn step(&self, world: &mut World, client: ClientId, step: impl FnOnce(&mut Client)) {
        let client = Arc::make_mut(&mut world.clients[client]);
        step(client);
        client.advance();
        for (id, token) in std::mem::take(&mut client.began) {
            let (seen, writes) = (&mut world.seen, !self.modes[id].is_shared());
            seen.token_fell |= token <= if writes { seen.token } else { seen.written };
            seen.token = seen.token.max(token);
            if writes {
                seen.written = token;
            }
            world.seen.overtaken |= self.overtakes(world, id);
        }
    }

    /// Returns whether a body begins although another caller joined before its caller, and waits in time. Callers that the
    /// server has let in together begin in any order.
    fn overtakes(&self, world: &World, id: Id) -> bool {
        let places = &world.seen.places;
        (0..places.len())
            .filter(|other| places[*other].is_some() && places[*other] < places[id])
            .any(|other| {
                let call = &world.clients[self.clients[other]].calls[&other];
                let in_time = call.missed == 0 && world.now < call.wait_until;
                let is_excused = world.seen.excused.contains(&other) || self.slow.contains(&other);
                let are_beside =
                    self.modes[id].is_shared() && world.server.has_let_in(call.owner, world.now);
                call.stage.is_waiting() && in_time && !is_excused && !are_beside
            })
    }

    /// Returns whether a caller waits beyond this tick, although the lock is open, or although the caller shares it already.
    fn neglects(&self, world: &World, id: Id) -> bool {
        let call = &world.clients[self.clients[id]].calls[&id];
        let waits = call.stage.is_waiting() && world.now < call.wait_until;
        let server = &world.server;
        let is_in = self.modes[id].is_shared() && server.has_let_in(call.owner, world.now);
        let is_due = is_in || server.is_open(&self.modes, world.now);
        waits && is_due && !self.slow.contains(&id)
    }

    fn serve(&self, world: &mut World, client: ClientId, request: &Request) -> Reply {
        let heard = |client: &Client| client.up || client.old.is_some();
        let mut run = Run {
            clients: &self.clients,
            modes: &self.modes,
            planted: self.planted,
            now: world.now,
            from: client,
            heard: [heard(&world.clients[0]), heard(&world.clients[1])],
            pushes: Vec::new(),
            skipped: world.server.expire(world.now),
        };
        let reply = world.server.execute(&mut run, request);
        let Run {
            pushes, skipped, ..
        } = run;
        world
            .seen
            .excused
            .extend(skipped.iter().map(|owner| owner.id));
        let inside = world.server.grants.iter().flat_map(|grant| &grant.owners);
        // A repeated request names the time of the first one, but a caller that was let in meanwhile overtakes nobody.
        let let_in = inside
            .clone()
            .filter_map(|owner| world.seen.places[owner.id]);
        let latest = let_in.max().unwrap_or_default();
        for (place, owner) in &world.server.queue {
            world.seen.places[owner.id].get_or_insert((*place).max(latest));
        }
        let place = world.server.clock(world.now);
        for owner in inside {
            world.seen.places[owner.id].get_or_insert(place);
        }
        for (to, push) in pushes {
            if world.clients[to].up {
                let client = Arc::make_mut(&mut world.clients[to]);
                client.messages.push_back(Message::Push(push));
            }
        }
        reply
    }

    fn apply(&self, world: &mut World, action: Action) {
        match action {
            Action::Begin(id) => self.step(world, self.clients[id], |client| client.start(id)),
            Action::Poll(id) => self.step(world, self.clients[id], |client| client.poll(id)),
            Action::Stop(id) => {
                let is_dropped = world.stage(self, id) != Stage::Inside;
                world.budget.drops -= u8::from(is_dropped);
                self.step(world, self.clients[id], |client| client.stop(id));
            }
            Action::Extend(id) => {
                world.budget.extends -= 1;
                self.step(world, self.clients[id], |client| client.extend(id));
            }
            Action::Downgrade(id) => {
                world.budget.downgrades -= 1;
                self.step(world, self.clients[id], |client| client.downgrade(id));
            }
            Action::Serve(id) => {
                if let Some(sent) = Arc::make_mut(&mut world.clients[id]).requests.pop_front() {
                    let reply = self.serve(world, id, &sent.request);
                    let client = Arc::make_mut(&mut world.clients[id]);
                    client.messages.push_back(Message::Reply(sent, reply));
                }
            }
            Action::Receive(id) => {
                if let Some(message) = Arc::make_mut(&mut world.clients[id]).messages.pop_front() {
                    self.step(world, id, |client| client.receive(message));
                }
            }
            Action::Call(id) => self.step(world, id, Client::tick),
            Action::Batch(id) => self.step(world, id, Client::send_batch),
            Action::Break(id) => {
                world.budget.breaks -= 1;
                self.step(world, id, Client::break_link);
            }
            Action::ServeOld(id) => {
                let old = &mut Arc::make_mut(&mut world.clients[id]).old;
                if let Some(request) = old.as_mut().and_then(VecDeque::pop_front) {
                    self.serve(world, id, &request);
                }
            }
            Action::Notice(id) => Arc::make_mut(&mut world.clients[id]).old = None,
            Action::Connect(id) => self.step(world, id, Client::connect),
            Action::Tick => self.tick(world),
        }
    }

    fn tick(&self, world: &mut World) {
        let quiet = world.due(self).is_none();
        if !quiet {
            world.budget.late -= 1;
        }
        let mut ids = 0..self.clients.len();
        world.seen.neglected = match quiet && ids.any(|id| self.neglects(world, id)) {
            true => world.seen.neglected + 1,
            false => 0,
        };
        world.now += 1;
        let expired = world.server.expire(world.now);
        world
            .seen
            .excused
            .extend(expired.iter().map(|owner| owner.id));
        for id in 0..2 {
            let client = Arc::make_mut(&mut world.clients[id]);
            (client.now, client.ticked) = (world.now, false);
            // To save states, the timers run at once unless their moment matters.
            if self.budget.late == 0 && self.budget.extends == 0 {
                self.apply(world, Action::Call(id));
            }
        }
    }
}

pub(crate) const EXCLUSION: &str =
    "bodies run at once on valid leases only if their modes allow it";
pub(crate) const TOKENS: &str =
    "each body has a higher token than all earlier bodies that exclude it";
pub(crate) const ORDER: &str = "no waiter that is polled in time is overtaken";
pub(crate) const TOLD: &str = "nothing is stored for an owner that is told neither way";
pub(crate) const FREE: &str = "no waiter that is polled waits for a lock that it can enter";
pub(crate) const OVER: &str = "in the end each call has ended, and nothing is stored";

fn excludes(scenario: &Scenario, world: &World) -> bool {
    let calls = world.clients.iter().flat_map(|client| &client.calls);
    let inside = calls.filter(|(_, call)| call.stage == Stage::Inside);
    let valid = inside.filter_map(|(id, call)| Some((*id, call.hold?)));
    let valid = valid.filter(|(_, hold)| at(world.now) < hold.until);
    let modes = valid.map(|(id, hold)| match hold.is_downgraded {
        true => Mode::Read,
        false => scenario.modes[id],
    });
    let mut modes: Vec<_> = modes.collect();
    modes.pop().is_none_or(|last| fits(last, modes.into_iter()))
}

/// If nothing of a client is under way, its callers wait for each of its entries in the queue, and hold its grants. A probe
/// describes only one of several shared grants, so their callers can wait for the next probes (see [`FREE`]).
fn tells(scenario: &Scenario, world: &World) -> bool {
    (0..2).all(|id| {
        let client = &world.clients[id];
        let is_mine = |owner: &Owner| scenario.clients[owner.id] == id;
        let waits = |owner: &Owner| {
            let call = &client.calls[&owner.id];
            call.owner == *owner && call.stage.is_waiting()
        };
        let mut queued = world.server.queue.iter().map(|(_, owner)| owner);
        let grants = world.server.grants.iter();
        let mut grants =
            grants.filter(|grant| is_mine(&grant.owners[0]) && grant.is_valid(world.now));
        let is_held = grants.all(|grant| {
            let tokens = grant.first..grant.first + grant.owners.len() as Token;
            let mut holds = client.calls.values().filter_map(|call| call.hold);
            let is_told_later = grant.mode.is_shared() && grant.owners.iter().any(waits);
            is_told_later || holds.any(|hold| tokens.contains(&hold.token))
        });
        !client.is_quiet() || is_held && queued.all(|owner| !is_mine(owner) || waits(owner))
    })
}

fn ends(scenario: &Scenario, world: &World) -> bool {
    let has_ended = |id: Id| {
        let call = &world.clients[scenario.clients[id]].calls[&id];
        let is_unpolled = scenario.slow.contains(&id) && call.woken.is_some();
        call.stage == Stage::Ended || is_unpolled
    };
    let is_settled = world.now >= scenario.horizon() && world.due(scenario).is_none();
    let is_empty = world.server.grants.is_empty() && world.server.queue.is_empty();
    !is_settled || is_empty && (0..scenario.clients.len()).all(has_ended)
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let ids = |client| (0..self.clients.len()).filter(move |id| self.clients[*id] == client);
        let mut world = World {
            now: 1,
            server: Server::default(),
            clients: [0, 1].map(|client| Arc::new(Client::new(self, ids(client)))),
            budget: self.budget,
            seen: Seen {
                places: vec![None; self.clients.len()],
                ..Seen::default()
            },
        };
        for action in &self.prefix {
            self.apply(&mut world, *action);
            while let Some(due) = world
                .due(self)
                .filter(|due| !matches!(due, Action::Begin(_)))
            {
                self.apply(&mut world, due);
            }
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let budget = world.budget;
        let mut may = |is: bool, action| actions.extend(is.then_some(action));
        for (id, client) in world.clients.iter().enumerate() {
            for (id, call) in &client.calls {
                let (id, is_inside) = (*id, call.stage == Stage::Inside);
                let has_begun = !matches!(call.stage, Stage::Idle | Stage::Ended);
                let may_drop = has_begun && budget.drops > 0;
                may(call.stage == Stage::Idle, Action::Begin(id));
                may(call.woken.is_some(), Action::Poll(id));
                may(is_inside || may_drop, Action::Stop(id));
                may(is_inside && budget.extends > 0, Action::Extend(id));
                let may_downgrade = budget.downgrades > 0 && self.modes[id] == Mode::Write;
                may(is_inside && may_downgrade, Action::Downgrade(id));
            }
            may(client.up && budget.breaks > 0, Action::Break(id));
            if let Some(old) = &client.old {
                may(!old.is_empty(), Action::ServeOld(id));
                may(old.is_empty(), Action::Notice(id));
            }
        }
        actions.extend(world.steps(0).chain(world.steps(1)));
        let may_tick = world.due(self).is_none() || budget.late > 0;
        if may_tick && world.now < self.horizon() {
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
            Property::always(OVER, ends),
        ]
    }
}
