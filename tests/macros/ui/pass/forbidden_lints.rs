// The expansion contains no `allow`, so it also compiles where a lint is forbidden.
#![forbid(
    keyword_idents, unknown_lints, unreachable_code, unused_assignments, unused_braces, unused_imports, unused_labels,
    unused_must_use, unused_mut, unused_parens, unused_qualifications, unused_unsafe, unused_variables
)]

use std::{pin::Pin, time::Duration};

use lock_runtime::{LockClient, LockError, distributed_lock};

struct Pair(u64, u64);

#[distributed_lock(key = "order:<id>:<_kind>:<left>:<name>:<_b>", wait = *wait, client = locks.0, on_busy = fallback(later))]
async fn pay(
    id: u64,
    _kind: String,
    Pair(left, _): Pair,
    ref name: String,
    mut count: u64,
    &number: &u64,
    (_b,): (u64,),
    wait: &Duration,
    locks: (LockClient,),
) -> Result<u64, LockError> {
    count += number;
    Ok(count + name.len() as u64)
}

#[rustfmt::skip]
async fn later(
    _: u64, _: String, _: Pair, _: String, _: u64, _: &u64, _: (u64,), _: &Duration, _: (LockClient,), _: LockError,
) -> Result<u64, LockError> {
    Ok(0)
}

#[distributed_lock(keys = ["cart", "item:<ids..>"], guard = holds)]
async fn ship(ids: &[u64]) -> Result<usize, LockError> {
    return Ok(holds.len());
}

#[distributed_lock(key = "diverges")]
async fn diverges() -> Result<(), LockError> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "boxed:<id>")]
fn boxed(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, LockError>> + Send>> {
    Box::pin(async move { Ok(1) })
}

#[distributed_lock(key = "future:<id>")]
fn future(id: u64) -> impl Future<Output = Result<u64, LockError>> + Send {
    async move { Ok(id) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let client = LockClient::connect("memory:").await.unwrap();
    let wait = Duration::from_secs(1);
    let calls = async {
        let paid = pay(1, "a".into(), Pair(2, 3), "b".into(), 4, &5, (6,), &wait, (client.clone(),));
        assert_eq!(paid.await, Ok(10));
        assert_eq!(ship(&[1, 2]).await, Ok(3));
        assert_eq!(boxed(1).await, Ok(1));
        assert_eq!(future(1).await, Ok(1));
        let _ = diverges();
        Ok(())
    };
    client.scope(calls).await
}
