//! The real engine on a real backend, which carries out the same steps as the model.

mod compare;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::poll_fn,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use lock_runtime::{Backoff, BusyWith, FencingToken, Hold, LockClient, LockError, Strategy};
use proptest_state_machine::StateMachineTest;
use support::{
    poll_unread,
    server::{ask, shared_server},
    stores::{MS, Store},
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    call::{Call, Polled},
    model::{
        CLIENTS, CallId, EXTENSION, HoldId, LONG, Model, NAMES, Outcome, SHORT_LEASE, Spec, With,
    },
    steps::{Place, Reference, Step},
};

/// How long the test waits for an expected event on a server.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long the server keeps a grant that it has sent in a message and that is not confirmed.
const CLAIM: Duration = Duration::from_secs(2);

/// A backend on which the steps can run.
pub(crate) trait Home: Place {
    /// Returns a store with new locks that no other test uses.
    fn store(runtime: &Runtime) -> Store;
}

/// The state machine of `proptest` that runs the steps on a backend.
pub(crate) struct Machine<P>(std::marker::PhantomData<P>);

/// A difference between the real engine and the model.
struct Unlike {
    /// Whether the difference is permanent. The test waits for other differences to disappear.
    for_good: bool,
    what: String,
}

fn never(what: String) -> Unlike {
    Unlike {
        for_good: true,
        what,
    }
}

fn not_yet(what: String) -> Unlike {
    Unlike {
        for_good: false,
        what,
    }
}

pub(crate) struct System {
    // Fields are dropped in order, so the calls are dropped before the runtime on which they run.
    calls: BTreeMap<CallId, Rc<RefCell<Call>>>,
    endings: BTreeMap<usize, (Polled<()>, bool)>,
    clients: Vec<LockClient>,
    observer: LockClient,
    tokens: BTreeMap<HoldId, FencingToken>,
    /// How far the test has advanced tokio's paused clock, in ms. The field is used only if the rules have `own_clock`.
    now: u64,
    store: Store,
    runtime: Option<Runtime>,
}

impl<P: Home> StateMachineTest for Machine<P> {
    type SystemUnderTest = System;
    type Reference = Reference<P>;

    fn init_test(model: &Model) -> System {
        System::new(model, P::store)
    }

    fn apply(mut system: System, model: &Model, step: Step) -> System {
        let runtime = system.runtime.take().expect("a system has a runtime");
        runtime.block_on(async {
            system.step(model, &step).await;
            system.come_to(model, &step).await;
        });
        system.runtime = Some(runtime);
        system
    }

    fn teardown(mut system: System, model: Model) {
        let runtime = system.runtime.take().expect("a system has a runtime");
        runtime.block_on(system.end(model));
        drop(system);
    }
}

