//! The runtime of the caller: a call needs neither the runtime's timer nor its I/O driver, and can continue on another
//! runtime.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake},
    thread,
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all, select_all},
};
use lock_runtime::{Hold, LockClient, LockError, MultiLockGuard};
use support::{
    assert_busy, assert_lost,
    proxy::FaultProxy,
    server::{RedisServer, ask, shared_server},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    time::timeout,
};

use crate::stores::{MS, SECOND, Store, hold, until, until_waiting};

/// Runs a test on three runtimes: one with neither a timer nor an I/O driver, one with only a timer, and one with only
/// an I/O driver.
fn on_bare_runtimes<F, Fut>(store: &Store, test: F)
where
    F: Fn(Store) -> Fut,
    Fut: Future<Output = ()>,
{
    for (time, io) in [(false, false), (true, false), (false, true)] {
        let mut builder = Builder::new_current_thread();
        if time {
            builder.enable_time();
        }
        if io {
            builder.enable_io();
        }
        builder.build().unwrap().block_on(test(store.clone()));
    }
}

/// Makes calls wait for the three events that need a timer: the grant of the lock, a turn among siblings, and the end
/// of a lease.
async fn enters_waits_and_loses(store: Store) {
    let client = store.client().await;
    client.lock("k").run(async {}).await.unwrap();
    for strategy in store.strategies() {
        let lock = client.lock("k").strategy(*strategy);
        let guard = lock.acquire().await.unwrap();
        let busy = lock.clone().wait(50 * MS).acquire().await;
        assert_busy(&busy);
        let sibling = guard.run(async {
            let sibling = lock.clone().wait(50 * MS);
            let never = std::future::pending::<()>();
            let first = lock.run(never);
            tokio::select! {
                biased;
                _ = first => unreachable!("the first call never ends"),
                sibling = sibling.run(async {}) => sibling,
            }
        });
        let busy = sibling.await.unwrap();
        assert_busy(&busy);
        guard.extend(SECOND).await.unwrap();
        guard.release().await;
        let lost = lock.lease(300 * MS).run(std::future::pending::<()>()).await;
        // On a busy machine, the engine can hear from the server that the grant is gone before it sees the deadline.
        assert_lost(&lost);
    }
}

#[test]
fn in_process_a_runtime_needs_no_drivers() {
    on_bare_runtimes(&Store::memory(), enters_waits_and_loses);
}

#[test]
fn with_a_server_a_runtime_needs_no_drivers() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(Store::redis());
    on_bare_runtimes(&store, enters_waits_and_loses);
}

/// A caller with a special waker. The waker itself polls the caller at once, on the thread that calls the waker.
struct Inline {
    caller: Mutex<Option<BoxFuture<'static, ()>>>,
    is_woken: AtomicBool,
}

impl Inline {
    fn start(caller: impl Future<Output = ()> + Send + 'static) {
        let inline = Self {
            caller: Mutex::new(Some(caller.boxed())),
            is_woken: AtomicBool::new(false),
        };
        Arc::new(inline).wake();
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        let waker = self.clone().into();
        while self.is_woken.load(Ordering::SeqCst) {
            let Some(mut caller) = self.caller.lock().unwrap().take() else {
                // The caller has ended, or is polled at this moment. In the second case, the code that polls it polls
                // it again.
                return;
            };
            self.is_woken.store(false, Ordering::SeqCst);
            if caller
                .poll_unpin(&mut Context::from_waker(&waker))
                .is_ready()
            {
                return;
            }
            *self.caller.lock().unwrap() = Some(caller);
        }
    }
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("a destructor in the body panics");
    }
}

/// Runs a test in a thread of its own, because a test that fails would never end.
fn within_ten_seconds<Fut: Future<Output = ()>>(test: impl FnOnce() -> Fut + Send + 'static) {
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(test());
        ended.send(()).unwrap();
    });
    let ended = has_ended.recv_timeout(10 * SECOND);
    ended.expect("no caller waits for itself");
}

