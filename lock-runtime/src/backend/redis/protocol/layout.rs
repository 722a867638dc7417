//! The two layouts: the native layout, and the layout of Redisson (a Java library). A layout consists of the names of a
//! lock's keys, and the scripts that read and write these keys. The scripts of both layouts take the same arguments,
//! and their answers have the same format.

use std::{borrow::Cow, ops::Deref};

use lock_core::{
    key::{FENCE, LockName, PERMITS},
    layout::{DEFAULT_NAMESPACE, Layout},
};
use once_cell::sync::Lazy;

use crate::backend::redis::{
    protocol::{
        scripts,
        slot::{slot_of, tag_in},
    },
    transport::script::Script,
};

/// The prefix of the channel on which Redisson announces that a lock is free, with the message `0`.
const REDISSON_CHANNEL: &str = "redisson_lock__channel";
const REDISSON_TOKEN: &str = "redisson_lock_token";
/// A channel that belongs to no lock. On this channel, a client checks whether its Redis user may subscribe and
/// publish.
pub(crate) const REDISSON_PROBE: &str = "redisson_lock__channel:{lock:check}";

/// The names of one lock's keys on the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Names {
    pub(crate) lock: LockName,
    companion: Box<str>,
    /// The key of the claim. The claim is the id of the session whose waiter was last granted the lock. Redisson's
    /// layout has no claim, because it has no queue.
    claim: Option<Box<str>>,
    /// The key of the number of permits that an operator has set, if the lock is a semaphore.
    limit: Option<Box<str>>,
    /// The key of the counter that issues the fencing tokens.
    fence: Cow<'static, str>,
}

impl Names {
    /// Builds the names of the keys of `lock`. `slotted` is true in a Redis Cluster. Each hash slot of a cluster has a
    /// token counter of its own, because a script can use only the keys of one slot.
    pub(crate) fn new(layout: Layout, lock: LockName, slotted: bool) -> Self {
        // Each name is built with a single allocation, because every acquisition and every release builds these names.
        let beside = |what: &str| -> Box<str> { [lock.as_str(), what].concat().into() };
        let companion = match layout {
            Layout::Redisson => redisson_name(REDISSON_TOKEN, &lock).into(),
            Layout::Native => beside(":queue"),
        };
        let claim = (layout == Layout::Native).then(|| beside(":claim"));
        let is_limited = layout == Layout::Native && is_semaphore(&lock);
        let limit = is_limited.then(|| beside(":limit:fence"));
        let fence = if slotted {
            fence_beside(layout, &lock).into()
        } else {
            FENCE.into()
        };
        Self {
            companion,
            claim,
            limit,
            fence,
            lock,
        }
    }

    /// Returns the key that stores the grant.
    pub(crate) fn grant(&self) -> &str {
        self.lock.as_str()
    }

    /// Returns the keys for the scripts that can grant the lock to the next waiter.
    pub(crate) fn keys(&self) -> Keys<'_> {
        let (claim, limit) = (self.claim(), self.limit());
        Keys {
            named: [
                self.grant(),
                self.companion(),
                self.fence(),
                claim.unwrap_or_default(),
                limit.unwrap_or_default(),
            ],
            count: 3 + usize::from(claim.is_some()) + usize::from(limit.is_some()),
        }
    }

    /// Returns the keys for the scripts that release the lock, or take its owner out of the queue. In Redisson's
    /// layout, these scripts use only the key of the grant. While a slot of a cluster moves to another server, a script
    /// with a single key still runs. A script with several keys is refused unless one server stores all of them.
    pub(crate) fn keys_to_release(&self) -> Keys<'_> {
        let keys = self.keys();
        match self.claim {
            Some(_) => keys,
            None => Keys { count: 1, ..keys },
        }
    }

    /// Returns the key of the claim, or `None` in Redisson's layout. The claim is the id of the session whose waiter
    /// was last granted the lock.
    pub(crate) fn claim(&self) -> Option<&str> {
        self.claim.as_deref()
    }

    /// Returns the key of the number of permits that an operator has set, if the lock is a semaphore.
    pub(crate) fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// Returns the key of the counter that issues the fencing tokens.
    pub(crate) fn fence(&self) -> &str {
        &self.fence
    }

    /// Returns the key of the lock's queue. In Redisson's layout, returns the key of the token counter of Redisson's
    /// fenced lock of the same name.
    pub(crate) fn companion(&self) -> &str {
        &self.companion
    }
}

