//! The options of a call, and the checks of their values and combinations.

use std::{error::Error, fmt, time::Duration};

use crate::{
    advice::Advice,
    layout::Layout,
    lease::{LeaseTerms, MAX_LEASE, MIN_LEASE, MIN_RENEWED_LEASE, Renewal},
};

/// The longest `wait`.
pub const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What happens to a body whose lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Drops the body at its next `.await`; the call returns [`Lost`](crate::error::LockError::Lost).
    #[default]
    Cancel,
    /// Lets the body continue without the protection of the lock. The loss is logged and counted, and the body can
    /// check for a loss through its hold.
    Continue,
}

/// The operations that a client is allowed to use. These operations determine the rights that the client's Redis user
/// needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AccessMode {
    /// Takes, renews and releases locks.
    #[default]
    Full,
    /// Only reads who holds locks and who waits for them.
    ReadOnly,
}

/// Which other callers can be inside a lock at the same time.
///
/// Readers and writers of one lock wait in one queue, first come, first served: a reader that comes after a waiting writer
/// enters after this writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody else is inside the lock.
    #[default]
    Write,
    /// Other readers can be inside the lock, but no writer.
    Read,
    /// The lock is a semaphore: the caller takes some of its permits, and enters when enough are left.
    Permits {
        /// The number of permits that the caller takes.
        take: u32,
        /// The number of permits that all callers together can take.
        of: u32,
    },
}

impl Mode {
    /// Returns whether others can be inside the lock at the same time.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Write)
    }
}

/// The largest number of permits of a semaphore. A script that looks for permits whose leases have ended reads all of them.
pub const MAX_PERMITS: u32 = 1000;

/// The largest number of parts of a latch. The server deletes all of them at once.
pub const MAX_PARTS: u32 = 100_000;

/// How a caller waits for a lock that is not free.
///
/// Callers with different strategies can share one lock. A release passes the lock to the first caller in the queue, if
/// there is one. A caller that does not queue never takes a lock while another caller queues for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Waits in a queue. A release grants the lock to the first caller in the queue: first come, first served.
    #[default]
    Handoff,
    /// Waits for a release, and then tries again. Callers with this strategy enter in no particular order. Only locks
    /// in [Redisson's layout](Layout::Redisson) have this strategy. In process, a caller with this strategy waits in
    /// the queue, like one with [`Handoff`](Self::Handoff), so that a unit test of a service that shares its locks with
    /// Redisson needs no other strategy.
    Notify,
    /// Tries again and again, and pauses between two tries. A [`Backoff`] sets the length of the pauses. Callers with
    /// this strategy enter in no particular order.
    Spin,
}

/// When a call returns after its body has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The call returns once the server has confirmed the release, so code that receives the result finds the lock
    /// free, or held by the next waiter. If no confirmation arrives within one second, the call returns and the release
    /// is retried in the background.
    #[default]
    Confirmed,
    /// The call returns without waiting for the server to confirm the release, one round trip earlier than with
    /// [`Release::Confirmed`]. The release is retried in the background until the lease ends.
    ///
    /// The next acquisition of the same client is sent after the release. On a Redlock, the acquisition is certain to be
    /// sent after the release only while the client has open connections to the nodes. Callers in other processes can
    /// find the lock taken until the server has processed the release.
    Background,
}

/// How long a caller with [`Strategy::Spin`] sleeps between two tries. The pause doubles after each try up to `most`,
/// and each pause is shortened at random by up to one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// The pause after the first try: 1 ms by default.
    pub first: Duration,
    /// The longest pause: 128 ms by default.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(1),
            most: Duration::from_millis(128),
        }
    }
}

impl Backoff {
    /// Returns the pause after `failed` failed tries. `chance` is 32 random bits: a larger number gives a shorter
    /// pause.
    #[must_use]
    pub fn pause(self, failed: u32, chance: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
        let longest = self.first.saturating_mul(doubled).min(self.most);
        longest - (longest / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }
}

/// How many replicas of the lock's server must have a grant before the body starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replicas {
    /// The number of replicas. With zero, a call does not wait for replicas.
    pub count: usize,
    /// How long a call waits for the replicas to acknowledge its grant: 1 s by default.
    pub within: Duration,
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            count: 0,
            within: Duration::from_secs(1),
        }
    }
}

