//! The TLS settings that a URL cannot express: root certificates, a client certificate, and a server name.

use std::{
    fs, io,
    sync::{Arc, Mutex},
};

use redis::{ErrorKind, RedisResult};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use crate::{
    backend::redis::transport::pem::{Pem, PemSource, is_pem},
    background::{Context, lock, socket::Socket},
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
        let (read, write) = tokio::io::split(stream);
        Ok(Socket {
            read: Box::new(read),
            write: Box::new(write),
            try_write: None,
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
