//! The errors of guarded calls (`LockError`: `Busy`, `Lost`, `Unreachable`, …) and their texts.

use std::{error::Error, fmt, time::Duration};

use crate::{
    advice::{Advice, Detail},
    backend::{BackendError, Holder},
    fencing::FencingToken,
    key::{KeyError, LockKey},
    options::OptionsError,
};

/// The holder that caused a [`LockError::Busy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusyWith {
    /// The holder is another process, or another client of this process: this client knows of no call of its own that
    /// holds the lock.
    AnotherProcess,
    /// The holder is another call of this process, made through the same client.
    ThisProcess,
    /// The holder is a sibling: another call nested in the same enclosing call.
    Sibling,
    /// The holder is unknown, and can be any of the holders that the other variants describe. The lock's name sorts
    /// before the name of a lock that an enclosing call holds. Waiting for locks out of order could deadlock, so the
    /// call tried to take the lock only once.
    OutOfOrder,
}

/// The backend's report about the holder, at the moment when a call gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// The holder.
    pub holder: Holder,
    /// The number of waiters before the caller in the queue; `None` if the caller had no place in the queue.
    pub ahead: Option<usize>,
}

impl HeldBy {
    /// Describes a holder, and the caller's place behind it.
    #[must_use]
    pub fn new(holder: Holder, ahead: Option<usize>) -> Self {
        Self { holder, ahead }
    }
}

/// Writes a text such as ``held by shop@web-3 (pid 4711) `shop::pay` for 12.0s, 3 waiters are before this call``. If only
/// `hold_at_least` still keeps the lock, the text begins with `kept after the hold of`.
impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.holder.kept {
            "kept after the hold of "
        } else {
            "held by "
        })?;
        match &self.holder.caller {
            Some(caller) => write!(f, "{caller}")?,
            None => write!(f, "owner {}", self.holder.owner)?,
        }
        if let Some(held_for) = self.holder.held_for {
            write!(f, " for {held_for:.1?}")?;
        }
        match self.ahead {
            None | Some(0) => Ok(()),
            Some(1) => f.write_str(", 1 waiter is before this call"),
            Some(ahead) => write!(f, ", {ahead} waiters are before this call"),
        }
    }
}

/// The [`source`](Error::source) of this value is the [`Advice`] for the developer.
impl Error for HeldBy {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&LATER)
    }
}

/// The advice for a lock that another process holds.
const LATER: Advice = Advice("try again later or raise `wait`");

/// How a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The local deadline passed: a fixed lease ended, or the renewals were not answered in time.
    Expired,
    /// The server no longer has the grant with the hold's token, because the grant's key expired or was deleted, or
    /// because the lock was released.
    NotHeld,
}

