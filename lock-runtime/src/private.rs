//! All that an expansion of the attribute may name. No part of it is public API.

/// The contract with the `lock-macros` of this version.
pub mod v1 {
    use std::{
        fmt,
        future::Future,
        pin::Pin,
        sync::Arc,
        task::{Context, Poll, ready},
        time::Duration,
    };

    use lock_core::{
        error::LockError,
        key::{KeyBuilder, KeyError, LockKey},
        lease::{MAX_LEASE, MIN_LEASE},
        options::{LockOptions, MAX_WAIT, OnLost, Release, Strategy},
    };
    use pin_project_lite::pin_project;

    use crate::{
        client::LockClient,
        entry::Entered,
        guard::{Hold, Holds},
        locks::Locks,
        reentry::Frame,
        run::{Ends, Passage, Slot},
        settings::{Settings, option_setters},
    };

    /// Begins a key.
    #[must_use]
    pub fn key() -> KeyBuilder {
        KeyBuilder::new()
    }

    /// The hold of the body that runs right now.
    ///
    /// # Panics
    /// Outside a guarded body, where no expansion calls it.
    #[must_use]
    pub fn hold() -> Hold {
        Hold::current().expect("an annotated body runs inside its hold")
    }

    /// The holds of the body that runs right now, of a call with several keys.
    ///
    /// # Panics
    /// Outside a guarded body, where no expansion calls it.
    #[must_use]
    pub fn holds() -> Holds {
        Holds::current().expect("an annotated body runs inside its holds")
    }

    /// A constant `wait`, checked when the crate that writes it is compiled.
    ///
    /// # Panics
    /// If it is too long; so below, with the limits of each option.
    #[must_use]
    #[track_caller]
    pub const fn wait(wait: Duration) -> Duration {
        assert!(
            wait.as_nanos() <= MAX_WAIT.as_nanos(),
            "#[distributed_lock] a wait is at most 24 hours: write \"24h\" or less"
        );
        wait
    }

    /// A constant `lease`.
    #[must_use]
    #[track_caller]
    pub const fn lease(lease: Duration) -> Duration {
        assert!(
            lease.as_nanos() >= MIN_LEASE.as_nanos() && lease.as_nanos() <= MAX_LEASE.as_nanos(),
            "#[distributed_lock] a lease is at least 10 ms and at most 24 hours: choose another one"
        );
        lease
    }

    /// A constant `max_hold`, which may have any length.
    #[must_use]
    pub const fn max_hold(max_hold: Duration) -> Duration {
        max_hold
    }

    /// A constant `hold_at_least`.
    #[must_use]
    #[track_caller]
    pub const fn hold_at_least(hold_at_least: Duration) -> Duration {
        assert!(
            hold_at_least.as_nanos() <= MAX_LEASE.as_nanos(),
            "#[distributed_lock] `hold_at_least` keeps the rest of a lease, which is at most 24 hours: choose a shorter one"
        );
        hold_at_least
    }

    /// A lock that is busy is no failure: the function returns `Ok(None)`.
    pub fn skip<R>(
        skipped: fn() -> R,
        failed: impl FnOnce(LockError) -> R,
    ) -> impl FnOnce(LockError) -> R {
        move |error| match error {
            LockError::Busy { .. } => skipped(),
            error => failed(error),
        }
    }

    /// Whether a failure to enter is one that a fallback takes over.
    #[must_use]
    pub fn is_busy(error: &LockError) -> bool {
        matches!(error, LockError::Busy { .. })
    }

    /// An annotated call: which locks, on which terms.
    #[derive(Debug)]
    #[must_use]
    pub struct Call {
        keys: Keys,
        client: Option<LockClient>,
        namespace: Option<&'static str>,
        options: LockOptions,
    }

    #[derive(Debug)]
    enum Keys {
        One(Result<LockKey, KeyError>),
        Several(Vec<Result<LockKey, KeyError>>),
    }

    impl Call {
        pub fn new(key: Result<LockKey, KeyError>) -> Self {
            Self::of(Keys::One(key))
        }

        pub fn several<const N: usize>(keys: [Result<LockKey, KeyError>; N]) -> Self {
            Self::of(Keys::Several(keys.into()))
        }

        fn of(keys: Keys) -> Self {
            Self {
                keys,
                client: None,
                namespace: None,
                options: LockOptions::default(),
            }
        }

        option_setters!(options);

        pub fn client(mut self, client: &LockClient) -> Self {
            self.client = Some(client.clone());
            self
        }

        pub fn namespace(mut self, namespace: &'static str) -> Self {
            self.namespace = Some(namespace);
            self
        }

        /// Runs the body under its locks; `failed` makes the function's error of a lock's failure.
        pub fn run<F, M>(self, body: F, failed: M) -> Called<F, M>
        where
            F: Future,
            M: FnOnce(LockError) -> F::Output,
        {
            Called {
                body: Slot::new(body),
                passage: Passage::through(self.locks()),
                failed: Some(failed),
            }
        }

        /// Enters the locks, for a body that is built only then.
        pub async fn enter(self) -> Result<Inside, LockError> {
            let locks = self.locks()?;
            let ends = locks.ends();
            let (entered, frame) = locks.enter().await?;
            Ok(Inside {
                entered,
                frame,
                ends,
            })
        }

        fn locks(self) -> Result<Locks, LockError> {
            let Self {
                keys,
                client,
                namespace,
                options,
            } = self;
            let client = client.map_or_else(LockClient::current, Ok)?;
            let settings = Settings {
                client,
                namespace: namespace.map(Into::into),
                options,
            };
            Ok(match keys {
                Keys::One(key) => Locks::One(settings.one(key)?),
                Keys::Several(keys) => Locks::Several(settings.several(keys)?),
            })
        }
    }

    /// A call that has entered, and has no body yet. Dropped, it leaves.
    #[derive(Debug)]
    #[must_use]
    pub struct Inside {
        entered: Entered,
        frame: Arc<Frame>,
        ends: Ends,
    }

    impl Inside {
        /// Runs the body; `failed` makes the function's error of a loss.
        pub fn run<F, M>(self, body: F, failed: M) -> Called<F, M>
        where
            F: Future,
            M: FnOnce(LockError) -> F::Output,
        {
            Called {
                body: Slot::new(body),
                passage: Passage::from_inside(self.entered, self.frame, self.ends),
                failed: Some(failed),
            }
        }
    }

    pin_project! {
        /// The future of an annotated call: a lock's failure becomes the function's error.
        #[must_use = "futures do nothing unless they are awaited"]
        pub struct Called<F: Future, M> {
            // Before the passage: what the body owns is dropped while the locks are still held.
            #[pin]
            body: Slot<F>,
            passage: Passage,
            failed: Option<M>,
        }
    }

    impl<F: Future, M> fmt::Debug for Called<F, M> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Called").finish_non_exhaustive()
        }
    }

    impl<F, M> Future for Called<F, M>
    where
        F: Future,
        M: FnOnce(LockError) -> F::Output,
    {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            let this = self.project();
            let mut body = this.body;
            ready!(this.passage.poll(&mut body, cx));
            Poll::Ready(match this.passage.result() {
                Ok(()) => body.take_output(),
                Err(error) => {
                    let failed = this.failed.take();
                    failed.expect("a finished call is not polled again")(error)
                }
            })
        }
    }
}
