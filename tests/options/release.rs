//! `release`: whether a call waits until its release is confirmed, or only until its release is sent.

use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockError, Release, distributed_lock};
use support::{
    epsilon,
    proxy::FaultProxy,
    quorum::url_through,
    server::shared_server,
    stores::{become_far, hold, until_free},
};
use tokio::{
    runtime::Builder,
    sync::oneshot,
    task::coop,
    time::{Instant, sleep},
};

use crate::stores::{MS, SECOND, Store, on_every_store, on_stores_with_a_queue, until_waiting};

/// The longest time that a call waits for the confirmation of its release.
const PATIENCE: Duration = SECOND;

/// A client behind proxies that can hold back the servers' replies, and a client that is connected to the servers
/// directly.
struct Fixture {
    store: Store,
    proxies: Vec<FaultProxy>,
    behind: LockClient,
    direct: LockClient,
}

impl Fixture {
    async fn of(store: Store, release: Option<Release>) -> Self {
        let (url, proxies) = if store.is_redlock() {
            let proxies = support::quorum::shared_quorum().await.proxies().await;
            (url_through(&proxies), proxies)
        } else {
            let proxy = FaultProxy::start(shared_server().await.port()).await;
            (proxy.url(), vec![proxy])
        };
        let mut builder = store.through(&url).builder();
        if let Some(release) = release {
            builder = builder.release(release);
        }
        let behind = builder.connect_within(support::PATIENCE).await.unwrap();
        warm(&store, &behind).await;
        Self {
            direct: store.client().await,
            behind,
            proxies,
            store,
        }
    }

    fn hold_replies(&self, on: bool) {
        self.proxies.iter().for_each(|proxy| proxy.hold_replies(on));
    }

    /// Runs a call whose release gets no answer, and returns how long the call takes.
    async fn unanswered(&self, call: impl Future<Output = Result<u8, LockError>>) -> Duration {
        let started = Instant::now();
        assert_eq!(self.behind.scope(call).await, Ok(7));
        let took = started.elapsed();
        self.hold_replies(false);
        until_free(&self.direct, "k").await;
        took
    }

    /// Serves as the body of a call for `unanswered`. From the start of the body on, the proxies hold back the servers'
    /// replies.
    async fn body(&self) -> u8 {
        self.hold_replies(true);
        tokio::task::yield_now().await;
        7
    }
}

/// Opens the client's connections.
async fn warm(store: &Store, client: &LockClient) {
    client.lock("warm").run(async {}).await.unwrap();
    if store.is_redlock() {
        support::until(async || client.stats().connections >= 3).await;
        until_free(client, "warm").await;
    }
}

/// Runs a test on a single server, on a Redlock, and in Redisson's layout.
async fn on_every_server(test: impl AsyncFn(Store)) {
    for store in [
        Store::redis().await,
        Store::redlock().await,
        Store::redisson().await,
    ] {
        eprintln!("on {store:?}");
        test(store).await;
    }
}

fn in_background(client: &LockClient) -> Lock {
    client.lock("k").release(Release::Background)
}

#[distributed_lock(key = "k", release = background)]
async fn background(fixture: &Fixture) -> Result<u8, LockError> {
    Ok(fixture.body().await)
}

#[distributed_lock(key = "k", release = confirmed)]
async fn confirmed(fixture: &Fixture) -> Result<u8, LockError> {
    Ok(fixture.body().await)
}

#[distributed_lock(key = "k")]
async fn as_the_client_says(fixture: &Fixture) -> Result<u8, LockError> {
    Ok(fixture.body().await)
}

#[distributed_lock(keys = ["k", "other"], release = background)]
async fn several(fixture: &Fixture) -> Result<u8, LockError> {
    Ok(fixture.body().await)
}

/// Returns the number of releases that ended holds. If a busy machine makes the engine send a release again, the engine
/// does not know which copy has ended the hold.
fn released(client: &LockClient) -> u64 {
    let stats = client.stats();
    stats.released + stats.release_unknown
}

#[tokio::test]
async fn in_the_background_the_value_does_not_wait_for_the_answer() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, None).await;
        let by_hand = in_background(&fixture.behind);
        let times = [
            fixture.unanswered(background(&fixture)).await,
            fixture.unanswered(several(&fixture)).await,
            fixture.unanswered(by_hand.run(fixture.body())).await,
        ];
        assert!(times.iter().all(|took| *took < PATIENCE / 2), "{times:?}");
        until_free(&fixture.direct, "other").await;
    })
    .await;
}

#[tokio::test]
async fn a_client_says_how_its_calls_release() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, Some(Release::Background)).await;
        let lock = fixture.behind.lock("k");
        let times = [
            fixture.unanswered(as_the_client_says(&fixture)).await,
            fixture.unanswered(lock.run(fixture.body())).await,
        ];
        assert!(times.iter().all(|took| *took < PATIENCE / 2), "{times:?}");
        // The option of a call overrides the client's default.
        let lock = lock.release(Release::Confirmed);
        let times = [
            fixture.unanswered(confirmed(&fixture)).await,
            fixture.unanswered(lock.run(fixture.body())).await,
        ];
        assert!(times.iter().all(|took| *took >= PATIENCE), "{times:?}");
    })
    .await;
}