/// The reason why a guarded call did not return its body's result.
///
/// For every variant except [`Lost`](Self::Lost), the body did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not free within `wait`. The caller can repeat the call.
    Busy {
        /// The lock's key.
        key: LockKey,
        /// How long the call waited.
        waited: Duration,
        /// Which kind of caller holds the lock.
        with: BusyWith,
        /// What the server reported about the holder when the call gave up. `None` if the server reported nothing. On a
        /// Redlock and in Redisson's layout, the server never reports a holder. The server also reports no holder to a
        /// call that got no answer, or that made only one attempt to take several locks.
        held_by: Option<Box<HeldBy>>,
    },
    /// The lease was lost. If the body was running, the engine drops the body. Code beside a guard runs on, as does a
    /// body with `on_lost = continue`. A lease can also be lost before the call's body is first polled. A nested call
    /// also returns this error if the lock that it re-enters is lost.
    ///
    /// Changes that the body made before the loss are not undone. Have the guarded resource refuse writes with `token`
    /// once the resource has seen a higher token.
    Lost {
        /// The lock's key.
        key: LockKey,
        /// The fencing token of the lost hold.
        token: FencingToken,
        /// How the lease was lost.
        reason: LossReason,
    },
    /// The lock server did not answer within `wait`, or answered until then that it does not accept this client, or that it
    /// is not ready (`NOAUTH`, `WRONGPASS`, `READONLY`, `LOADING`). The text of the error says which of the two.
    Unreachable {
        /// The lock's key.
        key: LockKey,
        /// How long the call tried to reach the server.
        waited: Duration,
        /// The last failure of the connection or the server.
        detail: Detail,
    },
    /// The lock server answered with a refusal.
    Refused {
        /// The lock's key.
        key: LockKey,
        /// The server's message.
        detail: Detail,
    },
    /// The server stores something else under the lock's name: a lock in another layout, such as Redisson's, or other
    /// data.
    WrongLayout {
        /// The lock's key.
        key: LockKey,
    },
    /// The lock was granted, but too few replicas of the server acknowledged the grant in time. The call released the
    /// lock again. The caller can repeat the call.
    NotReplicated {
        /// The lock's key.
        key: LockKey,
        /// The number of replicas that must have the grant.
        wanted: usize,
        /// The number of replicas that have acknowledged the grant.
        acknowledged: usize,
    },
    /// The key is not a valid name of a lock.
    InvalidKey(KeyError),
    /// The options are out of range, or contradict each other or those of an enclosing call.
    InvalidOptions(OptionsError),
    /// The call names no client, and no client is scoped to its task or installed for the process.
    NoClient,
    /// The client was shut down, and no enclosing call holds the lock. A nested call that re-enters the lock of an
    /// enclosing call is not refused.
    ShutDown,
}

/// The pause before a repetition that [`LockError::retry_after`] suggests.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl LockError {
    /// Returns the HTTP status that suits this error: 400, 500 or 503.
    ///
    /// | error | status | [`is_retryable`](Self::is_retryable) | [`retry_after`](Self::retry_after) |
    /// |---|---|---|---|
    /// | `Busy`, `Unreachable`, `NotReplicated` | 503 | yes | 1 s |
    /// | `ShutDown` | 503 | no | 1 s |
    /// | `InvalidKey` | 400 | no | – |
    /// | `Lost`, `Refused`, `WrongLayout`, `InvalidOptions`, `NoClient` | 500 | no | – |
    ///
    /// ```
    /// use lock_core::error::LockError;
    ///
    /// assert_eq!(LockError::ShutDown.http_status(), 503);
    /// ```
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Busy { .. }
            | Self::Unreachable { .. }
            | Self::NotReplicated { .. }
            | Self::ShutDown => 503,
            Self::InvalidKey(_) => 400,
            Self::Lost { .. }
            | Self::Refused { .. }
            | Self::WrongLayout { .. }
            | Self::InvalidOptions(_)
            | Self::NoClient => 500,
        }
    }

    /// Returns whether the same call, made again through the same client, can succeed: the body has not run, and what
    /// prevented it can pass. The value is `true` for `Busy`, `Unreachable` and `NotReplicated`.
    ///
    /// After [`Lost`](Self::Lost), a repetition can do the body's work a second time, so the value is `false`.
    ///
    /// ```
    /// use lock_core::error::LockError;
    ///
    /// assert!(!LockError::ShutDown.is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. } | Self::Unreachable { .. } | Self::NotReplicated { .. }
        )
    }

    /// Returns how long to wait before a repetition: 1 s for an error with the status 503, otherwise `None`. The header
    /// `Retry-After` of an HTTP response has this value in seconds.
    ///
    /// [`ShutDown`](Self::ShutDown) has a value too: this process refuses the call until it ends, but another instance
    /// of the service can answer the repeated request.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lock_core::error::LockError;
    ///
    /// assert_eq!(LockError::ShutDown.retry_after(), Some(Duration::from_secs(1)));
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        (self.http_status() == 503).then_some(RETRY_AFTER)
    }

    /// Converts a backend's failure into the error of a call that locks `key`.
    #[doc(hidden)]
    #[must_use]
    pub fn from_backend(error: BackendError, key: &LockKey, waited: Duration) -> Self {
        match error {
            BackendError::Unreachable(detail) => Self::Unreachable {
                key: key.clone(),
                waited,
                detail: detail.into(),
            },
            BackendError::Refused(detail) => Self::Refused {
                key: key.clone(),
                detail: detail.into(),
            },
            BackendError::WrongLayout => Self::WrongLayout { key: key.clone() },
            BackendError::ShutDown => Self::ShutDown,
        }
    }
}

