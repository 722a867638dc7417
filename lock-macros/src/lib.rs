#![doc = include_str!("../README.md")]
// The main modules are the stages of one expansion. `attribute_args` and `template` parse the attribute, `signature`
// parses the function, `key` resolves the placeholders, and `expand` generates the locked function. If the attribute
// or the function has a mistake, `fallback` generates the errors and keeps the function, so that callers of the
// function still compile.

// `lock-fuzz` compiles the files of this crate as an ordinary library, because a macro crate cannot export the checks
// in `robustness`. An ordinary library cannot use `proc_macro`, so all modules use `proc_macro2`.
#[cfg(not(fuzzing))]
use proc_macro::TokenStream;

mod attribute_args;
mod duration;
mod early_exits;
mod expand;
mod fallback;
mod key;
mod leader;
mod lookalikes;
mod mistakes;
mod option;
mod option_names;
mod parameters;
mod permits;
mod shape;
mod signature;
mod suggest;
mod template;
mod types;
mod value;

use crate::{attribute_args::Args, mistakes::Mistakes, signature::Function};

/// Runs an `async fn` under a distributed lock.
///
/// ```ignore
/// use lock_runtime::distributed_lock;
///
/// #[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s")]
/// async fn pay(id: u64, amount: Money) -> Result<Receipt, PayError> {
///     // No other call pays this order now.
/// }
/// ```
///
/// The function returns a `Result` whose error type implements `From<lock_runtime::LockError>`. If the lock is busy or
/// lost, or its server cannot be reached, the call returns a `LockError`, converted into this error type. The body
/// never starts without the lock.
///
/// # Options
///
#[doc = include_str!("options.md")]
///
/// # Supported functions
///
/// The attribute supports any `async fn`: a free function, a method with any receiver, or a default method of a trait,
/// with generics, lifetimes, and patterns as arguments. The attribute can be placed above `#[tokio::main]` and
/// `#[tokio::test]`. A function with `#[tokio::main]` or `#[tokio::test]` needs `client = …`, because no client is
/// installed yet when the function starts.
///
/// The attribute also supports methods under `#[async_trait]`, and functions that end in `Box::pin(async move { … })`,
/// even if their return type is an alias, and functions that return `impl Future` and end in `async move { … }`. In such
/// a function, statements before the future run at the call, without the lock, and must not contain `return` or `?`. The
/// attribute cannot see a `return` that another macro generates there.
///
/// Write an attribute that copies the body, such as `#[axum::debug_handler]`, below `#[distributed_lock]`. Above it, the
/// copy has no hold of the option `guard`.
///
/// `#[tracing::instrument]` can be placed above or below the attribute, with all options of `#[instrument]`. If
/// `#[instrument]` is above `#[distributed_lock]`, its span covers only the body. If `#[instrument]` is below, its span
/// also covers the time of waiting, and its options `err` and `ret` also report lock errors. If the pattern of an
/// argument binds only one name, `#[instrument]` below the attribute uses that name for the whole argument: with
/// `Path(id): Path<u64>`, write `skip(id)` and `fields(order = id.0)`. If the pattern binds several names,
/// `#[instrument]` has no name for the argument, and only `skip_all` leaves the argument out of the span.
///
/// Options can use names that a pattern binds. With `State(app): State<App>` and `Path((user, id)): Path<(u64, u64)>`,
/// the handler of an axum router can have `key = "order:<user>:<id>", client = app.locks`. In the options, a name that
/// a pattern binds is a reference. Under `#[async_trait]`, an argument that an option uses needs a plain name instead
/// of a pattern, as in `id: Path<u64>` with the placeholder `<id.0>`.
///
/// # Expansion
///
/// ```text
/// // before
/// #[distributed_lock(key = "order:<id>", wait = "5s")]
/// async fn pay(id: u64, mut cart: Cart) -> Result<Receipt, PayError> { BODY }
///
/// // after
/// async fn pay(id: u64, cart: Cart) -> Result<Receipt, PayError> {
///     let key = lock_runtime::__private::v1::key().text("order:").part("id", &id).build();
///     let call = lock_runtime::__private::v1::Call::new("order:<id>", key).wait(lock_runtime::__private::v1::length(5, 0));
///     call.run(
///         async move {
///             let id = id;
///             let mut cart = cart;
///             BODY
///         },
///         <Result<Receipt, PayError> as lock_runtime::LockResult>::from_lock_error,
///     )
///     .await
/// }
///
/// // with on_busy = fallback(later)
///     match call.enter().await {
///         Ok(inside) => inside.run(async move { … BODY }, …).await,
///         Err(error) if is_busy(&error) => later(id, cart, error).await,
///         Err(error) => error.into(),
///     }
/// ```
///
/// The generated code renders the key before the body can move the values that the key uses. The body owns every
/// argument, including unused ones. The arguments are dropped in the same order as in a plain function, before the lock
/// is released.
///
/// The future of the call is `Send` if the body's future and the returned value are `Send`, because the future keeps
/// the value while it waits for the release of the lock. Return `Box<dyn Error + Send + Sync>` instead of
/// `Box<dyn Error>`, for example. The future is `UnwindSafe` under the same conditions. The future is never `Sync`. It
/// contains the returned value and one more copy of each argument; a pattern or `fallback` can need a second copy. Pass
/// a large value in a `Box` or by reference.
///
/// # Lints
///
/// Lints about a function and its body are those of the plain function, except for a few:
///
/// - The body is a block inside the function, and the arguments are bound again in it. `clippy::shadow_same`,
///   `clippy::shadow_unrelated`, `clippy::pattern_type_mismatch` and `clippy::implicit_return` report this, unless
///   `#[allow]` above the function turns them off.
/// - `clippy::ptr_arg`, `clippy::toplevel_ref_arg`, `clippy::unused_async` and `clippy::needless_lifetimes` do not see the
///   original function.
/// - `clippy::disallowed_macros` sees `concat!` and `module_path!` if a `clippy.toml` disallows them.
///
/// # Errors
///
/// Returns the errors of the body. Also returns every `LockError`, converted by `From`. The error is `Busy` if the lock
/// is not granted within `wait`, and `Lost` if the lease is lost. The other variants are other reasons why a lock
/// cannot be acquired. If the attribute is used incorrectly, a compile error says what to write instead.
///
/// # Fairness
///
/// Calls that wait with `strategy = handoff`, the default, get the lock in the order in which they queued, across all
/// processes. The project's `docs/promises.md` lists the exceptions. Calls with `wait = "0s"` or `strategy = spin` never
/// queue, and never overtake a queued call. A Redlock and Redisson's layout have no queue, so their calls enter in any
/// order.
///
/// # Cancel safety
///
/// If the future of a waiting call is dropped, the call gives up its place in the queue. If the future of a call that
/// holds its lock is dropped, first the body is dropped, and then the lock is released. An early exit from the body
/// (`return`, `?`) releases the lock too. If the server cannot be reached, the grant of a dropped call stays until its
/// lease ends. If the grant was not confirmed yet, it stays for at most 2 s. The place of a dropped call in the queue
/// stays until `wait` ends.
///
/// # Panics
///
/// The expansion itself does not panic. If the body panics, the lock is released during unwinding.
///
/// # Examples
///
/// A method that uses a client of its own and the fencing token:
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
/// A job that runs on only one replica, at most once in ten minutes, and for not much longer than two hours:
///
/// ```ignore
/// #[distributed_lock(key = "report", wait = "0s", max_hold = "2h", hold_at_least = "10m", on_busy = skip)]
/// async fn report() -> Result<Option<Report>, LockError> {
///     Ok(Some(Report::write().await?))
/// }
/// ```
///
/// A call that locks two accounts at once, with a fallback if one of the two locks is busy:
///
/// ```ignore
/// #[distributed_lock(keys = ["account:<from.0>", "account:<to.0>"], wait = "2s", on_busy = fallback(later))]
/// async fn transfer(from: Account, to: Account, amount: Money) -> Result<Receipt, TransferError> {
///     // No other call uses these two accounts now.
/// }
///
/// async fn later(from: Account, to: Account, amount: Money, busy: LockError) -> Result<Receipt, TransferError> {
///     Err(TransferError::Later(busy))
/// }
/// ```
///
/// A call that locks a cart and all of its items:
///
/// ```ignore
/// #[distributed_lock(keys = ["cart:<cart.id>", "item:<cart.items..>"], guard = holds)]
/// async fn ship(cart: Cart) -> Result<Receipt, LockError> {
///     // holds[0] is the hold of the cart, holds[1] the hold of its first item.
/// }
/// ```
#[cfg(not(fuzzing))]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    locked(args.into(), item.into()).into()
}

