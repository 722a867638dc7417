//! The attribute of `lock-runtime`. Depend on that crate, which re-exports it as `lock_runtime::distributed_lock`.
//!
//! The modules are the stages of one expansion: `args` and `template` read the attribute, `signature` the function;
//! `key` finds what the placeholders name, `expand` writes the locked function, `fallback` what is left of it after a
//! mistake.

use proc_macro::TokenStream;

mod args;
mod arguments;
mod duration;
mod expand;
mod fallback;
mod key;
mod lookalikes;
mod mistakes;
mod names;
mod option;
mod shape;
mod signature;
mod suggest;
mod template;
mod types;
mod value;

use crate::{args::Args, mistakes::Mistakes, signature::Function};

/// Runs an `async fn` under a distributed lock.
///
/// ```ignore
/// use lock_runtime::distributed_lock;
///
/// #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
/// async fn pay(id: u64, amount: Money) -> Result<Receipt, PayError> {
///     // Nobody else pays this order now.
/// }
/// ```
///
/// The function returns a `Result` whose error type is `From<lock_runtime::LockError>`: a lock that is busy, lost or
/// out of reach becomes that error, and the body is never run without the lock.
///
/// # Options
///
/// | option | meaning | if absent |
/// |---|---|---|
/// | `key = "order:<id>"` | the lock's name; the one option that is needed | |
/// | `wait = "5s"` | how long to wait for the lock; `"0s"` tries once | the client's, 3 s |
/// | `lease = "30s"` | a fixed lease: at its end the body is dropped | the client's, 30 s, renewed every third |
/// | `renew = true` | renews an explicit lease while the body runs | only an absent `lease` is renewed |
/// | `max_hold = "10m"` | the renewal stops here | no end |
/// | `on_lost = continue` | a body whose lease is lost runs on | `cancel`: it is dropped at its next `.await` |
/// | `client = self.locks` | an expression for the `LockClient` | the task's scoped client, else the installed one |
/// | `namespace = "shop"` | sets keys of services apart | the client's |
/// | `guard = hold` | a name under which the body finds its hold: `hold.token()`, `hold.remaining()`, `hold.lost()` | |
/// | `crate = ::locks` | the path of `lock-runtime`, if it was renamed | `::lock_runtime` |
///
/// A duration is a whole number with a unit (`us`, `ms`, `s`, `m`, `h`, `d`) in quotes, or the path of a
/// `const` of type `Duration`.
///
/// # Keys
///
/// | in the key | stands for |
/// |---|---|
/// | `<arg>` | the argument's value, percent-escaped to `[A-Za-z0-9._~-]` |
/// | `<arg.field.0>`, `<self.field>` | a field of it |
/// | `<arg:raw>` | the value as it prints |
/// | `<<`, `>>` | a literal `<`, `>` |
/// | `{…}` | itself: a Redis Cluster hash tag, as in `"{order:<id>}:pay"` |
///
/// A value is anything that is `Display`, except an `Option` or `()`: absent values would share one lock. Between two
/// placeholders stands a character that no escaped value has, such as `:` or `/`, so different arguments never
/// give one key. A key needs no placeholder: `key = "nightly-report"`.
///
/// # Where it stands
///
/// On an `async fn`: a free one, a method with any receiver, a trait's default body; with generics, lifetimes, and
/// patterns as arguments. On a method under `#[async_trait]`, and on any function that ends in
/// `Box::pin(async move { … })`. Above `#[tokio::main]` and `#[tokio::test]`; `#[tracing::instrument]` may stand above,
/// and then covers the waiting, or below.
///
/// # What becomes of the function
///
/// ```text
/// // before
/// #[distributed_lock(key = "order:<id>", wait = "5s")]
/// async fn pay(id: u64, mut cart: Cart) -> Result<Receipt, PayError> { BODY }
///
/// // after
/// async fn pay(id: u64, cart: Cart) -> Result<Receipt, PayError> {
///     let key = lock_runtime::__private::v1::key().text("order:").part("id", &id).build();
///     let call = lock_runtime::__private::v1::Call::new(key).wait(Duration::new(5, 0));
///     call.run(async move {
///         let id = id;
///         let mut cart = cart;
///         BODY
///     })
///     .await
/// }
/// ```
///
/// The key is rendered before the body can move what it names. The body owns every argument, unused ones too: they
/// are dropped in the order of a plain function, and before the lock is released. The future is `Send` if the body's is.
///
/// # Errors
///
/// What the body returns, or a `LockError` by way of `From`: `Busy` after `wait`, `Lost` if the lease ended while the body
/// ran, and what else keeps a lock from being had. A wrong use of the attribute does not compile; the message says what
/// to write instead.
///
/// # Fairness
///
/// Calls of one key enter in the order in which they queued, over all processes. `wait = "0s"` never queues and never
/// overtakes.
///
/// # Cancel safety
///
/// Dropping the future gives up the place in the queue, or drops the body and then releases the lock. Every early exit
/// (`return`, `?`) releases it too.
///
/// # Panics
///
/// The expansion has no panics of its own. A panic of the body releases the lock while it unwinds.
///
/// # Examples
///
/// A method, with the client and the fencing token:
///
/// ```ignore
/// impl Ledger {
///     #[distributed_lock(key = "ledger:<self.name>:<entry.id>", client = self.locks, guard = hold)]
///     async fn post(&self, entry: Entry) -> Result<(), LedgerError> {
///         self.store.write(entry, hold.token()).await
///     }
/// }
/// ```
///
/// A job that only one replica runs, for as long as it takes:
///
/// ```ignore
/// #[distributed_lock(key = "nightly-report", wait = "0s", max_hold = "2h")]
/// async fn report() -> Result<(), lock_runtime::LockError> {
///     // …
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    locked(args.into(), item.into()).into()
}

fn locked(
    args: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> proc_macro2::TokenStream {
    let mut mistakes = Mistakes::default();
    let args = Args::read(args, &mut mistakes);
    let function = Function::read(item.clone(), &mut mistakes);
    let expanded = function.map(|function| expand::expand(&args, function, &mut mistakes));
    match mistakes.into_error() {
        Some(errors) => fallback::expand(item, &args, &errors),
        None => expanded.unwrap_or(item),
    }
}

#[cfg(test)]
mod snapshots;
