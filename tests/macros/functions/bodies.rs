//! The code that the body of a locked function can contain, and the ways in which the body can end.

use std::{fmt, ops::ControlFlow};

use futures_util::FutureExt as _;
use lock_runtime::{LockClient, LockError, distributed_lock};
use support::guarded::{guarded, stay};
use tokio::sync::Mutex;

use crate::Locked;

#[distributed_lock(key = "k")]
async fn closures(all: Vec<u64>, add: u64) -> Locked<u64> {
    let more = |n: &u64| n + add;
    let first = all.iter().map(more).find(|n| n % 2 == 0);
    let later = async move |n: u64| {
        stay().await;
        n + all.len() as u64
    };
    let returning = || -> Option<u64> {
        if add == 0 {
            return None;
        }
        Some(first? + 1)
    };
    Ok(later(returning().unwrap_or(0)).await)
}

#[distributed_lock(key = "k")]
async fn blocks(n: u64) -> Locked<u64> {
    let inner = async {
        stay().await;
        if n == 0 {
            return Err(LockError::ShutDown);
        }
        Ok(n)
    };
    let half = async { inner.await.map(|n| n / 2) };
    let found: Option<u64> = 'found: {
        let half = half.await?;
        if half > 1 {
            break 'found Some(half);
        }
        None
    };
    Ok(found.unwrap_or(9))
}

#[distributed_lock(key = "k")]
async fn labelled(rows: &[[u64; 2]], wanted: u64) -> Locked<(usize, usize)> {
    stay().await;
    let place = 'found: {
        'rows: for (y, row) in rows.iter().enumerate() {
            for (x, n) in row.iter().enumerate() {
                if *n > wanted {
                    continue 'rows;
                }
                if *n == wanted {
                    break 'found (y, x);
                }
            }
        }
        return Err(LockError::ShutDown);
    };
    Ok(place)
}

#[distributed_lock(key = "k")]
async fn ends_in_a_loop(mut n: u64) -> Locked<u64> {
    stay().await;
    loop {
        n += 1;
        if n > 9 {
            return Ok(n);
        }
        if n == 5 {
            break Err(LockError::ShutDown);
        }
        tokio::task::yield_now().await;
    }
}

#[derive(Debug, PartialEq)]
enum Failed {
    Lock(LockError),
    Number(std::num::ParseIntError),
    Text(fmt::Error),
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<std::num::ParseIntError> for Failed {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::Number(error)
    }
}

impl From<fmt::Error> for Failed {
    fn from(error: fmt::Error) -> Self {
        Self::Text(error)
    }
}

#[distributed_lock(key = "k")]
async fn several_errors(text: &str, then: Result<(), fmt::Error>) -> Result<u64, Failed> {
    let n: u64 = text.parse()?;
    stay().await;
    then?;
    Err(LockError::ShutDown)?;
    Ok(n)
}

/// A function with a `?` that returns from a closure inside the body, and not from the body itself.
#[distributed_lock(key = "k")]
async fn other_questions(all: &[u64]) -> Locked<Option<u64>> {
    stay().await;
    let sum = all.iter().try_fold(0, |sum: u64, n| match n {
        0 => ControlFlow::Break(sum),
        n => ControlFlow::Continue(sum + n),
    });
    let last = (|| Some(all.last()? + 1))();
    Ok(last.filter(|_| sum.is_break()))
}

macro_rules! answer {
    ($n:expr) => {
        Ok($n + 1)
    };
}

#[distributed_lock(key = "k")]
async fn ends_in_a_macro(n: u64) -> Locked<u64> {
    stay().await;
    answer!(n)
}

#[distributed_lock(key = "k")]
async fn ends_in_a_panicking_macro(n: u64) -> Locked<u64> {
    stay().await;
    if n == 7 {
        return Ok(1);
    }
    unreachable!("{n}")
}

/// The tail expression borrows from an argument and from a temporary. In edition 2024, the temporary is dropped before
/// the argument.
#[distributed_lock(key = "k")]
async fn ends_in_a_temporary(shared: Mutex<Vec<u64>>) -> Locked<u64> {
    stay().await;
    Ok(*shared.lock().await.last().unwrap_or(&0))
}

#[distributed_lock(key = "k")]
async fn ends_in_a_match_on_a_temporary(shared: &std::sync::Mutex<u64>) -> Locked<String> {
    stay().await;
    match &*shared.lock().unwrap().to_string() {
        "7" => Ok("seven".into()),
        other => Ok(other.to_owned()),
    }
}

#[distributed_lock(key = "k")]
async fn ends_in_an_await(n: u64) -> Locked<u64> {
    async {
        stay().await;
        Ok(n)
    }
    .await
}

#[distributed_lock(key = "k")]
async fn ends_in_an_if(n: u64) -> Locked<u64> {
    stay().await;
    if let Some(n) = n.checked_sub(7)
        && n == 0
    {
        Ok(1)
    } else {
        Ok(2)
    }
}

