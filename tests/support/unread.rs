//! A poll during which no answer arrives.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
};

use lock_runtime::LockClient;

use crate::PATIENCE;

/// A waker that stops the thread that calls it.
struct Stop {
    stopped: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stop {
    fn wake(self: Arc<Self>) {
        // If the other side is gone, nobody waits for this thread.
        if self.stopped.send(()).is_ok() {
            let _ = self.go_on.lock().map(|go_on| go_on.recv());
        }
    }
}

/// Polls a future once, while the engine's thread, which reads all answers, stands still. The poll sends a request, but
/// cannot read the answer. `client` is a client of any server. Returns whether the future is ready.
///
/// # Panics
/// If the engine's thread stops too late.
pub async fn poll_unread<F: Future + ?Sized>(client: &LockClient, mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| {
        let _standing = stop_engine(client);
        Poll::Ready(future.as_mut().poll(cx).is_ready())
    })
    .await
}

/// Stops the engine's thread until the returned value is dropped.
fn stop_engine(client: &LockClient) -> mpsc::Sender<()> {
    loop {
        let (stopped, is_stopped) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let waker = Waker::from(Arc::new(Stop {
            stopped,
            go_on: Mutex::new(goes_on),
        }));
        let mut asking = Box::pin(client.ping(PATIENCE));
        if asking
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            let stopped = is_stopped.recv_timeout(PATIENCE);
            stopped.expect("the answer wakes its caller on the engine's thread");
            return go_on;
        }
    }
}
