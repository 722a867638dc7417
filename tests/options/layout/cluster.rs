//! Redisson's layout in a Redis Cluster, tested against a client that sends the same commands as Redisson 4.7 in
//! cluster mode. The messages about releases go over shard channels.

use std::{collections::HashMap, time::Duration};

use lock_runtime::{
    ConnectError, Credentials, Layout, LockClient, LockError, ReleaseOutcome, Strategy,
};
use redis::{Client, FromRedisValue, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use support::{
    cluster::{ClusterServers, shared_cluster},
    epsilon,
    rights::Deployment,
    server::{RedisServer, ask, has_shard_channels},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use crate::stores::{MS, SECOND, Store, hold, until};

/// A client that behaves like one thread of a JVM service, and talks to the primary that stores the lock.
struct Jvm<'a> {
    cluster: &'a ClusterServers,
    redis: MultiplexedConnection,
    lock: String,
    owner: String,
    /// Whether the servers have shard channels.
    sharded: bool,
}

impl<'a> Jvm<'a> {
    async fn at(cluster: &'a ClusterServers, lock: &str) -> Self {
        let slot = cluster.slot_of(lock).await;
        let primary = cluster.primary_of(slot).await;
        Self {
            cluster,
            redis: cluster.servers[primary].connection().await,
            lock: lock.to_owned(),
            owner: format!("{}:1", Uuid::new_v4()),
            sharded: has_shard_channels(),
        }
    }

    /// Connects to the primary that stores the lock now, and keeps the owner name.
    async fn follow(&mut self) {
        let owner = self.owner.clone();
        *self = Self {
            owner,
            ..Self::at(self.cluster, &self.lock).await
        };
    }

    fn channel(&self) -> String {
        if self.lock.contains('{') {
            format!("redisson_lock__channel:{}", self.lock)
        } else {
            format!("redisson_lock__channel:{{{}}}", self.lock)
        }
    }

    async fn ask<T: FromRedisValue>(&mut self, verb: &str, args: &[&str]) -> T {
        ask(&mut self.redis, redis::cmd(verb).arg(args)).await
    }

    /// Acquires the lock, and returns `None`. If somebody else holds the lock, returns the time left of that holder's
    /// lease in ms.
    async fn try_lock(&mut self, lease: Duration) -> Option<i64> {
        let script = "
            if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
                redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
                redis.call('PEXPIRE', KEYS[1], ARGV[1])
                return nil
            end
            return redis.call('PTTL', KEYS[1])";
        let (lock, owner) = (self.lock.clone(), self.owner.clone());
        let lease = lease.as_millis().to_string();
        self.ask("EVAL", &[script, "1", &lock, &lease, &owner])
            .await
    }

    /// Releases the lock, and announces it with the same command as Redisson.
    async fn unlock(&mut self) {
        let script = "
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
                return 0
            end
            redis.call('DEL', KEYS[1])
            redis.call(ARGV[2], KEYS[2], '0')
            return 1";
        let (lock, channel, owner) = (self.lock.clone(), self.channel(), self.owner.clone());
        let verb = if self.sharded { "SPUBLISH" } else { "PUBLISH" };
        let args = [script, "2", &lock, &channel, &owner, verb];
        assert_eq!(self.ask::<u8>("EVAL", &args).await, 1);
    }

    /// Acquires the lock as soon as it is free: subscribes to the lock's channel, tries again, and then waits for
    /// messages, but only until the end of the lease that the attempt has read.
    async fn lock(&mut self, lease: Duration) {
        if self.try_lock(lease).await.is_none() {
            return;
        }
        let (sender, mut messages) = mpsc::unbounded_channel();
        let primary = self.cluster.slot_of(&self.lock).await;
        let primary = self.cluster.primary_of(primary).await;
        let mut listening = pushing(&self.cluster.servers[primary], sender).await;
        let verb = if self.sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        let subscribing = redis::cmd(verb).arg(self.channel()).to_owned();
        ask::<Value>(&mut listening, &subscribing).await;
        while let Some(left) = self.try_lock(lease).await {
            let patience = Duration::from_millis(left.try_into().unwrap_or(0));
            let message = async {
                loop {
                    let push: PushInfo = messages.recv().await.expect("the connection lasts");
                    if matches!(push.kind, PushKind::SMessage | PushKind::Message) {
                        return String::from_redis_value(push.data[1].clone()).unwrap();
                    }
                }
            };
            if let Ok(payload) = timeout(patience, message).await {
                assert_eq!(payload, "0");
            }
        }
    }

    /// Returns the number of connections that are subscribed to the lock's channel at the lock's primary.
    async fn listeners(&mut self) -> u32 {
        let channel = self.channel();
        let [verb, what] = match self.sharded {
            true => ["PUBSUB", "SHARDNUMSUB"],
            false if !has_shard_channels() => ["PUBSUB", "NUMSUB"],
            false => ["OLDPUBSUB", "NUMSUB"],
        };
        let (_, listeners): (String, u32) = self.ask(verb, &[what, &channel]).await;
        listeners
    }

    async fn until_listeners(&mut self, count: u32) {
        until(async || self.listeners().await == count).await;
    }
}

/// Connects to a server, and forwards each message that the server pushes. The messages are sent to `sender`.
async fn pushing(
    server: &RedisServer,
    sender: mpsc::UnboundedSender<PushInfo>,
) -> MultiplexedConnection {
    let client = Client::open(server.url_resp3()).unwrap();
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_response_timeout(None).set_push_sender(sender);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    connecting.await.unwrap()
}

async fn client(cluster: &ClusterServers) -> LockClient {
    let builder = LockClient::builder().url(cluster.url());
    builder
        .layout(Layout::Redisson)
        .connect_within(support::PATIENCE)
        .await
        .unwrap()
}

/// The JVM and this crate wait for each other, and each release wakes the other side long before the end of the lease.
async fn wake_each_other(cluster: &ClusterServers, lock: &str, sharded: bool) {
    let client = client(cluster).await;
    let mut jvm = Jvm::at(cluster, lock).await;
    let mut counting = Jvm::at(cluster, lock).await;
    (jvm.sharded, counting.sharded) = (sharded, sharded);
    let guard = hold(&client, lock).await;
    let told = tokio::join!(timeout(10 * SECOND, jvm.lock(10 * SECOND)), async {
        counting.until_listeners(1).await;
        guard.release().await;
    });
    told.0.expect("the JVM is notified of this crate's release");
    jvm.unlock().await;
    counting.until_listeners(0).await;
    let mut fastest = SECOND;
    for _ in 0..10 {
        jvm.lock(10 * SECOND).await;
        let waits = client.lock(lock).wait(20 * SECOND);
        let (guard, released) = tokio::join!(waits.acquire(), async {
            counting.until_listeners(1).await;
            // After this pause, this crate's waiter has subscribed, tried again, and found the lock taken.
            sleep(20 * MS).await;
            jvm.unlock().await;
            Instant::now()
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        counting.until_listeners(0).await;
    }
    // Without messages, a waiter would find the lock free only 90 ms after the release on average.
    assert!(fastest < 40 * MS, "{fastest:?}");
}

#[tokio::test]
async fn releases_are_announced_on_shard_channels_both_ways() {
    let cluster = shared_cluster().await;
    let id = Uuid::new_v4().simple().to_string();
    for lock in [format!("order:{id}"), format!("{{{id}}}:pay")] {
        wake_each_other(cluster, &lock, true).await;
    }
}

/// The servers do not know the commands for shard channels, like servers before version 7.0. On servers without these
/// commands, Redisson uses plain channels.
#[tokio::test]
async fn without_shard_channels_releases_are_announced_on_plain_channels() {
    let cluster = ClusterServers::start_without_shard_channels(2).await;
    for lock in ["order:7", "{order:7}:pay", "order:8"] {
        wake_each_other(&cluster, lock, false).await;
    }
}

#[tokio::test]
async fn services_in_rust_and_on_the_jvm_take_turns() {
    let cluster = shared_cluster().await;
    let lock = Uuid::new_v4().simple().to_string();
    let inside: &'static support::Room = Box::leak(Box::default());
    let mut running = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let strategy = [Strategy::Notify, Strategy::Spin][caller % 2];
        let lock = client(cluster).await.lock(&*lock).strategy(strategy);
        let lock = lock.wait(20 * SECOND);
        running.spawn(async move {
            let mut newest = 0;
            for _ in 0..20 {
                let guard = lock.acquire().await.unwrap();
                inside.stay(MS).await;
                let token = guard.token().get();
                assert!(newest < token, "{newest} {token}");
                newest = token;
                guard.release().await;
            }
        });
    }
    for _ in 0..3 {
        let mut jvm = Jvm::at(cluster, &lock).await;
        running.spawn(async move {
            for _ in 0..20 {
                jvm.lock(10 * SECOND).await;
                inside.stay(MS).await;
                jvm.unlock().await;
            }
        });
    }
    running.join_all().await;
    Jvm::at(cluster, &lock).await.until_listeners(0).await;
}

/// All keys of a lock lie in one slot. Tokens rise together with those of Redisson's fenced lock, whose counter lies in
/// the same slot.
#[tokio::test]
async fn tokens_rise_together_with_those_of_a_fenced_lock() {
    let cluster = shared_cluster().await;
    let client = client(cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let mut jvm = Jvm::at(cluster, &lock).await;
    let counter = format!("redisson_lock_token:{{{lock}}}");
    let mut newest = 0;
    for theirs in ["1", "9000000000000000"] {
        jvm.ask::<()>("SET", &[&counter, theirs]).await;
        for _ in 0..3 {
            let guard = hold(&client, &lock).await;
            let ours = guard.token().get();
            guard.release().await;
            let theirs: u64 = jvm.ask("INCR", &[&counter]).await;
            assert!(newest < ours && ours < theirs, "{newest} {ours} {theirs}");
            newest = theirs;
        }
    }
    jvm.ask::<()>("DEL", &[&counter]).await;
    let keys: Vec<String> = jvm.ask("KEYS", &[&format!("*{lock}*")]).await;
    assert_eq!(keys, [""; 0]);
}

/// A lock name that contains a brace but no hash tag is refused. In a cluster, Redisson cannot use such a lock either,
/// because the lock and its channel would lie in two slots.
#[tokio::test]
async fn a_brace_without_a_hash_tag_is_refused() {
    let client = client(shared_cluster().await).await;
    for name in ["a{b", "{}a"] {
        let refused = client.lock(name).try_acquire().await.err();
        let is_refused = matches!(refused, Some(LockError::Refused { .. }));
        assert!(is_refused, "{name} {refused:?}");
    }
    let refused = client.lock("lock:{7}:fence").try_acquire().await.err();
    let is_reserved = matches!(refused, Some(LockError::InvalidKey(_)));
    assert!(is_reserved, "{refused:?}");
}

#[tokio::test]
async fn a_caller_that_gives_up_or_is_dropped_unsubscribes() {
    let cluster = shared_cluster().await;
    let client = client(cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let mut jvm = Jvm::at(cluster, &lock).await;
    jvm.lock(20 * SECOND).await;
    for patience in [MS, 2 * MS, 5 * MS, 50 * MS, SECOND] {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let lock = client.lock(&*lock).wait(300 * MS);
            running.spawn(async move { timeout(patience, lock.acquire()).await });
        }
        while let Some(ended) = running.join_next().await {
            if let Ok(ended) = ended.unwrap() {
                let busy = matches!(ended, Err(LockError::Busy { .. }));
                assert!(busy && patience == SECOND, "{ended:?}");
            }
        }
        jvm.until_listeners(0).await;
    }
    jvm.unlock().await;
}

/// Shows why shard channels have a connection of their own. When a slot moves, the server itself ends the subscriptions
/// to the slot's channels, and sends a message about the end. The `redis` crate mistakes this message for the answer to
/// the oldest unanswered command. Each later answer therefore reaches the wrong caller.
#[tokio::test]
async fn a_slot_that_moves_mixes_up_the_answers_of_a_connection_with_shard_channels() {
    let cluster = ClusterServers::start(2).await;
    let slot = cluster.slot_of("k").await;
    let from = cluster.primary_of(slot).await;
    let (sender, mut pushes) = mpsc::unbounded_channel();
    let mut redis = pushing(&cluster.servers[from], sender).await;
    ask::<Value>(&mut redis, redis::cmd("SSUBSCRIBE").arg("k")).await;
    // This command is still unanswered when the slot moves.
    let mut blocked = redis.clone();
    let blocked = tokio::spawn(async move {
        let sleeping = redis::cmd("WAIT").arg(&[9, 2000]).to_owned();
        sleeping.query_async::<Value>(&mut blocked).await
    });
    sleep(100 * MS).await;
    cluster.move_slot(slot, 1 - from).await;
    let echo = async |text: &str| -> Value {
        let mut echo = redis::cmd("ECHO");
        let asked = echo.arg(text).query_async(&mut redis.clone()).await;
        asked.unwrap()
    };
    let (first, second) = tokio::join!(echo("first"), echo("second"));
    let ended = blocked.await.unwrap().unwrap();
    assert!(
        matches!(
            ended,
            Value::Push {
                kind: PushKind::SUnsubscribe,
                ..
            }
        ),
        "{ended:?}"
    );
    assert_eq!(first, Value::Int(0), "the answer to `WAIT`");
    assert_eq!(second, Value::BulkString(b"first".to_vec()));
    pushes.close();
}

/// No connection that is subscribed to shard channels carries lock commands or grants.
#[tokio::test]
async fn shard_channels_have_a_connection_of_their_own() {
    let cluster = ClusterServers::start(2).await;
    let client = client(&cluster).await;
    let mut jvms = Vec::new();
    let mut waiting = tokio::task::JoinSet::new();
    for lock in ["a", "b", "c", "d"] {
        let mut jvm = Jvm::at(&cluster, lock).await;
        jvm.lock(20 * SECOND).await;
        let lock = client.lock(lock).wait(20 * SECOND);
        waiting.spawn(async move { lock.acquire().await.map(drop) });
        jvm.until_listeners(1).await;
        jvms.push(jvm);
    }
    let mut listening = 0;
    for server in &cluster.servers {
        for fields in on_shard_channels(&mut server.connection().await).await {
            listening += 1;
            let seen = (&*fields["sub"], &*fields["cmd"]);
            assert_eq!(seen, ("0", "ssubscribe"), "{fields:?}");
        }
    }
    assert_eq!(listening, 2, "one connection to each primary");
    for mut jvm in jvms {
        jvm.unlock().await;
    }
    while let Some(entered) = waiting.join_next().await {
        entered.unwrap().unwrap();
    }
}

/// When a slot moves, waiters subscribe at the new primary, and a release at the new primary wakes them.
#[tokio::test]
async fn after_a_slot_has_moved_waiters_listen_at_its_new_primary() {
    let cluster = ClusterServers::start(2).await;
    let client = client(&cluster).await;
    let mut jvm = Jvm::at(&cluster, "k").await;
    let slot = cluster.slot_of("k").await;
    let mut fastest = SECOND;
    for _ in 0..5 {
        jvm.follow().await;
        jvm.lock(30 * SECOND).await;
        let waits = client.lock("k").wait(30 * SECOND);
        let other = client.lock("{k}:2").wait(30 * SECOND);
        let stays = hold(&client, "{k}:2").await;
        let (guard, other, released) = tokio::join!(waits.acquire(), other.acquire(), async {
            jvm.until_listeners(1).await;
            let to = 1 - cluster.primary_of(slot).await;
            let moved = Instant::now();
            cluster.move_slot(slot, to).await;
            jvm.follow().await;
            jvm.until_listeners(1).await;
            let took = moved.elapsed();
            assert!(took < 5 * SECOND + epsilon(), "{took:?}");
            sleep(20 * MS).await;
            jvm.unlock().await;
            let released = Instant::now();
            stays.release().await;
            released
        });
        fastest = fastest.min(released.elapsed());
        guard.unwrap().release().await;
        other.unwrap().release().await;
        jvm.until_listeners(0).await;
    }
    assert!(fastest < 100 * MS, "{fastest:?}");
}

/// While a slot moves, a server runs a script with several keys only if the server stores all these keys. Redisson's
/// script for acquiring a lock uses a single key, so Redisson can acquire the lock during the move. The script with
/// which this crate releases a lock therefore also uses a single key.
#[tokio::test]
async fn a_lock_is_released_while_its_slot_moves() {
    let cluster = ClusterServers::start(2).await;
    let client = client(&cluster).await;
    let slot = cluster.slot_of("k").await;
    for (has_moved, at_least) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut lock = client.lock("k").lease(30 * SECOND);
        if at_least {
            lock = lock.hold_at_least(10 * MS);
        }
        let guard = lock.acquire().await.unwrap();
        let from = cluster.primary_of(slot).await;
        cluster.begin_move(slot, 1 - from).await;
        if has_moved {
            cluster.move_key(slot, "k", 1 - from).await;
        }
        let status = timeout(5 * SECOND, client.lock("k").status()).await;
        let status = status.expect("a server tells the status").unwrap();
        assert_eq!(status.holder.unwrap().token, Some(guard.token()));
        let released = timeout(5 * SECOND, guard.release()).await;
        assert_eq!(
            released.expect("a server releases"),
            ReleaseOutcome::Released
        );
        until(async || !cluster.keys().await.contains(&"k".to_owned())).await;
        cluster.end_move(slot, 1 - from).await;
    }
}

/// A slot moves, and begins to move again before the caller has got an answer from the slot's new primary. The servers
/// have carried out no request of the caller. The caller therefore soon sends its request again, without waiting for a
/// clean-up.
#[tokio::test]
async fn a_caller_asks_on_while_a_slot_moves_again_and_again() {
    let cluster = ClusterServers::start(2).await;
    let client = client(&cluster).await;
    hold(&client, "k").await.release().await;
    let slot = cluster.slot_of("k").await;
    let to = 1 - cluster.primary_of(slot).await;
    cluster.begin_move(slot, to).await;
    let lock = client.lock("k").wait(60 * SECOND);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let asks_on = async || {
        let before = client.stats().commands;
        let asking = until(async || client.stats().commands > before + 40);
        timeout(10 * SECOND, asking).await
    };
    asks_on()
        .await
        .expect("the caller sends further requests during the first move");
    for key in cluster.servers[1 - to].keys().await {
        cluster.move_key(slot, &key, to).await;
    }
    // Each server ends the first move and begins the second one without carrying out a script in between.
    let ids: [String; 2] = [
        cluster.tell(0, &["MYID"]).await,
        cluster.tell(1, &["MYID"]).await,
    ];
    for (server, role) in [(to, "MIGRATING"), (1 - to, "IMPORTING")] {
        let number = slot.to_string();
        let mut moving = redis::pipe();
        moving
            .cmd("CLUSTER")
            .arg(&["SETSLOT", &number, "NODE", &ids[to]])
            .cmd("CLUSTER")
            .arg(&["SETSLOT", &number, role, &ids[1 - server]]);
        let mut redis = cluster.servers[server].connection().await;
        moving.exec_async(&mut redis).await.unwrap();
    }
    asks_on()
        .await
        .expect("the caller sends further requests during the second move");
    assert!(!waiting.is_finished());
    cluster.end_move(slot, 1 - to).await;
    waiting.await.unwrap().release().await;
}

/// If only the connection for shard channels breaks, the waiters subscribe again.
#[tokio::test]
async fn a_new_connection_for_shard_channels_listens_again() {
    let cluster = shared_cluster().await;
    let client = client(cluster).await;
    let lock = Uuid::new_v4().simple().to_string();
    let mut jvm = Jvm::at(cluster, &lock).await;
    jvm.lock(20 * SECOND).await;
    let waits = client.lock(&*lock).wait(20 * SECOND);
    let (entered, ()) = tokio::join!(waits.acquire(), async {
        for _ in 0..3 {
            jvm.until_listeners(1).await;
            let mut list: String = jvm.ask("CLIENT", &["LIST", "TYPE", "pubsub"]).await;
            list.retain(|char| char != '\r');
            for line in list.lines().filter(|line| line.contains(" ssub=1 ")) {
                let id = line.split(' ').find_map(|field| field.strip_prefix("id="));
                jvm.ask::<u8>("CLIENT", &["KILL", "ID", id.unwrap()]).await;
            }
        }
        jvm.until_listeners(1).await;
        jvm.unlock().await;
    });
    entered.unwrap().release().await;
}

/// Returns the fields that `CLIENT LIST` shows for each connection that is subscribed to shard channels.
async fn on_shard_channels(redis: &mut MultiplexedConnection) -> Vec<HashMap<String, String>> {
    let list: String = ask(redis, redis::cmd("CLIENT").arg("LIST")).await;
    let fields = list.lines().map(|line| {
        let fields = line.split(' ').filter_map(|field| field.split_once('='));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        fields.collect::<HashMap<_, _>>()
    });
    fields.filter(|fields| fields["ssub"] != "0").collect()
}

/// The connection for shard channels logs in again before its token expires, as the other connections do.
#[tokio::test]
async fn a_connection_for_shard_channels_logs_in_again() {
    let cluster = ClusterServers::start(1).await;
    let builder = LockClient::builder().url(cluster.url());
    let builder = builder.credentials_provider(async || {
        Ok::<_, String>(Credentials::new("default", "any").valid_for(SECOND))
    });
    let client = builder
        .layout(Layout::Redisson)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let mut jvm = Jvm::at(&cluster, "k").await;
    jvm.lock(20 * SECOND).await;
    let waits = client.lock("k").wait(20 * SECOND);
    let (entered, ()) = tokio::join!(waits.acquire(), async {
        jvm.until_listeners(1).await;
        let before = on_shard_channels(&mut jvm.redis).await;
        let mut now = before.clone();
        until(async || {
            now = on_shard_channels(&mut jvm.redis).await;
            now.iter().all(|fields| fields["cmd"] == "auth")
        })
        .await;
        let ids = [&before, &now].map(|all| all.iter().map(|one| &one["id"]).collect::<Vec<_>>());
        assert_eq!(ids[0], ids[1], "the connection stays");
        jvm.unlock().await;
    });
    entered.unwrap().release().await;
}

/// A caller gives up while the connection for shard channels cannot be made. When the client can connect again, it does
/// not subscribe for this caller.
#[tokio::test]
async fn a_caller_that_has_given_up_is_not_subscribed_late() {
    let cluster = ClusterServers::start(1).await;
    let (open, gate) = watch::channel(true);
    let builder = LockClient::builder().url(cluster.url());
    let builder = builder.credentials_provider(move || {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|is_open| *is_open).await.unwrap();
            Ok::<_, String>(Credentials::new("default", "any"))
        }
    });
    let client = builder
        .layout(Layout::Redisson)
        .connect_within(support::PATIENCE)
        .await
        .unwrap();
    let mut jvm = Jvm::at(&cluster, "k").await;
    jvm.lock(20 * SECOND).await;
    // The session connects before the provider of credentials stops answering.
    let busy = client.lock("k").wait(Duration::ZERO).acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    open.send_replace(false);
    let busy = client.lock("k").wait(3 * SECOND).acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    sleep(3 * SECOND).await; // after this pause, the clean-up of the caller has ended
    open.send_replace(true);
    // A caller for another lock subscribes again, over the same connection.
    let guard = hold(&client, "{k}:2").await;
    let waits = client.lock("{k}:2").wait(20 * SECOND);
    let mut other = Jvm::at(&cluster, "{k}:2").await;
    let (entered, ()) = tokio::join!(waits.acquire(), async {
        other.until_listeners(1).await;
        sleep(SECOND).await;
        assert_eq!(jvm.listeners().await, 0);
        guard.release().await;
    });
    entered.unwrap().release().await;
    jvm.unlock().await;
}

