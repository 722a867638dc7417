//! Promise 7: random programs of nested calls, guards and tasks, compared with the rule of re-entry. Each call that is
//! inside a lock is an entry. Code can reenter a held lock only if the code runs inside the newest entry of that lock.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use lock_runtime::{BusyWith, FencingToken, Hold, InCurrentHold, LockClient, LockError, LockGuard};
use proptest::{collection::vec, prelude::*};
use tokio::runtime::Builder;

use crate::{chance, stores::Store};

const KEYS: [&str; 2] = ["j", "k"];
/// The number of slots of a program, each of which can store one guard.
const GUARDS: usize = 3;

/// How a task is started.
#[derive(Debug, Clone, Copy)]
enum Task {
    Spawned,
    /// The task is spawned with `in_current_hold`.
    TakenAlong,
}

#[derive(Debug, Clone)]
enum Op {
    /// Makes a call for the lock with this index, and runs these operations in the body of the call.
    Run(usize, Vec<Op>),
    /// Acquires the lock with the first index, and stores the guard in the slot with the second index.
    Acquire(usize, usize),
    /// Runs these operations in `guard.run`, with the guard that is stored in the slot with this index.
    RunIn(usize, Vec<Op>),
    Release(usize),
    Task(Task, Vec<Op>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let leaf = prop_oneof![
        2 => (0..KEYS.len(), 0..GUARDS).prop_map(|(key, room)| Op::Acquire(key, room)),
        1 => (0..GUARDS).prop_map(Op::Release),
        2 => (0..KEYS.len()).prop_map(|key| Op::Run(key, Vec::new())),
    ];
    let tree = leaf.prop_recursive(5, 40, 4, |inner| {
        let inner = || vec(inner.clone(), 0..4);
        let task = prop_oneof![Just(Task::Spawned), Just(Task::TakenAlong)];
        prop_oneof![
            3 => (0..KEYS.len(), inner()).prop_map(|(key, ops)| Op::Run(key, ops)),
            2 => (0..GUARDS, inner()).prop_map(|(room, ops)| Op::RunIn(room, ops)),
            2 => (task, inner()).prop_map(|(task, ops)| Op::Task(task, ops)),
        ]
    });
    vec(tree, 1..6)
}

type Entry = u32;

/// The entries that enclose the running code.
type Stack = Vec<Entry>;

/// How a call enters its lock, or why it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    New,
    Again(FencingToken),
    Sibling,
    Stranger,
}

/// A model of the rule of re-entry, with the state that it needs to predict the result of each call.
#[derive(Debug, Default)]
struct Rule {
    newest: Entry,
    /// The entries inside each lock, the oldest first.
    inside: HashMap<usize, Vec<Entry>>,
    tokens: HashMap<usize, FencingToken>,
}

impl Rule {
    fn entrance(&self, key: usize, stack: &Stack) -> Entrance {
        let inside = self.inside.get(&key).map_or(&[][..], Vec::as_slice);
        match inside.last() {
            None => Entrance::New,
            Some(last) if stack.contains(last) => Entrance::Again(self.tokens[&key]),
            Some(_) if inside.iter().any(|entry| stack.contains(entry)) => Entrance::Sibling,
            Some(_) => Entrance::Stranger,
        }
    }

    /// Asserts that the result of a call follows the rule. Returns the call's entry if the call has entered its lock.
    fn judge(
        &mut self,
        key: usize,
        stack: &Stack,
        came: Result<FencingToken, LockError>,
    ) -> Option<Entry> {
        let expected = self.entrance(key, stack);
        let token = match (expected, came) {
            (Entrance::New, Ok(token)) => {
                let before = self.tokens.insert(key, token);
                assert!(
                    before.is_none_or(|before| before < token),
                    "{before:?}, {token}"
                );
                token
            }
            (Entrance::Again(token), Ok(other)) if token == other => token,
            (
                Entrance::Sibling,
                Err(LockError::Busy {
                    with: BusyWith::Sibling,
                    ..
                }),
            )
            | (
                Entrance::Stranger,
                Err(LockError::Busy {
                    with: BusyWith::ThisProcess,
                    ..
                }),
            ) => {
                return None;
            }
            (expected, came) => panic!("{}: expected {expected:?}, got {came:?}", KEYS[key]),
        };
        assert!(token.get() > 0);
        self.newest += 1;
        self.inside.entry(key).or_default().push(self.newest);
        Some(self.newest)
    }

