//! One acquisition from a quorum: rounds, each with its own owner, until one is granted.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    fencing::FencingToken,
    lease::{CLAIM, Grant, Moment},
    options::Backoff,
};
use tokio::sync::{oneshot, watch};

use crate::{
    backend::redlock::{
        node::{Node, NodeAttempt},
        quorum::{Quorum, less_node_drift},
    },
    background::{Context, sync::lock},
};

/// A node has to answer within this part of the lease, within these bounds.
const NODE_SHARE: u32 = 10;
const NODE_PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// A body starts only with at least this part of its lease left: the quorum may have answered too late.
const START_SHARE: u32 = 2;

/// Returns how long a node may take to answer.
fn node_patience(lease: Duration) -> Duration {
    (lease / NODE_SHARE).clamp(NODE_PATIENCE.0, NODE_PATIENCE.1)
}

/// Returns whether enough is left of a lease to start a body.
fn is_enough(left: Duration, lease: Duration) -> bool {
    !left.is_zero() && left >= lease / START_SHARE
}

/// The result of one step at one node in a round.
enum Step {
    /// The node was asked for the lock.
    Taken(NodeAttempt, Result<Option<FencingToken>, BackendError>),
    /// The node was told the token.
    Raised(NodeAttempt, Result<bool, BackendError>),
}

type Steps = FuturesUnordered<BoxFuture<'static, Step>>;

fn take(node: &Arc<Node>, request: &Request) -> BoxFuture<'static, Step> {
    let (node, request) = (node.clone(), request.clone());
    async move {
        let (attempt, taken) = node.take(&request).await;
        Step::Taken(attempt, taken)
    }
    .boxed()
}

fn raise_token(mut attempt: NodeAttempt, token: FencingToken) -> BoxFuture<'static, Step> {
    async move {
        let raised = attempt.raise_token(token).await;
        Step::Raised(attempt, raised)
    }
    .boxed()
}

/// How long a round that may be lost waits for nodes that were silent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// As long as for the other nodes, so that its answer is right.
    Patient,
    /// Not at all: the round gives back its grants at once, for others to take. A patient round follows it.
    Hasty,
}

impl Haste {
    /// Returns the haste of the next round. One of four rounds is patient, including the very first.
    fn of_round(before: u32) -> Self {
        if before.is_multiple_of(4) {
            Self::Patient
        } else {
            Self::Hasty
        }
    }
}

/// The outcome of a round.
pub(crate) enum Round {
    Granted(Box<Taken>),
    /// Others hold the lock, or some of its nodes.
    Busy,
    /// Too few nodes answered, or they answered too late.
    Unreachable(BackendError),
}

/// A lock that a majority has granted. If dropped before it becomes a hold, it is given back in the background.
pub(crate) struct Taken {
    quorum: Arc<Quorum>,
    request: Request,
    token: FencingToken,
    valid_until: Moment,
    /// The nodes that know the token.
    ready: Vec<NodeAttempt>,
    /// The requests to the other nodes, which may join until `until`.
    steps: Steps,
    until: Moment,
}

impl Taken {
    /// Returns whether enough of the lease is left to start.
    pub(crate) fn is_young(&self) -> bool {
        is_enough(
            self.valid_until.since(self.quorum.context.now()),
            self.request.lease.time,
        )
    }

    /// Gives the lock back. Nodes that cannot be released now are released in the background.
    pub(crate) async fn release(self) {
        let (quorum, name) = (self.quorum.clone(), self.request.name.clone());
        let grant = self.become_hold();
        if quorum.release(&name, grant.token, None).await.is_err() {
            let ends = grant.valid_until;
            quorum
                .clone()
                .context
                .spawn(quorum.release_until(name, grant.token, None, ends));
        }
    }

    /// Turns the nodes' grants into a hold, all at once.
    pub(crate) fn become_hold(self) -> Grant {
        let name = &self.request.name;
        let is_over = self.quorum.begin_hold(name, self.token, self.request.owner);
        self.ready.into_iter().for_each(NodeAttempt::settle);
        if !self.steps.is_empty() {
            self.quorum.context.spawn(join(
                self.quorum.context.clone(),
                self.token,
                self.steps,
                self.until,
                is_over,
            ));
        }
        Grant {
            token: self.token,
            valid_until: Some(self.valid_until),
            validity: self.request.lease.time,
            queued: false,
        }
    }
}

