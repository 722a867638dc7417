//! A `tower` layer that handles each request under a lock, whose key is a function of the request.
//!
//! The layer works with each service whose error can become a `BoxError`. In axum, put `HandleErrorLayer` before it, to
//! turn the error into a response. Escape text of the request in the key with `lock_runtime::escape`. The lock is released
//! when the response is ready, before the body of the response is streamed. If the client goes away, the request is
//! dropped, and its lock is released, so write in one transaction all that belongs together.

use std::pin::Pin;
use std::task::{Context, Poll};

use lock_runtime::LockClient;
use tower::{BoxError, Layer, Service, ServiceExt};

/// Handles each request under the lock that a function names.
#[derive(Debug, Clone)]
pub struct LockLayer<K>(LockClient, K);

impl<K> LockLayer<K> {
    /// Creates a layer from a client and a function that returns the key of a request.
    pub fn new(locks: LockClient, key: K) -> Self {
        Self(locks, key)
    }
}

impl<S, K: Clone> Layer<S> for LockLayer<K> {
    type Service = Locked<S, K>;

    fn layer(&self, service: S) -> Locked<S, K> {
        Locked(service, self.clone())
    }
}

/// The service that [`LockLayer`] makes.
#[derive(Debug, Clone)]
pub struct Locked<S, K>(S, LockLayer<K>);

impl<S, K, R> Service<R> for Locked<S, K>
where
    S: Service<R, Response: Send, Error: Into<BoxError> + Send, Future: Send>,
    S: Clone + Send + 'static,
    K: Fn(&R) -> String,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    // The inner service need not be ready before the request has its lock: `oneshot` waits for it then.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let Self(service, LockLayer(locks, key)) = self;
        let handled = locks
            .lock(key(&request))
            .run(service.clone().oneshot(request));
        Box::pin(async move { handled.await?.map_err(Into::into) })
    }
}
