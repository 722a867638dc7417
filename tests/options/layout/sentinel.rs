//! Redisson's layout on the primary of a group that Sentinels watch, tested against a client that sends the same commands
//! as Redisson 4.7 in Sentinel mode.

use lock_runtime::{Layout, LockClient};
use support::sentinels::SentinelGroup;
use tokio::time::{Instant, sleep, timeout};

use super::Jvm;
use crate::stores::{MS, SECOND, hold, until};

/// The JVM and this crate wait for each other at the first primary, and after a failover at the second primary.
#[tokio::test]
async fn both_wake_each_other_before_and_after_a_failover() {
    let mut group = SentinelGroup::start().await;
    let builder = LockClient::builder().url(group.url());
    let client = builder
        .layout(Layout::Redisson)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let mut primary = 0;
    for failover in [true, false] {
        let guard = hold(&client, "order:7").await;
        let mut jvm = Jvm::on(&group.servers[primary], "order:7").await;
        let mut counting = Jvm::on(&group.servers[primary], "order:7").await;
        let told = tokio::join!(timeout(10 * SECOND, jvm.lock(30 * SECOND)), async {
            until(async || counting.listeners().await == 1).await;
            guard.release().await;
        });
        told.0.expect("the JVM is notified of this crate's release");
        let waits = client.lock("order:7").wait(30 * SECOND);
        let (entered, released) = tokio::join!(waits.acquire(), async {
            until(async || counting.listeners().await == 1).await;
            if failover {
                group.until_replicated().await;
                group.servers[primary].kill();
                primary = group.promoted_instead_of(primary).await;
                let owner = jvm.owner.clone();
                let now = Jvm::on(&group.servers[primary], "order:7").await;
                jvm = Jvm { owner, ..now };
                let mut counting = Jvm::on(&group.servers[primary], "order:7").await;
                until(async || counting.listeners().await == 1).await;
            }
            // After this pause, this crate's waiter has subscribed, tried again, and found the lock taken.
            sleep(50 * MS).await;
            assert_eq!(jvm.unlock().await, Some(true));
            Instant::now()
        });
        entered.unwrap().release().await;
        let took = released.elapsed();
        assert!(took < 150 * MS + support::epsilon(), "{took:?}");
    }
}
