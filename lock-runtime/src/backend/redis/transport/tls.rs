//! The TLS settings that a URL cannot express: root certificates, a client certificate, and a server name.

use std::{
    fs, io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError,
    RedisFuture, RedisResult, TlsCertificates, io::AsyncDNSResolver,
};
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    sign::CertifiedKey,
};

use crate::{
    backend::redis::transport::pem::{Pem, PemSource, is_pem},
    background::{Context, lock},
    connect_error::ConnectError,
    events::TARGET,
};

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

    /// Reads and checks the certificate files. Returns `None` if no TLS setting is set.
    pub(crate) fn open(&self) -> Result<Option<Tls>, ConnectError> {
        if self.is_empty() {
            return Ok(None);
        }
        let invalid = |detail| ConnectError::InvalidTls { detail };
        if let Some(name) = &self.server_name {
            let refused = |_| format!("`{name}` is not a host name");
            ServerName::try_from(name.as_str())
                .map_err(refused)
                .map_err(invalid)?;
        }
        let certificates = self.read().map_err(invalid)?;
        Ok(Some(Tls {
            settings: self.clone(),
            certificates: Mutex::new(certificates),
        }))
    }

    fn has_files(&self) -> bool {
        let pair = self.client_certificate.iter();
        let pems = pair.flat_map(|(certificate, key)| [certificate, key]);
        pems.chain(&self.root_certificates)
            .any(|pem| matches!(pem.0, PemSource::File(_)))
    }

    /// Reads the certificates and the key, and checks that they can be used. The error names the file and the problem,
    /// and quotes no part of a file.
    fn read(&self) -> Result<Option<TlsCertificates>, String> {
        if self.root_certificates.is_none() && self.client_certificate.is_none() {
            return Ok(None);
        }
        let root_cert = match &self.root_certificates {
            None => None,
            Some(pem) => {
                let place = Place("the root certificates", pem);
                let text = place.read()?;
                let mut store = RootCertStore::empty();
                for certificate in place.certificates(&text)? {
                    let refused = |_| place.says("a certificate is malformed");
                    store.add(certificate).map_err(refused)?;
                }
                Some(text)
            }
        };
        let client_tls = match &self.client_certificate {
            None => None,
            Some((certificate, key)) => {
                let place = Place("the client certificate", certificate);
                let client_cert = place.read()?;
                let chain = place.certificates(&client_cert)?;
                let place = Place("the client's key", key);
                let client_key = place.read()?;
                let refused = |_| place.says("there is no private key in PEM format");
                let key = PrivateKeyDer::from_pem_slice(&client_key).map_err(refused)?;
                let provider = ring::default_provider();
                let certified = CertifiedKey::from_der(chain, key, &provider);
                certified.map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        place.says("the key does not belong to the client certificate")
                    }
                    error => place.says(&error.to_string()),
                })?;
                Some(ClientTlsConfig {
                    client_cert,
                    client_key,
                })
            }
        };
        Ok(Some(TlsCertificates {
            client_tls,
            root_cert,
        }))
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
#[derive(Debug)]
pub(crate) struct Tls {
    settings: TlsSettings,
    /// The certificates and the key that were read last. `None` if only the server name is set.
    certificates: Mutex<Option<TlsCertificates>>,
}

impl Tls {
    /// Returns the settings for the next connection. These settings also determine how the connection resolves the
    /// server's address.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        context: &Context,
        info: ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(ConnectionInfo, AsyncConnectionConfig)> {
        if self.settings.has_files() {
            let tls = self.clone();
            // Reading files blocks, so another thread reads them.
            let reading = context.handle().spawn_blocking(move || tls.settings.read());
            match reading.await {
                Ok(Ok(certificates)) => *lock(&self.certificates) = certificates,
                Ok(Err(detail)) => {
                    tracing::warn!(target: TARGET, %detail, "cannot read the TLS files again, so the connection uses the certificates that were read last");
                }
                Err(error) => return Err(io::Error::other(error).into()),
            }
        }
        let certificates = lock(&self.certificates).clone();
        let info = match certificates {
            Some(certificates) => redis::Client::build_with_tls(info, certificates)?
                .get_connection_info()
                .clone(),
            None => info,
        };
        let (
            Some(name),
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
        ) = (&self.settings.server_name, info.addr())
        else {
            return Ok((info, config.clone()));
        };
        // The `redis` crate checks the certificate against the host of the address. The address therefore gets the
        // server's name, and the resolver finds the host to which to connect.
        let config = config.clone().set_dns_resolver(ResolvesTo(host.clone()));
        let addr = ConnectionAddr::TcpTls {
            host: name.clone(),
            port: *port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        };
        Ok((info.set_addr(addr), config))
    }
}

/// A resolver that resolves every name to the addresses of the host in this field.
struct ResolvesTo(String);

impl AsyncDNSResolver for ResolvesTo {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((self.0.as_str(), port)).await?;
            let found: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(found);
            Ok::<_, RedisError>(found)
        })
    }
}
