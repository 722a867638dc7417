//! Tests of Redisson's layout on the primary of a group that Sentinels watch, against the real Redisson in Sentinel
//! mode.

use lock_runtime::{Layout, LockClient};
use support::{
    sentinels::{GROUP, SentinelGroup},
    server::{RedisServer, ask},
    stores::{MS, SECOND, hold, until},
};
use tokio::time::{Instant, sleep, timeout};

use crate::Service;

async fn until_listening(server: &RedisServer, clients: u32) {
    let mut redis = server.connection().await;
    until(async || {
        let mut asking = redis::cmd("PUBSUB");
        asking.arg("NUMSUB").arg("redisson_lock__channel:{k}");
        let (_, count): (String, u32) = ask(&mut redis, &asking).await;
        count == clients
    })
    .await;
}

/// A Rust caller waits for the JVM, and the JVM waits for a Rust caller. Each release wakes the waiting side at once.
#[tokio::test]
async fn under_sentinels_each_wakes_the_other() {
    let group = SentinelGroup::start().await;
    let primary = &group.servers[0];
    let builder = LockClient::builder().url(group.url());
    let client = builder.layout(Layout::Redisson).connect().await.unwrap();
    let mut service = Service::with(GROUP, group.sentinels.iter().map(RedisServer::url)).await;
    let mut fastest = SECOND;
    for _ in 0..5 {
        let guard = hold(&client, "k").await;
        service.tell("a", "lock k 20000");
        until_listening(primary, 1).await;
        guard.release().await;
        let entered = timeout(5 * SECOND, service.answer("a")).await;
        assert_eq!(
            entered.expect("the JVM wakes when Rust releases the lock"),
            "in"
        );
        until_listening(primary, 0).await;
        let waits = client.lock("k").wait(20 * SECOND);
        let (guard, released) = tokio::join!(waits.acquire(), async {
            until_listening(primary, 1).await;
            sleep(20 * MS).await;
            let released = Instant::now();
            assert_eq!(service.ask("a", "unlock k").await, "out");
            released
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        until_listening(primary, 0).await;
    }
    // The measured time is longer than the wake-up alone, because Redisson waits for an acknowledgement of the replicas
    // when it unlocks.
    assert!(fastest < 60 * MS, "{fastest:?}");
}
