//! Futures that the engine carries out for a caller.
//!
//! A caller's future is polled late, rarely, or never again. The steps of an acquisition must not depend on that, so they
//! are a future of their own. The caller only begins this future, and awaits its output. From then on, the thread that wakes
//! the future also polls it. In most cases, this is the engine's thread, which has read a reply. A holder that passes its
//! turn on polls the future of the next member of its cohort, so a turn passes without a switch between threads.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread,
};

use lock_core::backend::BoxFuture;
use tracing::Span;

use crate::background::{self, engine, isolated, lock};

thread_local! {
    /// The futures that have been woken on this thread and not polled yet; `None` while this thread polls none. A future
    /// that is woken by the poll of another one waits here, so that polls are not nested without a limit.
    static WOKEN: RefCell<Option<VecDeque<Arc<dyn Woken>>>> = const { RefCell::new(None) };

    /// Whether this thread wakes a caller. The waker of a caller can run the caller's body, which can take long.
    static WAKING: Cell<bool> = const { Cell::new(false) };
}

/// A future that has been woken.
trait Woken: Send + Sync {
    fn poll(self: Arc<Self>);
}

/// Polls a future, and then the futures that its poll wakes.
fn poll_woken(first: Arc<dyn Woken>) {
    if WAKING.try_with(Cell::get) == Ok(true) {
        // The future must not wait until the waker of a caller has returned.
        engine().spawn(async move { poll_woken(first) });
        return;
    }
    let queued = WOKEN.try_with(|woken| match &mut *woken.borrow_mut() {
        Some(woken) => {
            woken.push_back(first.clone());
            true
        }
        none => {
            *none = Some(VecDeque::new());
            false
        }
    });
    match queued {
        Ok(true) => return,
        Ok(false) => {}
        Err(_) => return first.poll(), // the thread ends
    }
    let mut next = Some(first);
    while let Some(woken) = next {
        isolated(|| woken.poll());
        next = WOKEN.with(|woken| {
            let mut woken = woken.borrow_mut();
            let next = woken.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *woken = None;
            }
            next
        });
    }
}

/// A future, and the span in which the caller has begun it.
struct Work<T> {
    future: BoxFuture<'static, T>,
    span: Span,
}

struct State<T> {
    /// `None` while a thread polls the future, and after its end.
    work: Option<Work<T>>,
    /// Whether the future was woken while a thread polled it.
    is_woken: bool,
    /// Whether the caller has been dropped.
    is_dropped: bool,
    output: Option<thread::Result<T>>,
    /// Wakes the caller.
    caller: Option<Waker>,
}

struct Shared<T>(Mutex<State<T>>);

impl<T: Send + 'static> Woken for Shared<T> {
    fn poll(self: Arc<Self>) {
        loop {
            let work = {
                let mut state = lock(&self.0);
                state.is_woken = state.work.is_none();
                state.work.take()
            };
            let Some(mut work) = work else {
                return; // another thread polls the future, and will see that it was woken
            };
            let waker = Waker::from(self.clone());
            let polled = {
                // The task that this thread polls may have used up the budget that tokio gives to each poll.
                let future = pin!(tokio::task::unconstrained(work.future.as_mut()));
                // A layer of `tracing` can panic.
                let span = isolated(|| work.span.enter());
                let mut cx = Context::from_waker(&waker);
                let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx)));
                isolated(|| drop(span));
                polled
            };
            let output = match polled {
                Ok(Poll::Pending) => {
                    let mut state = lock(&self.0);
                    if !state.is_dropped {
                        state.work = Some(work);
                        if state.is_woken {
                            continue;
                        }
                        return;
                    }
                    drop(state);
                    isolated(|| drop(work));
                    return;
                }
                Ok(Poll::Ready(output)) => Ok(output),
                Err(panic) => Err(panic),
            };
            isolated(|| drop(work));
            let mut state = lock(&self.0);
            if state.is_dropped {
                drop(state);
                isolated(|| drop(output));
                return;
            }
            state.output = Some(output);
            let caller = state.caller.take();
            drop(state);
            let was_waking = WAKING.try_with(|waking| waking.replace(true));
            isolated(|| caller.map(Waker::wake));
            let _ = WAKING.try_with(|waking| waking.set(was_waking.unwrap_or_default()));
            return;
        }
    }
}

