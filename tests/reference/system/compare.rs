//! Compares the calls, the locks and the counters of the system with the model.

use std::fmt::Write;

use support::server::shared_server;

use crate::model::{CLIENTS, CallId, Held, KEYS, Model, NAMES, Outcome, Stage};

use super::{System, Unlike, like, never, not_yet};

impl System {
    pub(super) async fn compare(&mut self, model: &Model) -> Result<(), Unlike> {
        for (id, call) in &model.calls {
            self.compare_call(*id, call, model)?;
        }
        for key in 0..KEYS {
            self.compare_status(key, model).await?;
        }
        for (client, (_, ended)) in &self.endings {
            match (*ended, model.is_drained(*client)) {
                (true, false) => {
                    return Err(never(format!(
                        "client {client} has shut down while it holds a lock"
                    )));
                }
                (false, true) => {
                    return Err(not_yet(format!(
                        "client {client} has not shut down yet, although none of its calls holds a lock or waits"
                    )));
                }
                _ => {}
            }
        }
        (0..CLIENTS).try_for_each(|client| self.compare_stats(client, model))
    }

    pub(super) fn compare_call(
        &mut self,
        id: CallId,
        call: &crate::model::Call,
        model: &Model,
    ) -> Result<(), Unlike> {
        let Some(real) = self.calls.get(&id) else {
            return Ok(());
        };
        let real = real.borrow();
        let holds = real.holds();
        let came_to = format!(
            "call {id} is {}, and its outcome is {:?}",
            if holds.is_empty() {
                "not inside"
            } else {
                "inside"
            },
            real.outcome()
        );
        let unlike = |for_good| {
            let what = format!("{came_to}; in the model, the call is {:?}", call.stage);
            Unlike { for_good, what }
        };
        match (call.stage, real.outcome()) {
            (Stage::Turn(_) | Stage::Lock, None) if holds.is_empty() => Ok(()),
            (Stage::Inside, None) if holds.is_empty() => Err(unlike(false)),
            (Stage::Inside, None) => {
                for (key, hold) in call.spec.keys.iter().zip(&holds) {
                    let of_key = |entry: &&crate::model::Entry| model.holds[entry.hold].key == *key;
                    let entry = call
                        .entries
                        .iter()
                        .find(of_key)
                        .expect("the call has entered");
                    let state = &model.holds[entry.hold];
                    let token = hold.token();
                    match self.tokens.get(&entry.hold) {
                        Some(other) if *other == token => {}
                        Some(other) => {
                            return Err(never(format!(
                                "call {id} has token {token} in a hold with token {other}"
                            )));
                        }
                        None => {
                            let mut others = self
                                .tokens
                                .iter()
                                .filter(|(other, _)| model.holds[**other].key == *key);
                            if let Some((_, other)) = others.find(|(other, theirs)| {
                                (**other < entry.hold) != (**theirs < token)
                            }) {
                                return Err(never(format!(
                                    "call {id} has token {token}, out of order with token {other}"
                                )));
                            }
                            self.tokens.insert(entry.hold, token);
                        }
                    }
                    if hold.loss().is_some() != state.known_lost {
                        let what = format!(
                            "call {id}: the engine reports the loss {:?}; the hold is lost in the model: {}",
                            hold.loss(),
                            state.known_lost
                        );
                        // The holder notices a loss only after a round trip. A difference is therefore not permanent
                        // while only the model knows of the loss.
                        return Err(Unlike {
                            for_good: !state.known_lost,
                            what,
                        });
                    }
                }
                Ok(())
            }
            (Stage::Ended(outcome), None) if outcome != Outcome::Dropped => Err(unlike(false)),
            (Stage::Ended(outcome), Some(real)) if like(outcome, real) => Ok(()),
            _ => Err(unlike(true)),
        }
    }

    pub(super) async fn compare_status(&self, key: usize, model: &Model) -> Result<(), Unlike> {
        let state = &model.keys[key];
        // Requests the status from the holder's client, because only this client knows which member of a cohort has
        // the turn.
        let client = state.held.map(|held| model.holds[held.hold].client);
        let client = client.filter(|client| !model.clients[*client].closed);
        let client = client.map_or(&self.observer, |client| &self.clients[client]);
        let status = client.lock(NAMES[key]).status().await;
        let status = status
            .map_err(|error| never(format!("the status of lock {key} is an error: {error}")))?;
        let token = status.holder.as_ref().and_then(|holder| holder.token);
        let wanted = state.held.map(|held| self.tokens.get(&held.hold).copied());
        let seen_as_a_block = |held: &Held| {
            held.kept_until.is_some() || model.clients[model.holds[held.hold].client].closed
        };
        if !model.rules.own_clock && state.held.as_ref().is_some_and(seen_as_a_block) {
            // The lock stays taken after its hold (`hold_at_least`), or the holder's client is shut down. In both
            // cases, the status comes from the server, which does not know which member of a cohort had the turn.
            let queued = self.entries(key).await;
            return if token.is_some() && queued == state.queue.len() {
                Ok(())
            } else {
                Err(not_yet(format!(
                    "lock {}: {status:?}, {queued} callers queue",
                    NAMES[key]
                )))
            };
        }
        let holder = match wanted {
            None => token.is_none(),
            // The holder is a call that still waits for its other lock, so the test does not know the token of this
            // lock yet.
            Some(None) => token.is_some(),
            Some(wanted) => token == wanted,
        };
        let queued = state.queue.len();
        if holder && status.waiters == queued {
            return Ok(());
        }
        let mut what = format!(
            "lock {} has token {token:?} and {} waiters",
            NAMES[key], status.waiters
        );
        write!(
            what,
            "; in the model, the token is {wanted:?} and the number of waiters is {queued}"
        )
        .expect("a string can be written");
        Err(not_yet(what))
    }

    /// Returns the number of callers in the server's queue.
    pub(super) async fn entries(&self, key: usize) -> usize {
        let mut server = shared_server().await.connection().await;
        let queue = format!("{}:queue", self.store.name(NAMES[key]));
        let mut count = redis::cmd("ZCARD");
        let queued = count.arg(queue).query_async(&mut server).await;
        queued.expect("the server answers")
    }

    pub(super) fn compare_stats(&self, client: usize, model: &Model) -> Result<(), Unlike> {
        let stats = self.clients[client].stats();
        let counts = model.clients[client].counts;
        // The engine can have taken the last lock of a call with several locks that is dropped.
        let unsure = if model.rules.own_clock {
            0
        } else {
            counts.unsure
        };
        let released = counts.released..=counts.released + unsure;
        let acquired = counts.acquired..=counts.acquired + unsure;
        // A grant can arrive in a message before the reply that the caller is queued. The client then does not count
        // the caller as having waited.
        let waited = if model.rules.own_clock {
            counts.waited..=counts.waited + counts.tied
        } else {
            0..=counts.waited + counts.tied + counts.dropped
        };
        let right = acquired.contains(&stats.acquired)
            && stats.reentered == counts.reentered
            && waited.contains(&stats.waited)
            && (stats.busy, stats.failed, stats.lost) == (counts.busy, counts.failed, counts.lost)
            && released.contains(&stats.released)
            && (stats.release_failed, stats.renewal_failed) == (0, 0);
        if right {
            return Ok(());
        }
        Err(not_yet(format!(
            "client {client} has counted {stats:?}; the model has counted {counts:?}"
        )))
    }
}
