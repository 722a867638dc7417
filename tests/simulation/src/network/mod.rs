//! The network and its servers: messages with delays, links that hold messages back, connections that break on one side
//! or both, and servers that stop, restart and lose their state.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

pub use self::replication::address_of;
use self::{
    replication::{Following, Replication},
    stream::Stream,
};
use crate::{
    chance::Chance,
    history::History,
    redis::{ConnectionId, Output, Persistence, Redis},
};

mod replication;
pub mod stream;

/// The time that the servers' clocks show at the beginning of a run, in microseconds since the Unix epoch.
const EPOCH: u64 = 1_700_000_000_000_000;

/// The time, in milliseconds, for which the operating system of a host keeps a silent connection (`TCP_USER_TIMEOUT`),
/// and the longest time for which a server keeps one that its client has closed.
const SILENT_FOR: u64 = 10_000;

/// The time, in milliseconds, after which a client has replaced a silent connection on which it has sent a message.
const NOTICED: u64 = 3_500;

/// The number of a host with clients.
pub type HostId = usize;
/// The number of a server.
pub type ServerId = usize;

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From a host to a server.
    Up,
    /// From a server to a host.
    Down,
}

/// How a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// Both sides of the connection notice the break at once. Messages under way are lost.
    Both,
    /// The client notices the break at once, and the server notices it after this time. Messages that the client sent
    /// before the break can still arrive.
    ClientSees(Duration),
}

/// An event on the network, which happens at a scheduled time.
#[derive(Debug)]
enum Event {
    Up(u64, Vec<u8>),
    Down(u64, Vec<u8>),
    /// The server notices that the client is gone.
    ServerSees(u64),
    /// The client notices that the server has closed the connection.
    ClientSees(u64),
    /// A message between a primary and a replica arrives.
    Replication(Replication),
    /// The time limit of a `WAIT` command on this server has passed.
    Timer(ServerId),
    /// A message that a client has published on another node of the cluster arrives.
    Published {
        to: ServerId,
        channel: Vec<u8>,
        message: Vec<u8>,
    },
}

/// The link between a host and a server.
#[derive(Debug, Clone, Default)]
struct Link {
    /// The longest delay of a message, in milliseconds.
    delay: u64,
    held_up: bool,
    held_down: bool,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    host: HostId,
    server: ServerId,
    /// The connection's ID on the server; `None` once the connection has ended for the server.
    id: Option<ConnectionId>,
    /// The arrival time of the newest message in each direction. A later message does not arrive before this time.
    last: [u64; 2],
    /// The messages that the link holds back in each direction.
    held: [VecDeque<Vec<u8>>; 2],
    /// The bytes that have arrived at the client and that the client has not read yet.
    inbox: VecDeque<u8>,
    reader: Option<Waker>,
    /// Whether the connection has ended for the client.
    ended: bool,
    /// Set if all messages of the connection are lost, and neither side notices.
    silence: Option<Silence>,
}

impl Connection {
    /// Returns whether neither side has ended the connection. A client closes a connection that it has replaced.
    fn is_open(&self) -> bool {
        !self.ended && self.id.is_some()
    }
}

/// The silence of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Silence {
    /// The time at which the client first sent a message that was lost.
    used: Option<u64>,
}

/// A server, and the machine that it runs on.
#[derive(Debug)]
struct Server {
    redis: Redis,
    connections: BTreeMap<ConnectionId, u64>,
    /// How far the server's clock was set ahead, in microseconds. The value is negative if the clock was set back.
    set: i64,
    /// The latest time that the server has read from its clock.
    told: u64,
    is_down: bool,
    /// The events that have arrived while the server is stopped; `None` while it runs.
    backlog: Option<VecDeque<Event>>,
    restarts: u64,
    /// The primary that the server follows, if it is a replica.
    follows: Option<Following>,
    /// The time for which the server's next [`Event::Timer`] is planned.
    timer: Option<u64>,
}

