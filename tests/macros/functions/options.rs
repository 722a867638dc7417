//! Tests of the options that change the expansion, on several kinds of functions.

#![expect(clippy::unused_async, reason = "a fallback is async, whatever it does")]

use std::{fmt, fmt::Display, rc::Rc, sync::Arc, time::Duration};

use async_trait::async_trait;
use lock_runtime::{LockClient, LockError, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

/// Makes a call while a guard of the same client holds the lock, and returns the output of the call.
async fn while_busy<T>(key: &str, call: impl Future<Output = T>) -> T {
    let client = LockClient::connect("memory:").await.unwrap();
    let held = client.lock(key).acquire().await.unwrap();
    let value = client.scope(call).await;
    held.release().await;
    assert_eq!(client.lock(key).status().await.unwrap().holder, None);
    value
}

fn all_held(keys: &[&str]) {
    let client = LockClient::current().unwrap();
    let held = |key: &&str| client.lock(*key).is_held_here();
    assert!(keys.iter().all(held), "{keys:?}");
}

#[distributed_lock(keys = ["<to>", "<from>", "account:<from>"], guard = holds)]
async fn several_keys(from: String, mut to: String) -> Locked<(String, usize)> {
    all_held(&["a", "b", "account:a"]);
    stay().await;
    to.push_str(&from);
    Ok((to, holds.len()))
}

struct Transfer<'a> {
    from: &'a str,
    to: String,
}

impl<'a> Transfer<'a> {
    #[distributed_lock(keys = ["<self.from>", "<self.to>"])]
    async fn run(self, times: impl Display) -> Locked<(&'a str, String)> {
        all_held(&["a", "b"]);
        stay().await;
        Ok((self.from, format!("{}{times}", self.to)))
    }
}

/// A call takes its locks in the order of their names, so the second call of `guarded` waits for the lock that sorts
/// first. The test passes the key of this lock to `guarded`.
#[tokio::test]
async fn several_keys_on_a_function_and_a_method() {
    guarded("account:a", Ok(("ba".into(), 3)), async || {
        several_keys("a".into(), "b".into()).await
    })
    .await;
    guarded("a", Ok(("b", "a2".into())), async || {
        let transfer = Transfer {
            from: "b",
            to: "a".into(),
        };
        transfer.run(2).await
    })
    .await;
}

#[distributed_lock(key = "<id>", on_busy = fallback(later), wait = "1m")]
async fn with_fallback(id: u64, (a, _): (String, u64), mut b: String, _: u64) -> Locked<String> {
    b.push_str(&a);
    stay().await;
    Ok(format!("{id}{b}"))
}

#[distributed_lock(key = "<id>", on_busy = fallback(later), wait = "0s")]
async fn at_once(id: u64, (_a, _): (String, u64), mut _b: String, _: u64) -> Locked<String> {
    Ok(String::new())
}

async fn later(
    id: u64,
    pair: (String, u64),
    text: String,
    n: u64,
    error: LockError,
) -> Locked<String> {
    assert!(matches!(error, LockError::Busy { .. }));
    Ok(format!("{id}{pair:?}{text}{n}"))
}

struct Shop {
    name: String,
}

fn shop() -> Shop {
    Shop { name: "a".into() }
}

impl Shop {
    #[distributed_lock(key = "<self.name>:<id>", on_busy = fallback(Self::sold_out))]
    async fn sell<'a, T: Display + ?Sized>(&'a mut self, id: u64, to: &T) -> Locked<&'a str> {
        stay().await;
        self.name.push_str(&format!("{id}{to}"));
        Ok(&self.name)
    }

    #[distributed_lock(key = "<self.name>:<id>", on_busy = fallback(Self::sold_out), wait = "0s")]
    async fn sell_at_once<'a, T: Display + ?Sized>(
        &'a mut self,
        id: u64,
        to: &T,
    ) -> Locked<&'a str> {
        unreachable!("{id}{to}")
    }

    async fn sold_out<T: Display + ?Sized>(
        &mut self,
        id: u64,
        to: &T,
        _: LockError,
    ) -> Locked<&str> {
        self.name = format!("none of {id} for {to}");
        Ok(&self.name)
    }

    #[distributed_lock(key = "<self.name>", on_busy = fallback(Self::keep), wait = "0s")]
    async fn close(self, shared: Rc<str>) -> Locked<String> {
        unreachable!("{}{shared}", self.name)
    }

    async fn keep(self, shared: Rc<str>, _: LockError) -> Locked<String> {
        Ok(self.name + &shared)
    }
}

struct Stall {
    name: String,
}

fn stall() -> Stall {
    Stall { name: "a".into() }
}

#[async_trait]
trait Sells: Send + Sync {
    async fn sell(self: Arc<Self>, id: u64, mut text: String) -> Locked<String>;
    async fn sell_at_once(&self, id: u64, mut text: String) -> Locked<String>;
    async fn sold_out(&self, id: u64, text: String, error: LockError) -> Locked<String>;
    async fn sold_out_by_arc(
        self: Arc<Self>,
        id: u64,
        text: String,
        error: LockError,
    ) -> Locked<String>;
}

