//! Connections with TLS, and the settings of TLS that a URL cannot express: root certificates, a client certificate, and
//! a server name.

use std::{
    fs,
    io::{self, Write},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{self, Poll, Waker},
};

use redis::{ErrorKind, RedisResult};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    backend::redis::transport::pem::{Pem, PemSource, is_pem},
    background::{
        Context, lock,
        network::{Socket, TryWrite},
    },
    connect_error::ConnectError,
    events::TARGET,
};

/// Returns the provider of the cryptography. It is passed to each configuration, so that nothing is installed for the
/// process, and nothing that a service installs is used.
fn provider() -> CryptoProvider {
    // Another package of the build can have enabled the default feature `tls-ring`, so the other feature comes first.
    #[cfg(feature = "tls-aws-lc")]
    return rustls::crypto::aws_lc_rs::default_provider();
    #[cfg(not(feature = "tls-aws-lc"))]
    rustls::crypto::ring::default_provider()
}

/// The TLS settings of a client builder, which are not checked yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsSettings {
    pub(crate) root_certificates: Option<Pem>,
    /// The client certificate and its private key.
    pub(crate) client_certificate: Option<(Pem, Pem)>,
    pub(crate) server_name: Option<String>,
}

impl TlsSettings {
    fn is_empty(&self) -> bool {
        self.root_certificates.is_none()
            && self.client_certificate.is_none()
            && self.server_name.is_none()
    }

    /// Reads and checks the certificate files.
    pub(crate) fn open(&self) -> Result<Tls, ConnectError> {
        let invalid = |detail| ConnectError::InvalidTls { detail };
        if let Some(name) = &self.server_name {
            let refused = |_| format!("`{name}` is not a host name");
            ServerName::try_from(name.as_str())
                .map_err(refused)
                .map_err(invalid)?;
        }
        // Without settings, a client without TLS reads no certificates.
        let config = match self.is_empty() {
            true => None,
            false => Some(self.read(provider()).map_err(invalid)?),
        };
        Ok(Tls {
            settings: self.clone(),
            config: Mutex::new(config),
        })
    }

    fn has_files(&self) -> bool {
        let pair = self.client_certificate.iter();
        let pems = pair.flat_map(|(certificate, key)| [certificate, key]);
        pems.chain(&self.root_certificates)
            .any(|pem| matches!(pem.0, PemSource::File(_)))
    }

    /// Reads the certificates and the key, and checks that they can be used. The error names the file and the problem,
    /// and quotes no part of a file.
    fn read(&self, provider: CryptoProvider) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        match &self.root_certificates {
            None => {
                let found = rustls_native_certs::load_native_certs();
                if let (true, Some(error)) = (found.certs.is_empty(), found.errors.first()) {
                    return Err(format!("the root certificates of the system: {error}"));
                }
                roots.add_parsable_certificates(found.certs);
            }
            Some(pem) => {
                let place = Place("the root certificates", pem);
                let text = place.read()?;
                for certificate in place.certificates(&text)? {
                    let refused = |_| place.says("a certificate is malformed");
                    roots.add(certificate).map_err(refused)?;
                }
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match &self.client_certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let place = Place("the client certificate", certificate);
                let chain = place.certificates(&place.read()?)?;
                let place = Place("the client's key", key);
                let refused = |_| place.says("there is no private key in PEM format");
                let key = PrivateKeyDer::from_pem_slice(&place.read()?).map_err(refused)?;
                let built = builder.with_client_auth_cert(chain, key);
                built.map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        place.says("the key does not belong to the client certificate")
                    }
                    error => place.says(&error.to_string()),
                })?
            }
        };
        Ok(Arc::new(config))
    }
}

/// The purpose of a PEM text, and the source from which it is read.
struct Place<'a>(&'static str, &'a Pem);

impl Place<'_> {
    fn says(&self, problem: &str) -> String {
        let Self(what, Pem(source)) = self;
        match source {
            PemSource::File(path) if is_pem(&path.to_string_lossy()) => {
                format!("{what}: `Pem::file` was given a text instead of a path: use `Pem::text`")
            }
            PemSource::File(path) => format!("{what} in {}: {problem}", path.display()),
            PemSource::Text(_) => format!("{what}: {problem}"),
        }
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        match &self.1.0 {
            PemSource::File(path) => fs::read(path).map_err(|error| self.says(&error.to_string())),
            PemSource::Text(text) => Ok(text.to_vec()),
        }
    }

    fn certificates(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
        match read {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(self.says("there is no certificate in PEM format")),
        }
    }
}

