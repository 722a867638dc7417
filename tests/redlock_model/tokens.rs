//! A model of the fencing tokens on which the nodes of a Redlock agree.
//!
//! The model has three nodes, one lock, and three clients. Each client requests the lock once from all nodes, and uses
//! the engine's own [`Agreement`]. In each step, one node executes one request, or one client reads one reply, so
//! requests and replies are handled in every possible order. Clients can give up or leave at any time. A lease can end
//! at any time after its client has left. States that differ only in the numbers of the clients count as one state.
//!
//! The model leaves out time. While a client requests the lock or holds it, the client's lease does not end on any
//! node. The reason is that a client gives up before its lease ends on a node. The model also leaves out renewals, and
//! nodes that lose their state, which `marks.rs` models.

use lock_core::fencing::FencingToken;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::agreement::Agreement;

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;
const CLIENTS: usize = 3;

/// A rule that a run of the checker removes from the model, to show that the checker then finds an error. Each comment
/// describes the model without the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// If a node has offered a greater token than the agreed token, the client sends the agreed token to this node too,
    /// and the node counts toward the majority.
    MoreCounts,
    /// When a node gets the agreed token, it does not raise its counter of fencing tokens to this token.
    FenceStays,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Node {
    fence: u8,
    /// The client that holds the lock on this node, and the token of the grant.
    grant: Option<(usize, u8)>,
}

/// The message that is under way between one client and one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Wire {
    /// A request for the lock.
    Take,
    /// The reply to a request for the lock, with the token that the node offers.
    Offer(u8),
    /// A request to store the token on which the nodes have agreed.
    Raise(u8),
    /// The reply that the node has stored the token.
    Raised,
    /// A request to remove the client's own grant, and any other grant with this token.
    Release(u8),
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Client {
    Asks(Agreement<usize>),
    Inside(u8),
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    wires: [[Wire; NODES]; CLIENTS],
    /// The token of the newest hold.
    newest: u8,
    fell: bool,
    overlap: bool,
    entered: u8,
}

