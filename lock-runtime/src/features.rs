//! The features of this crate that a URL or a setting of the builder needs.

use lock_core::layout::Layout;

use crate::connect_error::ConnectError;

/// A feature of this crate.
#[derive(Clone, Copy)]
struct Feature {
    name: &'static str,
    is_on: bool,
}

impl Feature {
    /// Returns an error if this feature is off. `needed_by` is what needs the feature.
    fn require(self, needed_by: &str) -> Result<(), ConnectError> {
        if self.is_on {
            Ok(())
        } else {
            Err(self.missing(needed_by))
        }
    }

    fn missing(self, needed_by: &str) -> ConnectError {
        ConnectError::MissingFeature {
            needed_by: needed_by.to_owned(),
            feature: self.name,
        }
    }
}

const REDIS: Feature = Feature {
    name: "redis",
    is_on: cfg!(feature = "redis"),
};
const CLUSTER: Feature = Feature {
    name: "cluster",
    is_on: cfg!(feature = "cluster"),
};
const REDLOCK: Feature = Feature {
    name: "redlock",
    is_on: cfg!(feature = "redlock"),
};
const REDISSON: Feature = Feature {
    name: "redisson",
    is_on: cfg!(feature = "redisson"),
};
/// The feature `tls-aws-lc` serves as well.
const TLS: Feature = Feature {
    name: "tls-ring",
    is_on: cfg!(feature = "__tls"),
};

/// Returns the features that a URL with this scheme needs, without those that another of them enables.
fn of_scheme(scheme: &str) -> &'static [Feature] {
    match scheme {
        "redis" | "redis+sentinel" | "redis+unix" | "unix" | "valkey" | "valkey+unix" => &[REDIS],
        "rediss" | "rediss+sentinel" | "valkeys" => &[TLS],
        "redis+cluster" => &[CLUSTER],
        "rediss+cluster" => &[CLUSTER, TLS],
        "redlock" => &[REDLOCK],
        "redlocks" => &[REDLOCK, TLS],
        _ => &[],
    }
}

/// Returns an error if a feature is off that this URL needs.
pub(crate) fn check_url(url: &str) -> Result<(), ConnectError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Ok(());
    };
    let slashes = if rest.starts_with("//") { "//" } else { "" };
    let mut features = of_scheme(scheme).iter();
    features.try_for_each(|feature| feature.require(&format!("{scheme}:{slashes}")))
}

/// Returns an error if a feature is off that a Redlock with these nodes needs.
pub(crate) fn check_nodes(urls: &[String]) -> Result<(), ConnectError> {
    if !REDLOCK.is_on {
        return Err(no_redlock());
    }
    urls.iter().try_for_each(|url| check_url(url))
}

/// Returns the error of a Redlock whose feature is off.
pub(crate) fn no_redlock() -> ConnectError {
    REDLOCK.missing("a Redlock")
}

/// Returns an error if a feature is off that this layout needs on a server.
pub(crate) fn check_layout(layout: Layout) -> Result<(), ConnectError> {
    match layout {
        Layout::Native => Ok(()),
        Layout::Redisson => REDISSON.require("Redisson's layout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockClient, LockClientBuilder};

    /// Fails unless connecting names `feature` as missing, or does not if the feature is on.
    fn assert_named(builder: LockClientBuilder, needed_by: &str, feature: Feature) {
        let connected = builder.connect_lazy().err();
        let missing = match &connected {
            Some(error @ ConnectError::MissingFeature { .. }) => Some(error.to_string()),
            _ => None,
        };
        let name = feature.name;
        let expected = format!("{needed_by} needs the feature `{name}` of lock-runtime");
        let expected = (!feature.is_on).then_some(expected);
        assert_eq!(missing, expected, "{connected:?}");
    }

    #[test]
    fn a_url_whose_feature_is_off_names_the_feature() {
        for (scheme, rest, feature) in [
            ("redis://", "localhost", REDIS),
            ("valkey://", "localhost", REDIS),
            ("redis+unix://", "/tmp/redis.sock", REDIS),
            ("unix://", "/tmp/redis.sock", REDIS),
            ("unix:", "/tmp/redis.sock", REDIS),
            ("redis+sentinel://", "user:secret@a,b,c/group", REDIS),
            ("redis+cluster://", "user:secret@a,b,c", CLUSTER),
            ("redlock://", "user:secret@a,b,c", REDLOCK),
            ("rediss://", "user:secret@localhost", TLS),
            ("valkeys://", "localhost", TLS),
            ("rediss+sentinel://", "a,b,c/group", TLS),
            (
                "rediss+cluster://",
                "a,b,c",
                if CLUSTER.is_on { TLS } else { CLUSTER },
            ),
            (
                "redlocks://",
                "a,b,c",
                if REDLOCK.is_on { TLS } else { REDLOCK },
            ),
        ] {
            let builder = LockClient::builder().url(format!("{scheme}{rest}"));
            assert_named(builder, scheme, feature);
        }
    }

    #[test]
    fn nodes_of_a_redlock_whose_feature_is_off_name_the_feature() {
        let nodes = ["redis://a", "redis://b", "redis://c"];
        let builder = LockClient::builder().redlock_nodes(nodes);
        assert_named(builder, "a Redlock", REDLOCK);
        if REDLOCK.is_on {
            let nodes = ["redis://a", "redis://b", "rediss://:secret@c"];
            assert_named(LockClient::builder().redlock_nodes(nodes), "rediss://", TLS);
        }
    }

    #[test]
    fn a_layout_whose_feature_is_off_names_the_feature() {
        let redisson = || LockClient::builder().layout(Layout::Redisson);
        if REDIS.is_on {
            let builder = redisson().url("redis://localhost");
            assert_named(builder, "Redisson's layout", REDISSON);
        }
        let in_process = redisson().url("memory:").connect_lazy();
        let refused = in_process.expect_err("locks in process have no such layout");
        assert_eq!(refused, ConnectError::UnsupportedLayout);
    }

    #[test]
    fn a_url_without_a_known_scheme_is_not_valid() {
        for url in [
            "",
            "localhost",
            "http://:secret@localhost",
            "redis-cluster://a",
        ] {
            let refused = LockClient::builder().url(url).connect_lazy();
            let refused = refused.expect_err(url);
            assert!(
                matches!(refused, ConnectError::InvalidUrl { .. }),
                "{refused}"
            );
            assert!(!format!("{refused:?}").contains("secret"), "{refused:?}");
        }
    }
}