    fn leave(&mut self, key: usize, entry: Entry) {
        let inside = self
            .inside
            .get_mut(&key)
            .expect("an entry is inside the lock");
        inside.retain(|other| *other != entry);
    }
}

/// A running program: its client, the model of the rule, and the guards that it has stored.
struct Program {
    client: LockClient,
    rule: Mutex<Rule>,
    rooms: Mutex<[Option<(usize, Entry, LockGuard)>; GUARDS]>,
}

impl Program {
    fn new(client: LockClient) -> Arc<Self> {
        Arc::new(Self {
            client,
            rule: Mutex::default(),
            rooms: Mutex::default(),
        })
    }

    fn run_all(self: Arc<Self>, ops: Vec<Op>, stack: Stack) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for op in ops {
                self.run(op, &stack).await;
            }
        })
    }

    async fn run(self: &Arc<Self>, op: Op, stack: &Stack) {
        match op {
            Op::Run(key, ops) => self.call(key, ops, stack).await,
            Op::Acquire(key, room) => {
                if self.rooms.lock().unwrap()[room].is_some() {
                    return;
                }
                let came = self.client.lock(KEYS[key]).try_acquire().await;
                let (guard, came) = match came {
                    Ok(guard) => {
                        let token = guard.token();
                        (Some(guard), Ok(token))
                    }
                    Err(error) => (None, Err(error)),
                };
                let entry = self.rule.lock().unwrap().judge(key, stack, came);
                if let (Some(guard), Some(entry)) = (guard, entry) {
                    self.rooms.lock().unwrap()[room] = Some((key, entry, guard));
                }
            }
            Op::RunIn(room, ops) => {
                let Some((key, entry, guard)) = self.rooms.lock().unwrap()[room].take() else {
                    return;
                };
                let inside = [&stack[..], &[entry]].concat();
                let ops = self.clone().run_all(ops, inside);
                guard.run(ops).await.expect("no lock is lost");
                // The operations can have stored another guard in the same slot. The test releases that other guard.
                let before = self.rooms.lock().unwrap()[room].replace((key, entry, guard));
                if let Some(before) = before {
                    self.release(before).await;
                }
            }
            Op::Release(room) => {
                let guard = self.rooms.lock().unwrap()[room].take();
                if let Some(guard) = guard {
                    self.release(guard).await;
                }
            }
            Op::Task(task, ops) => {
                let program = self.clone();
                let task = match task {
                    Task::Spawned => tokio::spawn(program.run_all(ops, Stack::new())),
                    Task::TakenAlong => {
                        tokio::spawn(program.run_all(ops, stack.clone()).in_current_hold())
                    }
                };
                task.await.expect("the spawned task follows the rule");
            }
        }
    }

    /// Makes a call for a lock, and checks the result of the call against the rule of re-entry.
    async fn call(self: &Arc<Self>, key: usize, ops: Vec<Op>, stack: &Stack) {
        let lock = self.client.lock(KEYS[key]).wait(std::time::Duration::ZERO);
        let body = async {
            let token = Hold::current().expect("a body has a hold").token();
            let entry = self.rule.lock().unwrap().judge(key, stack, Ok(token));
            let entry = entry.expect("a call whose body runs has entered");
            let inside = [&stack[..], &[entry]].concat();
            self.clone().run_all(ops, inside).await;
            entry
        };
        match lock.run(body).await {
            Ok(entry) => self.rule.lock().unwrap().leave(key, entry),
            Err(error) => {
                let entered = self.rule.lock().unwrap().judge(key, stack, Err(error));
                assert!(entered.is_none());
            }
        }
    }

    async fn release(&self, (key, entry, guard): (usize, Entry, LockGuard)) {
        guard.release().await;
        self.rule.lock().unwrap().leave(key, entry);
    }

    /// Releases all guards, and asserts that no lock is held.
    async fn end(&self) {
        for room in 0..GUARDS {
            let guard = self.rooms.lock().unwrap()[room].take();
            if let Some(guard) = guard {
                self.release(guard).await;
            }
        }
        for key in KEYS {
            let status = self.client.lock(key).status().await.unwrap();
            assert!(status.holder.is_none(), "{key}: {status:?}");
        }
    }
}

async fn run(store: Store, ops: Vec<Op>) {
    let program = Program::new(store.client().await);
    program.clone().run_all(ops, Stack::new()).await;
    program.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn only_the_newest_entry_lets_others_in(ops in ops()) {
        chance::runtime().block_on(run(Store::memory(), ops));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn only_the_newest_entry_lets_others_in_on_a_server(ops in ops()) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { run(Store::redis().await, ops).await });
    }
}
