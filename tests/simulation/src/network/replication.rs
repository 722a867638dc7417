//! How the network carries data from primaries to their replicas. Each message to a replica contains all data that the
//! primary has when it sends the message. A replica therefore always has the state that its primary had at some earlier
//! time.

use std::sync::Arc;

use super::{Event, Network, ServerId, State, millis};
use crate::redis::{Address, DataSet};

/// The primary of a replica, and the messages between the replica and this primary.
#[derive(Debug)]
pub(super) struct Following {
    primary: ServerId,
    /// The number of the connection to the primary, which rises whenever the server begins to follow another server, or
    /// connects again. Messages of earlier connections have no effect.
    generation: u64,
    /// The arrival time of the newest message to the replica, and of the newest acknowledgement.
    last: [u64; 2],
    /// Whether the replica is cut off from its primary.
    is_cut: bool,
    /// Whether the replica has received data since it began to follow this primary.
    is_synced: bool,
    /// The offset of the newest message; `None` if nothing was sent over this connection.
    sent: Option<u64>,
}

impl Following {
    /// Records that the replica has restarted, so that it needs the data again.
    pub(super) fn forget(&mut self) {
        self.is_synced = false;
    }
}

/// A message between a primary and a replica.
#[derive(Debug)]
pub(super) enum Replication {
    /// The data of the primary, for the replica `to`.
    Data {
        to: ServerId,
        generation: u64,
        offset: u64,
        data: Arc<DataSet>,
    },
    /// The replica `by` has received all writes up to `offset`.
    Acknowledged {
        by: ServerId,
        generation: u64,
        offset: u64,
    },
}

/// Returns the address of a server.
#[must_use]
pub fn address_of(server: ServerId) -> Address {
    Address {
        host: format!("server-{server}"),
        port: 6379,
    }
}

impl Network {
    /// Makes a server a replica of another one, or a primary. If `kills` is set, also closes all connections of clients
    /// to this server, as Sentinels do.
    pub fn follow(&self, server: ServerId, primary: Option<ServerId>, kills: bool) {
        let now = self.now();
        let mut state = self.state();
        let before = state.servers[server].follows.take();
        if let Some(before) = &before {
            let old = &mut state.servers[before.primary].redis;
            old.forget_follower(&address_of(server));
        }
        state.history.add(
            || format!("server {server}"),
            || match primary {
                Some(primary) => format!("follows server {primary}"),
                None => "is a primary".to_owned(),
            },
        );
        let redis = &mut state.servers[server].redis;
        let mut outputs = redis.follow(primary.map(address_of));
        if kills {
            outputs.extend(redis.close_all());
        }
        state.put_out(server, outputs, now);
        state.generations += 1;
        let generation = state.generations;
        if let Some(primary) = primary {
            state.servers[server].follows = Some(Following {
                primary,
                generation,
                last: [now; 2],
                is_cut: false,
                is_synced: false,
                sent: None,
            });
            state.replicate_to(server, now);
        }
        drop(state);
        self.earlier.notify_one();
    }

    /// Cuts a replica off from its primary if `is_cut` is set, and connects the replica again otherwise.
    pub fn cut_off(&self, replica: ServerId, is_cut: bool) {
        let now = self.now();
        let mut state = self.state();
        if let Some(following) = &mut state.servers[replica].follows {
            following.is_cut = is_cut;
        }
        state.replicate_to(replica, now);
        drop(state);
        self.earlier.notify_one();
    }

    /// Makes the nodes of the cluster lose the messages that clients publish, except on the node on which they are
    /// published.
    pub fn lose_messages(&self, loses: bool) {
        self.state().loses_messages = loses;
    }

    /// Returns the number of writes that this server has received from its primary. `None` if the server is a primary,
    /// is down, or has received nothing since it began to follow its primary.
    #[must_use]
    pub fn received(&self, replica: ServerId) -> Option<u64> {
        let state = self.state();
        let server = &state.servers[replica];
        let following = server.follows.as_ref()?;
        (following.is_synced && !server.is_down).then(|| server.redis.offset())
    }

    /// Returns whether a server is down.
    #[must_use]
    pub fn is_down(&self, server: ServerId) -> bool {
        self.state().servers[server].is_down
    }

    /// Makes a Sentinel name this server as the primary, and tell its subscribers.
    pub fn name_primary(&self, sentinel: ServerId, primary: ServerId) {
        let now = self.now();
        let mut state = self.state();
        let time = state.time(sentinel);
        let redis = &mut state.servers[sentinel].redis;
        let outputs = redis.name_primary(address_of(primary), time);
        state.put_out(sentinel, outputs, now);
        drop(state);
        self.earlier.notify_one();
    }
}

impl State {
    /// Sends the newest data of a server to its replicas, and schedules the end of its `WAIT` commands.
    pub(super) fn replicate(&mut self, server: ServerId, now: u64) {
        self.spread_messages(server, now);
        for replica in 0..self.servers.len() {
            let follows = self.servers[replica].follows.as_ref();
            if follows.is_some_and(|following| following.primary == server) {
                self.replicate_to(replica, now);
            }
        }
        self.set_timer(server, now);
    }

    /// Sends the newest data of the primary to a replica that lacks this data. Sends nothing while the primary or the
    /// replica is down, while the primary is stopped, or while the replica is cut off from the primary.
    pub(super) fn replicate_to(&mut self, replica: ServerId, now: u64) {
        let Some(following) = &self.servers[replica].follows else {
            return;
        };
        let primary = &self.servers[following.primary];
        let offset = primary.redis.offset();
        let is_apart = following.is_cut
            || primary.is_down
            || primary.backlog.is_some()
            || self.servers[replica].is_down;
        if is_apart || following.sent == Some(offset) {
            return;
        }
        let from = following.primary;
        let data = Arc::new(self.servers[from].redis.snapshot());
        let lag = self.lag();
        let Some(following) = &mut self.servers[replica].follows else {
            return;
        };
        following.sent = Some(offset);
        let at = following.last[0].max(now + lag);
        following.last[0] = at;
        let message = Replication::Data {
            to: replica,
            generation: following.generation,
            offset,
            data,
        };
        self.at(at, Event::Replication(message));
    }

