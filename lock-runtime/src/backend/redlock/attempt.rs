//! One acquisition from a quorum: rounds, each with an owner of its own, until one is granted.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    fencing::FencingToken,
    lease::{Grant, Moment},
    options::Backoff,
    owner::OwnerId,
};
use tokio::sync::watch;
use uuid::Uuid;

use super::{Quorum, less_node_drift};
use crate::{
    backend::redis::node::{Node, NodeAttempt},
    clock::boot as clock,
    engine,
    sync::lock,
};

/// A node may take this part of the lease to answer, within these bounds.
const NODE_SHARE: u32 = 10;
const NODE_PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// A body starts only while at least this part of its lease is left: the quorum may have answered too late.
const START_SHARE: u32 = 2;

/// How long a node may take to answer.
fn node_patience(lease: Duration) -> Duration {
    (lease / NODE_SHARE).clamp(NODE_PATIENCE.0, NODE_PATIENCE.1)
}

/// Whether what is left of a lease is enough to start on.
fn is_enough(left: Duration, lease: Duration) -> bool {
    !left.is_zero() && left >= lease / START_SHARE
}

/// What one node has done for a round.
enum Step {
    /// It was asked.
    Taken(NodeAttempt, Result<Option<FencingToken>, BackendError>),
    /// It was told the token.
    Adopted(NodeAttempt, Result<bool, BackendError>),
}

type Steps = FuturesUnordered<BoxFuture<'static, Step>>;

fn take(node: &Arc<Node>, request: &Request, longest_lease: Duration) -> BoxFuture<'static, Step> {
    let (node, request) = (node.clone(), request.clone());
    async move {
        let (attempt, taken) = node.take(&request, longest_lease).await;
        Step::Taken(attempt, taken)
    }
    .boxed()
}

fn adopt(mut attempt: NodeAttempt, token: FencingToken) -> BoxFuture<'static, Step> {
    async move {
        let adopted = attempt.adopt(token).await;
        Step::Adopted(attempt, adopted)
    }
    .boxed()
}

/// What a round came to.
enum Round {
    Granted(Grant),
    /// Others hold it, or have it in part.
    Busy,
    /// Too few nodes answered, or too late.
    Unreachable(BackendError),
}

/// An acquisition under way.
pub(super) struct RedlockAttempt {
    quorum: Arc<Quorum>,
    request: Request,
    /// What the newest round that came to an end was told.
    newest: Result<(), BackendError>,
}

impl RedlockAttempt {
    pub(super) fn new(quorum: Arc<Quorum>, request: Request) -> Self {
        let newest = Err(quorum.unreachable(0));
        Self {
            quorum,
            request,
            newest,
        }
    }

    /// Asks all nodes once. Dropped, or without a grant, it gives back what it got.
    async fn round(&mut self, request: &Request, wait_ends: Option<Moment>) -> Round {
        let quorum = self.quorum.clone();
        let lease = request.lease.time;
        let majority = quorum.majority();
        let patience = node_patience(lease);
        let within =
            |start: Moment| wait_ends.map_or(start + patience, |end| end.min(start + patience));

        // The grant's time runs from here, for no node can have granted before.
        let started = clock::now();
        let valid_until = started + less_node_drift(lease);
        let nodes = quorum.nodes.iter();
        let mut steps: Steps = nodes
            .map(|node| take(node, request, quorum.longest_lease()))
            .collect();
        let mut until = within(started);
        let mut token = None;
        // Nodes that have granted: before there is a token, and those that know it.
        let mut taken: Vec<(NodeAttempt, FencingToken)> = Vec::new();
        let mut ready: Vec<NodeAttempt> = Vec::new();
        let (mut busy, mut failed, mut refused) = (0, 0, None);
        while ready.len() < majority {
            if taken.len() + ready.len() + steps.len() < majority {
                break; // the others cannot make it a majority any more
            }
            let Some(Some(step)) = clock::timeout_at(until, steps.next()).await else {
                failed += steps.len();
                break;
            };
            match step {
                Step::Taken(attempt, Ok(Some(offered))) => match token {
                    None => taken.push((attempt, offered)),
                    Some(token) if token == offered => ready.push(attempt),
                    Some(token) => steps.push(adopt(attempt, token)),
                },
                Step::Adopted(attempt, Ok(true)) => ready.push(attempt),
                Step::Taken(_, Ok(None)) | Step::Adopted(_, Ok(false)) => {
                    busy += 1;
                    if busy + taken.len() + ready.len() >= majority {
                        self.newest = Ok(());
                    }
                }
                Step::Taken(_, Err(error)) | Step::Adopted(_, Err(error)) => {
                    failed += 1;
                    if !matches!(error, BackendError::Unreachable(_)) {
                        refused = Some(error);
                    }
                }
            }
            if token.is_none() && taken.len() >= majority {
                // The greatest that was offered: greater than any token that a majority knew before, for each node
                // offers one above those it knows, and two majorities have a node in common.
                let greatest = taken.iter().map(|(_, offered)| *offered).max();
                token = greatest;
                until = within(clock::now());
                for (attempt, offered) in taken.drain(..) {
                    match greatest {
                        Some(token) if token != offered => steps.push(adopt(attempt, token)),
                        _ => ready.push(attempt),
                    }
                }
            }
        }
        // One that was not waited for would have answered.
        let answered = quorum.nodes.len() - failed;
        let Some(token) = token.filter(|_| ready.len() >= majority) else {
            return match refused {
                _ if answered >= majority => Round::Busy,
                Some(error) => Round::Unreachable(error),
                None => Round::Unreachable(quorum.unreachable(answered)),
            };
        };
        let left = valid_until.since(clock::now());
        if !is_enough(left, lease) {
            let took = clock::now().since(started);
            return Round::Unreachable(BackendError::Unreachable(format!(
                "a majority of the nodes granted, but took {took:.0?} of a lease of {lease:.0?}"
            )));
        }
        // No await from here on: the nodes' grants become the hold's all at once.
        ready.into_iter().for_each(NodeAttempt::keep);
        if !steps.is_empty() {
            join(&quorum, request, token, steps, until);
        }
        Round::Granted(Grant {
            token,
            valid_until: Some(valid_until),
            validity: lease,
            queued: false,
        })
    }
}

