use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use lock_core::{
    backend::Request,
    layout::Layout,
    lease::{LeaseTerms, Renewal},
    options::Mode,
    owner::OwnerId,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot::Receiver,
};

use super::*;
use crate::{
    backend::redis::{
        core::Stored,
        protocol::layout::{Names, Scripts},
    },
    background::{Context, TaskRuntime},
};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);

fn at(millis: u32) -> Moment {
    Moment::new(10_000 * MS + millis * MS)
}

/// One session, and the lock for which all its callers wait.
struct Fixture {
    core: Arc<SharedCore>,
    link: Link,
    name: LockName,
}

struct Member {
    owner: OwnerId,
    told: Receiver<Ended>,
}

impl Fixture {
    fn new() -> Self {
        let core = SharedCore::new(Runtimes::default());
        Self {
            link: core.with(|core| core.lines.open_link(&"session".into())),
            core,
            name: LockName::stored("{lock:k}"),
        }
    }

    /// Adds a waiting caller with this owner, whose place in the queue is its number.
    fn member(&self, number: u128) -> Member {
        self.join(number, None)
    }

    /// Adds a waiting caller with this owner, which this runtime polled at `now`.
    fn member_on(&self, number: u128, runtime: &TaskRuntime, now: Moment) -> Member {
        let on = runtime.clone();
        self.join(number, Some(Polled { on, at: now }))
    }

    fn join(&self, number: u128, polled: Option<Polled>) -> Member {
        let request = Request {
            name: self.name.clone(),
            owner: OwnerId::from_u128(number),
            lease: LeaseTerms {
                time: LEASE,
                renewal: Renewal::Fixed,
            },
            mode: Mode::Write,
            wait: 60 * LEASE,
            function: "",
        };
        let (owner, name) = (request.owner, &self.name);
        let request = Arc::new(AcquireRequest::new(
            Context::of_process().clone(),
            Scripts::of(Layout::Native, false),
            Names::new(Layout::Native, self.name.clone(), false),
            &request,
            "session".into(),
            "test/host/1".into(),
        ));
        let (sender, told) = oneshot::channel();
        let caller = Caller {
            polled,
            told: sender,
        };
        self.core.with(|core| {
            let lines = &mut core.lines;
            lines.join(self.link, name, owner, Stored::default(), request, caller);
            lines.queued(self.link, name, &[(owner, number as u64)]);
        });
        Member { owner, told }
    }

    fn push(&self, first: u64, members: &[&Member], now: Moment) -> TakenUp {
        let owners: Vec<_> = members.iter().map(|m| m.owner.to_string()).collect();
        let lease = LEASE.as_millis().to_string();
        let (first, owners) = (first.to_string(), owners.join(" "));
        let grant = GrantSnapshot::pushed(&first, &lease, &owners, "session", now).unwrap();
        self.core.take_up(self.link, &self.name, &grant, now)
    }

    /// Returns the token of the turn that this member has, if it was told of it.
    fn turn(&self, member: &mut Member) -> Option<u64> {
        assert_eq!(member.told.try_recv().ok()?, Ended::Turn);
        let turn = self
            .core
            .with(|core| core.turn_of(&self.name, member.owner));
        turn.map(|(token, _)| token.get())
    }

    /// Asks a runtime whether it runs, because a caller that it polled earlier has not taken its turn.
    fn ask(&self, runtime: &TaskRuntime, polled: Moment, now: Moment) {
        let caller = Polled {
            on: runtime.clone(),
            at: polled,
        };
        let context = Context::of_process();
        self.core.runtimes.ask(context, &caller, now);
    }
}

/// A runtime that nobody drives.
struct Undriven {
    runtime: TaskRuntime,
    tokio: Runtime,
}

impl Undriven {
    fn new() -> Self {
        let tokio = Builder::new_current_thread().build().unwrap();
        let polled = tokio.block_on(async { Context::of_process().polled() });
        Self {
            runtime: polled.unwrap().on,
            tokio,
        }
    }
}

