//! Tests with callers that are polled late, rarely, once, or never again, on servers whose replies are late. The test
//! cannot predict the results of the calls, but it checks four laws. No two valid holds overlap. Tokens rise in the
//! order of entry. A caller that never held a lock does not report a loss. A caller that is not polled delays others by
//! at most one claim (2 s).
//!
//! The callers of many locks run concurrently, because their pauses take real time. Each round prints its seed. To
//! repeat a round, set `LATE_SEED` to its seed. `LATE_ROUNDS` sets the number of rounds.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::future::{LocalBoxFuture, join, join_all};
use lock_runtime::{FencingToken, Hold, LockClient, LockError, distributed_lock};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use support::{
    proxy::FaultProxy,
    quorum::{Quorum, url_through},
    server::RedisServer,
    stores::{MS, SECOND},
    until,
};
use tokio::{task::yield_now, time::sleep};
use uuid::Uuid;

/// The number of locks in one round.
const LOCKS: usize = 40;
/// The number of late callers of each lock.
const CALLERS: usize = 5;
const PROCESSES: usize = 2;
/// The time within which a caller has to take its turn. After this time, the turn passes to the next caller.
const CLAIM: Duration = Duration::from_secs(2);

/// The call that a late caller makes.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Runs a body, which ends at its first poll or, if `long` is set, two polls later.
    Body { long: bool },
    /// Acquires a guard, and releases it after two more polls.
    Guard,
    /// Acquires both locks of the `Fixture`.
    Both,
    /// Waits for the lock only briefly.
    Brief,
    /// Acquires the lock with a lease that is not renewed.
    Fixed,
}

#[derive(Debug, Clone)]
struct Late {
    callers: Vec<(usize, Form)>,
    /// The polls in order. Each entry is a pause and the number of the caller that is polled after the pause.
    polls: Vec<(Duration, usize)>,
}

/// The periods in which replies stall. Each entry contains the pause before the stall, the length of the stall, and the
/// process whose replies stall. On a Redlock, only the replies of one node stall.
type Weather = Vec<(Duration, Duration, usize)>;

fn pauses() -> impl Strategy<Value = Duration> {
    select(vec![0, 0, 0, 1, 20, 300, 700, 1100, 1999, 2001, 2300, 3100])
        .prop_map(Duration::from_millis)
}

fn late() -> impl Strategy<Value = Late> {
    let form = prop_oneof![
        3 => any::<bool>().prop_map(|long| Form::Body { long }),
        2 => Just(Form::Guard),
        2 => Just(Form::Both),
        1 => Just(Form::Brief),
        1 => Just(Form::Fixed),
    ];
    (
        vec((0..PROCESSES, form), CALLERS),
        vec((pauses(), 0..CALLERS), 4..20),
    )
        .prop_map(|(callers, polls)| Late { callers, polls })
}

fn weather() -> impl Strategy<Value = Weather> {
    let stalls = select(vec![50, 400, 1100, 1900, 2600]).prop_map(Duration::from_millis);
    vec((pauses(), stalls, 0..PROCESSES), 0..6)
}

/// The holds of the callers that are inside one lock, and the newest token of that lock.
#[derive(Default)]
struct Inside {
    holds: RefCell<Vec<Hold>>,
    newest: Cell<Option<FencingToken>>,
}

/// An entry in the list of a lock's holds. Dropping this value removes the entry.
struct Visit<'a>(&'a Inside, FencingToken);

impl Inside {
    fn enter(&self, hold: Hold) -> Visit<'_> {
        let token = hold.token();
        let mut holds = self.holds.borrow_mut();
        for other in &*holds {
            assert!(
                other.loss().is_some() || other.remaining().is_zero(),
                "token {token} enters although the lease of token {} is valid for {:?}",
                other.token(),
                other.remaining(),
            );
        }
        let before = self.newest.replace(Some(token));
        assert!(
            before.is_none_or(|before| before < token),
            "{token} after {before:?}"
        );
        holds.push(hold);
        Visit(self, token)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0
            .holds
            .borrow_mut()
            .retain(|hold| hold.token() != self.1);
    }
}

