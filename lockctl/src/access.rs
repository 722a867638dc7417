//! The options for access to the servers that a URL cannot express: certificates, the name in the servers' certificates,
//! and the file with the password.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use lock_runtime::{Credentials, LockClientBuilder, Pem};
use percent_encoding::percent_decode_str;
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisError, RedisFuture, TlsCertificates, aio::MultiplexedConnection, io::AsyncDNSResolver,
};

use crate::exit::{Exit, Failure};

#[derive(Debug, Clone, Args)]
pub(crate) struct AccessArgs {
    /// The file with the certificates of the authorities to trust, instead of those of the operating system (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "LOCK_TLS_CACERT")]
    cacert: Option<PathBuf>,
    /// The file with the client's certificate (PEM); needs `--key` too
    #[arg(long, global = true, value_name = "FILE", env = "LOCK_TLS_CERT")]
    cert: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) key: KeyArg,
    /// The name in the servers' certificates, if it is not the host in the URL
    #[arg(long, global = true, value_name = "NAME", env = "LOCK_TLS_SERVER_NAME")]
    server_name: Option<String>,
    /// The file with the password, so that no argument and no environment variable contains it. The URL names the user.
    /// The file is read again for each new connection
    #[arg(long, global = true, value_name = "FILE", env = "LOCK_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
}

/// The private key. This option is not global, because `--key` of `run` is the key of the lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeyArg {
    /// The file with the private key of the client's certificate (PEM). For `run`, write this option before `run`,
    /// because `run --key` is the key of the lock
    #[arg(
        long = "key",
        id = "tls_key",
        value_name = "FILE",
        env = "LOCK_TLS_KEY"
    )]
    pub(crate) file: Option<PathBuf>,
}

impl AccessArgs {
    /// Adds these settings to a builder.
    pub(crate) fn apply(
        &self,
        mut builder: LockClientBuilder,
        urls: &[String],
    ) -> Result<LockClientBuilder, Failure> {
        if let Some(path) = &self.cacert {
            builder = builder.tls_root_certificates(pem("--cacert", path)?);
        }
        if let Some((certificate, key)) = self.identity()? {
            builder =
                builder.tls_client_certificate(pem("--cert", certificate)?, pem("--key", key)?);
        }
        if let Some(name) = &self.server_name {
            builder = builder.tls_server_name(name);
        }
        if let Some(path) = &self.password_file {
            read_password(path).map_err(bad)?;
            let (path, user) = (path.clone(), one_user(urls)?);
            builder = builder.credentials_provider(move || {
                let read = read_password(&path);
                let user = user.clone();
                async move { read.map(|password| Credentials::new(user, password)) }
            });
        }
        Ok(builder)
    }

    /// Returns the files with the client's certificate and its key.
    fn identity(&self) -> Result<Option<(&PathBuf, &PathBuf)>, Failure> {
        match (&self.cert, &self.key.file) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(bad(
                "`--cert` needs `--key FILE` too, before the subcommand `run` (or the variable LOCK_TLS_KEY)",
            )),
            (None, Some(_)) => Err(bad(
                "`--key` needs `--cert FILE` too (or the variable LOCK_TLS_CERT)",
            )),
        }
    }

    /// Connects to one server without the engine. A Sentinel has no password.
    pub(crate) async fn connect(
        &self,
        url: &str,
        patience: Duration,
        is_sentinel: bool,
    ) -> Result<MultiplexedConnection, String> {
        // The `redis` crate uses the cryptography that is installed for the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let text = |error: RedisError| error.to_string();
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience));
        let mut info = url.into_connection_info().map_err(text)?;
        if let Some(path) = self.password_file.as_ref().filter(|_| !is_sentinel) {
            let settings = info.redis_settings().clone();
            let settings = settings.set_username(user_of(url));
            info = info.set_redis_settings(settings.set_password(read_password(path)?));
        }
        if let Some(certificates) = self.certificates()? {
            let client = redis::Client::build_with_tls(info, certificates).map_err(text)?;
            info = client.get_connection_info().clone();
        }
        (info, config) = self.with_server_name(info, config);
        let client = redis::Client::open(info).map_err(text)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        connecting.await.map_err(text)
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let root_cert = self.cacert.as_ref().map(read).transpose()?;
        let client_tls = match (&self.cert, &self.key.file) {
            (Some(certificate), Some(key)) => Some(ClientTlsConfig {
                client_cert: read(certificate)?,
                client_key: read(key)?,
            }),
            _ => None,
        };
        Ok(
            (root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates {
                client_tls,
                root_cert,
            }),
        )
    }

    /// The certificate is checked against the host of the address. The address therefore gets the server's name, and
    /// the resolver finds the host to which to connect.
    fn with_server_name(
        &self,
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> (ConnectionInfo, AsyncConnectionConfig) {
        match (&self.server_name, info.addr().clone()) {
            (
                Some(name),
                ConnectionAddr::TcpTls {
                    host,
                    port,
                    insecure,
                    tls_params,
                },
            ) => {
                let addr = ConnectionAddr::TcpTls {
                    host: name.clone(),
                    port,
                    insecure,
                    tls_params,
                };
                (
                    info.set_addr(addr),
                    config.set_dns_resolver(ResolvesTo(host)),
                )
            }
            _ => (info, config),
        }
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

fn bad(text: impl Into<String>) -> Failure {
    Failure::Text(Exit::BadSettings, text.into())
}

fn pem(option: &str, path: &Path) -> Result<Pem, Failure> {
    if path.to_string_lossy().contains("-----BEGIN") {
        return Err(bad(format!(
            "`{option}` expects the path of a file, not the text in it"
        )));
    }
    Ok(Pem::file(path))
}

/// Reads the password, without the line break at its end.
fn read_password(path: &Path) -> Result<String, String> {
    let refused = |error: io::Error| {
        format!(
            "cannot read the file of `--password-file`, {}: {error}",
            path.display()
        )
    };
    let text = fs::read_to_string(path).map_err(refused)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Returns the user that a URL names: `default` if it names none.
fn user_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    let user = user.and_then(|user| user.split(':').next());
    match user {
        None | Some("") => "default".to_owned(),
        Some(user) => percent_decode_str(user).decode_utf8_lossy().into_owned(),
    }
}

/// Returns the user that all URLs name.
fn one_user(urls: &[String]) -> Result<String, Failure> {
    let mut users = urls.iter().map(|url| user_of(url));
    let first = users.next().unwrap_or_default();
    if users.any(|user| user != first) {
        return Err(bad(
            "with `--password-file`, all URLs have to name the same user",
        ));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_user() {
        for (url, user) in [
            ("redis://127.0.0.1/", "default"),
            ("redis://:secret@127.0.0.1/", "default"),
            ("rediss://locks@10.0.0.7:6380/2", "locks"),
            ("redis+sentinel://a%20b:x@s1,s2/group", "a b"),
            ("unix:/tmp/redis.sock", "default"),
        ] {
            assert_eq!(user_of(url), user, "{url}");
        }
        let urls = ["redis://a@x/".to_owned(), "redis://b@y/".to_owned()];
        assert!(one_user(&urls).is_err());
    }
}
