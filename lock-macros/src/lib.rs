//! The attribute of `lock-runtime`. Depend on that crate, which re-exports it as `lock_runtime::distributed_lock`.
//!
//! The modules are the stages of one expansion: `attribute_args` and `template` read the attribute, `signature` the function;
//! `key` finds what the placeholders name, `expand` writes the locked function, `fallback` what is left of it after a
//! mistake.

// `lock-fuzz` compiles these files as an ordinary library, which can export the checks and has no `proc_macro`.
#[cfg(not(fuzzing))]
use proc_macro::TokenStream;

mod attribute_args;
mod duration;
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
/// | `key = "order:<id>"` | the lock's name; this or `keys` is needed | |
/// | `keys = ["account:<from>", "account:<to>"]` | several locks, all of which are held while the body runs | |
/// | `keys = "item:<ids..>"` | a lock for each item of a list, also inside `keys = [...]` | |
/// | `wait = "5s"` | how long to wait for the lock; `"0s"` tries once | the client's, 3 s |
/// | `lease = "30s"` | a fixed lease: at its end the body is dropped | the client's, 30 s, renewed every third |
/// | `renew = true` | renews an explicit lease while the body runs | only an absent `lease` is renewed |
/// | `max_hold = "10m"` | the renewal stops here; the body is dropped at the end of the lease that then runs | no end |
/// | `hold_at_least = "10s"` | the lock stays taken so long from the grant, however quick the body is | free at once |
/// | `on_busy = skip` | a call whose lock is busy returns `Ok(None)`, of a `Result<Option<T>, E>` | `error` |
/// | `on_busy = fallback(path)` | it calls this `async fn` instead, with the same arguments, `self` first, and the `LockError` | `error` |
/// | `on_lost = continue` | a body whose lease is lost runs on | `cancel`: it is dropped at its next `.await` |
/// | `map_err = PayError::Lock` | a function that makes the error type of a `LockError`, by its path or as a closure that captures nothing | `From<LockError>` |
/// | `client = self.locks` | an expression for the `LockClient` | the task's scoped client, else the installed one |
/// | `namespace = "shop"` | sets keys of services apart | the client's |
/// | `guard = hold` | a name under which the body finds its hold: `hold.token()`, `hold.remaining()`, `hold.lost()`; with `keys` one hold for each, `hold[0].token()` | |
/// | `crate = ::locks` | the path of `lock-runtime`, if it was renamed | `::lock_runtime` |
/// | `strategy = notify`, `strategy = spin` | how to wait, see below | the client's, `handoff` |
/// | `release = background` | the value returns when the release is on its way, one round trip earlier: see below | the client's, `confirmed` |
/// | `mode = exclusive` | the default; no others are supported yet | |
///
/// A duration is a whole number with a unit (`us`, `ms`, `s`, `m`, `h`, `d`) in quotes, or an expression of type
/// `Duration`: `limits::WAIT`, `self.config.wait`, an argument, a call. The expression is evaluated at each call, before
/// the lock is asked for. A wait lasts 24 hours at most, a lease from 10 ms to 24 hours. A literal or a constant out of
/// range does not compile (`Self::WAIT`, where the function is used); another value is `LockError::InvalidOptions` when the call
/// runs. A path counts as a constant if its name is written in capitals.
///
/// A nested call that enters its own lock again extends the lease of the hold first, if that ends earlier. The later
/// deadline stays when the nested call has left, because no lease is ever shortened; the renewal of a nested call ends
/// with that call. So a call without a `lease` leaves up to 30 s to an enclosing call with `lease = "1s"`.
///
/// # Keys
///
/// | in the key | stands for |
/// |---|---|
/// | `<arg>` | the argument's value, percent-escaped to `[A-Za-z0-9._~-]` |
/// | `<arg.field.0>`, `<self.field>` | a field of it |
/// | `<id>` for `Path(id): Path<u64>` | what a pattern binds |
/// | `<arg:raw>` | the value as it prints |
/// | `<arg..>`, `<arg.field..>` | each item of a list, in a key of its own: see [several keys](#several-keys) |
/// | `<<`, `>>` | a literal `<`, `>` |
/// | `{…}` | itself: a Redis Cluster hash tag, as in `"{order:<id>}:pay"` |
///
/// A value is anything that is `Display`, except an `Option` or `()`: absent values would share one lock. Between two
/// placeholders stands a character that no escaped value has, such as `:` or `/`, so different arguments never
/// give one key, unless they print alike, or `:raw` leaves the escaping out. A key needs no placeholder: `key = "nightly-report"`.
///
/// # Several keys
///
/// `keys` are sorted and freed of duplicates when the call runs, so that `transfer(1, 2)` and `transfer(2, 1)` take their
/// locks in the same order and never wait for each other. All are taken in one step if all are free; else one after the
/// other, within one `wait`: what is had is kept meanwhile, and a fixed lease begins when the last one is had. If a lock is
/// lost before the last one is had, the call starts over within its `wait`.
/// `wait = "0s"` takes all or none. The loss of one lock ends the body.
///
/// `<ids..>` stands for each item of a list: an argument, or a field of one, that is a slice, an array, a `Vec` or anything
/// else that can be iterated over by reference, with items that are `Display`. `keys = "item:<ids..>"` takes a lock for
/// each item, and a key has one such list at most. With `guard = hold` the holds are in the order of the keys, then of the
/// items; two items that give one key are one lock, whose hold stands at both places. A call whose lists leave no key
/// at all is `LockError::InvalidKey` with `KeyError::NoKeys`, and its body does not run.
///
/// Nested calls keep the order too. Where a call with several keys encloses or is nested, a lock that stands before one
/// that is held already is tried once, and the call is `Busy` if it is not free: waiting for it could deadlock. Nested
/// calls with one key each may stand in any order; there `wait` bounds a deadlock.
///
/// # Busy, and at least
///
/// `on_busy` is about `LockError::Busy` alone: a lock that cannot be reached, or is lost, is an error all the same. With
/// a `fallback` the body is built only after the grant, so that either of the two gets the arguments, and nothing is
/// cloned.
///
/// `hold_at_least` is for jobs that several machines start at about the same time: the value returns at once, and nobody
/// repeats the job until that time is over. It counts from the grant, and holds for a body that returned, be it an `Err`; a
/// body that panics, is dropped or loses its lease frees the lock at once.
///
/// # How to wait
///
/// | strategy | a caller whose lock is not free | order | commands for each acquisition that waits |
/// |---|---|---|---|
/// | `handoff` | queues, and the release gives it the lock | first come, first served | 2 at most, far fewer where many of a process wait; one more if it holds for over 100 ms |
/// | `notify` | is woken by a release for which nobody queues, one caller of each process, and tries again | none | about 3 for each process that waits |
/// | `spin` | tries again and again, after 1 to 128 ms that double, less up to a half by chance | none | as many as it takes |
///
/// Callers with different strategies share one lock: a release serves those who queue first, and no try takes a lock that
/// somebody queues for. So `notify` and `spin` can starve where others queue.
///
/// # When the value returns
///
/// By default when the server has confirmed the release, so that whoever hears of the result finds the lock free, or with
/// the next waiter. With `release = background` when the release is on its way: one round trip earlier. It is tried again
/// until the lease ends. The runtime's next acquisition goes after it, on the same connection; but somebody else who hears of the
/// result at once may find the lock taken for a moment, and a `wait = "0s"` of theirs be `Busy`.
///
/// # Where it stands
///
/// On an `async fn`: a free one, a method with any receiver, a trait's default body; with generics, lifetimes, and
/// patterns as arguments. On a method under `#[async_trait]`, and on any function that ends in
/// `Box::pin(async move { … })`, also if its return type is an alias. Above `#[tokio::main]` and `#[tokio::test]`, where
/// it needs a `client = …` of its own.
///
/// `#[tracing::instrument]` with any of its options may stand below: its span covers the waiting too, and its `err` and
/// `ret` tell of a lock that failed. Above, it covers the body alone. Below, an argument whose pattern has one name goes by that
/// name as a whole: with `Path(id): Path<u64>`, `skip(id)` and `fields(order = id.0)`. One with more names has none there;
/// `skip_all` leaves it out.
///
/// Options name what a pattern binds: with `State(app): State<App>` and `Path((user, id)): Path<(u64, u64)>` the handler
/// of an axum router can have `key = "order:<user>:<id>", client = app.locks`. A part stands there as a reference. Under
/// `#[async_trait]` an argument needs one name, as in `id: Path<u64>` and `<id.0>`.
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
/// overtakes; nor do `strategy = notify` and `strategy = spin`.
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
/// A job that only one replica runs, for as long as it takes, and at most once in ten minutes:
///
/// ```ignore
/// #[distributed_lock(key = "report", wait = "0s", max_hold = "2h", hold_at_least = "10m", on_busy = skip)]
/// async fn report() -> Result<Option<Report>, LockError> {
///     Ok(Some(Report::write().await?))
/// }
/// ```
///
/// Two accounts at once, and a word for those who come while they are busy:
///
/// ```ignore
/// #[distributed_lock(keys = ["account:<from.0>", "account:<to.0>"], wait = "2s", on_busy = fallback(later))]
/// async fn transfer(from: Account, to: Account, amount: Money) -> Result<Receipt, TransferError> {
///     // Both balances are ours.
/// }
///
/// async fn later(from: Account, to: Account, amount: Money, busy: LockError) -> Result<Receipt, TransferError> {
///     Err(TransferError::Later(busy))
/// }
/// ```
///
/// Everything in a cart, and the cart itself:
///
/// ```ignore
/// #[distributed_lock(keys = ["cart:<cart.id>", "item:<cart.items..>"], guard = holds)]
/// async fn ship(cart: Cart) -> Result<Receipt, LockError> {
///     // holds[0] is the cart's, holds[1] that of its first item.
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