/// On a server, too, the waker of a caller is allowed to poll the caller at once: on the engine's thread, which reads
/// the message about a grant, or on the thread of a caller that passes its turn on.
#[test]
fn a_caller_may_be_polled_by_the_engine() {
    within_ten_seconds(|| async {
        for store in [Store::redis().await, Store::redisson().await] {
            let [client, other] = store.clients().await;
            let guard = hold(&other, "k").await;
            let lock = client.lock("k").wait(30 * SECOND);
            let before = client.stats().commands;
            let entered = (0..3).map(|_| {
                let (lock, (inside, is_inside)) = (lock.clone(), oneshot::channel());
                Inline::start(async move {
                    let inside = async { inside.send(()).unwrap() };
                    lock.run(inside).await.unwrap();
                });
                is_inside
            });
            let entered: Vec<_> = entered.collect();
            // The session sends its second command after a caller has found the lock taken.
            until(async || client.stats().commands >= before + 2).await;
            guard.release().await;
            for is_inside in entered {
                is_inside.await.unwrap();
            }
        }
    });
}

/// In the in-process backend, an extension of the lease wakes the next caller, whose waker is allowed to poll this caller
/// at once. The caller is allowed to look at the lease.
#[test]
fn a_caller_may_be_polled_by_an_extension() {
    within_ten_seconds(|| async {
        let client = LockClient::connect("memory:").await.unwrap();
        let lock = client.lock("k").lease(30 * SECOND).wait(30 * SECOND);
        let guard = Arc::new(lock.acquire().await.unwrap());
        let (held, waits) = (guard.clone(), lock.clone());
        let polls = Arc::new(AtomicUsize::new(0));
        let polled = polls.clone();
        Inline::start(async move {
            let mut waiting = pin!(waits.acquire());
            let looking = std::future::poll_fn(|cx| {
                assert!(!held.remaining().is_zero());
                polled.fetch_add(1, Ordering::SeqCst);
                waiting.as_mut().poll(cx)
            });
            drop(looking.await.unwrap());
        });
        until(async || lock.status().await.unwrap().waiters == 1).await;
        let before = polls.load(Ordering::SeqCst);
        guard.extend(60 * SECOND).await.unwrap();
        assert!(polls.load(Ordering::SeqCst) > before);
    });
}

/// In the in-process backend, a release and the end of a turn wake the next caller. The waker of the next caller is
/// allowed to poll that caller at once, on the thread that releases the lock or ends the turn.
#[test]
fn a_caller_may_be_polled_by_the_one_that_wakes_it() {
    within_ten_seconds(|| async {
        let client = LockClient::connect("memory:").await.unwrap();
        let lock = client.lock("k").wait(30 * SECOND);
        let run = |inside: oneshot::Sender<()>| {
            let lock = lock.clone();
            async move {
                let inside = async { inside.send(()).unwrap() };
                lock.run(inside).await.unwrap();
            }
        };
        let (inside, is_inside) = oneshot::channel();
        let guard = lock.acquire().await.unwrap();
        Inline::start(run(inside));
        guard.release().await;
        is_inside.await.unwrap();

        let (inside, is_inside) = oneshot::channel();
        let siblings = async {
            let (end, is_over) = oneshot::channel::<()>();
            let mut first = lock.run(is_over).boxed();
            assert!((&mut first).now_or_never().is_none());
            Inline::start(run(inside));
            end.send(()).unwrap();
            first.await.unwrap().unwrap();
            is_inside.await.unwrap();
        };
        lock.run(siblings).await.unwrap();
    });
}