impl State {
    /// Returns the state with its clients sorted, so that states that differ only in the numbers of their clients
    /// become equal.
    fn representative(&self) -> Self {
        let mut order: [usize; CLIENTS] = std::array::from_fn(|client| client);
        order.sort_by_key(|client| {
            let held = self.nodes.iter().map(|node| node.grant);
            let held = held.map(|grant| grant.filter(|(owner, _)| owner == client));
            let held: Vec<_> = held.map(|grant| grant.map(|(_, token)| token)).collect();
            (self.wires[*client], self.clients[*client].clone(), held)
        });
        let renamed = |(owner, token)| {
            let place = order.iter().position(|client| *client == owner);
            (place.expect("the order contains every client"), token)
        };
        Self {
            nodes: self.nodes.clone().map(|node| Node {
                grant: node.grant.map(renamed),
                ..node
            }),
            clients: order.map(|client| self.clients[client].clone()),
            wires: order.map(|client| self.wires[client]),
            ..self.clone()
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    /// The node executes the client's request. The fields are the client and the node.
    Carry(usize, usize),
    /// The client reads the node's reply. The fields are the client and the node.
    Read(usize, usize),
    /// The client gives its grants back, because it has found no majority, its call was dropped, or its body has ended.
    /// If no node executes the client's requests for this, the action models a crash of the client.
    Leave(usize),
    /// The lease of a grant ends on the node with this index. The client of the grant has already given up the grant.
    Expire(usize),
}

struct Tokens(Broken);

impl Tokens {
    /// Reads a node's reply, which is an offer, or `None` if the node has stored the token. Lets the client enter when
    /// a majority of the nodes has stored the token.
    fn read(&self, state: &mut State, client: usize, node: usize, offer: Option<u8>) {
        let Client::Asks(agreement) = &mut state.clients[client] else {
            // The offer of this node has arrived after the client has got the lock, so the client sends the token of
            // its hold to the node.
            if let (Client::Inside(token), Some(offer)) = (&state.clients[client], offer)
                && offer != *token
            {
                state.wires[client][node] = Wire::Raise(*token);
            }
            return;
        };
        match offer {
            None => agreement.raised(node),
            Some(offer) => {
                let known = agreement.token();
                let offer = FencingToken::new(offer.into());
                let behind =
                    if self.0 == Broken::MoreCounts && known.is_some_and(|known| offer > known) {
                        vec![node]
                    } else {
                        agreement.offered(node, offer)
                    };
                if let Some(token) = agreement.token() {
                    for behind in behind {
                        state.wires[client][behind] = Wire::Raise(small(token));
                    }
                }
            }
        }
        let Some((token, _, above)) = agreement.clone().reached() else {
            return;
        };
        let token = small(token);
        for node in above {
            state.wires[client][node] = Wire::Raise(token);
        }
        let inside = |client: &Client| matches!(client, Client::Inside(_));
        state.overlap |= state.clients.iter().any(inside);
        state.fell |= token <= state.newest;
        state.newest = state.newest.max(token);
        state.entered += 1;
        state.clients[client] = Client::Inside(token);
    }
}

fn small(token: FencingToken) -> u8 {
    token
        .get()
        .try_into()
        .expect("the model's tokens are small numbers")
}

impl Model for Tokens {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: Default::default(),
            clients: std::array::from_fn(|_| Client::Asks(Agreement::new(MAJORITY))),
            wires: [[Wire::Take; NODES]; CLIENTS],
            newest: 0,
            fell: false,
            overlap: false,
            entered: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in 0..CLIENTS {
            for node in 0..NODES {
                match state.wires[client][node] {
                    Wire::Take | Wire::Raise(_) | Wire::Release(_) => {
                        actions.push(Action::Carry(client, node));
                    }
                    Wire::Offer(_) | Wire::Raised => actions.push(Action::Read(client, node)),
                    Wire::Nothing => {}
                }
            }
            if !matches!(state.clients[client], Client::Gone) {
                actions.push(Action::Leave(client));
            }
        }
        for (number, node) in state.nodes.iter().enumerate() {
            if let Some((client, _)) = node.grant
                && matches!(state.clients[client], Client::Gone)
            {
                actions.push(Action::Expire(number));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Carry(client, number) => {
                let node = &mut state.nodes[number];
                let mine = node.grant.filter(|(owner, _)| *owner == client);
                state.wires[client][number] = match state.wires[client][number] {
                    Wire::Take if node.grant.is_none() => {
                        node.fence += 1;
                        node.grant = Some((client, node.fence));
                        Wire::Offer(node.fence)
                    }
                    Wire::Raise(token) if mine.is_some() => {
                        if self.0 != Broken::FenceStays {
                            node.fence = node.fence.max(token);
                        }
                        node.grant = Some((client, token));
                        Wire::Raised
                    }
                    Wire::Release(token) => {
                        let named =
                            |(owner, held): &(usize, u8)| *owner == client || *held == token;
                        node.grant = node.grant.filter(|grant| !named(grant));
                        Wire::Nothing
                    }
                    _ => Wire::Nothing,
                };
            }
            Action::Read(client, node) => {
                let reply = std::mem::replace(&mut state.wires[client][node], Wire::Nothing);
                let offer = match reply {
                    Wire::Offer(offer) => Some(offer),
                    _ => None,
                };
                self.read(&mut state, client, node, offer);
            }
            Action::Leave(client) => {
                let token = match &state.clients[client] {
                    Client::Inside(token) => *token,
                    _ => 0,
                };
                state.clients[client] = Client::Gone;
                state.wires[client] = [Wire::Release(token); NODES];
            }
            Action::Expire(node) => state.nodes[node].grant = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no two clients hold the lock at once",
                |_, state: &State| !state.overlap,
            ),
            Property::always("tokens rise", |_, state: &State| !state.fell),
            Property::sometimes("all clients have held the lock", |_, state: &State| {
                usize::from(state.entered) == CLIENTS
            }),
        ]
    }
}

fn check(broken: Broken) -> impl Checker<Tokens> {
    let mut checker = Tokens(broken).checker().threads(2);
    checker = checker.symmetry_fn(State::representative);
    if broken != Broken::Nothing {
        checker = checker.finish_when(HasDiscoveries::AnyFailures);
    }
    let checked = checker.spawn_dfs().join();
    println!("{broken:?}: {} states", checked.unique_state_count());
    checked
}

#[test]
fn tokens_rise_in_the_order_of_the_holds() {
    check(Broken::Nothing).assert_properties();
}

#[test]
fn each_rule_of_the_tokens_is_needed() {
    for broken in [Broken::MoreCounts, Broken::FenceStays] {
        let checked = check(broken);
        let found = ["no two clients hold the lock at once", "tokens rise"]
            .map(|property| checked.discovery(property).is_some());
        assert!(found.contains(&true), "{broken:?} breaks nothing");
    }
}
