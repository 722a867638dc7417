//! Readers and writers of one lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_runtime::{
    Lock, LockClient, LockError, LockGuard, Mode, OptionsError, Strategy, distributed_lock,
};
use support::{
    proxy::FaultProxy,
    server::RedisServer,
    stores::{
        SECOND, Store, on_every_topology_with_a_queue, on_stores_with_a_queue, until, until_free,
        until_waiting,
    },
};
use tokio::{sync::Barrier, task::JoinHandle};

const MS: Duration = Duration::from_millis(1);
const KEY: &str = "report";

fn lock(client: &LockClient) -> Lock {
    client.lock(KEY).wait(60 * SECOND).lease(60 * SECOND)
}

async fn read(client: &LockClient) -> LockGuard {
    lock(client).read().acquire().await.unwrap()
}

/// Begins to acquire a lock. The result is ready when the caller is inside.
fn begin(lock: Lock) -> JoinHandle<LockGuard> {
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

async fn is_busy(lock: Lock) -> bool {
    matches!(lock.try_acquire().await, Err(LockError::Busy { .. }))
}

#[tokio::test]
async fn readers_are_inside_together_and_a_writer_alone() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two, three] = store.clients().await;
        let first = read(&one).await;
        let second = read(&two).await;
        let third = lock(&two).read().try_acquire().await.unwrap();
        assert!(first.token() < second.token() && second.token() < third.token());
        assert!(is_busy(lock(&three)).await && is_busy(lock(&one)).await);
        let writing = begin(lock(&three));
        until_waiting(&one, KEY, 1).await;
        // A reader that comes after a waiting writer enters after it.
        assert!(is_busy(lock(&one).read()).await);
        let last = begin(lock(&one).read());
        until_waiting(&one, KEY, 2).await;
        first.release().await;
        third.release().await;
        assert!(is_busy(lock(&one).read()).await);
        second.release().await;
        let writer = writing.await.unwrap();
        assert!(is_busy(lock(&one).read()).await && is_busy(lock(&two)).await);
        writer.release().await;
        let last = last.await.unwrap();
        read(&two).await.release().await;
        last.release().await;
        until_free(&one, KEY).await;
        assert!(store.keys().await.iter().all(|key| key.ends_with("fence")));
    })
    .await;
}

/// Readers that wait together enter together, from several clients, up to the next writer.
#[tokio::test]
async fn readers_that_stand_together_enter_together() {
    on_every_topology_with_a_queue(async |store| {
        let [writer, one, two] = store.clients().await;
        let guard = lock(&writer).acquire().await.unwrap();
        let (inside, readers) = (Arc::new(Barrier::new(21)), Arc::new(AtomicUsize::new(0)));
        let mut reading = Vec::new();
        for number in 0..20 {
            let lock = lock(if number % 3 == 0 { &one } else { &two }).read();
            let (inside, readers) = (inside.clone(), readers.clone());
            reading.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                readers.fetch_add(1, Ordering::SeqCst);
                inside.wait().await;
                guard.release().await;
            }));
            until_waiting(&writer, KEY, number + 1).await;
        }
        let last = begin(lock(&writer));
        until_waiting(&writer, KEY, 21).await;
        guard.release().await;
        until(async || readers.load(Ordering::SeqCst) == 20).await;
        assert!(!last.is_finished());
        inside.wait().await;
        join_all(reading).await;
        last.await.unwrap().release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// The writer at the front gives up, so the readers behind it enter beside those that are inside.
#[tokio::test]
async fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two, three] = store.clients().await;
        for cancelled in [false, true] {
            let inside = read(&one).await;
            let wait = if cancelled { 60 * SECOND } else { SECOND };
            let writing = tokio::spawn(lock(&two).wait(wait).acquire());
            until_waiting(&one, KEY, 1).await;
            let reading = [begin(lock(&three).read()), begin(lock(&one).read())];
            until_waiting(&one, KEY, 3).await;
            if cancelled {
                writing.abort();
            } else {
                assert!(matches!(
                    writing.await.unwrap(),
                    Err(LockError::Busy { .. })
                ));
            }
            for reading in reading {
                reading.await.unwrap().release().await;
            }
            inside.release().await;
            until_free(&one, KEY).await;
        }
    })
    .await;
}