/// The codes with which a server refuses a client, or says that it cannot carry out commands now. The `redis` crate writes
/// some of them in its own way.
const REFUSALS: [&str; 9] = [
    "NOAUTH",
    "WRONGPASS",
    "READONLY",
    "ReadOnly",
    "LOADING",
    "BusyLoading",
    "MISCONF",
    "MASTERDOWN",
    "MasterDown",
];

/// Returns whether the last failure before an [`Unreachable`](LockError::Unreachable) was an answer of the server.
fn is_refusal(detail: &str) -> bool {
    REFUSALS.iter().any(|code| detail.contains(code))
}

/// Writes one sentence that can be shown to a user. The [`source`](Error::source) of the error is the advice for the
/// developer, or the server's message.
impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { key, waited, .. } => {
                write!(f, "lock `{key}` is busy: not granted within {waited:.1?}")
            }
            Self::Lost { key, token, reason } => {
                write!(
                    f,
                    "lock `{key}` (token {token}) was lost before the call was done: "
                )?;
                f.write_str(match reason {
                    LossReason::Expired => {
                        "the lease ended before the lock was released or renewed"
                    }
                    LossReason::NotHeld => "the server no longer holds it under this token",
                })
            }
            Self::Unreachable {
                key,
                waited,
                detail,
            } => {
                let why = if is_refusal(detail) {
                    "the lock server refused this client, or is not ready"
                } else {
                    "the lock server did not answer"
                };
                write!(
                    f,
                    "lock `{key}` was not acquired within {waited:.1?}: {why}"
                )
            }
            Self::Refused { key, .. } => write!(f, "the lock server refused lock `{key}`"),
            Self::WrongLayout { key } => write!(
                f,
                "the lock server stores something else under the name of lock `{key}`: a lock in another layout, or other data"
            ),
            Self::NotReplicated {
                key,
                wanted,
                acknowledged,
            } => write!(
                f,
                "lock `{key}` was not acquired: {acknowledged} of {wanted} replicas acknowledged the grant in time"
            ),
            Self::InvalidKey(error) => write!(f, "invalid lock key: {error}"),
            Self::InvalidOptions(error) => write!(f, "invalid lock options: {error}"),
            Self::NoClient => f.write_str("no lock client is scoped or installed"),
            Self::ShutDown => f.write_str("the lock client was shut down: no lock can be acquired"),
        }
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::Busy {
                with: BusyWith::AnotherProcess,
                held_by: Some(held_by),
                ..
            } => &**held_by,
            Self::Busy { with, .. } => match with {
                BusyWith::AnotherProcess => &LATER,
                BusyWith::ThisProcess => &Advice(
                    "another call or guard of this process holds the lock: try again later or raise `wait`. Code beside a guard enters the guard's lock only through `guard.run(..)`, and a spawned task enters the lock of the call that spawned it only with `.in_current_hold()`",
                ),
                BusyWith::Sibling => &Advice(
                    "a sibling, which is nested in the same enclosing call, holds the lock, and siblings take turns: a task spawned inside the sibling waits for the sibling, unless the task was spawned with `.in_current_hold()`",
                ),
                BusyWith::OutOfOrder => &Advice(
                    "the call tried to take this lock only once, because the lock's name sorts before the name of a lock that an enclosing call holds, and waiting out of order could deadlock: let the enclosing call take this lock too, among its `keys`",
                ),
            },
            Self::Lost { .. } => &Advice(
                "the engine drops a body that has begun, but code beside a guard or under `on_lost = continue` runs on: check what was done, and let the guarded resource refuse this token",
            ),
            Self::Unreachable { detail, .. } | Self::Refused { detail, .. } => detail,
            Self::WrongLayout { .. } => &Advice(
                "use the same layout in all clients that share the lock (`LockClientBuilder::layout` sets Redisson's layout), or choose another key or namespace",
            ),
            Self::NotReplicated { .. } => &Advice(
                "check that the server's replicas are connected (`INFO replication`), and how far the replicas lag behind",
            ),
            // The text of the outer error already contains the text of the inner error, so the source is the inner
            // error's advice.
            Self::InvalidKey(error) => return error.source(),
            Self::InvalidOptions(error) => return error.source(),
            Self::NoClient => &Advice(
                "call `LockClient::connect(url).await?.install()?` at start-up, scope a client with `client.scope(..)`, or name a client with `client = ..`",
            ),
            Self::ShutDown => return None,
        })
    }
}

