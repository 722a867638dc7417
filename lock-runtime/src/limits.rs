//! How long the engine waits: each patience, pause and age, and the order of those that depend on each other.
//!
//! A patience for an answer is right for a near server. For a far server, it grows with the round trip that the line has
//! shown ([`patience`](crate::patience)). The lease, the claim and the longest `wait` are part of the vocabulary of
//! `lock-core`.

use std::time::Duration;

use lock_core::lease::{CLAIM, MIN_RENEWED_LEASE};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// A call that waits for its lock.

/// How long an attempt that never queues waits for the answer of a near server.
pub(crate) const TRY_PATIENCE: Duration = ms(900);
/// How long a call at the end of its `wait` waits for the last answer of a near server: when it leaves the queue, and after
/// the time limit of the command `WAIT` has passed.
pub(crate) const LEAVE_PATIENCE: Duration = ms(200);
/// How long a call waits before the engine reports the wait.
pub(crate) const LONG_WAIT: Duration = secs(10);
/// The least time between two reports of long waits for the same lock.
pub(crate) const REPORT_AGAIN: Duration = secs(10);
/// The time for which a request waits for more callers to join it, while earlier callers of its session are queued.
pub(crate) const BATCH_WINDOW: Duration = ms(1);
/// The time that is added to a lease which is too short to be renewed, while the call waits for its other locks. If the
/// process crashes during this wait, the lock stays taken for this time beyond the lease that the call asked for.
/// According to the fault matrix (`docs/faults.md`), a crash blocks a lock for at most 250 ms beyond its lease, so this
/// time is shorter than 250 ms.
pub(crate) const RENEWAL_MARGIN: Duration = ms(200);
/// How late a request can reach the server and still take effect. A request for a lock that names a time limit takes
/// effect until the end of the caller's `wait` plus this time. A command that restarts leases takes effect until the
/// moment at which it was sent plus this time.
pub(crate) const LATE_SLACK: Duration = secs(1);

/// The longest time for which a caller waits for a latch before it looks at it again.
pub(crate) const LATCH_LOOK: Duration = secs(60);
/// The lease of a caller that has entered the lock of a latch, and leaves it at once.
pub(crate) const LATCH_LEASE: Duration = secs(2);
/// How long a caller pauses that has entered the lock of a latch although the round is open.
pub(crate) const LATCH_PAUSE: Duration = ms(50);

// A lock that was acquired for a call that does not take it.

/// How long a caller can leave its lock untaken before the engine asks the caller's runtime whether it runs.
pub(crate) const ASK_RUNTIME_AFTER: Duration = ms(200);
/// A runtime counts as silent if it has not answered for this time.
pub(crate) const SILENT_AFTER: Duration = ms(500);
/// A question is forgotten after this time, because a runtime that has ended never answers.
pub(crate) const FORGOTTEN_AFTER: Duration = secs(60);

// A lock that is held.

/// The age of a hold at which the engine confirms a grant that still lasts only for its claim (2 s). If a hold
/// ends before this age, the engine sends no command to confirm the grant.
pub(crate) const CONFIRM_AFTER: Duration = ms(100);
/// How long the engine waits for the answer to a renewal before the renewal counts as failed. After this time, the
/// engine still accepts the answer.
pub(crate) const RENEWAL_PATIENCE: Duration = secs(1);
/// How long the engine waits before it tries a failed renewal or check again. If the local deadline of one of the holds
/// comes first, the wait ends at that deadline.
pub(crate) const RENEW_AGAIN: Duration = ms(100);
/// After the server has changed, the engine checks its holds in groups, each as large as one command allows. This is the
/// pause between two groups, so that clients with very many holds do not overload the server.
pub(crate) const GROUP_PAUSE: Duration = ms(5);
/// How long one poll of a body can take before the engine warns.
pub(crate) const LONG_POLL: Duration = secs(2);
/// The time between two looks at the threads that poll bodies.
pub(crate) const POLL_LOOK: Duration = ms(500);
/// The least time between the loss of a lease and the end of its body that is reported.
pub(crate) const LATE_END: Duration = ms(100);
/// The time for which an in-process grant stays in the registry after its local deadline. At the deadline, the call drops
/// the body whose lease is lost. The body therefore ends before the next holder's body starts, unless the runtime is too
/// busy to poll the call within this time.
pub(crate) const MEMORY_MARGIN: Duration = ms(2);