#[tokio::test]
async fn a_release_is_confirmed_where_nobody_says_otherwise() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, None).await;
        let lock = fixture.behind.lock("k");
        let times = [
            fixture.unanswered(as_the_client_says(&fixture)).await,
            fixture.unanswered(lock.run(fixture.body())).await,
        ];
        // A loaded machine may delay a call twice: at the end of its body, and at the end of its wait for the release.
        let waits = |took: &Duration| (PATIENCE..PATIENCE + 2 * epsilon()).contains(took);
        assert!(times.iter().all(waits), "{times:?}");
    })
    .await;
}

#[tokio::test]
async fn the_same_client_is_never_in_its_own_way() {
    on_every_store(|store| async move {
        let client = store.client().await;
        warm(&store, &client).await;
        let lock = in_background(&client).wait(Duration::ZERO);
        let mut entered = 0;
        while entered < 200 {
            match lock.run(async {}).await {
                Ok(()) => entered += 1,
                // On a busy machine, an answer can be late.
                Err(LockError::Unreachable { .. }) => until_free(&client, "k").await,
                Err(error) => panic!("{error:?} after {entered} turns"),
            }
        }
        until_free(&client, "k").await;
        assert_eq!(client.stats().busy, 0);
        support::until(async || released(&client) == 201).await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

/// A client sends its next request for a lock after the release of the lock, so the request finds the lock free even if
/// replies are slow.
#[tokio::test]
async fn the_next_acquisition_goes_after_the_release() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, Some(Release::Background)).await;
        let lock = fixture.behind.lock("k").wait(Duration::ZERO);
        for proxy in &fixture.proxies {
            proxy.delay(10 * MS);
        }
        for turn in 0..5 {
            let entered = lock.run(async {}).await;
            assert_eq!(entered, Ok(()), "turn {turn}");
        }
    })
    .await;
}

/// Tokio gives each poll of a task a budget. A body that uses up the whole budget does not delay the release.
#[tokio::test]
async fn the_next_acquisition_goes_after_the_release_of_a_busy_body() {
    on_every_server(async |store| {
        let client = store.client().await;
        warm(&store, &client).await;
        let lock = in_background(&client).wait(Duration::ZERO);
        for turn in 0..5 {
            let entered = lock.run(async {
                while coop::has_budget_remaining() {
                    coop::consume_budget().await;
                }
            });
            assert_eq!(entered.await, Ok(()), "turn {turn}");
        }
    })
    .await;
}