impl From<KeyError> for LockError {
    fn from(error: KeyError) -> Self {
        Self::InvalidKey(error)
    }
}

impl From<OptionsError> for LockError {
    fn from(error: OptionsError) -> Self {
        Self::InvalidOptions(error)
    }
}

/// An error type into which a [`LockError`] can be converted: any type that implements `From<LockError>`.
#[diagnostic::on_unimplemented(
    message = "#[distributed_lock] the error type `{Self}` cannot carry a lock's failure",
    label = "this error type needs `From<LockError>`",
    note = "write `impl From<lock_runtime::LockError> for {Self}`, with thiserror a variant `#[error(transparent)] Lock(#[from] lock_runtime::LockError)`",
    note = "for an error type of another crate, such as `std::io::Error`, write `map_err = …` in the attribute, with a function from `LockError` to `{Self}`"
)]
pub trait FromLockError {
    /// Converts a [`LockError`] into this type.
    fn from_lock_error(error: LockError) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<LockError>> FromLockError for E {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

/// The return type of a guarded function: a `Result` whose error type implements [`FromLockError`].
#[diagnostic::on_unimplemented(
    message = "#[distributed_lock] a guarded function returns a `Result` that can carry a lock's failure, not `{Self}`",
    label = "not a `Result<T, E>` with `E: From<LockError>`",
    note = "return `Result<{Self}, E>` where `E` implements `From<lock_runtime::LockError>`, or `Result<{Self}, lock_runtime::LockError>`"
)]
pub trait LockResult {
    /// Returns the result of a call that did not get its lock, or lost it.
    fn from_lock_error(error: LockError) -> Self;
}

impl<T, E: FromLockError> LockResult for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(E::from_lock_error(error))
    }
}

/// The return type of a function with `on_busy = skip`: a `Result` whose `Ok` value is an `Option`.
#[diagnostic::on_unimplemented(
    message = "#[distributed_lock] `on_busy = skip` returns `Ok(None)` if the lock is busy, but `{Self}` cannot contain `Ok(None)`",
    label = "not a `Result<Option<T>, E>`",
    note = "return `Result<Option<T>, E>` and `Ok(Some(value))`, or write `on_busy = error`"
)]
pub trait SkipResult {
    /// Returns the result of a call that is skipped because its lock is busy.
    fn skipped() -> Self;
}

impl<T, E> SkipResult for Result<Option<T>, E> {
    fn skipped() -> Self {
        Ok(None)
    }
}

/// The return type of a function with `map_err`: a `Result` whose error type is the one that `map_err` returns.
#[diagnostic::on_unimplemented(
    message = "#[distributed_lock] a guarded function returns a `Result` that can carry a lock's failure, not `{Self}`",
    label = "not a `Result<T, E>` with the error type that `map_err` returns",
    note = "return `Result<{Self}, E>` where `map_err` is a function from `LockError` to `E`"
)]
pub trait MapErrResult<E> {
    /// Returns the result of a call that did not get its lock, or lost it.
    fn from_mapped(error: E) -> Self;
}