/// A pair of locks, and the clients of the processes that use the pair. Most calls lock only the first lock of the
/// pair.
struct Fixture<'a> {
    clients: &'a [LockClient],
    /// For each process, whether its replies stall for a long time. The claim (2 s) of a grant can then end before the
    /// process confirms the grant.
    stalls: [bool; PROCESSES],
    names: [String; 2],
    inside: [Inside; 2],
}

#[distributed_lock(client = client, keys = ["<first>", "<second>"], wait = "5s")]
async fn visit_both(
    client: &LockClient,
    first: &str,
    second: &str,
    inside: &[Inside; 2],
) -> Result<(), LockError> {
    let holds = lock_runtime::Holds::current().expect("a body has holds");
    for (inside, hold) in inside.iter().zip(holds.iter()) {
        drop(inside.enter(hold.clone()));
    }
    Ok(())
}

/// The result of a call, and whether the caller ever entered the lock.
type Came = (Result<(), LockError>, bool);

impl Fixture<'_> {
    async fn visit(&self, polls: usize) {
        let hold = Hold::current().expect("a body has a hold");
        let visit = self.inside[0].enter(hold);
        for _ in 0..polls {
            yield_now().await;
        }
        drop(visit);
    }

    async fn call(&self, process: usize, form: Form) -> Came {
        let client = &self.clients[process];
        let lock = client.lock(&self.names[0]).wait(30 * SECOND);
        let entered = Cell::new(false);
        let visit = async |polls| {
            entered.set(true);
            self.visit(polls).await;
        };
        let came = match form {
            Form::Body { long } => lock.run(visit(if long { 2 } else { 0 })).await,
            Form::Brief => lock.wait(600 * MS).run(visit(0)).await,
            Form::Fixed => lock.lease(2500 * MS).renew(false).run(visit(1)).await,
            Form::Both => {
                let [first, second] = &self.names;
                visit_both(client, first, second, &self.inside).await
            }
            Form::Guard => match lock.acquire().await {
                Ok(guard) => {
                    let inside = guard.run(visit(2)).await;
                    guard.release().await;
                    inside
                }
                Err(error) => Err(error),
            },
        };
        (came, entered.get())
    }

    /// Asserts that the result of a call is allowed: only a caller that held a lock can report a loss, and a renewed
    /// lease can be lost only if the replies to the caller's process stall.
    fn judge(&self, (process, form): (usize, Form), (came, entered): Came) {
        let may_lose = matches!(form, Form::Fixed) || self.stalls[process];
        match came {
            Ok(()) | Err(LockError::Busy { .. } | LockError::Unreachable { .. }) => {}
            Err(LockError::Lost { .. }) if entered && may_lose => {}
            Err(error) => panic!("{form:?}, entered: {entered}: {error:?}"),
        }
    }

    /// Makes one call after another. Each call is polled whenever it is woken.
    async fn prompt(&self, process: usize) {
        let lock = self.clients[process].lock(&self.names[0]).wait(60 * SECOND);
        loop {
            match lock.run(self.visit(1)).await {
                Ok(()) => sleep(20 * MS).await,
                Err(LockError::Unreachable { .. }) => sleep(100 * MS).await,
                Err(error) => panic!("a prompt caller got an error: {error:?}"),
            }
        }
    }

    async fn live(&self, late: &Late) {
        let prompt = join_all((0..PROCESSES).map(|process| self.prompt(process)));
        tokio::select! {
            () = self.polled_late(late) => {}
            _ = prompt => unreachable!("the prompt callers never stop"),
        }
        self.is_free().await;
    }

    async fn polled_late(&self, late: &Late) {
        let call = |who: usize| -> LocalBoxFuture<'_, Came> {
            let (process, form) = late.callers[who];
            Box::pin(self.call(process, form))
        };
        let mut calls: Vec<_> = (0..CALLERS).map(call).collect();
        for (pause, who) in &late.polls {
            sleep(*pause).await;
            let mut nobody = Context::from_waker(Waker::noop());
            if let Poll::Ready(came) = calls[*who].as_mut().poll(&mut nobody) {
                self.judge(late.callers[*who], came);
                calls[*who] = call(*who);
            }
        }
        // A caller that holds the lock and is never polled again keeps it, so the test tries the lock only if nobody
        // holds it.
        if self.inside[0].holds.borrow().is_empty() {
            // Each late caller can miss a turn at this lock. A late caller that wants both locks can also miss a turn
            // at the second lock while it holds this lock. Each missed turn delays this call by one claim (2 s). The
            // bound allows one further claim for the prompt callers.
            let claims =
                u32::try_from(2 * CALLERS + 1).expect("the number of late callers is small");
            let longest = claims * CLAIM + 2 * SECOND + 5 * SECOND;
            let lock = self.clients[0].lock(&self.names[0]).wait(longest);
            let entered = lock.run(async {}).await;
            entered.expect("a caller that is not polled delays others by at most a claim");
        }
        drop(calls);
    }

    /// Waits until both locks are free and without waiters.
    async fn is_free(&self) {
        for name in &self.names {
            let lock = self.clients[0].lock(name);
            until(async || {
                // The request for the status can fail, because replies can still stall.
                let status = lock.status().await;
                status.is_ok_and(|status| status.holder.is_none() && status.waiters == 0)
            })
            .await;
        }
    }
}