// A release and a shutdown.

/// How long a caller waits for its release to be confirmed. After this time, the release continues in the background.
pub(crate) const RELEASE_PATIENCE: Duration = secs(1);
/// The time for which the engine waits before it first polls a background release. Most background releases are
/// confirmed within that time.
pub(crate) const HANDOFF_DELAY: Duration = ms(5);
/// The time limit for one try to clean up what a call has left over a new connection, or to end a subscription.
pub(crate) const CLEANUP_PATIENCE: Duration = secs(2);
/// How long a shutdown waits for acquisitions in progress to end.
pub(crate) const WAITING_PATIENCE: Duration = secs(2);
/// How long a shutdown waits for a server that does not answer while locks are held.
pub(crate) const HELD_PATIENCE: Duration = secs(10);
/// The time between two checks whether the server answers, while a shutdown waits. Each check of a near server also has
/// this time limit.
pub(crate) const ASK_AGAIN: Duration = ms(500);

// The probes of a session.

/// The period of the heartbeat, and the longest time between two probes of a lock that callers wait for. A session
/// whose callers wait for very many locks probes each of these locks less often.
pub(crate) const HEARTBEAT: Duration = ms(200);
/// A session probes on average at most one lock in this time. If the callers of a session wait for more than 1,300
/// locks, the heartbeat therefore probes each lock less often than every 200 ms. The server needs up to 7 µs to probe
/// one lock, so the probes of a session take at most a twentieth of the server's time.
pub(crate) const PROBE_SHARE: Duration = Duration::from_micros(150);
/// The time after which a probe is due again that was due while requests for its lock were being sent.
pub(crate) const PROBE_AGAIN: Duration = ms(10);
/// A lock is probed this long after the expected end of its lease, so that the lease has ended on the server, too.
pub(crate) const LEASE_ENDED: Duration = ms(1);
/// The time between two periodic tries to get a lock in Redisson's layout. Callers try periodically even if no release is
/// announced, because a holder can crash without a release, and because the message about a release can be lost.
pub(crate) const TRY_AGAIN: Duration = ms(200);

// Connections and commands.

/// The time limit for one try to connect to a near server.
pub(crate) const OPEN_PATIENCE: Duration = secs(1);
/// The time limit for the answer to a command of the engine that no call waits for: `AUTH`, a subscription to a shard
/// channel, and a renewal that is sent by itself after a command for several grants has failed.
pub(crate) const COMMAND_PATIENCE: Duration = secs(1);
/// The time limit for the answer of one of several servers to a question: a Sentinel, a server of a cluster, a node of a
/// Redlock.
pub(crate) const ASK_PATIENCE: Duration = ms(500);
/// The time after which the engine gives up a connection that has unanswered commands, and that brings no answer.
pub(crate) const SILENCE: Duration = secs(2);
/// The pause before the client repeats a command that the server could not carry out, or a question to the nodes of a
/// Redlock of which some have no mark.
pub(crate) const RETRY_PAUSE: Duration = ms(50);
/// The time limit for the check whether the server answers without TLS.
pub(crate) const TLS_PATIENCE: Duration = ms(250);
/// The pause after a failed try of `connect_within`.
pub(crate) const CONNECT_PAUSE: Duration = ms(200);
/// The time for which a new connection has to last before the outage counts as over. This time applies only if the
/// session gave up the previous connection because its server was no longer a master, or because a request came too
/// late.
pub(crate) const TRIAL: Duration = secs(1);
/// The time for which a server counts as not ready after it could not carry out a command. A caller repeats a failed
/// command much sooner. If the repeated command also fails, this time starts again.
pub(crate) const NOT_READY_AGE: Duration = secs(1);
/// The maximum age of an error that is reported as the reason for an unanswered command.
pub(crate) const ERROR_AGE: Duration = secs(5);
/// The time after which an outage that lasts is logged again.
pub(crate) const TELL_AGAIN: Duration = secs(60);
/// The longest round trip that counts. The waits do not grow with a longer one.
pub(crate) const LONGEST_ROUND_TRIP: Duration = secs(1);
/// The time limit for one call of the provider of credentials.
pub(crate) const PROVIDER_PATIENCE: Duration = secs(10);
/// The maximum age of an unused answer of the provider. If the answer is older, the next connection calls the provider
/// again.
pub(crate) const UNCLAIMED_FOR: Duration = secs(5);

