//! The leader: candidates lead one after another, in order, and each of them knows when it leads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lock_runtime::{Leader, LockClient, LockError, Role, Term, leader as leads};
use support::{
    process::{Worker, of_this_test},
    proxy::FaultProxy,
    server::RedisServer,
    stores::{
        SECOND, Store, on_every_topology_with_a_queue, on_stores_with_a_queue, until, until_free,
        until_waiting,
    },
};
use tokio::{sync::mpsc, task::JoinHandle};

const MS: Duration = Duration::from_millis(1);
const KEY: &str = "leader:scheduler";

/// The longest lease in these tests. No test waits for its end.
const LEASE: Duration = Duration::from_secs(60);

fn leader(client: &LockClient) -> Leader {
    client.leader("scheduler").lease(LEASE)
}

/// A process that leads until it is told to end its term.
struct Candidate {
    leader: Leader,
    terms: mpsc::UnboundedReceiver<Term>,
    running: JoinHandle<Result<(), LockError>>,
}

impl Candidate {
    fn start(leader: Leader) -> Self {
        let (begins, terms) = mpsc::unbounded_channel();
        let running = tokio::spawn(leader.run(move |term| {
            let _ = begins.send(term);
            std::future::pending::<()>()
        }));
        Self {
            leader,
            terms,
            running,
        }
    }

    async fn leads(&mut self) -> Term {
        self.terms.recv().await.expect("the candidate leads")
    }
}

#[tokio::test]
async fn candidates_lead_in_order_and_each_knows_when_it_leads() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two, three] = store.clients().await;
        let mut first = Candidate::start(leader(&one));
        let term = first.leads().await;
        assert_eq!(term.vacant_for(), None, "nobody led before");
        assert!(first.leader.is_leader());
        let mut second = Candidate::start(leader(&two));
        until_waiting(&one, KEY, 1).await;
        let mut third = Candidate::start(leader(&three));
        until_waiting(&one, KEY, 2).await;
        assert!(!second.leader.is_leader());

        let resigning = first.leader.resign();
        resigning.await;
        assert!(!first.leader.is_leader());
        let next = second.leads().await;
        assert!(second.leader.is_leader() && next.token() > term.token());
        let vacant = next.vacant_for().expect("the first leader led before");
        assert!(vacant <= support::epsilon(), "{vacant:?}");
        // The one that has resigned is a candidate again, behind the others.
        until_waiting(&one, KEY, 2).await;
        second.running.abort();
        let last = third.leads().await;
        assert!(last.token() > next.token());
        assert!(!second.leader.is_leader() && third.leader.is_leader());
        third.running.abort();
        assert!(first.leads().await.token() > last.token());
        first.running.abort();
        until_free(&one, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn run_returns_what_the_body_returns() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let answer = leader(&client).run(async |term| Err::<(), _>(term.token()));
        let token = answer.await.unwrap().unwrap_err();
        let again = leader(&client).run(async |term| term.token());
        assert!(again.await.unwrap() > token);
    })
    .await;
}

/// The lease of the leader is lost. Its body is dropped, and the process leads again.
#[tokio::test]
async fn a_leader_whose_role_is_lost_leads_again() {
    for store in [Store::redis().await, Store::cluster().await] {
        let client = store.client().await;
        let bodies = AtomicUsize::new(0);
        let lease = Duration::from_millis(1500);
        let tokens = client.leader("scheduler").lease(lease).run(async |term| {
            if bodies.fetch_add(1, Ordering::Relaxed) == 0 {
                store.delete(KEY).await;
                term.lost().await;
                assert!(term.loss().is_some());
                std::future::pending::<()>().await;
            }
            term.token()
        });
        tokens.await.unwrap();
        assert_eq!(bodies.into_inner(), 2);
    }
}

