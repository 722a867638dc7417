//! The choice of the backend for locks on servers.

use std::sync::Arc;

use lock_core::options::AccessMode;

use crate::{
    backend::{
        open::Open,
        redis::{
            RedisBackend, RedisConfig,
            transport::{
                access::Access,
                connector::{Destination, Needs, Place},
                credentials::Provider,
            },
            url::{is_cluster, is_group, parse_cluster, parse_group, parse_url},
        },
    },
    background::Context,
    client::builder::{LockClientBuilder, Target},
    connect_error::ConnectError,
    events::Counters,
    features,
};

#[cfg(feature = "redlock")]
use crate::backend::redlock::{self, RedlockBackend, RedlockConfig};

/// Creates the backend for the servers that `target` names. The features that the URLs need are on.
pub(super) fn open(
    builder: &LockClientBuilder,
    target: &Target,
    application: String,
    context: &Arc<Context>,
    counters: &Arc<Counters>,
) -> Result<Arc<dyn Open>, ConnectError> {
    let (layout, allow_eviction) = (builder.defaults.layout, builder.allow_eviction);
    let access = Access {
        #[cfg(feature = "__tls")]
        tls: Arc::new(builder.tls.open()?),
        provider: builder
            .provider
            .clone()
            .map(|source| Arc::new(Provider::new(source))),
    };
    let destination = |place, is_redlock| Destination {
        place,
        application: application.clone(),
        access: access.clone(),
        needs: Needs {
            // Every client of a Redlock writes a mark to each node: a key that shows whether the node has kept its
            // state.
            access: if is_redlock {
                AccessMode::Full
            } else {
                builder.access
            },
            layout,
            namespace: builder.namespace.as_deref().map(Into::into),
            replicas: builder.defaults.replicas.count > 0,
            is_redlock,
        },
    };
    #[cfg(feature = "redlock")]
    if let Some(nodes) = nodes(target) {
        let nodes = nodes?.into_iter();
        builder.require_native_layout()?;
        let config = RedlockConfig {
            nodes: nodes
                .map(|node| destination(Place::Server(node), true))
                .collect(),
            allow_eviction,
            lease: builder.defaults.lease,
        };
        return Ok(Arc::new(RedlockBackend::open(config, context, counters)?));
    }
    features::check_layout(layout)?;
    let place = match target {
        Target::Nodes(_) => return Err(features::no_redlock()),
        Target::Url(url) if is_group(url) => {
            Place::Group(parse_group(url, builder.sentinel_credentials.as_ref())?)
        }
        Target::Url(url) if is_cluster(url) => Place::Cluster(parse_cluster(url)?),
        Target::Url(url) => Place::Server(parse_url(url)?),
    };
    let config = RedisConfig {
        destination: destination(place, false),
        layout,
        allow_eviction,
    };
    Ok(Arc::new(RedisBackend::open(config, context, counters)?))
}

/// Returns whether the servers are the nodes of a Redlock.
pub(super) fn is_redlock(target: &Target) -> bool {
    #[cfg(feature = "redlock")]
    return nodes(target).is_some();
    #[cfg(not(feature = "redlock"))]
    return matches!(target, Target::Nodes(_));
}

/// Returns the nodes if `target` is a Redlock.
#[cfg(feature = "redlock")]
fn nodes(target: &Target) -> Option<Result<Vec<redis::ConnectionInfo>, ConnectError>> {
    match target {
        Target::Nodes(urls) => Some(redlock::parse_nodes(urls)),
        Target::Url(url) if redlock::is_redlock(url) => Some(redlock::parse(url)),
        Target::Url(_) => None,
    }
}