/// Runs one round, in which the callers of all locks run concurrently.
async fn round(runner: &mut TestRunner, ways: &[Vec<FaultProxy>], urls: &[String]) {
    let mut pick = |_| late().new_tree(runner).expect("a value").current();
    let lates: Vec<Late> = (0..LOCKS).map(&mut pick).collect();
    let weather = weather().new_tree(runner).expect("a value").current();
    let mut clients = Vec::new();
    for url in urls {
        clients.push(
            LockClient::connect(url)
                .await
                .expect("the client can connect"),
        );
    }
    // With several servers, a stall of one server has no effect, because the other servers answer.
    let stalls = std::array::from_fn(|of| {
        let long = |(_, stall, process): &_| *process == of && *stall >= CLAIM / 2;
        ways[of].len() == 1 && weather.iter().any(long)
    });
    let fixtures: Vec<Fixture<'_>> = (0..LOCKS)
        .map(|at| Fixture {
            clients: &clients,
            stalls,
            names: [format!("{at}a"), format!("{at}b")],
            inside: Default::default(),
        })
        .collect();
    let storm = async {
        for (pause, stall, process) in &weather {
            sleep(*pause).await;
            let proxy = &ways[*process][0];
            proxy.hold_replies(true);
            sleep(*stall).await;
            proxy.hold_replies(false);
        }
    };
    let fixtures = fixtures.iter().zip(&lates).map(|(fixture, late)| {
        let mut life = Box::pin(fixture.live(late));
        poll_fn(move |cx| {
            let _blame = Blame(late);
            life.as_mut().poll(cx)
        })
    });
    join(storm, join_all(fixtures)).await;
}

/// Prints the callers of a lock and the order of their polls if one of the polls panics.
struct Blame<'a>(&'a Late);

impl Drop for Blame<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.0);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs as many rounds as the environment variable `LATE_ROUNDS` says, or `rounds` rounds if the variable is not set.
async fn rounds(rounds: u64, ways: &[Vec<FaultProxy>], urls: &[String]) {
    let first = number("LATE_SEED").unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 16);
    for seed in first..first + number("LATE_ROUNDS").unwrap_or(rounds) {
        println!("LATE_SEED={seed}");
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        round(
            &mut TestRunner::new_with_rng(Config::default(), rng),
            ways,
            urls,
        )
        .await;
    }
}

#[tokio::test]
async fn polled_late_on_a_server() {
    let server = RedisServer::start().await;
    let mut ways = Vec::new();
    for _ in 0..PROCESSES {
        ways.push(vec![FaultProxy::start(server.port()).await]);
    }
    let urls: Vec<_> = ways.iter().map(|way| way[0].url()).collect();
    rounds(1, &ways, &urls).await;
}

#[tokio::test]
async fn polled_late_on_a_quorum() {
    let quorum = Quorum::start(3).await;
    let ways = [quorum.proxies().await, quorum.proxies().await];
    let urls = ways.each_ref().map(|way| url_through(way));
    rounds(1, &ways, &urls).await;
}