impl<T: Send + 'static> Wake for Shared<T> {
    fn wake(self: Arc<Self>) {
        poll_woken(self);
    }
}

impl background::Context {
    /// Carries out `future` for a caller, but independently of when this caller is polled. The first poll of the returned
    /// future begins `future`. Dropping the returned future drops `future`, or its output.
    pub(crate) fn drive<F>(&self, future: F) -> Driven<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "__simulation")]
        let future = background::world::while_running(self.world.clone(), 0, future);
        Driven::new(Box::pin(future))
    }
}

/// The output of a future that the thread which wakes it also polls. The first poll begins the future. Dropping this value drops
/// the future, or its output.
pub(crate) struct Driven<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    has_begun: bool,
}

impl<T: Send + 'static> Driven<T> {
    fn new(future: BoxFuture<'static, T>) -> Self {
        let state = State {
            work: Some(Work {
                future,
                span: Span::current(),
            }),
            is_woken: false,
            is_dropped: false,
            output: None,
            caller: None,
        };
        Self {
            shared: Arc::new(Shared(Mutex::new(state))),
            has_begun: false,
        }
    }
}

impl<T: Send + 'static> Future for Driven<T> {
    type Output = T;

    /// # Panics
    /// Panics if the future has panicked.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.shared.clone().poll();
        }
        let caller = cx.waker().clone();
        let mut state = lock(&self.shared.0);
        let (output, before) = match state.output.take() {
            Some(output) => (Some(output), Some(caller)),
            None => (None, state.caller.replace(caller)),
        };
        drop(state);
        drop(before);
        match output {
            Some(Ok(output)) => Poll::Ready(output),
            Some(Err(panic)) => resume_unwind(panic),
            None => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for Driven<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.0);
        state.is_dropped = true;
        let left = (state.work.take(), state.output.take(), state.caller.take());
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    fn driven<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Driven<T> {
        Driven::new(Box::pin(future))
    }

    #[test]
    fn the_future_goes_on_on_the_thread_that_wakes_it() {
        let (sender, receiver) = oneshot::channel();
        let mut driven = driven(async move {
            receiver.await.unwrap();
            thread::current().id()
        });
        assert!((&mut driven).now_or_never().is_none());
        let waking = thread::spawn(move || {
            sender.send(()).unwrap();
            thread::current().id()
        });
        let by = waking.join().unwrap();
        assert_eq!(driven.now_or_never(), Some(by));
    }

    #[test]
    fn a_future_that_is_woken_by_another_one_is_polled_after_it() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (first, is_first) = oneshot::channel();
        let (second, is_second) = oneshot::channel();
        let orders = order.clone();
        let mut one = driven(async move {
            is_first.await.unwrap();
            lock(&orders).push("one begins");
            second.send(()).unwrap();
            lock(&orders).push("one ends");
        });
        let orders = order.clone();
        let mut two = driven(async move {
            is_second.await.unwrap();
            lock(&orders).push("two");
        });
        assert!((&mut one).now_or_never().is_none() && (&mut two).now_or_never().is_none());
        first.send(()).unwrap();
        assert_eq!(*lock(&order), ["one begins", "one ends", "two"]);
        assert!(one.now_or_never().is_some() && two.now_or_never().is_some());
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again() {
        let mut polls = 0;
        let driven = driven(std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls < 100 {
                Poll::Pending
            } else {
                Poll::Ready(polls)
            }
        }));
        assert_eq!(driven.now_or_never(), Some(100));
    }

    /// Counts its drop.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_dropped_caller_drops_the_future_or_its_output() {
        let drops = Arc::new(AtomicUsize::new(0));
        let (counted, (sender, receiver)) = (Counted(drops.clone()), oneshot::channel::<()>());
        let mut waiting = driven(async move {
            let _ = receiver.await;
            counted
        });
        assert!((&mut waiting).now_or_never().is_none());
        drop(waiting);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        assert!(sender.is_closed());

        let (counted, (sender, receiver)) = (Counted(drops.clone()), oneshot::channel::<()>());
        let mut ready = driven(async move {
            let _ = receiver.await;
            counted
        });
        assert!((&mut ready).now_or_never().is_none());
        sender.send(()).unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        drop(ready);
        assert_eq!(drops.load(Ordering::SeqCst), 2);
    }

    /// Many threads wake futures, while their callers are dropped or read the outputs.
    #[test]
    fn threads_that_wake_poll_and_drop_lose_no_output() {
        let drops = Arc::new(AtomicUsize::new(0));
        for round in 0..2_000 {
            let (counted, (sender, receiver)) = (Counted(drops.clone()), oneshot::channel::<()>());
            let (again, second) = oneshot::channel::<()>();
            let mut driven = driven(async move {
                let _ = receiver.await;
                let _ = second.await;
                counted
            });
            assert!((&mut driven).now_or_never().is_none());
            let waking = thread::spawn(move || sender.send(()));
            let again = thread::spawn(move || again.send(()));
            if round % 2 == 0 {
                drop(driven);
            } else {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                drop(runtime.block_on(driven));
            }
            let _ = (waking.join().unwrap(), again.join().unwrap());
            assert_eq!(drops.load(Ordering::SeqCst), round + 1);
        }
    }

    /// The waker of a caller runs the caller's body, which waits for another future.
    #[test]
    fn a_future_that_is_woken_by_a_caller_s_body_goes_on() {
        struct Blocks(
            Mutex<Option<oneshot::Sender<()>>>,
            Mutex<Option<Driven<()>>>,
        );
        impl Wake for Blocks {
            fn wake(self: Arc<Self>) {
                let sender = lock(&self.0).take().unwrap();
                sender.send(()).unwrap();
                let other = lock(&self.1).take().unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                runtime.block_on(other);
            }
        }
        let (first, is_first) = oneshot::channel();
        let (second, is_second) = oneshot::channel();
        let mut other = driven(async move { is_second.await.unwrap() });
        assert!((&mut other).now_or_never().is_none());
        let mut one = driven(async move { is_first.await.unwrap() });
        let waker = Arc::new(Blocks(Mutex::new(Some(second)), Mutex::new(Some(other)))).into();
        let mut cx = Context::from_waker(&waker);
        assert!(pin!(&mut one).poll(&mut cx).is_pending());
        first.send(()).unwrap();
        assert!(one.now_or_never().is_some());
    }

    #[test]
    fn a_panic_that_nobody_catches_stops_no_other_future() {
        struct Panics;
        impl Woken for Panics {
            fn poll(self: Arc<Self>) {
                panic!("planted");
            }
        }
        poll_woken(Arc::new(Panics));
        let (sender, receiver) = oneshot::channel();
        let mut driven = driven(async move { receiver.await.unwrap() });
        assert!((&mut driven).now_or_never().is_none());
        sender.send(()).unwrap();
        assert!(driven.now_or_never().is_some());
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let (sender, receiver) = oneshot::channel::<()>();
        let mut panicking = driven(async move {
            let _ = receiver.await;
            panic!("planted");
        });
        assert!((&mut panicking).now_or_never().is_none());
        sender.send(()).unwrap();
        let read = catch_unwind(AssertUnwindSafe(|| panicking.now_or_never()));
        let text = *read.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(text, "planted");
    }

    #[tokio::test]
    async fn the_caller_is_woken() {
        let driven = driven(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        });
        assert_eq!(driven.await, 7);
    }
}
