//! A TCP proxy that breaks what passes through it.
//!
//! It runs on a thread of its own, so that a test's runtime may be paused, blocked or gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::{Notify, mpsc, oneshot},
};

/// What the proxy does at the moment.
#[derive(Debug, Default)]
struct Faults {
    /// Bytes to the server wait, and are delivered later.
    hold_requests: AtomicBool,
    /// Bytes to the server of connections that were cut wait, and are delivered later.
    hold_old_requests: AtomicBool,
    /// Bytes to the client wait, and are delivered later.
    hold_replies: AtomicBool,
    /// Bytes to the client are lost.
    drop_replies: AtomicBool,
    /// New connections are closed at once.
    refuse: AtomicBool,
    /// What was held for the server is delivered even after its client's connection was cut.
    deliver_after_cut: AtomicBool,
    /// Every direction is delayed so many µs.
    delay_micros: AtomicU64,
    /// Bytes go one by one.
    split: AtomicBool,
    /// Of the bytes to the server, so many are let through before all connections are cut; `u64::MAX` is all.
    request_budget: AtomicU64,
    /// The same for bytes to the client.
    reply_budget: AtomicU64,
    generation: AtomicU64,
    changed: Notify,
    request_bytes: AtomicU64,
    seen: Notify,
    connections: AtomicU64,
}

impl Faults {
    fn changed(&self) {
        self.changed.notify_waiters();
    }

    fn cut(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }

    fn held(&self, way: Way, cut: bool) -> bool {
        match way {
            Way::Request => {
                self.hold_requests.load(Ordering::SeqCst)
                    || cut && self.hold_old_requests.load(Ordering::SeqCst)
            }
            Way::Reply => self.hold_replies.load(Ordering::SeqCst),
        }
    }

    fn budget(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Request => &self.request_budget,
            Way::Reply => &self.reply_budget,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

/// A proxy before one server.
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
        let faults = Arc::new(Faults {
            request_budget: AtomicU64::new(u64::MAX),
            reply_budget: AtomicU64::new(u64::MAX),
            ..Faults::default()
        });
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
                    let listener = TcpListener::bind("127.0.0.1:0")
                        .await
                        .expect("loopback has a free port");
                    let _ = port.send(
                        listener
                            .local_addr()
                            .expect("a bound listener has an address")
                            .port(),
                    );
                    tokio::select! {
                        () = accept(listener, upstream, seen) => {}
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

    /// The URL of the server behind the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn set(&self, fault: &AtomicBool, on: bool) {
        fault.store(on, Ordering::SeqCst);
        self.faults.changed();
    }

    /// Holds back all bytes in both directions, the sockets stay open; what was held is delivered at the end.
    pub fn blackhole(&self, on: bool) {
        self.set(&self.faults.hold_requests, on);
        self.set(&self.faults.hold_replies, on);
    }

    /// Holds back the bytes to the server.
    pub fn hold_requests(&self, on: bool) {
        self.set(&self.faults.hold_requests, on);
    }

    /// Holds back the bytes to the server of connections that were cut, which
    /// [`deliver_after_cut`](Self::deliver_after_cut) lets live on.
    pub fn hold_old_requests(&self, on: bool) {
        self.set(&self.faults.hold_old_requests, on);
    }

    /// Holds back the bytes to the client.
    pub fn hold_replies(&self, on: bool) {
        self.set(&self.faults.hold_replies, on);
    }

    /// Loses the bytes to the client: the server has carried the command out, and nobody hears of it.
    pub fn drop_replies(&self, on: bool) {
        self.set(&self.faults.drop_replies, on);
    }

    /// Closes new connections at once.
    pub fn refuse(&self, on: bool) {
        self.set(&self.faults.refuse, on);
    }

    /// Delivers what was held for the server even after the connection of its client was cut.
    pub fn deliver_after_cut(&self, on: bool) {
        self.set(&self.faults.deliver_after_cut, on);
    }

    /// Delays each direction.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("a delay of a test is short");
        self.faults.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Passes bytes one by one.
    pub fn split_bytes(&self, on: bool) {
        self.set(&self.faults.split, on);
    }

    /// Closes all connections now.
    pub fn cut(&self) {
        self.faults.cut();
    }

    /// Closes all connections after so many more bytes to the server.
    pub fn cut_after_request_bytes(&self, bytes: u64) {
        self.faults.request_budget.store(bytes, Ordering::SeqCst);
    }

    /// Closes all connections after so many more bytes to the client.
    pub fn cut_after_reply_bytes(&self, bytes: u64) {
        self.faults.reply_budget.store(bytes, Ordering::SeqCst);
    }

    /// How many bytes clients have sent, delivered or not.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.faults.request_bytes.load(Ordering::SeqCst)
    }