/// The keys that a script uses, in the script's order. Every acquisition and every release lists its keys, so the list
/// is not on the heap.
pub(crate) struct Keys<'a> {
    named: [&'a str; 5],
    count: usize,
}

impl<'a> Deref for Keys<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &Self::Target {
        &self.named[..self.count]
    }
}

/// Returns whether the permits of a semaphore are stored under this name.
fn is_semaphore(lock: &LockName) -> bool {
    let key = lock.as_str().split_once(':');
    key.is_some_and(|(_, key)| key.starts_with(PERMITS))
}

/// Returns the key of the token counter for the lock's hash slot and, in the native layout, for the lock's namespace.
/// The names of token counters are reserved, so no lock has the same name as a counter. In Redisson's layout, the name
/// of a lock does not show its namespace, so the locks of all namespaces share the counter of the slot.
fn fence_beside(layout: Layout, lock: &LockName) -> String {
    let name = lock.as_str();
    let namespace = match layout {
        Layout::Redisson => DEFAULT_NAMESPACE,
        Layout::Native => name
            .split_once(':')
            .map_or(name, |(namespace, _)| namespace)
            .trim_start_matches('{'),
    };
    format!("{namespace}:{{{}}}:fence", tag_in(slot_of(name)))
}

/// Returns the channel on which Redisson announces that a lock is free.
pub(crate) fn redisson_channel(lock: &LockName) -> String {
    redisson_name(REDISSON_CHANNEL, lock)
}

/// Builds a name from `prefix` and the name of a lock, as Redisson does. The new name hashes to the same slot as the
/// name of the lock.
fn redisson_name(prefix: &str, lock: &LockName) -> String {
    if lock.as_str().contains('{') {
        format!("{prefix}:{lock}")
    } else {
        format!("{prefix}:{{{lock}}}")
    }
}

/// The scripts of a layout.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: &'static Lazy<Script>,
    /// The script with which a reader acquires the lock. Redisson's layout has no readers.
    pub(crate) acquire_shared: &'static Lazy<Script>,
    pub(crate) multi_acquire: &'static Lazy<Script>,
    pub(crate) release: &'static Lazy<Script>,
    pub(crate) retain: &'static Lazy<Script>,
    pub(crate) leave: &'static Lazy<Script>,
    pub(crate) renew: &'static Lazy<Script>,
    pub(crate) status: &'static Lazy<Script>,
    /// The script that reads the queue, or `None` in Redisson's layout, which has no queue. The client loads this
    /// script only when a queue is first read, because only people read queues.
    pub(crate) waiters: Option<&'static Lazy<Script>>,
    /// The scripts that the other layout does not have.
    others: &'static [&'static Lazy<Script>],
}

static NATIVE: Scripts = Scripts {
    acquire: &scripts::ACQUIRE,
    acquire_shared: &scripts::ACQUIRE_SHARED,
    multi_acquire: &scripts::MULTI_ACQUIRE,
    release: &scripts::RELEASE,
    retain: &scripts::RETAIN,
    leave: &scripts::LEAVE,
    renew: &scripts::RENEW,
    status: &scripts::STATUS,
    waiters: Some(&scripts::WAITERS),
    others: &[&scripts::QUEUE, &scripts::PROBE, &scripts::DISSOLVE],
};

#[cfg(feature = "redisson")]
mod redisson {
    use super::Scripts;
    use crate::backend::redis::protocol::scripts::redisson as scripts;

    pub(super) static ON_SERVER: Scripts = Scripts {
        acquire: &scripts::REDISSON_ACQUIRE,
        acquire_shared: &scripts::REDISSON_ACQUIRE,
        multi_acquire: &scripts::REDISSON_MULTI_ACQUIRE,
        release: &scripts::REDISSON_RELEASE,
        retain: &scripts::REDISSON_RETAIN,
        leave: &scripts::REDISSON_LEAVE,
        renew: &scripts::REDISSON_RENEW,
        status: &scripts::REDISSON_STATUS,
        waiters: None,
        others: &[],
    };

