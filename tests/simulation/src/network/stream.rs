//! The client's end of a connection.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use lock_runtime::simulation::TryWrite;

use super::Network;

/// The client's end of a connection.
pub struct Stream {
    network: Network,
    number: u64,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(network: Network, number: u64) -> Self {
        Self { network, number }
    }

    /// Returns the function that writes to the connection without waiting.
    pub(crate) fn try_write(&self) -> TryWrite {
        let (network, number) = (self.network.clone(), self.number);
        Box::new(move |bytes| network.send(number, bytes).map(|()| bytes.len()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.network.state();
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Poll::Ready(Ok(())); // the connection has ended
        };
        if !connection.inbox.is_empty() {
            let (first, _) = connection.inbox.as_slices();
            let length = first.len().min(buffer.remaining());
            buffer.put_slice(&first[..length]);
            connection.inbox.drain(..length);
            return Poll::Ready(Ok(()));
        }
        if connection.ended {
            return Poll::Ready(Ok(()));
        }
        connection.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.network.send(self.number, bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.close(self.number);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.close(self.number);
    }
}
