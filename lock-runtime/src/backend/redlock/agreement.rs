//! The token of a hold on a majority of the nodes of a Redlock. `Agreement` does no I/O, so unit tests and the model
//! checker can run it.

use std::cmp::Ordering;

use lock_core::fencing::FencingToken;

/// The agreement of one round (one request for the lock to all nodes). The round agrees on one token: the greatest
/// token that the first majority of the nodes offers.
///
/// Each node offers a token that is greater than the token of every holder that it knows. A node counts toward the
/// majority only if its offer is at most the agreed token. The nodes of the majority therefore know no holder whose
/// token is equal to the agreed token or greater. Each earlier holder stored its token on a majority. Two majorities
/// share a node, so the agreed token is greater than the token of each earlier holder.
///
/// A node of the majority can lose its grant before it receives the agreed token. A node with a greater offer must not
/// take the place of this lost node. In the meantime, another caller may have held the lock with the agreed token, and
/// the node with the greater offer may know that caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Agreement<A> {
    majority: usize,
    token: Option<FencingToken>,
    /// The nodes that granted the lock before the agreed token was known, each with its offer. Empty once the agreed
    /// token is known.
    offers: Vec<(A, FencingToken)>,
    /// The nodes that have granted the lock, and have stored the agreed token.
    ready: Vec<A>,
    /// The nodes whose offer is greater than the agreed token. A node with a greater offer does not count toward the
    /// majority, but its grant can be added to a hold that has a majority without this node.
    above: Vec<A>,
}

impl<A> Agreement<A> {
    pub(crate) fn new(majority: usize) -> Self {
        Self {
            majority,
            token: None,
            offers: Vec::new(),
            ready: Vec::new(),
            above: Vec::new(),
        }
    }

    /// Returns the agreed token, or `None` while it is not known.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Adds the offer of a node that has granted the lock. Returns the nodes to which the agreed token has to be sent
    /// now.
    pub(crate) fn offered(&mut self, node: A, offer: FencingToken) -> Vec<A> {
        if self.token.is_none() {
            self.offers.push((node, offer));
            if self.offers.len() < self.majority {
                return Vec::new();
            }
            self.token = self.offers.iter().map(|(_, offer)| *offer).max();
            let offers = std::mem::take(&mut self.offers).into_iter();
            return offers
                .flat_map(|(node, offer)| self.offered(node, offer))
                .collect();
        }
        match Some(offer).cmp(&self.token) {
            Ordering::Less => return vec![node],
            Ordering::Equal => self.ready.push(node),
            Ordering::Greater => self.above.push(node),
        }
        Vec::new()
    }

    /// Records that a node has stored the agreed token.
    pub(crate) fn raised(&mut self, node: A) {
        self.ready.push(node);
    }

    /// Returns how many nodes have stored the agreed token. While that token is not known, returns how many nodes have
    /// granted the lock.
    pub(crate) fn counted(&self) -> usize {
        self.offers.len() + self.ready.len()
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.ready.len() >= self.majority
    }

    /// Returns the agreed token, the nodes that have stored it, and the nodes with a greater offer. Returns `None` if
    /// no majority has stored the agreed token.
    pub(crate) fn reached(self) -> Option<(FencingToken, Vec<A>, Vec<A>)> {
        let token = self.token.filter(|_| self.is_reached())?;
        Some((token, self.ready, self.above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds these offers, each with its node. Returns the nodes to which the agreed token has to be sent.
    fn offered(agreement: &mut Agreement<u8>, offers: &[(u8, u64)]) -> Vec<u8> {
        let offers = offers.iter();
        let offers = offers.map(|(node, offer)| (*node, FencingToken::new(*offer)));
        offers
            .flat_map(|(node, offer)| agreement.offered(node, offer))
            .collect()
    }

    #[test]
    fn the_token_is_the_greatest_offer_of_the_first_majority() {
        let mut agreement = Agreement::new(2);
        assert!(offered(&mut agreement, &[(0, 7)]).is_empty());
        assert!(!agreement.is_reached());
        assert_eq!(offered(&mut agreement, &[(1, 9), (2, 8)]), [0, 2]);
        assert!(
            !agreement.is_reached(),
            "node 0 has not stored the agreed token yet"
        );
        agreement.raised(0);
        let reached = agreement.reached();
        assert_eq!(reached, Some((FencingToken::new(9), vec![1, 0], vec![])));
    }

    #[test]
    fn a_node_that_offers_more_than_the_token_makes_no_majority() {
        // Node 1 loses its grant before the token is sent to it. Node 2 offers token 10, so it may have had a holder
        // with token 9 before.
        let mut agreement = Agreement::new(2);
        assert_eq!(offered(&mut agreement, &[(0, 9), (1, 7), (2, 10)]), [1]);
        assert_eq!(agreement.counted(), 1);
        assert_eq!(agreement.reached(), None);
    }

    #[test]
    fn a_node_that_offers_more_than_the_token_joins_a_majority() {
        let mut agreement = Agreement::new(2);
        assert!(offered(&mut agreement, &[(0, 9), (1, 9), (2, 10)]).is_empty());
        let reached = agreement.reached();
        assert_eq!(reached, Some((FencingToken::new(9), vec![0, 1], vec![2])));
    }
}