/// The members whose runtime has not answered miss their turns. A runtime that answers is not silent, however late it
/// answers.
#[test]
fn members_of_a_runtime_that_does_not_answer_are_passed_over() {
    for answers in [false, true] {
        let fixture = Fixture::new();
        let Undriven { runtime, tokio } = Undriven::new();
        let [mut a, mut b] = [1, 2].map(|owner| fixture.member_on(owner, &runtime, at(0)));
        let mut c = fixture.member(3);
        fixture.push(7, &[&a, &b, &c], at(0));
        assert_eq!(fixture.turn(&mut a), Some(7));
        fixture.ask(&runtime, at(0), at(300));
        if answers {
            tokio.block_on(async { tokio::task::yield_now().await });
        }
        fixture.core.pass(&fixture.name, 7, at(900));
        let turns = (fixture.turn(&mut b), fixture.turn(&mut c));
        let expected = match answers {
            true => (Some(8), None),
            false => (None, Some(9)),
        };
        assert_eq!(turns, expected);
    }
}

/// A thread outside of the workers of a silent runtime can poll a caller, for instance in `block_on`. A caller that was
/// polled after the question therefore gets its turn.
#[test]
fn a_caller_that_was_polled_after_the_question_gets_its_turn() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    fixture.ask(&silent.runtime, at(0), at(0));
    let [mut a, mut b] =
        [(1, 0), (2, 1)].map(|(n, ms)| fixture.member_on(n, &silent.runtime, at(ms)));
    fixture.push(7, &[&a, &b], at(1000));
    let turns = (fixture.turn(&mut a), fixture.turn(&mut b));
    assert_eq!(turns, (None, Some(8)));
}

/// Callers that were polled after the question do not take their locks, either, so the runtime is asked again. They cost
/// one claim together.
#[test]
fn a_runtime_that_is_silent_again_costs_one_claim() {
    let fixture = Fixture::new();
    let silent = Undriven::new();
    fixture.ask(&silent.runtime, at(0), at(0));
    let [mut a, b, c] = [1, 2, 3].map(|owner| fixture.member_on(owner, &silent.runtime, at(100)));
    let mut d = fixture.member(4);
    fixture.push(7, &[&a, &b, &c, &d], at(200));
    assert_eq!(fixture.turn(&mut a), Some(7));
    for now in [400, 600, 800] {
        fixture.ask(&silent.runtime, at(100), at(now));
    }
    fixture.core.pass(&fixture.name, 7, at(950));
    assert_eq!(fixture.turn(&mut d), Some(10));
}

/// A question to a runtime that has ended is forgotten after some time.
#[test]
fn a_runtime_that_never_answers_is_forgotten() {
    let fixture = Fixture::new();
    let ended = Undriven::new().runtime;
    fixture.ask(&ended, at(0), at(0));
    let runtimes = &fixture.core.runtimes;
    assert!(!runtimes.have_answered(at(59_999)));
    assert!(runtimes.have_answered(at(60_000)));
}

/// With the last handle to a runtime, tokio drops the hooks of the user. They can use the same locks, so the mutex is not
/// locked then.
#[test]
fn the_mutex_is_not_locked_while_the_hooks_of_a_runtime_are_dropped() {
    struct Hook(Arc<Fixture>, Arc<AtomicUsize>);
    impl Drop for Hook {
        fn drop(&mut self) {
            let Self(fixture, dropped) = self;
            thread::scope(|scope| {
                let using = || fixture.core.with(|core| core.lines.is_empty(fixture.link));
                scope.spawn(using).join().unwrap()
            });
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ends: [fn(&Fixture, &[&Member]); 3] = [
        |fixture, _| {
            fixture
                .core
                .with(|core| core.lines.dismiss(fixture.link, |_| true));
        },
        |fixture, members| {
            let (link, name) = (fixture.link, &fixture.name);
            fixture
                .core
                .with(|core| core.lines.leave_list(link, name, members[0].owner));
        },
        |fixture, members| drop(fixture.push(7, members, at(0))),
    ];
    for end in ends {
        let (fixture, dropped) = (Arc::new(Fixture::new()), Arc::new(AtomicUsize::new(0)));
        let hook = Hook(fixture.clone(), dropped.clone());
        let tokio = Builder::new_current_thread()
            .on_thread_park(move || {
                let _ = &hook;
            })
            .build()
            .unwrap();
        let polled = tokio.block_on(async { Context::of_process().polled() });
        let (a, b) = (fixture.join(1, polled), fixture.member(2));
        drop(tokio);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        end(&fixture, &[&a, &b]);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
