//! Reads the slot map of a Redis Cluster, which names the primary of each hash slot.
//!
//! The servers report which server stores a slot. The answer to `CLUSTER SLOTS` describes all slots. A server that does
//! not store the slot of a command answers the command with a redirection. The engine reads the slot map again after
//! each `MOVED` redirection, when a connection is lost, and when a server cannot carry out a command.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lock_core::lease::Moment;
use redis::{
    ConnectionAddr, ErrorKind, FromRedisValue, ParsingError, RedisError, ServerErrorKind, Value,
};
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    backend::redis::{
        preflight::{Failure, check},
        protocol::slot::{SLOTS, slot_of},
        topology::{SlotMap, Topology, node::Node},
        transport::{
            call_error::Redirect,
            connection::field,
            connector::{Connector, ServerCheck},
        },
    },
    background::{Context, lock},
    events::TARGET,
    limits,
};

/// The shortest and the longest time between two tries to read the slot map. The time doubles while the slot map does
/// not change.
const READ_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// The task that reads the slot map, or `None` before the task is started. Dropping this value ends the task.
#[derive(Default)]
pub(super) struct Reading(Mutex<Option<AbortHandle>>);

impl Reading {
    pub(super) fn stop(&self) {
        if let Some(reading) = lock(&self.0).as_ref() {
            reading.abort();
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.stop();
    }
}

impl SlotMap {
    /// Returns the primaries that store a slot.
    fn primaries(&self) -> BTreeSet<*const Node> {
        self.slots.iter().flatten().map(Arc::as_ptr).collect()
    }
}

/// One server's description of the cluster.
struct View {
    /// Decides which server's description the engine uses. The description of a server that considers the cluster to be
    /// working takes precedence. Of two such descriptions, the one with the newer configuration epoch is used.
    newness: (bool, u64),
    /// The ranges of slots, each as its first slot, its last slot and its primary.
    ranges: Vec<(u16, u16, ConnectionAddr)>,
}

impl Topology {
    /// Connects to the servers of the cluster, reads the slot map, and checks all primaries. Succeeds if more than half
    /// of the primaries answer, and all of the answering primaries pass the check. The cluster can then replace the
    /// other primaries. A primary that does not answer now is checked later, before a session connects to it.
    pub(super) async fn check_primaries(
        self: &Arc<Self>,
        required: ServerCheck,
        until: Moment,
    ) -> Result<(), Failure> {
        self.read().await.map_err(|error| match error.kind() {
            // A server that belongs to no cluster refuses to describe the slots.
            ErrorKind::Server(ServerErrorKind::ResponseError) => Failure::NoCluster,
            _ => Failure::of(&error).of_user(&self.seeds[0]),
        })?;
        let nodes = self.nodes();
        if nodes.is_empty() {
            let detail = "no server of the cluster stores a slot";
            return Err(Failure::Unreachable(detail.into()));
        }
        let mut until = until;
        let left = until.since(self.context.now());
        let checks = nodes.iter().map(|node| async move {
            let checked = check(node.connector(), required, left).await;
            (node, checked)
        });
        let mut checks: FuturesUnordered<_> = checks.collect();
        let (mut usable, mut unreachable) = (0, None);
        while let Some(Some((node, checked))) = self.context.timeout_at(until, checks.next()).await
        {
            match checked {
                Ok(()) => {
                    node.connector().note_checked();
                    usable += 1;
                    if 2 * usable > nodes.len() {
                        until = until.min(self.context.now() + limits::ASK_PATIENCE);
                    }
                }
                // A primary that cannot be reached now can answer later, or the cluster can replace it, so the check
                // continues.
                Err(failure @ (Failure::Unreachable(_) | Failure::Closed(_))) => {
                    unreachable = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        if 2 * usable <= nodes.len() {
            let failure = unreachable.unwrap_or_else(|| Failure::Unreachable("no answer".into()));
            return Err(failure);
        }
        self.follow();
        Ok(())
    }

    /// Starts the task that reads the slot map, unless this task is running.
    pub(super) fn follow(self: &Arc<Self>) {
        let mut reading = lock(&self.reading.0);
        if reading.is_none() && !self.is_closed() {
            let (topology, outdated) = (Arc::downgrade(self), self.outdated.clone());
            let following = follow(self.context.clone(), topology, outdated);
            *reading = Some(self.context.spawn(following).abort_handle());
        }
    }

    /// Asks all servers for the slot map, and applies the newest answer. Returns whether the slot map has changed.
    async fn read(&self) -> Result<bool, RedisError> {
        let nodes = self.nodes();
        let others = self.seeds.iter().filter(|seed| {
            let known = nodes.iter().map(|node| node.connector().server_address());
            !known
                .into_iter()
                .any(|known| known == seed.server_address())
        });
        let asked = nodes.iter().map(|node| node.connector()).chain(others);
        let mut until = self.context.now() + limits::ASK_PATIENCE;
        let mut answers: FuturesUnordered<_> = asked.map(|server| self.ask(server)).collect();
        let (asked, mut heard) = (answers.len(), 0);
        let (mut newest, mut failure): (Option<View>, _) = (None, None);
        while let Some(Some(answer)) = self.context.timeout_at(until, answers.next()).await {
            match answer {
                Ok(view) => {
                    heard += 1;
                    if 2 * heard > asked {
                        until = until.min(self.context.now() + limits::SLOTS_REST);
                    }
                    if newest.as_ref().is_none_or(|now| now.newness < view.newness) {
                        newest = Some(view);
                    }
                }
                // An error in the answer of a server is preferred, because it says more about the cause than a failed
                // connection does.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) =>
                {
                    failure = Some(error);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (newest, failure) {
            (Some(view), _) => Ok(self.apply(view)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    async fn ask(&self, server: &Connector) -> Result<View, RedisError> {
        let (mut wire, address) = server.connect().await?;
        let mut asking = redis::pipe();
        asking.cmd("CLUSTER").arg("INFO");
        asking.cmd("CLUSTER").arg("SLOTS");
        let (info, slots): (String, Vec<Value>) = asking.query_async(&mut wire).await?;
        let epoch = field(&info, "cluster_current_epoch");
        let view = View {
            newness: (
                field(&info, "cluster_state") == Some("ok"),
                epoch
                    .and_then(|epoch| epoch.parse().ok())
                    .unwrap_or_default(),
            ),
            ranges: slots
                .into_iter()
                .map(|range| read_range(range, &address))
                .collect::<Result<_, _>>()?,
        };
        Ok(view)
    }

    /// Replaces the slot map. Closes the connections to servers that store no slot any longer. Callers that wait for
    /// locks in moved slots get a new session. Returns whether the slot map has changed.
    fn apply(&self, view: View) -> bool {
        let (before, now) = self.map.change(|map| {
            let before = map.clone();
            map.slots = vec![None; SLOTS.into()];
            let mut nodes = BTreeMap::new();
            for (first, last, address) in view.ranges {
                let node = self.node_at(map, address);
                nodes.insert(node.connector().server_address(), node.clone());
                for slot in first..=last.min(SLOTS - 1) {
                    map.slots[usize::from(slot)] = Some(node.clone());
                }
            }
            let now = self.context.now();
            map.asked
                .retain(|_, asked| now < *asked + limits::ASKED_FOR);
            for address in map.asked.keys() {
                if let Some(node) = before.nodes.get(address) {
                    nodes.entry(address.clone()).or_insert_with(|| node.clone());
                }
            }
            map.nodes = nodes;
            (before, map.clone())
        });
        let has_moved = |slot: u16| match (before.node(slot), now.node(slot)) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            (Some(_), None) => true,
            (None, _) => false,
        };
        for (address, node) in &before.nodes {
            if now
                .nodes
                .get(address)
                .is_some_and(|now| Arc::ptr_eq(now, node))
            {
                node.dismiss(|name| has_moved(slot_of(name.as_str())));
            } else {
                tracing::debug!(target: TARGET, server = %address, "a server stores no slot any longer");
                node.dismiss_waiters();
                node.close();
            }
        }
        // The primary has probably been replaced by one of its replicas, which may lack grants.
        if !now.primaries().is_superset(&before.primaries()) {
            self.seeds[0].server_changed.notify_one();
        }
        (0..SLOTS).any(|slot| match (before.node(slot), now.node(slot)) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            (before, now) => before.is_some() != now.is_some(),
        })
    }
}

/// Reads the slot map, and reads it again whenever it may be outdated.
async fn follow(context: Arc<Context>, topology: Weak<Topology>, outdated: Arc<Notify>) {
    let mut is_known = topology
        .upgrade()
        .is_some_and(|topology| !topology.nodes().is_empty());
    let mut pause = READ_PAUSE.0;
    loop {
        if is_known {
            let asked = context.now();
            outdated.notified().await;
            if asked + READ_PAUSE.1 < context.now() {
                pause = READ_PAUSE.0;
            }
        }
        let Some(topology) = topology.upgrade() else {
            return;
        };
        let read = topology.read().await;
        is_known = read.is_ok() && !topology.nodes().is_empty();
        pause = match read {
            Ok(true) => READ_PAUSE.0,
            _ => (pause * 2).min(READ_PAUSE.1),
        };
        if let Err(error) = read {
            topology.seeds[0].outages.note(error.to_string());
            tracing::debug!(target: TARGET, %error, "no server of the cluster has reported the slot map");
        }
        drop(topology);
        context.sleep(pause).await;
    }
}

/// Reads one range of the answer to `CLUSTER SLOTS`: the first slot, the last slot, and the host and the port of the
/// primary.
fn read_range(
    range: Value,
    asked: &ConnectionAddr,
) -> Result<(u16, u16, ConnectionAddr), ParsingError> {
    let fields = Vec::<Value>::from_redis_value(range)?;
    let mut fields = fields.into_iter();
    let mut next = || fields.next().unwrap_or(Value::Nil);
    let (first, last) = (
        u16::from_redis_value(next())?,
        u16::from_redis_value(next())?,
    );
    let primary = Vec::<Value>::from_redis_value(next())?;
    let mut primary = primary.into_iter();
    let mut next = || primary.next().unwrap_or(Value::Nil);
    let host = Option::<String>::from_redis_value(next())?.unwrap_or_default();
    let port = u16::from_redis_value(next())?;
    Ok((first, last, Redirect::address(&host, port, asked)))
}