/// In a cluster, a user needs only the rights that docs/guides/acl.md lists for Redisson's layout in a cluster.
#[tokio::test]
async fn a_user_with_few_rights_can_share_locks_in_a_cluster() {
    let cluster = ClusterServers::start(2).await;
    for server in &cluster.servers {
        let mut set = redis::cmd("ACL");
        set.arg(Deployment::RedissonCluster.entered());
        ask::<()>(&mut server.connection().await, &set).await;
    }
    let url = cluster.url().replace("//", "//locks:secret@");
    let builder = || LockClient::builder().url(&url).layout(Layout::Redisson);
    let client = builder().connect_within(support::PATIENCE).await.unwrap();
    for lock in ["order:7", "order:8", "order:9"] {
        let mut jvm = Jvm::at(&cluster, lock).await;
        let guard = client.lock(lock).acquire().await.unwrap();
        let waits = client.lock(lock).wait(5 * SECOND);
        let (next, ()) = tokio::join!(waits.acquire(), async {
            jvm.until_listeners(1).await;
            guard.release().await;
        });
        next.unwrap().release().await;
        jvm.until_listeners(0).await;
    }
    let rights: &[&str] = match has_shard_channels() {
        true => &["-ssubscribe", "-spublish"],
        false => &["-subscribe", "-publish"],
    };
    for right in rights {
        for server in &cluster.servers {
            let mut set = redis::cmd("ACL");
            set.arg(&["SETUSER", "locks"]);
            set.arg(
                rights
                    .iter()
                    .map(|right| right.replace('-', "+"))
                    .collect::<Vec<_>>(),
            );
            set.arg(right);
            ask::<()>(&mut server.connection().await, &set).await;
        }
        let refused = builder().connect().await.err();
        let is_named = matches!(refused, Some(ConnectError::Permission { .. }));
        assert!(is_named, "{right} {refused:?}");
    }
}

#[tokio::test]
async fn a_store_in_a_cluster_takes_the_layout() {
    let store = Store::redisson_in_cluster().await;
    let client = store.client().await;
    hold(&client, "k").await.release().await;
    assert_eq!(store.keys().await, [] as [String; 0]);
}