/// Nobody else leads before the body has ended, although it does not notice for a while that its process has resigned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_ignores_its_end_keeps_the_successor_out() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let (inside, resigned) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let stubborn = leader(&one);
        let running = {
            let (stubborn, inside, resigned) = (stubborn.clone(), inside.clone(), resigned.clone());
            tokio::spawn(async move {
                let run = stubborn.run(async |_| {
                    inside.store(true, Ordering::SeqCst);
                    while !resigned.load(Ordering::SeqCst) {
                        thread::sleep(MS);
                    }
                    thread::sleep(300 * MS);
                    inside.store(false, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                });
                run.await
            })
        };
        until(async || inside.load(Ordering::SeqCst)).await;
        let was_inside = {
            let (successor, inside) = (leader(&two), inside.clone());
            tokio::spawn(
                async move { successor.run(async |_| inside.load(Ordering::SeqCst)).await },
            )
        };
        until_waiting(&two, KEY, 1).await;
        let resigning = tokio::spawn({
            let stubborn = stubborn.clone();
            async move { stubborn.resign().await }
        });
        until(async || !stubborn.is_leader()).await;
        resigned.store(true, Ordering::SeqCst);
        assert!(!was_inside.await.unwrap().unwrap(), "two bodies overlap");
        resigning.await.unwrap();
        running.abort();
    })
    .await;
}

/// After the leader has resigned, its lease is not renewed, so a body that never ends keeps others out for one lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_body_that_blocks_keeps_others_out_until_its_lease_ends() {
    for store in [Store::memory(), Store::redis().await] {
        let [one, two] = store.clients().await;
        let ended = Arc::new(AtomicBool::new(false));
        let blocked = one.leader("scheduler").lease(SECOND);
        let mut watch = blocked.watch();
        let running = {
            let (blocked, ended) = (blocked.clone(), ended.clone());
            tokio::spawn(async move {
                let run = blocked.run(async |_| {
                    while !ended.load(Ordering::SeqCst) {
                        thread::sleep(MS);
                    }
                });
                run.await
            })
        };
        until(async || matches!(watch.changed().await, Role::Leading { .. })).await;
        let successor = two.leader("scheduler").lease(LEASE);
        let next = tokio::spawn(async move { successor.run(async |_| ()).await });
        until_waiting(&two, KEY, 1).await;
        let resigning = tokio::spawn({
            let blocked = blocked.clone();
            async move { blocked.resign().await }
        });
        until(async || !blocked.is_leader()).await;
        next.await.unwrap().unwrap();
        // The lease has ended, although the body has not.
        resigning.await.unwrap();
        ended.store(true, Ordering::SeqCst);
        running.abort();
    }
}

#[tokio::test]
async fn a_paused_candidate_neither_leads_nor_queues() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(leader(&one));
        first.leads().await;
        let mut second = Candidate::start(leader(&two));
        until_waiting(&one, KEY, 1).await;
        first.leader.pause();
        assert!(!first.leader.is_leader());
        second.leads().await;
        second.leader.pause();
        until_free(&one, KEY).await;
        first.leader.resume();
        first.leads().await;
        first.running.abort();
        second.running.abort();
    })
    .await;
}

#[tokio::test]
async fn a_term_ends_after_its_longest_time() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(leader(&one).max_term(300 * MS));
        let began = Instant::now();
        first.leads().await;
        let mut second = Candidate::start(leader(&two));
        second.leads().await;
        assert!(began.elapsed() >= 270 * MS, "{:?}", began.elapsed());
        second.running.abort();
        first.leads().await;
        first.running.abort();
    })
    .await;
}

/// In process, nothing that a leader does waits for a server. Its future can be dropped nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_process_a_campaign_of_bodies_that_block_can_be_dropped() {
    let client = Store::memory().client().await;
    let leader = client.leader("role").lease(SECOND).max_term(20 * MS);
    let (began, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let campaign = tokio::spawn(leader.run(move |_| {
        let began = began.clone();
        async move {
            began.send(()).unwrap();
            std::thread::sleep(1100 * MS); // longer than the lease
            std::future::pending::<()>().await;
        }
    }));
    terms.recv().await.unwrap();
    campaign.abort();
    let ended = tokio::time::timeout(10 * SECOND, campaign).await;
    assert!(
        ended
            .expect("the campaign ends")
            .unwrap_err()
            .is_cancelled()
    );
}

