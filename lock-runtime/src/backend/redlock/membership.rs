//! Decides which nodes of a Redlock count toward a majority, when a client connects and after a node has lost its
//! state.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use lock_core::lease::MAX_LEASE;
use tokio::sync::Notify;

use crate::{
    backend::redlock::{
        node::{Node, Standing},
        quorum::{Link, Quorum},
    },
    connect_error::ConnectError,
    events::TARGET,
    limits,
};

/// The largest number of probes while some nodes have no mark, but other nodes have a mark.
const MIXED_PROBES: usize = 3;
/// The shortest and the longest pause between two probes of nodes that have lost their state.
const LOST_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The time limit for one try to connect in the background, and the pause after a failed try.
const TRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));

/// Waits until the client has connected to a majority. If the client was created without connecting, the first call of
/// this function begins to connect. A task of the engine connects, even if the caller is not polled.
pub(crate) async fn connected(quorum: &Arc<Quorum>) {
    if quorum.is_connected() {
        return;
    }
    let is_new = |link: &Link| matches!(link, Link::New);
    let connecting = Link::Connecting(None);
    if quorum.link.replace_if(is_new, connecting).is_some() {
        quorum
            .context
            .spawn(go_on_connecting(Arc::downgrade(quorum)));
    }
    let is_connected = |link: &Link| matches!(link, Link::Connected).then_some(());
    quorum.link.until(is_connected).await;
}

/// Repeats the try to connect until it succeeds. Ends when the client is dropped or shuts down.
async fn go_on_connecting(quorum: Weak<Quorum>) {
    loop {
        let Some(quorum) = quorum.upgrade().filter(|quorum| !quorum.is_shutting_down()) else {
            return;
        };
        let Err(error) = connect(&quorum, TRY.0).await else {
            return;
        };
        quorum
            .link
            .replace(Link::Connecting(Some(error.to_string())));
        let pause = quorum.context.sleep(TRY.1);
        drop(quorum);
        pause.await;
    }
}

/// Connects to the nodes. Fails unless a majority of the nodes is reachable and usable for locks.
pub(crate) async fn connect(quorum: &Arc<Quorum>, patience: Duration) -> Result<(), ConnectError> {
    let connecting = quorum.nodes.iter().map(|node| async move {
        let connected = node.connect(patience).await;
        (node, connected)
    });
    let mut connecting: FuturesUnordered<_> = connecting.collect();
    let (mut reached, mut failures) = (Vec::new(), Vec::new());
    let mut until = quorum.context.now() + patience;
    while let Some(Some((node, connected))) =
        quorum.context.timeout_at(until, connecting.next()).await
    {
        match connected {
            Ok(()) => reached.push(node),
            Err(error) => {
                // An unreachable node is not logged here, because the node's session logs the outage itself.
                if !matches!(error, ConnectError::Unreachable { .. }) {
                    tracing::warn!(target: TARGET, server = %node.server().address(), %error, "a server of the quorum cannot be used");
                }
                failures.push(error);
            }
        }
        if reached.len() == quorum.majority() {
            until = until.min(quorum.context.now() + limits::STRAGGLER_PATIENCE);
        }
    }
    drop(connecting);
    if reached.len() < quorum.majority() {
        return Err(ConnectError::NoQuorum {
            reached: reached.len(),
            needed: quorum.majority(),
            failures,
        });
    }
    let mut servers: Vec<_> = reached.iter().map(|node| node.run_id()).collect();
    servers.sort();
    if servers
        .windows(2)
        .any(|pair| pair[0] == pair[1] && !pair[0].is_empty())
    {
        return Err(ConnectError::SameServerTwice {
            server: "behind two of the addresses".into(),
        });
    }
    begin(quorum).await;
    // The result of `mark` is ignored. If the marks cannot be written on a majority, callers that request locks get the
    // error.
    let _ = quorum.mark(quorum.longest_lease()).await;
    let (admitted, lost) = (Arc::downgrade(quorum), quorum.lost.clone());
    quorum.context.spawn(admit_lost(admitted, lost));
    quorum.link.replace(Link::Connected);
    Ok(())
}

/// Reads the marks of all nodes. Returns for each node whether it still has its state ([`Standing`]), or `None` if the
/// node did not answer or cannot be used.
async fn probe(quorum: &Quorum) -> Vec<(&Arc<Node>, Option<Standing>)> {
    let lease = quorum.longest_lease();
    let nodes = quorum.nodes.iter();
    join_all(nodes.map(|node| async move { (node, node.probe(lease).await.ok()) })).await
}