/// The options of one call. For a field that is `None`, the client's default applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockOptions {
    /// The longest time that the whole acquisition can take. With a `wait` of zero, the call makes one attempt and
    /// never queues.
    pub wait: Option<Duration>,
    /// The lease time. An explicit lease is not renewed unless `renew` is `Some(true)`.
    pub lease: Option<Duration>,
    /// Whether the lease is renewed while the body runs. If `renew` is `None`, the lease is renewed only if `lease` is
    /// `None` too.
    pub renew: Option<bool>,
    /// The time after the grant at which the engine stops renewing the lease.
    pub max_hold: Option<Duration>,
    /// Which other callers can be inside the lock; none by default.
    pub mode: Mode,
    /// What happens to the body if the lease is lost.
    pub on_lost: OnLost,
    /// The minimum time for which the lock stays taken, even if the body ends earlier; zero by default.
    pub hold_at_least: Duration,
    /// How the caller waits for a lock that is not free.
    pub strategy: Option<Strategy>,
    /// When the call returns after its body has ended.
    pub release: Option<Release>,
    /// How many replicas must have the grant before the body starts.
    pub replicas: Option<usize>,
}

/// The values of options that a call leaves unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// The longest time that an acquisition can take; 3 s unless the client sets another value.
    pub wait: Duration,
    /// The length of a lease; 30 s unless the client sets another value. The engine renews a lease of this default
    /// length after each third of its time.
    pub lease: Duration,
    /// How a caller waits for a lock. `None` selects the layout's default, which is handoff in the native layout.
    pub strategy: Option<Strategy>,
    /// Whether the locks are in process, where a caller with [`Strategy::Notify`] queues.
    pub in_process: bool,
    /// Whether the locks are on a Redlock, which has neither a queue nor readers.
    pub on_redlock: bool,
    /// The pauses between the tries of calls with [`Strategy::Spin`].
    pub backoff: Backoff,
    /// When a call returns after its body has ended; [`Release::Confirmed`] unless the client sets another value.
    pub release: Release,
    /// How the locks are stored; [`Layout::Native`] unless the client sets another value.
    pub layout: Layout,
    /// How many replicas must have a grant, and how long a call waits for these replicas. By default, a call waits for
    /// no replicas.
    pub replicas: Replicas,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(3),
            lease: Duration::from_secs(30),
            strategy: None,
            in_process: false,
            on_redlock: false,
            backoff: Backoff::default(),
            release: Release::default(),
            layout: Layout::default(),
            replicas: Replicas::default(),
        }
    }
}

/// The options of a call, with the defaults filled in and all values checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The longest time that the acquisition can take.
    pub wait: Duration,
    /// The length of the lease, and whether the lease is renewed.
    pub lease: LeaseTerms,
    /// Which other callers can be inside the lock.
    pub mode: Mode,
    /// What happens to the body if the lease is lost.
    pub on_lost: OnLost,
    /// The minimum time for which the lock stays taken, even if the body ends earlier.
    pub hold_at_least: Duration,
    /// How the caller waits for a lock that is not free.
    pub strategy: Strategy,
    /// The pauses between tries of a caller with [`Strategy::Spin`].
    pub backoff: Backoff,
    /// When the call returns after its body has ended.
    pub release: Release,
    /// How many replicas must have the grant before the body starts, and how long the call waits for these replicas.
    pub replicas: Replicas,
}

impl Terms {
    /// Returns whether replicas must have the grant before the body starts.
    #[must_use]
    pub fn needs_replicas(&self) -> bool {
        self.replicas.count > 0
    }
}

