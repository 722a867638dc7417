//! Copies and hashes of a core, for the model (`tests/model`) that visits every state. Values that leave the core have left
//! it by then.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use super::super::*;
use crate::backend::redis::core::Core;

impl<P: Parts> Clone for WaitList<P>
where
    Waiting<P>: Clone,
    P::Batch: Clone,
{
    fn clone(&self) -> Self {
        Self {
            waiting: self.waiting.clone(),
            batch: self.batch.clone(),
            unsent: self.unsent.clone(),
            ..*self
        }
    }
}

impl<P: Parts> Hash for WaitList<P>
where
    Waiting<P>: Hash,
    P::Batch: Hash,
{
    fn hash<H: Hasher>(&self, state: &mut H) {
        let waiting: BTreeMap<_, _> = self.waiting.iter().collect();
        (waiting, &self.batch, &self.unsent).hash(state);
        (self.queued, self.sending, self.probe).hash(state);
    }
}

impl<P: Parts> Clone for Core<P>
where
    WaitList<P>: Clone,
{
    fn clone(&self) -> Self {
        let links = self.lines.links.iter().map(|(link, state)| {
            let copy = LinkState {
                session_id: state.session_id.clone(),
                has_ended: state.has_ended,
                lists: state.lists.clone(),
                probes: state.probes.clone(),
            };
            (*link, copy)
        });
        Self {
            lines: Lines {
                links: links.collect(),
                newest: self.lines.newest,
                outgoing: Outgoing::default(),
            },
            cohorts: self.cohorts.clone(),
        }
    }
}

impl<P: Parts> Hash for Core<P>
where
    WaitList<P>: Hash,
{
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.cohorts.hash(state);
        for (link, LinkState { lists, .. }) in &self.lines.links {
            (link, lists).hash(state); // the moments of the probes are in the lists, too
        }
    }
}

impl<P: Parts> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.cohorts, f)
    }
}
