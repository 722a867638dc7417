//! One acquisition of a lock from the nodes of a Redlock. The acquisition runs rounds. In each round, the acquisition
//! requests the lock from all nodes once, under a new owner name. Rounds are repeated until a majority grants the lock,
//! and enough of the lease is left.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use lock_core::{
    backend::{Answer, Attempt, BackendError, BoxFuture, Leaving, Request},
    fencing::FencingToken,
    key::LockName,
    lease::{Grant, Moment},
    options::Backoff,
};
use tokio::{sync::watch, task::JoinError};

use crate::backend::redlock::{
    agreement::Agreement,
    membership::connected,
    node::{Node, NodeAttempt},
    quorum::{Quorum, less_node_drift},
};

/// The lease divided by this number is the time within which a node has to answer.
const NODE_SHARE: u32 = 10;
/// The shortest and the longest time limit for the answer of a node. These bounds apply to every length of the lease.
const NODE_PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// When a body starts, at least the lease divided by this number must be left of the lease. If less is left because the
/// nodes have answered late, the lock is given back.
const START_SHARE: u32 = 2;

/// Returns the time within which a node has to answer.
fn node_patience(lease: Duration) -> Duration {
    (lease / NODE_SHARE).clamp(NODE_PATIENCE.0, NODE_PATIENCE.1)
}

/// Returns whether enough is left of a lease to start a body.
fn is_enough(left: Duration, lease: Duration) -> bool {
    !left.is_zero() && left >= lease / START_SHARE
}

/// The result of one request that a round has sent to one node.
enum Step {
    /// The result of a request for the lock: the token that the node offers, or `None` if the lock is not free on the
    /// node.
    Taken(NodeAttempt, Result<Option<FencingToken>, BackendError>),
    /// The result of sending the agreed token to the node: `true` if the node still had its grant, and has stored the
    /// token.
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

/// Whether a round waits for silent nodes. A silent node did not answer the previous request that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// The round waits as long for silent nodes as for the other nodes, so that it does not miss a possible majority.
    Patient,
    /// The round does not wait for silent nodes. Without a majority, a hasty round gives back its grants at once, so
    /// that other callers can take the lock. A later `Patient` round waits for silent nodes.
    Hasty,
}

impl Haste {
    /// Returns the haste of the round that follows `before` earlier rounds. Every fourth round is `Patient`, beginning
    /// with the first.
    fn of_round(before: u32) -> Self {
        if before.is_multiple_of(4) {
            Self::Patient
        } else {
            Self::Hasty
        }
    }
}

/// The outcome of one round of requests to all nodes.
pub(crate) enum Round {
    Granted(Box<Taken>),
    /// Other callers hold the lock on so many nodes that this round cannot get a majority.
    Busy,
    /// Too few nodes answered, or the nodes answered too late.
    Unreachable(BackendError),
}

/// A lock that a majority has granted. If this value is dropped before it becomes a hold, the lock is given back in the
/// background.
pub(crate) struct Taken {
    quorum: Arc<Quorum>,
    request: Request,
    token: FencingToken,
    valid_until: Moment,
    /// The nodes that have granted the lock and have stored the token.
    ready: Vec<NodeAttempt>,
    /// The open requests to the nodes that are not in `ready`. The grants of these nodes can still be added to the
    /// hold.
    steps: Steps,
    /// The moment until which grants of further nodes are added to the hold.
    until: Moment,
}

impl Taken {
    /// Returns whether enough of the lease is left for a body to start.
    pub(crate) fn is_young(&self) -> bool {
        is_enough(
            self.valid_until.since(self.quorum.context.now()),
            self.request.lease.time,
        )
    }

    /// Gives the lock back. If the release fails, repeats it in the background until the lease has ended.
    pub(crate) async fn release(self) {
        let (quorum, name) = (self.quorum.clone(), self.request.name.clone());
        let grant = self.become_hold();
        if quorum.release(&name, grant.token, None).await.is_err() {
            let ends = grant.valid_until;
            let latest_end = ends.unwrap_or_else(|| quorum.context.now());
            let releasing = quorum
                .clone()
                .release_until(name, grant.token, None, ends, latest_end);
            quorum.context.spawn(releasing);
        }
    }

