//! The attribute of `lock-runtime`, which re-exports it; do not depend on this crate yourself.
//!
//! The files are the stages of the expansion: [`args`] reads what stands in the parentheses, [`template`] the key,
//! [`signature`] the function, [`expand`] writes the guarded function, and [`fallback`] keeps the item alive beside an
//! error.

mod args;
mod expand;
mod fallback;
mod signature;
mod template;

use proc_macro::TokenStream;

/// Runs an `async fn` under a distributed lock: over any number of processes no two calls with one key overlap.
///
/// ```ignore
/// use lock_runtime::distributed_lock;
///
/// #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
/// async fn pay(id: u64, amount: Money) -> Result<Receipt, PayError> {
///     // alone for this `id`, here and in every other process
/// }
/// ```
///
/// The error type has to be `From<lock_runtime::LockError>`.
///
/// # Options
/// | option | meaning | default |
/// |---|---|---|
/// | `key = "order:<id>"` | the lock's name, from the arguments | required |
/// | `wait = "5s"` | bounds the acquisition, not the body; `"0s"` is one attempt | client, 3 s |
/// | `lease = "30s"` | fixed: the body is dropped at its end | client, 30 s, renewed |
/// | `renew = true` | with a `lease`: renew it every third while the body runs | `false` with a `lease` |
/// | `max_hold = "10m"` | renewal stops here | none |
/// | `on_lost = cancel` | or `continue`: let the body run on when the lease is lost | `cancel` |
/// | `client = expr` | the client of this call | the task's scoped client, else the installed one |
/// | `namespace = "shop"` | separates keys of applications | the client's |
/// | `guard = ident` | binds the hold inside the body: `token()`, `remaining()`, `lost()` | none |
/// | `crate = ::path` | where `lock_runtime` is, if the dependency was renamed | `::lock_runtime` |
///
/// A duration is a text with a unit (`"250ms"`, `"5s"`, `"10m"`, `"1h"`), or a path to a `const Duration`.
///
/// # Placeholders
/// `<arg>`, `<arg.field.0>`, `<self.field>` stand for a value, which is any `Display` but no `Option`. It is
/// percent-escaped to `[A-Za-z0-9._~-]`; `<arg:raw>` leaves it as it prints. `<<` and `>>` are the literal signs. Between
/// two placeholders stands at least one character that escaping never yields, so that no two argument lists give one
/// key. Braces are Redis Cluster hash tags and stay as written: `"{order:<id>}:pay"`.
///
/// # Expansion
/// ```text
/// // before
/// #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
/// async fn pay(id: u64, amount: Money) -> Result<Receipt, PayError> { BODY }
///
/// // after
/// async fn pay(id: u64, amount: Money) -> Result<Receipt, PayError> {
///     let key = ::lock_runtime::__private::v1::key().text("order:").part("id", &id).build();
///     ::lock_runtime::__private::v1::Call::new(key)
///         .wait(Duration::new(5, 0))
///         .lease(Duration::new(30, 0))
///         .run(async move {
///             let id = id;
///             let amount = amount;
///             BODY
///         })
///         .await
/// }
/// ```
///
/// # Fairness, cancel safety, panics
/// Callers of one key enter in the order in which they queued. Dropping the call at any await, a panic in the body and
/// every early exit (`return`, `?`) release the lock; arguments are dropped before it is released.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = proc_macro2::TokenStream::from(item);
    match expand::expand(args.into(), item.clone()) {
        Ok(expanded) => expanded.into(),
        Err(error) => fallback::beside(&error, item).into(),
    }
}
