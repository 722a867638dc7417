//! Slow pollers, which are callers that poll their futures late or rarely, let another task poll them, or drop them.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use futures_util::{StreamExt, stream};
use lock_runtime::LockError;
use tokio::time::sleep;

use crate::{
    dice::Dice,
    plan::{BUFFERED, BUFFERED_FROM, Outcomes, Poller, SLOW, SLOW_FROM},
    worker::{SECOND, Task},
};

const MICRO: Duration = Duration::from_micros(1);
/// The claim, which is the time within which a caller has to take an offered turn.
const CLAIM: Duration = Duration::from_secs(2);

/// Which keys a slow poller locks, and how long it pauses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// The poller locks the same keys as the callers that poll without delay, and pauses for a few ms.
    Brief,
    /// The poller locks a key that has no other slow poller, and pauses for up to three claims.
    Claims { key: u32 },
    /// The poller makes buffers of futures for a few shared keys, and pauses for at least half a claim (1 s).
    Buffers,
}

impl Pace {
    /// Returns the pace of the slow poller with this number in a worker process.
    pub(crate) fn of(number: u32, process: u32) -> Self {
        match number {
            0..SLOW => Self::Claims {
                key: SLOW_FROM + process * SLOW + number,
            },
            SLOW => Self::Buffers,
            _ => Self::Brief,
        }
    }
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that has begun. If this value is dropped before the call has ended, the call counts as cancelled.
struct Begun<'a> {
    outcomes: &'a Outcomes,
    ended: bool,
}

impl<'a> Begun<'a> {
    fn new(outcomes: &'a Outcomes) -> Self {
        Outcomes::count(&outcomes.begun);
        Self {
            outcomes,
            ended: false,
        }
    }

    /// Records the result of the call. `Busy` is an acceptable result, because a slow poller can miss its turns until
    /// its `wait` is over.
    fn end(mut self, result: &Result<(), LockError>) {
        self.ended = true;
        Outcomes::count(self.outcomes.of(result, true));
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.ended {
            Outcomes::count(&self.outcomes.cancelled);
        }
    }
}

/// Polls a call once and returns whether it has ended.
async fn poll_once(call: &mut Call) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await
}

impl Task {
    /// Makes the calls of one slow poller, and returns when they have ended or were dropped.
    pub(crate) async fn poll_slowly(&self, pace: Pace, dice: &mut Dice) {
        let kind = match pace {
            Pace::Buffers => Poller::Buffered,
            // All of these kinds leave only one future unpolled at a time, so they delay other callers by at most one
            // claim (2 s).
            Pace::Claims { .. } => match dice.below(3) {
                0 => Poller::Selected,
                1 => Poller::ByHand,
                _ => Poller::Forgotten,
            },
            // A buffer makes about ten calls. A buffer is therefore chosen a tenth as often as each of the other kinds.
            Pace::Brief => match dice.below(31) {
                0 => Poller::Buffered,
                1..11 => Poller::Selected,
                11..21 => Poller::ByHand,
                _ => Poller::Forgotten,
            },
        };
        let task = self.as_poller(kind);
        match kind {
            Poller::Buffered => task.buffered(pace, dice).await,
            Poller::Selected => task.selected(pace, dice).await,
            Poller::ByHand => task.by_hand(pace, dice).await,
            Poller::Forgotten => task.forgotten(pace, dice).await,
            Poller::Prompt => {}
        }
    }

    fn slow_key(&self, pace: Pace, dice: &mut Dice) -> u32 {
        match pace {
            Pace::Brief => self.key(dice),
            Pace::Claims { key } => key,
            Pace::Buffers => {
                BUFFERED_FROM + u32::try_from(dice.below(BUFFERED.into())).unwrap_or(0)
            }
        }
    }

    /// Works for a random time, without polling any call. The work ends earlier if the run ends.
    async fn work(&self, pace: Pace, dice: &mut Dice) {
        let most = match pace {
            Pace::Brief if dice.below(2) == 0 => return tokio::task::yield_now().await,
            Pace::Brief => Duration::from_millis(4),
            Pace::Claims { .. } => 3 * CLAIM,
            Pace::Buffers => CLAIM * 3 / 4,
        };
        let least = match pace {
            Pace::Buffers => most * 2 / 3,
            Pace::Brief | Pace::Claims { .. } => Duration::ZERO,
        };
        let micros = u64::try_from((most - least).as_micros()).unwrap_or(1);
        let extra = u32::try_from(dice.below(micros)).unwrap_or(0);
        let mut stop = self.stop.clone();
        tokio::select! {
            () = sleep(least + extra * MICRO) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Returns a call that has not been polled yet.
    fn call(&self, pace: Pace, key: u32, dice: &mut Dice) -> Call {
        let awaits = match pace {
            // This body ends at its first poll. A longer body would hold the lock during the long pause.
            Pace::Claims { .. } => 0,
            Pace::Brief | Pace::Buffers => u32::try_from(dice.below(3)).unwrap_or(0),
        };
        let (lock, task) = self.lock(key, dice);
        Box::pin(async move {
            let begun = Begun::new(&task.outcomes);
            let lock = lock.wait(20 * SECOND);
            let result = lock.run(task.body(key, awaits, 0)).await;
            begun.end(&result);
        })
    }

    async fn buffered(&self, pace: Pace, dice: &mut Dice) {
        let (count, at_once) = (6 + dice.below(10), 3 + dice.below(5));
        let one = (dice.below(2) == 0).then(|| self.slow_key(pace, dice));
        let calls: Vec<Call> = (0..count)
            .map(|_| {
                let key = one.unwrap_or_else(|| self.slow_key(pace, dice));
                self.call(pace, key, dice)
            })
            .collect();
        let at_once = usize::try_from(at_once).unwrap_or(1);
        let mut results = stream::iter(calls).buffer_unordered(at_once);
        while results.next().await.is_some() {
            self.work(pace, dice).await;
        }
    }

    async fn selected(&self, pace: Pace, dice: &mut Dice) {
        let key = self.slow_key(pace, dice);
        let mut call = self.call(pace, key, dice);
        loop {
            tokio::select! {
                biased;
                () = &mut call => return,
                () = tokio::task::yield_now() => {}
            }
            match pace {
                // The new call queues behind `call`. While the new call is awaited, `call` is not polled.
                Pace::Claims { .. } if dice.below(4) == 0 => self.call(pace, key, dice).await,
                _ => self.work(pace, dice).await,
            }
        }
    }

    async fn by_hand(&self, pace: Pace, dice: &mut Dice) {
        let key = self.slow_key(pace, dice);
        let mut call = self.call(pace, key, dice);
        while !poll_once(&mut call).await {
            self.work(pace, dice).await;
        }
    }

    async fn forgotten(&self, pace: Pace, dice: &mut Dice) {
        let key = self.slow_key(pace, dice);
        let mut call = self.call(pace, key, dice);
        for _ in 0..=dice.below(3) {
            if poll_once(&mut call).await {
                return;
            }
            self.work(Pace::Brief, dice).await;
        }
        self.work(pace, dice).await;
        match dice.below(3) {
            0 => drop(call),
            1 => call.await,
            // A new task polls the call to its end.
            _ => tokio::spawn(call).await.expect("a call does not panic"),
        }
    }
}