/// Checked TLS settings.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    settings: TlsSettings,
    /// The configuration with the certificates and the key that were read last.
    config: Mutex<Option<Arc<ClientConfig>>>,
}

impl Tls {
    pub(crate) fn has_settings(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Makes the TLS handshake with the server `host`. Reads the certificate files again.
    pub(crate) async fn encrypt(
        self: &Arc<Self>,
        context: &Context,
        socket: Socket,
        host: &str,
        insecure: bool,
    ) -> RedisResult<Socket> {
        if insecure {
            let refused = "a connection without a check of the certificate is not supported";
            return Err((ErrorKind::InvalidClientConfig, refused).into());
        }
        let config = self.config(context).await?;
        let name = self.settings.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let plain = tokio::io::join(socket.read, socket.write);
        let stream = TlsConnector::from(config).connect(name, plain).await?;
        let encrypted = Encrypted(Arc::new(Mutex::new(State {
            stream,
            driver: None,
        })));
        let (read, write) = (encrypted.clone(), encrypted.clone());
        Ok(Socket {
            read: Box::new(read),
            write: Box::new(write),
            try_write: Box::new(move |bytes| encrypted.try_write(&socket.try_write, bytes)),
        })
    }

    async fn config(self: &Arc<Self>, context: &Context) -> RedisResult<Arc<ClientConfig>> {
        let read_last = lock(&self.config).clone();
        if let Some(config) = &read_last
            && !self.settings.has_files()
        {
            return Ok(config.clone());
        }
        let tls = self.clone();
        // Reading files blocks, so another thread reads them.
        let reading = context
            .handle()
            .spawn_blocking(move || tls.settings.read(provider()));
        match (reading.await.map_err(io::Error::other)?, read_last) {
            (Ok(config), _) => {
                *lock(&self.config) = Some(config.clone());
                Ok(config)
            }
            (Err(detail), Some(config)) => {
                tracing::warn!(target: TARGET, %detail, "cannot read the TLS files again, so the connection uses the certificates that were read last");
                Ok(config)
            }
            (Err(detail), None) => Err(io::Error::other(detail).into()),
        }
    }
}

/// An encrypted connection, which the driver and the callers share. The mutex is locked for one poll or one write.
#[derive(Clone)]
struct Encrypted(Arc<Mutex<State>>);

struct State {
    stream: TlsStream<Join<Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>>>,
    /// Wakes the driver while it waits for bytes to read.
    driver: Option<Waker>,
}

impl Encrypted {
    /// Encrypts bytes and writes them without waiting. Returns how many bytes are encrypted. Of these, the driver sends
    /// those that the socket has not taken.
    fn try_write(&self, socket: &TryWrite, bytes: &[u8]) -> io::Result<usize> {
        let mut state = lock(&self.0);
        let (_, session) = state.stream.get_mut();
        let encrypted = session.writer().write(bytes)?;
        let mut socket = NonBlocking(socket);
        // An error of the socket also reaches the driver.
        while session.wants_write() && session.write_tls(&mut socket).is_ok_and(|sent| sent > 0) {}
        if session.wants_write()
            && let Some(driver) = state.driver.take()
        {
            driver.wake();
        }
        Ok(encrypted)
    }

    fn state(self: Pin<&mut Self>) -> MutexGuard<'_, State> {
        lock(&self.get_mut().0)
    }
}

impl AsyncRead for Encrypted {
    /// Also sends what a caller has encrypted, because the driver always waits for bytes to read.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.stream.get_ref().1.wants_write()
            && let Poll::Ready(sent) = Pin::new(&mut state.stream).poll_flush(context)
        {
            sent?;
        }
        let read = Pin::new(&mut state.stream).poll_read(context, into);
        if read.is_pending() {
            state.driver = Some(context.waker().clone());
        }
        read
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.state().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().stream).poll_flush(context)
    }

    fn poll_shutdown(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().stream).poll_shutdown(context)
    }
}