/// In process, a reader behind a writer that gives up enters at once. Otherwise, it looks again after 2 s.
#[tokio::test(start_paused = true)]
async fn in_process_a_reader_behind_a_writer_that_gives_up_enters_at_once() {
    let client = Store::memory().client().await;
    let inside = read(&client).await;
    let writing = begin(lock(&client));
    until_waiting(&client, KEY, 1).await;
    let reading = begin(lock(&client).read());
    until_waiting(&client, KEY, 2).await;
    let start = tokio::time::Instant::now();
    writing.abort();
    reading.await.unwrap().release().await;
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    inside.release().await;
}

#[tokio::test]
async fn nested_readers_enter_without_a_request() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let reading = lock(&one).read().run(async {
            // A writer waits, and the nested reader does not wait behind it.
            let writing = begin(lock(&two));
            until_waiting(&one, KEY, 1).await;
            let before = one.stats().commands;
            one.lock(KEY).read().run(async {}).await.unwrap();
            let upgrade = lock(&one).wait(60 * SECOND).run(async {}).await;
            assert!(
                matches!(
                    upgrade,
                    Err(LockError::InvalidOptions(OptionsError::Upgrade))
                ),
                "{upgrade:?}"
            );
            let several = one.locks([KEY, "other"]).acquire().await;
            assert!(matches!(
                several.map(drop),
                Err(LockError::InvalidOptions(OptionsError::Upgrade))
            ));
            assert!(one.stats().commands <= before + 1, "a probe at most");
            Some(writing)
        });
        let writing = reading.await.unwrap().expect("a writer waits");
        let writer = writing.await.unwrap();
        writer.release().await;
        let written = lock(&one).write().run(async {
            let before = one.stats().commands;
            one.lock(KEY).read().run(async {}).await.unwrap();
            assert!(is_busy(lock(&two).read()).await);
            one.stats().commands - before
        });
        assert_eq!(written.await.unwrap(), 0);
    })
    .await;
}

/// Each reader has its own lease. A writer enters when the last one has ended, although a reader with a longer lease has
/// left before.
#[tokio::test]
async fn a_reader_that_never_leaves_is_gone_with_its_own_lease() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two, three] = store.clients().await;
        let long = read(&one).await;
        let short = lock(&two).read().lease(1500 * MS).acquire().await.unwrap();
        let other = read(&two).await;
        let writing = begin(lock(&three));
        until_waiting(&one, KEY, 1).await;
        assert!(is_busy(lock(&one).read()).await);
        short.lost().await;
        assert!(!writing.is_finished(), "two readers are inside");
        long.release().await;
        other.release().await;
        writing.await.unwrap().release().await;
        drop(short);
        until_free(&one, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn readers_are_renewed_and_none_is_lost() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let renewed = |client: &LockClient| client.lock(KEY).read().lease(3 * SECOND).renew(true);
        let mut guards = Vec::new();
        for number in 0..50 {
            let client = if number % 2 == 0 { &one } else { &two };
            guards.push(renewed(client).acquire().await.unwrap());
        }
        // In process, nothing has to be renewed.
        let renewed = |client: &LockClient| client.stats().renewed >= 50;
        until(async || !store.is_redis() || renewed(&one) && renewed(&two)).await;
        for guard in guards {
            assert_eq!(guard.loss(), None);
            guard.release().await;
        }
        until_free(&one, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn the_minimum_hold_of_a_reader_keeps_writers_out() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let kept = lock(&one).read().hold_at_least(SECOND);
        kept.run(async {}).await.unwrap();
        assert!(is_busy(lock(&two)).await);
        read(&two).await.release().await;
        let began = tokio::time::Instant::now();
        lock(&two).acquire().await.unwrap().release().await;
        assert!(began.elapsed() < SECOND + support::epsilon());
        until_free(&one, KEY).await;
    })
    .await;
}

/// A reader with a minimum hold leaves before the other readers of its client, with which it shares a grant.
#[tokio::test]
async fn the_minimum_hold_of_a_reader_outlasts_the_others() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let guard = lock(&two).acquire().await.unwrap();
        let kept = lock(&one).read().hold_at_least(2 * SECOND);
        let kept = tokio::spawn(kept.run(async { tokio::time::Instant::now() }));
        until_waiting(&two, KEY, 1).await;
        let other = begin(lock(&one).read());
        until_waiting(&two, KEY, 2).await;
        guard.release().await;
        let began = kept.await.unwrap().unwrap();
        other.await.unwrap().release().await;
        lock(&two).acquire().await.unwrap().release().await;
        let lasted = began.elapsed();
        assert!(lasted >= 1900 * MS, "{lasted:?}");
        until_free(&one, KEY).await;
    })
    .await;
}

