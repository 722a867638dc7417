//! Semaphores: a limited number of permits in a whole fleet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_runtime::{LockClient, LockError, LockGuard, Mode, OptionsError, Semaphore};
use support::{
    proxy::FaultProxy,
    server::RedisServer,
    stores::{
        SECOND, Store, on_every_topology_with_a_queue, on_stores_with_a_queue, until, until_free,
        until_waiting,
    },
};
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const NAME: &str = "smtp";
const KEY: &str = "permits:smtp";

fn semaphore(client: &LockClient, permits: u32) -> Semaphore {
    client
        .semaphore(NAME, permits)
        .wait(60 * SECOND)
        .lease(60 * SECOND)
}

async fn take(client: &LockClient, permits: u32, of: u32) -> LockGuard {
    semaphore(client, of).acquire_many(permits).await.unwrap()
}

fn begin(semaphore: Semaphore, permits: u32) -> JoinHandle<LockGuard> {
    tokio::spawn(async move { semaphore.acquire_many(permits).await.unwrap() })
}

async fn is_busy(semaphore: &Semaphore) -> bool {
    matches!(semaphore.try_acquire().await, Err(LockError::Busy { .. }))
}

/// Returns the number of permits that are taken.
async fn taken(client: &LockClient) -> u32 {
    let status = semaphore(client, 1000).status().await.unwrap();
    let holders = status.holder.iter().chain(&status.others);
    let permits = holders.map(|holder| match holder.mode {
        Mode::Permits { take, .. } => take,
        mode => panic!("{mode:?}"),
    });
    permits.sum()
}

#[tokio::test]
async fn no_more_permits_are_taken_than_there_are() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let first = take(&one, 1, 3).await;
        let second = take(&two, 2, 3).await;
        assert!(first.token() < second.token());
        assert_eq!(taken(&one).await, 3);
        assert!(is_busy(&semaphore(&one, 3)).await && is_busy(&semaphore(&two, 3)).await);
        let third = begin(semaphore(&one, 3), 1);
        until_waiting(&two, KEY, 1).await;
        second.release().await;
        let third = third.await.unwrap();
        assert_eq!(taken(&two).await, 2);
        let fourth = semaphore(&two, 3).try_acquire().await.unwrap();
        // A lock of the same name is something else.
        two.lock(NAME).try_acquire().await.unwrap().release().await;
        for guard in [first, third, fourth] {
            guard.release().await;
        }
        until_free(&one, KEY).await;
        assert!(store.keys().await.iter().all(|key| key.ends_with("fence")));
    })
    .await;
}

/// A caller that needs several permits gets them as they come free one by one, and keeps back those behind it.
#[tokio::test]
async fn a_caller_that_needs_many_is_not_overtaken() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let mut guards = Vec::new();
        for _ in 0..4 {
            guards.push(take(&one, 1, 5).await);
        }
        let many = begin(semaphore(&two, 5), 4);
        until_waiting(&one, KEY, 1).await;
        assert!(is_busy(&semaphore(&one, 5)).await, "one permit is left");
        let behind = begin(semaphore(&one, 5), 1);
        until_waiting(&one, KEY, 2).await;
        for guard in guards.drain(..2) {
            guard.release().await;
        }
        assert!(!many.is_finished() && !behind.is_finished());
        guards.pop().unwrap().release().await;
        let many = many.await.unwrap();
        assert_eq!(taken(&one).await, 5);
        assert!(!behind.is_finished());
        many.release().await;
        behind.await.unwrap().release().await;
        guards.pop().unwrap().release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// A caller that gives up keeps back nobody any longer.
#[tokio::test]
async fn a_caller_that_needs_many_and_gives_up_lets_others_in() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let guard = take(&one, 2, 3).await;
        for cancelled in [false, true] {
            let wait = if cancelled { 60 * SECOND } else { SECOND };
            let many = tokio::spawn(semaphore(&two, 3).wait(wait).acquire_many(2));
            until_waiting(&one, KEY, 1).await;
            let behind = begin(semaphore(&one, 3), 1);
            until_waiting(&one, KEY, 2).await;
            if cancelled {
                many.abort();
            } else {
                assert!(matches!(many.await.unwrap(), Err(LockError::Busy { .. })));
            }
            behind.await.unwrap().release().await;
        }
        guard.release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// A permit that is never given back is free with the end of its lease. Its late release changes nothing.
