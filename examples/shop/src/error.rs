//! The reasons for which a request fails, and the HTTP answer for each reason.

use std::{error::Error, fmt};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use lock_runtime::LockError;
use serde_json::json;

/// The reason why the shop refused a request, or failed to do what the request asks for.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShopError {
    /// The lock was not acquired, or it was lost while the body ran.
    Lock(LockError),
    /// The database refused a write, because a later holder of the lock has already written.
    Overtaken,
    /// The shop does not sell this item.
    UnknownItem,
    /// No unit of the item is left.
    SoldOut,
    /// The database failed.
    Database(sqlx::Error),
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        let (status, word) = match &self {
            Self::Lock(error) => {
                let status = StatusCode::from_u16(error.http_status());
                (status.expect("a status of HTTP"), word(error))
            }
            Self::Overtaken => (StatusCode::CONFLICT, "overtaken"),
            Self::UnknownItem => (StatusCode::NOT_FOUND, "unknown_item"),
            Self::SoldOut => (StatusCode::CONFLICT, "sold_out"),
            Self::Database(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        if status.is_server_error() {
            let source = self.source().map(tracing::field::display);
            tracing::warn!(error = %self, source, "request failed");
        }
        let problem = json!({ "error": word, "message": self.to_string() });
        let mut response = (status, Json(problem)).into_response();
        // An answer with the status 503 means that nothing was changed, so the client can repeat the request.
        if let Self::Lock(error) = &self
            && let Some(pause) = error.retry_after()
        {
            let seconds = HeaderValue::from(pause.as_secs());
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}

/// Returns the word that names an error in the answer.
fn word(error: &LockError) -> &'static str {
    match error {
        LockError::Busy { .. } => "busy",
        LockError::Unreachable { .. } | LockError::NotReplicated { .. } => "locks_unreachable",
        LockError::ShutDown => "shutting_down",
        LockError::Lost { .. } => "lost",
        LockError::InvalidKey(_) => "invalid_item",
        _ => "failed",
    }
}

impl fmt::Display for ShopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error @ LockError::Lost { .. }) => {
                write!(
                    f,
                    "{error}; the order may have been placed: check before you repeat it"
                )
            }
            Self::Lock(error) => error.fmt(f),
            Self::Overtaken => {
                f.write_str("another buyer has changed the stock meanwhile, so nothing was sold")
            }
            Self::UnknownItem => f.write_str("the shop does not sell this item"),
            Self::SoldOut => f.write_str("the item is sold out"),
            // The database's error text can contain SQL statements and addresses, so it appears only in the log.
            Self::Database(_) => f.write_str("the database failed"),
        }
    }
}

impl Error for ShopError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lock(error) => error.source(),
            Self::Database(error) => Some(error),
            Self::Overtaken | Self::UnknownItem | Self::SoldOut => None,
        }
    }
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for ShopError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}
