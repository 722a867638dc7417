//! The records of faults, after which some promises do not hold for a while.

use std::time::Duration;

use super::{Ledger, OVER, millis, state::Loss};
use crate::network::{HostId, ServerId};

impl Ledger {
    /// Records that a fault begins or ends now.
    pub fn disturb(&self, fault: &'static str) {
        let now = self.history.now();
        self.history.add(|| "world".into(), || fault.to_owned());
        let mut state = self.state();
        if fault != OVER {
            state.calm = match state.disturbed {
                0 => u64::MAX,
                disturbed => now - disturbed,
            };
        }
        state.disturbed = now.max(1); // zero means that no fault has happened
        state.in_fault = fault != OVER;
        state.cut_off = None;
        *state.counts.faults.entry(fault).or_default() += 1;
    }

    /// Records that requests are not answered until the end of the present fault: the requests of this host, or of all
    /// hosts if `host` is `None`.
    pub fn cut_off(&self, host: Option<HostId>) {
        let now = self.history.now();
        self.state().cut_off = Some((host, now));
    }

    /// Records that a server is stopped.
    pub fn stop_server(&self, server: ServerId) {
        self.state().silent.insert(server, u64::MAX);
    }

    /// Records that a server continues.
    pub fn continue_server(&self, server: ServerId) {
        let now = self.history.now();
        self.state().silent.insert(server, now);
    }

    /// Records that the shutdown of the client of this host begins.
    pub fn close(&self, host: HostId) {
        let now = self.history.now();
        self.state().closing.insert(host, now);
    }

    /// Records that a process is stopped.
    pub fn stop(&self, host: HostId) {
        let now = self.history.now();
        self.state().stopped = Some((host, now));
    }

    /// Records that a process continues. The time for which the process was stopped does not count towards the `wait`
    /// of its calls.
    pub fn go_on(&self, host: HostId) {
        let now = self.history.now();
        let mut state = self.state();
        let since = state.stopped.take().map_or(now, |(_, since)| since);
        for call in state.calls.values_mut() {
            if call.wanted.host == host {
                call.began += now - since.max(call.began);
                call.left = None;
            }
        }
    }

    /// Records that a node of a Redlock loses its mark.
    pub fn forget_mark(&self, server: ServerId) {
        let mut state = self.state();
        state.marks.retain(|(its, _), _| *its != server);
        let lefts = state.keys.keys().flat_map(|key| self.grants(key));
        let longest = lefts
            .filter(|(its, _)| *its == server)
            .map(|(_, grant)| grant.left)
            .max();
        if let Some(left) = longest {
            let until = self.history.now() + left;
            let lost_until = state.lost_until.entry(server).or_default();
            *lost_until = until.max(*lost_until);
        }
    }

    /// Records that the server has lost state.
    pub fn lose_state(&self) {
        let now = self.history.now();
        let mut state = self.state();
        state.marks.clear();
        state.lost_until.clear();
        state.losses.push(Loss {
            key: None,
            from: now,
            at: now,
        });
    }

    /// Records that the server's clock is set ahead, so leases end early. The members of a cohort whose grant ends early
    /// can still enter, until the client learns that the grant has ended.
    pub fn set_ahead(&self) {
        let now = self.history.now();
        let mut state = self.state();
        let at = now + state.longest_lease;
        state.losses.push(Loss {
            key: None,
            from: now,
            at,
        });
    }

    /// Records that a promoted server lacks the grant of this lock, or that it has this grant only until `from`.
    pub fn lose_grant(&self, key: &str, from: u64) {
        let at = self.history.now();
        self.history.add(
            || "judge".into(),
            || format!("from {from} ms on, a second caller may hold {key}"),
        );
        self.state().losses.push(Loss {
            key: Some(key.to_owned()),
            from,
            at,
        });
    }

    /// Records that a server may have raised token counters up to now, and that its successor may lack these
    /// increments.
    pub fn lose_counters(&self) {
        let now = self.history.now();
        self.state().counters_lost = Some(now);
    }

    /// Records that from now on, two servers grant the same locks.
    pub fn split(&self) {
        let now = self.history.now();
        self.state().losses.push(Loss {
            key: None,
            from: now,
            at: u64::MAX,
        });
    }

    /// Records that all Sentinels have announced the successor of this primary, which still runs.
    pub fn announce_successor(&self, primary: ServerId) {
        let now = self.history.now();
        self.state().replaced = Some((primary, now));
    }

    /// Records that the primary whose successor was announced is a replica now.
    pub fn end_replacement(&self) {
        self.state().replaced = None;
    }

    /// Records that from now on, only one server grants each lock.
    pub fn reunite(&self) {
        let now = self.history.now();
        for loss in &mut self.state().losses {
            loss.at = loss.at.min(now);
        }
    }

    /// Records that the server's clock is set back.
    pub fn set_back(&self, by: Duration) {
        self.state().set_back += millis(by);
    }

    /// Returns the total time by which the server's clock was set back.
    #[must_use]
    pub fn was_set_back(&self) -> Duration {
        Duration::from_millis(self.state().set_back)
    }

    /// Records that a process has crashed, and removes its calls.
    pub fn crash(&self, host: HostId) {
        let mut state = self.state();
        state.calls.retain(|_, call| call.wanted.host != host);
        for key in state.keys.values_mut() {
            key.inside.retain(|_, inside| inside.host != host);
        }
    }
}