/// The reason why options are refused. When this error is returned, nothing has been sent to the server, and the
/// guarded body has not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The lease is shorter than [`MIN_LEASE`].
    LeaseTooShort,
    /// A renewed lease is shorter than [`MIN_RENEWED_LEASE`].
    RenewedLeaseTooShort,
    /// The lease is longer than [`MAX_LEASE`].
    LeaseTooLong,
    /// The wait is longer than [`MAX_WAIT`].
    WaitTooLong,
    /// `max_hold` limits the renewal of a lease, but the lease is not renewed.
    MaxHoldWithoutRenewal,
    /// `hold_at_least` is longer than the lease that the call sets, or than [`MAX_LEASE`].
    HoldAtLeastAboveLease,
    /// In the client's [`Backoff`], the first pause is zero, or longer than the longest pause.
    BackoffOutOfRange,
    /// The strategy is handoff, which needs a queue, but the layout of the client's locks has no queue.
    NoQueue,
    /// A nested call asks for more replicas than the call that acquired the lock which it would enter.
    MoreReplicasThanHeld {
        /// The number of replicas that the nested call asks for.
        wanted: usize,
        /// The number of replicas that the call asked for which acquired the lock.
        held: usize,
    },
    /// The strategy is notify, which waits for Redisson's messages about releases, but the client's locks are not in
    /// Redisson's layout.
    NotRedisson,
    /// The mode is read, or the call takes permits, but a Redlock and Redisson's layout have neither readers nor permits.
    NoReaders,
    /// A call takes no permit, or more permits than the semaphore has, or the semaphore has more than [`MAX_PERMITS`].
    PermitsOutOfRange {
        /// The number of permits that the call takes.
        take: u32,
        /// The number of permits of the semaphore.
        of: u32,
    },
    /// A latch has more than [`MAX_PARTS`] parts, or lasts shorter than [`MIN_LEASE`], or longer than [`MAX_LEASE`].
    LatchOutOfRange,
    /// The name of a part of a latch is empty, or longer than 1,024 bytes.
    PartOutOfRange,
    /// A nested call takes more permits than the call that has taken permits of the semaphore.
    MorePermitsThanHeld {
        /// The number of permits that the nested call takes.
        wanted: u32,
        /// The number of permits that the enclosing call has.
        held: u32,
    },
    /// A nested call wants to write, but the call that acquired the lock only reads. It would wait for itself.
    Upgrade,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseTooShort => write!(f, "a lease is at least {MIN_LEASE:?}"),
            Self::RenewedLeaseTooShort => {
                write!(f, "a renewed lease is at least {MIN_RENEWED_LEASE:?}")
            }
            Self::LeaseTooLong => write!(
                f,
                "a lease is at most {} hours, because a crashed holder blocks its key that long",
                MAX_LEASE.as_secs() / 3600
            ),
            Self::WaitTooLong => write!(f, "a wait is at most {} hours", MAX_WAIT.as_secs() / 3600),
            Self::MaxHoldWithoutRenewal => {
                f.write_str("`max_hold` limits the renewal of a lease, but a fixed lease is not renewed")
            }
            Self::BackoffOutOfRange => f.write_str(
                "the first pause of a spinning caller must be longer than zero, and not longer than its longest pause",
            ),
            Self::NoQueue => f.write_str(
                "the strategy `handoff` needs a queue, but locks in Redisson's layout have no queue",
            ),
            Self::NotRedisson => f.write_str(
                "the strategy `notify` waits for Redisson's messages about releases, but the locks are not in Redisson's layout",
            ),
            Self::HoldAtLeastAboveLease => f.write_str(
                "`hold_at_least` must not be longer than the lease",
            ),
            Self::NoReaders => f.write_str(
                "a Redlock and Redisson's layout have neither readers nor permits, only locks that one caller holds alone",
            ),
            Self::PermitsOutOfRange { of, .. } if *of > MAX_PERMITS => write!(
                f,
                "a semaphore has at most {MAX_PERMITS} permits, not {of}"
            ),
            Self::PermitsOutOfRange { take, of } => write!(
                f,
                "a call takes {take} of {of} permits: it must take at least one, and not more than there are"
            ),
            Self::LatchOutOfRange => write!(
                f,
                "a latch has at most {MAX_PARTS} parts, and lasts for at least {MIN_LEASE:?} and at most {} hours",
                MAX_LEASE.as_secs() / 3600
            ),
            Self::PartOutOfRange => f.write_str(
                "the name of a part of a latch is empty, or longer than 1024 bytes",
            ),
            Self::MorePermitsThanHeld { wanted, held } => write!(
                f,
                "a nested call takes {wanted} permits, but the enclosing call has {held}"
            ),
            Self::Upgrade => f.write_str(
                "a nested call wants to write, but an enclosing call holds the lock as a reader",
            ),
            Self::MoreReplicasThanHeld { wanted, held } => write!(
                f,
                "a nested call asks for {wanted} replicas, but the call that acquired the lock asked for {held}"
            ),
        }
    }
}

