//! A model of the marks by which a Redlock recognizes nodes that have lost their state, checked in every reachable
//! state: `cargo test --test redlock_model`.
//!
//! Three nodes, two clients with different leases, one lock. A step is one request that one node carries out, so that
//! the requests of a round, of a marking and of a check come in every order. Between them nodes lose their state,
//! leases end and time passes. Time is counted in ticks. A round has no time limit, which allows more than the runtime
//! does. As the promise requires, a majority of the nodes never lacks its state at the same time.
//!
//! Not modelled: tokens, renewals (a longer one is marked and counted like a new lease), clocks that drift, a client
//! that asks before it has marked its lease.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;
/// The number of other nodes that have to tell their marks.
const ENOUGH: usize = NODES - MAJORITY + 1;
/// The leases of the clients, in ticks. All marks contain the shorter one from the beginning, and its client checks the
/// nodes that lost their state.
const LEASES: [u8; 2] = [3, 1];
const CLIENTS: usize = LEASES.len();
const HORIZON: u8 = 3;
/// The number of times that nodes lose their state.
const LOSSES: u8 = 2;

/// A rule that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Any mark or token of another client ends the quarantine. This was the former rule.
    AnyoneAdmits,
    /// The lease is marked together with the request for the lock, without a majority of the marks having it before.
    MarkedOnTheWay,
    /// A mark counts even if it was written before its node lost its state.
    MarkedOnce,
    /// The mark of a single other node is enough.
    OneTells,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    /// The longest lease in its mark; `None` while it has lost its state.
    whole: Option<u8>,
    /// How long it has been without a mark, and the number of its loss.
    age: u8,
    loss: u8,
    /// The client that holds the lock here, and the remaining ticks.
    grant: Option<(usize, u8)>,
}

/// The progress of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Client {
    /// Writes its lease into the marks: the nodes on which it did so, with their last loss, and the nodes on which it
    /// has found it again after a majority had it.
    Marks {
        marked: [Option<u8>; NODES],
        found: [bool; NODES],
    },
    /// Asks for the lock: the nodes that were asked, the nodes that have granted, and the rest of the lease.
    Asks {
        asked: [bool; NODES],
        granted: [bool; NODES],
        left: u8,
    },
    /// Is inside for this many ticks.
    Holds(u8),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// What the client with the short lease was told of the other nodes' marks since a node lost its state.
    told: [[Option<u8>; NODES]; NODES],
    losses: u8,
    /// Two clients were inside at the same time.
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
    /// The last client reads the mark of another node.
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
    /// How long a node is without its state before the last client counts it again.
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

/// A client whose lease is in a majority of the marks.
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
                // The client asks again and knows that its lease is marked.
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
                        // A majority that grants after the lease has ended is no grant.
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
            Property::always("nobody enters beside another", |_, state: &State| {
                !state.overlap
            }),
            Property::sometimes("a lost node is counted again", |_, state: &State| {
                let again = |node: &Node| node.loss > 0 && node.grant.is_some();
                state.nodes.iter().any(again)
            }),
            Property::sometimes("both have been inside", |_, state: &State| {
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
        let found = check(broken).discovery("nobody enters beside another");
        assert!(found.is_some(), "{broken:?} breaks nothing");
    }
}
