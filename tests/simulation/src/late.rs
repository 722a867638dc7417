//! A future that is polled late: after a wake-up, the next poll can come after a pause.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use crate::{chance::Chance, ledger::Ledger};

/// The waker of the inner future. The waker records the wake-up, and wakes the task that polls the [`Late`].
#[derive(Default)]
struct Woken {
    is: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is.store(true, Ordering::Release);
        let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*outer {
            waker.wake_by_ref();
        }
    }
}

/// The pause between a wake-up of a future and the next poll, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lateness {
    /// The future is polled at once.
    Never,
    /// The future is polled after a random pause of at most this length. Most pauses are much shorter.
    UpTo(u64),
    /// The future is always polled after a pause of this length.
    Always(u64),
}

/// A future that is polled late: it passes polls on to `future` only after a pause.
pub struct Late<F> {
    inner: Pin<Box<F>>,
    chance: Arc<Chance>,
    ledger: Ledger,
    lateness: Lateness,
    woken: Arc<Woken>,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Delays the polls of `future`. The ledger counts the delayed polls.
pub fn late<F: Future>(
    future: F,
    lateness: Lateness,
    chance: &Arc<Chance>,
    ledger: &Ledger,
) -> Late<F> {
    let woken = Woken::default();
    woken.is.store(true, Ordering::Release);
    Late {
        inner: Box::pin(future),
        chance: chance.clone(),
        ledger: ledger.clone(),
        lateness,
        woken: Arc::new(woken),
        pause: None,
    }
}

impl<F> fmt::Debug for Late<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").finish_non_exhaustive()
    }
}

impl<F> Late<F> {
    /// Draws a pause. For [`Lateness::UpTo`], half of the pauses have zero length. Of twenty pauses, six last up to 20
    /// ms, three last up to 500 ms, and one lasts up to the longest time.
    fn draw(&self) -> Duration {
        let longest = match self.lateness {
            Lateness::Never => return Duration::ZERO,
            Lateness::Always(pause) => return Duration::from_millis(pause),
            Lateness::UpTo(longest) => longest,
        };
        let most = match self.chance.among(0..20) {
            0..10 => 0,
            10..16 => longest.min(20),
            16..19 => longest.min(500),
            _ => longest,
        };
        if most == 0 {
            Duration::ZERO
        } else {
            self.chance.millis(0..most + 1)
        }
    }
}

impl<F: Future> Future for Late<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if this.lateness == Lateness::Never {
            return this.inner.as_mut().poll(cx);
        }
        *this
            .woken
            .outer
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        loop {
            if let Some(pause) = &mut this.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                this.pause = None;
            } else if this.woken.is.swap(false, Ordering::AcqRel) {
                let pause = this.draw();
                if !pause.is_zero() {
                    this.ledger.polled_late();
                    this.pause = Some(Box::pin(sleep(pause)));
                    continue;
                }
            } else {
                return Poll::Pending;
            }
            this.woken.is.store(false, Ordering::Release);
            let waker = Waker::from(this.woken.clone());
            if let Poll::Ready(output) = this.inner.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Poll::Ready(output);
            }
        }
    }
}