#[tokio::test]
async fn a_leader_that_is_dismissed_resigns() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(one.leader("scheduler").lease(SECOND));
        let term = first.leads().await;
        let mut second = Candidate::start(leader(&two));
        until_waiting(&one, KEY, 1).await;
        let holder = two.leader("scheduler").dismiss().await.unwrap();
        assert_eq!(holder.and_then(|holder| holder.token), Some(term.token()));
        second.leads().await;
        assert_eq!(term.loss(), None, "the role was given up");
        second.running.abort();
        // The request was for the term that has ended.
        first.leads().await;
        first.running.abort();
        until_free(&one, KEY).await;
        assert_eq!(two.leader("scheduler").dismiss().await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn a_watch_follows_the_leader() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        // This client asks every third of its own lease.
        let mut watch = two.leader("scheduler").lease(SECOND).watch();
        assert!(matches!(watch.seen(), Role::Unknown { .. }));
        assert!(matches!(watch.changed().await, Role::Vacant { .. }));
        let mut first = Candidate::start(leader(&one));
        let term = first.leads().await;
        let Role::Following { leader, .. } = watch.changed().await else {
            panic!("{:?}", watch.seen());
        };
        assert_eq!(leader.token, Some(term.token()));
        let mut own = first.leader.watch();
        let Role::Leading { token, .. } = own.changed().await else {
            panic!("{:?}", own.seen());
        };
        assert_eq!(token, term.token());
        first.running.abort();
        assert!(matches!(watch.changed().await, Role::Vacant { .. }));
        assert!(matches!(own.changed().await, Role::Vacant { .. }));
    })
    .await;
}

/// While the server cannot be reached, a watch says so, and a leader leads until its local deadline. The candidate needs
/// no restart afterwards.
#[tokio::test]
async fn a_leader_without_a_server_ends_with_its_lease_and_leads_again() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = LockClient::connect(proxy.url()).await.unwrap();
    let mut leading = Candidate::start(client.leader("scheduler").lease(SECOND));
    let term = leading.leads().await;
    let mut watch = leading.leader.watch();
    assert!(matches!(watch.changed().await, Role::Leading { .. }));
    proxy.refuse(true);
    proxy.cut();
    term.lost().await;
    assert!(!leading.leader.is_leader());
    assert!(matches!(watch.changed().await, Role::Unknown { .. }));
    proxy.refuse(false);
    let next = leading.leads().await;
    assert!(next.token() > term.token());
    leading.running.abort();
}

/// `is_leader` turns false at the local deadline, although nothing else in the process runs: neither the body nor the
/// engine.
#[tokio::test]
async fn is_leader_ends_with_the_lease_whatever_hangs() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let leader = client.leader("scheduler").lease(SECOND);
    let run = leader.run(async |_| {
        let seen = leader.clone();
        server.stop_process();
        let reader = thread::spawn(move || {
            while seen.is_leader() {
                thread::sleep(MS);
            }
        });
        // The body blocks the only thread of this runtime.
        reader.join().unwrap();
        server.continue_process();
    });
    run.await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_the_campaign() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(leader(&one));
        first.leads().await;
        let second = Candidate::start(leader(&two));
        until_waiting(&one, KEY, 1).await;
        two.shutdown().await;
        let ended = second.running.await.unwrap();
        assert!(matches!(ended, Err(LockError::ShutDown)), "{ended:?}");
        // A shutdown ends the term as well, although its body would never end.
        one.shutdown().await;
        let ended = first.running.await.unwrap();
        assert!(matches!(ended, Err(LockError::ShutDown)), "{ended:?}");
        assert!(!first.leader.is_leader());
    })
    .await;
}

#[tokio::test]
async fn a_backend_without_a_queue_refuses_a_leader() {
    for store in [Store::redlock().await, Store::redisson().await] {
        let client = store.client().await;
        let refused = leader(&client).run(async |_| ()).await;
        assert!(
            matches!(&refused, Err(LockError::Refused { detail, .. }) if detail.contains("queue")),
            "{refused:?}"
        );
    }
}

/// A role with an argument in its name. Each term gets clones of the arguments.
#[leads("shard:<id>", lease = "60s")]
async fn lead_shard(term: Term, id: u64, mut tokens: Vec<u64>) -> Result<Vec<u64>, LockError> {
    tokens.push(id);
    tokens.push(term.token().get());
    Ok(tokens)
}

struct Service {
    locks: LockClient,
}

impl Service {
    #[leads("service", client = self.locks, max_term = "1h")]
    async fn lead(&self, fails: bool) -> Result<&'static str, LockError> {
        assert!(self.locks.leader("service").holder().await?.is_some());
        if fails {
            return Err(LockError::NoClient);
        }
        Ok("done")
    }
}

#[tokio::test]
async fn an_annotated_function_leads() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let tokens = client.scope(lead_shard(7, vec![5])).await.unwrap();
        assert_eq!(tokens[..2], [5, 7]);
        let service = Service { locks: client };
        assert_eq!(service.lead(false).await.unwrap(), "done");
        let failed = tokio::spawn(async move { service.lead(true).await });
        assert!(matches!(failed.await.unwrap(), Err(LockError::NoClient)));
    })
    .await;
}

