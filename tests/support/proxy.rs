//! A TCP proxy that breaks what passes through it.
//!
//! It runs on a thread of its own, so that a test's runtime may be paused, blocked or gone. Every control is effective at
//! once and for the connections that exist.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime::Builder, sync::oneshot};

use crate::backstage;

mod faults;
mod link;

use faults::{Faults, Way};

/// How long an event may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy before one server. Dropping it closes its connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    faults: Arc<Faults>,
    _stop: oneshot::Sender<()>,
}

impl FaultProxy {
    /// A proxy before the server on this port of 127.0.0.1.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(upstream: u16) -> Self {
        let faults = Arc::new(Faults::default());
        let (port, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let seen = faults.clone();
        thread::Builder::new()
            .name("fault-proxy".into())
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime for the proxy");
                runtime.block_on(async move {
                    let (listener, number) = link::listen().await;
                    let _ = port.send(number);
                    tokio::select! {
                        () = link::accept(listener, upstream, seen) => {}
                        _ = stopped => {}
                    }
                });
            })
            .expect("a thread for the proxy");
        Self {
            port: started.await.expect("the proxy listens"),
            faults,
            _stop: stop,
        }
    }

    /// The proxy's port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server behind the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn set(&self, fault: &AtomicBool, on: bool) {
        fault.store(on, Ordering::SeqCst);
        self.faults.changed();
    }

    /// Delays each direction.
    ///
    /// # Panics
    /// If the delay is longer than any test.
    pub fn delay(&self, delay: Duration) {
        self.faults.set_latency(&self.faults.delay_micros, delay);
    }

    /// Delays each direction by a random time up to this, beside [`delay`](Self::delay). Bytes stay in order.
    ///
    /// # Panics
    /// As [`delay`](Self::delay).
    pub fn jitter(&self, most: Duration) {
        self.faults.set_latency(&self.faults.jitter_micros, most);
    }

    /// Passes bytes one by one.
    pub fn split_bytes(&self, on: bool) {
        self.set(&self.faults.split, on);
    }

    /// Holds back all bytes and the closing of either end, in both directions, and the sockets stay open; what was
    /// held is delivered at the end. New connections are still accepted, and nothing passes through them.
    pub fn blackhole(&self, on: bool) {
        self.set(&self.faults.blackhole, on);
    }

    /// Holds back the bytes to the server; they are delivered at the end, in order.
    pub fn hold_requests(&self, on: bool) {
        self.set(&self.faults.hold_requests, on);
    }

    /// Holds back the bytes to the server of connections that were cut, which
    /// [`deliver_after_cut`](Self::deliver_after_cut) lets live on.
    pub fn hold_old_requests(&self, on: bool) {
        self.set(&self.faults.hold_old_requests, on);
    }

    /// Holds back the bytes to the client; they are delivered at the end, in order.
    pub fn hold_replies(&self, on: bool) {
        self.set(&self.faults.hold_replies, on);
    }

    /// Loses the bytes to the client: the server has carried the command out, and nobody hears of it.
    ///
    /// A connection that has lost a reply stays silent when this ends, as the next reply would be taken for the lost
    /// one; new connections answer.
    pub fn drop_replies(&self, on: bool) {
        self.set(&self.faults.drop_replies, on);
    }

    /// Accepts new connections and closes them at once.
    pub fn refuse(&self, on: bool) {
        self.set(&self.faults.refuse, on);
    }

    /// Closes all accepted connections now.
    pub fn cut(&self) {
        self.faults.cut();
    }

    /// Closes all connections after so many more bytes to the server, the rest is lost. Zero closes them instead of
    /// delivering the next byte.
    pub fn cut_after_request_bytes(&self, bytes: u64) {
        self.faults.set_budget(Way::Request, bytes);
    }

    /// The same for bytes to the client.
    pub fn cut_after_reply_bytes(&self, bytes: u64) {
        self.faults.set_budget(Way::Reply, bytes);
    }

    /// When a connection is cut, its bytes that the proxy has read and not yet delivered still reach the server, at
    /// once or when they are no longer held.
    pub fn deliver_after_cut(&self, on: bool) {
        self.set(&self.faults.deliver_after_cut, on);
    }

    /// Closes the server's ends of all connections, and leaves the clients' ends open: what they send is swallowed, and
    /// nothing comes back, until they are [cut](Self::cut).
    pub fn half_open(&self) {
        self.faults.half_open();
    }

    /// How many connections have been accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.connections.load(Ordering::SeqCst)
    }

    /// How many bytes clients have sent, delivered or not.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.faults.bytes(Way::Request).load(Ordering::SeqCst)
    }

    /// How many bytes the server has sent, delivered or not.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.faults.bytes(Way::Reply).load(Ordering::SeqCst)
    }

    /// Waits until clients have sent more than `before` bytes in all.
    ///
    /// # Panics
    /// If they do not within 30 s.
    pub async fn until_requested(&self, before: u64) {
        let seen = self
            .faults
            .seen
            .wait(|| (self.request_bytes() > before).then_some(()));
        backstage::within(PATIENCE, seen)
            .await
            .unwrap_or_else(|| panic!("no client has sent more than {before} bytes"));
    }

    /// Resolves when one connection has sent these bytes, delivered or not, in one piece or many, all of them after
    /// this call, which counts from itself and not from its first poll.
    ///
    /// # Panics
    /// If nobody sends them within 30 s.
    pub fn wait_for_request(&self, pattern: &[u8]) -> impl Future<Output = ()> + Send + use<> {
        let seen = self.faults.watch(pattern);
        let pattern = pattern.to_vec();
        async move {
            let seen = backstage::within(PATIENCE, seen).await;
            assert!(
                matches!(seen, Some(Ok(()))),
                "no client has sent `{}`",
                pattern.escape_ascii()
            );
        }
    }
}

#[cfg(test)]
mod tests;
