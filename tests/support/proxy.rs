//! A TCP proxy that disturbs the connections through it.
//!
//! The proxy runs on its own thread, so that it works even if the test's runtime is paused, blocked or gone. Each
//! method that sets a fault takes effect at once. All of these methods except [`refuse`](FaultProxy::refuse) affect
//! existing connections.

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

/// The longest time for which a test waits for an event at the proxy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy in front of one server. Dropping this value closes the proxy's connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    faults: Arc<Faults>,
    _stop: oneshot::Sender<()>,
}

impl FaultProxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1.
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
                    .expect("the proxy can build a runtime");
                runtime.block_on(async move {
                    let (listener, number) = link::listen().await;
                    let _ = port.send(number);
                    tokio::select! {
                        () = link::accept(listener, upstream, seen) => {}
                        _ = stopped => {}
                    }
                });
            })
            .expect("the proxy can start a thread");
        Self {
            port: started.await.expect("the proxy listens"),
            faults,
            _stop: stop,
        }
    }

    /// Returns the proxy's port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL by which a client reaches the server through the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn set(&self, fault: &AtomicBool, on: bool) {
        fault.store(on, Ordering::SeqCst);
        self.faults.changed();
    }

    /// Delays all bytes, in each direction, by this time.
    ///
    /// # Panics
    /// If the delay is longer than 2^64 µs.
    pub fn delay(&self, delay: Duration) {
        self.faults.set_latency(&self.faults.delay_micros, delay);
    }

    /// Delays all bytes, in each direction, by a random time of at most `most`, in addition to [`delay`](Self::delay).
    /// Bytes stay in order.
    ///
    /// # Panics
    /// See [`delay`](Self::delay).
    pub fn jitter(&self, most: Duration) {
        self.faults.set_latency(&self.faults.jitter_micros, most);
    }

    /// Passes bytes on one at a time.
    pub fn split_bytes(&self, on: bool) {
        self.set(&self.faults.split, on);
    }

    /// Holds back all bytes in both directions. If one end of a connection is closed, the proxy keeps the other end
    /// open while the blackhole is on. The proxy delivers the held bytes when the blackhole is turned off. New
    /// connections are still accepted, but nothing passes through them.
    pub fn blackhole(&self, on: bool) {
        self.set(&self.faults.blackhole, on);
    }

    /// Holds back the bytes to the server. When the hold is turned off, the proxy delivers the held bytes in order.
    pub fn hold_requests(&self, on: bool) {
        self.set(&self.faults.hold_requests, on);
    }

    /// Holds back the bytes to the server on connections that were cut but that
    /// [`deliver_after_cut`](Self::deliver_after_cut) keeps alive.
    pub fn hold_old_requests(&self, on: bool) {
        self.set(&self.faults.hold_old_requests, on);
    }

    /// Holds back the bytes to the client. When the hold is turned off, the proxy delivers the held bytes in order.
    pub fn hold_replies(&self, on: bool) {
        self.set(&self.faults.hold_replies, on);
    }

    /// Discards the bytes to the client: the server carries out a command, and the client gets no reply.
    ///
    /// A connection that has lost a reply stays silent after `drop_replies` is turned off, because the client would
    /// mistake the next reply for the lost reply. New connections get replies.
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

    /// Closes all connections after this many further bytes to the server. Bytes that arrive after that are lost. If
    /// `bytes` is zero, the next byte closes the connections and is not delivered.
    pub fn cut_after_request_bytes(&self, bytes: u64) {
        self.faults.set_budget(Way::Request, bytes);
    }

    /// Like [`cut_after_request_bytes`](Self::cut_after_request_bytes), but counts the bytes to the client.
    pub fn cut_after_reply_bytes(&self, bytes: u64) {
        self.faults.set_budget(Way::Reply, bytes);
    }

    /// Lets requests outlive their connection: if the connection is cut, the proxy still delivers the requests that it
    /// has received from the client. The proxy delivers held requests when the hold is turned off.
    pub fn deliver_after_cut(&self, on: bool) {
        self.set(&self.faults.deliver_after_cut, on);
    }

    /// Closes the server's ends of all connections and leaves the clients' ends open. The proxy discards the bytes from
    /// these clients, and sends nothing back, until the connections are [cut](Self::cut).
    pub fn half_open(&self) {
        self.faults.half_open();
    }

    /// Returns the number of accepted connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that clients have sent, delivered or not.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.faults.bytes(Way::Request).load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that the server has sent, delivered or not.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.faults.bytes(Way::Reply).load(Ordering::SeqCst)
    }

    /// Waits until clients have sent more than `before` bytes in total.
    ///
    /// # Panics
    /// If clients have not sent more bytes within 30 s.
    pub async fn until_requested(&self, before: u64) {
        let seen = self
            .faults
            .seen
            .wait(|| (self.request_bytes() > before).then_some(()));
        backstage::within(PATIENCE, seen)
            .await
            .unwrap_or_else(|| panic!("no client has sent more than {before} bytes"));
    }

    /// Returns a future that resolves when one client connection has sent these bytes, delivered or not, in any number
    /// of pieces. Bytes count from the call of this function on, even if the future has not been polled yet.
    ///
    /// # Panics
    /// If no connection sends the pattern within 30 s.
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