/// A candidate in a process of its own. It prints when a term begins, and a thread prints when the process stops leading.
#[tokio::test]
#[ignore = "run as a process of its own by the other tests"]
async fn candidate_process() {
    let [url, namespace] = ["CANDIDATE_URL", "CANDIDATE_NAMESPACE"]
        .map(|name| std::env::var(name).expect("the test sets this variable"));
    let client = LockClient::builder().url(url).namespace(namespace);
    let client = client.connect_within(support::PATIENCE).await.unwrap();
    let leader = client.leader("scheduler").lease(SECOND);
    let seen = leader.clone();
    thread::spawn(move || {
        loop {
            while !seen.is_leader() {
                thread::sleep(MS);
            }
            while seen.is_leader() {
                thread::sleep(MS);
            }
            println!("\nleads no longer");
        }
    });
    let run = leader.run(async |term| {
        println!("\nterm {} {:?}", term.token(), term.vacant_for());
        std::future::pending::<()>().await;
    });
    run.await.unwrap();
}

struct Process(Worker);

impl Process {
    /// Starts a candidate behind `ahead` others.
    async fn start(server: &RedisServer, client: &LockClient, ahead: usize) -> Self {
        let namespace = client.namespace().unwrap();
        let command = of_this_test(
            "leader::candidate_process",
            &[
                ("CANDIDATE_URL", &server.url()),
                ("CANDIDATE_NAMESPACE", &namespace),
            ],
        );
        let process = Self(Worker::start(command));
        until(async || {
            let status = client.lock(KEY).status().await.unwrap();
            status.waiters + usize::from(status.holder.is_some()) == ahead + 1
        })
        .await;
        process
    }

    /// Waits until the process leads. Returns its token, and what it knows about the time without a leader.
    async fn leads(&mut self) -> (u64, String) {
        let line = self.0.until("term ").await;
        let mut words = line.split(' ').skip(1);
        let token = words.next().unwrap().parse().unwrap();
        (token, words.collect())
    }
}

#[tokio::test]
async fn a_leader_that_is_killed_or_stopped_is_replaced() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let mut first = Process::start(&server, &client, 0).await;
    let (token, vacant) = first.leads().await;
    assert_eq!(vacant, "None");
    let mut second = Process::start(&server, &client, 1).await;
    first.0.kill();
    let (next, vacant) = second.leads().await;
    assert!(next > token && vacant.starts_with("Some("), "{vacant}");

    // The leader is stopped for longer than its lease. When it goes on, it knows at once that it leads no longer.
    let mut third = Process::start(&server, &client, 1).await;
    second.0.signal("STOP");
    let (after, _) = third.leads().await;
    assert!(after > next);
    second.0.signal("CONT");
    second.0.until("leads no longer").await;
    third.0.kill();
    let (last, _) = second.leads().await;
    assert!(last > after);
}

/// A dismissal does not count as a sign of life of the leader.
#[tokio::test]
async fn a_dismissal_does_not_shorten_the_time_without_a_leader() {
    for store in [Store::memory(), Store::redis().await] {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(leader(&one));
        first.leads().await;
        // The runtime of this test does not run, so the leader gives no sign of life and reads no request.
        let led = Instant::now();
        thread::sleep(300 * MS);
        leader(&two).dismiss().await.unwrap();
        first.running.abort();
        until_free(&two, KEY).await;
        let vacant = leader(&two).run(async |term| term.vacant_for());
        let vacant = vacant.await.unwrap().unwrap();
        assert!(
            vacant >= 300 * MS && vacant <= led.elapsed() + support::epsilon(),
            "{vacant:?}"
        );
    }
}

/// The role is granted while the candidate pauses. Its body does not run.
#[tokio::test]
async fn a_body_does_not_begin_in_a_pause() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut first = Candidate::start(leader(&one));
        first.leads().await;
        let mut second = Candidate::start(leader(&two));
        until_waiting(&one, KEY, 1).await;
        second.leader.pause();
        first.leader.resign().await;
        first.leads().await;
        assert!(second.terms.try_recv().is_err());
        // A shutdown ends the call of a candidate that pauses.
        two.shutdown().await;
        assert!(matches!(
            second.running.await.unwrap(),
            Err(LockError::ShutDown)
        ));
        first.running.abort();
    })
    .await;
}