/// Lets the slower nodes join the hold in the background, so that it survives the loss of some of the quicker ones.
/// Released meanwhile, they give back what they have: a release names the token, which they may not know yet.
fn join(
    quorum: &Arc<Quorum>,
    request: &Request,
    token: FencingToken,
    mut steps: Steps,
    until: Moment,
) {
    let (over, mut is_over) = watch::channel(false);
    let key = (request.name.clone(), token);
    lock(&quorum.joining).insert(key.clone(), over);
    let quorum = quorum.clone();
    engine::spawn(async move {
        let mut late = clock::sleep_until(until);
        loop {
            let step = tokio::select! {
                biased;
                _ = is_over.wait_for(|over| *over) => break,
                step = steps.next() => step,
                () = &mut late => break,
            };
            match step {
                None => break,
                Some(Step::Taken(attempt, Ok(Some(offered)))) if offered != token => {
                    steps.push(adopt(attempt, token));
                }
                Some(Step::Taken(attempt, Ok(Some(_))) | Step::Adopted(attempt, Ok(true))) => {
                    attempt.keep();
                }
                Some(_) => {}
            }
        }
        lock(&quorum.joining).remove(&key);
    });
}

impl Attempt for RedlockAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            self.quorum.note_lease(self.request.lease.time);
            let waits = !self.request.wait.is_zero();
            let wait_ends = waits.then(|| clock::now() + self.request.wait);
            let mut request = self.request.clone();
            let mut rounds = 0;
            loop {
                if self.quorum.is_refusing() {
                    return Err(BackendError::ShutDown);
                }
                rounds += 1;
                let answer = match self.round(&request, wait_ends).await {
                    Round::Granted(grant) => {
                        let queued = rounds > 1;
                        return Ok(Answer::Granted(Grant { queued, ..grant }));
                    }
                    Round::Busy => Ok(Answer::Busy),
                    Round::Unreachable(error @ BackendError::Unreachable(_)) => Err(error),
                    Round::Unreachable(error) => return Err(error),
                };
                // A round that the end of the wait cut short says nothing of the nodes.
                let cut_short = wait_ends.is_some_and(|end| clock::now() >= end);
                if answer.is_ok() || !cut_short {
                    self.newest = answer.clone().map(|_| ());
                }
                if !waits {
                    return answer;
                }
                let chance = Uuid::new_v4().as_fields().0;
                let pause = Backoff::default().pause(rounds, chance);
                clock::sleep_until(clock::now() + pause).await;
                // What an earlier round got may still be given back: that must not be this round's.
                request.owner = OwnerId::from_u128(Uuid::new_v4().as_u128());
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        // Nobody queues, and what a round had got was given back when it was dropped.
        let left = self.newest.clone().map(|()| Leaving::Left);
        Box::pin(std::future::ready(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_node_has_a_tenth_of_the_lease() {
        assert_eq!(node_patience(10 * MS), 20 * MS);
        assert_eq!(node_patience(1000 * MS), 100 * MS);
        assert_eq!(node_patience(30_000 * MS), 500 * MS);
    }

    #[test]
    fn half_a_lease_is_enough_to_start_on() {
        assert!(is_enough(500 * MS, 1000 * MS));
        assert!(!is_enough(499 * MS, 1000 * MS));
        assert!(!is_enough(Duration::ZERO, Duration::ZERO));
    }
}
