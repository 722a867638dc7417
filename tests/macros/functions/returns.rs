//! The types that a locked function can return.

use std::{fmt, num::ParseIntError, pin::Pin};

use lock_runtime::{LockError, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

#[distributed_lock(key = "<id>")]
async fn one_lifetime(text: &str, id: u64) -> Locked<&str> {
    stay().await;
    Ok(&text[id as usize..])
}

#[distributed_lock(key = "<key>")]
async fn named_lifetimes<'a, 'b: 'a>(
    key: &'b str,
    all: &'a mut Vec<&'b str>,
) -> Locked<&'a [&'b str]> {
    all.push(key);
    stay().await;
    Ok(all)
}

#[distributed_lock(key = "static")]
async fn static_lifetime(_: u64) -> Locked<&'static str> {
    stay().await;
    Ok("a")
}

struct View<'a>(&'a str);

impl<'a> View<'a> {
    #[distributed_lock(key = "<self.0>")]
    async fn outlives_self(&self) -> Locked<&'a str> {
        stay().await;
        Ok(self.0)
    }

    #[distributed_lock(key = "<other.0>")]
    async fn elided(&self, other: View<'_>) -> Locked<View<'a>> {
        stay().await;
        Ok(View(&self.0[other.0.len()..]))
    }
}

#[tokio::test]
async fn references() {
    guarded("1", Ok("b"), async || one_lifetime("ab", 1).await).await;
    guarded("b", Ok(vec!["a", "b"]), async || {
        let mut all = vec!["a"];
        named_lifetimes("b", &mut all).await.map(<[_]>::to_vec)
    })
    .await;
    guarded("static", Ok("a"), async || static_lifetime(1).await).await;
    guarded("ab", Ok("ab"), async || View("ab").outlives_self().await).await;
    guarded("x", Ok("b"), async || {
        let view = View("ab").elided(View("x")).await;
        view.map(|view| view.0)
    })
    .await;
}

#[distributed_lock(key = "hidden")]
async fn hidden(end: u64) -> Result<impl Iterator<Item = u64>, LockError> {
    stay().await;
    Ok(0..end)
}

#[distributed_lock(key = "hidden")]
async fn hidden_with_a_lifetime(
    all: &[u64],
) -> Result<impl Iterator<Item = &u64> + Clone, LockError> {
    stay().await;
    Ok(all.iter())
}

#[distributed_lock(key = "hidden")]
async fn hidden_inside(end: u64) -> Result<Option<(u64, Box<impl Fn(u64) -> u64>)>, LockError> {
    stay().await;
    if end == 0 {
        return Ok(None);
    }
    Ok(Some((end, Box::new(move |n| n + end))))
}

#[tokio::test]
async fn hidden_types() {
    guarded("hidden", Ok(vec![0, 1]), async || {
        hidden(2).await.map(Iterator::collect)
    })
    .await;
    guarded("hidden", Ok(3), async || {
        hidden_with_a_lifetime(&[1, 2])
            .await
            .map(Iterator::sum::<u64>)
    })
    .await;
    guarded("hidden", Ok(Some(5)), async || {
        let found = hidden_inside(2).await;
        found.map(|found| found.map(|(n, add)| add(n) + 1))
    })
    .await;
}

/// A service's own error type, into which a `LockError` can be converted.
#[derive(Debug, PartialEq)]
enum PayError {
    Lock(LockError),
    Amount(ParseIntError),
    Text,
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<ParseIntError> for PayError {
    fn from(error: ParseIntError) -> Self {
        Self::Amount(error)
    }
}

impl From<fmt::Error> for PayError {
    fn from(_: fmt::Error) -> Self {
        Self::Text
    }
}

#[distributed_lock(key = "own")]
async fn own_error(amount: &str) -> Result<u64, PayError> {
    use fmt::Write as _;
    stay().await;
    let amount: u64 = amount.parse()?;
    let mut text = String::new();
    write!(text, "{amount}")?;
    Ok(amount + text.len() as u64)
}

#[distributed_lock(key = "boxed")]
async fn boxed_error(amount: &str) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    stay().await;
    let amount: u64 = amount.parse()?;
    if amount == 0 {
        return Err("nothing to pay".into());
    }
    Ok(amount)
}

#[distributed_lock(key = "convertible")]
async fn generic_error<E: From<LockError> + From<ParseIntError>>(amount: &str) -> Result<u64, E> {
    stay().await;
    Ok(amount.parse()?)
}

#[tokio::test]
async fn error_types() {
    guarded("own", Ok(8), async || own_error("7").await).await;
    let refused = "x".parse::<u64>().unwrap_err();
    guarded("own", Err(PayError::Amount(refused.clone())), async || {
        own_error("x").await
    })
    .await;
    guarded("boxed", Err("nothing to pay".into()), async || {
        let paid = boxed_error("0").await;
        paid.map_err(|error| error.to_string())
    })
    .await;
    guarded("convertible", Err(PayError::Amount(refused)), async || {
        generic_error("x").await
    })
    .await;
}

/// A call without a client fails with `LockError::NoClient`, which is converted into the function's error type.
#[tokio::test]
async fn a_locks_failure_in_each_error_type() {
    assert_eq!(
        own_error("7").await,
        Err(PayError::Lock(LockError::NoClient))
    );
    assert_eq!(
        generic_error::<PayError>("7").await,
        Err(PayError::Lock(LockError::NoClient))
    );
    let error = boxed_error("7").await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&LockError::NoClient));
}

mod alias {
    use lock_runtime::distributed_lock;
    use support::guarded::stay;

    type Result<T> = std::result::Result<T, super::PayError>;
    type Done = Result<()>;

    #[distributed_lock(key = "alias")]
    pub(super) async fn one_parameter(id: u64) -> Result<u64> {
        stay().await;
        if id == 0 {
            Err(super::PayError::Text)
        } else {
            Ok(id)
        }
    }

    #[distributed_lock(key = "alias")]
    pub(super) async fn no_parameter() -> Done {
        stay().await;
        Ok(())
    }
}

#[tokio::test]
async fn aliases() {
    guarded("alias", Ok(7), async || alias::one_parameter(7).await).await;
    guarded("alias", Ok(()), alias::no_parameter).await;
}

#[distributed_lock(key = "nested")]
async fn nested_results(id: u64) -> Locked<Result<Option<u64>, String>> {
    stay().await;
    Ok(if id == 0 {
        Err("none".into())
    } else {
        Ok(Some(id))
    })
}

#[distributed_lock(key = "never")]
async fn never_ok() -> Locked<std::convert::Infallible> {
    stay().await;
    Err(LockError::ShutDown)
}

#[tokio::test]
async fn results_of_results_and_of_nothing() {
    guarded("nested", Ok(Err("none".into())), async || {
        nested_results(0).await
    })
    .await;
    guarded("never", Err(LockError::ShutDown), never_ok).await;
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Locked<T>> + Send + 'a>>;

#[distributed_lock(key = "<id>")]
fn aliased_future(id: u64, text: &str) -> Boxed<'_, &str> {
    Box::pin(async move {
        stay().await;
        Ok(&text[id as usize..])
    })
}

#[tokio::test]
async fn an_alias_of_a_boxed_future() {
    guarded("1", Ok("b".to_owned()), async || {
        aliased_future(1, "ab").await.map(str::to_owned)
    })
    .await;
}
