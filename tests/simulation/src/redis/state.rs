//! The server's state. This module also parses the bytes of a connection, and writes the replies.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use super::{
    Address, ConnectionId, Mode, Output,
    cluster::Node,
    commands::{self, Answer, Caller, Command, find, unknown_command, wrong_number},
    data::{DataSet, Fault},
    resp::{Parsed, Reply, parse},
};

pub(crate) const OUT_OF_MEMORY: Fault =
    Fault::Borrowed("OOM command not allowed when used memory > 'maxmemory'.");
pub(crate) const READ_ONLY: Fault =
    Fault::Borrowed("READONLY You can't write against a read only replica.");
const LOADING: Fault = Fault::Borrowed("LOADING Redis is loading the dataset in memory");

/// A script's hash in hexadecimal digits.
pub(crate) type Hash = [u8; 40];

/// Whether a server is a primary or a replica.
#[derive(Debug, Clone, Default)]
pub(crate) enum Role {
    #[default]
    Primary,
    Replica {
        of: Address,
    },
}

/// The role of a server.
#[derive(Debug, Clone, Default)]
pub(crate) enum Kind {
    /// The server stores data, and belongs to no cluster.
    #[default]
    Store,
    Sentinel(Sentinel),
    /// The server is a node of a cluster.
    Node(Node),
}

impl Kind {
    /// Returns the mode that the server reports.
    pub(crate) fn mode(&self) -> &'static str {
        match self {
            Self::Store => "standalone",
            Self::Sentinel(_) => "sentinel",
            Self::Node(_) => "cluster",
        }
    }
}

/// What a Sentinel knows.
#[derive(Debug, Clone)]
pub(crate) struct Sentinel {
    pub(crate) group: String,
    /// The primary of the group.
    pub(crate) primary: Option<Address>,
}

/// A connection that waits for replicas.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) id: ConnectionId,
    /// The number of replicas that have to acknowledge the writes up to `offset`.
    pub(crate) wanted: usize,
    /// The offset of the writes that the replicas have to acknowledge.
    pub(crate) offset: u64,
    /// The time, in µs, at which the wait ends; `None` if the wait has no time limit.
    pub(crate) until: Option<u64>,
}

/// The state of one server.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) run_id: String,
    pub(crate) mode: Mode,
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    /// The number of writes that the server has carried out, or received from its primary.
    pub(crate) offset: u64,
    /// The offsets that the replicas of this server have acknowledged.
    pub(crate) followers: BTreeMap<Address, u64>,
    /// The connections that wait for replicas, in the order in which they began to wait.
    pub(crate) blocked: Vec<Blocked>,
    pub(crate) data: DataSet,
    pub(crate) clients: BTreeMap<ConnectionId, Client>,
    /// The subscribers of each channel, in the order in which they subscribed.
    pub(crate) channels: BTreeMap<Vec<u8>, Vec<ConnectionId>>,
    /// The sources of the known scripts.
    pub(crate) scripts: BTreeMap<Hash, Arc<[u8]>>,
    pub(crate) outbox: Outbox,
    pub(crate) last_id: u64,
    pub(crate) commands: u64,
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// Received bytes that are not a complete command yet.
    received: Vec<u8>,
    pub(crate) resp3: bool,
    pub(crate) name: Vec<u8>,
    pub(crate) channels: BTreeSet<Vec<u8>>,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) closes_after_reply: bool,
    /// Whether the connection waits for replicas.
    pub(crate) is_blocked: bool,
    /// Whether the next command is allowed to use a slot that is moving to this node.
    pub(crate) asking: bool,
    /// The offset of the server after the newest command of this connection.
    pub(crate) written: u64,
}

/// The commands queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) queued: Vec<Vec<Vec<u8>>>,
    /// Whether a command could not be queued, which makes `EXEC` fail.
    pub(crate) broken: bool,
    writes: bool,
    grows: bool,
    needs_data: bool,
}

impl Transaction {
    fn queue(&mut self, command: &Command, args: &[&[u8]]) {
        self.writes |= command.writes();
        self.grows |= command.grows();
        self.needs_data |= !command.is_allowed_while_loading();
        let args = args.iter().map(|arg| arg.to_vec());
        self.queued.push(args.collect());
    }
}

/// The output of a server that the network has not delivered yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<Output>);