/// Lets all nodes grant locks if the installation is new. The installation is new if every node answers, and no node
/// has state.
async fn begin(quorum: &Quorum) {
    for _ in 0..MIXED_PROBES {
        let seen = probe(quorum).await;
        let lost: Vec<_> = seen
            .iter()
            .filter_map(|(node, standing)| match standing {
                Some(Standing::Lost { since, .. }) => Some((*node, *since)),
                _ => None,
            })
            .collect();
        if lost.is_empty() || seen.iter().any(|(_, standing)| standing.is_none()) {
            return;
        }
        if lost.len() == quorum.nodes.len() {
            let longest = quorum.longest_lease();
            let lost = lost.into_iter();
            join_all(lost.map(|(node, since)| node.admit(since, Duration::ZERO, longest))).await;
        } else {
            // Another client may be writing the first marks of the nodes right now.
            quorum.context.sleep(limits::RETRY_PAUSE).await;
        }
    }
}

/// Lets each node that has lost its state grant locks again once its quarantine is over. Returns the time until the
/// next probe, or `None` if no node is known to have lost its state.
async fn admit(quorum: &Quorum, told: &mut Told) -> Option<Duration> {
    let seen = probe(quorum).await;
    let mut next = None;
    for (number, (node, standing)) in seen.iter().enumerate() {
        let left = match *standing {
            Some(Standing::Lost { since, age }) => {
                match quarantine(quorum, &seen, told, (number, since)) {
                    None => LOST_PAUSE.0,
                    Some((longest, quarantine)) if age >= quarantine => {
                        if let Ok(true) = node.admit(since, quarantine, longest).await {
                            let server = node.server().address();
                            tracing::info!(target: TARGET, %server, "a node is counted again");
                        }
                        Duration::ZERO
                    }
                    Some((_, quarantine)) => quarantine - age,
                }
            }
            Some(Standing::Whole { .. }) => {
                told.retain(|(lost, _), _| *lost != number);
                continue;
            }
            None if node.was_lost() => LOST_PAUSE.1,
            None => continue,
        };
        next = Some(next.map_or(left, |next: Duration| next.min(left)));
    }
    next
}

/// Returns the longest lease that is known to be in use, and the time for which a node that lost its state does not
/// count. Returns `None` when the loss is seen for the first time.
fn quarantine(
    quorum: &Quorum,
    seen: &[(&Arc<Node>, Option<Standing>)],
    told: &mut Told,
    lost: (usize, u64),
) -> Option<(Duration, Duration)> {
    let whole = seen
        .iter()
        .enumerate()
        .filter_map(|(number, (_, standing))| match standing {
            Some(Standing::Whole { longest, .. }) => Some((number, *longest)),
            _ => None,
        });
    // When the loss is seen for the first time, the marks of the other nodes are not used, because these marks may have
    // been read before the loss.
    match told.entry(lost) {
        Entry::Vacant(entry) => {
            entry.insert(HashMap::new());
            return None;
        }
        Entry::Occupied(mut entry) => entry.get_mut().extend(whole),
    }
    let told = &told[&lost];
    let longest = told
        .values()
        .copied()
        .fold(quorum.longest_lease(), Duration::max);
    // Each lease in use is recorded in the marks of a majority of the nodes, so of any `enough` nodes, at least one has
    // the lease in its mark.
    let enough = quorum.nodes.len() - quorum.majority() + 1;
    let all_answer = seen.iter().all(|(_, standing)| standing.is_some());
    let known = told.len() >= enough || all_answer;
    Some((longest, if known { longest } else { MAX_LEASE }))
}

/// The longest leases in use, read from the marks of nodes that have their state, after another node has lost its
/// state. The outer key is the number of the node that has lost its state, and the time at which the loss was seen. The
/// inner key is the number of the node whose mark was read.
type Told = HashMap<(usize, u64), HashMap<usize, Duration>>;

/// Lets nodes that have lost their state grant locks again. Ends when the client is dropped or shuts down.
async fn admit_lost(quorum: Weak<Quorum>, lost: Arc<Notify>) {
    let mut told = Told::new();
    loop {
        lost.notified().await;
        loop {
            let Some(quorum) = quorum.upgrade().filter(|quorum| !quorum.is_shutting_down()) else {
                return;
            };
            let next = admit(&quorum, &mut told).await;
            let Some(next) = next else { break };
            let pause = quorum.context.sleep(next.clamp(LOST_PAUSE.0, LOST_PAUSE.1));
            drop(quorum);
            pause.await;
        }
    }
}
