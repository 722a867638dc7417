//! One connection through the proxy. Each direction has a task that reads and a task that delivers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::Instant,
};

use super::faults::{Faults, Way};

pub(super) async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has a free port");
    let address = listener
        .local_addr()
        .expect("a bound listener has an address");
    (listener, address.port())
}

pub(super) async fn accept(listener: TcpListener, upstream: u16, faults: Arc<Faults>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // The process has probably run out of file descriptors, so the proxy tries again after a pause.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let link = Arc::new(Link {
            number: faults.connections.fetch_add(1, Ordering::SeqCst),
            cuts: faults.cuts.load(Ordering::SeqCst),
            half_opens: faults.half_opens.load(Ordering::SeqCst),
            client_gone: AtomicBool::new(false),
            faults: faults.clone(),
        });
        if !faults.refuse.load(Ordering::SeqCst) {
            tokio::spawn(link.connect(client, upstream));
        }
    }
}

struct Link {
    number: u64,
    /// How often the proxy had cut all connections before this connection was made.
    cuts: u64,
    /// How often the proxy had closed the server's ends of all connections before this connection was made.
    half_opens: u64,
    client_gone: AtomicBool,
    faults: Arc<Faults>,
}

/// The bytes that one read has returned.
struct Chunk {
    /// The bytes that were read. The vector is empty at the end of the stream.
    bytes: Vec<u8>,
    read: Instant,
    /// The chunk's share of the full jitter, from 0 to 1.
    lot: f64,
}

impl Chunk {
    fn new(bytes: &[u8]) -> Self {
        let lot = uuid::Uuid::new_v4().as_u64_pair().1 as u32;
        Self {
            bytes: bytes.to_vec(),
            read: Instant::now(),
            lot: f64::from(lot) / f64::from(u32::MAX),
        }
    }
}

impl Link {
    async fn connect(self: Arc<Self>, client: TcpStream, upstream: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        for (way, from, to) in [
            (Way::Request, from_client, to_server),
            (Way::Reply, from_server, to_client),
        ] {
            let (sender, chunks) = mpsc::unbounded_channel();
            tokio::spawn(self.clone().read(way, from, sender));
            tokio::spawn(self.clone().deliver(way, chunks, to));
        }
    }

    fn is_cut(&self) -> bool {
        self.faults.cuts.load(Ordering::SeqCst) != self.cuts
    }

    fn is_half_open(&self) -> bool {
        self.faults.half_opens.load(Ordering::SeqCst) != self.half_opens
    }

    /// Returns whether nothing further is delivered in this direction.
    fn is_closed(&self, way: Way) -> bool {
        let lives_on = way == Way::Request && self.faults.deliver_after_cut.load(Ordering::SeqCst);
        self.is_half_open() || self.is_cut() && !lives_on
    }

    /// Waits for a condition that depends on the proxy's settings.
    async fn until(&self, condition: impl Fn() -> bool) {
        self.faults.change.wait(|| condition().then_some(())).await;
    }

    /// Reads from one end until this end is closed or the connection is cut. Reading from the server also ends when the
    /// connection becomes half open.
    async fn read(
        self: Arc<Self>,
        way: Way,
        mut from: OwnedReadHalf,
        chunks: mpsc::UnboundedSender<Chunk>,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        let take = |bytes: &[u8]| {
            self.faults.saw(way, self.number, bytes);
            chunks.send(Chunk::new(bytes))
        };
        loop {
            let read = tokio::select! {
                biased;
                () = self.until(|| self.is_cut() || way == Way::Reply && self.is_half_open()) => break,
                read = from.read(&mut buffer) => read.unwrap_or(0),
            };
            if read == 0 {
                let _ = chunks.send(Chunk::new(&[]));
                if way == Way::Request {
                    self.client_gone.store(true, Ordering::SeqCst);
                    self.faults.changed();
                }
                return;
            }
            if take(&buffer[..read]).is_err() {
                return;
            }
        }
        // Requests that arrived before the cut can still be delivered.
        while let (Way::Request, Ok(read @ 1..)) = (way, from.try_read(&mut buffer)) {
            let _ = take(&buffer[..read]);
        }
    }

    /// Writes the chunks of one direction to `to`, then closes `to`.
    async fn deliver(
        self: Arc<Self>,
        way: Way,
        mut chunks: mpsc::UnboundedReceiver<Chunk>,
        to: OwnedWriteHalf,
    ) {
        let to = self.deliver_open(way, &mut chunks, to).await;
        if way == Way::Reply {
            // The client must not notice that its connection is half open or has lost a reply. Therefore, the client's
            // end stays open until the connection is cut or the client closes it.
            self.until(|| self.is_cut() || to.is_none() || self.client_gone.load(Ordering::SeqCst))
                .await;
        } else if self.is_half_open() {
            drop(to);
            while chunks.recv().await.is_some() {}
        }
    }

    /// Delivers chunks until this direction is closed, the stream ends, or a chunk is lost. Returns the receiving end
    /// if it stays open.
    async fn deliver_open(
        &self,
        way: Way,
        chunks: &mut mpsc::UnboundedReceiver<Chunk>,
        mut to: OwnedWriteHalf,
    ) -> Option<OwnedWriteHalf> {
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.until(|| self.is_closed(way)) => None,
                chunk = chunks.recv() => chunk,
            };
            let Some(chunk) = chunk else { return Some(to) };
            let mut rest = &chunk.bytes[..];
            loop {
                if !self.passes(way, &chunk).await {
                    return Some(to);
                }
                if way == Way::Reply && self.faults.drop_replies.load(Ordering::SeqCst) {
                    return Some(to);
                }
                if rest.is_empty() {
                    // The stream has ended.
                    return None;
                }
                let split = self.faults.split.load(Ordering::SeqCst);
                let piece = if split { 1 } else { rest.len() };
                let (allowed, is_last) = self.faults.spend(way, piece);
                let written = tokio::select! {
                    biased;
                    () = self.until(|| self.is_closed(way)) => return Some(to),
                    written = to.write_all(&rest[..allowed]) => written,
                };
                if is_last {
                    self.faults.cut_spent(way);
                }
                if is_last || written.is_err() {
                    return None;
                }
                rest = &rest[allowed..];
                if rest.is_empty() {
                    break;
                }
                // If `split` is set, the receiving end has a chance to read each byte before the next one is written.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits while a chunk is held or delayed. Returns false if the chunk is lost.
    async fn passes(&self, way: Way, chunk: &Chunk) -> bool {
        let held = || self.faults.held(way, self.is_cut());
        loop {
            self.until(|| self.is_closed(way) || !held()).await;
            if self.is_closed(way) {
                return false;
            }
            let latency = self.faults.latency(chunk.lot);
            let due = chunk.read + latency;
            if due <= Instant::now() {
                return true;
            }
            let changed =
                || self.is_closed(way) || held() || self.faults.latency(chunk.lot) != latency;
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.until(changed) => {}
            }
        }
    }
}