    fn lag(&self) -> u64 {
        if self.lag == 0 || self.chance.percent(50) {
            0
        } else {
            self.chance.among(0..self.lag + 1)
        }
    }

    /// Begins new connections between a server that has restarted and its primary or its replicas.
    pub(super) fn reconnect(&mut self, server: ServerId, now: u64) {
        for replica in 0..self.servers.len() {
            self.generations += 1;
            let generation = self.generations;
            let Some(following) = &mut self.servers[replica].follows else {
                continue;
            };
            if following.primary == server || replica == server {
                following.generation = generation;
                following.sent = None;
                self.replicate_to(replica, now);
            }
        }
    }

    /// Delivers a message between a primary and a replica.
    pub(super) fn deliver_data(&mut self, message: Replication, now: u64) {
        let (replica, generation) = match &message {
            Replication::Data { to, generation, .. } => (*to, *generation),
            Replication::Acknowledged { by, generation, .. } => (*by, *generation),
        };
        let Some(following) = &self.servers[replica].follows else {
            return;
        };
        if following.generation != generation {
            return;
        }
        let is_cut = following.is_cut;
        let receiver = match &message {
            Replication::Data { .. } => replica,
            Replication::Acknowledged { .. } => following.primary,
        };
        if let Some(backlog) = &mut self.servers[receiver].backlog {
            return backlog.push_back(Event::Replication(message));
        }
        match message {
            Replication::Data { offset, data, .. } => {
                let lag = self.lag();
                let server = &mut self.servers[replica];
                if server.is_down {
                    return;
                }
                server.redis.replicate(Arc::unwrap_or_clone(data), offset);
                let Some(following) = &mut server.follows else {
                    return;
                };
                following.is_synced = true;
                if is_cut {
                    return;
                }
                let at = following.last[1].max(now + lag);
                following.last[1] = at;
                let message = Replication::Acknowledged {
                    by: replica,
                    generation,
                    offset,
                };
                self.at(at, Event::Replication(message));
            }
            Replication::Acknowledged { offset, .. } => {
                if is_cut || self.servers[receiver].is_down {
                    return;
                }
                let time = self.clock(receiver);
                let redis = &mut self.servers[receiver].redis;
                let outputs = redis.acknowledge(address_of(replica), offset, time);
                self.put_out(receiver, outputs, now);
                self.replicate(receiver, now);
            }
        }
    }

    /// Passes messages on to the other nodes of the cluster: the messages that clients have published on this node.
    fn spread_messages(&mut self, server: ServerId, now: u64) {
        for (channel, message) in self.servers[server].redis.take_bus() {
            for to in 0..self.servers.len() {
                if to != server && !self.loses_messages {
                    // Two nodes send each other messages over one connection, which keeps their order.
                    let before = self.spread.get(&(server, to)).copied().unwrap_or_default();
                    let at = before.max(now + self.lag());
                    self.spread.insert((server, to), at);
                    let event = Event::Published {
                        to,
                        channel: channel.clone(),
                        message: message.clone(),
                    };
                    self.at(at, event);
                }
            }
        }
    }

    /// Delivers a message that a client has published on another node.
    pub(super) fn hear(&mut self, to: ServerId, channel: Vec<u8>, message: Vec<u8>, now: u64) {
        if let Some(backlog) = &mut self.servers[to].backlog {
            return backlog.push_back(Event::Published {
                to,
                channel,
                message,
            });
        }
        let time = self.clock(to);
        let outputs = self.servers[to].redis.hear(&channel, &message, time);
        self.put_out(to, outputs, now);
    }

    /// Schedules an event for the moment at which the time limit of the server's next `WAIT` command passes.
    fn set_timer(&mut self, server: ServerId, now: u64) {
        let Some(due) = self.servers[server].redis.due() else {
            return;
        };
        let time = self.clock(server);
        let at = now + due.saturating_sub(time).div_ceil(1000);
        let planned = self.servers[server].timer;
        if planned.is_none_or(|planned| planned <= now || planned > at) {
            self.servers[server].timer = Some(at);
            self.at(at, Event::Timer(server));
        }
    }

    /// Ends those `WAIT` commands of a server whose time limit has passed. Does nothing if another event has replaced
    /// this one: otherwise both would plan the next event.
    pub(super) fn wake(&mut self, server: ServerId, now: u64) {
        if let Some(backlog) = &mut self.servers[server].backlog {
            return backlog.push_back(Event::Timer(server));
        }
        let planned = self.servers[server].timer;
        if planned.is_none_or(|planned| planned > now) {
            return;
        }
        self.servers[server].timer = None;
        let time = self.time(server);
        let outputs = self.servers[server].redis.wake(time);
        self.put_out(server, outputs, now);
        self.replicate(server, now);
    }

    /// Converts a time of a server's clock, in ms, to the simulated time of the world, in ms.
    fn in_world(&self, server: ServerId, ms: i64) -> u64 {
        let time = millis(self.clock(server));
        self.history.now().saturating_add_signed(ms - time)
    }
}

impl Network {
    /// Converts a time of a server's clock, in ms, to the simulated time of the world, in ms.
    #[must_use]
    pub fn in_world(&self, server: ServerId, ms: i64) -> u64 {
        self.state().in_world(server, ms)
    }
}