struct State {
    chance: Chance,
    history: History,
    servers: Vec<Server>,
    links: Vec<Vec<Link>>,
    /// For each host, by its number, whether the host has crashed.
    dead: Vec<bool>,
    connections: BTreeMap<u64, Connection>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Event>,
    next: u64,
    /// The longest delay of a message between a primary and a replica, in milliseconds.
    lag: u64,
    /// The number of connections between primaries and replicas so far.
    generations: u64,
    /// Whether the nodes of the cluster lose the messages that they send to each other.
    loses_messages: bool,
    /// The arrival time of the newest message from one node of the cluster to another.
    spread: BTreeMap<(ServerId, ServerId), u64>,
}

/// Whether servers belong to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// No server belongs to a cluster. A server can have replicas.
    None,
    /// All servers are nodes of one cluster.
    Cluster,
}

/// The number of servers of each kind, and the delays of messages.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The number of servers that store data. These servers have the lowest server numbers.
    pub stores: usize,
    /// Whether the servers that store data belong to a cluster.
    pub membership: Membership,
    /// The number of Sentinels.
    pub sentinels: usize,
    /// The name of the group that the Sentinels watch.
    pub group: &'static str,
    /// The number of hosts with clients.
    pub hosts: usize,
    /// The longest delay of a message between a host and a server, in milliseconds.
    pub delay: u64,
    /// The longest delay of a message between a primary and a replica, in milliseconds.
    pub lag: u64,
}

