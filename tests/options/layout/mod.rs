//! Redisson's layout, tested against a client that sends the same commands as Redisson 4.7. `tests/redisson` uses the
//! real Redisson.

mod cluster;
mod holds;
mod refusals;
mod sentinel;
mod waiting;

use std::{collections::HashMap, time::Duration};

use futures_util::StreamExt;
use lock_runtime::{LockError, distributed_lock};
use redis::{Client, aio::MultiplexedConnection};
use support::{
    Room,
    server::{RedisServer, ask, shared_server},
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::stores::{MS, Store};

/// A client that behaves like one thread of a JVM service.
struct Jvm {
    url: String,
    redis: MultiplexedConnection,
    lock: String,
    owner: String,
}

impl Jvm {
    async fn at(store: &Store, key: &str) -> Self {
        Self::on(shared_server().await, &store.name(key)).await
    }

    async fn on(server: &RedisServer, lock: &str) -> Self {
        Self {
            url: server.url(),
            redis: server.connection().await,
            lock: lock.to_owned(),
            owner: format!("{}:1", Uuid::new_v4()),
        }
    }

    fn channel(&self) -> String {
        format!("redisson_lock__channel:{{{}}}", self.lock)
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, verb: &str, args: &[&str]) -> T {
        ask(&mut self.redis, redis::cmd(verb).arg(args)).await
    }

    /// Acquires the lock, or reenters it if this thread holds it, and returns `None`. If somebody else holds the lock,
    /// returns the time left of that holder's lease in ms.
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

    /// Unlocks the lock once. Returns `Some(true)` if this call released the lock, `Some(false)` if this thread still
    /// holds the lock because it has entered more than once, or `None` if this thread did not hold the lock.
    async fn unlock(&mut self) -> Option<bool> {
        let script = "
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
                return nil
            end
            if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
                return 0
            end
            redis.call('DEL', KEYS[1])
            redis.call('PUBLISH', KEYS[2], '0')
            return 1";
        let (lock, channel, owner) = (self.lock.clone(), self.channel(), self.owner.clone());
        self.ask("EVAL", &[script, "2", &lock, &channel, &owner])
            .await
    }

    /// Returns the time left of the lock's lease in ms, or a negative number if there is no lease.
    async fn left(&mut self) -> i64 {
        let lock = self.lock.clone();
        self.ask("PTTL", &[&lock]).await
    }

    /// Returns the hash that is stored for the lock.
    async fn stored(&mut self) -> HashMap<String, u32> {
        let lock = self.lock.clone();
        self.ask("HGETALL", &[&lock]).await
    }

    /// Acquires the lock as soon as it is free. Like Redisson, subscribes to the lock's channel, tries again, and then
    /// waits for a message, but only until the end of the lease that the attempt has read.
    async fn lock(&mut self, lease: Duration) {
        if self.try_lock(lease).await.is_none() {
            return;
        }
        let mut listening = Client::open(&*self.url)
            .unwrap()
            .get_async_pubsub()
            .await
            .unwrap();
        listening.subscribe(self.channel()).await.unwrap();
        let mut messages = listening.on_message();
        while let Some(left) = self.try_lock(lease).await {
            let patience = Duration::from_millis(left.try_into().unwrap_or(0));
            if let Ok(message) = timeout(patience, messages.next()).await {
                let payload: String = message.unwrap().get_payload().unwrap();
                assert_eq!(payload, "0");
            }
        }
    }

    /// Returns the number of connections that are subscribed to the channel on which the lock's releases are announced.
    async fn listeners(&mut self) -> u32 {
        let channel = self.channel();
        let (_, listeners): (String, u32) = self.ask("PUBSUB", &["NUMSUB", &channel]).await;
        listeners
    }
}

#[distributed_lock(key = "order:<id>", wait = "20s")]
async fn pay(id: u64, inside: &Room) -> Result<u64, LockError> {
    inside.stay(MS).await;
    Ok(id)
}
