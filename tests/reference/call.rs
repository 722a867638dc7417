//! One call of the API. The test polls the call by hand: once at the start, and then only after its waker was called.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use lock_runtime::{Hold, LockClient, LockError, LockGuard, distributed_lock};

use crate::model::{Form, LONG, Lease, NAMES, SHORT_KEEP, SHORT_LEASE, SHORT_WAIT, Spec, Wait};

const AN_HOUR: Duration = Duration::from_millis(LONG);

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A future that is polled once at the start, and then only after its waker was called.
pub(crate) struct Polled<T> {
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    woken: Arc<Woken>,
}

impl<T> Polled<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
            woken: Arc::new(Woken(AtomicBool::new(true))),
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.future.is_some() && self.woken.0.load(Ordering::Acquire)
    }

    pub(crate) fn poll(&mut self) -> Option<T> {
        let future = self.future.as_mut()?;
        if !self.woken.0.swap(false, Ordering::AcqRel) {
            return None;
        }
        let waker = Waker::from(self.woken.clone());
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => {
                self.future = None;
                Some(output)
            }
            Poll::Pending => None,
        }
    }
}

type Job = Box<dyn FnOnce()>;

/// The controls with which the test drives the body of a call.
#[derive(Default)]
struct Body {
    holds: RefCell<Vec<Hold>>,
    job: RefCell<Option<Job>>,
    ended: Cell<bool>,
}

impl Body {
    async fn run(self: Rc<Self>, holds: Vec<Hold>) {
        *self.holds.borrow_mut() = holds;
        poll_fn(|_| {
            let job = self.job.borrow_mut().take();
            if let Some(job) = job {
                job();
            }
            if self.ended.get() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

#[distributed_lock(keys = ["<one>", "<other>"], wait = AN_HOUR, client = client, guard = holds)]
async fn both(
    client: &LockClient,
    one: &str,
    other: &str,
    body: Rc<Body>,
) -> Result<(), LockError> {
    body.run(holds.to_vec()).await;
    Ok(())
}

#[distributed_lock(keys = ["<one>", "<other>"], wait = "0s", client = client, guard = holds)]
async fn try_both(
    client: &LockClient,
    one: &str,
    other: &str,
    body: Rc<Body>,
) -> Result<(), LockError> {
    body.run(holds.to_vec()).await;
    Ok(())
}

/// One call of the API, in any state from its first poll to its end.
pub(crate) struct Call {
    running: Polled<Result<Option<LockGuard>, LockError>>,
    guard: Option<LockGuard>,
    body: Rc<Body>,
    outcome: Option<Result<(), LockError>>,
}

impl Call {
    /// Creates a call that has not been polled yet.
    pub(crate) fn new(client: &LockClient, spec: &Spec, own_clock: bool) -> Self {
        let body = Rc::new(Body::default());
        let client = client.clone();
        let running = if let [one, other] = spec.keys[..] {
            let (body, zero) = (body.clone(), spec.wait == Wait::Zero);
            Polled::new(async move {
                let (one, other) = (NAMES[one], NAMES[other]);
                if zero {
                    try_both(&client, one, other, body).await?;
                } else {
                    both(&client, one, other, body).await?;
                }
                Ok(None)
            })
        } else {
            let mut lock = client.lock(NAMES[spec.keys[0]]).strategy(spec.strategy);
            lock = lock.wait(match spec.wait {
                Wait::Zero => Duration::ZERO,
                Wait::Short => Duration::from_millis(SHORT_WAIT),
                Wait::Long => AN_HOUR,
            });
            lock = match spec.lease {
                Lease::Renewed => lock,
                Lease::Short => lock.lease(Duration::from_millis(SHORT_LEASE)),
                Lease::Long => lock.lease(AN_HOUR),
            };
            if spec.at_least {
                let keep = if own_clock { SHORT_KEEP } else { LONG / 2 };
                lock = lock.hold_at_least(Duration::from_millis(keep));
            }
            match spec.form {
                Form::Guard => Polled::new(async move { lock.acquire().await.map(Some) }),
                Form::Body => {
                    let body = body.clone();
                    Polled::new(async move {
                        let inside = async {
                            let hold = Hold::current().expect("a body runs in a hold");
                            body.run(vec![hold]).await;
                        };
                        lock.run(inside).await.map(|()| None)
                    })
                }
            }
        };
        Self {
            running,
            guard: None,
            body,
            outcome: None,
        }
    }

    /// Polls the call if its waker was called.
    pub(crate) fn poll(&mut self) {
        match self.running.poll() {
            Some(Ok(Some(guard))) => {
                *self.body.holds.borrow_mut() = vec![Hold::clone(&guard)];
                self.guard = Some(guard);
            }
            Some(Ok(None)) => self.outcome = Some(Ok(())),
            Some(Err(error)) => self.outcome = Some(Err(error)),
            None => {}
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.running.is_woken()
    }

    /// Returns the holds of the call, or no holds if the call has ended.
    pub(crate) fn holds(&self) -> Vec<Hold> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        self.body.holds.borrow().clone()
    }

    pub(crate) fn outcome(&self) -> Option<&Result<(), LockError>> {
        self.outcome.as_ref()
    }

    /// Polls `nested` for the first time, inside the body or the guard of this call.
    pub(crate) fn around(&mut self, nested: &Rc<RefCell<Self>>) {
        if let Some(guard) = &self.guard {
            let inside = pin!(guard.run(async { nested.borrow_mut().poll() }));
            match inside.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let mut nested = nested.borrow_mut();
                    nested.running.future = None;
                    nested.outcome = Some(Err(error));
                }
                Poll::Pending => panic!("a future that is ready at once is pending inside a guard"),
            }
            return;
        }
        let nested = nested.clone();
        let job = Box::new(move || nested.borrow_mut().poll());
        *self.body.job.borrow_mut() = Some(job);
        self.pull();
        assert!(self.body.job.borrow().is_none(), "the body was not polled");
    }

    fn pull(&mut self) {
        self.running.woken.clone().wake();
        self.poll();
    }

    /// Releases the guard of a call, or makes its body end. After its body has ended, a call may need further polls
    /// before it completes.
    pub(crate) async fn leave(call: &Rc<RefCell<Self>>) {
        let guard = call.borrow_mut().guard.take();
        if let Some(guard) = guard {
            guard.release().await;
            call.borrow_mut().outcome = Some(Ok(()));
            return;
        }
        call.borrow().body.ended.set(true);
        call.borrow_mut().pull();
    }
}