/// A lock is lost, the engine wakes its caller, and the waker polls the caller on the engine's thread. The caller drops
/// its body, and a destructor in the body panics. The engine still renews the other leases of the client.
#[test]
fn a_panic_of_a_caller_that_the_engine_polls_ends_no_other_renewal() {
    within_ten_seconds(|| async {
        let store = Store::redis().await;
        let client = store.client().await;
        client.lock("warm").run(async {}).await.unwrap();
        let lock = |key| client.lock(key).lease(SECOND).renew(true);
        // Both locks are acquired at the same moment, so one command renews both leases, and the answer for `a` comes
        // first.
        let (inside, a_is_inside) = oneshot::channel();
        let a = lock("a");
        Inline::start(async move {
            let body = async move {
                let _owned = PanicOnDrop;
                inside.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            a.run(body).await.unwrap();
        });
        let (inside, b_is_inside) = oneshot::channel();
        let b = lock("b");
        Inline::start(async move {
            let body = async move {
                assert!(inside.send(Hold::current().unwrap()).is_ok());
                std::future::pending::<()>().await;
            };
            b.run(body).await.unwrap();
        });
        a_is_inside.await.unwrap();
        let b = b_is_inside.await.unwrap();
        store.delete("a").await;
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(client.stats().lost, 1);
        assert_eq!(b.loss(), None);
        assert!(b.remaining() > Duration::ZERO);
    });
}

/// A lease ends, a timer on the engine's thread wakes the caller, and the waker polls the caller on this thread. The
/// caller drops its body, and a destructor in the body panics. The engine continues to run.
#[test]
fn a_panic_of_a_caller_that_a_timer_wakes_does_not_end_the_engine() {
    within_ten_seconds(|| async {
        for store in [Store::memory(), Store::redis().await] {
            let client = store.client().await;
            let lock = client.lock("k");
            // Outside of a runtime, a caller needs the engine's thread.
            let enter = |owned: Option<PanicOnDrop>| {
                let (lock, (inside, is_inside)) = (lock.clone(), oneshot::channel());
                let caller = async move {
                    let body = async move {
                        let has_more = owned.is_some();
                        let _owned = owned;
                        inside.send(()).unwrap();
                        if has_more {
                            std::future::pending::<()>().await;
                        }
                    };
                    let lock = lock.wait(5 * SECOND).lease(SECOND);
                    lock.run(body).await.unwrap();
                };
                thread::spawn(|| Inline::start(caller)).join().unwrap();
                is_inside
            };
            enter(Some(PanicOnDrop)).await.unwrap();
            enter(None).await.unwrap();
        }
    });
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker of a caller panics");
    }
}

