//! A model of the marks by which a Redlock recognizes nodes that have lost their state.
//!
//! The model has three nodes, one lock, and two clients with different leases. In each step, one node executes one
//! request, so requests that take the lock, write marks or read marks are executed in every possible order. Between the
//! steps, nodes lose their state, leases end, and time passes in ticks. In the model, a client can collect grants until
//! its lease ends. The engine gives up earlier, so the model covers everything that the engine can do. At most one node
//! at a time is without its state, because exclusion needs a majority of nodes (two of three) that have not lost their
//! state.
//!
//! The model leaves out tokens, clocks that drift, and clients that request the lock before they have written their
//! lease into the marks. The model also leaves out renewals. A renewal with a longer lease writes marks in the same way
//! as a new acquisition.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;
/// The number of other nodes whose marks a client has to read before it again counts the grants of a node that has lost
/// its state.
const ENOUGH: usize = NODES - MAJORITY + 1;
/// The leases of the clients, in ticks. At the beginning, every mark already contains the shorter lease. After a node
/// has lost its state, only the client with the shorter lease decides when the node counts toward a majority again.
const LEASES: [u8; 2] = [3, 1];
const CLIENTS: usize = LEASES.len();
const HORIZON: u8 = 3;
/// The maximum number of losses of state across all nodes.
const LOSSES: u8 = 2;

/// A rule that a run of the checker removes from the model, to show that the checker then finds an error. Each comment
/// describes the model without the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The quarantine of a node is the time for which the node does not count. Without the rule, the quarantine lasts
    /// only as long as the lease of the client that counts the node again. The marks of other nodes possibly contain a
    /// longer lease.
    AnyoneAdmits,
    /// A client writes its lease into a node's mark only together with its request for the lock. According to the rule,
    /// the lease is in a majority of the marks before the first request.
    MarkedOnTheWay,
    /// If a client has written its lease into a mark, the lease counts as written even if the node has lost its state
    /// since.
    MarkedOnce,
    /// A client counts a node toward a majority again after it has read the mark of a single other node.
    OneTells,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    /// The longest lease in the node's mark, or `None` while the node has no mark because it has lost its state.
    whole: Option<u8>,
    /// How long the node has been without a mark, in ticks.
    age: u8,
    /// The number of the node's last loss of state, or 0 if the node has never lost its state. The losses of all nodes
    /// share one sequence of numbers.
    loss: u8,
    /// The client that holds the lock on this node, and the ticks that are left of its lease.
    grant: Option<(usize, u8)>,
}

/// The progress of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Client {
    /// The client writes its lease into the marks of the nodes. For each mark that the client has written, the field
    /// `marked` contains the value of the node's `loss` at that time. When the client has written a majority of the
    /// marks, it reads them again. The field `found` says which of the marks contained the client's lease.
    Marks {
        marked: [Option<u8>; NODES],
        found: [bool; NODES],
    },
    /// The client requests the lock. `asked` says which nodes have got the request, `granted` says which nodes have
    /// granted the lock, and `left` is the number of ticks that are left of the lease.
    Asks {
        asked: [bool; NODES],
        granted: [bool; NODES],
        left: u8,
    },
    /// The client holds the lock, and its lease lasts for this many more ticks.
    Holds(u8),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// For each node that has lost its state, the marks that the client with the shorter lease has read from the other
    /// nodes since the loss.
    told: [[Option<u8>; NODES]; NODES],
    losses: u8,
    /// Whether two clients held the lock at the same time.
    overlap: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    Mark(usize, usize),
    Find(usize, usize),
    Begin(usize),
    Take(usize, usize),
    Enter(usize),
    GiveUp(usize),
    Lose(usize),
    /// The node `lost` has lost its state, so the client with the shorter lease reads the mark of the node `from`.
    Read {
        lost: usize,
        from: usize,
    },
    Admit(usize),
    Tick,
}

#[derive(Debug, Clone)]
struct Marks(Broken);