/// The network. All clones share one network.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    /// Notified when a new event can be due before all other events.
    earlier: Arc<Notify>,
    /// Notified when a link or a server has changed.
    changed: Arc<Notify>,
    began: Instant,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// Creates servers and hosts.
    #[must_use]
    pub fn new(layout: &Layout, chance: Chance, history: History) -> Self {
        let &Layout {
            stores,
            membership,
            sentinels,
            group,
            hosts,
            delay,
            lag,
        } = layout;
        let servers = stores + sentinels;
        let server = |number| Server {
            redis: match membership {
                _ if number >= stores => Redis::sentinel(run_id(number, 0), group),
                Membership::None => Redis::new(run_id(number, 0)),
                Membership::Cluster => Redis::node(run_id(number, 0), address_of(number)),
            },
            connections: BTreeMap::new(),
            set: 0,
            told: 0,
            is_down: false,
            backlog: None,
            restarts: 0,
            follows: None,
            timer: None,
        };
        let link = Link {
            delay,
            ..Link::default()
        };
        Self {
            state: Arc::new(Mutex::new(State {
                chance,
                history,
                servers: (0..servers).map(server).collect(),
                links: vec![vec![link; servers]; hosts],
                dead: vec![false; hosts],
                connections: BTreeMap::new(),
                events: BinaryHeap::new(),
                pending: BTreeMap::new(),
                next: 0,
                lag,
                generations: 0,
                loses_messages: false,
                spread: BTreeMap::new(),
            })),
            earlier: Arc::new(Notify::new()),
            changed: Arc::new(Notify::new()),
            began: Instant::now(),
        }
    }

    /// Returns the instant at which the run began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Carries out each event when it is due, for as long as this future is polled.
    pub async fn run(self) {
        loop {
            let next = self.deliver();
            let earlier = self.earlier.notified();
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = earlier => {}
                    () = sleep_until(self.began + Duration::from_millis(at)) => {}
                },
                None => earlier.await,
            }
        }
    }

    /// Carries out the events that are due. Returns the time at which the next event is due, or
    /// `None` if no event is scheduled.
    fn deliver(&self) -> Option<u64> {
        loop {
            let now = self.now();
            let mut state = self.state();
            let Reverse((at, number)) = *state.events.peek()?;
            if at > now {
                return Some(at);
            }
            state.events.pop();
            if let Some(event) = state.pending.remove(&number) {
                state.happen(event, now);
            }
        }
    }

    /// Connects a host to a server.
    ///
    /// # Errors
    /// If the server is down.
    pub async fn connect(&self, host: HostId, server: ServerId) -> io::Result<Stream> {
        loop {
            let changed = self.changed.notified();
            let delay = {
                let state = self.state();
                let link = &state.links[host][server];
                let reaches = !link.held_up && !link.held_down && !state.dead[host];
                reaches.then(|| state.delay(host, server))
            };
            match delay {
                None => changed.await,
                Some(0) => break,
                Some(delay) => {
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                    break;
                }
            }
        }
        let mut state = self.state();
        if state.servers[server].is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let number = state.connect(host, server);
        drop(state);
        Ok(Stream::new(self.clone(), number))
    }

    /// Breaks every connection between a host and a server.
    pub fn break_connections(&self, host: HostId, server: ServerId, how: Break) {
        let now = self.now();
        let mut state = self.state();
        let broken: Vec<u64> = state
            .connections
            .iter()
            .filter(|(_, connection)| connection.host == host && connection.server == server)
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            state.break_connection(number, how, now);
        }
        drop(state);
        self.earlier.notify_one();
    }

    /// Loses all further messages of the connections between a host and a server. New connections are not affected.
    /// The host's operating system ends the silent connections some time later.
    pub fn fall_silent(&self, host: HostId, server: ServerId) {
        let now = self.now();
        let mut state = self.state();
        let mut fallen = Vec::new();
        for (number, connection) in &mut state.connections {
            if connection.host == host
                && connection.server == server
                && connection.silence.is_none()
            {
                connection.silence = Some(Silence::default());
                connection.held = Default::default();
                fallen.push(*number);
            }
        }
        for number in fallen {
            let end = now + state.chance.among(SILENT_FOR..SILENT_FOR * 3 / 2);
            state.at(end, Event::ClientSees(number));
        }
        drop(state);
        self.earlier.notify_one();
    }

    /// Returns whether a connection is silent, and its client has sent no message on it yet, or not for long enough to
    /// notice the silence.
    #[must_use]
    pub fn has_unnoticed_silence(&self) -> bool {
        let now = self.now();
        let state = self.state();
        state.connections.values().any(|connection| {
            let is_unnoticed = |silence: Silence| silence.used.is_none_or(|at| now < at + NOTICED);
            // The client does not learn that the server has closed a silent connection.
            !connection.ended
                && !state.dead[connection.host]
                && connection.silence.is_some_and(is_unnoticed)
        })
    }

    /// Returns a host and a server whose connection is silent, although the host has had the time to notice the silence
    /// and to replace the connection.
    #[must_use]
    pub fn endured_silence(&self) -> Option<(HostId, ServerId)> {
        let now = self.now();
        let state = self.state();
        let connection = state.connections.values().find(|connection| {
            let is_endured = |silence: Silence| silence.used.is_some_and(|at| at + NOTICED < now);
            connection.is_open()
                && !state.dead[connection.host]
                && connection.silence.is_some_and(is_endured)
        })?;
        Some((connection.host, connection.server))
    }

    /// Returns the host of a session that listens at this server.
    #[must_use]
    pub fn host_of(&self, server: ServerId, session: &str) -> Option<HostId> {
        let state = self.state();
        let server = &state.servers[server];
        let number = server.connections.get(&server.redis.listener(session)?)?;
        Some(state.connections.get(number)?.host)
    }

    /// Holds back the messages in this direction if `held` is set, and lets them pass otherwise.
    pub fn hold(&self, host: HostId, server: ServerId, way: Way, held: bool) {
        let now = self.now();
        let mut state = self.state();
        let link = &mut state.links[host][server];
        match way {
            Way::Up => link.held_up = held,
            Way::Down => link.held_down = held,
        }
        if !held {
            state.let_go(host, server, way, now);
        }
        drop(state);
        self.earlier.notify_one();
        self.changed.notify_waiters();
    }

    /// Crashes a host. Messages that the host has sent can still arrive, and the servers notice the crash later.
    pub fn crash(&self, host: HostId) {
        let now = self.now();
        let mut state = self.state();
        state.dead[host] = true;
        let numbers: Vec<u64> = state
            .connections
            .iter()
            .filter(|(_, connection)| connection.host == host)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            // The client has crashed with its host, so only the server has to notice that the connection has ended.
            let later = now + state.chance.among(0..2_000);
            state.at(later, Event::ServerSees(number));
            if let Some(connection) = state.connections.get_mut(&number) {
                connection.inbox.clear();
                connection.reader = None;
            }
        }
        drop(state);
        self.earlier.notify_one();
    }

    /// Stops a server. When the server continues, it reads the messages that have arrived meanwhile.
    pub fn stop(&self, server: ServerId) {
        self.state().servers[server]
            .backlog
            .get_or_insert_with(VecDeque::new);
    }

    /// Lets a stopped server continue.
    pub fn go_on(&self, server: ServerId) {
        let now = self.now();
        let mut state = self.state();
        let backlog = state.servers[server].backlog.take();
        for event in backlog.into_iter().flatten() {
            state.happen(event, now);
        }
        state.replicate(server, now);
        drop(state);
        self.earlier.notify_one();
    }

    /// Shuts a server down. `persistence` says which data the server keeps.
    pub fn end(&self, server: ServerId, persistence: Persistence) {
        let now = self.now();
        let mut state = self.state();
        let time = state.time(server);
        let this = &mut state.servers[server];
        this.restarts += 1;
        this.is_down = true;
        this.backlog = None;
        let run_id = run_id(server, this.restarts);
        this.timer = None;
        if let Some(following) = &mut this.follows {
            following.forget();
        }
        let outputs = this.redis.restart(run_id, persistence, time);
        state.put_out(server, outputs, now);
        state.reconnect(server, now);
        drop(state);
        self.earlier.notify_one();
    }

    /// Lets clients connect to a server again.
    pub fn begin(&self, server: ServerId) {
        let now = self.now();
        let mut state = self.state();
        state.servers[server].is_down = false;
        state.reconnect(server, now);
        drop(state);
        self.earlier.notify_one();
        self.changed.notify_waiters();
    }

    /// Sets a server's clock ahead or back.
    pub fn set_clock(&self, server: ServerId, by_micros: i64) {
        let mut state = self.state();
        let this = &mut state.servers[server];
        this.set += by_micros;
        this.told = 0;
    }

    /// Reads from a server, and changes nothing. `reads` gets the server, and the time of the server's clock in ms.
    pub fn peek<T>(&self, server: ServerId, reads: impl FnOnce(&Redis, i64) -> T) -> T {
        let state = self.state();
        reads(&state.servers[server].redis, millis(state.clock(server)))
    }

    /// Calls `does` with a server and the server's time. No message is sent over the network.
    pub fn at_server<T>(&self, server: ServerId, does: impl FnOnce(&mut Redis, u64) -> T) -> T {
        let now = self.now();
        let mut state = self.state();
        let time = state.time(server);
        let done = does(&mut state.servers[server].redis, time);
        state.replicate(server, now);
        drop(state);
        self.earlier.notify_one();
        done
    }

    /// Sends bytes from a client to its server.
    fn send(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let now = self.now();
        let mut state = self.state();
        let is_first = state.send(number, Way::Up, bytes.to_vec(), now)?;
        drop(state);
        if is_first {
            self.earlier.notify_one();
        }
        Ok(())
    }

    /// Closes a connection whose client end was shut down or dropped.
    fn close(&self, number: u64) {
        let now = self.now();
        let mut state = self.state();
        if let Some(connection) = state.connections.get_mut(&number) {
            connection.ended = true;
            let (host, is_silent) = (connection.host, connection.silence.is_some());
            if !state.dead[host] {
                // The server does not learn that a silent connection was closed, but drops the connection some time
                // later.
                let silence = match is_silent {
                    true => state.chance.among(0..SILENT_FOR),
                    false => 0,
                };
                let after = state.connections[&number].last[0].max(now + silence);
                state.at(after, Event::ServerSees(number));
            }
        }
        drop(state);
        self.earlier.notify_one();
    }
}