// Several servers.

/// The time limit for the remaining answers to `CLUSTER SLOTS`, after more than half of the servers have answered. A
/// server that is cut off from the others may have an old slot map, so a single answer does not suffice.
pub(crate) const SLOTS_REST: Duration = ms(50);
/// The time between two questions who stores a slot, while a call waits for the answer.
pub(crate) const SLOT_PAUSE: Duration = ms(500);
/// The time for which the engine keeps the session with a server that stores no slot, counted from the newest `ASK`
/// redirection to that server. A slot is moving to that server, so the server will probably soon store a slot.
pub(crate) const ASKED_FOR: Duration = secs(10);
/// How long a client waits for the answers of the other Sentinels after the first Sentinel has answered.
pub(crate) const SENTINELS_REST: Duration = ms(200);
/// The time for which the Sentinels can disagree after a failover. Sentinels send one another the newest configuration
/// every 2 s.
pub(crate) const SENTINELS_SETTLED: Duration = secs(3);
/// The pause before the client replaces a lost connection to a Sentinel.
pub(crate) const SENTINEL_PAUSE: Duration = secs(1);
/// The time for which a request to a node of a Redlock is valid after it was sent. A node that reads the request after this
/// time does not carry it out.
pub(crate) const REQUEST_LIFE: Duration = secs(1);
/// The time for which the engine waits for the remaining nodes of a Redlock after a majority has answered: when a client
/// connects, and for the answers to a request. A shutdown waits no longer than this time for the remaining answers.
pub(crate) const STRAGGLER_PATIENCE: Duration = secs(1);

/// Does not compile if the first time is longer than the second one.
macro_rules! in_order {
    ($($shorter:expr, $longer:expr;)*) => {
        $(const _: () = assert!($shorter.as_micros() <= $longer.as_micros());)*
    };
}

in_order! {
    // A grant whose message was lost is found, confirmed and renewed while it lasts.
    HEARTBEAT, CLAIM;
    CONFIRM_AFTER, CLAIM;
    RENEW_AGAIN, RENEWAL_PATIENCE;
    RENEWAL_PATIENCE, MIN_RENEWED_LEASE;
    // A silent runtime is known before the offer to its caller ends.
    ASK_RUNTIME_AFTER, SILENT_AFTER;
    SILENT_AFTER, CLAIM;
    SILENT_AFTER, FORGOTTEN_AFTER;
    // A try leaves time for the last answer: together at most 1 s.
    TRY_PATIENCE, secs(1);
    LEAVE_PATIENCE, TRY_PATIENCE;
    RENEWAL_MARGIN, ms(250);
    // The probe of a lock comes after the batch that its callers wait for, and before the next heartbeat.
    BATCH_WINDOW, PROBE_AGAIN;
    PROBE_AGAIN, HEARTBEAT;
    // A connection that is being opened is given up before the one that it replaces counts as silent.
    RETRY_PAUSE, OPEN_PATIENCE;
    OPEN_PATIENCE, SILENCE;
    // A shutdown waits for what its calls still do.
    HANDOFF_DELAY, RELEASE_PATIENCE;
    RELEASE_PATIENCE, WAITING_PATIENCE;
    WAITING_PATIENCE, HELD_PATIENCE;
    ASK_AGAIN, HELD_PATIENCE;
    // The other servers answer before the first answer counts alone.
    SLOTS_REST, ASK_PATIENCE;
    SENTINELS_REST, ASK_PATIENCE;
    POLL_LOOK, LONG_POLL;
    GROUP_PAUSE, HEARTBEAT;
}