impl<T, E> MapErrResult<E> for Result<T, E> {
    fn from_mapped(error: E) -> Self {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Caller, owner::OwnerId};

    #[test]
    fn each_error_names_its_key_and_says_what_to_do() {
        let key = || LockKey::new("order:7").expect("a key");
        let waited = Duration::from_secs(3);
        let busy = |with| LockError::Busy {
            key: key(),
            waited,
            with,
            held_by: None,
        };
        let lost = |reason| LockError::Lost {
            key: key(),
            token: FencingToken::new(42),
            reason,
        };
        for (error, says, advises) in [
            (
                busy(BusyWith::AnotherProcess),
                "within 3.0s",
                "raise `wait`",
            ),
            (
                busy(BusyWith::ThisProcess),
                "is busy",
                "only through `guard.run(..)`",
            ),
            (
                busy(BusyWith::ThisProcess),
                "is busy",
                "only with `.in_current_hold()`",
            ),
            (busy(BusyWith::Sibling), "is busy", "siblings take turns"),
            (busy(BusyWith::OutOfOrder), "is busy", "among its `keys`"),
            (
                lost(LossReason::Expired),
                "(token 42) was lost",
                "code beside a guard or under `on_lost = continue` runs on: check what was done",
            ),
            (
                lost(LossReason::NotHeld),
                "no longer holds it",
                "refuse this token",
            ),
            (
                LockError::Unreachable {
                    key: key(),
                    waited,
                    detail: "no route".into(),
                },
                "did not answer",
                "no route",
            ),
            (
                LockError::Unreachable {
                    key: key(),
                    waited,
                    detail: "NOAUTH: Authentication required".into(),
                },
                "refused this client",
                "NOAUTH",
            ),
            (
                LockError::Refused {
                    key: key(),
                    detail: "no right".into(),
                },
                "refused",
                "no right",
            ),
            (
                LockError::NotReplicated {
                    key: key(),
                    wanted: 2,
                    acknowledged: 1,
                },
                "1 of 2 replicas",
                "INFO replication",
            ),
            (
                LockError::WrongLayout { key: key() },
                "something else",
                "another key or namespace",
            ),
        ] {
            let text = error.to_string();
            assert!(text.contains("`order:7`") && text.contains(says), "{text}");
            assert!(!text.contains(advises) && !text.contains(';'), "{text}");
            let advice = error
                .source()
                .expect("there is something to do")
                .to_string();
            assert!(advice.contains(advises), "{advice}");
        }
    }

    #[test]
    fn each_error_has_a_status_and_says_whether_to_repeat_the_call() {
        let key = || LockKey::new("order:7").expect("a key");
        let waited = Duration::from_secs(3);
        let rows = [
            (
                LockError::Busy {
                    key: key(),
                    waited,
                    with: BusyWith::AnotherProcess,
                    held_by: None,
                },
                503,
                true,
                true,
            ),
            (
                LockError::Lost {
                    key: key(),
                    token: FencingToken::new(42),
                    reason: LossReason::Expired,
                },
                500,
                false,
                false,
            ),
            (
                LockError::Unreachable {
                    key: key(),
                    waited,
                    detail: "no route".into(),
                },
                503,
                true,
                true,
            ),
            (
                LockError::Refused {
                    key: key(),
                    detail: "no right".into(),
                },
                500,
                false,
                false,
            ),
            (LockError::WrongLayout { key: key() }, 500, false, false),
            (
                LockError::NotReplicated {
                    key: key(),
                    wanted: 2,
                    acknowledged: 1,
                },
                503,
                true,
                true,
            ),
            (LockError::from(KeyError::Empty), 400, false, false),
            (
                LockError::from(OptionsError::WaitTooLong),
                500,
                false,
                false,
            ),
            (LockError::NoClient, 500, false, false),
            (LockError::ShutDown, 503, false, true),
        ];
        let variants: std::collections::HashSet<_> = rows
            .iter()
            .map(|(error, ..)| std::mem::discriminant(error))
            .collect();
        assert_eq!(variants.len(), 10, "each variant has a row");
        for (error, status, is_retryable, has_pause) in rows {
            assert_eq!(error.http_status(), status, "{error:?}");
            assert_eq!(error.is_retryable(), is_retryable, "{error:?}");
            assert_eq!(error.retry_after().is_some(), has_pause, "{error:?}");
        }
    }

