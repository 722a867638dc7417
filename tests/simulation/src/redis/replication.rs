//! The actions of a server as a primary, as a replica, and as a Sentinel. The network carries the data from a primary
//! to its replicas: this module only says what the data are, and applies them.

use super::{
    Address, ConnectionId, DataSet, Output, Redis,
    commands::{self, Caller},
    data::Fault,
    resp::Reply,
    state::{Kind, Role, Sentinel, State},
};

/// The error that a server sends to the connections that wait for replicas, when the server itself becomes a replica.
const UNBLOCKED: Fault = Fault::Borrowed(
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
);
/// The channel on which a Sentinel announces a new primary.
const SWITCHED: &[u8] = b"+switch-master";

impl Redis {
    /// Creates a Sentinel that watches this group.
    #[must_use]
    pub fn sentinel(run_id: String, group: &str) -> Self {
        Self(State {
            run_id,
            kind: Kind::Sentinel(Sentinel {
                group: group.to_owned(),
                primary: None,
            }),
            ..State::default()
        })
    }

    /// Makes a Sentinel name this server as the primary. If the Sentinel named another server before, it notifies its
    /// subscribers. The call has no effect if this server is not a Sentinel.
    pub fn name_primary(&mut self, primary: Address, now: u64) -> Vec<Output> {
        let Kind::Sentinel(sentinel) = &mut self.0.kind else {
            return Vec::new();
        };
        let before = sentinel.primary.replace(primary.clone());
        let Some(before) = before.filter(|before| *before != primary) else {
            return Vec::new();
        };
        let message = format!(
            "{} {} {} {} {}",
            sentinel.group, before.host, before.port, primary.host, primary.port
        );
        let caller = Caller {
            id: ConnectionId(0),
            now,
        };
        let _ = commands::tell(&mut self.0, caller, SWITCHED, message.as_bytes());
        self.0.outbox.take()
    }

    /// Makes the server a replica of another server, or a primary, like `REPLICAOF`. A server that becomes a replica
    /// closes the connections that wait for replicas.
    pub fn follow(&mut self, primary: Option<Address>) -> Vec<Output> {
        self.0.followers.clear();
        self.0.role = match primary {
            None => Role::Primary,
            Some(of) => {
                for blocked in std::mem::take(&mut self.0.blocked) {
                    let resp3 = self.0.speaks_resp3(blocked.id);
                    Reply::Error(UNBLOCKED).write(self.0.outbox.buffer(blocked.id), resp3);
                    self.0.close(blocked.id);
                }
                Role::Replica { of }
            }
        };
        self.0.outbox.take()
    }

    /// Closes all connections of clients, as a Sentinel does when it makes a primary a replica.
    pub fn close_all(&mut self) -> Vec<Output> {
        let ids: Vec<_> = self.0.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.0.close(id));
        self.0.outbox.take()
    }

    /// Returns whether the server is a primary.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        matches!(self.0.role, Role::Primary)
    }

    /// Returns the number of writes that the server has carried out, or received from its primary.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Replaces the data of this replica by the data that its primary had after `offset` writes.
    pub fn replicate(&mut self, data: DataSet, offset: u64) {
        self.0.data = data;
        self.0.offset = offset;
    }

    /// Records that a replica has everything up to `offset`. Returns the replies to the `WAIT` commands that this
    /// acknowledgement ends.
    pub fn acknowledge(&mut self, follower: Address, offset: u64, now: u64) -> Vec<Output> {
        self.0.followers.insert(follower, offset);
        self.0.answer_blocked(now);
        self.0.outbox.take()
    }

    /// Forgets a replica that follows another server now.
    pub fn forget_follower(&mut self, follower: &Address) {
        self.0.followers.remove(follower);
    }

    /// Replies to the `WAIT` commands whose time limit has passed.
    pub fn wake(&mut self, now: u64) -> Vec<Output> {
        self.0.answer_blocked(now);
        self.0.outbox.take()
    }

    /// Returns the server's time, in µs, at which the time limit of the next `WAIT` command passes.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        let blocked = self.0.blocked.iter();
        blocked.filter_map(|blocked| blocked.until).min()
    }
}

impl State {
    /// Returns the number of replicas that have acknowledged everything up to `offset`.
    pub(crate) fn followers_at(&self, offset: u64) -> usize {
        let acknowledged = self.followers.values();
        acknowledged.filter(|at| **at >= offset).count()
    }

    /// Replies to each `WAIT` command that has enough acknowledgements, or whose time limit has passed.
    fn answer_blocked(&mut self, now: u64) {
        let mut place = 0;
        while let Some(blocked) = self.blocked.get(place) {
            let count = self.followers_at(blocked.offset);
            let is_over = blocked.until.is_some_and(|until| until <= now);
            if count < blocked.wanted && !is_over {
                place += 1;
                continue;
            }
            let id = self.blocked.remove(place).id;
            self.unblock(id, &Reply::count(count), now);
        }
    }

    /// Replies to the `WAIT` of a blocked connection, and carries out the commands that it has received meanwhile.
    fn unblock(&mut self, id: ConnectionId, reply: &Reply, now: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.is_blocked = false;
        let resp3 = client.resp3;
        reply.write(self.outbox.buffer(id), resp3);
        self.receive(id, &[], now);
    }
}