/// Runs work for a caller on the engine, and offers the result until a claim has passed since the start. Returns `None`
/// if the caller comes later. The engine drops a result that is not taken, and drops the work if the caller is dropped.
pub(crate) async fn offered<T: Send + 'static>(
    context: &Arc<Context>,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let offer = Arc::new(Mutex::new(None));
    let (done, is_done) = oneshot::channel::<()>();
    let (caller, gone) = oneshot::channel::<()>();
    let engines = offer.clone();
    let engine = context.clone();
    context.spawn(async move {
        let claim_ends = engine.now() + CLAIM;
        let offering = async {
            let value = work.await;
            *lock(&engines) = Some(value);
            let _ = done.send(());
            engine.sleep_until(claim_ends).await;
        };
        tokio::select! {
            biased;
            _ = gone => {}
            () = offering => {}
        }
        drop(lock(&engines).take());
    });
    let _ = is_done.await;
    let value = lock(&offer).take();
    drop(caller);
    value
}

/// A round that runs on the engine and offers its outcome.
type Asking = BoxFuture<'static, Option<Round>>;

/// An acquisition under way.
pub(crate) struct RedlockAttempt {
    quorum: Arc<Quorum>,
    request: Request,
    rounds: u32,
    /// The round that has not ended.
    asking: Option<(Haste, Asking)>,
    /// The answer of the previous round.
    newest: Result<(), BackendError>,
}

impl RedlockAttempt {
    pub(crate) fn new(quorum: Arc<Quorum>, request: Request) -> Self {
        let newest = Err(quorum.unreachable(0));
        Self {
            quorum,
            request,
            rounds: 0,
            asking: None,
            newest,
        }
    }

    /// Completes the round that is under way, or else a new one.
    async fn ask(&mut self, haste: Haste) -> Result<Answer, BackendError> {
        loop {
            if self.quorum.is_shutting_down() {
                return Err(BackendError::ShutDown);
            }
            let (quorum, request) = (&self.quorum, &self.request);
            let (_, asking) = self.asking.get_or_insert_with(|| {
                self.rounds += 1;
                let (quorum, request) = (quorum.clone(), request.clone());
                let context = quorum.context.clone();
                let asking = async move {
                    let asking = async move { round(&quorum, &request, haste).await };
                    offered(&context, asking).await
                };
                (haste, asking.boxed())
            });
            let round = asking.await;
            self.asking = None;
            // The next round has its own owner, because nodes may still be giving back the grants of this one.
            let owner = self.quorum.context.new_owner();
            let answer = match round {
                Some(Round::Granted(taken)) if taken.is_young() => {
                    // No await may follow.
                    let queued = self.rounds > 1;
                    return Ok(Answer::Granted(Grant {
                        queued,
                        ..taken.become_hold()
                    }));
                }
                // The caller came too late. Its grants have been given back, or are given back now.
                None | Some(Round::Granted(_)) => {
                    self.request.owner = owner;
                    continue;
                }
                Some(Round::Busy) => Ok(Answer::Busy),
                Some(Round::Unreachable(error)) => Err(error),
            };
            self.request.owner = owner;
            self.newest = answer.clone().map(|_| ());
            return answer;
        }
    }
}

/// The nodes that have not answered yet.
struct Silence {
    nodes: Vec<Arc<Node>>,
    /// Whether the round is hasty, and a majority answered recently.
    is_majority_heard: bool,
}

impl Silence {
    fn before(quorum: &Quorum, haste: Haste) -> Self {
        let heard = quorum.nodes.iter().filter(|node| !node.is_silent());
        Self {
            is_majority_heard: haste == Haste::Hasty && heard.count() >= quorum.majority(),
            nodes: quorum.nodes.clone(),
        }
    }

    fn is_broken(&mut self, step: &Step) {
        if let Step::Taken(attempt, _) = step {
            self.nodes.retain(|node| !attempt.is_of(node));
        }
    }

    /// Returns how many nodes were silent before, and are not waited for.
    fn lasting(&self) -> usize {
        let silent = self.nodes.iter().filter(|node| node.is_silent());
        if self.is_majority_heard {
            silent.count()
        } else {
            0
        }
    }

    /// Notes that these nodes have not answered in time.
    fn note(self) {
        self.nodes.iter().for_each(|node| node.note_silence());
    }
}