#[tokio::test]
async fn a_permit_ends_with_its_lease_and_is_given_back_once() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let stays = take(&one, 1, 3).await;
        let lost = semaphore(&one, 3)
            .lease(1500 * MS)
            .acquire_many(2)
            .await
            .unwrap();
        let next = begin(semaphore(&two, 3), 2);
        until_waiting(&one, KEY, 1).await;
        assert_eq!(taken(&one).await, 3);
        let next = next.await.unwrap();
        assert!(
            lost.loss().is_some(),
            "the lease has ended for its holder first"
        );
        lost.release().await;
        assert_eq!(taken(&two).await, 3, "the late release gives nothing back");
        assert!(is_busy(&semaphore(&one, 3)).await);
        next.release().await;
        assert_eq!(taken(&two).await, 1);
        stays.release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// Many tasks of several clients take permits for a short time. The number inside is counted by the bodies themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_never_exceeds_the_limit() {
    on_stores_with_a_queue(async |store| {
        let clients: [LockClient; 3] = store.clients().await;
        let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let calls = (0..48_usize).map(|number| {
            let semaphore = semaphore(&clients[number % 3], 5);
            let (inside, most) = (inside.clone(), most.clone());
            tokio::spawn(async move {
                for round in 0..10 {
                    let take = 1 + ((number + round) % 3) as u32;
                    let guard = semaphore.acquire_many(take).await.unwrap();
                    let now = inside.fetch_add(take, Ordering::SeqCst) + take;
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(take, Ordering::SeqCst);
                    guard.release().await;
                }
            })
        });
        for call in join_all(calls).await {
            call.unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!((4..=5).contains(&most), "{most} at once");
        until_free(&clients[0], KEY).await;
    })
    .await;
}

/// A caller that names a larger number gets the further permits, and one that names a smaller number waits for its own.
#[tokio::test]
async fn each_caller_keeps_to_the_number_that_it_names() {
    on_stores_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let guards = [take(&one, 1, 2).await, take(&one, 1, 2).await];
        assert!(is_busy(&semaphore(&one, 2)).await);
        let more = semaphore(&two, 3).try_acquire().await.unwrap();
        assert!(is_busy(&semaphore(&two, 3)).await);
        let fewer = begin(semaphore(&one, 1), 1);
        until_waiting(&two, KEY, 1).await;
        for guard in guards {
            guard.release().await;
        }
        assert!(!fewer.is_finished(), "one permit is taken");
        more.release().await;
        fewer.await.unwrap().release().await;
        until_free(&one, KEY).await;
    })
    .await;
}

/// The number that an operator has set replaces those of all callers, also of those that wait already.
#[tokio::test]
async fn an_operator_changes_the_number_while_callers_wait() {
    on_every_topology_with_a_queue(async |store| {
        let [one, two] = store.clients().await;
        let smtp = semaphore(&two, 2);
        assert_eq!(smtp.limit().await, Ok(None));
        let mut guards = vec![take(&one, 1, 2).await, take(&one, 1, 2).await];
        let mut calls: Vec<_> = (0..100).map(|_| begin(semaphore(&one, 2), 1)).collect();
        until_waiting(&two, KEY, 100).await;
        // A larger number lets exactly those enter who fit now.
        smtp.set_limit(7).await.unwrap();
        assert_eq!(taken(&one).await, 7, "no later request lets them in");
        assert_eq!(semaphore(&one, 2).limit().await, Ok(Some(7)));
        until(async || calls.iter().filter(|call| call.is_finished()).count() == 5).await;
        until_waiting(&two, KEY, 95).await;
        assert_eq!(taken(&one).await, 7);
        let (entered, waiting): (Vec<_>, Vec<_>) =
            calls.drain(..).partition(JoinHandle::is_finished);
        for call in entered {
            guards.push(call.await.unwrap());
        }
        waiting.iter().for_each(JoinHandle::abort);
        until_waiting(&two, KEY, 0).await;
        // With a smaller one, callers wait until enough permits have come back.
        smtp.set_limit(3).await.unwrap();
        let next = begin(semaphore(&one, 100), 1);
        until_waiting(&two, KEY, 1).await;
        for guard in guards.drain(..4) {
            guard.release().await;
        }
        assert!(!next.is_finished() && taken(&two).await == 3);
        guards.pop().unwrap().release().await;
        let next = next.await.unwrap();
        assert!(is_busy(&semaphore(&one, 100)).await);
        // Zero lets nobody enter, until each caller's own number counts again.
        smtp.set_limit(0).await.unwrap();
        next.release().await;
        for guard in guards.drain(..) {
            guard.release().await;
        }
        until_free(&one, KEY).await;
        let next = begin(semaphore(&one, 2), 1);
        until_waiting(&two, KEY, 1).await;
        // Probes find the semaphore free, and let nobody enter.
        let before = one.stats().commands;
        let probes = store.is_redis() || store.is_cluster() || store.is_group();
        until(async || !probes || one.stats().commands > before + 4).await;
        assert!(!next.is_finished() && is_busy(&semaphore(&two, 2)).await);
        smtp.set_limit(3).await.unwrap();
        next.await.unwrap().release().await;
        let many = begin(semaphore(&one, 9), 7);
        until_waiting(&two, KEY, 1).await;
        assert!(
            is_busy(&semaphore(&two, 9)).await,
            "the first in the queue needs more"
        );
        assert!(!many.is_finished());
        smtp.clear_limit().await.unwrap();
        many.await.unwrap().release().await;
        assert_eq!(smtp.limit().await, Ok(None));
        let refused = OptionsError::PermitsOutOfRange { take: 1, of: 1001 };
        let too_many = smtp.set_limit(1001).await;
        assert_eq!(too_many, Err(LockError::InvalidOptions(refused)));
    })
    .await;
}