impl Error for OptionsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::LeaseTooShort => &Advice("choose a longer one"),
            Self::RenewedLeaseTooShort => &Advice("choose a longer one, or a fixed lease"),
            Self::LeaseTooLong => &Advice("choose a shorter one and let it be renewed"),
            Self::WaitTooLong => &Advice("write \"24h\" or less"),
            Self::MaxHoldWithoutRenewal => &Advice("remove `max_hold`, or set `renew`"),
            Self::BackoffOutOfRange => &Advice("set the pauses to, for instance, 1 ms and 128 ms"),
            Self::NoQueue => &Advice("choose `strategy = notify` or `strategy = spin`"),
            Self::NotRedisson => &Advice(
                "choose `strategy = handoff` (first come, first served) or `strategy = spin` (no order)",
            ),
            Self::NoReaders => &Advice("remove `mode = read`, or `permits`"),
            Self::PermitsOutOfRange { of, .. } if *of > MAX_PERMITS => {
                &Advice("choose fewer permits, or give each of several semaphores a part of them")
            }
            Self::PermitsOutOfRange { .. } => {
                &Advice("take at least one permit, or raise their number")
            }
            Self::LatchOutOfRange => &Advice("count groups of parts, or choose another life"),
            Self::PartOutOfRange => &Advice("give each part a name of its own, such as its number"),
            Self::MorePermitsThanHeld { .. } => &Advice("take all permits in the outermost call"),
            Self::Upgrade => &Advice(
                "end the read before the write begins, or acquire the lock as a writer in the outermost call",
            ),
            Self::HoldAtLeastAboveLease => {
                &Advice("choose a longer `lease` (24 hours at most), or a shorter `hold_at_least`")
            }
            Self::MoreReplicasThanHeld { .. } => &Advice(
                "set `replicas` on the outermost call, or on the client (`LockClientBuilder::replicas`)",
            ),
        })
    }
}

/// Returns whether a call with this `wait` makes a single attempt. Servers measure time in milliseconds, so a `wait` below
/// 1 ms counts as zero.
#[must_use]
pub const fn is_one_attempt(wait: Duration) -> bool {
    wait.as_millis() == 0
}

