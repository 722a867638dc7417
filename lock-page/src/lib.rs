#![doc = include_str!("../README.md")]

mod access;
mod html;
mod json;
mod poller;
mod routes;
mod state;

use std::{fmt, sync::Arc};

use axum::{Router, http::HeaderMap};
use lock_runtime::LockClient;
use tokio_util::sync::CancellationToken;

/// Returns the name of the visitor who sent a request.
type Identify = Arc<dyn Fn(&HeaderMap) -> Option<String> + Send + Sync>;

/// A page that shows the locks of a client's namespace.
///
/// By default, the page shows locks to everybody who can reach the router, and nobody can release a lock through it.
///
/// Each address of the page also answers with JSON (`Accept: application/json`, or `?format=json`). The page is a plain
/// table with links and forms in a browser without scripts. The page loads nothing from other hosts.
///
/// ```
/// use axum::Router;
/// use lock_page::LockPage;
/// use lock_runtime::LockClient;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::connect("memory:").await?;
/// let page = LockPage::new(client)
///     .token("a token of your own")
///     .allow_release()
///     .identify(|headers| Some(headers.get("x-user")?.to_str().ok()?.to_owned()));
/// let app: Router = Router::new().nest("/locks", page.into_router());
/// # let _ = app;
/// # Ok(())
/// # }
/// ```
#[must_use = "the page is served by the router that `into_router` returns"]
pub struct LockPage {
    client: LockClient,
    allows_release: bool,
    token: Option<String>,
    secret: Option<String>,
    identify: Option<Identify>,
    closing: CancellationToken,
}

impl fmt::Debug for LockPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockPage")
            .field("allows_release", &self.allows_release)
            .field("needs_token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl LockPage {
    /// Creates a page that shows the locks of this client's namespace. By default, everybody who can reach the page is
    /// allowed to see it.
    ///
    /// A client with [`AccessMode::ReadOnly`](lock_runtime::AccessMode::ReadOnly) suffices for a page without
    /// [`allow_release`](Self::allow_release).
    pub fn new(client: LockClient) -> Self {
        Self {
            client,
            allows_release: false,
            token: None,
            secret: None,
            identify: None,
            closing: CancellationToken::new(),
        }
    }

    /// Lets visitors release locks by force, as [`Lock::force_release`](lock_runtime::Lock::force_release) does.
    ///
    /// The form asks the visitor to type the key. The page refuses forms that another site sends.
    pub fn allow_release(mut self) -> Self {
        self.allows_release = true;
        self
    }

    /// Refuses visitors without this token.
    ///
    /// A visitor adds `?token=TOKEN` to the address once. The page then sets a cookie, so later addresses do not need
    /// the token. A program sends the header `Authorization: Bearer TOKEN`. With an empty token, everybody who adds
    /// `?token=` to the address is admitted.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the secret that signs cookies and forms. If several processes serve the page at one address, all of them
    /// need the same secret. By default, the secret is the token; without a token, each page has a random secret.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Sets the function that names the visitor who releases a lock. The function reads the name from the headers of
    /// the visitor's request, for instance from a header that a proxy sets. The name appears in the log and in the
    /// history. If `identify` returns `None`, the form asks for a name.
    pub fn identify(
        mut self,
        identify: impl Fn(&HeaderMap) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.identify = Some(Arc::new(identify));
        self
    }

    /// Ends the streams of live changes when `closing` is cancelled. A graceful shutdown of `axum::serve` waits until
    /// all streams have ended.
    pub fn closing(mut self, closing: CancellationToken) -> Self {
        self.closing = closing;
        self
    }

    /// Returns the router that serves the page. The router can be nested under any path, or served alone.
    ///
    /// A request for a page starts a task in the tokio runtime that serves the request, unless this task runs already.
    /// The task reads the locks from the lock server on behalf of all viewers, and ends 15 s after the last viewer has
    /// left.
    pub fn into_router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        routes::router(routes::Site {
            source: html::Source {
                server: self.client.server().to_owned(),
                namespace: self.client.namespace(),
            },
            poller: Arc::new(poller::Poller::new(self.client)),
            access: access::Access::new(self.token, self.secret),
            allows_release: self.allows_release,
            identify: self.identify,
            closing: self.closing,
        })
    }
}
