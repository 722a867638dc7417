//! Callers that take several locks in one call.

use std::sync::Arc;

use lock_runtime::{Hold, Holds, MultiLock, Strategy};

use super::{Caller, SHORTEST_RENEWED, Way};
use crate::ledger::{CallId, Presence, Wanted};

impl Caller {
    pub(super) async fn several(self: &Arc<Self>) {
        let Some((locks, keys, call)) = self.begin_several(Way::Several) else {
            return tokio::task::yield_now().await;
        };
        let ended = self.late(locks.run(self.clone().body_of(call, keys))).await;
        self.end(call, ended.err());
    }

    /// Chooses random keys and options for a call with several keys, and records in the ledger that the call begins.
    /// Returns `None` if no key was chosen, or only one for a call that is forgotten: like a call with several keys, it would
    /// keep its lock until a claim after its `wait`, and the judge takes it for a call with one key.
    pub(super) fn begin_several(&self, way: Way) -> Option<(MultiLock, Vec<String>, CallId)> {
        let plan = &self.process.plan;
        let keys: Vec<String> = (0..plan.keys)
            .filter(|_| self.chance.percent(60))
            .map(|key| format!("k{key}"))
            .collect();
        if keys.is_empty() || way == Way::Forgotten && keys.len() == 1 {
            return None;
        }
        let mut keys = self.orders.shuffled(keys);
        if self.orders.percent(20) {
            keys.push(self.orders.pick(&keys));
        }
        let wait = self.chance.pick(&plan.waits);
        let lease = self.chance.pick(&plan.leases);
        let keeps = way == Way::Forgotten || lease < SHORTEST_RENEWED;
        let renewed = !keeps && self.chance.percent(70);
        let locks = self
            .process
            .client
            .locks(keys.clone())
            .wait(wait)
            .lease(lease)
            .renew(renewed);
        let wanted = Wanted {
            lease,
            own_lease: lease,
            renewed,
            is_multi: true,
            ..self.wanted(way, keys.clone(), wait, Strategy::Handoff)
        };
        Some((locks, keys, self.process.ledger.begin(wanted)))
    }

    /// The body of a call with several keys.
    pub(super) async fn body_of(self: Arc<Self>, call: CallId, keys: Vec<String>) {
        let holds = Holds::current().expect("the body runs within several holds");
        let _inside = self.enter_each(call, &holds, &keys);
        self.work().await;
    }

    /// Records that a call has entered the body under several locks, and checks that its holds are in the order of its
    /// keys.
    fn enter_each(&self, call: CallId, holds: &Holds, keys: &[String]) -> Vec<Presence> {
        let ledger = &self.process.ledger;
        let held: Vec<String> = holds.iter().map(|hold| hold.key().to_string()).collect();
        if held != keys {
            let seen = format!("holds of {held:?}, keys {keys:?}");
            ledger.violated("the holds are in the order of the keys", seen);
        }
        let is_first = |(number, _): &(usize, &Hold)| !held[..*number].contains(&held[*number]);
        let firsts = holds.iter().enumerate().filter(is_first);
        firsts
            .map(|(_, hold)| ledger.enter(call, hold.clone()))
            .collect()
    }
}
