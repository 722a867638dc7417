//! The attribute macro of `lock-runtime`. Services depend on `lock-runtime`, which re-exports the attribute as
//! `lock_runtime::distributed_lock`.
//!
//! The main modules are the stages of one expansion. `attribute_args` and `template` parse the attribute, `signature`
//! parses the function, `key` resolves the placeholders, and `expand` generates the locked function. If the attribute
//! or the function has a mistake, `fallback` generates the errors and keeps the function, so that callers of the
//! function still compile.

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
mod lookalikes;
mod mistakes;
mod option;
mod option_names;
mod parameters;
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
/// | option | meaning | if absent |
/// |---|---|---|
/// | `key = "order:<id>"` | the lock's name; either this or `keys` is required | |
/// | `keys = ["account:<from>", "account:<to>"]` | several locks, all of which are held while the body runs | |
/// | `keys = "item:<ids..>"` | one lock for each item of a list; may also stand beside other keys in `keys = [...]` | |
/// | `wait = "5s"` | how long to wait for the lock; `"0s"` tries once | the client's (3 s by default) |
/// | `lease = "30s"` | a fixed lease: the body is dropped when the lease ends | the client's (30 s by default), renewed after each third of the lease (10 s) |
/// | `renew = true` | renews an explicit lease while the body runs | the lease is renewed only if `lease` is absent |
/// | `max_hold = "10m"` | renewal stops after this time, and the body is dropped when the current lease ends | no limit |
/// | `hold_at_least = "10s"` | the lock stays taken for this long from the grant, even if the body ends earlier | the lock is released when the body ends |
/// | `on_busy = skip` | a call whose lock is busy returns `Ok(None)`; the function returns `Result<Option<T>, E>` | `error` |
/// | `on_busy = fallback(path)` | a call whose lock is busy calls this `async fn` instead, with the same arguments (`self` first) and the `LockError` | `error` |
/// | `on_lost = continue` | the body continues if its lease is lost | `cancel`: the body is dropped at its next `.await` |
/// | `map_err = PayError::Lock` | a function from `LockError` to the error type: a path, or a closure that captures nothing | `From<LockError>` |
/// | `client = self.locks` | an expression for the `LockClient` | the client whose `scope` encloses the call, or otherwise the installed client |
/// | `namespace = "shop"` | separates the keys of different services | the client's |
/// | `guard = hold` | the name by which the body accesses its hold: `hold.token()`, `hold.remaining()`, `hold.lost()`; with `keys` one hold for each key, `hold[0].token()` | |
/// | `crate = ::locks` | the path of `lock-runtime`, if it is renamed: without this option, rustc then finds no `lock_runtime` in the crate root (E0433) | `::lock_runtime` |
/// | `strategy = notify`, `strategy = spin` | how to wait: see [below](#how-to-wait) | the client's (`handoff` by default) |
/// | `release = background` | the call returns as soon as the release is sent, one round trip earlier: see [below](#when-the-call-returns) | the client's (`confirmed` by default) |
/// | `replicas = 1` | how many replicas of the server must have acknowledged the grant before the body starts | the client's (0 by default) |
/// | `mode = exclusive` | the only mode so far | `exclusive` |
///
/// A duration is a whole number with a unit (`us`, `ms`, `s`, `m`, `h`, `d`) in quotes, or an expression of type
/// `Duration`. Examples of such expressions are `limits::WAIT`, `self.config.wait`, an argument, or a call of a
/// function. The expression is evaluated each time the locked function is called, before the lock is requested.
///
/// A wait is at most 24 hours. A lease is at least 10 ms, or 1 s if it is renewed, and at most 24 hours. A literal or a
/// constant out of range is a compile error. An associated constant such as `Self::WAIT` is checked only if the
/// function is used. Any other value out of range makes the call return `LockError::InvalidOptions`. A path is treated
/// as a constant if its last name is written in capitals.
///
/// A nested call can re-enter a lock that an enclosing call holds. On entry, the nested call extends the lock's lease
/// if less time is left than the nested call's own lease time. Re-entry never shortens a lease, so the lease keeps its
/// later deadline after the nested call has ended. If only the nested call renews the lease automatically, the renewal
/// stops when the nested call ends. For example, a nested call without `lease` extends the lease of an enclosing call
/// with `lease = "1s"` to 30 s (the client's default). After the nested call has ended, the enclosing call can have up
/// to 30 s left.
///
/// # Keys
///
/// | in the key | meaning |
/// |---|---|
/// | `<arg>` | the argument's value, percent-escaped to `[A-Za-z0-9._~-]` |
/// | `<arg.field.0>`, `<self.field>` | a field of the argument or of `self` |
/// | `<id>` for `Path(id): Path<u64>` | a name that a pattern binds |
/// | `<arg:raw>` | the value without escaping |
/// | `<arg..>`, `<arg.field..>` | each item of a list; the call locks one key for each item: see [several keys](#several-keys) |
/// | `<<`, `>>` | a literal `<`, `>` |
/// | `{…}` | a Redis Cluster hash tag, kept as is: `"{order:<id>}:pay"` |
///
/// A value in a key can have any type that implements `Display`. `Option` and `()` are refused, because all absent
/// values would share one lock. Two placeholders have to be separated by a character that no escaped value contains,
/// such as `:` or `/`. Different arguments therefore never give the same key, unless their `Display` texts are equal or
/// `:raw` turns the escaping off. A key needs no placeholder: `key = "nightly-report"`.
///
/// A placeholder names fields. To use the value of a method, or an element of an array, take this value as an argument.
/// If rustc suggests to write parentheses or an index beside the key, the suggestion does not apply. A value in the key
/// must not be empty, but it can consist of blanks, or be a text such as `null` or `NaN`: check such values before the
/// call.
///
/// # Several keys
///
/// The call sorts its `keys` and removes duplicates, so `transfer(1, 2)` and `transfer(2, 1)` take their locks in the
/// same order and never deadlock. If all locks are free, they are taken in one step. If one of the locks is not free,
/// the call takes the locks one after another, within one `wait`. A lock that is already taken stays held while the
/// call waits for the next lock. A lease that is not renewed begins when the call has taken the last lock. If a lock is
/// lost before the last lock is taken, the call starts over within its `wait`. With `wait = "0s"`, the call takes
/// either all locks or no lock. If one of the locks is lost while the body runs, the body is dropped, unless `on_lost =
/// continue` is set.
///
/// `<ids..>` stands for each item of a list. The list is an argument, or a field of an argument. The list's type can be
/// a slice, an array, a `Vec`, or any other type that can be iterated over by reference. The items must implement
/// `Display`. `keys = "item:<ids..>"` takes one lock for each item. A key has at most one list placeholder. With `guard
/// = hold`, the holds are in the order of the keys. The holds of one list are in the order of its items. Two items that
/// give the same key share one lock, and the hold of that lock appears at both positions. If all lists are empty and
/// the attribute names no other key, the call fails with `LockError::InvalidKey(KeyError::NoKeys)`, and its body does
/// not run.
///
/// The order of locks matters for nested calls too. Waiting could deadlock if the nested call needs a lock whose name
/// sorts before the name of a lock that the enclosing call holds. If one of the two calls has several keys, the nested
/// call therefore does not wait for such a lock: the nested call tries once, and returns `Busy` if the lock is not
/// free. If each of the two calls has one key, the nested call waits, whatever the order of the names. Two tasks that
/// nest one-key calls in opposite orders can deadlock, but only until the `wait` of one nested call ends.
///
/// # Busy locks and minimum holds
///
/// `on_busy` applies only to `LockError::Busy`. If the server is unreachable or the lease is lost, the call still
/// returns an error. With a `fallback`, the future of the body is created only after the grant. The arguments therefore
/// move either into the body or into the fallback, and no argument is cloned.
///
/// Use `hold_at_least` for jobs that several machines start at about the same time. The call returns as soon as its
/// body has ended. The lock stays taken until the time of `hold_at_least` has passed, so that no other machine repeats
/// the job. The time of `hold_at_least` begins with the grant. The minimum applies both if the body returns `Ok` and if
/// the body returns `Err`. If the body panics, is dropped or loses its lease, the lock is free at once.
///
/// # How to wait
///
/// | strategy | what a caller does if the lock is not free | order | commands for each acquisition that waits |
/// |---|---|---|---|
/// | `handoff` | waits in a queue; each release grants the lock to the next waiter | first come, first served | at most 2, far fewer if many callers of a process wait; one more for a hold of over 100 ms |
/// | `notify` | tries again when a release wakes it; a release that finds nobody in the queue wakes one caller of each process | none | about 3 for each process that waits |
/// | `spin` | tries again and again, after pauses that double from 1 to 128 ms, each shortened by a random part of up to one half | none | one for each try |
///
/// Callers with different strategies can share one lock. A release passes the lock to the first caller in the queue, if
/// there is one. A caller that does not queue never takes a lock while another caller queues for it. As long as other
/// callers queue, callers with `notify` or `spin` therefore do not get the lock.
///
/// # When the call returns
///
/// By default the call returns once the server has confirmed the release, so anyone who learns of the result finds the
/// lock free, or held by the next waiter. If no confirmation arrives within one second, the call returns and the
/// release is retried in the background.
///
/// With `release = background` the call does not wait for the server to confirm the release, so it returns one round
/// trip earlier. If the server does not confirm the release, the engine retries it until the lease ends. The next
/// acquisition on the same tokio runtime reaches the server after the release, because both requests use the same
/// connection. On a Redlock, the acquisition is certain to reach the nodes after the release only while the runtime has
/// its own open connections to the nodes. Until the server has processed the release, other callers find the lock
/// taken, so a call with `wait = "0s"` can return `Busy`.
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
/// processes. The project's `docs/promises.md` lists the exceptions. Calls with `wait = "0s"`, `strategy = notify` or
/// `strategy = spin` never queue, and never overtake a queued call. A Redlock and Redisson's layout have no queue, so
/// their calls enter in any order.
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
