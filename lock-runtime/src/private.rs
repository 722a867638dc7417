//! All that an expansion of the attribute may name. No part of it is public API.

/// The contract with the `lock-macros` of this version.
pub mod v1 {
    use std::{
        fmt,
        future::Future,
        iter,
        ops::Deref,
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
        acquire::ExitPolicy,
        acquire::Locks,
        acquire::entry::Entered,
        acquire::reentry::Frame,
        call::{BodySlot, GuardedCall},
        client::LockClient,
        guard::{Hold, Holds},
        options::Settings,
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

    /// The keys of a call of which some stand for the items of a list.
    #[derive(Debug, Default)]
    #[must_use]
    pub struct Keys(Vec<Result<LockKey, KeyError>>);

    impl Keys {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn one(mut self, key: Result<LockKey, KeyError>) -> Self {
            self.0.push(key);
            self
        }

        pub fn each<I: IntoIterator>(
            mut self,
            items: I,
            key: impl FnMut(I::Item) -> Result<LockKey, KeyError>,
        ) -> Self {
            self.0.extend(items.into_iter().map(key));
            self
        }
    }

    impl From<Keys> for Vec<Result<LockKey, KeyError>> {
        fn from(Keys(keys): Keys) -> Self {
            keys
        }
    }

    /// A list in a key, whose items are borrowed: of `&&&&Items`, method resolution takes the first way to iterate that
    /// the list's type has, behind up to two pointers. The last way is there for the error message.
    #[derive(Debug)]
    pub struct Items<'a, T: ?Sized>(pub &'a T);

    /// A type whose reference can be iterated over.
    #[diagnostic::on_unimplemented(
        message = "#[distributed_lock] `{Self}` is not a list",
        label = "`..` stands for each item of this value, and a reference to it cannot be iterated over",
        note = "a list is a slice, an array, a `Vec`, or anything of which a reference is `IntoIterator`; write the placeholder without `..` for one value"
    )]
    pub trait KeyList {}

    #[diagnostic::do_not_recommend]
    impl<T: ?Sized> KeyList for T where for<'a> &'a T: IntoIterator {}

    pub trait ItemsOf {
        type Items;
        fn __key_items(&self) -> Self::Items;
    }

    impl<'a, T: ?Sized> ItemsOf for &&&Items<'a, T>
    where
        &'a T: IntoIterator,
    {
        type Items = &'a T;

        fn __key_items(&self) -> &'a T {
            self.0
        }
    }

    pub trait ItemsBehind {
        type Items;
        fn __key_items(&self) -> Self::Items;
    }

    impl<'a, T: Deref + ?Sized> ItemsBehind for &&Items<'a, T>
    where
        &'a T::Target: IntoIterator,
    {
        type Items = &'a T::Target;

        fn __key_items(&self) -> Self::Items {
            self.0
        }
    }

    pub trait ItemsBehindTwo {
        type Items;
        fn __key_items(&self) -> Self::Items;
    }

    impl<'a, T: Deref<Target: Deref> + ?Sized> ItemsBehindTwo for &Items<'a, T>
    where
        &'a <T::Target as Deref>::Target: IntoIterator,
    {
        type Items = &'a <T::Target as Deref>::Target;

        fn __key_items(&self) -> Self::Items {
            self.0
        }
    }

    impl<T: ?Sized> Items<'_, T> {
        pub fn __key_items(&self) -> iter::Empty<&'static str>
        where
            T: KeyList,
        {
            iter::empty()
        }
    }

    /// An annotated call: which locks, on which terms.
    #[derive(Debug)]
    #[must_use]
    pub struct Call {
        keys: Locked,
        client: Option<LockClient>,
        namespace: Option<&'static str>,
        options: LockOptions,
    }

    #[derive(Debug)]
    enum Locked {
        One(Result<LockKey, KeyError>),
        Several(Vec<Result<LockKey, KeyError>>),
    }

    impl Call {
        pub fn new(key: Result<LockKey, KeyError>) -> Self {
            Self::of(Locked::One(key))
        }

        pub fn several(keys: impl Into<Vec<Result<LockKey, KeyError>>>) -> Self {
            Self::of(Locked::Several(keys.into()))
        }

        fn of(keys: Locked) -> Self {
            Self {
                keys,
                client: None,
                namespace: None,
                options: LockOptions::default(),
            }
        }

        // By hand, because rustc shows the user where an option's type is declared.

        pub fn wait(mut self, wait: Duration) -> Self {
            self.options.wait = Some(wait);
            self
        }

        pub fn lease(mut self, lease: Duration) -> Self {
            self.options.lease = Some(lease);
            self
        }

        pub fn renew(mut self, renew: bool) -> Self {
            self.options.renew = Some(renew);
            self
        }

        pub fn max_hold(mut self, max_hold: Duration) -> Self {
            self.options.max_hold = Some(max_hold);
            self
        }

        pub fn hold_at_least(mut self, hold_at_least: Duration) -> Self {
            self.options.hold_at_least = hold_at_least;
            self
        }

        pub fn on_lost(mut self, on_lost: OnLost) -> Self {
            self.options.on_lost = on_lost;
            self
        }

        pub fn strategy(mut self, strategy: Strategy) -> Self {
            self.options.strategy = Some(strategy);
            self
        }

        pub fn release(mut self, release: Release) -> Self {
            self.options.release = Some(release);
            self
        }

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
                body: BodySlot::new(body),
                passage: GuardedCall::through(self.locks()),
                failed: Some(failed),
            }
        }

        /// Enters the locks, for a body that is built only then.
        pub async fn enter(self) -> Result<Inside, LockError> {
            let locks = self.locks()?;
            let exit = locks.exit_policy();
            let (entered, frame) = locks.enter().await?;
            Ok(Inside {
                entered,
                frame,
                exit,
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
                client: client.handle().clone(),
                namespace: namespace.map(Into::into),
                options,
            };
            Ok(match keys {
                Locked::One(key) => Locks::One(settings.one(key)?),
                Locked::Several(keys) => Locks::Several(settings.several(keys)?),
            })
        }
    }

    /// A call that has entered, and has no body yet. Dropped, it leaves.
    #[derive(Debug)]
    #[must_use]
    pub struct Inside {
        entered: Entered,
        frame: Arc<Frame>,
        exit: ExitPolicy,
    }

    impl Inside {
        /// Runs the body; `failed` makes the function's error of a loss.
        pub fn run<F, M>(self, body: F, failed: M) -> Called<F, M>
        where
            F: Future,
            M: FnOnce(LockError) -> F::Output,
        {
            Called {
                body: BodySlot::new(body),
                passage: GuardedCall::from_inside(self.entered, self.frame, self.exit),
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
            body: BodySlot<F>,
            passage: GuardedCall,
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