    #[test]
    fn a_busy_lock_is_told_with_its_holder() {
        let holder = |caller| Holder {
            held_for: Some(Duration::from_secs(12)),
            caller,
            ..Holder::new(OwnerId::from_u128(7))
        };
        let shop = Caller {
            application: "shop".into(),
            host: "web-3".into(),
            pid: 4711,
            function: "shop::pay".into(),
        };
        let busy = |caller, ahead| LockError::Busy {
            key: LockKey::new("order:7").expect("a key"),
            waited: Duration::from_secs(3),
            with: BusyWith::AnotherProcess,
            held_by: Some(Box::new(HeldBy::new(holder(caller), ahead))),
        };
        let error = busy(Some(shop.clone()), Some(3));
        assert!(
            !error.to_string().contains("web-3"),
            "the host is not shown to users"
        );
        assert_eq!(
            crate::advice::advised(&error),
            "lock `order:7` is busy: not granted within 3.0s: held by shop@web-3 (pid 4711) `shop::pay` for 12.0s, 3 \
             waiters are before this call: try again later or raise `wait`"
        );
        let source = |error: LockError| error.source().expect("there is one").to_string();
        assert!(
            source(busy(Some(shop.clone()), Some(1))).ends_with("1 waiter is before this call")
        );
        let nameless = Caller {
            function: String::new(),
            ..shop
        };
        let told = source(busy(Some(nameless), None));
        assert_eq!(told, "held by shop@web-3 (pid 4711) for 12.0s");
        let told = source(busy(None, Some(0)));
        assert_eq!(
            told,
            format!("held by owner {} for 12.0s", OwnerId::from_u128(7))
        );
    }

    #[test]
    fn an_error_in_an_error_is_told_with_its_advice() {
        let key = LockError::from(KeyError::Empty);
        let options = LockError::from(OptionsError::WaitTooLong);
        for (error, cause) in [
            (&key, &KeyError::Empty as &dyn Error),
            (&options, &OptionsError::WaitTooLong),
        ] {
            assert!(error.to_string().ends_with(&cause.to_string()), "{error}");
            let advice = |error: &dyn Error| error.source().expect("there is one").to_string();
            assert_eq!(advice(error), advice(cause));
        }
        assert!(LockError::ShutDown.to_string().contains("shut down"));
    }

    #[test]
    fn a_backends_failure_is_told_with_its_key() {
        let key = LockKey::new("order:7").expect("a key");
        let told = |error| LockError::from_backend(error, &key, Duration::from_secs(1));
        let detail = "no route".to_owned();
        assert_eq!(
            told(BackendError::Unreachable(detail.clone())),
            LockError::Unreachable {
                key: key.clone(),
                waited: Duration::from_secs(1),
                detail: detail.clone().into()
            }
        );
        assert_eq!(
            told(BackendError::Refused(detail.clone())),
            LockError::Refused {
                key: key.clone(),
                detail: detail.into()
            }
        );
        let wrong = told(BackendError::WrongLayout);
        assert_eq!(wrong, LockError::WrongLayout { key: key.clone() });
        assert_eq!(told(BackendError::ShutDown), LockError::ShutDown);
    }
}