/// Each key of a call can have a mode of its own. The call writes a lock that it names in both modes.
#[tokio::test]
async fn a_call_reads_one_lock_and_writes_another() {
    #[distributed_lock(keys = ["account:<from>", "account:<to>", read "rates"], wait = "60s", lease = "60s")]
    async fn transfer(from: u64, to: u64) -> Result<[Mode; 2], LockError> {
        let mode = async |key: String| {
            let status = LockClient::current()?.lock(key).status().await?;
            Ok::<_, LockError>(status.holder.expect("the call holds the lock").mode)
        };
        Ok([
            mode(format!("account:{from}")).await?,
            mode("rates".into()).await?,
        ])
    }
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let rates = two.lock("rates").lease(60 * SECOND).wait(60 * SECOND);
        let reader = rates.clone().read().acquire().await.unwrap();
        let modes = one.scope(transfer(1, 2)).await.unwrap();
        assert_eq!(modes, [Mode::Write, Mode::Read]);
        let inside = one
            .locks(["account:1", "account:2"])
            .and_read(["rates", "account:2"])
            .lease(60 * SECOND)
            .acquire()
            .await
            .unwrap();
        assert!(two.lock("rates").read().try_acquire().await.is_ok());
        for (key, mode) in [("account:2", Mode::Read), ("rates", Mode::Write)] {
            let lock = two.lock(key);
            let busy = match mode {
                Mode::Read => lock.read().try_acquire().await,
                _ => lock.try_acquire().await,
            };
            assert!(matches!(busy, Err(LockError::Busy { .. })), "{key}");
        }
        reader.release().await;
        let writer = tokio::spawn(rates.acquire());
        until_waiting(&one, "rates", 1).await;
        let behind = tokio::spawn(one.scope(transfer(3, 4)));
        until_waiting(&one, "rates", 2).await;
        inside.release().await;
        let writer = writer.await.unwrap().unwrap();
        assert!(!behind.is_finished(), "a writer is inside");
        writer.release().await;
        behind.await.unwrap().unwrap();
        for key in ["account:1", "account:2", "account:3", "account:4", "rates"] {
            until_free(&one, key).await;
        }
    })
    .await;
}

#[tokio::test]
async fn readers_take_several_locks_together() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let keys = ["a", "b"];
        let several = |client: &LockClient| client.locks(keys).wait(60 * SECOND);
        let first = several(&one).read().acquire().await.unwrap();
        let second = several(&two).read().acquire().await.unwrap();
        let single = two.lock("a").read().try_acquire().await.unwrap();
        assert!(is_busy(one.lock("b")).await);
        let writing = tokio::spawn(several(&one).acquire());
        until_waiting(&one, "a", 1).await;
        first.release().await;
        second.release().await;
        assert!(is_busy(one.lock("a").read()).await);
        single.release().await;
        writing.await.unwrap().unwrap().release().await;
        for key in keys {
            until_free(&one, key).await;
        }
    })
    .await;
}

#[tokio::test]
async fn readers_that_spin_enter_together() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let spins = |client: &LockClient| lock(client).read().strategy(Strategy::Spin);
        let guard = lock(&one).acquire().await.unwrap();
        let reading = [begin(spins(&one)), begin(spins(&two)), begin(spins(&two))];
        tokio::time::sleep(50 * MS).await;
        guard.release().await;
        let guards = join_all(reading).await;
        assert!(is_busy(lock(&one)).await);
        for guard in guards {
            guard.unwrap().release().await;
        }
        until_free(&one, KEY).await;
    })
    .await;
}

/// Readers of one client that have queued together share a grant: it is granted with one message, and released with one
/// command after the last of them has left.
#[tokio::test]
async fn readers_of_one_client_share_a_grant() {
    let store = Store::redis().await;
    let [one, two] = store.clients().await;
    let guard = lock(&two).acquire().await.unwrap();
    let reading: Vec<_> = (0..40).map(|_| begin(lock(&one).read())).collect();
    until_waiting(&two, KEY, 40).await;
    guard.release().await;
    let mut guards: Vec<_> = join_all(reading)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let before = one.stats().commands;
    let last = guards.pop().unwrap();
    for guard in guards {
        guard.release().await;
    }
    assert!(is_busy(lock(&two)).await);
    last.release().await;
    // The 40 readers confirm their shared lease in few commands, and release it with one.
    let commands = one.stats().commands - before;
    assert!(commands <= 10, "{commands} commands");
    lock(&two).try_acquire().await.unwrap().release().await;
}