/// A caller waits for the next connection of its client, and its waker panics when the client has connected. The client is
/// connected nevertheless.
#[test]
fn a_waker_that_panics_does_not_end_the_session() {
    within_ten_seconds(|| async {
        let proxy = FaultProxy::start(shared_server().await.port()).await;
        let client = Store::redis().await.through(&proxy.url()).client().await;
        client.lock("warm").run(async {}).await.unwrap();
        proxy.refuse(true);
        proxy.cut();
        let refused = client.lock("k").wait(Duration::ZERO).acquire().await;
        assert!(
            matches!(refused, Err(LockError::Unreachable { .. })),
            "{refused:?}"
        );
        let lock = client.lock("k").wait(60 * SECOND);
        let mut call = Box::pin(lock.acquire());
        let waker = Arc::new(Panics).into();
        let polled = call.poll_unpin(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        proxy.refuse(false);
        let other = client.lock("other").wait(5 * SECOND);
        assert_eq!(other.run(async {}).await, Ok(()));
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes a call and a runtime, and polls the call once on this runtime. Releases the locks and begins again if the answer
/// comes within the first poll, which can last long on a busy machine.
fn until_unanswered<F>(
    releases: &Runtime,
    make: impl Fn() -> (Runtime, F),
) -> (Runtime, Pin<Box<F>>)
where
    F: Future<Output = Result<MultiLockGuard, LockError>>,
{
    loop {
        let (first, call) = make();
        let mut call = Box::pin(call);
        let Some(answer) = first.block_on(async { (&mut call).now_or_never() }) else {
            return (first, call);
        };
        releases.block_on(answer.unwrap().release());
    }
}

/// A call for several locks sends its request on a runtime that then ends, and continues on another runtime. The call
/// keeps the locks that it takes on the second runtime.
#[test]
fn several_locks_are_kept_by_a_call_that_changes_its_runtime() {
    let second = runtime();
    let stores = async {
        [
            Store::redis().await,
            Store::redisson().await,
            Store::redlock().await,
        ]
    };
    for store in second.block_on(stores) {
        let [client, other] = second.block_on(store.clients());
        second.block_on(client.lock("warm").run(async {})).unwrap();
        for round in 0..5 {
            let keys = [format!("a{round}"), format!("b{round}")];
            let both = client.locks(keys.clone()).wait(10 * SECOND);
            let (first, call) = until_unanswered(&second, || {
                let first = runtime();
                first.block_on(client.lock("warm").run(async {})).unwrap();
                (first, both.acquire())
            });
            drop(first);
            second.block_on(async {
                let guard = call.await.unwrap();
                for key in &keys {
                    let busy = other.lock(key.as_str()).wait(2 * SECOND).acquire().await;
                    assert_busy(&busy);
                }
                guard.release().await;
            });
        }
        assert_eq!(client.stats().lost, 0, "{store:?}");
    }
}

/// A call waits on a runtime that then ends, or that nobody drives any longer. On another runtime, the call continues
/// to wait, and enters or returns `Busy` in time.
#[test]
fn a_waiting_call_changes_its_runtime() {
    let second = runtime();
    let stores = async {
        [
            Store::memory(),
            Store::redis().await,
            Store::cluster().await,
        ]
    };
    for store in second.block_on(stores) {
        let [client, other] = second.block_on(store.clients());
        for (wait, ends) in [
            (300 * MS, true),
            (300 * MS, false),
            (20 * SECOND, true),
            (20 * SECOND, false),
        ] {
            let held = second.block_on(hold(&other, "k"));
            let mut call = Box::pin(client.lock("k").wait(wait).acquire());
            let first = runtime();
            let waited = first.block_on(async { timeout(100 * MS, &mut call).await });
            assert!(waited.is_err(), "the call waits");
            let _undriven = (!ends).then_some(first);
            let started = Instant::now();
            if wait == 300 * MS {
                let ended = second.block_on(async { timeout(20 * SECOND, call).await });
                assert_busy(&ended.expect("the call ends"));
                assert!(started.elapsed() < wait + support::epsilon(), "{store:?}");
                second.block_on(held.release());
            } else {
                let waited = second.block_on(async { timeout(100 * MS, &mut call).await });
                assert!(waited.is_err(), "the call waits");
                second.block_on(async {
                    held.release().await;
                    call.await.unwrap().release().await;
                });
            }
        }
    }
}

/// A runtime shuts down while other threads block on calls with the runtime's handle. The calls continue to wait, and
/// enter or return `Busy` in time.
#[test]
fn calls_outlive_the_shutdown_of_the_runtime_whose_handle_polls_them() {
    let second = runtime();
    for wait in [400 * MS, 20 * SECOND] {
        let [client, other] = second.block_on(Store::memory().clients());
        let held = second.block_on(hold(&other, "k"));
        let mut builder = Builder::new_multi_thread();
        let first = builder.worker_threads(1).enable_all().build().unwrap();
        let started = Instant::now();
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let (handle, lock) = (first.handle().clone(), client.lock("k").wait(wait));
                thread::spawn(move || handle.block_on(lock.run(async {})))
            })
            .collect();
        second.block_on(until_waiting(&other, "k", calls.len()));
        first.shutdown_background();
        if wait == 400 * MS {
            for call in calls {
                assert_busy(&call.join().expect("nothing panics"));
            }
            second.block_on(held.release());
        } else {
            second.block_on(held.release());
            for call in calls {
                call.join().expect("nothing panics").unwrap();
            }
        }
        let took = started.elapsed();
        assert!(took < 400 * MS + support::epsilon(), "{took:?}");
    }
}

/// A call waits on a runtime that nobody drives any longer, and then continues on another runtime. On the second
/// runtime, the call enters as soon as the lock is free.
#[test]
fn a_call_leaves_a_runtime_that_nobody_drives() {
    let second = runtime();
    let stores = async {
        [
            Store::memory(),
            Store::redis().await,
            Store::cluster().await,
            Store::redlock().await,
            Store::redisson().await,
        ]
    };
    for store in second.block_on(stores) {
        let strategies = store.strategies().iter();
        // Either the call reads the server's answers on the first runtime, or the answers arrive on the first runtime
        // and the call reads them on the second one.
        let cases = strategies.flat_map(|strategy| [(*strategy, true), (*strategy, false)]);
        for (strategy, reads_answers) in cases {
            let [client, other] = second.block_on(store.clients());
            let held = second.block_on(hold(&other, "k"));
            let lock = client.lock("k").wait(5 * SECOND).strategy(strategy);
            let mut call = Box::pin(lock.acquire());
            let first = runtime();
            first.block_on(async {
                if reads_answers {
                    assert!(
                        timeout(300 * MS, &mut call).await.is_err(),
                        "the call waits"
                    );
                } else {
                    assert!(
                        (&mut call).now_or_never().is_none(),
                        "the call has no answer yet"
                    );
                    tokio::time::sleep(300 * MS).await;
                }
            });
            second.block_on(held.release());
            let started = Instant::now();
            let entered = second.block_on(async {
                call.await.unwrap().release().await;
                started.elapsed()
            });
            assert!(
                entered < SECOND + support::epsilon(),
                "{store:?}, {strategy:?}: {entered:?}"
            );
        }
    }
}

/// A call for several locks is polled once on a runtime that nobody drives after that. The call enters on another
/// runtime.
#[test]
fn a_call_for_several_locks_leaves_a_runtime_that_nobody_drives() {
    let second = runtime();
    let stores = async {
        [
            Store::redis().await,
            Store::redisson().await,
            Store::redlock().await,
        ]
    };
    for store in second.block_on(stores) {
        let client = second.block_on(store.client());
        let both = client.locks(["a", "b"]).wait(5 * SECOND);
        let (_first, call) = until_unanswered(&second, || (runtime(), both.acquire()));
        let started = Instant::now();
        second.block_on(async { call.await.unwrap().release().await });
        let entered = started.elapsed();
        assert!(
            entered < SECOND + support::epsilon(),
            "{store:?}: {entered:?}"
        );
    }
}

/// Polls a call once on a new runtime, and waits until `carried_out` completes, that is, until the server has carried
/// out the call's request. Until then, `proxy` holds back the server's answer. Returns the runtime. Nobody drives this
/// runtime afterwards, so the call does not read the answer on it.
fn ask_and_stand_still<F: Future + Unpin>(
    client: &LockClient,
    proxy: &FaultProxy,
    call: &mut F,
    carried_out: impl Future<Output = ()>,
) -> Runtime {
    let first = runtime();
    first.block_on(async {
        client.lock("warm").run(async {}).await.unwrap();
        proxy.hold_replies(true);
        assert!(call.now_or_never().is_none(), "the call has no answer yet");
        let mut carried_out = std::pin::pin!(carried_out);
        while timeout(5 * SECOND, carried_out.as_mut()).await.is_err() {
            // On a busy machine, the client can give up its silent connection before the request is sent.
            proxy.hold_replies(false);
            tokio::time::sleep(SECOND).await;
            proxy.hold_replies(true);
        }
        proxy.hold_replies(false);
    });
    first
}

/// A call is granted its lock, but does not read the answer on its first runtime. On its second runtime, the call
/// enters: its own earlier grant does not make the lock busy, even if the call makes only one attempt.
#[test]
fn a_call_that_changes_its_runtime_does_not_wait_for_its_own_grant() {
    let second = runtime();
    for store in second.block_on(async { [Store::redis().await, Store::redisson().await] }) {
        let proxy =
            second.block_on(async { FaultProxy::start(shared_server().await.port()).await });
        let client = second.block_on(store.clone().through(&proxy.url()).client());
        let other = second.block_on(store.client());
        second.block_on(client.lock("warm").run(async {})).unwrap();
        for strategy in store.strategies() {
            for (number, wait) in [0, 5000].into_iter().enumerate() {
                let key = format!("{strategy:?}:{number}");
                let lock = client.lock(&key).strategy(*strategy).wait(wait * MS);
                let mut call = Box::pin(lock.acquire());
                let _first =
                    ask_and_stand_still(&client, &proxy, &mut call, until_held(&other, &key));
                let entered = second.block_on(call);
                let guard = entered.unwrap_or_else(|error| panic!("{store:?}, {key}: {error:?}"));
                second.block_on(guard.release());
            }
        }
        for wait in [0, 5000] {
            let both = client.locks(["a", "b"]).wait(wait * MS);
            let mut call = Box::pin(both.acquire());
            let _first = ask_and_stand_still(&client, &proxy, &mut call, until_held(&other, "b"));
            let entered = second.block_on(call);
            let guard = entered.unwrap_or_else(|error| panic!("{store:?}, {wait}: {error:?}"));
            second.block_on(guard.release());
        }
    }
}

async fn until_held(client: &LockClient, key: &str) {
    support::until(async || client.lock(key).status().await.unwrap().holder.is_some()).await;
}

/// A call is queued, but does not read the answer on its first runtime. On its second runtime, the call has its old
/// place in the queue.
#[test]
fn a_call_that_changes_its_runtime_keeps_its_place() {
    let second = runtime();
    let store = second.block_on(Store::redis());
    let proxy = second.block_on(async { FaultProxy::start(shared_server().await.port()).await });
    let client = second.block_on(store.clone().through(&proxy.url()).client());
    let other = second.block_on(store.client());
    let held = second.block_on(hold(&other, "k"));
    let lock = client.lock("k").wait(10 * SECOND);
    let mut early = Box::pin(lock.acquire());
    let _first = ask_and_stand_still(&client, &proxy, &mut early, until_waiting(&other, "k", 1));
    second.block_on(async {
        let late = other.lock("k").wait(10 * SECOND);
        let mut late = tokio::spawn(async move { late.acquire().await.unwrap() });
        until_waiting(&other, "k", 2).await;
        // During this timeout, the call changes to its second runtime.
        assert!(
            timeout(400 * MS, &mut early).await.is_err(),
            "the call waits"
        );
        held.release().await;
        let first = tokio::select! {
            early = early => early.unwrap(),
            _ = &mut late => panic!("the later call enters first"),
        };
        first.release().await;
        late.await.unwrap().release().await;
    });
}

/// Calls that share a request are queued, but do not read the answer on their first runtime. On their second runtime,
/// these calls enter before a later call.
#[test]
fn calls_that_share_a_request_keep_their_places_on_another_runtime() {
    const CALLS: usize = 3;
    let second = runtime();
    let store = second.block_on(Store::redis());
    let proxy = second.block_on(async { FaultProxy::start(shared_server().await.port()).await });
    let client = second.block_on(store.clone().through(&proxy.url()).client());
    let other = second.block_on(store.client());
    let held = second.block_on(hold(&other, "k"));
    let entered = Arc::new(Mutex::new(Vec::new()));
    let enter = |client: &LockClient, caller: &'static str| {
        let (lock, entered) = (client.lock("k").wait(10 * SECOND), entered.clone());
        async move {
            let guard = lock.acquire().await.unwrap();
            entered.lock().unwrap().push(caller);
            guard.release().await;
        }
    };
    let calls = (0..CALLS).map(|_| enter(&client, "early"));
    let mut early = Box::pin(join_all(calls));
    let waiting = until_waiting(&other, "k", CALLS);
    let _first = ask_and_stand_still(&client, &proxy, &mut early, waiting);
    second.block_on(async {
        let late = tokio::spawn(enter(&other, "late"));
        until_waiting(&other, "k", CALLS + 1).await;
        // During this timeout, the calls change to their second runtime.
        assert!(
            timeout(400 * MS, &mut early).await.is_err(),
            "the calls wait"
        );
        held.release().await;
        early.await;
        late.await.unwrap();
    });
    assert_eq!(
        *entered.lock().unwrap(),
        ["early", "early", "early", "late"]
    );
}

/// The runtime of a call ends while the call leaves the queue. On another runtime, the call returns `Busy`.
#[test]
fn a_call_that_changes_its_runtime_while_it_leaves_is_busy() {
    let second = runtime();
    let server = second.block_on(RedisServer::start());
    let connect = || LockClient::blocking_connect(server.url()).unwrap();
    let (client, other) = (connect(), connect());
    let held = other.lock("k").blocking_acquire().unwrap();
    let first = runtime();
    let mut call = Box::pin(client.lock("k").wait(150 * MS).acquire());
    first.block_on(async {
        assert!(
            timeout(100 * MS, &mut call).await.is_err(),
            "the call waits"
        );
        server.stop_process();
        assert!(
            timeout(100 * MS, &mut call).await.is_err(),
            "the call is leaving the queue"
        );
    });
    drop(first);
    server.continue_process();
    let busy = second.block_on(call);
    assert_busy(&busy);
    held.blocking_release();
    second.block_on(support::until(async || {
        server.keys().await.iter().all(|key| key.contains("fence"))
    }));
}

/// A call is granted the lock, its runtime ends before the call has read the answer, and nobody polls the call again.
/// The engine gives the lock back after a claim (2 s), although the lease is longer.
#[test]
fn an_unread_grant_of_a_runtime_that_has_ended_is_given_back() {
    let second = runtime();
    let store = second.block_on(Store::redis());
    let proxy = second.block_on(async { FaultProxy::start(shared_server().await.port()).await });
    let client = second.block_on(store.clone().through(&proxy.url()).client());
    let other = second.block_on(store.client());
    let mut call = Box::pin(client.lock("k").lease(30 * SECOND).acquire());
    let first = ask_and_stand_still(&client, &proxy, &mut call, until_held(&other, "k"));
    drop(first);
    let since = Instant::now();
    let entered = second.block_on(other.lock("k").wait(10 * SECOND).run(async {}));
    entered.unwrap();
    assert!(since.elapsed() < 4 * SECOND, "{:?}", since.elapsed());
    drop(call);
}

/// Calls share a grant. One of them has held the lock, and the next one is offered its turn. Their runtime ends, or nobody
/// drives it any longer, and nobody polls them again. The engine gives the lock back after a claim (2 s) in total, although
/// the lease is longer.
#[test]
fn turns_that_a_runtime_does_not_take_are_given_back() {
    let second = runtime();
    for ends in [true, false] {
        let [client, other] = second.block_on(async { Store::redis().await.clients().await });
        let held = second.block_on(hold(&other, "k"));
        let lock = client.lock("k").lease(30 * SECOND).wait(60 * SECOND);
        let mut calls: Vec<_> = (0..4).map(|_| Box::pin(lock.acquire())).collect();
        let first = runtime();
        let guard = first.block_on(async {
            let waiting = async {
                until_waiting(&other, "k", 4).await;
                held.release().await;
                std::future::pending::<()>().await;
            };
            let entered = select_all(&mut calls);
            let (entered, number, _) = tokio::select! {
                entered = entered => entered,
                () = waiting => unreachable!("the wait never ends"),
            };
            assert_eq!(number, 0, "the first caller enters first");
            entered.unwrap()
        });
        let _undriven = (!ends).then_some(first);
        second.block_on(async {
            guard.extend(30 * SECOND).await.unwrap();
            guard.release().await;
            let since = Instant::now();
            let entered = other.lock("k").wait(20 * SECOND).run(async {}).await;
            entered.unwrap();
            let took = since.elapsed();
            assert!(took < 4 * SECOND, "ends: {ends}: {took:?}");
        });
    }
}

/// Callers of a blocked runtime wait before a caller of another runtime. That caller enters after one claim (2 s), and not
/// after a claim for each of the others.
#[test]
fn a_blocked_runtime_costs_the_others_one_claim() {
    const CALLERS: usize = 32;
    let second = runtime();
    let [client, other] = second.block_on(async { Store::redis().await.clients().await });
    let held = second.block_on(hold(&other, "k"));
    let (unblock, unblocked) = mpsc::channel::<()>();
    let (block, is_blocked) = oneshot::channel();
    let callers = client.clone();
    let first = thread::spawn(move || {
        runtime().block_on(async {
            let calls = (0..CALLERS).map(|_| {
                let lock = callers.lock("k").wait(120 * SECOND);
                tokio::spawn(async move { lock.run(async {}).await })
            });
            let calls: Vec<_> = calls.collect();
            until_waiting(&callers, "k", CALLERS).await;
            block.send(()).unwrap();
            unblocked.recv().unwrap();
            for call in calls {
                call.await.unwrap().unwrap();
            }
        });
    });
    second.block_on(async {
        is_blocked.await.unwrap();
        let last = client.lock("k").wait(120 * SECOND);
        let last = tokio::spawn(async move { last.run(async {}).await });
        until_waiting(&other, "k", CALLERS + 1).await;
        held.release().await;
        // The callers would need 64 s if each of them were offered its turn.
        timeout(30 * SECOND, last).await.unwrap().unwrap().unwrap();
    });
    unblock.send(()).unwrap();
    first.join().unwrap();
}

/// A runtime is blocked before the first of its callers has read the answer that grants it the lock. The engine gives the
/// lock back after one claim (2 s), and offers it to none of the other callers of this runtime.
#[test]
fn a_runtime_that_reads_no_grant_costs_the_others_one_claim() {
    let second = runtime();
    let client = second.block_on(async { Store::redis().await.client().await });
    second.block_on(client.lock("warm").run(async {})).unwrap();
    let (unblock, unblocked) = mpsc::channel::<()>();
    let (block, is_blocked) = oneshot::channel();
    let callers = client.clone();
    let first = thread::spawn(move || {
        runtime().block_on(async {
            let calls = (0..8).map(|_| {
                let lock = callers.lock("k").wait(120 * SECOND).lease(60 * SECOND);
                tokio::spawn(async move { lock.run(async {}).await })
            });
            let calls: Vec<_> = calls.collect();
            tokio::task::yield_now().await;
            block.send(()).unwrap();
            unblocked.recv().unwrap();
            for call in calls {
                call.await.unwrap().unwrap();
            }
        });
    });
    let took = second.block_on(async {
        is_blocked.await.unwrap();
        let since = Instant::now();
        let last = client.lock("k").wait(60 * SECOND).run(async {}).await;
        last.unwrap();
        since.elapsed()
    });
    assert!(took < 3 * SECOND + support::epsilon(), "{took:?}");
    unblock.send(()).unwrap();
    first.join().unwrap();
}

/// The server closes the connection of a client, and accepts no other. A call reports why. When the server accepts
/// connections again, a call enters.
#[test]
fn a_client_that_cannot_connect_again_is_told_why() {
    let admin = runtime();
    let (server, mut redis) = admin.block_on(async {
        let server = RedisServer::start().await;
        let redis = server.connection().await;
        (server, redis)
    });
    let client = LockClient::blocking_connect(server.url()).unwrap();
    let mut run = |line: &str| {
        let mut command = redis::Cmd::new();
        for word in line.split(' ') {
            command.arg(word);
        }
        admin.block_on(ask::<redis::Value>(&mut redis, &command))
    };
    // After the first call, the client has its session. The other connection is that of `run`.
    let first = client.lock("first").wait(support::PATIENCE);
    admin.block_on(first.run(async {})).unwrap();
    admin.block_on(until(async || server.client_count().await == 2));
    run("CONFIG SET maxclients 1");
    // The client subscribes to its channel a moment after it has connected.
    while run("CLIENT KILL TYPE pubsub") != redis::Value::Int(1) {}
    let lock = client.lock("k").wait(300 * MS);
    let refused = admin.block_on(lock.acquire());
    assert!(
        matches!(&refused, Err(LockError::Unreachable { detail, .. }) if detail.contains("max number of clients")),
        "{refused:?}"
    );
    run("CONFIG SET maxclients 10");
    let guard = admin.block_on(lock.wait(10 * SECOND).acquire()).unwrap();
    admin.block_on(guard.release());
}
