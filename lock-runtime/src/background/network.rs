//! The network: the sockets over which the engine reaches servers.

use std::{
    fmt,
    io::{self, Write},
    time::Duration,
};

use futures_util::future::select_ok;
use lock_core::backend::BoxFuture;
use redis::{
    ConnectionAddr,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
};

/// Connects to Redis servers.
pub(crate) trait Network: Send + Sync {
    fn connect<'a>(&'a self, address: &'a ConnectionAddr) -> BoxFuture<'a, io::Result<Socket>>;
}

/// Connects through the sockets of the operating system.
pub(crate) struct SystemNetwork;

impl Network for SystemNetwork {
    fn connect<'a>(&'a self, address: &'a ConnectionAddr) -> BoxFuture<'a, io::Result<Socket>> {
        Box::pin(open(address))
    }
}

/// Writes bytes without waiting, from any thread. Returns how many bytes the driver does not have to write.
#[cfg_attr(
    not(feature = "__simulation"),
    expect(unreachable_pub, reason = "the simulation makes sockets")
)]
pub type TryWrite = Box<dyn Fn(&[u8]) -> io::Result<usize> + Send + Sync>;

/// Both ends of an open socket.
#[cfg_attr(
    not(feature = "__simulation"),
    expect(unreachable_pub, reason = "the simulation makes sockets")
)]
pub struct Socket {
    /// The end from which the driver reads.
    pub read: Box<dyn AsyncRead + Send + Unpin>,
    /// The end to which the driver writes.
    pub write: Box<dyn AsyncWrite + Send + Unpin>,
    /// Lets the callers write.
    pub try_write: TryWrite,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

/// Connects to a server. Tries all addresses of a name at the same time.
async fn open(address: &ConnectionAddr) -> io::Result<Socket> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            let found: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
            if found.is_empty() {
                let detail = format!("`{host}` has no address");
                return Err(io::Error::new(io::ErrorKind::NotFound, detail));
            }
            let connecting = found
                .into_iter()
                .map(|found| Box::pin(TcpStream::connect(found)));
            let (stream, _) = select_ok(connecting).await?;
            set_options(&SockRef::from(&stream))?;
            let stream = stream.into_std()?;
            let twin = stream.try_clone()?;
            let (read, write) = TcpStream::from_std(stream)?.into_split();
            Ok(Socket {
                read: Box::new(read),
                write: Box::new(write),
                try_write: Box::new(move |bytes| (&twin).write(bytes)),
            })
        }
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await?.into_std()?;
            let twin = stream.try_clone()?;
            let (read, write) = UnixStream::from_std(stream)?.into_split();
            Ok(Socket {
                read: Box::new(read),
                write: Box::new(write),
                try_write: Box::new(move |bytes| (&twin).write(bytes)),
            })
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sets TCP options with which the operating system notices a server that disappears without closing its connections.
fn set_options(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(10)))?;
    Ok(())
}
