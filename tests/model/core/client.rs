//! A client: its core, its acquisitions and its link. This file does around the core what `queue/*.rs` do: it sends the
//! requests, applies the replies, and repeats requests over a new link. A task that waits for something is a value, and
//! [`Client::advance`] continues each task that can go on.

use std::{
    collections::{BTreeMap, VecDeque},
    mem::{replace, take},
    sync::LazyLock,
    time::Duration,
};

use lock_core::{
    backend::{Answer, Extend},
    fencing::FencingToken,
    key::LockName,
    lease::{Grant, Moment, claim_after, less_drift},
    owner::OwnerId,
};

use crate::{
    Planted,
    backend::redis::{
        core::{
            Core, Ended, Link, Parts, Stored,
            acquisition::{Acquisition, Event, Step},
            cohorts::{Dissolved, Known, Passed},
            waiting::ToSend,
        },
        protocol::grant::{GrantSnapshot, LeaseWord},
    },
    limits,
    server::{
        Found, Id, LEASE, LONGER, Owner, Place, Reply, Request, TICK, Tick, Token, WAIT, Wanted,
    },
    world::Scenario,
};

/// The lock for which all callers wait.
static NAME: LazyLock<LockName> = LazyLock::new(|| LockName::stored("{lock:k}"));

#[derive(Clone, Debug, Hash)]
pub(crate) enum Bare {}

impl Default for Acquisition {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Link {
    fn default() -> Self {
        Core::<Bare>::default().lines.open_link(&"session".into())
    }
}

impl Parts for Bare {
    type Request = Owner;
    type Caller = Owner;
    type Batch = ();
}

pub(crate) fn at(tick: Tick) -> Moment {
    Moment::new(secs(tick))
}

fn fence(token: Token) -> FencingToken {
    FencingToken::new(token)
}

fn secs(ticks: Tick) -> Duration {
    Duration::from_secs(ticks)
}

fn id_of(owner: Owner) -> OwnerId {
    OwnerId::from_u128((owner.id as u128) << 8 | u128::from(owner.name))
}

fn owner_of(owner: OwnerId) -> Owner {
    let bits = usize::from_str_radix(&owner.to_string(), 16).expect("32 digits");
    Owner {
        id: bits >> 8,
        name: bits as u8,
    }
}

/// The lease of a hold, and the offer to its caller.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    pub(crate) until: Moment,
    /// Whether the grant lasts for a claim only, because no renewal has confirmed it.
    is_claim: bool,
    /// Whether a writer reads from now on.
    pub(crate) is_downgraded: bool,
    /// The lock is given back at this moment unless the body has begun.
    offered_until: Option<Moment>,
}

/// The step that an acquisition or its call is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// Waits for a link, and for the clean-up of the previous name. Then it asks.
    Route,
    Asked,
    /// Its own request, which was sent in this tick, is granted. It waits for the session's requests under its name to end.
    Ending(Token, Tick),
    AwaitTurn,
    /// Its turn has come. It waits for the session's requests under its name to end.
    Turn,
    /// It has no lock, and asks again in its next poll.
    Missed,
    /// Its `wait` is over. It takes a turn that has come, or leaves the queue over the link.
    LastTurn,
    Leaving,
    Offered,
    Inside,
    Ended,
}

impl Stage {
    pub(crate) fn is_waiting(self) -> bool {
        use Stage::{Asked, AwaitTurn, Ending, Route, Turn};
        matches!(self, Route | Asked | Ending(..) | AwaitTurn | Turn)
    }
}

/// A call with its acquisition, as `acquire/one.rs` and `queue/attempt.rs` store it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Call {
    pub(crate) stage: Stage,
    pub(crate) hold: Option<Hold>,
    acquisition: Acquisition,
    pub(crate) owner: Owner,
    names: u8,
    stored: Stored,
    is_sent: bool,
    /// Whether the turn has come; `None` if nobody is told.
    turn: Option<bool>,
    cleaning: Option<Owner>,
    pub(crate) missed: u32,
    pub(crate) wait_until: Tick,
    /// The tick in which the call was woken. Its caller has not been polled since.
    pub(crate) woken: Option<Tick>,
}

/// The requests under one name, as `protocol/request.rs` stores them.
#[derive(Clone, Debug, Default, Hash)]
struct Requests {
    first_sent: Option<Place>,
    is_asked: bool,
    /// The number of requests of the session that are under way for this name.
    sending: u8,
    /// The session sends no further request for this name.
    has_ended: bool,
    /// The link that carried the newest request.
    carried: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash)]
