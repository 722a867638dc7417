//! All that an expansion of the attribute may name. No part of it is public API.

/// The contract with the `lock-macros` of this version.
pub mod v1 {
    use std::{
        fmt,
        future::Future,
        pin::Pin,
        task::{Context, Poll, ready},
        time::Duration,
    };

    use lock_core::{
        error::{LockError, LockResult},
        key::{KeyBuilder, KeyError, LockKey},
        options::{LockOptions, OnLost},
    };
    use pin_project_lite::pin_project;

    use crate::{
        client::LockClient,
        guard::{Hold, Run},
        lock::Lock,
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

    /// An annotated call: which lock, on which terms.
    #[derive(Debug)]
    #[must_use]
    pub struct Call {
        key: Result<LockKey, KeyError>,
        client: Option<LockClient>,
        namespace: Option<&'static str>,
        options: LockOptions,
    }

    impl Call {
        pub fn new(key: Result<LockKey, KeyError>) -> Self {
            Self {
                key,
                client: None,
                namespace: None,
                options: LockOptions::default(),
            }
        }

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

        pub fn on_lost(mut self, on_lost: OnLost) -> Self {
            self.options.on_lost = on_lost;
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

        /// Runs the body under the lock.
        pub fn run<F>(self, body: F) -> Called<F>
        where
            F: Future,
            F::Output: LockResult,
        {
            let wanted = self
                .client
                .map_or_else(LockClient::current, Ok)
                .and_then(|client| {
                    Lock::called(client, self.key, self.namespace, self.options).wanted()
                });
            Called {
                run: Run::new(wanted, body),
                failed: F::Output::from_lock_error,
            }
        }
    }

    pin_project! {
        /// The future of an annotated call: a lock's failure becomes the function's error.
        #[must_use = "futures do nothing unless they are awaited"]
        pub struct Called<F: Future> {
            #[pin]
            run: Run<F>,
            // A function, not a bound of the future: a missing `From<LockError>` is one error, at the call.
            failed: fn(LockError) -> F::Output,
        }
    }

    impl<F: Future> fmt::Debug for Called<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Called").finish_non_exhaustive()
        }
    }

    impl<F: Future> Future for Called<F> {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            let failed = self.failed;
            let result = ready!(self.project().run.poll(cx));
            Poll::Ready(result.unwrap_or_else(failed))
        }
    }
}
