//! The values that a body owns are dropped in the same order as without the attribute, and before the lock is released.

// The tests create most of their values only to drop them, so these lints would report values that are meant to be
// unused.
#![allow(dead_code, unused_assignments, unused_mut, unused_variables)]
#![allow(clippy::toplevel_ref_arg)]

use std::{
    cell::{Cell, RefCell},
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use lock_runtime::{Lock, LockClient, LockError, distributed_lock};

use crate::Locked;

thread_local! {
    static SEEN: RefCell<Vec<(&'static str, bool)>> = const { RefCell::new(Vec::new()) };
    static EXIT: Cell<Exit> = const { Cell::new(Exit::End) };
}

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Exit {
    /// The body ends with its last expression.
    End,
    Return,
    Question,
    Panic,
    /// The future is dropped while the body awaits.
    Dropped,
    /// The future is dropped before its first poll.
    Unpolled,
}

fn exit() -> Exit {
    EXIT.get()
}

/// A value that records when it is dropped, and whether the lock was held at that moment.
struct Witness(&'static str, LockClient);

fn witness(name: &'static str) -> Witness {
    Witness(name, LockClient::current().unwrap())
}

impl Drop for Witness {
    fn drop(&mut self) {
        let lock = self.1.lock("k");
        // A single poll suffices, because the in-memory backend answers at once.
        let status = pin!(lock.status()).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(status)) = status else {
            unreachable!("{status:?}");
        };
        SEEN.with_borrow_mut(|seen| seen.push((self.0, status.holder.is_some())));
    }
}

type Drops = Vec<(&'static str, bool)>;

/// Polls the call so that it ends as `exit` says. Returns the names of the dropped values in order, and whether the
/// lock was held at each drop.
fn drops(exit: Exit, call: impl Future<Output = Locked<u8>>) -> Drops {
    EXIT.set(exit);
    SEEN.take();
    let mut call = Box::pin(call);
    let mut poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match exit {
        Exit::Unpolled => {}
        // These two polls reach the body's first and second await.
        Exit::Dropped => assert!(poll().is_pending() && poll().is_pending()),
        Exit::Panic => {
            assert!(poll().is_pending());
            assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
        }
        Exit::Return => assert_eq!((poll(), poll()), (Poll::Pending, Poll::Ready(Ok(1)))),
        Exit::Question => {
            let refused = Poll::Ready(Err(LockError::ShutDown));
            assert_eq!((poll(), poll()), (Poll::Pending, refused));
        }
        Exit::End => assert_eq!((poll(), poll()), (Poll::Pending, Poll::Ready(Ok(0)))),
    }
    drop(call);
    SEEN.take()
}

fn names(drops: &Drops) -> Vec<&'static str> {
    drops.iter().map(|(name, _)| *name).collect()
}

/// Makes calls of `locked` and of `plain` end in each way of [`Exit`], and asserts that both functions drop the same
/// values in the same order.
async fn same_drops<F, G>(locked: impl Fn() -> F, plain: impl Fn() -> G)
where
    F: Future<Output = Locked<u8>>,
    G: Future<Output = Locked<u8>>,
{
    same_drops_if_granted(&locked, &plain).await;
    // The body of a waiting call has not begun. If the call is dropped, its arguments are therefore dropped in the same
    // order as those of a call that was never polled.
    let unpolled = scoped(async |_| drops(Exit::Unpolled, plain())).await;
    assert_eq!(drops_while_waiting(locked).await, names(&unpolled));
}

async fn same_drops_if_granted<F, G>(locked: &impl Fn() -> F, plain: &impl Fn() -> G)
where
    F: Future<Output = Locked<u8>>,
    G: Future<Output = Locked<u8>>,
{
    let ends = [
        Exit::End,
        Exit::Return,
        Exit::Question,
        Exit::Panic,
        Exit::Dropped,
    ];
    scoped(async |lock| {
        for exit in ends {
            let expected = drops(exit, async { lock.run(plain()).await? });
            assert_eq!(drops(exit, locked()), expected, "{exit:?}");
            assert!(expected.contains(&("local", true)), "{expected:?}");
            assert!(expected.iter().all(|(_, held)| *held), "{expected:?}");
        }
        let unpolled = drops(Exit::Unpolled, plain());
        assert_eq!(drops(Exit::Unpolled, locked()), unpolled);
        assert!(unpolled.iter().all(|(_, held)| !held), "{unpolled:?}");
        assert_eq!(lock.status().await.unwrap().holder, None);
    })
    .await;
}

/// Drops a call that waits for the lock, and returns the names of the values that are dropped with it.
async fn drops_while_waiting<F: Future>(locked: impl Fn() -> F) -> Vec<&'static str> {
    scoped(async |lock| {
        let held = lock.acquire().await.unwrap();
        SEEN.take();
        let mut call = Box::pin(locked());
        let polled = call
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending();
        assert!(polled && lock.status().await.unwrap().waiters == 1);
        drop(call);
        let seen = SEEN.take();
        held.release().await;
        assert_eq!(lock.status().await.unwrap().holder, None);
        names(&seen)
    })
    .await
}

/// Runs a test in the scope of a client, and passes the test the lock `k`, which all functions in this file use.
async fn scoped<T>(test: impl AsyncFnOnce(Lock) -> T) -> T {
    let client = LockClient::connect("memory:").await.unwrap();
    client.scope(test(client.lock("k"))).await
}

/// The beginning of every body in this file: a local variable, an await, and the requested exit.
macro_rules! body {
    ($($body:tt)*) => {{
        let _local = witness("local");
        tokio::task::yield_now().await;
        match exit() {
            Exit::Return => return Ok(1),
            Exit::Question => Err(LockError::ShutDown)?,
            // Unlike `panic!`, `resume_unwind` prints nothing.
            Exit::Panic => resume_unwind(Box::new("planned")),
            Exit::Dropped => std::future::pending().await,
            Exit::End | Exit::Unpolled => {}
        }
        $($body)*
    }};
}

async fn plain_with_two(a: Witness, _: Witness) -> Locked<u8> {
    body!(Ok(0))
}

async fn keeps_one_outside(a: Witness, b: Witness) -> Locked<u8> {
    let lock = LockClient::current()?.lock("k");
    lock.run(async move {
        let a = a;
        body!(Ok(0))
    })
    .await?
}

#[tokio::test]
#[should_panic(expected = "End")]
async fn an_argument_that_outlives_the_lock_is_caught() {
    same_drops(
        || keeps_one_outside(witness("a"), witness("b")),
        || plain_with_two(witness("a"), witness("b")),
    )
    .await;
}

async fn moves_in_by_use(a: Witness, b: Witness) -> Locked<u8> {
    let lock = LockClient::current()?.lock("k");
    lock.run(async move {
        let (b, a) = (b, a);
        body!(Ok(0))
    })
    .await?
}

#[tokio::test]
#[should_panic(expected = "End")]
async fn another_order_is_caught() {
    same_drops(
        || moves_in_by_use(witness("a"), witness("b")),
        || plain_with_two(witness("a"), witness("b")),
    )
    .await;
}

/// Defines each function with and without the attribute, and compares what the two functions drop.
macro_rules! functions {
    ($($test:ident ($($arguments:tt)*) {$($body:tt)*} with ($($given:tt)*);)*) => {$(
        #[tokio::test]
        async fn $test() {
            #[distributed_lock(key = "k")]
            async fn locked($($arguments)*) -> Locked<u8> { body!($($body)*) }
            async fn plain($($arguments)*) -> Locked<u8> { body!($($body)*) }
            same_drops(|| locked($($given)*), || plain($($given)*)).await;
        }
    )*};
}

struct Pair {
    left: Witness,
    right: Witness,
}

fn pair() -> Pair {
    Pair {
        left: witness("left"),
        right: witness("right"),
    }
}

async fn consume(_: Witness) {
    tokio::task::consume_budget().await;
}

functions! {
    used_arguments(a: Witness, b: Witness, c: Witness) {
        drop(b);
        let _ = (&a, &c);
        Ok(0)
    } with (witness("a"), witness("b"), witness("c"));

    unused_arguments(a: Witness, _b: Witness, _: Witness, d: Witness) {
        Ok(0)
    } with (witness("a"), witness("b"), witness("c"), witness("d"));

    a_constant_used_beside(n: u8, a: Witness, _: Witness) {
        Ok(n)
    } with (0, witness("a"), witness("b"));

    tuple_patterns((a, _): (Witness, Witness), b: Witness, (_, c): (Witness, Witness)) {
        drop(c);
        Ok(0)
    } with ((witness("a"), witness("a1")), witness("b"), (witness("c0"), witness("c")));

    nothing_bound((_, _): (Witness, Witness), a: Witness, [..]: [Witness; 2]) {
        Ok(0)
    } with ((witness("0"), witness("1")), witness("a"), [witness("2"), witness("3")]);

    references_in_patterns(ref a: Witness, b: Witness, (ref c, d, _): (Witness, Witness, Witness)) {
        let _ = (a, c);
        Ok(0)
    } with (witness("a"), witness("b"), (witness("c"), witness("d"), witness("_")));

    mutable_arguments(mut a: Witness, mut b: Witness, (mut c, _): (Witness, Witness)) {
        a = witness("a2");
        c = witness("c2");
        Ok(0)
    } with (witness("a"), witness("b"), (witness("c"), witness("_")));

    struct_patterns(Pair { left, .. }: Pair, a: Witness, Pair { right: ref b, left: _ }: Pair) {
        let _ = b;
        Ok(0)
    } with (pair(), witness("a"), pair());

    named_patterns(whole @ Pair { left: Witness(_, _), .. }: Pair, ref half @ Pair { ref left, .. }: Pair, a: Witness) {
        let _ = (half, left);
        drop(whole.right);
        Ok(0)
    } with (pair(), pair(), witness("a"));

    moved_into_a_call(a: Witness, b: Witness, c: Witness) {
        consume(b).await;
        Ok(0)
    } with (witness("a"), witness("b"), witness("c"));

    partly_moved(a: Pair, b: Pair, _c: Pair) {
        drop(b.left);
        consume(a.right).await;
        Ok(0)
    } with (pair(), pair(), pair());

    moved_into_a_block(a: Witness, b: Witness) {
        let inner = async move { let _ = &a; 0 };
        Ok(inner.await)
    } with (witness("a"), witness("b"));

    locals_and_temporaries(a: Witness, b: Witness) {
        let _later = witness("later");
        let _ = witness("at once");
        Ok(witness("tail").1.stats().lost as u8)
    } with (witness("a"), witness("b"));

    behind_pointers(a: Box<Witness>, b: Vec<Witness>, _: Option<Witness>, d: std::rc::Rc<Witness>) {
        drop(d);
        Ok(0)
    } with (Box::new(witness("a")), vec![witness("b0"), witness("b1")], Some(witness("c")), std::rc::Rc::new(witness("d")));
}

/// Defines each method with and without the attribute, on a type of its own, and compares what the two methods drop.
macro_rules! methods {
    ($($test:ident ($($arguments:tt)*) {$($body:tt)*} on |$own:ident| $receiver:expr;)*) => {$(
        #[tokio::test]
        async fn $test() {
            struct Own(Witness, Witness);
            #[allow(clippy::needless_arbitrary_self_type)]
            impl Own {
                #[distributed_lock(key = "k")]
                async fn locked($($arguments)*) -> Locked<u8> { body!($($body)*) }
                async fn plain($($arguments)*) -> Locked<u8> { body!($($body)*) }
            }
            let own = || {
                let $own = Own(witness("self.0"), witness("self.1"));
                $receiver
            };
            let b = || (witness("b"), witness("b1"));
            same_drops(
                || own().locked(witness("a"), b()),
                || own().plain(witness("a"), b()),
            )
            .await;
        }
    )*};
}

methods! {
    self_by_value(self, a: Witness, (b, _): (Witness, Witness)) {
        let _ = (&self.0, &a);
        Ok(0)
    } on |own| own;

    self_unused(self, _a: Witness, _: (Witness, Witness)) {
        Ok(0)
    } on |own| own;

    self_partly_moved(self, a: Witness, _: (Witness, Witness)) {
        drop(self.1);
        Ok(0)
    } on |own| own;

    self_partly_used(self, a: Witness, _: (Witness, Witness)) {
        consume(self.0).await;
        Ok(0)
    } on |own| own;

    self_mutable(mut self, a: Witness, (_, mut b): (Witness, Witness)) {
        self.0 = witness("self.0 again");
        Ok(0)
    } on |own| own;

    self_typed(self: Self, a: Witness, b: (Witness, Witness)) {
        drop(b.1);
        Ok(0)
    } on |own| own;

    self_in_a_box(self: Box<Self>, a: Witness, _: (Witness, Witness)) {
        drop(a);
        Ok(0)
    } on |own| Box::new(own);

    self_in_a_mutable_box(mut self: Box<Self>, _: Witness, b: (Witness, Witness)) {
        self.1 = b.0;
        Ok(0)
    } on |own| Box::new(own);

    self_in_an_arc(self: std::rc::Rc<Self>, a: Witness, b: (Witness, Witness)) {
        Ok(0)
    } on |own| std::rc::Rc::new(own);
}

async fn later(_: Witness, _: (Witness, Witness), _: Witness, error: LockError) -> Locked<u8> {
    Err(error)
}

#[distributed_lock(key = "k", on_busy = fallback(later))]
async fn with_fallback(a: Witness, (b, _): (Witness, Witness), _: Witness) -> Locked<u8> {
    body!(Ok(0))
}

async fn without_fallback(a: Witness, (b, _): (Witness, Witness), _: Witness) -> Locked<u8> {
    body!(Ok(0))
}

/// If a call is dropped while it waits, it drops its arguments itself. If the lock stayed busy instead, the arguments
/// would go to the fallback.
#[tokio::test]
async fn arguments_that_a_fallback_might_have_got() {
    let b = || (witness("b"), witness("b1"));
    let locked = || with_fallback(witness("a"), b(), witness("c"));
    let plain = || without_fallback(witness("a"), b(), witness("c"));
    same_drops_if_granted(&locked, &plain).await;
    assert_eq!(drops_while_waiting(locked).await, ["c", "b", "b1", "a"]);
}

struct Shop(Witness);

#[async_trait(?Send)]
trait Sells {
    async fn locked(self, a: Witness, b: (Witness, Witness), c: Witness) -> Locked<u8>;
    async fn plain(self, a: Witness, b: (Witness, Witness), c: Witness) -> Locked<u8>;
    async fn unused_locked(self: Box<Self>, a: Witness, b: Witness) -> Locked<u8>;
    async fn unused_plain(self: Box<Self>, a: Witness, b: Witness) -> Locked<u8>;
}

#[async_trait(?Send)]
impl Sells for Shop {
    #[distributed_lock(key = "k")]
    async fn locked(self, a: Witness, (b, _): (Witness, Witness), mut c: Witness) -> Locked<u8> {
        body! {
            c = witness("c2");
            drop(a);
            Ok(0)
        }
    }

    async fn plain(self, a: Witness, (b, _): (Witness, Witness), mut c: Witness) -> Locked<u8> {
        body! {
            c = witness("c2");
            drop(a);
            Ok(0)
        }
    }

    #[distributed_lock(key = "k")]
    async fn unused_locked(self: Box<Self>, _a: Witness, _: Witness) -> Locked<u8> {
        body! { Ok(0) }
    }

    async fn unused_plain(self: Box<Self>, _a: Witness, _: Witness) -> Locked<u8> {
        body! { Ok(0) }
    }
}

#[tokio::test]
async fn async_trait_methods() {
    let shop = || Shop(witness("self"));
    let b = || (witness("b"), witness("b1"));
    same_drops(
        || shop().locked(witness("a"), b(), witness("c")),
        || shop().plain(witness("a"), b(), witness("c")),
    )
    .await;
}

#[tokio::test]
async fn async_trait_methods_that_use_no_argument() {
    let shop = || Box::new(Shop(witness("self")));
    same_drops(
        || shop().unused_locked(witness("a"), witness("b")),
        || shop().unused_plain(witness("a"), witness("b")),
    )
    .await;
}