enum Cleaning {
    /// Waits for the session's requests under the name to end.
    End,
    Leave,
    Sent,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Dissolve {
    token: Token,
    of_core: Dissolved,
    lease: Tick,
    then: Then,
}

/// The continuation of a dissolve.
#[derive(Clone, Debug, Hash)]
enum Then {
    Nothing,
    Release(Token),
    Extend(Id),
    Downgrade(Token),
}

/// The task that sent a request and awaits the reply.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Task {
    Own(Owner),
    Batch(Vec<(Owner, Stored)>),
    Leave(Owner),
    CleanUp(Owner),
    /// The token of the turn, and the first token of its cohort.
    Release(Token, Option<Token>),
    /// The caller, its token, the first token of its cohort if it has a turn, and the lease.
    Renew(Id, Token, Option<Token>, Tick),
    Dissolve(Dissolve),
    /// The token by which the server identifies the grant.
    Downgrade(Token),
    Probe(Token),
}

/// A request, the task that awaits its reply, and the tick in which it was sent.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Sent {
    pub(crate) request: Request,
    task: Task,
    at: Tick,
}

#[derive(Clone, Debug, Hash)]
pub(crate) enum Message {
    Push(Found),
    Reply(Sent, Reply),
}

/// The task that sends batches.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) enum Sending {
    #[default]
    Nothing,
    /// Waits for more callers to share the request.
    Window,
    Sent,
    /// Waits until the server has closed the link that carried this batch.
    Closing(Vec<(Owner, Stored)>),
}

#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Client {
    core: Core<Bare>,
    link: Link,
    pub(crate) now: Tick,
    planted: Option<Planted>,
    /// The callers that are polled at any time or never.
    slow: Vec<Id>,
    pub(crate) calls: BTreeMap<Id, Call>,
    /// Whether the link is up.
    pub(crate) up: bool,
    /// The number of the link.
    line: u8,
    pub(crate) requests: VecDeque<Sent>,
    pub(crate) messages: VecDeque<Message>,
    /// The requests that the server can still read from the broken link.
    pub(crate) old: Option<VecDeque<Request>>,
    /// The sending of the newest request whose reply was read. A pushed grant came later.
    after: Tick,
    sent: BTreeMap<Owner, Requests>,
    cleaning: BTreeMap<Owner, Cleaning>,
    /// The tasks that wait for a link to repeat their requests.
    pending: Vec<Task>,
    sending: Sending,
    /// Whether the heartbeat and the timers have run in this tick.
    pub(crate) ticked: bool,
    /// The bodies that began in this step.
    pub(crate) began: Vec<(Id, Token)>,
}

impl Client {
    pub(crate) fn new(scenario: &Scenario, ids: impl Iterator<Item = Id>) -> Self {
        let call = |id| Call {
            owner: Owner { id, name: 0 },
            ..Call::default()
        };
        let mut client = Self {
            now: 1,
            planted: scenario.planted,
            slow: scenario.slow.clone(),
            calls: ids.map(|id| (id, call(id))).collect(),
            up: true,
            ticked: true,
            ..Self::default()
        };
        client.link = client.core.lines.open_link(&"session".into());
        client
    }

