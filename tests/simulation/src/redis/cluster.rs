//! A node of a Redis Cluster. The node knows which primary stores which slot, and redirects the commands for slots that
//! it does not store itself. The network carries the messages between the nodes.

use std::collections::BTreeMap;

use super::{
    Address, ConnectionId, Output, Redis,
    commands::{self, Caller, Command, millis},
    data::{Entry, Fault},
    state::{Kind, State},
};

/// The number of slots.
pub const SLOTS: u16 = 16384;

const CROSS_SLOT: Fault = Fault::Borrowed("CROSSSLOT Keys in request don't hash to the same slot");
const UNSTABLE: Fault = Fault::Borrowed("TRYAGAIN Multiple keys request during rehashing of slot");
const DOWN: Fault = Fault::Borrowed("CLUSTERDOWN The cluster is down");
const UNBOUND: Fault = Fault::Borrowed("CLUSTERDOWN Hash slot not served");
const NOT_LOCAL: Fault =
    Fault::Borrowed("ERR Script attempted to access a non local key in a cluster node");
const DOWN_IN_SCRIPT: Fault =
    Fault::Borrowed("ERR Script attempted to execute a command while the cluster is down");

/// A node of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) myself: Address,
    pub(crate) view: ClusterView,
    /// The messages that the node has published, but that the network has not sent to the other nodes yet.
    pub(crate) bus: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The facts that a node knows about its cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// The newest configuration epoch that the node knows.
    pub epoch: u64,
    /// Whether the node considers the cluster to be working.
    pub is_up: bool,
    /// The slots: the first and the last slot of each range, and its primary.
    pub ranges: Vec<(u16, u16, Address)>,
    /// The replicas of each primary.
    pub replicas: BTreeMap<Address, Vec<Address>>,
    /// The slots that move away from this node, and their new primaries.
    pub migrating: BTreeMap<u16, Address>,
    /// The slots that move to this node, and their old primaries.
    pub importing: BTreeMap<u16, Address>,
}

impl ClusterView {
    /// Returns the primary of a slot.
    #[must_use]
    pub fn primary(&self, slot: u16) -> Option<&Address> {
        let range = self.ranges.iter();
        range
            .filter(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, primary)| primary)
            .next()
    }
}

/// A value with its expiry, on the way from one node to another.
#[derive(Debug)]
pub struct Moving(Entry);

/// Returns the slot of a key.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let mut crc = 0_u16;
    for byte in tag.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
    }
    crc % SLOTS
}

impl Redis {
    /// Creates a node of a cluster.
    #[must_use]
    pub fn node(run_id: String, myself: Address) -> Self {
        Self(State {
            run_id,
            kind: Kind::Node(Node {
                myself,
                view: ClusterView::default(),
                bus: Vec::new(),
            }),
            ..State::default()
        })
    }

    /// Returns what the node knows about its cluster; `None` for a server that belongs to no cluster.
    pub fn view(&mut self) -> Option<&mut ClusterView> {
        match &mut self.0.kind {
            Kind::Node(node) => Some(&mut node.view),
            Kind::Store | Kind::Sentinel(_) => None,
        }
    }

    /// Returns the keys of a slot that exist at `now`, sorted.
    pub fn keys_in(&mut self, slot: u16, now: u64) -> Vec<String> {
        let keys = self.keys(now).into_iter();
        keys.filter(|key| slot_of(key.as_bytes()) == slot).collect()
    }

    /// Removes a key that moves to another node. Returns `None` if the key does not exist.
    pub fn take(&mut self, key: &str, now: u64) -> Option<Moving> {
        let entry = self.0.data.entry(key.as_bytes(), millis(now))?.clone();
        self.delete(key);
        Some(Moving(entry))
    }

    /// Stores a key that has moved to this node.
    pub fn put(&mut self, key: &str, moving: Moving) {
        let Moving(Entry { value, expires, .. }) = moving;
        self.0.data.put(key.as_bytes(), value, expires);
        self.0.offset += 1;
    }

    /// Returns the messages that clients have published on this node, and that the network has to send to the other
    /// nodes.
    pub fn take_bus(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match &mut self.0.kind {
            Kind::Node(node) => std::mem::take(&mut node.bus),
            Kind::Store | Kind::Sentinel(_) => Vec::new(),
        }
    }

    /// Sends a message from another node to the subscribers of this node.
    pub fn hear(&mut self, channel: &[u8], message: &[u8], now: u64) -> Vec<Output> {
        let caller = Caller {
            id: ConnectionId(0),
            now,
        };
        let _ = commands::tell(&mut self.0, caller, channel, message);
        self.0.outbox.take()
    }
}

/// The reason why a node does not carry out a command.
enum Reason {
    Down,
    Other(Fault),
}

impl State {
    /// Returns an error if another node has to carry out this command of a client.
    pub(crate) fn route(
        &mut self,
        caller: Caller,
        command: &Command,
        args: &[&[u8]],
    ) -> Result<(), Fault> {
        self.place(caller, command, args)
            .map_err(|reason| match reason {
                Reason::Down => DOWN,
                Reason::Other(fault) => fault,
            })
    }

    /// Returns an error if another node has to carry out this command of a script.
    pub(crate) fn route_in_script(
        &mut self,
        caller: Caller,
        command: &Command,
        args: &[&[u8]],
    ) -> Result<(), Fault> {
        self.place(caller, command, args)
            .map_err(|reason| match reason {
                Reason::Down => DOWN_IN_SCRIPT,
                Reason::Other(_) => NOT_LOCAL,
            })
    }

    fn place(&mut self, caller: Caller, command: &Command, args: &[&[u8]]) -> Result<(), Reason> {
        let Kind::Node(node) = &self.kind else {
            return Ok(());
        };
        let keys = command.keys(args);
        let Some(first) = keys.first() else {
            return Ok(());
        };
        let slot = slot_of(first);
        let Some(primary) = node.view.primary(slot) else {
            return Err(Reason::Other(UNBOUND));
        };
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Err(Reason::Other(CROSS_SLOT));
        }
        if !node.view.is_up {
            return Err(Reason::Down);
        }
        let is_mine = *primary == node.myself;
        let to = node.view.migrating.get(&slot).filter(|_| is_mine);
        let is_importing = node.view.importing.contains_key(&slot) && !is_mine;
        let several = keys.iter().any(|key| key != first);
        let ms = caller.ms();
        let data = &mut self.data;
        let missing = |data: &mut super::DataSet| {
            let missing = keys.iter().filter(|key| data.entry(key, ms).is_none());
            missing.count()
        };
        if let Some(to) = to {
            let missing = missing(data);
            if missing > 0 && missing < keys.len() {
                return Err(Reason::Other(UNSTABLE));
            }
            if missing > 0 {
                return Err(Reason::Other(
                    format!("ASK {slot} {}:{}", to.host, to.port).into(),
                ));
            }
            return Ok(());
        }
        let asks = self
            .clients
            .get(&caller.id)
            .is_some_and(|client| client.asking);
        if is_importing && asks {
            if several && missing(data) > 0 {
                return Err(Reason::Other(UNSTABLE));
            }
            return Ok(());
        }
        if is_mine {
            return Ok(());
        }
        Err(Reason::Other(
            format!("MOVED {slot} {}:{}", primary.host, primary.port).into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 12739);
        assert_eq!(slot_of(b"foo{bar}zap"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }
}