#[distributed_lock(key = "k")]
async fn infers_from_its_return_type(all: Vec<String>) -> Locked<Vec<u64>> {
    stay().await;
    let parsed = all.iter().map(|n| n.parse().unwrap_or_default()).collect();
    Ok(parsed)
}

#[distributed_lock(key = "k")]
async fn coerces_to_its_return_type(n: u64) -> Result<Box<dyn fmt::Display>, LockError> {
    stay().await;
    if n == 0 {
        return Ok(Box::new("nothing"));
    }
    Ok(Box::new(n))
}

#[distributed_lock(key = "k")]
async fn shadows_its_arguments(n: u64, text: &str) -> Locked<String> {
    let n = n + 1;
    let text = { text.len() as u64 + n };
    stay().await;
    fn n_of_its_own(n: u64) -> u64 {
        n * 2
    }
    Ok(format!("{}", n_of_its_own(text)))
}

#[tokio::test]
async fn closures_and_blocks() {
    guarded("k", Ok(7), async || closures(vec![1, 3], 3).await).await;
    guarded("k", Ok(3), async || blocks(7).await).await;
    guarded("k", Ok(9), async || blocks(2).await).await;
    guarded("k", Err(LockError::ShutDown), async || blocks(0).await).await;
}

#[tokio::test]
async fn loops() {
    guarded("k", Ok((1, 1)), async || {
        labelled(&[[1, 2], [3, 4]], 4).await
    })
    .await;
    guarded("k", Err(LockError::ShutDown), async || {
        labelled(&[], 4).await
    })
    .await;
    guarded("k", Ok(10), async || ends_in_a_loop(7).await).await;
    guarded("k", Err(LockError::ShutDown), async || {
        ends_in_a_loop(3).await
    })
    .await;
}

#[tokio::test]
async fn questions() {
    guarded("k", Err(Failed::Text(fmt::Error)), async || {
        several_errors("7", Err(fmt::Error)).await
    })
    .await;
    guarded("k", Err(Failed::Lock(LockError::ShutDown)), async || {
        several_errors("7", Ok(())).await
    })
    .await;
    guarded("k", Ok(Some(4)), async || other_questions(&[1, 0, 3]).await).await;
}

/// The body fails before its first await, so two calls cannot overlap. The test therefore does not use `guarded`, but
/// checks that the key is free after the call.
#[tokio::test]
async fn a_question_before_any_await() {
    let client = lock_runtime::LockClient::connect("memory:").await.unwrap();
    let failed = client.scope(several_errors("x", Ok(()))).await;
    assert_eq!(failed, Err(Failed::Number("x".parse::<u64>().unwrap_err())));
    let status = client.lock("k").status().await.unwrap();
    assert_eq!(status.holder, None);
    assert_eq!(client.stats().acquired, 1);
}

#[tokio::test]
async fn last_expressions() {
    guarded("k", Ok(8), async || ends_in_a_macro(7).await).await;
    guarded("k", Ok(1), async || ends_in_a_panicking_macro(7).await).await;
    guarded("k", Ok(2), async || {
        ends_in_a_temporary(Mutex::new(vec![1, 2])).await
    })
    .await;
    let seven = std::sync::Mutex::new(7);
    guarded("k", Ok("seven".into()), async || {
        ends_in_a_match_on_a_temporary(&seven).await
    })
    .await;
    guarded("k", Ok(7), async || ends_in_an_await(7).await).await;
    guarded("k", Ok(1), async || ends_in_an_if(7).await).await;
}

#[tokio::test]
async fn types_that_the_return_type_decides() {
    guarded("k", Ok(vec![7, 0]), async || {
        infers_from_its_return_type(vec!["7".into(), "x".into()]).await
    })
    .await;
    guarded("k", Ok("nothing".to_owned()), async || {
        let value = coerces_to_its_return_type(0).await;
        value.map(|value| value.to_string())
    })
    .await;
    guarded("k", Ok("18".into()), async || {
        shadows_its_arguments(7, "a").await
    })
    .await;
}

#[distributed_lock(key = "panics", on_busy = fallback(another_panics))]
async fn panics(yes: bool) -> Locked<u64> {
    std::future::ready(()).await;
    assert!(!yes, "the body panics");
    Ok(1)
}

#[distributed_lock(key = "another")]
async fn another_panics(yes: bool, _: LockError) -> Locked<u64> {
    assert!(!yes, "the fallback panics");
    Ok(2)
}

/// `catch_unwind` accepts only a future that is `UnwindSafe`.
#[tokio::test]
async fn a_panic_that_is_caught() {
    let client = LockClient::connect("memory:").await.unwrap();
    let calls = async {
        assert_eq!(panics(false).catch_unwind().await.unwrap(), Ok(1));
        assert!(panics(true).catch_unwind().await.is_err());
        assert_eq!(panics(false).catch_unwind().await.unwrap(), Ok(1));
        let busy = another_panics(true, LockError::ShutDown);
        assert!(busy.catch_unwind().await.is_err());
    };
    client.scope(calls).await;
}