    /// Whether no request, reply or task is under way, so that the client knows all that is stored for it.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_idle = self.requests.is_empty() && self.messages.is_empty() && self.old.is_none();
        let sends = !self.cleaning.is_empty() || !matches!(self.sending, Sending::Nothing);
        self.up && self.ticked && is_idle && !sends
    }

    pub(crate) fn has_batch(&self) -> bool {
        matches!(self.sending, Sending::Window)
    }

    fn plants(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    fn moment(&self) -> Moment {
        at(self.now)
    }

    /// Whether the runtime of all callers of this client does not run.
    fn is_silent(&self) -> bool {
        let is_late = |call: &Call| call.woken.is_some_and(|woken| woken < self.now);
        self.calls.keys().all(|id| self.slow.contains(id)) && self.calls.values().any(is_late)
    }

    fn call(&mut self, id: Id) -> &mut Call {
        self.calls.get_mut(&id).expect("a call")
    }

    fn stage(&mut self, id: Id, stage: Stage) {
        self.call(id).stage = stage;
    }

    /// Returns the acquisition's state if it is still at this stage under this name.
    fn is_at(&self, owner: Owner, stage: Stage) -> bool {
        let call = &self.calls[&owner.id];
        call.owner == owner && call.stage == stage
    }

    fn sent(&mut self, owner: Owner) -> &mut Requests {
        self.sent.entry(owner).or_default()
    }

    fn send(&mut self, request: Request, task: Task) {
        let at = self.now;
        self.requests.push_back(Sent { request, task, at });
    }

    /// Sends a request over the link, or keeps the task until there is a link.
    fn send_or_wait(&mut self, request: Request, task: Task) {
        match self.up {
            true => self.send(request, task),
            false => self.pending.push(task),
        }
    }

    fn stop_waiting(&mut self, id: Id) {
        let call = self.calls.get_mut(&id).expect("a call");
        if call.is_sent {
            let left = self
                .core
                .lines
                .leave_list(self.link, &NAME, id_of(call.owner));
            call.stored = left.unwrap_or(call.stored);
        }
    }

    fn place(&self, id: Id) -> Option<u64> {
        let call = &self.calls[&id];
        let waiting = self.core.lines.stored(self.link, &NAME, id_of(call.owner));
        waiting.unwrap_or(call.stored).place
    }

    /// See `AcquireRequest::place_to_request`.
    fn wanted(&mut self, owner: Owner, place: Option<u64>, number: Place) -> Wanted {
        let now = self.now * TICK;
        let first_sent = &mut self.sent(owner).first_sent;
        let before = *first_sent;
        first_sent.get_or_insert(now + number);
        place.or(before)
    }

    // The acquisition: queue/attempt.rs

    fn ask(&mut self, id: Id) {
        let up = self.up;
        let call = self.call(id);
        if !up || call.cleaning.is_some() {
            call.stage = Stage::Route;
            return;
        }
        call.is_sent = true;
        let (owner, has_joined) = (call.owner, call.turn.is_some());
        self.sent(owner);
        if !has_joined {
            self.stop_waiting(id);
            self.call(id).turn = Some(false);
            let (stored, lines) = (self.calls[&id].stored, &mut self.core.lines);
            if !lines.join(self.link, &NAME, id_of(owner), stored, owner, owner) {
                self.enqueue();
                return self.on(id, Event::Joins);
            }
        }
        let (place, line) = (self.place(id), self.line);
        let sent = self.sent(owner);
        (sent.is_asked, sent.carried) = (true, Some(line));
        let wanted = self.wanted(owner, place, 0);
        self.call(id).acquisition.on(Event::Asks);
        self.send(Request::Acquire(owner, wanted), Task::Own(owner));
        self.stage(id, Stage::Asked);
    }

    /// Applies an event to the acquisition, and carries out its next step.
    fn on(&mut self, id: Id, event: Event) {
        match self.call(id).acquisition.on(event) {
            Step::AwaitTurn => self.stage(id, Stage::AwaitTurn),
            Step::Miss => {
                self.start_over(id);
                self.miss(id);
            }
            Step::Return(Answer::Granted(grant)) => self.begin(id, &grant),
            _ => self.ask(id),
        }
    }

    fn settle(&mut self, id: Id, event: Event) {
        self.stop_waiting(id);
        self.on(id, event);
    }

    fn is_drained(&mut self, owner: Owner) -> bool {
        let sent = self.sent(owner);
        sent.has_ended = true;
        sent.sending == 0
    }

    fn start_over(&mut self, id: Id) {
        self.call(id).turn = None;
        self.stop_waiting(id);
        let owner = self.call(id).owner;
        if take(&mut self.call(id).is_sent) {
            let is_reused = self.plants(Planted::NameIsReused);
            let sent = self.sent(owner);
            let is_unsure = sent.is_asked || sent.sending > 0;
            let call = self.call(id);
            call.cleaning = (is_unsure && !is_reused).then_some(owner);
            self.clean_up(owner);
        }
        self.rename(id);
        self.call(id).acquisition.start_over();
    }

    fn rename(&mut self, id: Id) {
        let is_kept = self.plants(Planted::NameIsReused);
        let call = self.call(id);
        call.stored.granted = 0;
        if !is_kept {
            call.names += 1;
            call.owner.name = call.names;
        }
    }

    fn miss(&mut self, id: Id) {
        self.call(id).missed += 1;
        self.stage(id, Stage::Missed);
        self.wake(id);
    }

    fn taken(token: Token, sent: Tick) -> Grant {
        Grant {
            token: fence(token),
            valid_until: Some(at(sent) + less_drift(secs(LEASE))),
            validity: secs(LEASE),
            queued: false,
            handoff: None,
        }
    }

    /// Returns the grant of the turn that the caller has.
    fn take_turn(&mut self, id: Id) -> Option<Grant> {
        let (owner, now) = (id_of(self.call(id).owner), self.moment());
        if self.plants(Planted::TurnIgnoresDeadline) {
            let turn = self.core.turn_of(&NAME, owner);
            return turn.map(|(token, _)| Self::taken(token.get(), self.now));
        }
        self.core.grant_of(&NAME, owner, now)
    }

    /// Leaves the queue over the link, unless the session has sent no request of the caller.
    fn leave_queue(&mut self, id: Id) {
        let (owner, line) = (self.call(id).owner, self.line);
        let sent = self.sent(owner);
        if sent.carried.is_none() {
            self.stop_waiting(id);
            self.call(id).acquisition.on(Event::Unsent);
            return self.end(id);
        }
        (sent.is_asked, sent.carried) = (true, Some(line));
        self.send(Request::Leave(owner), Task::Leave(owner));
        self.stage(id, Stage::Leaving);
    }

    /// Ends a call, and drops its attempt.
    fn end(&mut self, id: Id) {
        let call = self.call(id);
        let is_abandoned = call.is_sent && !call.acquisition.is_settled();
        (call.stage, call.hold, call.woken) = (Stage::Ended, None, None);
        if is_abandoned {
            let owner = call.owner;
            self.clean_up(owner);
        }
    }

    // The clean-up: queue/cleanup.rs

    fn clean_up(&mut self, owner: Owner) {
        self.core.lines.leave_list(self.link, &NAME, id_of(owner));
        self.cleaning.insert(owner, Cleaning::End);
    }

    fn cleaned(&mut self, owner: Owner, place: Option<Place>) {
        self.cleaning.remove(&owner);
        let call = self.call(owner.id);
        if call.cleaning == Some(owner) {
            call.cleaning = None;
            call.stored.place = call.stored.place.or(place);
        }
    }

    /// Takes the next step of a clean-up. Returns false if it has to wait.
    fn clean(&mut self, owner: Owner, state: Cleaning) -> bool {
        let line = Some(self.line);
        match state {
            Cleaning::End if self.is_drained(owner) => {
                let sent = self.sent(owner).clone();
                let turn = self.core.turn_of(&NAME, id_of(owner));
                let turn = turn.filter(|_| !self.plants(Planted::LeaverKeepsTurn));
                match turn {
                    _ if sent.carried.is_none() => self.cleaned(owner, None),
                    Some((token, _)) => {
                        match sent.is_asked {
                            true => drop(self.cleaning.insert(owner, Cleaning::Leave)),
                            false => self.cleaned(owner, None),
                        }
                        self.give_back(token.get());
                    }
                    None => drop(self.cleaning.insert(owner, Cleaning::Leave)),
                }
            }
            Cleaning::Leave if self.up => {
                if self.plants(Planted::NameEndsWithTheLink) && self.sent(owner).carried != line {
                    self.cleaned(owner, None);
                    return true;
                }
                self.cleaning.insert(owner, Cleaning::Sent);
                self.send(Request::Abandon(owner), Task::CleanUp(owner));
            }
            _ => return false,
        }
        true
    }

    // The batches: queue/enqueue.rs

    fn enqueue(&mut self) {
        if self.core.lines.begin_sending(self.link, &NAME) {
            self.sending = Sending::Window;
        }
    }

    fn requeue(&mut self) {
        let unsent = self.core.lines.requeue(self.link, Some(&NAME));
        if !unsent.is_empty() {
            self.enqueue();
        }
    }

    pub(crate) fn send_batch(&mut self) {
        self.sending = Sending::Nothing;
        let lines = &mut self.core.lines;
        let batch = lines.next_batch(self.link, &NAME);
        if batch.is_empty() {
            return;
        }
        if !self.up {
            lines.put_back(self.link, &NAME, &batch);
            return lines.end_sending(self.link, &NAME);
        }
        let (mut asked, mut callers) = (Vec::new(), Vec::new());
        let line = self.line;
        for (number, one) in (0..).zip(batch) {
            let sent = self.sent(one.request);
            if !sent.has_ended {
                sent.sending += 1;
                sent.carried = Some(line);
                let wanted = self.wanted(one.request, one.stored.place, number);
                asked.push((one.request, one.stored));
                callers.push((one.request, wanted));
            }
        }
        if asked.is_empty() {
            return self.send_batch();
        }
        self.sending = Sending::Sent;
        self.send(Request::Queue(callers), Task::Batch(asked));
    }

    fn batch_ended(&mut self, batch: &[(Owner, Stored)]) {
        for (owner, _) in batch {
            self.sent(*owner).sending -= 1;
        }
    }

    fn placed(&mut self, places: impl Iterator<Item = (Owner, Place)>) {
        let places = places.map(|(owner, place)| (id_of(owner), place));
        let places: Vec<_> = places.collect();
        let probe = self.moment() + limits::HEARTBEAT;
        self.core.lines.queued(self.link, &NAME, &places);
        self.core.lines.probe_at(self.link, &NAME, probe);
    }

    // Grants, turns and releases: queue/grants.rs

    fn take_up(&mut self, found: &Found, asked: Option<Tick>) {
        let owners = found.owners.iter();
        let owners: Vec<_> = owners.map(|owner| id_of(*owner).to_string()).collect();
        let lease = LeaseWord(secs(LEASE), found.mode).to_string();
        let first = found.first.to_string();
        let owners = owners.join(" ");
        let grant = match asked {
            Some(asked) => {
                let is_late = self.plants(Planted::AnswerCountsFromArrival);
                let asked = if is_late { self.now } else { asked };
                let text = format!("{first}|{lease}|session|{owners}|words|since");
                GrantSnapshot::parse(&text, found.left * 1000, at(asked))
            }
            None => GrantSnapshot::pushed(&first, &lease, &owners, "session", at(self.after)),
        };
        let (grant, now, is_silent) = (grant.expect("a grant"), self.moment(), self.is_silent());
        let core = &mut self.core;
        let chores = core.take_up(self.link, &NAME, &grant, now, &|_| is_silent);
        if !chores.requeue.is_empty() {
            self.requeue();
        }
        if let Some((token, _)) = chores.give_back
            && !self.plants(Planted::NobodyGivesBack)
        {
            self.give_back(token.get());
        }
        if let Some(token) = chores.dissolve {
            self.dissolve(token.get(), Some(0), Then::Nothing);
        }
    }

    /// Ends the turn with this token: see `release` and `give_back`.
    fn give_back(&mut self, token: Token) {
        match self.core.dissolves(&NAME, fence(token), false) {
            true => self.dissolve(token, Some(0), Then::Release(token)),
            false => self.release_turn(token),
        }
    }

    fn release_turn(&mut self, token: Token) {
        let (now, is_silent) = (self.moment(), self.is_silent());
        let known = self.known(token);
        let passed = self.core.pass(&NAME, token, now, &|_| is_silent);
        let first = match (passed, known) {
            (Passed::Unknown, _) => None,
            (Passed::Ended(first), _) => Some(first),
            (Passed::On, Known::Turn(first)) if self.plants(Planted::FirstReaderReleases) => {
                Some(first)
            }
            (passed, _) => {
                if let Passed::Late(_) = passed {
                    self.requeue();
                }
                return self.core.forget_turn(&NAME, fence(token));
            }
        };
        let request = Request::Release(first.unwrap_or(token));
        self.send_or_wait(request, Task::Release(token, first));
    }

    fn lose_cohort(&mut self, first: Token) {
        if self.core.lose(&NAME, first).is_some() {
            self.requeue();
        }
    }

    fn known(&mut self, token: Token) -> Known {
        self.core.known(&NAME, fence(token))
    }

    /// Without a lease, the member wants more than any lease.
    fn dissolve(&mut self, token: Token, lease: Option<Tick>, then: Then) {
        let (first, more) = (fence(token), lease.map(secs));
        let dissolved = match self.plants(Planted::PassesOnWhileDissolving) {
            true => self.core.clone().dissolve(&NAME, first, more),
            false => self.core.dissolve(&NAME, first, more),
        };
        match dissolved {
            Some(of_core) => self.queue_others(Dissolve {
                token,
                of_core,
                lease: lease.unwrap_or_default(),
                then,
            }),
            None => self.dissolved(then, None),
        }
    }

    fn queue_others(&mut self, dissolve: Dissolve) {
        if !self.up {
            return self.pending.push(Task::Dissolve(dissolve));
        }
        if !matches!(self.known(dissolve.token), Known::Turn(_)) {
            self.requeue(); // the holder has left, and its release lets the others enter
            return self.dissolved(dissolve.then, Some(None));
        }
        let mut others = self
            .core
            .lines
            .places(self.link, &NAME, &dissolve.of_core.others);
        if !self.plants(Planted::DissolveQueuesLeavers) {
            others.retain(|(owner, _)| !self.sent.get(owner).is_some_and(|sent| sent.has_ended));
        }
        if dissolve.lease > 0 {
            let until = self.moment() + secs(dissolve.lease);
            self.core.note_request(&NAME, fence(dissolve.token), until);
        }
        let (first, owner) = (dissolve.of_core.first.get(), dissolve.of_core.owner);
        let request = Request::Dissolve(first, owner_of(owner), dissolve.lease, others);
        self.send(request, Task::Dissolve(dissolve));
    }

    fn others_queued(&mut self, dissolve: Dissolve, queued: usize, until: Option<Moment>) {
        let Some(until) = until else {
            self.lose_cohort(dissolve.of_core.first.get());
            return self.dissolved(dissolve.then, Some(None));
        };
        let (token, now) = (fence(dissolve.token), self.moment());
        self.core.has_queued(&NAME, token);
        let waits = |owner: &&OwnerId| self.core.lines.waits(self.link, &NAME, **owner);
        let waiting = dissolve.of_core.others.iter().filter(waits).count();
        let is_confirmed = self.core.confirm(&NAME, token, until, now);
        if queued < waiting {
            self.requeue();
        }
        self.dissolved(dissolve.then, Some(is_confirmed.then_some(until)));
    }

    /// Continues after a dissolve. Without a result, nobody had to queue again.
    fn dissolved(&mut self, then: Then, result: Option<Option<Moment>>) {
        match (then, result) {
            (Then::Nothing, _) => {}
            (Then::Release(token), _) => self.release_turn(token),
            (Then::Downgrade(token), _) => self.ask_to_read(token),
            (Then::Extend(id), Some(until)) => self.renewed(id, until),
            (Then::Extend(id), None) => self.renew(id, LONGER),
        }
    }

    // Renewals: queue/renew_commands.rs

    pub(crate) fn extend(&mut self, id: Id) {
        if let Some(hold) = self.call(id).hold {
            self.dissolve(hold.token, Some(LONGER), Then::Extend(id));
        }
    }

    /// Lets readers be inside beside a writer: see `downgrade`.
    pub(crate) fn downgrade(&mut self, id: Id) {
        if let Some(hold) = &mut self.call(id).hold {
            hold.is_downgraded = true;
            let token = hold.token;
            match self.plants(Planted::DowngradeKeepsCohort) {
                true => self.ask_to_read(token),
                false => self.dissolve(token, None, Then::Downgrade(token)),
            }
        }
    }

    fn ask_to_read(&mut self, token: Token) {
        self.core.downgrade(&NAME, fence(token));
        let first = match self.known(token) {
            Known::Over => return,
            Known::Turn(first) => first,
            Known::Itself => token,
        };
        self.send_or_wait(Request::Downgrade(first), Task::Downgrade(first));
    }

    fn renew(&mut self, id: Id, lease: Tick) {
        let Some(hold) = self.call(id).hold else {
            return;
        };
        let token = hold.token;
        let first = match self.known(token) {
            Known::Over => return self.renewed(id, None),
            Known::Turn(first) => Some(first),
            Known::Itself => None,
        };
        let until = self.moment() + secs(lease);
        let shared = self
            .core
            .shared(&NAME, fence(token), Extend::To(secs(lease)));
        if first.is_some() {
            self.core.note_request(&NAME, fence(token), until);
        }
        let request = Request::Renew(first.unwrap_or(token), shared.lease().as_secs());
        self.send_or_wait(request, Task::Renew(id, token, first, lease));
    }

    /// Applies the answer to a renewal: the time left, or `None` if the lock is not held.
    fn answer_renewal(
        &mut self,
        (id, token, first): (Id, Token, Option<Token>),
        until: Option<Moment>,
    ) {
        let now = self.moment();
        let is_confirmed = match (first, until) {
            (Some(_), Some(until)) => self.core.confirm(&NAME, fence(token), until, now),
            (Some(first), None) => {
                self.lose_cohort(first);
                false
            }
            (None, _) => true,
        };
        if self.call(id).hold.is_some_and(|hold| hold.token == token) {
            self.renewed(id, until.filter(|_| is_confirmed));
        }
    }

    /// Applies the result of a renewal to the hold: its deadline, or `None` if the lock is not held.
    fn renewed(&mut self, id: Id, until: Option<Moment>) {
        let now = self.moment();
        let Some(hold) = &mut self.call(id).hold else {
            return;
        };
        let Some(until) = until.filter(|until| now < hold.until && now < *until) else {
            return self.lose(id);
        };
        hold.until = hold.until.max(until);
        hold.is_claim = false;
    }

    // The call: acquire/one.rs and lease/hold.rs

    fn begin(&mut self, id: Id, grant: &Grant) {
        let now = self.moment();
        self.call(id).hold = Some(Hold {
            token: grant.token.get(),
            until: grant.valid_until.unwrap_or(now),
            is_claim: grant.validity + Duration::from_millis(1) < secs(LEASE),
            is_downgraded: false,
            offered_until: Some(now + claim_after(self.call(id).missed)),
        });
        if self.is_silent() {
            return self.lose(id);
        }
        self.stage(id, Stage::Offered);
        self.wake(id);
    }

    fn wake(&mut self, id: Id) {
        let now = self.now;
        self.call(id).woken.get_or_insert(now);
        if !self.slow.contains(&id) {
            self.poll(id);
        }
    }

    pub(crate) fn poll(&mut self, id: Id) {
        self.call(id).woken = None;
        let now = self.moment();
        let call = self.calls.get_mut(&id).expect("a call");
        match (call.stage, &mut call.hold) {
            (Stage::Offered, Some(hold)) if now < hold.until => {
                (hold.offered_until, call.stage) = (None, Stage::Inside);
                return self.began.push((id, hold.token));
            }
            (Stage::Offered, Some(_)) => self.release_hold(id),
            (Stage::Missed, _) => {}
            _ => return,
        }
        if self.call(id).wait_until <= self.now {
            return self.end(id);
        }
        if self.call(id).acquisition.is_settled() {
            let call = self.call(id);
            (call.is_sent, call.turn) = (false, None);
            call.acquisition.again();
            self.rename(id);
        }
        self.ask(id);
    }

    fn release_hold(&mut self, id: Id) {
        if let Some(hold) = self.call(id).hold.take() {
            self.give_back(hold.token);
        }
    }

    /// Gives up a lock that is lost, or that the caller has not taken.
    fn lose(&mut self, id: Id) {
        self.release_hold(id);
        match self.call(id).stage {
            Stage::Inside => self.end(id),
            _ => self.miss(id),
        }
    }

    // The events of the world

    pub(crate) fn start(&mut self, id: Id) {
        self.call(id).wait_until = self.now + WAIT;
        self.ask(id);
    }

    /// The body ends, or the caller drops its call.
    pub(crate) fn stop(&mut self, id: Id) {
        let is_done = self.call(id).stage == Stage::Inside;
        if is_done || !self.plants(Planted::LeaverKeepsTurn) {
            self.release_hold(id);
        }
        self.end(id);
    }

    /// The timers of this tick, and the heartbeat.
    pub(crate) fn tick(&mut self) {
        self.ticked = true;
        let (now, tick) = (self.moment(), self.now);
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let call = self.call(id);
            let is_over = call.wait_until <= tick;
            match (call.stage, call.hold) {
                (stage, _) if stage.is_waiting() && is_over => match call.is_sent {
                    true => call.stage = Stage::LastTurn,
                    false => self.end(id),
                },
                (Stage::LastTurn | Stage::Leaving, _) => self.end(id),
                (_, Some(hold)) => {
                    let is_unused = hold.offered_until.is_some_and(|until| until <= now);
                    if hold.until <= now || is_unused {
                        self.lose(id);
                    } else if hold.is_claim {
                        self.renew(id, LEASE);
                    }
                }
                _ => {}
            }
        }
        let chores = self.core.heartbeat_chores(self.link, now);
        if !chores.requeue.is_empty() {
            self.requeue();
        }
        for (_, token, _) in chores.release {
            self.give_back(token.get());
        }
        if self.up {
            let next = now + limits::HEARTBEAT;
            for one in self.core.lines.due(self.link, now, next, 1) {
                self.send(Request::Probe(one.request), Task::Probe(one.stored.granted));
            }
        }
    }

    pub(crate) fn break_link(&mut self) {
        self.up = false;
        let replies = self.messages.drain(..).filter_map(|message| match message {
            Message::Reply(sent, _) => Some(sent),
            Message::Push(_) => None,
        });
        let lost: Vec<_> = replies.chain(self.requests.iter().cloned()).collect();
        self.old = Some(self.requests.drain(..).map(|sent| sent.request).collect());
        for Sent { task, .. } in lost {
            self.broken(task);
        }
    }

    fn broken(&mut self, task: Task) {
        match task {
            Task::Own(owner) if self.is_at(owner, Stage::Asked) => self.on(owner.id, Event::Broken),
            Task::Leave(owner) if self.is_at(owner, Stage::Leaving) => {
                self.stage(owner.id, Stage::LastTurn);
            }
            Task::Batch(batch) => self.sending = Sending::Closing(batch),
            Task::CleanUp(owner) => drop(self.cleaning.insert(owner, Cleaning::Leave)),
            Task::Dissolve(dissolve) if self.plants(Planted::DissolveIsNotRepeated) => {
                self.dissolved(dissolve.then, Some(None));
            }
            Task::Release(..) | Task::Renew(..) | Task::Dissolve(_) | Task::Downgrade(_) => {
                self.pending.push(task);
            }
            Task::Own(_) | Task::Leave(_) | Task::Probe(_) => {}
        }
    }

    pub(crate) fn connect(&mut self) {
        (self.up, self.old, self.after) = (true, None, self.now);
        self.line += 1;
        self.requeue();
        match replace(&mut self.sending, Sending::Window) {
            Sending::Closing(batch) => {
                self.batch_ended(&batch);
                let again = batch.into_iter().map(|(request, stored)| ToSend {
                    owner: id_of(request),
                    request,
                    stored,
                });
                let again: Vec<ToSend<Bare>> = again.collect();
                self.core.lines.put_back(self.link, &NAME, &again);
            }
            sending => self.sending = sending,
        }
        for task in take(&mut self.pending) {
            match task {
                Task::Release(token, first) => {
                    self.send(Request::Release(first.unwrap_or(token)), task);
                }
                Task::Renew(id, token, first, lease) => {
                    let is_over = first.is_some() && self.known(token) == Known::Itself;
                    match self.call(id).hold.filter(|hold| hold.token == token) {
                        Some(_) if is_over => self.renewed(id, None),
                        Some(_) => self.renew(id, lease),
                        None => {}
                    }
                }
                Task::Dissolve(dissolve) => self.queue_others(dissolve),
                Task::Downgrade(first) => self.send(Request::Downgrade(first), task),
                task => panic!("{task:?} does not wait for a link"),
            }
        }
    }

    pub(crate) fn receive(&mut self, message: Message) {
        let (sent, reply) = match message {
            Message::Push(found) => return self.take_up(&found, None),
            Message::Reply(sent, reply) => (sent, reply),
        };
        let (asked, request) = (sent.at, sent.request);
        self.after = self.after.max(asked);
        let until = |left: Tick| at(asked) + less_drift(secs(left));
        match (sent.task, reply) {
            (Task::Own(owner), reply) if self.is_at(owner, Stage::Asked) => {
                self.answered(owner, &reply, asked);
            }
            (Task::Leave(owner), reply) if self.is_at(owner, Stage::Leaving) => {
                self.left(owner, &reply, asked);
            }
            (Task::Own(_) | Task::Leave(_), _) => {} // the acquisition no longer awaits this reply
            (Task::Downgrade(_), _) => {}
            (Task::Batch(batch), Reply::Placed(found, places)) => {
                let owners = batch.iter().map(|(owner, _)| *owner);
                self.placed(owners.zip(places));
                for (_, stored) in batch.iter().filter(|_| found.is_empty()) {
                    if self.core.has_lost(&NAME, stored.granted, at(asked)) {
                        self.core.lose(&NAME, stored.granted);
                    }
                }
                self.batch_ended(&batch);
                for found in found {
                    self.take_up(&found, Some(asked));
                }
                self.send_batch();
            }
            (Task::CleanUp(owner), reply) => {
                let place = match reply {
                    Reply::Out(place) => place,
                    _ => None,
                };
                self.cleaned(owner, place);
                if let Reply::Held(found, _) = reply {
                    self.take_up(&found, Some(asked));
                }
            }
            (Task::Release(token, first), _) => {
                if let Some(first) = first {
                    self.core.forget(&NAME, fence(first));
                }
                self.core.forget_turn(&NAME, fence(token));
            }
            (Task::Renew(id, token, first, _), Reply::Left(left)) => {
                self.answer_renewal((id, token, first), left.map(until));
            }
            (Task::Dissolve(dissolve), Reply::Left(left)) => {
                let queued = match request {
                    Request::Dissolve(_, _, _, others) => others.len(),
                    _ => 0,
                };
                self.others_queued(dissolve, queued, left.map(until));
            }
            (Task::Probe(granted), Reply::Probed(held, is_gone)) => {
                if let Some(found) = held {
                    self.take_up(&found, Some(asked));
                }
                let is_lost = self.core.has_lost(&NAME, granted, at(asked));
                match (is_gone, is_lost) {
                    (true, true) => self.lose_cohort(granted),
                    (true, false) => self.requeue(),
                    (false, _) => {}
                }
            }
            (task, reply) => panic!("{reply:?} answers {task:?}"),
        }
    }

    /// Applies the reply to an acquisition's own request.
    fn answered(&mut self, owner: Owner, reply: &Reply, asked: Tick) {
        let id = owner.id;
        if let Reply::Granted(token) = reply {
            self.stop_waiting(id);
            return self.stage(id, Stage::Ending(*token, asked));
        }
        self.sent(owner).is_asked = false;
        match reply {
            Reply::Held(found, place) => {
                if self.place(id).is_none() {
                    let place = [(id_of(owner), *place)];
                    self.core.lines.queued(self.link, &NAME, &place);
                }
                self.take_up(found, Some(asked));
            }
            Reply::Queued(place) => self.placed([(owner, *place)].into_iter()),
            reply => panic!("{reply:?} answers a caller that waits"),
        }
        self.on(id, Event::Queued);
    }

    /// Applies the reply to an acquisition's request to leave.
    fn left(&mut self, owner: Owner, reply: &Reply, asked: Tick) {
        let id = owner.id;
        self.sent(owner).is_asked = false;
        match reply {
            Reply::Held(found, _) => {
                self.take_up(found, Some(asked));
                match self.take_turn(id) {
                    Some(grant) => self.settle(id, Event::Granted(grant)),
                    None => self.end(id),
                }
            }
            Reply::Out(place) => {
                self.stop_waiting(id);
                if let Some((token, _)) = self.core.turn_of(&NAME, id_of(owner))
                    && let Known::Turn(first) = self.known(token.get())
                {
                    self.lose_cohort(first);
                    self.core.forget_turn(&NAME, token);
                }
                let was_queued = place.is_some();
                self.call(id).acquisition.on(Event::Left { was_queued });
                self.end(id);
            }
            reply => panic!("{reply:?} answers a caller that leaves"),
        }
    }

    /// Continues all tasks that can go on.
    pub(crate) fn advance(&mut self) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for id in self.calls.keys().copied().collect::<Vec<_>>() {
                self.tell();
                goes_on |= self.go_on(id);
            }
            for (owner, state) in self.cleaning.clone() {
                goes_on |= self.clean(owner, state);
            }
        }
        self.sent.retain(|owner, sent| {
            let call = &self.calls[&owner.id];
            let is_used = call.owner == *owner && call.is_sent && call.stage != Stage::Ended;
            is_used || sent.sending > 0 || self.cleaning.contains_key(owner)
        });
    }

    /// Tells the callers whose turn has come.
    fn tell(&mut self) {
        for (owner, told) in self.core.lines.take_outgoing().callers {
            let call = self.call(owner.id);
            if let Some(turn) = call.turn.as_mut().filter(|_| call.owner == owner) {
                *turn |= told == Some(Ended::Turn);
            }
        }
    }

    /// Takes the next step of an acquisition. Returns false if it has to wait.
    fn go_on(&mut self, id: Id) -> bool {
        let up = self.up;
        let call = self.call(id);
        let (owner, stage, is_cleaned) = (call.owner, call.stage, call.cleaning.is_none());
        match stage {
            Stage::Route if up && is_cleaned => self.ask(id),
            Stage::AwaitTurn if call.turn == Some(true) => {
                (call.turn, call.stage) = (None, Stage::Turn);
            }
            Stage::Ending(token, asked) if self.is_drained(owner) => {
                self.sent(owner).is_asked = false;
                self.settle(id, Event::Granted(Self::taken(token, asked)));
            }
            Stage::Turn | Stage::LastTurn if self.is_drained(owner) => {
                match (self.take_turn(id), stage) {
                    (Some(grant), _) => self.settle(id, Event::Granted(grant)),
                    (None, Stage::Turn) => self.on(id, Event::Missed),
                    (None, _) if up => self.leave_queue(id),
                    (None, _) => return false,
                }
            }
            _ => return false,
        }
        true
    }
}
