//! A web page that shows the locks of `lock-runtime`, as an axum router.
//!
//! ```no_run
//! use axum::Router;
//! use lock_page::LockPage;
//! use lock_runtime::LockClient;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::connect("redis://127.0.0.1/").await?;
//! let app: Router = Router::new().nest("/locks", LockPage::new(client).into_router());
//! # Ok(())
//! # }
//! ```

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

/// Returns the name of the person who sent a request.
type Identify = Arc<dyn Fn(&HeaderMap) -> Option<String> + Send + Sync>;

/// A page that shows the locks of a client's namespace.
///
/// The page shows locks, and changes none, unless [`allow_release`](Self::allow_release) is called.
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
            .finish_non_exhaustive()
    }
}

impl LockPage {
    /// Creates a page that only shows locks, to every visitor.
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

    /// Lets visitors release locks by force.
    pub fn allow_release(mut self) -> Self {
        self.allows_release = true;
        self
    }

    /// Refuses visitors without this token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the secret that signs the page's cookies and forms.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Names the visitor who releases a lock, from the headers of the request.
    pub fn identify(
        mut self,
        identify: impl Fn(&HeaderMap) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.identify = Some(Arc::new(identify));
        self
    }

    /// Ends the streams of live changes when this token is cancelled.
    pub fn closing(mut self, closing: CancellationToken) -> Self {
        self.closing = closing;
        self
    }

    /// Returns the router that serves the page, for `Router::nest` or for `axum::serve`.
    pub fn into_router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        routes::router(routes::Site {
            poller: Arc::new(poller::Poller::new(self.client)),
            access: access::Access::new(self.token, self.secret),
            allows_release: self.allows_release,
            identify: self.identify,
            closing: self.closing,
        })
    }
}
