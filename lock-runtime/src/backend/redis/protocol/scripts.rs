//! The scripts of all layouts. Some scripts are concatenated from several files.

use once_cell::sync::Lazy;

use crate::backend::redis::transport::script::Script;

/// Takes the next fencing tokens from the token counter.
const NEXT_TOKEN: &str = include_str!("native/next_token.lua");
/// Documents the stored state of a lock, and grants the lock to the next waiter.
const GRANT_NEXT: &str = include_str!("native/grant_next.lua");

macro_rules! scripts {
    ($($name:ident = $($part:expr),+;)*) => {
        $(pub(crate) static $name: Lazy<Script> = Lazy::new(|| Script::new(stringify!($name), &[$($part),+]));)*
    };
}

scripts! {
    ACQUIRE = NEXT_TOKEN, include_str!("native/acquire_free.lua"), include_str!("native/acquire_queue.lua"), GRANT_NEXT,
        include_str!("native/acquire.lua");
    ACQUIRE_SHARED = NEXT_TOKEN, GRANT_NEXT, include_str!("native/acquire_shared.lua"),
        include_str!("native/acquire_queue.lua"), include_str!("native/acquire.lua");
    MULTI_ACQUIRE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/multi_acquire.lua");
    RELEASE = include_str!("native/release_last.lua"), NEXT_TOKEN, GRANT_NEXT, include_str!("native/release.lua");
    RETAIN = NEXT_TOKEN, GRANT_NEXT, include_str!("native/retain.lua");
    QUEUE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/queue.lua");
    LEAVE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/leave.lua");
    PROBE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/probe.lua");
    RENEW = include_str!("native/renew.lua");
    DOWNGRADE = NEXT_TOKEN, GRANT_NEXT, include_str!("native/downgrade.lua");
    DISSOLVE = include_str!("native/dissolve.lua");
    LEAD = include_str!("native/lead.lua");
    LIMIT = NEXT_TOKEN, GRANT_NEXT, include_str!("native/limit.lua");
    LATCH = NEXT_TOKEN, GRANT_NEXT, include_str!("native/latch.lua");
    STATUS = include_str!("native/status.lua");
    WAITERS = include_str!("native/waiters.lua");
}

#[cfg(feature = "redlock")]
pub(crate) mod quorum {
    use super::*;

    /// Reads and writes the mark of a Redlock's node, which shows whether the node still has its state.
    const MARK: &str = include_str!("quorum/mark.lua");

    scripts! {
        QUORUM_PROBE = MARK, include_str!("quorum/probe.lua");
        QUORUM_ADMIT = MARK, include_str!("quorum/admit.lua");
        QUORUM_TAKE = NEXT_TOKEN, MARK, include_str!("quorum/take.lua");
        QUORUM_RAISE_TOKEN = include_str!("quorum/raise_token.lua");
        QUORUM_REJOIN = MARK, include_str!("quorum/rejoin.lua");
    }
}

#[cfg(feature = "redisson")]
pub(crate) mod redisson {
    use super::*;

    /// Documents the stored state of a lock in Redisson's layout, and finds the owner of a lock.
    const OWNER: &str = include_str!("redisson/owner.lua");
    /// Returns the name of the channel of a lock in Redisson's layout.
    const CHANNEL: &str = include_str!("redisson/channel.lua");
    /// Announces a free lock in Redisson's layout.
    const TELL: &str = include_str!("redisson/tell.lua");
    /// Announces a free lock in Redisson's layout in a Redis Cluster.
    const CLUSTER_TELL: &str = include_str!("redisson/cluster_tell.lua");
    /// Takes a free lock in Redisson's layout.
    const GRANT: &str = include_str!("redisson/grant.lua");

    scripts! {
        REDISSON_ACQUIRE = NEXT_TOKEN, OWNER, GRANT, include_str!("redisson/acquire.lua");
        REDISSON_MULTI_ACQUIRE = NEXT_TOKEN, OWNER, GRANT, include_str!("redisson/multi_acquire.lua");
        REDISSON_RELEASE = OWNER, CHANNEL, TELL, include_str!("redisson/release.lua");
        REDISSON_RETAIN = OWNER, CHANNEL, TELL, include_str!("redisson/retain.lua");
        REDISSON_LEAVE = OWNER, CHANNEL, TELL, include_str!("redisson/leave.lua");
        REDISSON_RENEW = OWNER, include_str!("redisson/renew.lua");
        REDISSON_STATUS = OWNER, include_str!("redisson/status.lua");

        REDISSON_CLUSTER_RELEASE = OWNER, CHANNEL, CLUSTER_TELL, include_str!("redisson/release.lua");
        REDISSON_CLUSTER_RETAIN = OWNER, CHANNEL, CLUSTER_TELL, include_str!("redisson/retain.lua");
        REDISSON_CLUSTER_LEAVE = OWNER, CHANNEL, CLUSTER_TELL, include_str!("redisson/leave.lua");
    }
}