fn millis(micros: u64) -> i64 {
    i64::try_from(micros / 1000).unwrap_or(i64::MAX)
}

fn run_id(server: usize, restarts: u64) -> String {
    format!("{server:020x}{restarts:020x}")
}

impl State {
    /// Returns the time of a server in microseconds. Each call returns a later time than the previous call, as each
    /// command does on a real server, unless the clock was set back in between.
    fn time(&mut self, server: ServerId) -> u64 {
        let told = self.servers[server].told;
        let time = self.clock(server).max(told + 1);
        self.servers[server].told = time;
        time
    }

    /// Returns the time of a server in microseconds, and lets no time pass. Thousands of messages between servers can
    /// arrive in one millisecond, and must not put the server's clock ahead of the others.
    fn clock(&self, server: ServerId) -> u64 {
        let elapsed = self.history.now() * 1000;
        let this = &self.servers[server];
        let time = (EPOCH + elapsed).saturating_add_signed(this.set);
        time.max(this.told)
    }

    fn delay(&self, host: HostId, server: ServerId) -> u64 {
        let longest = self.links[host][server].delay;
        if longest == 0 || self.chance.percent(60) {
            0
        } else {
            self.chance.among(0..longest + 1)
        }
    }

    fn at(&mut self, at: u64, event: Event) -> bool {
        let number = self.next;
        self.next += 1;
        let is_first = self
            .events
            .peek()
            .is_none_or(|Reverse((first, _))| at < *first);
        self.events.push(Reverse((at, number)));
        self.pending.insert(number, event);
        is_first
    }

