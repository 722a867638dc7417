//! An idempotent `POST`: a client that repeats a request with the same `Idempotency-Key` gets the first answer again.
//!
//! The answer is stored in the transaction that does the work, so either both exist or none. Of several equal requests,
//! one does the work under the lock, and the others wait for its answer. The primary key refuses the work of a request that
//! has lost its lock. If the work calls another service, pass the key on to it. Clients choose the keys, so a public
//! service puts the ID of the user before the key.

use axum::http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, extract::State};
use lock_runtime::{LockClient, LockError, distributed_lock};
use sqlx::SqlitePool;

/// The tables of the payments and of the answers.
pub const TABLES: &str = "CREATE TABLE payments (id INTEGER PRIMARY KEY, request TEXT);
    CREATE TABLE answers (key TEXT PRIMARY KEY, request TEXT, answer TEXT)";
const FIND: &str = "SELECT request, answer FROM answers WHERE key = $1";
const PAY: &str = "INSERT INTO payments (request) VALUES ($1) RETURNING id";
const STORE: &str = "INSERT INTO answers (key, request, answer) VALUES ($1, $2, $3)";

/// The handler of `POST /payments`. A request without a key gets the status 400, because a lock needs a key.
pub async fn post(
    State((locks, database)): State<(LockClient, SqlitePool)>,
    headers: HeaderMap,
    request: String,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let paid = pay(&locks, &database, key.unwrap_or_default(), request).await;
    paid.unwrap_or_else(refuse)
}

#[distributed_lock(key = "payment:<key>", wait = "5s", client = locks)]
async fn pay(
    locks: &LockClient,
    database: &SqlitePool,
    key: &str,
    request: String,
) -> Result<Response, BoxError> {
    let find = sqlx::query_as::<_, (String, String)>(FIND).bind(key);
    match find.fetch_optional(database).await? {
        Some((first, answer)) if first == request => return Ok(answer.into_response()),
        Some(_) => return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response()),
        None => {}
    }
    let mut transaction = database.begin().await?;
    let pay = sqlx::query_scalar(PAY).bind(&request);
    let payment: i64 = pay.fetch_one(&mut *transaction).await?;
    let answer = format!("payment {payment}");
    let store = sqlx::query(STORE).bind(key).bind(&request).bind(&answer);
    store.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(answer.into_response())
}

fn refuse(error: BoxError) -> Response {
    let (status, pause) = match error.downcast_ref::<LockError>() {
        Some(busy @ LockError::Busy { .. }) => (409, busy.retry_after()), // an equal request is at work
        Some(error) => (error.http_status(), error.retry_after()),
        None => (500, None),
    };
    let status = StatusCode::from_u16(status).expect("a status of HTTP");
    let pause = pause.map(|pause| [(RETRY_AFTER, pause.as_secs().to_string())]);
    (status, pause, ()).into_response()
}