impl LockOptions {
    /// Replaces unset options by the client's defaults, and checks all values.
    ///
    /// # Errors
    /// Returns [`OptionsError`] if options are out of range or contradict each other.
    pub fn complete(&self, defaults: &Defaults) -> Result<Terms, OptionsError> {
        let wait = self.wait.unwrap_or(defaults.wait);
        let wait = if is_one_attempt(wait) {
            Duration::ZERO
        } else {
            wait
        };
        let time = self.lease.unwrap_or(defaults.lease);
        let renewed = self.renew.unwrap_or(self.lease.is_none());
        if wait > MAX_WAIT {
            return Err(OptionsError::WaitTooLong);
        }
        if time < MIN_LEASE {
            return Err(OptionsError::LeaseTooShort);
        }
        if time > MAX_LEASE {
            return Err(OptionsError::LeaseTooLong);
        }
        let renewal = match (renewed, self.max_hold) {
            (true, _) if time < MIN_RENEWED_LEASE => {
                return Err(OptionsError::RenewedLeaseTooShort);
            }
            (true, max_hold) => Renewal::WhileHeld { max_hold },
            (false, Some(_)) => return Err(OptionsError::MaxHoldWithoutRenewal),
            (false, None) => Renewal::Fixed,
        };
        // An explicit lease limits `hold_at_least`. The client's default lease does not limit `hold_at_least`: if
        // `hold_at_least` is longer, the engine extends the lease.
        if self.hold_at_least > self.lease.unwrap_or(MAX_LEASE) {
            return Err(OptionsError::HoldAtLeastAboveLease);
        }
        let has_readers = defaults.layout == Layout::Native && !defaults.on_redlock;
        if self.mode.is_shared() && !has_readers {
            return Err(OptionsError::NoReaders);
        }
        if let Mode::Permits { take, of } = self.mode
            && !((1..=of).contains(&take) && of <= MAX_PERMITS)
        {
            return Err(OptionsError::PermitsOutOfRange { take, of });
        }
        let backoff = defaults.backoff;
        if backoff.first.is_zero() || backoff.first > backoff.most {
            return Err(OptionsError::BackoffOutOfRange);
        }
        let strategy = self
            .strategy
            .or(defaults.strategy)
            .unwrap_or(defaults.layout.default_strategy());
        let strategy = match (defaults.layout, strategy) {
            // Redisson takes a free lock even if other callers have queued for it, so a queue would keep no order.
            (Layout::Redisson, Strategy::Handoff) => return Err(OptionsError::NoQueue),
            (Layout::Native, Strategy::Notify) if defaults.in_process => Strategy::Handoff,
            (Layout::Native, Strategy::Notify) => return Err(OptionsError::NotRedisson),
            (_, strategy) => strategy,
        };
        Ok(Terms {
            wait,
            lease: LeaseTerms { time, renewal },
            mode: self.mode,
            on_lost: self.on_lost,
            hold_at_least: self.hold_at_least,
            strategy,
            backoff,
            release: self.release.unwrap_or(defaults.release),
            replicas: Replicas {
                count: self.replicas.unwrap_or(defaults.replicas.count),
                ..defaults.replicas
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn complete(options: LockOptions) -> Result<Terms, OptionsError> {
        options.complete(&Defaults::default())
    }

    #[test]
    fn an_absent_lease_is_renewed_and_an_explicit_one_fixed() {
        let renewed = complete(LockOptions::default()).unwrap();
        assert_eq!(renewed.wait, 3 * SECOND);
        assert_eq!(renewed.lease.time, 30 * SECOND);
        assert_eq!(renewed.lease.renewal, Renewal::WhileHeld { max_hold: None });
        let fixed = complete(LockOptions {
            lease: Some(SECOND),
            ..Default::default()
        })
        .unwrap();
        assert_eq!(fixed.lease.renewal, Renewal::Fixed);
        let both = LockOptions {
            lease: Some(SECOND),
            renew: Some(true),
            max_hold: Some(SECOND),
            ..Default::default()
        };
        assert_eq!(
            complete(both).unwrap().lease.renewal,
            Renewal::WhileHeld {
                max_hold: Some(SECOND)
            }
        );
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_scatter_over_a_half() {
        let backoff = Backoff::default();
        let longest: Vec<u128> = (1..12)
            .map(|failed| backoff.pause(failed, 0).as_millis())
            .collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 64, 128, 128, 128, 128]);
        for failed in [1, 5, 12, u32::MAX] {
            let longest = backoff.pause(failed, 0);
            assert_eq!(backoff.pause(failed, u32::MAX), longest / 2);
            let between = backoff.pause(failed, u32::MAX / 3);
            assert!(longest / 2 < between && between < longest, "{between:?}");
        }
    }

    #[test]
    fn each_refusal_says_what_to_choose() {
        for (error, says) in [
            (OptionsError::LeaseTooShort, "at least 10ms"),
            (OptionsError::RenewedLeaseTooShort, "at least 1s"),
            (OptionsError::LeaseTooLong, "at most 24 hours"),
            (OptionsError::WaitTooLong, "\"24h\" or less"),
            (OptionsError::MaxHoldWithoutRenewal, "set `renew`"),
            (OptionsError::BackoffOutOfRange, "1 ms and 128 ms"),
            (OptionsError::NoQueue, "`strategy = notify`"),
            (OptionsError::NotRedisson, "`strategy = handoff`"),
            (OptionsError::NotRedisson, "`strategy = spin`"),
            (OptionsError::HoldAtLeastAboveLease, "24 hours at most"),
            (
                OptionsError::MoreReplicasThanHeld { wanted: 2, held: 1 },
                "on the outermost call",
            ),
        ] {
            let text = crate::advice::advised(&error);
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn the_edges_are_allowed() {
        let day = crate::duration::parse("24h").expect("a duration");
        let options = LockOptions {
            wait: Some(day),
            ..LockOptions::default()
        };
        assert_eq!(complete(options).map(|terms| terms.wait), Ok(day));
        let even = Backoff {
            first: SECOND,
            most: SECOND,
        };
        let defaults = Defaults {
            backoff: even,
            ..Defaults::default()
        };
        let completed = LockOptions::default().complete(&defaults);
        assert_eq!(completed.map(|terms| terms.backoff), Ok(even));
    }

    #[test]
    fn a_backoff_has_bounds() {
        for (first, most) in [(0, 1), (2, 1)] {
            let defaults = Defaults {
                backoff: Backoff {
                    first: first * SECOND,
                    most: most * SECOND,
                },
                ..Defaults::default()
            };
            let completed = LockOptions::default().complete(&defaults);
            assert_eq!(completed, Err(OptionsError::BackoffOutOfRange));
        }
    }

    #[test]
    fn a_layout_without_a_queue_has_no_handoff() {
        let redisson = Defaults {
            layout: Layout::Redisson,
            ..Defaults::default()
        };
        let asked = |strategy| LockOptions {
            strategy,
            ..LockOptions::default()
        };
        let strategy = |strategy| {
            let terms = asked(strategy).complete(&redisson);
            terms.map(|terms| terms.strategy)
        };
        assert_eq!(strategy(None), Ok(Strategy::Notify));
        assert_eq!(strategy(Some(Strategy::Spin)), Ok(Strategy::Spin));
        assert_eq!(
            strategy(Some(Strategy::Handoff)),
            Err(OptionsError::NoQueue)
        );
        let spinning = Defaults {
            strategy: Some(Strategy::Spin),
            ..redisson
        };
        let terms = asked(None).complete(&spinning).unwrap();
        assert_eq!(terms.strategy, Strategy::Spin);
        assert_eq!(
            complete(asked(None)).unwrap().strategy,
            Strategy::Handoff,
            "handoff is the default strategy of the native layout"
        );
    }

    #[test]
    fn only_redisson_and_locks_in_process_have_notify() {
        let asked = LockOptions {
            strategy: Some(Strategy::Notify),
            ..LockOptions::default()
        };
        assert_eq!(complete(asked), Err(OptionsError::NotRedisson));
        let of_client = Defaults {
            strategy: Some(Strategy::Notify),
            ..Defaults::default()
        };
        let refused = LockOptions::default().complete(&of_client);
        assert_eq!(refused, Err(OptionsError::NotRedisson));
        let in_process = Defaults {
            in_process: true,
            ..Defaults::default()
        };
        let strategy = asked.complete(&in_process).map(|terms| terms.strategy);
        assert_eq!(strategy, Ok(Strategy::Handoff));
    }

    #[test]
    fn each_senseless_choice_is_named() {
        let lease = |lease| LockOptions {
            lease: Some(lease),
            ..Default::default()
        };
        let renewed = |time| LockOptions {
            renew: Some(true),
            ..lease(time)
        };
        let at_least = |hold_at_least| LockOptions {
            hold_at_least,
            ..Default::default()
        };
        for (options, error) in [
            (lease(Duration::ZERO), OptionsError::LeaseTooShort),
            (
                lease(MIN_LEASE - Duration::from_nanos(1)),
                OptionsError::LeaseTooShort,
            ),
            (
                lease(MAX_LEASE + Duration::from_nanos(1)),
                OptionsError::LeaseTooLong,
            ),
            (
                renewed(SECOND - Duration::from_nanos(1)),
                OptionsError::RenewedLeaseTooShort,
            ),
            (
                LockOptions {
                    wait: Some(MAX_WAIT + SECOND),
                    ..Default::default()
                },
                OptionsError::WaitTooLong,
            ),
            (
                LockOptions {
                    max_hold: Some(SECOND),
                    ..lease(SECOND)
                },
                OptionsError::MaxHoldWithoutRenewal,
            ),
            (
                LockOptions {
                    hold_at_least: SECOND + Duration::from_nanos(1),
                    ..lease(SECOND)
                },
                OptionsError::HoldAtLeastAboveLease,
            ),
            (
                at_least(MAX_LEASE + SECOND),
                OptionsError::HoldAtLeastAboveLease,
            ),
        ] {
            assert_eq!(complete(options), Err(error));
        }
        for edge in [
            lease(MIN_LEASE),
            lease(MAX_LEASE),
            renewed(SECOND),
            at_least(MAX_LEASE),
            LockOptions {
                hold_at_least: SECOND,
                ..lease(SECOND)
            },
        ] {
            assert!(complete(edge).is_ok());
        }
    }
}