impl Marks {
    /// Returns the number of ticks for which the client with the shorter lease does not count the node `lost`, which
    /// has lost its state. Returns `None` while the client has read too few marks of other nodes.
    fn quarantine(&self, state: &State, lost: usize) -> Option<u8> {
        let own = LEASES[CLIENTS - 1];
        if self.0 == Broken::AnyoneAdmits {
            return Some(own);
        }
        let enough = if self.0 == Broken::OneTells {
            1
        } else {
            ENOUGH
        };
        let told: Vec<u8> = state.told[lost].into_iter().flatten().collect();
        (told.len() >= enough).then(|| told.into_iter().fold(own, u8::max))
    }
}

/// The state of a client whose lease is in a majority of the marks.
const MARKED: Client = Client::Marks {
    marked: [None; NODES],
    found: [true; NODES],
};

impl Model for Marks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            whole: Some(LEASES[CLIENTS - 1]),
            age: 0,
            loss: 0,
            grant: None,
        };
        vec![State {
            now: 0,
            nodes: std::array::from_fn(|_| node.clone()),
            clients: [
                Client::Marks {
                    marked: [None; NODES],
                    found: [false; NODES],
                },
                MARKED,
            ],
            told: [[None; NODES]; NODES],
            losses: 0,
            overlap: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, client) in state.clients.iter().enumerate() {
            match client {
                Client::Marks { marked, found } => {
                    let written = marked.iter().flatten().count() >= MAJORITY;
                    let enough = found.iter().filter(|found| **found).count() >= MAJORITY;
                    if enough || self.0 == Broken::MarkedOnTheWay {
                        actions.push(Action::Begin(number));
                    }
                    if enough {
                        continue;
                    }
                    for node in (0..NODES).filter(|node| state.nodes[*node].whole.is_some()) {
                        let stands =
                            |loss| loss == state.nodes[node].loss || self.0 == Broken::MarkedOnce;
                        match marked[node] {
                            None if !written => actions.push(Action::Mark(number, node)),
                            Some(loss) if !stands(loss) => actions.push(Action::Mark(number, node)),
                            Some(_) if written && !found[node] => {
                                actions.push(Action::Find(number, node));
                            }
                            _ => {}
                        }
                    }
                }
                Client::Asks { asked, granted, .. } => {
                    let nodes = (0..NODES).filter(|node| !asked[*node]);
                    actions.extend(nodes.map(|node| Action::Take(number, node)));
                    if granted.iter().filter(|granted| **granted).count() >= MAJORITY {
                        actions.push(Action::Enter(number));
                    }
                    if asked.iter().all(|asked| *asked) {
                        actions.push(Action::GiveUp(number));
                    }
                }
                Client::Holds(_) | Client::Done => {}
            }
        }
        let whole = state.nodes.iter().filter(|node| node.whole.is_some());
        if state.losses < LOSSES && whole.count() > MAJORITY {
            let nodes = (0..NODES).filter(|node| state.nodes[*node].whole.is_some());
            actions.extend(nodes.map(Action::Lose));
        }
        for lost in 0..NODES {
            let node = &state.nodes[lost];
            if node.whole.is_none() {
                let others = (0..NODES).filter(|from| {
                    let whole = state.nodes[*from].whole.is_some();
                    *from != lost && whole && state.told[lost][*from].is_none()
                });
                actions.extend(others.map(|from| Action::Read { lost, from }));
            }
            if node.whole.is_none()
                && self
                    .quarantine(state, lost)
                    .is_some_and(|quarantine| node.age >= quarantine)
            {
                actions.push(Action::Admit(lost));
            }
        }
        if state.now < HORIZON {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Mark(client, node) => {
                let whole = state.nodes[node].whole.as_mut()?;
                *whole = LEASES[client].max(*whole);
                let loss = state.nodes[node].loss;
                if let Client::Marks { marked, found } = &mut state.clients[client] {
                    marked[node] = Some(loss);
                    *found = [false; NODES];
                }
            }
            Action::Find(client, node) => {
                if let Client::Marks { found, .. } = &mut state.clients[client] {
                    found[node] = true;
                }
            }
            Action::Begin(client) => {
                state.clients[client] = Client::Asks {
                    asked: [false; NODES],
                    granted: [false; NODES],
                    left: LEASES[client],
                };
            }
            Action::Take(number, node) => {
                let Client::Asks { asked, granted, .. } = &mut state.clients[number] else {
                    return None;
                };
                asked[node] = true;
                let node_state = &mut state.nodes[node];
                if let (Some(longest), None) = (node_state.whole, node_state.grant) {
                    node_state.whole = Some(longest.max(LEASES[number]));
                    node_state.grant = Some((number, LEASES[number]));
                    granted[node] = true;
                }
            }
            Action::Enter(number) => {
                let Client::Asks { left, .. } = state.clients[number] else {
                    return None;
                };
                let inside = |client: &Client| matches!(client, Client::Holds(_));
                state.overlap |= state.clients.iter().any(inside);
                state.clients[number] = Client::Holds(left);
            }
            Action::GiveUp(number) => {
                for node in &mut state.nodes {
                    if node.grant.is_some_and(|(owner, _)| owner == number) {
                        node.grant = None;
                    }
                }
                // The client can request the lock again at once, because its lease is already in the marks.
                state.clients[number] = MARKED;
            }
            Action::Lose(node) => {
                state.losses += 1;
                state.told[node] = [None; NODES];
                state.nodes[node] = Node {
                    whole: None,
                    age: 0,
                    loss: state.losses,
                    grant: None,
                };
            }
            Action::Read { lost, from } => {
                state.told[lost][from] = state.nodes[from].whole;
            }
            Action::Admit(lost) => {
                let told = state.told[lost].into_iter().flatten();
                let longest = told.fold(LEASES[CLIENTS - 1], u8::max);
                state.nodes[lost].whole = Some(longest);
                state.nodes[lost].age = 0;
                state.told[lost] = [None; NODES];
            }
            Action::Tick => {
                state.now += 1;
                for node in &mut state.nodes {
                    if node.whole.is_none() {
                        node.age += 1;
                    }
                    node.grant = node
                        .grant
                        .and_then(|(owner, left)| (left > 1).then(|| (owner, left - 1)));
                }
                for client in &mut state.clients {
                    match client {
                        // The lease ends in this tick, so the client can no longer get the lock by a majority.
                        Client::Asks { left, .. } if *left <= 1 => {
                            *client = Client::Done;
                        }
                        Client::Asks { left, .. } => *left -= 1,
                        Client::Holds(left) if *left <= 1 => *client = Client::Done,
                        Client::Holds(left) => *left -= 1,
                        Client::Marks { .. } | Client::Done => {}
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no two clients hold the lock at once",
                |_, state: &State| !state.overlap,
            ),
            Property::sometimes(
                "a node that lost its state is counted again",
                |_, state: &State| {
                    let again = |node: &Node| node.loss > 0 && node.grant.is_some();
                    state.nodes.iter().any(again)
                },
            ),
            Property::sometimes("both clients have held the lock", |_, state: &State| {
                let ended = |client: &Client| matches!(client, Client::Done | Client::Holds(_));
                state.losses == LOSSES && state.clients.iter().all(ended)
            }),
        ]
    }
}

fn check(broken: Broken) -> impl Checker<Marks> {
    let mut checker = Marks(broken).checker().threads(2);
    if broken != Broken::Nothing {
        checker = checker.finish_when(HasDiscoveries::AnyFailures);
    }
    let checked = checker.spawn_bfs().join();
    println!("{broken:?}: {} states", checked.unique_state_count());
    checked
}

#[test]
fn a_node_that_lost_its_state_helps_nobody_in_beside_a_holder() {
    check(Broken::Nothing).assert_properties();
}

#[test]
fn each_rule_is_needed() {
    for broken in [
        Broken::AnyoneAdmits,
        Broken::MarkedOnTheWay,
        Broken::MarkedOnce,
        Broken::OneTells,
    ] {
        let found = check(broken).discovery("no two clients hold the lock at once");
        assert!(found.is_some(), "{broken:?} breaks nothing");
    }
}