    /// Turns the grants of the majority into a hold. This method contains no await, so the caller cannot be dropped
    /// halfway. Grants of further nodes can be added to the hold later.
    pub(crate) fn become_hold(self) -> Grant {
        let name = &self.request.name;
        let holders = self.ready.iter().map(|attempt| attempt.node().clone());
        let owner = self.request.owner;
        let is_over = self
            .quorum
            .begin_hold(name, self.token, owner, holders.collect());
        self.ready
            .into_iter()
            .for_each(|mut attempt| attempt.settle());
        if !self.steps.is_empty() {
            self.quorum.context.spawn(join(
                self.quorum.clone(),
                name.clone(),
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
            handoff: None,
        }
    }
}

/// A round that runs in a task of the engine.
type Asking = BoxFuture<'static, Result<Round, JoinError>>;

/// An acquisition of a lock from the nodes of a Redlock.
pub(crate) struct RedlockAttempt {
    quorum: Arc<Quorum>,
    request: Request,
    rounds: u32,
    /// The round that is in progress, if there is one.
    asking: Option<(Haste, Asking)>,
    /// `Ok` if a majority answered in the previous round, and otherwise the reason why no majority answered.
    newest: Result<(), BackendError>,
}

impl RedlockAttempt {
    pub(crate) fn new(quorum: Arc<Quorum>, request: Request) -> Self {
        let newest = Err(quorum.unreachable(0, None));
        Self {
            quorum,
            request,
            rounds: 0,
            asking: None,
            newest,
        }
    }

    /// Completes the round that is in progress. If no round is in progress, starts a round and completes it.
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
                let asking = async move { round(&quorum, &request, haste).await };
                // The round runs on the engine's thread, behind the releases that this thread sends to the nodes.
                let asking = async move { context.run(asking).await };
                (haste, asking.boxed())
            });
            let round = asking.await;
            self.asking = None;
            let answer = match round {
                Ok(Round::Granted(taken)) if taken.is_young() => {
                    // The code from here on must not await. At an await, the caller could be dropped after its grants
                    // have become a hold.
                    let queued = self.rounds > 1;
                    return Ok(Answer::Granted(Grant {
                        queued,
                        ..taken.become_hold()
                    }));
                }
                Ok(Round::Granted(_)) => continue, // the process was stopped meanwhile
                Ok(Round::Busy) => Ok(Answer::Busy),
                Ok(Round::Unreachable(error)) => Err(error),
                Err(panic) => Err(BackendError::Unreachable(panic.to_string())),
            };
            self.newest = answer.clone().map(|_| ());
            return answer;
        }
    }
}

/// The nodes that have not answered in the current round yet.
struct Silence {
    nodes: Vec<Arc<Node>>,
    /// Whether the round does not wait for silent nodes. This is true if the round is hasty, and a majority of the
    /// nodes answered their previous requests.
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

    fn note_answer(&mut self, step: &Step) {
        if let Step::Taken(attempt, _) = step {
            self.nodes.retain(|node| !attempt.is_of(node));
        }
    }

    /// Returns the number of nodes that have not answered this round and that the round does not wait for.
    fn lasting(&self) -> usize {
        let silent = self.nodes.iter().filter(|node| node.is_silent());
        if self.is_majority_heard {
            silent.count()
        } else {
            0
        }
    }

    /// Records that the remaining nodes have not answered the round in time.
    fn note(self) {
        self.nodes.iter().for_each(|node| node.note_silence());
    }
}