    /// The scripts in a Redis Cluster, where releases are announced on shard channels.
    pub(super) static IN_CLUSTER: Scripts = Scripts {
        acquire: &scripts::REDISSON_ACQUIRE,
        acquire_shared: &scripts::REDISSON_ACQUIRE,
        multi_acquire: &scripts::REDISSON_MULTI_ACQUIRE,
        release: &scripts::REDISSON_CLUSTER_RELEASE,
        retain: &scripts::REDISSON_CLUSTER_RETAIN,
        leave: &scripts::REDISSON_CLUSTER_LEAVE,
        renew: &scripts::REDISSON_RENEW,
        status: &scripts::REDISSON_STATUS,
        waiters: None,
        others: &[],
    };
}

impl Scripts {
    /// Returns the scripts of a layout. `slotted` is true in a Redis Cluster.
    pub(crate) fn of(layout: Layout, slotted: bool) -> &'static Self {
        match (layout, slotted) {
            #[cfg(feature = "redisson")]
            (Layout::Redisson, true) => &redisson::IN_CLUSTER,
            #[cfg(feature = "redisson")]
            (Layout::Redisson, false) => &redisson::ON_SERVER,
            // Without the feature `redisson`, the builder refuses its layout.
            _ => &NATIVE,
        }
    }

    /// Returns a pipeline that loads all scripts in one round trip. If the server has forgotten a script by the time
    /// that the client runs the script, the client sends the script's source.
    pub(crate) fn load(&self) -> redis::Pipeline {
        let Self {
            acquire,
            acquire_shared: _,
            multi_acquire,
            release,
            retain,
            leave,
            renew,
            status,
            waiters: _,
            others,
        } = self;
        let all = [
            acquire,
            multi_acquire,
            release,
            retain,
            leave,
            renew,
            status,
        ];
        let mut pipeline = redis::Pipeline::new();
        for script in all.into_iter().chain(*others) {
            pipeline
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.source())
                .ignore();
        }
        pipeline
    }
}

#[cfg(test)]
mod tests {
    use lock_core::key::LockKey;

    use super::*;

    #[test]
    fn names_are_put_into_the_slot_of_their_lock() {
        let names = |layout: Layout, namespace, key| {
            let name = layout.name(namespace, &LockKey::new(key).unwrap()).unwrap();
            let channel = redisson_channel(&name);
            (
                Names::new(layout, name, false).companion.into_string(),
                channel,
            )
        };
        let (queue, _) = names(Layout::Native, None, "a");
        assert_eq!(queue, "{lock:a}:queue");
        for (key, limited) in [
            ("permits:a", true),
            ("permits:{a}", true),
            ("a:permits:b", false),
        ] {
            let name = Layout::Native
                .name(None, &LockKey::new(key).unwrap())
                .unwrap();
            let names = Names::new(Layout::Native, name, false);
            assert_eq!(names.limit().is_some(), limited, "{key}");
            assert_eq!(names.keys().len(), 4 + usize::from(limited), "{key}");
        }
        let (counter, channel) = names(Layout::Redisson, None, "a");
        assert_eq!(counter, "redisson_lock_token:{a}");
        assert_eq!(channel, "redisson_lock__channel:{a}");
        let (counter, channel) = names(Layout::Redisson, Some("shop"), "{a}:b");
        assert_eq!(counter, "redisson_lock_token:shop:{a}:b");
        assert_eq!(channel, "redisson_lock__channel:shop:{a}:b");
    }

    #[test]
    fn a_fence_lies_in_the_slot_and_in_the_namespace_of_its_locks() {
        for key in ["a", "{a}:b", "order:42"] {
            let name = Layout::Native.name(Some("shop"), &LockKey::new(key).unwrap());
            let names = Names::new(Layout::Native, name.unwrap(), true);
            assert!(names.fence().starts_with("shop:{"), "{}", names.fence());
            for beside in names.keys().iter() {
                assert_eq!(slot_of(beside), slot_of(names.grant()), "{beside}");
            }
        }
    }
}