    fn connect(&mut self, host: HostId, server: ServerId) -> u64 {
        let number = self.next;
        self.next += 1;
        let this = &mut self.servers[server];
        let id = this.redis.connect();
        this.connections.insert(id, number);
        self.history.add(
            || format!("host {host}"),
            || format!("connects to server {server}, connection {}", id.0),
        );
        let connection = Connection {
            host,
            server,
            id: Some(id),
            last: [0; 2],
            held: [VecDeque::new(), VecDeque::new()],
            inbox: VecDeque::new(),
            reader: None,
            ended: false,
            silence: None,
        };
        self.connections.insert(number, connection);
        number
    }

    /// Sends a message in this direction. Returns whether the arrival of the message is the next event.
    fn send(&mut self, number: u64, way: Way, bytes: Vec<u8>, now: u64) -> io::Result<bool> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (host, server) = (connection.host, connection.server);
        if self.dead[host] {
            return Ok(false); // the host has crashed
        }
        if let Some(silence) = &mut connection.silence
            && !connection.ended
        {
            if way == Way::Up {
                silence.used.get_or_insert(now);
            }
            return Ok(false); // the message is lost
        }
        if way == Way::Up && connection.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let link = &self.links[host][server];
        let held = match way {
            Way::Up => link.held_up,
            Way::Down => link.held_down,
        };
        let delay = self.delay(host, server);
        let connection = self
            .connections
            .get_mut(&number)
            .expect("the connection exists");
        let side = way as usize;
        if held || !connection.held[side].is_empty() {
            connection.held[side].push_back(bytes);
            return Ok(false);
        }
        let at = connection.last[side].max(now + delay);
        connection.last[side] = at;
        let event = match way {
            Way::Up => Event::Up(number, bytes),
            Way::Down => Event::Down(number, bytes),
        };
        Ok(self.at(at, event))
    }

    /// Sends the messages that were held back in this direction.
    fn let_go(&mut self, host: HostId, server: ServerId, way: Way, now: u64) {
        let side = way as usize;
        let of_link: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.host == host && connection.server == server)
            .map(|(number, _)| *number)
            .collect();
        for number in of_link {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            for bytes in std::mem::take(&mut connection.held[side]) {
                let _ = self.send(number, way, bytes, now);
            }
        }
    }

    fn happen(&mut self, event: Event, now: u64) {
        let number = match event {
            Event::Up(number, _) | Event::Down(number, _) => number,
            Event::ServerSees(number) | Event::ClientSees(number) => number,
            Event::Replication(message) => return self.deliver_data(message, now),
            Event::Timer(server) => return self.wake(server, now),
            Event::Published {
                to,
                channel,
                message,
            } => return self.hear(to, channel, message, now),
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let server = connection.server;
        match event {
            Event::Up(_, bytes) => {
                let Some(id) = connection.id else {
                    return;
                };
                let host = connection.host;
                if let Some(backlog) = &mut self.servers[server].backlog {
                    return backlog.push_back(Event::Up(number, bytes));
                }
                self.history.add(
                    || format!("server {server}"),
                    || format!("reads from host {host} on {}: {}", id.0, text(&bytes)),
                );
                let time = self.time(server);
                let outputs = self.servers[server].redis.receive(id, &bytes, time);
                self.put_out(server, outputs, now);
                self.replicate(server, now);
            }
            Event::Down(_, bytes) => {
                if connection.ended {
                    return;
                }
                let host = connection.host;
                self.history.add(
                    || format!("host {host}"),
                    || format!("reads from server {server}: {}", text(&bytes)),
                );
                connection.inbox.extend(bytes);
                if let Some(reader) = connection.reader.take() {
                    reader.wake();
                }
            }
            Event::ServerSees(_) => {
                if let Some(backlog) = &mut self.servers[server].backlog {
                    return backlog.push_back(event);
                }
                if let Some(id) = connection.id.take() {
                    let this = &mut self.servers[server];
                    this.connections.remove(&id);
                    this.redis.disconnect(id);
                }
                self.forget_ended(number);
            }
            Event::ClientSees(_) => self.end_for_client(number),
            Event::Replication(_) | Event::Timer(_) | Event::Published { .. } => {}
        }
    }

    fn end_for_client(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let (host, server) = (connection.host, connection.server);
        if !std::mem::replace(&mut connection.ended, true) {
            self.history.add(
                || format!("host {host}"),
                || format!("sees the end of its connection to server {server}"),
            );
        }
        if let Some(reader) = connection.reader.take() {
            reader.wake();
        }
        self.forget_ended(number);
    }

    fn forget_ended(&mut self, number: u64) {
        let connection = self.connections.get(&number);
        if connection.is_some_and(|connection| connection.ended && connection.id.is_none()) {
            self.connections.remove(&number);
        }
    }

    fn put_out(&mut self, server: ServerId, outputs: Vec<Output>, now: u64) {
        for output in outputs {
            match output {
                Output::Bytes(id, bytes) => {
                    if let Some(number) = self.servers[server].connections.get(&id).copied() {
                        let _ = self.send(number, Way::Down, bytes, now);
                    }
                }
                Output::Closed(id) => {
                    let Some(number) = self.servers[server].connections.remove(&id) else {
                        continue;
                    };
                    let Some(connection) = self.connections.get_mut(&number) else {
                        continue;
                    };
                    connection.id = None;
                    if connection.silence.is_some() {
                        self.forget_ended(number);
                        continue;
                    }
                    let after = connection.last[1].max(now);
                    self.at(after, Event::ClientSees(number));
                }
            }
        }
    }

    fn break_connection(&mut self, number: u64, how: Break, now: u64) {
        match how {
            Break::Both => {
                let Some(connection) = self.connections.get_mut(&number) else {
                    return;
                };
                let server = connection.server;
                if let Some(id) = connection.id.take() {
                    let this = &mut self.servers[server];
                    this.connections.remove(&id);
                    this.redis.disconnect(id);
                }
            }
            Break::ClientSees(later) => {
                let later = now + u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
                self.at(later, Event::ServerSees(number));
            }
        }
        self.end_for_client(number);
    }
}

/// Returns the text of a message on one line, shortened to 400 characters.
fn text(bytes: &[u8]) -> String {
    let words = bytes.split(|byte| *byte < b' ');
    let words = words.filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let text = words.join(" ");
    match text.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