#[async_trait]
impl Sells for Stall {
    #[distributed_lock(key = "<self.name>:<id>", on_busy = fallback(Self::sold_out_by_arc))]
    async fn sell(self: Arc<Self>, id: u64, text: String) -> Locked<String> {
        stay().await;
        Ok(format!("{}{id}{text}", self.name))
    }

    #[distributed_lock(key = "<self.name>:<id>", on_busy = fallback(Self::sold_out), wait = "0s")]
    async fn sell_at_once(&self, id: u64, text: String) -> Locked<String> {
        unreachable!("{}{id}{text}", self.name)
    }

    async fn sold_out(&self, id: u64, text: String, _: LockError) -> Locked<String> {
        Ok(format!("none of {id} {text}"))
    }

    async fn sold_out_by_arc(
        self: Arc<Self>,
        _: u64,
        _: String,
        error: LockError,
    ) -> Locked<String> {
        Err(error)
    }
}

#[tokio::test]
async fn a_fallback_gets_every_argument() {
    let pair = || ("a".to_owned(), 1);
    guarded("7", Ok("7ba".into()), async || {
        with_fallback(7, pair(), "b".into(), 2).await
    })
    .await;
    assert_eq!(
        while_busy("7", at_once(7, pair(), "b".into(), 2)).await,
        Ok("7(\"a\", 1)b2".into())
    );
}

#[tokio::test]
async fn a_fallback_of_a_method() {
    guarded("a:7", Ok("a7you".to_owned()), async || {
        shop().sell(7, "you").await.map(str::to_owned)
    })
    .await;
    assert_eq!(
        while_busy("a:7", shop().sell_at_once(7, "you")).await,
        Ok("none of 7 for you")
    );
    assert_eq!(
        while_busy("a", shop().close("b".into())).await,
        Ok("ab".into())
    );
    guarded("a:7", Ok("a7b".into()), async || {
        Sells::sell(Arc::new(stall()), 7, "b".into()).await
    })
    .await;
    assert_eq!(
        while_busy("a:7", Sells::sell_at_once(&stall(), 7, "b".into())).await,
        Ok("none of 7 b".into())
    );
}

/// An error type that does not implement `From<LockError>`.
#[derive(Debug, PartialEq)]
enum PayError {
    Lock(String),
    Text,
}

impl From<fmt::Error> for PayError {
    fn from(_: fmt::Error) -> Self {
        Self::Text
    }
}

impl PayError {
    fn locked(error: LockError) -> Self {
        Self::Lock(error.to_string())
    }
}

type Paid<T> = Result<T, PayError>;

#[distributed_lock(key = "<id>", map_err = PayError::locked)]
async fn mapped(id: u64, fails: bool) -> Paid<impl Iterator<Item = u64>> {
    stay().await;
    if fails {
        Err(fmt::Error)?;
    }
    Ok(0..id)
}

#[distributed_lock(key = "<id>", map_err = |error| PayError::Lock(format!("closed: {error}")), wait = "0s")]
async fn mapped_by_a_closure(id: u64) -> Paid<u64> {
    Ok(id)
}

fn into<E: From<String>>(error: LockError) -> E {
    error.to_string().into()
}

#[distributed_lock(key = "<id>", map_err = into::<E>, wait = "0s")]
async fn mapped_generically<E: From<String>>(id: u64) -> Result<u64, E> {
    Ok(id)
}

#[tokio::test]
async fn a_mapped_error() {
    guarded("2", Ok(vec![0, 1]), async || {
        mapped(2, false).await.map(Iterator::collect)
    })
    .await;
    guarded("2", Some(PayError::Text), async || {
        mapped(2, true).await.err()
    })
    .await;
    let busy = while_busy("2", mapped_generically::<String>(2)).await;
    assert!(busy.unwrap_err().contains("is busy"));
    assert_eq!(while_busy("1", mapped_by_a_closure(2)).await, Ok(2));
    let busy = while_busy("2", mapped_by_a_closure(2)).await;
    assert!(matches!(busy, Err(PayError::Lock(text)) if text.starts_with("closed: ")));
}

mod alias {
    pub(super) type Maybe<T> = Result<Option<T>, lock_runtime::LockError>;
}

#[distributed_lock(key = "<id>", on_busy = skip, wait = "0s")]
async fn skipped(id: u64, all: &[u64]) -> Result<Option<impl Iterator<Item = u64>>, LockError> {
    Ok(Some(all.iter().map(move |n| n + id)))
}

#[distributed_lock(key = "<id>", on_busy = skip, wait = "0s", map_err = PayError::locked)]
async fn skipped_and_mapped(id: u64) -> Paid<Option<u64>> {
    Ok(Some(id))
}