/// Asks all nodes once. If dropped, or without a grant, it gives back the nodes' grants.
pub(crate) async fn round(quorum: &Arc<Quorum>, request: &Request, haste: Haste) -> Round {
    let lease = request.lease.time;
    let majority = quorum.majority();
    let patience = node_patience(lease);
    if let Err(error) = quorum.mark(lease).await {
        return Round::Unreachable(error);
    }

    // The lease counts from here, because no node can have granted earlier.
    let started = quorum.context.now();
    let valid_until = started + less_node_drift(lease);
    let nodes = quorum.nodes.iter();
    let mut steps: Steps = nodes.map(|node| take(node, request)).collect();
    let mut until = started + patience;
    let mut token = None;
    // The nodes that have granted: first those without a common token, then those that know it.
    let mut taken: Vec<(NodeAttempt, FencingToken)> = Vec::new();
    let mut ready: Vec<NodeAttempt> = Vec::new();
    let (mut failed, mut refused) = (0, None);
    let mut silence = Silence::before(quorum, haste);
    while ready.len() < majority {
        let unlikely = silence.lasting();
        if taken.len() + ready.len() + steps.len() < majority + unlikely {
            failed += unlikely;
            break; // the others cannot complete a majority
        }
        let Some(Some(step)) = quorum.context.timeout_at(until, steps.next()).await else {
            failed += steps.len();
            silence.note();
            break;
        };
        silence.is_broken(&step);
        match step {
            Step::Taken(attempt, Ok(Some(offered))) => match token {
                None => taken.push((attempt, offered)),
                Some(token) if token == offered => ready.push(attempt),
                Some(token) => steps.push(raise_token(attempt, token)),
            },
            Step::Raised(attempt, Ok(true)) => ready.push(attempt),
            Step::Taken(_, Ok(None)) | Step::Raised(_, Ok(false)) => {}
            Step::Taken(_, Err(error)) | Step::Raised(_, Err(error)) => {
                failed += 1;
                if !matches!(error, BackendError::Unreachable(_)) {
                    refused = Some(error);
                }
            }
        }
        if token.is_none() && taken.len() >= majority {
            // The greatest offer is greater than any token that a majority knew before, because each node offers a
            // token above those it knows, and two majorities have a node in common.
            let greatest = taken.iter().map(|(_, offered)| *offered).max();
            token = greatest;
            until = quorum.context.now() + patience;
            for (attempt, offered) in taken.drain(..) {
                match greatest {
                    Some(token) if token != offered => steps.push(raise_token(attempt, token)),
                    _ => ready.push(attempt),
                }
            }
        }
    }
    // Nodes that the round did not wait for count as answered.
    let answered = quorum.nodes.len() - failed;
    let Some(token) = token.filter(|_| ready.len() >= majority) else {
        return match refused {
            _ if answered >= majority => Round::Busy,
            Some(error) => Round::Unreachable(error),
            None => Round::Unreachable(quorum.unreachable(answered)),
        };
    };
    let taken = Taken {
        quorum: quorum.clone(),
        request: request.clone(),
        token,
        valid_until,
        ready,
        steps,
        until,
    };
    if !taken.is_young() {
        let took = quorum.context.now().since(started);
        return Round::Unreachable(BackendError::Unreachable(format!(
            "a majority of the nodes granted, but took {took:.0?} of a lease of {lease:.0?}"
        )));
    }
    Round::Granted(Box::new(taken))
}

/// Lets the slower nodes join the hold in the background, so that it survives the loss of some of the quicker ones. If
/// the hold is released meanwhile, they give back their grants, because the release names a token that they may not
/// know yet.
async fn join(
    context: Arc<Context>,
    token: FencingToken,
    mut steps: Steps,
    until: Moment,
    mut is_over: watch::Receiver<bool>,
) {
    let mut late = context.sleep_until(until);
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
                steps.push(raise_token(attempt, token));
            }
            Some(Step::Taken(attempt, Ok(Some(_))) | Step::Raised(attempt, Ok(true))) => {
                attempt.settle();
            }
            Some(_) => {}
        }
    }
}

impl Attempt for RedlockAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            loop {
                let haste = Haste::of_round(self.rounds);
                match self.ask(haste).await {
                    Ok(Answer::Busy) | Err(BackendError::Unreachable(_))
                        if !self.request.wait.is_zero() => {}
                    answer => return answer,
                }
                let chance = self.quorum.context.chance();
                let pause = Backoff::default().pause(self.rounds, chance);
                self.quorum.context.sleep(pause).await;
            }
        })
    }

    /// Completes the round that is under way, or starts another one, because a lease may have ended since the last
    /// round. There is no queue to leave.
    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Box::pin(async move {
            let under_way = self.asking.as_ref().map(|(haste, _)| *haste);
            if under_way.is_none() {
                self.newest.clone()?;
            }
            let mut answer = self.ask(Haste::Patient).await?;
            if under_way == Some(Haste::Hasty) && matches!(answer, Answer::Busy) {
                answer = self.ask(Haste::Patient).await?;
            }
            Ok(match answer {
                Answer::Granted(grant) => Leaving::Granted(grant),
                Answer::Busy => Leaving::Left,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_caller_that_tries_once_is_patient() {
        let rounds = [0, 1, 2, 3, 4, 5].map(Haste::of_round);
        assert_eq!(
            rounds.map(|haste| haste == Haste::Patient),
            [true, false, false, false, true, false]
        );
    }

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