/// A reader whose answer is lost asks again, and is inside once.
#[tokio::test]
async fn a_reader_whose_answer_is_lost_is_inside_once() {
    for wait in [60 * SECOND, Duration::ZERO] {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let store = Store::on(&server.url());
        let behind = store.through(&proxy.url()).client().await;
        let client = store.client().await;
        let other = read(&client).await;
        proxy.hold_replies(true);
        let reading = tokio::spawn(lock(&behind).read().wait(wait).acquire());
        let readers = async || 1 + lock(&client).status().await.unwrap().others.len();
        until(async || readers().await == 2).await;
        proxy.cut();
        proxy.hold_replies(false);
        match reading.await.unwrap() {
            Ok(guard) => {
                assert_eq!(readers().await, 2);
                guard.release().await;
            }
            // A call without a `wait` may give up before it has the answer.
            Err(_) => assert!(wait.is_zero()),
        }
        until(async || readers().await == 1).await;
        other.release().await;
        lock(&client).try_acquire().await.unwrap().release().await;
    }
}

/// A reader that is dropped at any moment leaves nothing behind, neither a place nor a grant.
#[tokio::test]
async fn a_dropped_reader_leaves_nothing() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        for _ in 0..20 {
            let guard = lock(&two).acquire().await.unwrap();
            let mut reading: Vec<_> = (0..6).map(|_| begin(lock(&one).read())).collect();
            until_waiting(&two, KEY, 6).await;
            reading[1].abort();
            let releasing = tokio::spawn(async move { guard.release().await });
            reading[0].abort();
            tokio::task::yield_now().await;
            reading[5].abort();
            releasing.await.unwrap();
            reading[3].abort();
            let (stays, _) = (reading.remove(2), reading.remove(0));
            let stays = stays.await.unwrap();
            assert_eq!(stays.loss(), None);
            stays.release().await;
            for left in reading {
                left.abort();
                if let Ok(guard) = left.await {
                    guard.release().await;
                }
            }
            until_free(&two, KEY).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_status_names_all_readers() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let guards = [read(&one).await, read(&two).await, read(&two).await];
        let status = lock(&one).status().await.unwrap();
        let first = status.holder.expect("a reader is inside");
        let tokens: Vec<_> = std::iter::once(&first)
            .chain(&status.others)
            .map(|holder| (holder.token.unwrap(), holder.mode))
            .collect();
        let expected: Vec<_> = guards
            .iter()
            .map(|guard| (guard.token(), Mode::Read))
            .collect();
        assert_eq!(tokens, expected);
        assert!(first.held_for.is_some() && first.caller.is_some());
        let busy = lock(&two).try_acquire().await.unwrap_err();
        let LockError::Busy { held_by, .. } = busy else {
            panic!("{busy}");
        };
        assert_eq!(held_by.expect("a reader").holder.mode, Mode::Read);
        for guard in guards {
            guard.release().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_lock_without_a_queue_has_no_readers() {
    for store in [Store::redlock().await, Store::redisson().await] {
        let client = store.client().await;
        let refused = client.lock(KEY).read().acquire().await.map(drop);
        assert!(
            matches!(
                refused,
                Err(LockError::InvalidOptions(OptionsError::NoReaders))
            ),
            "{refused:?}"
        );
    }
}

#[distributed_lock(key = "report:<id>", mode = read, wait = "60s", client = client)]
async fn reads(client: &LockClient, id: u64, inside: &Barrier) -> Result<u64, LockError> {
    inside.wait().await;
    Ok(id)
}

#[tokio::test]
async fn annotated_readers_are_inside_together() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let inside = Barrier::new(2);
        let (first, second) = tokio::join!(reads(&one, 7, &inside), reads(&two, 7, &inside));
        assert_eq!((first.unwrap(), second.unwrap()), (7, 7));
    })
    .await;
}

