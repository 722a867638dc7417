//! How long nobody leads after a leader has resigned, and after its process was killed.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use lock_runtime::{Leader, LockClient, Release, Role, Strategy};
use support::{
    process::{Worker, dies_with_parent},
    server::RedisServer,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
};

use crate::{
    baselines::{Tuning, connect as connect_bare},
    candidates::{WAIT, ours},
};

/// The first argument of a process that leads. The URL follows as a further argument.
pub(crate) const LEAD: &str = "--lead";
/// The lease of each leader, which is the shortest one.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

const NAME: &str = "family";
const LEADS: &str = "leads";

/// The beginning of a term: when the candidate led, and when its body began.
#[derive(Debug, Clone, Copy)]
struct Begun {
    led: Instant,
    body: Instant,
}

/// A candidate in this process.
struct Candidate {
    leader: Leader,
    terms: UnboundedReceiver<Begun>,
    running: JoinHandle<()>,
}

async fn connect(url: &str) -> LockClient {
    ours(url, Strategy::Handoff, Release::Confirmed).await
}

impl Candidate {
    async fn start(url: &str) -> Self {
        let leader = connect(url).await.leader(NAME).lease(LEASE);
        let (tell, terms) = unbounded_channel();
        let of_term = leader.clone();
        let running = leader.run(move |_| {
            let (leader, tell) = (of_term.clone(), tell.clone());
            async move {
                let body = Instant::now();
                // The first call answers at once, because this process leads.
                let Role::Leading { since: led, .. } = leader.watch().changed().await else {
                    return;
                };
                let _ = tell.send(Begun { led, body });
                pending::<()>().await;
            }
        });
        let running = tokio::spawn(async move {
            running.await.expect("the candidate is not refused");
        });
        Self {
            leader,
            terms,
            running,
        }
    }

    async fn term(&mut self) -> Begun {
        self.terms.recv().await.expect("the candidate leads again")
    }
}

/// Leads as a process of its own, until the process is killed.
pub(crate) async fn lead(url: &str) {
    let leader = connect(url).await.leader(NAME).lease(LEASE);
    let body = |_| async {
        println!("{LEADS}");
        pending::<()>().await;
    };
    leader
        .run(body)
        .await
        .expect("the candidate is not refused");
}

/// The candidates on one server.
pub(crate) struct Candidates<'a> {
    server: &'a RedisServer,
    observer: LockClient,
}

impl<'a> Candidates<'a> {
    pub(crate) async fn on(server: &'a RedisServer) -> Self {
        Self {
            server,
            observer: connect(&server.url()).await,
        }
    }

    /// Waits until somebody leads and this many other candidates are queued, or until nobody leads.
    async fn until(&self, leads: bool, queued: usize) {
        let role = self.observer.lock(format!("leader:{NAME}")).wait(WAIT);
        support::until(async || {
            let status = role.status().await.expect("the server answers");
            status.holder.is_some() == leads && status.waiters == queued
        })
        .await;
    }

    /// Lets two candidates, which reach the server under this URL, resign in turn. Returns, for each time, the time of a round trip, how long nobody led, and how
    /// long no body ran.
    pub(crate) async fn resign(&self, url: &str, times: usize) -> Vec<[Duration; 3]> {
        let bare = connect_bare(url, Tuning::Ours).await;
        let mut first = Candidate::start(url).await;
        first.term().await;
        let mut candidates = [first, Candidate::start(url).await];
        let mut first = 0;
        let mut vacant = Vec::new();
        for _ in 0..times {
            self.until(true, 1).await;
            // Both calls run on a worker thread, like the candidates.
            let mut asking = bare.clone();
            let trip = tokio::spawn(async move {
                let asked = Instant::now();
                let pong = redis::cmd("PING").query_async::<String>(&mut asking).await;
                pong.expect("the server answers");
                asked.elapsed()
            });
            let trip = trip.await.expect("`PING` does not panic");
            let leader = candidates[first].leader.clone();
            let resigning = tokio::spawn(async move {
                let asked = Instant::now();
                leader.resign().await;
                asked
            });
            let asked = resigning.await.expect("`resign` does not panic");
            first = 1 - first;
            let Begun { led, body } = candidates[first].term().await;
            vacant.push([trip, led - asked, body - asked]);
        }
        for candidate in candidates {
            candidate.running.abort();
        }
        self.until(false, 0).await;
        vacant
    }

    /// Kills the process that leads, after it has led for `age`. Returns how long nobody led.
    pub(crate) async fn kill(&self, age: Duration) -> Duration {
        let this = std::env::current_exe().expect("the path of this executable is known");
        let mut command = dies_with_parent(this);
        command.args([LEAD, &self.server.url()]);
        let mut worker = Worker::start(command);
        worker.until(LEADS).await;
        let mut next = Candidate::start(&self.server.url()).await;
        self.until(true, 1).await;
        tokio::time::sleep(age).await;
        let killed = Instant::now();
        worker.kill();
        let begun = next.term().await;
        next.running.abort();
        self.until(false, 0).await;
        begun.led - killed
    }
}