impl System {
    fn new(model: &Model, store: impl FnOnce(&Runtime) -> Store) -> Self {
        let paused = model.rules.own_clock;
        let mut builder = Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .start_paused(paused)
            .build()
            .expect("a runtime");
        let store = store(&runtime);
        let (clients, observer) = runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..=CLIENTS {
                let builder = store
                    .builder()
                    .lease(Duration::from_millis(LONG))
                    .wait(20 * CLAIM);
                let backoff = Backoff {
                    first: MS,
                    most: MS,
                };
                let builder = if paused {
                    builder.backoff(backoff)
                } else {
                    builder
                };
                clients.push(
                    builder
                        .connect()
                        .await
                        .expect("the client can connect to the store"),
                );
            }
            let observer = clients.pop().expect("the last client is the observer");
            (clients, observer)
        });
        Self {
            calls: BTreeMap::new(),
            endings: BTreeMap::new(),
            clients,
            observer,
            tokens: BTreeMap::new(),
            now: 0,
            store,
            runtime: Some(runtime),
        }
    }

    async fn step(&mut self, model: &Model, step: &Step) {
        match step {
            Step::Begin(id, spec) => {
                if let (Some(_), false) = (spec.under, model.rules.own_clock) {
                    // The nested call may extend the lease of the enclosing call. The enclosing call must confirm its
                    // grant before the extension.
                    let lock = self.observer.lock(NAMES[spec.keys[0]]);
                    if lock
                        .status()
                        .await
                        .is_ok_and(|status| status.holder.is_some())
                    {
                        self.confirmed(spec.keys[0]).await;
                    }
                }
                self.begin(*id, spec, model);
                let closed = model.clients[spec.client].closed;
                if spec.strategy != Strategy::Handoff && !model.rules.own_clock && !closed {
                    self.answered(spec.client).await;
                }
            }
            Step::Abandon { client, key } => {
                let spec = Spec {
                    strategy: self.store.strategies()[0],
                    ..Spec::patient(*client, *key)
                };
                let mut call = Some(Call::new(
                    &self.clients[*client],
                    &spec,
                    model.rules.own_clock,
                ));
                // An answer between the poll and the drop would begin a hold, and the client would then check whether an
                // older hold of the lock has been lost.
                let mut abandon = || call.take().expect("one call is abandoned once").poll();
                if model.rules.own_clock {
                    abandon();
                } else {
                    let abandoning = poll_fn(|_| {
                        abandon();
                        Poll::Ready(())
                    });
                    poll_unread(&self.clients[*client], pin!(abandoning)).await;
                }
                self.answered(*client).await;
            }
            Step::Release(id) => self.leave(*id).await,
            Step::Drop(id) => drop(self.calls.remove(id)),
            Step::ReleaseTo { release, dropped } => {
                self.leave(*release).await;
                drop(self.calls.remove(dropped));
            }
            Step::Extend(id) => {
                let hold = model.calls[id].entries[0].hold;
                if !model.rules.own_clock && model.holds[hold].stands {
                    self.confirmed(model.holds[hold].key).await;
                }
                self.extend(*id, model).await;
            }
            Step::Delete(key) => self.operate(*key, &["DEL"], &[]).await,
            Step::DeleteAndTry(key, id, client) => {
                self.operate(*key, &["DEL"], &[]).await;
                self.begin(*id, &Spec::once(*client, *key), model);
            }
            Step::Expire(key) => self.operate(*key, &["PEXPIRE"], &["1"]).await,
            Step::Cut => self.cut().await,
            Step::ShutDown(client) => {
                let ending = self.clients[*client].clone();
                let ending = Polled::new(async move { ending.shutdown().await });
                self.endings.insert(*client, (ending, false));
            }
            Step::Advance(_) => {}
        }
        if model.rules.own_clock {
            self.poll_all().await;
            for moment in &model.moments {
                tokio::time::advance(Duration::from_millis(moment - self.now)).await;
                self.now = *moment;
                self.poll_all().await;
            }
        }
    }

    /// Waits until the server has carried out the earlier commands of a client.
    async fn answered(&self, client: usize) {
        let client = self.clients.get(client).unwrap_or(&self.observer);
        let status = client.lock("a").status().await;
        status.expect("the server answers");
    }

    /// Waits until the server has carried out the earlier commands of all clients that are not shut down.
    async fn all_answered(&self) {
        for client in 0..=CLIENTS {
            if !self.endings.contains_key(&client) {
                self.answered(client).await;
            }
        }
    }

    fn begin(&mut self, id: CallId, spec: &Spec, model: &Model) {
        let call = Call::new(&self.clients[spec.client], spec, model.rules.own_clock);
        let call = Rc::new(RefCell::new(call));
        self.calls.insert(id, call.clone());
        match spec.under {
            Some(around) => self.calls[&around].borrow_mut().around(&call),
            None => call.borrow_mut().poll(),
        }
    }

    async fn leave(&self, id: CallId) {
        Call::leave(&self.calls[&id]).await;
    }

    async fn extend(&self, id: CallId, model: &Model) {
        let hold = self.calls[&id].borrow().holds()[0].clone();
        let state = model.calls[&id].entries[0].hold;
        let key = model.holds[state].key;
        let at = model.calls[&id]
            .spec
            .keys
            .iter()
            .position(|other| *other == key);
        let holds = self.calls[&id].borrow().holds();
        let hold = at.and_then(|at| holds.get(at)).unwrap_or(&hold);
        let answer = hold.extend(Duration::from_millis(EXTENSION)).await;
        let right = match &answer {
            Err(LockError::Lost { .. }) => model.holds[state].known_lost,
            Ok(_) => !model.holds[state].known_lost,
            Err(_) => false,
        };
        assert!(
            right,
            "wrong answer to call {id}'s `extend`: {answer:?}\n{model:?}"
        );
    }

    /// Waits until the holder of a lock has confirmed its grant. The operator changes the lock only afterwards, because
    /// the holder would otherwise detect the change when it confirms its grant.
    async fn confirmed(&self, key: usize) {
        let start = Instant::now();
        loop {
            let status = self.observer.lock(NAMES[key]).status().await;
            let holder = status
                .expect("the server answers")
                .holder
                .expect("the lock is held");
            // The server knows the lease of a cohort, but not the lease of each member.
            let is_claim = |hold: &Hold| {
                hold.key().as_str() == NAMES[key]
                    && hold.loss().is_none()
                    && (Duration::from_millis(SHORT_LEASE)..=CLAIM).contains(&hold.remaining())
            };
            let mut calls = self.calls.values();
            let is_any_claim = calls.any(|call| call.borrow().holds().iter().any(is_claim));
            if holder.remaining.is_some_and(|left| left > CLAIM) && !is_any_claim {
                break;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the holder does not confirm its grant"
            );
            tokio::time::sleep(5 * MS).await;
        }
    }

    /// Carries out an operator's command on a held lock, once its grant is confirmed.
    async fn operate(&self, key: usize, before: &[&str], after: &[&str]) {
        self.confirmed(key).await;
        // The status does not show whether a later member of a cohort is still confirming its turn, so `all_answered`
        // also waits for the answers to all commands.
        self.all_answered().await;
        // If a call was polled late, the call itself has confirmed its grant. The engine then checks the grant once more,
        // at most 100 ms after the call has entered.
        tokio::time::sleep(150 * MS).await;
        let mut server = shared_server().await.connection().await;
        let changed: u8 = ask(
            &mut server,
            redis::cmd(before[0])
                .arg(&before[1..])
                .arg(self.store.name(NAMES[key]))
                .arg(after),
        )
        .await;
        assert_eq!(changed, 1, "{key} is held");
    }

    /// Cuts all connections, and waits until all clients that are not shut down are connected again.
    async fn cut(&self) {
        let mut server = shared_server().await.connection().await;
        for kind in ["normal", "pubsub"] {
            ask::<()>(
                &mut server,
                redis::cmd("CLIENT")
                    .arg("KILL")
                    .arg("TYPE")
                    .arg(kind)
                    .arg("SKIPME")
                    .arg("yes"),
            )
            .await;
        }
        self.all_answered().await;
    }

    /// Polls all calls and shutdowns that were woken, until none of them is woken again.
    async fn poll_all(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            idle += 1;
            for call in self.calls.values() {
                if call.borrow().is_woken() {
                    call.borrow_mut().poll();
                    idle = 0;
                }
            }
            for (ending, ended) in self.endings.values_mut() {
                if ending.is_woken() {
                    *ended |= ending.poll().is_some();
                    idle = 0;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the state of the system equals the state of the model.
    async fn come_to(&mut self, model: &Model, step: &Step) {
        let start = Instant::now();
        let patience = match step {
            // After these steps, a dropped call may have a grant. The client must give back this grant before the
            // grant's claim (2 s) ends.
            Step::ReleaseTo { .. } | Step::Drop(_) | Step::Abandon { .. } => CLAIM * 3 / 4,
            _ => PATIENCE,
        };
        loop {
            self.poll_all().await;
            let Err(unlike) = self.compare(model).await else {
                return;
            };
            if unlike.for_good || model.rules.own_clock || start.elapsed() > patience {
                panic!(
                    "after the step {step:?}: {}\nwhere the model is {model:?}",
                    unlike.what
                );
            }
            tokio::time::sleep(MS).await;
        }
    }

    /// Drops all callers, asserts that no lock, queue entry or key is left, and shuts down all clients.
    async fn end(&mut self, mut model: Model) {
        model.moments.clear();
        let living = model
            .calls
            .iter()
            .filter(|(_, call)| call.is_waiting() || call.is_inside());
        for id in living.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.calls.remove(&id);
            if model.calls[&id].is_waiting() || model.calls[&id].is_inside() {
                model.drop_call(id);
            }
        }
        self.calls.clear();
        self.poll_all().await;
        if model.rules.own_clock {
            tokio::time::advance(Duration::from_secs(1)).await;
        } else if model.rules.operator {
            for (name, key) in NAMES.iter().zip(&model.keys) {
                let mut server = shared_server().await.connection().await;
                let kept = key.held.is_some_and(|held| held.kept_until.is_some());
                if kept {
                    let name = self.store.name(name);
                    ask::<()>(&mut server, redis::cmd("DEL").arg(name)).await;
                }
            }
        }
        let start = Instant::now();
        let mut left = Vec::new();
        while start.elapsed() < PATIENCE {
            left.clear();
            for key in NAMES {
                let status = self
                    .observer
                    .lock(key)
                    .status()
                    .await
                    .expect("the store answers");
                if status.holder.is_some() || status.waiters > 0 {
                    left.push(format!("{key}: {status:?}"));
                }
            }
            left.extend(self.store.keys().await);
            if left.is_empty() {
                break;
            }
            assert!(!model.rules.own_clock, "locks are left: {left:?}");
            tokio::time::sleep(MS).await;
        }
        assert!(left.is_empty(), "locks are left: {left:?}");
        for client in self.clients.iter().chain([&self.observer]) {
            let ended = tokio::time::timeout(PATIENCE, client.shutdown()).await;
            ended.expect("a client without holds shuts down in time");
        }
    }
}

fn like(outcome: Outcome, real: &Result<(), LockError>) -> bool {
    match (outcome, real) {
        (Outcome::Done, Ok(()))
        | (Outcome::Lost, Err(LockError::Lost { .. }))
        | (Outcome::ShutDown, Err(LockError::ShutDown)) => true,
        (Outcome::Busy(with), Err(LockError::Busy { with: real, .. })) => matches!(
            (with, real),
            (With::ThisProcess, BusyWith::ThisProcess)
                | (With::AnotherProcess, BusyWith::AnotherProcess)
                | (With::Sibling, BusyWith::Sibling)
                | (With::OutOfOrder, BusyWith::OutOfOrder)
        ),
        _ => false,
    }
}