/// A writer that has become a reader lets in the readers that are next, and no writer gets in between.
#[tokio::test]
async fn a_writer_becomes_a_reader_and_the_next_readers_enter() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two, three] = store.clients().await;
        let guard = lock(&one).acquire().await.unwrap();
        let token = guard.token();
        let first = begin(lock(&two).read());
        until_waiting(&one, KEY, 1).await;
        let second = begin(lock(&one).read());
        until_waiting(&one, KEY, 2).await;
        let writing = begin(lock(&three));
        until_waiting(&one, KEY, 3).await;
        let last = begin(lock(&two).read());
        until_waiting(&one, KEY, 4).await;
        guard.downgrade().await.unwrap();
        guard.downgrade().await.unwrap();
        assert_eq!((guard.token(), guard.loss()), (token, None));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(first.token() > token && second.token() > token);
        assert!(is_busy(lock(&two).read()).await && !writing.is_finished());
        first.release().await;
        second.release().await;
        assert!(!writing.is_finished(), "the former writer is still inside");
        guard.release().await;
        let writer = writing.await.unwrap();
        assert!(!last.is_finished());
        writer.release().await;
        last.await.unwrap().release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// A writer is next, so nobody enters beside the former writer.
#[tokio::test]
async fn a_writer_does_not_slip_in_at_a_downgrade() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let guard = lock(&one).acquire().await.unwrap();
        // The writer of the same client shares a grant with the one before it.
        let writers = [begin(lock(&one)), begin(lock(&one))];
        until_waiting(&two, KEY, 2).await;
        let reading = begin(lock(&two).read());
        until_waiting(&two, KEY, 3).await;
        guard.release().await;
        let [first, second] = writers;
        let first = first.await.unwrap();
        first.downgrade().await.unwrap();
        assert!(!second.is_finished() && !reading.is_finished());
        assert_eq!(lock(&two).status().await.unwrap().waiters, 2);
        first.release().await;
        second.await.unwrap().release().await;
        reading.await.unwrap().release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn a_former_writer_is_renewed_as_a_reader() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let renewed = one.lock(KEY).lease(3 * SECOND).renew(true);
        let guard = renewed.acquire().await.unwrap();
        guard.downgrade().await.unwrap();
        // In process, nothing has to be renewed.
        until(async || !store.is_redis() || one.stats().renewed >= 2).await;
        assert_eq!(guard.loss(), None);
        assert!(is_busy(lock(&two)).await);
        read(&two).await.release().await;
        guard.release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn calls_nested_in_a_former_writer_only_read() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let guard = lock(&client).acquire().await.unwrap();
        guard
            .run(async {
                lock(&client)
                    .run(async {
                        let refused = guard.downgrade().await;
                        let with = lock_runtime::BusyWith::Sibling;
                        assert!(
                            matches!(&refused, Err(LockError::Busy { with: found, .. }) if *found == with),
                            "{refused:?}"
                        );
                    })
                    .await
                    .unwrap();
                guard.downgrade().await.unwrap();
                let upgrade = lock(&client).run(async {}).await;
                let refused = LockError::InvalidOptions(OptionsError::Upgrade);
                assert_eq!(upgrade, Err(refused));
                client.lock(KEY).read().run(async {}).await.unwrap();
            })
            .await
            .unwrap();
        guard.release().await;
        until_free(&client, KEY).await;
    })
    .await;
}

/// The answer to a downgrade is lost, and its repetition finds what the first request has done.
#[tokio::test]
async fn a_downgrade_whose_answer_is_lost_is_repeated() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    // From here on, the server knows the script.
    let guard = lock(&client).acquire().await.unwrap();
    guard.downgrade().await.unwrap();
    guard.release().await;
    let guard = lock(&behind).acquire().await.unwrap();
    proxy.hold_replies(true);
    let downgrading = tokio::spawn(async move {
        guard.downgrade().await.unwrap();
        guard
    });
    until(async || {
        let holder = lock(&client).status().await.unwrap().holder;
        holder.is_some_and(|holder| holder.mode == Mode::Read)
    })
    .await;
    proxy.cut();
    proxy.hold_replies(false);
    let guard = downgrading.await.unwrap();
    assert!(lock(&client).status().await.unwrap().others.is_empty());
    guard.release().await;
    until_free(&client, KEY).await;
}