#[tokio::test]
async fn nested_calls_share_the_permits_of_the_enclosing_call() {
    on_stores_with_a_queue(async |store| {
        let client = store.client().await;
        let smtp = client.semaphore(NAME, 2);
        let nested = smtp.run(async {
            let before = client.stats().commands;
            smtp.run(async {}).await.unwrap();
            let more = smtp.acquire_many(2).await.map(drop);
            let refused = OptionsError::MorePermitsThanHeld { wanted: 2, held: 1 };
            assert_eq!(more, Err(LockError::InvalidOptions(refused)));
            client.stats().commands - before
        });
        assert_eq!(nested.await.unwrap(), 0);
        until_free(&client, KEY).await;
    })
    .await;
}

#[tokio::test]
async fn numbers_that_make_no_sense_are_refused() {
    let client = Store::memory().client().await;
    for (take, of) in [(0, 3), (4, 3), (1, 0), (1, 1001)] {
        let refused = client.semaphore(NAME, of).acquire_many(take).await;
        let expected = OptionsError::PermitsOutOfRange { take, of };
        assert_eq!(refused.map(drop), Err(LockError::InvalidOptions(expected)));
    }
    for store in [Store::redlock().await, Store::redisson().await] {
        let refused = store.client().await.semaphore(NAME, 3).acquire().await;
        let expected = LockError::InvalidOptions(OptionsError::NoReaders);
        assert_eq!(refused.map(drop), Err(expected));
    }
}

/// A caller whose answer is lost has its permits once. A caller that is dropped has none.
#[tokio::test]
async fn a_lost_answer_costs_no_permit() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    // From here on, the server knows the script.
    take(&client, 1, 3).await.release().await;
    for dropped in [false, true] {
        proxy.hold_replies(true);
        let taking = tokio::spawn(semaphore(&behind, 3).acquire_many(2));
        until(async || taken(&client).await == 2).await;
        if dropped {
            taking.abort();
        }
        proxy.cut();
        proxy.hold_replies(false);
        if !dropped {
            let guard = taking.await.unwrap().unwrap();
            assert_eq!(taken(&client).await, 2);
            guard.release().await;
        }
        until(async || taken(&client).await == 0).await;
        until_free(&client, KEY).await;
    }
}

/// The messages about the grants of many callers are lost with their connection. The first answer over the next connection names
/// all of these grants.
#[tokio::test]
async fn callers_whose_messages_are_lost_enter_together() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let behind = store.through(&proxy.url()).client().await;
    let client = store.client().await;
    let all = take(&client, 12, 12).await;
    let calls: Vec<_> = (0..12).map(|_| begin(semaphore(&behind, 12), 1)).collect();
    until_waiting(&client, KEY, 12).await;
    proxy.hold_replies(true);
    all.release().await;
    until(async || taken(&client).await == 12).await;
    proxy.cut();
    proxy.hold_replies(false);
    let guards = join_all(calls).await;
    let missed = behind.stats().missed_wakeups;
    assert!(missed <= 1, "probes had to find {missed} grants");
    for guard in guards {
        let guard = guard.unwrap();
        assert_eq!(guard.loss(), None);
        guard.release().await;
    }
    until_free(&client, KEY).await;
}

/// The first caller in the queue takes more permits than an operator has set, and its client is gone. It keeps back nobody.
#[tokio::test]
async fn a_caller_that_does_not_fit_and_is_gone_keeps_nobody_back() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let client = store.client().await;
    semaphore(&client, 5).set_limit(2).await.unwrap();
    for gives_up in [false, true] {
        let gone = store.through(&proxy.url()).client().await;
        let many = begin(semaphore(&gone, 5), 5);
        until_waiting(&client, KEY, 1).await;
        // Shorter than the wait of the caller that is gone.
        let behind = begin(semaphore(&client, 5).wait(20 * SECOND), 1);
        until_waiting(&client, KEY, 2).await;
        if gives_up {
            many.abort();
        } else {
            proxy.refuse(true);
            proxy.cut();
        }
        behind.await.unwrap().release().await;
        many.abort();
        proxy.refuse(false);
    }
    semaphore(&client, 5).clear_limit().await.unwrap();
}

/// A request for a limit that reaches the server after its call has ended undoes no newer one.
#[tokio::test]
async fn a_late_limit_undoes_nothing() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::on(&server.url());
    let (client, behind) = (
        store.client().await,
        store.through(&proxy.url()).client().await,
    );
    // From here on, the server knows the script.
    semaphore(&behind, 5).set_limit(3).await.unwrap();
    proxy.hold_requests(true);
    let unanswered = semaphore(&behind, 5).wait(SECOND).set_limit(0).await;
    assert!(matches!(unanswered, Err(LockError::Unreachable { .. })));
    semaphore(&client, 5).set_limit(4).await.unwrap();
    tokio::time::sleep(50 * MS).await;
    proxy.hold_requests(false);
    // The answer over the same line comes after the late request.
    until(async || semaphore(&behind, 5).limit().await.is_ok()).await;
    assert_eq!(semaphore(&client, 5).limit().await, Ok(Some(4)));
}