/// Runs one round: asks all nodes once for the lock. If the round is dropped, or gets no majority, the nodes' grants
/// are given back.
pub(crate) async fn round(quorum: &Arc<Quorum>, request: &Request, haste: Haste) -> Round {
    // Each round has its own owner name, because some nodes may not have given back the grants of an earlier round yet.
    // A request that gives a grant back names only the owner, so it would also end a new grant of this owner.
    connected(quorum).await;
    let request = &Request {
        owner: quorum.context.new_owner(),
        ..request.clone()
    };
    let lease = request.lease.time;
    let majority = quorum.majority();
    let patience = node_patience(lease);
    if let Err(error) = quorum.mark(lease).await {
        return Round::Unreachable(error);
    }

    // The lease counts from this moment, because every node grants the lock later than this moment.
    let started = quorum.context.now();
    let valid_until = started + less_node_drift(lease);
    let nodes = quorum.nodes.iter();
    let mut steps: Steps = nodes.map(|node| take(node, request)).collect();
    let mut until = started + patience;
    let mut agreement = Agreement::new(majority);
    let (mut failed, mut refusals) = (0, Vec::new());
    // Refusals end the call. If the nodes that have not refused can complete a majority, the call tries again instead.
    let are_decisive = |refusals: usize| refusals + majority > quorum.nodes.len();
    let mut silence = Silence::before(quorum, haste);
    while !agreement.is_reached() {
        let unlikely = silence.lasting();
        // The nodes that are likely to answer cannot complete a majority. If a node has refused, the round still reads
        // the answers that decide whether the call ends.
        if agreement.counted() + steps.len() < majority + unlikely
            && (refusals.is_empty()
                || are_decisive(refusals.len())
                || !are_decisive(refusals.len() + steps.len() - unlikely))
        {
            failed += unlikely;
            break;
        }
        let Some(Some(step)) = quorum.context.timeout_at(until, steps.next()).await else {
            failed += steps.len();
            silence.note();
            break;
        };
        silence.note_answer(&step);
        match step {
            Step::Taken(attempt, Ok(Some(offer))) => {
                let was_open = agreement.token().is_none();
                let behind = agreement.offered(attempt, offer);
                if let Some(token) = agreement.token() {
                    if was_open {
                        until = quorum.context.now() + patience;
                    }
                    steps.extend(
                        behind
                            .into_iter()
                            .map(|attempt| raise_token(attempt, token)),
                    );
                }
            }
            Step::Raised(attempt, Ok(true)) => agreement.raised(attempt),
            Step::Taken(_, Ok(None)) | Step::Raised(_, Ok(false)) => {}
            Step::Taken(_, Err(error)) | Step::Raised(_, Err(error)) => {
                failed += 1;
                if !matches!(error, BackendError::Unreachable(_)) {
                    refusals.push(error);
                }
            }
        }
    }
    // If the round is decided before all nodes have answered, the remaining nodes count as nodes that have answered.
    // The silent nodes that the round did not wait for do not count.
    let answered = quorum.nodes.len() - failed;
    let Some((token, ready, above)) = agreement.reached() else {
        let are_decisive = are_decisive(refusals.len());
        return match refusals.pop() {
            _ if answered >= majority => Round::Busy,
            Some(error) if are_decisive => Round::Unreachable(error),
            refusal => Round::Unreachable(quorum.unreachable(answered, refusal.as_ref())),
        };
    };
    steps.extend(above.into_iter().map(|attempt| raise_token(attempt, token)));
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

/// Adds the grants of slower nodes to the hold in the background, so that a majority still has the grant if some of the
/// quicker nodes fail. If the hold is released in the meantime, the grants of the slower nodes are given back
/// separately. The release does not end these grants, because it names a token that the slower nodes might not know
/// yet.
async fn join(
    quorum: Arc<Quorum>,
    name: LockName,
    token: FencingToken,
    mut steps: Steps,
    until: Moment,
    mut is_over: watch::Receiver<bool>,
) {
    let mut late = quorum.context.sleep_until(until);
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
            Some(Step::Taken(mut attempt, Ok(Some(_))) | Step::Raised(mut attempt, Ok(true))) => {
                if quorum.note_holder(&name, token, attempt.node()) {
                    attempt.settle();
                }
            }
            Some(_) => {}
        }
    }
}

impl Attempt for RedlockAttempt {
    fn was_answered(&self) -> bool {
        self.newest.is_ok()
    }

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

    /// Completes the round that is in progress. If no round is in progress, starts one last round, because the holder's
    /// lease may have ended since the previous round. A Redlock has no queue, so the caller has no place in a queue to
    /// leave.
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
                Answer::Busy | Answer::Missed => Leaving::Left,
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
