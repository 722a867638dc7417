//! Row 58 of `docs/faults.md`: forged and repeated pushes.

use std::{sync::Arc, time::Duration};

use lock_runtime::{Hold, LockClient, LockGuard};
use redis::{
    AsyncConnectionConfig, FromRedisValue, PushInfo, PushKind, aio::MultiplexedConnection,
};
use support::{
    log,
    server::{RedisServer, ask},
    stores::{MS, SECOND},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tracing::Level;
use uuid::Uuid;

use crate::fixture::{client, row, until, until_waiting};

/// An attacker: a user of the server with all Pub/Sub rights who can neither read nor write any key.
struct Forger {
    connection: MultiplexedConnection,
    /// The channel and the payload of each message that the forger has received.
    heard: mpsc::UnboundedReceiver<(String, String)>,
}

impl Forger {
    async fn on(server: &RedisServer) -> Self {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg("forger");
        user.arg(&["on", ">pw", "resetkeys", "allchannels"]);
        user.arg(&["-@all", "+@pubsub", "+@connection"]);
        let mut admin = server.connection().await;
        user.exec_async(&mut admin).await.unwrap();
        let url = format!(
            "redis://forger:pw@127.0.0.1:{}/?protocol=resp3",
            server.port()
        );
        let (sender, heard) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::PMessage {
                let texts = push.data.into_iter().map(String::from_redis_value);
                let texts: Vec<_> = texts.map(Result::unwrap).collect();
                let _ = sender.send((texts[1].clone(), texts[2].clone()));
            }
            Ok::<(), ()>(())
        });
        let mut connection = redis::Client::open(url)
            .unwrap()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap();
        connection.psubscribe("lock:session:*").await.unwrap();
        Self { connection, heard }
    }

    async fn channels(&mut self) -> Vec<String> {
        ask(
            &mut self.connection,
            redis::cmd("PUBSUB").arg("CHANNELS").arg("lock:session:*"),
        )
        .await
    }

    /// Publishes a message, and returns when the engine has logged that it ignores the message.
    async fn publish(&mut self, channel: &str, payload: &str) {
        let shown = format!("{:?}", payload.chars().take(100).collect::<String>());
        let ignored = || log::of_any_level("payload", &shown).len();
        let before = ignored();
        let heard: u64 = ask(
            &mut self.connection,
            redis::cmd("PUBLISH").arg(channel).arg(payload),
        )
        .await;
        assert_eq!(heard, 2, "a session and the forger listen on {channel}");
        until(async || ignored() > before).await;
    }

    /// Returns the next push that grants a lock to this many owners. Skips other messages: the forger also receives the
    /// messages that it publishes itself.
    async fn hear_grant_to(&mut self, owners: usize) -> (String, String) {
        loop {
            let heard = timeout(20 * SECOND, self.heard.recv()).await;
            let (channel, told) = heard.expect("the forger hears a grant").unwrap();
            if told.matches(' ').count() + 1 == owners && told.ends_with("{faults:k}") {
                return (channel, told);
            }
        }
    }

    /// Publishes a message that the forger has received before.
    async fn repeat(&mut self, channel: &str, payload: &str) {
        ask::<()>(
            &mut self.connection,
            redis::cmd("PUBLISH").arg(channel).arg(payload),
        )
        .await;
    }
}

/// The state that all bodies share: the channel on which each body reports its number and token, and a semaphore. A
/// body leaves when it gets a permit from the semaphore.
struct Room {
    entered: mpsc::UnboundedSender<(usize, u64)>,
    leave: Semaphore,
}

impl Room {
    async fn visit(&self, who: usize) {
        let token = Hold::current().unwrap().token().get();
        self.entered.send((who, token)).unwrap();
        self.leave.acquire().await.unwrap().forget();
    }
}

async fn wait_for(client: LockClient, room: Arc<Room>, who: usize) {
    let lock = client.lock("k").wait(60 * SECOND);
    lock.run(room.visit(who)).await.unwrap();
}