    /// How many connections have been accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.connections.load(Ordering::SeqCst)
    }

    /// Waits until clients have sent more than `before` bytes in all.
    pub async fn until_requested(&self, before: u64) {
        loop {
            let mut seen = std::pin::pin!(self.faults.seen.notified());
            seen.as_mut().enable();
            if self.request_bytes() > before {
                return;
            }
            seen.await;
        }
    }
}

async fn accept(listener: TcpListener, upstream: u16, faults: Arc<Faults>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        faults.connections.fetch_add(1, Ordering::SeqCst);
        if faults.refuse.load(Ordering::SeqCst) {
            continue;
        }
        let faults = faults.clone();
        tokio::spawn(async move {
            if let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await {
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_server, to_client, Way::Reply, faults.clone()));
                pass(from_client, to_server, Way::Request, faults).await;
            }
        });
    }
}

/// Passes bytes one way until an end closes or the connections are cut.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    to: tokio::net::tcp::OwnedWriteHalf,
    way: Way,
    faults: Arc<Faults>,
) {
    let generation = faults.generation.load(Ordering::SeqCst);
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(deliver(receiver, to, way, faults.clone(), generation));
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let mut changed = std::pin::pin!(faults.changed.notified());
        changed.as_mut().enable();
        if faults.generation.load(Ordering::SeqCst) != generation {
            return;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            () = changed => continue,
        };
        let Ok(read @ 1..) = read else { return };
        if way == Way::Request {
            faults
                .request_bytes
                .fetch_add(read as u64, Ordering::SeqCst);
            faults.seen.notify_waiters();
        }
        let bytes = buffer[..read].to_vec();
        let due = tokio::time::Instant::now()
            + Duration::from_micros(faults.delay_micros.load(Ordering::SeqCst));
        if sender.send((due, bytes)).is_err() {
            return;
        }
    }
}

async fn deliver(
    mut bytes: mpsc::UnboundedReceiver<(tokio::time::Instant, Vec<u8>)>,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Way,
    faults: Arc<Faults>,
    generation: u64,
) {
    while let Some((due, chunk)) = bytes.recv().await {
        tokio::time::sleep_until(due).await;
        loop {
            let mut changed = std::pin::pin!(faults.changed.notified());
            changed.as_mut().enable();
            let cut = faults.generation.load(Ordering::SeqCst) != generation;
            let late = way == Way::Request && faults.deliver_after_cut.load(Ordering::SeqCst);
            if cut && !late {
                return;
            }
            if !faults.held(way, cut) {
                break;
            }
            changed.await;
        }
        if way == Way::Reply && faults.drop_replies.load(Ordering::SeqCst) {
            continue;
        }
        let budget = faults.budget(way);
        let left = budget.load(Ordering::SeqCst);
        let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        let pieces = if faults.split.load(Ordering::SeqCst) {
            1
        } else {
            chunk.len().max(1)
        };
        for piece in chunk[..allowed].chunks(pieces) {
            if to.write_all(piece).await.is_err() {
                return;
            }
            if pieces == 1 {
                tokio::task::yield_now().await;
            }
        }
        if left != u64::MAX {
            if allowed < chunk.len() || left == allowed as u64 {
                budget.store(u64::MAX, Ordering::SeqCst);
                faults.cut();
                return;
            }
            budget.store(left - allowed as u64, Ordering::SeqCst);
        }
    }
}