#[tokio::test]
async fn others_find_it_taken_for_a_round_trip_at_most() {
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        hold(&other, "k").await.release().await;
        for _ in 0..10 {
            in_background(&client).run(async {}).await.unwrap();
            let returned = Instant::now();
            loop {
                match other.lock("k").try_acquire().await {
                    Ok(guard) => {
                        guard.release().await;
                        break;
                    }
                    // On a busy machine, the servers of a Redlock can answer too late.
                    Err(LockError::Busy { .. } | LockError::Unreachable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(returned.elapsed() < epsilon(), "the lock is still taken");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_of_another_client_is_next() {
    on_stores_with_a_queue(|store| async move {
        let [client, other] = store.clients().await;
        let (entered, inside) = oneshot::channel();
        let (leave, left) = oneshot::channel::<()>();
        let lock = in_background(&client);
        let first = tokio::spawn(async move {
            let body = async {
                entered.send(()).unwrap();
                left.await.unwrap();
            };
            lock.run(body).await.unwrap();
            // This call queues behind the caller that is already waiting.
            let again = lock.wait(20 * SECOND).run(async { Instant::now() });
            again.await.unwrap()
        });
        inside.await.unwrap();
        let waiting = tokio::spawn(async move {
            let lock = in_background(&other).wait(20 * SECOND);
            let body = async {
                sleep(20 * MS).await;
                Instant::now()
            };
            lock.run(body).await.unwrap()
        });
        until_waiting(&client, "k", 1).await;
        leave.send(()).unwrap();
        let (again, waited) = (first.await.unwrap(), waiting.await.unwrap());
        assert!(again > waited, "the new call overtook the waiting caller");
    })
    .await;
}

#[tokio::test]
async fn a_release_that_is_lost_is_sent_again() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, Some(Release::Background)).await;
        let lock = fixture.behind.lock("k").lease(60 * SECOND);
        lock.run(async {
            for proxy in &fixture.proxies {
                proxy.hold_requests(true);
            }
        })
        .await
        .unwrap();
        let busy = fixture.direct.lock("k").try_acquire().await;
        assert!(busy.is_err(), "the server has not received the release");
        for proxy in &fixture.proxies {
            proxy.cut();
            proxy.hold_requests(false);
        }
        let cut = Instant::now();
        until_free(&fixture.direct, "k").await;
        let took = cut.elapsed();
        assert!(took < 200 * MS + epsilon(), "{took:?}");
        hold(&fixture.direct, "k").await.release().await;
        support::until(async || released(&fixture.behind) == 2).await;
    })
    .await;
}

/// The server is far away, so the answer to a release comes later than that of a near server. The engine waits for it,
/// and does not send the release a second time.
#[tokio::test]
async fn over_a_far_line_a_release_is_sent_once() {
    for store in [Store::redis().await, Store::redisson().await] {
        let fixture = Fixture::of(store, Some(Release::Background)).await;
        become_far(&fixture.proxies[0], &fixture.behind, 200 * MS).await;
        let before = fixture.behind.stats();
        for _ in 0..3 {
            fixture.behind.lock("k").run(async {}).await.unwrap();
        }
        let ended = before.released + before.release_unknown + 3;
        support::until(async || released(&fixture.behind) == ended).await;
        let sent_again = fixture.behind.stats().release_unknown - before.release_unknown;
        assert_eq!(sent_again, 0);
    }
}

#[tokio::test]
async fn shutting_down_waits_for_it() {
    on_every_server(async |store| {
        let fixture = Fixture::of(store, Some(Release::Background)).await;
        fixture.behind.lock("k").run(fixture.body()).await.unwrap();
        let down = tokio::spawn({
            let client = fixture.behind.clone();
            async move { client.shutdown().await }
        });
        sleep(100 * MS).await;
        assert!(
            !down.is_finished(),
            "the shutdown ended before the release was answered"
        );
        fixture.hold_replies(false);
        let answered = Instant::now();
        down.await.unwrap();
        let took = answered.elapsed();
        assert!(took < epsilon(), "{took:?}");
        // If a second request to release was sent before the answer to the first, it found no grant.
        let stats = fixture.behind.stats();
        assert_eq!(stats.released + stats.release_unknown, 2);
        assert_eq!(fixture.store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_ends_right_after_it_has_released() {
    on_every_store(|store| async move {
        let observer = store.client().await;
        let there = store.clone();
        let client = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = there.client().await;
                let lock = in_background(&client).lease(60 * SECOND);
                lock.run(async {}).await.unwrap();
                client
            })
        });
        let client = client.join().unwrap();
        let ended = Instant::now();
        until_free(&observer, "k").await;
        let took = ended.elapsed();
        assert!(took < epsilon(), "{took:?}");
        client.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn dropped_or_panicking_it_is_free_at_once() {
    on_every_store(|store| async move {
        let client = store.client().await;
        let lock = || in_background(&client).lease(60 * SECOND);
        let free_soon = async || {
            let ended = Instant::now();
            until_free(&client, "k").await;
            let took = ended.elapsed();
            assert!(took < epsilon(), "{took:?}");
        };
        let (inside, entered) = oneshot::channel();
        let mut running = Box::pin(lock().run(async {
            inside.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        tokio::select! {
            biased;
            _ = &mut running => unreachable!("the body never ends"),
            entered = entered => entered.unwrap(),
        }
        drop(running);
        free_soon().await;

        let panicking = lock();
        let panicked = tokio::spawn(async move {
            let body = async { panic!("as the test wants") };
            panicking.run(body).await
        });
        let ended: Result<Result<(), LockError>, _> = panicked.await;
        assert!(ended.unwrap_err().is_panic());
        free_soon().await;
        assert_eq!(store.keys().await, [] as [String; 0]);
    })
    .await;
}

#[distributed_lock(key = "k", lease = "20s", hold_at_least = "600ms", release = background)]
async fn kept() -> Result<u8, LockError> {
    Ok(7)
}

#[tokio::test]
async fn a_lock_that_is_kept_stays_taken() {
    const AT_LEAST: Duration = Duration::from_millis(600);
    on_every_store(|store| async move {
        let [client, other] = store.clients().await;
        let start = Instant::now();
        assert_eq!(client.scope(kept()).await, Ok(7));
        let returned = start.elapsed();
        assert!(returned < AT_LEAST / 2, "{returned:?}");
        let next = other.lock("k").wait(10 * SECOND);
        next.run(async {}).await.unwrap();
        let entered = start.elapsed();
        let least = AT_LEAST - 20 * MS;
        assert!(
            (least..AT_LEAST + 200 * MS + epsilon()).contains(&entered),
            "{entered:?}"
        );
    })
    .await;
}

/// In the in-process backend, a release needs no answer of a server, so the lock is free before the call returns.
#[tokio::test]
async fn in_process_both_settings_behave_in_the_same_way() {
    let [client, other] = Store::memory().clients().await;
    for release in [Release::Confirmed, Release::Background] {
        let lock = client.lock("k").release(release);
        for turn in 0..100 {
            lock.run(async {}).await.unwrap();
            let next = other.lock("k").try_acquire().await;
            next.unwrap_or_else(|error| panic!("{release:?}, turn {turn}: {error}"))
                .release()
                .await;
        }
    }
}