/// A writer that waits at the front is gone, so the readers behind it enter although other readers are still inside.
#[tokio::test]
async fn a_writer_that_is_gone_keeps_no_reader_back() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let inside = read(&client).await;
    let writing = begin(lock(&behind));
    until_waiting(&client, KEY, 1).await;
    let reading = begin(lock(&client).read());
    until_waiting(&client, KEY, 2).await;
    proxy.refuse(true);
    proxy.cut();
    reading.await.unwrap().release().await;
    // The writer comes back, and has its old place.
    proxy.refuse(false);
    until_waiting(&client, KEY, 1).await;
    assert!(is_busy(lock(&client).read()).await);
    inside.release().await;
    writing.await.unwrap().release().await;
    until_free(&client, KEY).await;
}

/// The call of a writer that waits at the front is never polled again. When its `wait` is over, it keeps no reader back.
#[tokio::test(start_paused = true)]
async fn a_writer_that_is_not_polled_keeps_readers_back_for_its_wait_only() {
    let client = Store::memory().client().await;
    let inside = read(&client).await;
    let mut writing = Box::pin(lock(&client).wait(SECOND).acquire());
    assert!(futures_util::poll!(&mut writing).is_pending());
    assert!(is_busy(lock(&client).read()).await);
    tokio::time::advance(2 * SECOND).await;
    read(&client).await.release().await;
    inside.release().await;
}

/// Another program has stored a sorted set under the name of the lock. Nobody enters, and the set stays as it is.
#[tokio::test]
async fn a_sorted_set_of_another_program_is_no_lock() {
    let server = RedisServer::start().await;
    let store = Store::on(&server.url());
    let client = store.client().await;
    let mut redis = server.connection().await;
    let name = store.name(KEY);
    let mut stored = redis::cmd("ZADD");
    stored.arg(&name).arg(5).arg("x");
    let _: i64 = support::server::ask(&mut redis, &stored).await;
    for lock in [lock(&client).read(), lock(&client)] {
        for lock in [lock.clone(), lock.wait(Duration::ZERO)] {
            let refused = lock.acquire().await.map(drop);
            assert!(
                matches!(refused, Err(LockError::WrongLayout { .. })),
                "{refused:?}"
            );
        }
    }
    let left: i64 = support::server::ask(&mut redis, redis::cmd("PTTL").arg(&name)).await;
    assert_eq!(left, -1);
}

/// The lock is deleted while readers of one client are inside, and a writer of this client enters. All readers learn of it
/// soon, and not only at their next renewals.
#[tokio::test]
async fn readers_learn_of_a_writer_of_their_client() {
    let store = Store::redis().await;
    let [one, two] = store.clients().await;
    let readers = join_all((0..3).map(|_| read(&one))).await;
    let other = read(&two).await;
    store.delete(KEY).await;
    let writer = lock(&one).acquire().await.unwrap();
    for reader in &readers {
        tokio::time::timeout(10 * SECOND, reader.lost())
            .await
            .unwrap();
    }
    writer.release().await;
    drop((readers, other));
    until_free(&two, KEY).await;
}

/// Two calls with several keys share a grant of readers. The lease of the one that is inside does not become shorter when the
/// other one begins.
#[tokio::test]
async fn a_reader_that_begins_late_shortens_no_lease() {
    let store = Store::redis().await;
    let [one, two] = store.clients().await;
    let first = lock(&two).acquire().await.unwrap();
    let second = two.lock("z").acquire().await.unwrap();
    let reads = |keys: [&'static str; 2]| {
        let locks = one.locks(keys).read().wait(60 * SECOND).lease(4 * SECOND);
        tokio::spawn(locks.acquire())
    };
    let early = reads([KEY, "a"]);
    until_waiting(&two, "a", 0).await;
    until_waiting(&two, KEY, 1).await;
    let late = reads([KEY, "z"]);
    until_waiting(&two, KEY, 2).await;
    first.release().await;
    let early = early.await.unwrap().unwrap();
    early[0].extend(30 * SECOND).await.unwrap();
    until_waiting(&two, "z", 1).await;
    second.release().await;
    let late = late.await.unwrap().unwrap();
    late.release().await;
    assert!(is_busy(lock(&two)).await);
    let left = lock(&two).status().await.unwrap().holder.unwrap().remaining;
    assert!(left.is_some_and(|left| left > 20 * SECOND), "{left:?}");
    early.release().await;
}
