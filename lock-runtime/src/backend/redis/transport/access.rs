//! The access of connections to a server: the TLS settings and the provider of credentials.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, RedisResult};

#[cfg(feature = "__tls")]
use crate::backend::redis::transport::tls::Tls;
use crate::{
    backend::redis::transport::{
        credentials::{Obtained, Provider},
        wire::{Arrival, Wire},
    },
    background::Context,
    connect_error::ConnectError,
};

/// The settings with which connections gain access to a server, apart from the settings in the URL.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    #[cfg(feature = "__tls")]
    pub(crate) tls: Arc<Tls>,
    pub(crate) provider: Option<Arc<Provider>>,
}

impl Access {
    /// Returns an error if there are TLS settings, but connections to this address do not use TLS.
    pub(crate) fn check(&self, address: &ConnectionAddr) -> Result<(), ConnectError> {
        #[cfg(feature = "__tls")]
        if self.tls.has_settings() && !matches!(address, ConnectionAddr::TcpTls { .. }) {
            return Err(ConnectError::InvalidTls {
                detail: "the URL asks for no TLS: write rediss:// instead of redis://".into(),
            });
        }
        let _ = address;
        Ok(())
    }

    /// Returns the access to the Sentinels. The Sentinels have the same TLS settings as the servers, and credentials of
    /// their own.
    pub(crate) fn of_sentinels(&self) -> Self {
        let mut access = self.clone();
        access.provider = None;
        access
    }

    /// Makes a connection, and passes everything that arrives to `receive`. Returns the connection with the credentials
    /// of the provider, if there is a provider.
    pub(crate) async fn connect(
        &self,
        context: &Arc<Context>,
        info: &ConnectionInfo,
        receive: impl Fn(Arrival) + Send + Sync + 'static,
    ) -> RedisResult<(Wire, Option<Obtained>)> {
        let obtained = match &self.provider {
            Some(provider) => Some(provider.get(context).await?),
            None => None,
        };
        let socket = context.network().connect(info.addr()).await?;
        #[cfg(feature = "__tls")]
        let socket = match info.addr() {
            ConnectionAddr::TcpTls { host, insecure, .. } => {
                self.tls.encrypt(context, socket, host, *insecure).await?
            }
            _ => socket,
        };
        let info = match &obtained {
            Some(obtained) => &with_credentials(info, obtained),
            None => info,
        };
        Ok((Wire::open(context, socket, info, receive).await?, obtained))
    }
}

fn with_credentials(info: &ConnectionInfo, obtained: &Obtained) -> ConnectionInfo {
    let settings = info.redis_settings().clone();
    let settings = settings.set_username(&obtained.credentials.user);
    let settings = settings.set_password(&obtained.credentials.password);
    info.clone().set_redis_settings(settings)
}
