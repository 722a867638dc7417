//! The access of connections to a server: the TLS settings and the provider of credentials.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult, aio::MultiplexedConnection,
};

#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls::Tls;
use crate::{
    backend::redis::transport::credentials::{Obtained, Provider},
    background::Context,
    connect_error::ConnectError,
};

/// The settings with which connections gain access to a server, apart from the settings in the URL.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) provider: Option<Arc<Provider>>,
}

impl Access {
    /// Returns an error if there are TLS settings, but connections to this address do not use TLS.
    pub(crate) fn check(&self, address: &ConnectionAddr) -> Result<(), ConnectError> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() && !matches!(address, ConnectionAddr::TcpTls { .. }) {
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

    /// Makes a connection. Returns the connection with the credentials of the provider, if there is a provider.
    pub(crate) async fn connect(
        &self,
        context: &Arc<Context>,
        client: &redis::Client,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Option<Obtained>)> {
        let network = context.network();
        if self.is_plain() {
            return Ok((network.connect(client, config).await?, None));
        }
        let info = client.get_connection_info().clone();
        #[cfg(feature = "tls")]
        let (info, config) = &match &self.tls {
            Some(tls) => tls.prepare(context, info, config).await?,
            None => (info, config.clone()),
        };
        #[cfg(not(feature = "tls"))]
        let info = &info;
        let (info, obtained) = match &self.provider {
            Some(provider) => {
                let obtained = provider.get(context).await?;
                (with_credentials(info, &obtained), Some(obtained))
            }
            None => (info.clone(), None),
        };
        let client = redis::Client::open(info)?;
        Ok((network.connect(&client, config).await?, obtained))
    }

    fn is_plain(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return false;
        }
        self.provider.is_none()
    }
}

fn with_credentials(info: &ConnectionInfo, obtained: &Obtained) -> ConnectionInfo {
    let settings = info.redis_settings().clone();
    let settings = settings.set_username(&obtained.credentials.user);
    let settings = settings.set_password(&obtained.credentials.password);
    info.clone().set_redis_settings(settings)
}