/// Runs an `async fn` while this process leads: the attribute for the method `run` of a `Leader`.
///
/// ```ignore
/// use lock_runtime::{LockError, Term, leader};
///
/// #[leader("scheduler", lease = "15s", max_term = "6h")]
/// async fn schedule(term: Term, jobs: Jobs) -> Result<(), LockError> {
///     if let Some(vacant) = term.vacant_for() {
///         jobs.catch_up(vacant).await;
///     }
///     jobs.work().await
/// }
///
/// schedule(jobs).await?;
/// ```
///
/// The caller passes all arguments except the term. The body runs in each term of this process, with a clone of each
/// argument. If the lease is lost, or if this process resigns, the body is dropped at its next `.await`, and begins again in
/// the next term. The call ends when the body returns, and returns what the body has returned.
///
/// # Options
///
/// The first argument names the role. It is a template, as the option `key` of [`distributed_lock`] is: `"shard:<id>"`.
///
/// | option | meaning |
/// |---|---|
/// | `lease = "15s"` | the lease of a term, at least one second; default: the lease of the client |
/// | `max_term = "6h"` | the longest term, without a limit by default |
/// | `client`, `namespace`, `map_err`, `crate` | as for [`distributed_lock`] |
///
/// # Errors
///
/// Returns the errors of the body, and `LockError::ShutDown` if the client was shut down. Errors that cannot pass, such as
/// a role on a Redlock, are returned before the first term. A lost lease and an unreachable server are not errors: the
/// process becomes a candidate again.
///
/// # Fairness
///
/// Candidates lead in the order in which they queued.
///
/// # Cancel safety
///
/// Dropping the future drops the body, and then gives up the role or the place in the queue.
#[cfg(not(fuzzing))]
#[proc_macro_attribute]
pub fn leader(args: TokenStream, item: TokenStream) -> TokenStream {
    leader::led(args.into(), item.into()).into()
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

#[cfg(any(test, fuzzing))]
pub mod robustness;
#[cfg(test)]
mod snapshots;
