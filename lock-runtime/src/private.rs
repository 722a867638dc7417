//! Everything that an expansion of the attribute may name. Not public API.

/// The contract with the `lock-macros` of the same version.
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

    /// Starts a key.
    #[must_use]
    pub fn key() -> KeyBuilder {
        KeyBuilder::new()
    }

    /// Returns the hold of the current body.
    ///
    /// # Panics
    /// Outside a guarded body. Expansions call it only inside.
    #[must_use]
    pub fn hold() -> Hold {
        Hold::current().expect("an annotated body runs inside its hold")
    }

    /// Returns the holds of the current body, for a call with several keys.
    ///
    /// # Panics
    /// Outside a guarded body. Expansions call it only inside.
    #[must_use]
    pub fn holds() -> Holds {
        Holds::current().expect("an annotated body runs inside its holds")
    }

    /// Checks a constant `wait` when the crate that uses it is compiled.
    ///
    /// # Panics
    /// If the value is too long. The functions below check the limits of the other options in the same way.
    #[must_use]
    #[track_caller]
    pub const fn wait(wait: Duration) -> Duration {
        assert!(
            wait.as_nanos() <= MAX_WAIT.as_nanos(),
            "#[distributed_lock] a wait is at most 24 hours: write \"24h\" or less"
        );
        wait
    }

    /// Checks a constant `lease`.
    #[must_use]
    #[track_caller]
    pub const fn lease(lease: Duration) -> Duration {
        assert!(
            lease.as_nanos() >= MIN_LEASE.as_nanos() && lease.as_nanos() <= MAX_LEASE.as_nanos(),
            "#[distributed_lock] a lease is at least 10 ms and at most 24 hours: choose another one"
        );
        lease
    }

    /// Accepts a constant `max_hold` of any length.
    #[must_use]
    pub const fn max_hold(max_hold: Duration) -> Duration {
        max_hold
    }

    /// Checks a constant `hold_at_least`.
    #[must_use]
    #[track_caller]
    pub const fn hold_at_least(hold_at_least: Duration) -> Duration {
        assert!(
            hold_at_least.as_nanos() <= MAX_LEASE.as_nanos(),
            "#[distributed_lock] `hold_at_least` keeps the rest of a lease, which is at most 24 hours: choose a shorter one"
        );
        hold_at_least
    }

    /// Turns a busy lock into `Ok(None)`, and any other failure into the function's error.
    pub fn skip<R>(
        skipped: fn() -> R,
        failed: impl FnOnce(LockError) -> R,
    ) -> impl FnOnce(LockError) -> R {
        move |error| match error {
            LockError::Busy { .. } => skipped(),
            error => failed(error),
        }
    }

    /// Whether a `fallback` takes over after this error.
    #[must_use]
    pub fn is_busy(error: &LockError) -> bool {
        matches!(error, LockError::Busy { .. })
    }

    /// The keys of a call in which some keys are lists.
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

    /// Borrows the items of a list in a key. On `&&&&Items`, method resolution picks the first trait that applies: the
    /// list itself, then the list behind one pointer, then behind two. The inherent method only exists for its error
    /// message.
    #[derive(Debug)]
    pub struct Items<'a, T: ?Sized>(pub &'a T);

    /// A type whose reference is `IntoIterator`.
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

    /// An annotated call: its keys and options.
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

        // Written out rather than generated by a macro, because rustc shows the declaration of an option's type to the
        // user.

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

        /// Runs the body under its locks. `failed` converts a lock error into the function's result.
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

        /// Enters the locks for a body that is built only afterwards.
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

    /// A call that has entered, but has no body yet. Dropping it releases its locks.
    #[derive(Debug)]
    #[must_use]
    pub struct Inside {
        entered: Entered,
        frame: Arc<Frame>,
        exit: ExitPolicy,
    }

    impl Inside {
        /// Runs the body. `failed` converts a loss into the function's result.
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
        /// The future of an annotated call. Converts a lock error into the function's result.
        #[must_use = "futures do nothing unless they are awaited"]
        pub struct Called<F: Future, M> {
            // Declared before `passage`, so that everything the body owns is dropped while the locks are still held.
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