/// A socket that returns an error instead of waiting.
struct NonBlocking<'a>(&'a TryWrite);

impl Write for NonBlocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net, time::Duration};

    use redis::{ConnectionAddr, IntoConnectionInfo, Value, io::tcp::socket2::SockRef};
    use rustls::ServerConfig;
    use tokio::{
        io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
        net::UnixStream,
        runtime::Handle,
        time::timeout,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::backend::redis::transport::wire::Wire;

    /// Answers each command with its last word, until the client closes the connection.
    async fn echo(stream: impl AsyncRead + AsyncWrite) -> Option<()> {
        let (read, mut write) = tokio::io::split(stream);
        let mut read = BufReader::new(read);
        loop {
            let mut word = Vec::new();
            for _ in 0..number(&mut read).await? {
                word = vec![0; number(&mut read).await? + 2];
                read.read_exact(&mut word).await.ok()?;
            }
            let length = format!("${}\r\n", word.len() - 2);
            write.write_all(length.as_bytes()).await.ok()?;
            write.write_all(&word).await.ok()?;
            write.flush().await.ok()?;
        }
    }

    async fn number(read: &mut (impl AsyncBufRead + Unpin)) -> Option<usize> {
        let mut line = String::new();
        read.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim_end().parse().ok()
    }

    /// Sends commands of up to 80 kB, each after the reply to the one before.
    async fn send(wire: Wire, caller: usize) {
        for step in 0..80 {
            let text = format!("{caller} {step:03} ").repeat(1 + step % 40 * 333);
            let (_, reply) = wire.send(redis::cmd("ECHO").arg(&text)).unwrap();
            assert_eq!(
                reply.receive().await,
                Ok(Value::BulkString(text.into_bytes()))
            );
        }
    }

    /// The socket takes a few kB at once. The driver sends what a caller could not write itself, in order.
    #[tokio::test]
    async fn a_short_write_is_completed() {
        for provider in [
            #[cfg(feature = "tls-aws-lc")]
            rustls::crypto::aws_lc_rs::default_provider(),
            #[cfg(feature = "tls-ring")]
            rustls::crypto::ring::default_provider(),
        ] {
            let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let key = signed.signing_key.serialize_pem();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            let settings = TlsSettings {
                root_certificates: Some(Pem::text(signed.cert.pem())),
                ..TlsSettings::default()
            };
            let config = settings.read(provider.clone()).unwrap();
            let tls = Arc::new(Tls {
                settings,
                config: Mutex::new(Some(config)),
            });
            let server = ServerConfig::builder_with_provider(Arc::new(provider))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![signed.cert.der().clone()], key)
                .unwrap();

            let (near, far) = net::UnixStream::pair().unwrap();
            SockRef::from(&near).set_send_buffer_size(1).unwrap(); // the system rounds this up to a few kB
            near.set_nonblocking(true).unwrap();
            let twin = near.try_clone().unwrap();
            let (read, write) = UnixStream::from_std(near).unwrap().into_split();
            let socket = Socket {
                read: Box::new(read),
                write: Box::new(write),
                try_write: Box::new(move |bytes| (&twin).write(bytes)),
            };
            far.set_nonblocking(true).unwrap();
            let far = UnixStream::from_std(far).unwrap();
            tokio::spawn(async move {
                let acceptor = TlsAcceptor::from(Arc::new(server));
                echo(acceptor.accept(far).await.unwrap()).await
            });

            let context = Context::of_process();
            let socket = tls.encrypt(context, socket, "localhost", false).await;
            let address = ConnectionAddr::Tcp("localhost".into(), 1);
            let info = address.into_connection_info().unwrap();
            let wire = Wire::open(context, socket.unwrap(), &info, |_| ()).await;
            let wire = wire.unwrap();
            for callers in [1, 4] {
                let sending: Vec<_> = (0..callers)
                    .map(|caller| {
                        let (wire, runtime) = (wire.clone(), Handle::current());
                        tokio::task::spawn_blocking(move || runtime.block_on(send(wire, caller)))
                    })
                    .collect();
                for sending in sending {
                    let ended = timeout(Duration::from_secs(60), sending).await;
                    ended.expect("a command hangs").unwrap();
                }
            }
        }
    }
}