#[distributed_lock(key = "<id>", on_busy = skip, wait = "0s")]
async fn skipped_by_alias(id: u64) -> alias::Maybe<u64> {
    Ok(Some(id))
}

#[tokio::test]
async fn a_skipped_call() {
    let sum =
        |found: Result<Option<_>, LockError>| found.map(|found| found.map(Iterator::sum::<u64>));
    assert_eq!(sum(while_busy("1", skipped(1, &[1])).await), Ok(None));
    assert_eq!(sum(while_busy("2", skipped(1, &[1])).await), Ok(Some(2)));
    assert_eq!(while_busy("1", skipped_and_mapped(1)).await, Ok(None));
    assert_eq!(while_busy("2", skipped_and_mapped(1)).await, Ok(Some(1)));
    assert_eq!(while_busy("1", skipped_by_alias(1)).await, Ok(None));
    assert_eq!(while_busy("2", skipped_by_alias(1)).await, Ok(Some(1)));
}

mod limits {
    use std::time::Duration;

    pub(super) const WAIT: Duration = Duration::ZERO;
    pub(super) static LEASE: Duration = Duration::from_secs(1);
}

#[derive(Clone, Copy)]
struct Config {
    wait: Duration,
    lease: Duration,
}

impl Config {
    fn lease(&self) -> Duration {
        self.lease
    }
}

const NOW: Config = Config {
    wait: Duration::ZERO,
    lease: Duration::from_secs(1),
};

struct Configured<T> {
    config: Config,
    value: T,
}

#[async_trait]
trait Timed {
    const WAIT: Duration;

    async fn boxed(&self, id: u64, lease: Duration) -> Locked<u64>;
}

#[async_trait]
impl<T: Sync> Timed for Configured<T> {
    const WAIT: Duration = Duration::ZERO;

    #[distributed_lock(key = "<id>", wait = self.config.wait, lease = lease)]
    async fn boxed(&self, id: u64, lease: Duration) -> Locked<u64> {
        assert_eq!(lease, NOW.lease);
        Ok(id)
    }
}

impl<T: Sync> Configured<T> {
    #[distributed_lock(key = "<id>", wait = self.config.wait, lease = self.config.lease())]
    async fn fields(&mut self, id: u64) -> Locked<&mut T> {
        Ok(&mut self.value)
    }

    #[distributed_lock(key = "<id>", wait = <Self as Timed>::WAIT, lease = limits::LEASE, guard = hold)]
    async fn constants(&self, id: u64) -> Locked<bool> {
        Ok(hold.remaining() <= limits::LEASE)
    }
}

#[distributed_lock(key = "<id>", wait = wait, lease = *lease, hold_at_least = min(wait, *lease))]
async fn arguments(id: u64, wait: Duration, Config { lease, .. }: Config) -> Locked<u64> {
    Ok(id)
}

fn min(one: Duration, other: Duration) -> Duration {
    one.min(other)
}

#[distributed_lock(key = "<id>", wait = config().await?.wait, lease = limits::WAIT + Duration::from_secs(1))]
async fn calls(id: u64) -> Locked<u64> {
    Ok(id)
}

async fn config() -> Locked<Config> {
    Ok(NOW)
}

#[tokio::test]
async fn durations_from_values() {
    let busy = |result: &Result<(), LockError>| matches!(result, Err(LockError::Busy { .. }));
    let configured = || Configured {
        config: NOW,
        value: 5,
    };
    let call = async |id| configured().fields(id).await.map(|value| *value = id);
    assert_eq!(while_busy("1", call(2)).await, Ok(()));
    assert!(busy(&while_busy("2", call(2)).await));
    let call = async |id| {
        let short = configured().constants(id).await?;
        assert!(short);
        Ok(())
    };
    assert_eq!(while_busy("1", call(2)).await, Ok(()));
    assert!(busy(&while_busy("2", call(2)).await));
    let call = async |id| configured().boxed(id, NOW.lease).await.map(drop);
    assert_eq!(while_busy("1", call(2)).await, Ok(()));
    assert!(busy(&while_busy("2", call(2)).await));
    let call = async |id| arguments(id, NOW.wait, NOW).await.map(drop);
    assert_eq!(while_busy("1", call(2)).await, Ok(()));
    assert!(busy(&while_busy("2", call(2)).await));
    let call = async |id| calls(id).await.map(drop);
    assert_eq!(while_busy("1", call(2)).await, Ok(()));
    assert!(busy(&while_busy("2", call(2)).await));
}

/// If the value of an option is known only at run time, the call checks the value before it requests the lock.
#[tokio::test]
async fn a_value_out_of_range_is_an_error() {
    let day_and_a_bit = Duration::from_secs(25 * 60 * 60);
    let refused = while_busy("1", arguments(1, day_and_a_bit, NOW)).await;
    assert!(
        matches!(refused, Err(LockError::InvalidOptions(_))),
        "{refused:?}"
    );
}