impl Outbox {
    /// Returns the buffer for the next bytes to a connection.
    pub(crate) fn buffer(&mut self, id: ConnectionId) -> &mut Vec<u8> {
        let is_last = matches!(self.0.last(), Some(Output::Bytes(last, _)) if *last == id);
        if !is_last {
            self.0.push(Output::Bytes(id, Vec::new()));
        }
        match self.0.last_mut() {
            Some(Output::Bytes(_, bytes)) => bytes,
            _ => unreachable!("the last output is a buffer"),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Output> {
        mem::take(&mut self.0)
    }
}

impl State {
    /// Removes a connection that has ended.
    pub(crate) fn forget(&mut self, id: ConnectionId) {
        commands::unsubscribe_all(self, id);
        self.clients.remove(&id);
        self.blocked.retain(|blocked| blocked.id != id);
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, id: ConnectionId) {
        self.forget(id);
        self.outbox.0.push(Output::Closed(id));
    }

    pub(crate) fn speaks_resp3(&self, id: ConnectionId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.resp3)
    }

    /// Returns the transaction of a connection, if it has begun one.
    pub(crate) fn transaction(&mut self, id: ConnectionId) -> &mut Option<Transaction> {
        &mut self.clients.entry(id).or_default().transaction
    }

    /// Takes bytes of a connection, and carries out each complete command.
    pub(crate) fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.is_blocked {
            return client.received.extend_from_slice(bytes);
        }
        let mut received = mem::take(&mut client.received);
        received.extend_from_slice(bytes);
        let mut rest = received.as_slice();
        while !rest.is_empty() {
            match parse(rest) {
                Parsed::Incomplete => break,
                Parsed::Broken(error) => {
                    let reply = Reply::Error(error.into());
                    reply.write(self.outbox.buffer(id), false);
                    return self.close(id);
                }
                Parsed::Command(args, used) => {
                    rest = &rest[used..];
                    if !args.is_empty() {
                        self.carry_out(Caller { id, now }, &args);
                    }
                }
            }
            match self.clients.get(&id) {
                Some(client) if client.is_blocked => break,
                Some(client) if !client.closes_after_reply => {}
                Some(_) => return self.close(id),
                None => return,
            }
        }
        let left = rest.len();
        let used = received.len() - left;
        received.drain(..used);
        if let Some(client) = self.clients.get_mut(&id) {
            client.received = received;
        }
    }

    fn carry_out(&mut self, caller: Caller, args: &[&[u8]]) {
        self.commands += 1;
        self.data.command = self.commands;
        let reply = self.process(caller, args).unwrap_or_else(Reply::Error);
        if let Some(client) = self.clients.get_mut(&caller.id) {
            client.written = self.offset;
            client.asking &= args[0].eq_ignore_ascii_case(b"ASKING");
        }
        // The reply to `HELLO` already uses the protocol version that the `HELLO` command selects.
        let resp3 = self.speaks_resp3(caller.id);
        reply.write(self.outbox.buffer(caller.id), resp3);
    }

    fn process(&mut self, caller: Caller, args: &[&[u8]]) -> Answer {
        let checked = self.check(caller, args);
        let client = self.clients.entry(caller.id).or_default();
        let command = match (checked, &mut client.transaction) {
            (Ok(command), None) => command,
            (Ok(command), Some(_)) if controls_transaction(command) => command,
            (Ok(command), Some(transaction)) => {
                transaction.queue(command, args);
                return Ok(Reply::Status("QUEUED".into()));
            }
            (Err(error), transaction) if args[0].eq_ignore_ascii_case(b"EXEC") => {
                *transaction = None;
                let error = error.strip_prefix("ERR ").unwrap_or(&error);
                return Err(format!("EXECABORT Transaction discarded because of: {error}").into());
            }
            (Err(error), transaction) => {
                if let Some(transaction) = transaction {
                    transaction.broken = true;
                }
                return Err(error);
            }
        };
        command.run(self, caller, args)
    }

    /// Returns the command if the server can carry it out or queue it now. Otherwise, returns the error for the client.
    fn check(&mut self, caller: Caller, args: &[&[u8]]) -> Result<&'static Command, Fault> {
        let command = find(args)?;
        if !command.is_known_to(&self.kind) {
            return Err(unknown_command(args));
        }
        if !command.takes(args.len()) {
            return Err(wrong_number(command.name));
        }
        self.route(caller, command, args)?;
        let client = self.clients.get(&caller.id);
        let transaction = client.and_then(|client| client.transaction.as_ref());
        let queues = transaction.is_some() && !matches!(command.name, "exec" | "discard");
        // `EXEC` is refused if the server would refuse one of the queued commands now.
        let queued = transaction.filter(|_| command.name == "exec");
        let grows = command.grows() || queued.is_some_and(|queued| queued.grows);
        let writes = command.writes() || queued.is_some_and(|queued| queued.writes);
        let needs_data =
            !command.is_allowed_while_loading() || queued.is_some_and(|queued| queued.needs_data);
        if self.mode == Mode::OutOfMemory && (grows || queues) {
            return Err(OUT_OF_MEMORY);
        }
        if self.is_read_only() && writes {
            return Err(READ_ONLY);
        }
        if self.mode == Mode::Loading && needs_data {
            return Err(LOADING);
        }
        let subscribed = client.is_some_and(|client| !client.resp3 && !client.channels.is_empty());
        if subscribed && !commands::is_allowed_to_subscribers(command) {
            let name = command.name;
            return Err(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                 RESET are allowed in this context"
            )
            .into());
        }
        Ok(command)
    }
}

impl State {
    /// Returns whether the server refuses writes, because it is a replica.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mode == Mode::ReadOnly || matches!(self.role, Role::Replica { .. })
    }
}

fn controls_transaction(command: &Command) -> bool {
    matches!(command.name, "exec" | "discard" | "multi" | "quit")
}