/// Row 58 of `docs/faults.md`: an attacker lists the channels, receives every push, and publishes forged pushes. No
/// caller enters because of a forged push.
#[tokio::test]
async fn row_58_forged_pushes() {
    log::keep();
    row(58, async |_| {
        let server = RedisServer::start().await;
        let (holder, waiters) = (client(&server.url()).await, client(&server.url()).await);
        let mut forger = Forger::on(&server).await;
        let (entered, mut entries) = mpsc::unbounded_channel();
        let leave = Semaphore::new(0);
        let room = Arc::new(Room { entered, leave });
        let guard = holder.lock("k").acquire().await.unwrap();
        for who in 0..3 {
            tokio::spawn(wait_for(waiters.clone(), room.clone(), who));
            until_waiting(&holder, who + 1).await;
        }

        // Up to this point, the forger knows only the names of the channels.
        let first = guard.token().get() + 1;
        for channel in forger.channels().await {
            let owner = Uuid::new_v4().simple();
            for session_id in [&channel, channel.trim_start_matches("lock:session:")] {
                let grant = format!("{first}|30000|{session_id}|{owner}|{{faults:k}}");
                forger.publish(&channel, &grant).await;
            }
            forger
                .publish(&channel, "nonsense\nERROR forged line")
                .await;
        }
        assert!(
            entries.try_recv().is_err(),
            "a caller entered before the release"
        );

        guard.release().await;
        let (channel, told) = forger.hear_grant_to(3).await;
        assert_eq!(entries.recv().await, Some((0, first)));
        // Now the forger knows the owners of a cohort whose first member holds the lock.
        let owners: Vec<&str> = told
            .split('|')
            .filter(|field| field.contains(' '))
            .collect();
        let (_, others) = owners[0]
            .split_once(' ')
            .expect("three callers are granted the lock as a cohort");
        let raised = |by: u64| told.replace(&format!("{first}|"), &format!("{}|", first + by));
        let signature = told.split('|').next().unwrap();
        let bare = format!("{}|30000|{channel}|{others}|{{faults:k}}", first + 9);
        let forgeries = [
            raised(1),
            raised(1000),
            raised(5).replace(owners[0], others),
            format!("{told}|{bare}"),
            format!("{signature}|{}|30000|{others}|{{faults:k}}", first + 7),
            bare,
        ];
        forger.repeat(&channel, &told).await;
        for forged in &forgeries {
            forger.publish(&channel, forged).await;
        }
        assert!(
            entries.try_recv().is_err(),
            "a caller entered while the first member held the lock"
        );
        for who in 1..3 {
            room.leave.add_permits(1);
            assert_eq!(entries.recv().await, Some((who, first + who as u64)));
            forger.repeat(&channel, &told).await;
            forger.publish(&channel, &forgeries[2]).await;
            assert!(entries.try_recv().is_err());
        }
        room.leave.add_permits(1);
        until(async || holder.lock("k").status().await.unwrap().holder.is_none()).await;
        let loud = log::saying("no lock script");
        for record in &loud {
            let payload = &record.fields["payload"];
            assert!(payload.len() < 200 && !payload.contains('\n'), "{payload}");
        }
        // Each session logs only its first forged message as a warning, and the others at DEBUG.
        let warned = loud.iter().filter(|record| record.level == Level::WARN);
        assert!(warned.count() < loud.len());
    })
    .await;
}

/// Row 58 of `docs/faults.md`: an attacker repeats the push of an old grant while another caller holds the lock. The
/// old grant belonged to a cohort of two. The second member has queued again, because the first member overran the
/// lease. The repeated push does not let the second member enter.
#[tokio::test]
async fn row_58_repeated_push() {
    log::keep();
    row(58, async |_| {
        let server = RedisServer::start().await;
        let (one, two) = (client(&server.url()).await, client(&server.url()).await);
        let mut forger = Forger::on(&server).await;
        // Each attempt begins at another moment between two heartbeats. If a heartbeat comes right at the end of the
        // lease, the second member of the cohort queues again very early, and enters before the other caller. In such
        // an attempt, the test does not repeat the push.
        let mut repeated = 0;
        for attempt in 0..12 {
            repeated += u32::from(is_repeated(&one, &two, &mut forger, attempt * 70 * MS).await);
            if repeated == 3 {
                break;
            }
        }
        assert!(
            repeated > 0,
            "in every attempt, the second member entered before the other caller"
        );
    })
    .await;
}

/// Releases the lock to a cohort of two after `pause`, and repeats the push of that grant later. If the second member
/// of the cohort enters before the caller of the other client, returns `false`, and does not repeat the push.
async fn is_repeated(
    one: &LockClient,
    two: &LockClient,
    forger: &mut Forger,
    pause: Duration,
) -> bool {
    let holder = two.lock("k").acquire().await.unwrap();
    let (entered, mut entries) = mpsc::unbounded_channel::<(char, LockGuard)>();
    for (number, (name, client, lease)) in [('a', one, 1), ('b', one, 1), ('c', two, 6)]
        .into_iter()
        .enumerate()
    {
        let lock = client.lock("k").wait(20 * SECOND).lease(lease * SECOND);
        let entered = entered.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            entered.send((name, guard)).unwrap();
        });
        until_waiting(two, number + 1).await;
    }
    tokio::time::sleep(pause).await;
    holder.release().await;
    let (channel, told) = forger.hear_grant_to(2).await;
    let (first, outstays) = entries.recv().await.unwrap();
    assert_eq!(first, 'a');
    let (second, inside) = entries.recv().await.unwrap();
    let token = inside.token();
    if second == 'c' {
        // Waits until the second member of the cohort is queued again. During the pause of 700 ms, the process of the
        // second member of the cohort forgets the old grant.
        until_waiting(two, 1).await;
        outstays.release().await;
        tokio::time::sleep(700 * MS).await;
        for _ in 0..3 {
            forger.repeat(&channel, &told).await;
            forger.publish(&channel, "nonsense").await;
            tokio::time::sleep(50 * MS).await;
            assert!(entries.try_recv().is_err(), "two callers hold the lock");
        }
    }
    inside.release().await;
    let (_, last) = entries.recv().await.unwrap();
    assert!(last.token() > token);
    last.release().await;
    second == 'c'
}
