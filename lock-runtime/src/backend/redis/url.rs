//! The URL of a Redis server.

use redis::IntoConnectionInfo;

use crate::connect_error::ConnectError;

/// Parses the URL of a Redis server.
pub(crate) fn parse_url(url: &str) -> Result<redis::ConnectionInfo, ConnectError> {
    let invalid = |detail: &str| ConnectError::InvalidUrl {
        detail: detail.to_owned(),
    };
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "redis" | "redis+unix" | "unix" | "valkey" | "valkey+unix" => {}
        "rediss" | "valkeys" if cfg!(feature = "tls") => {}
        "rediss" | "valkeys" => return Err(invalid("TLS needs the feature `tls` of lock-runtime")),
        _ if scheme.contains("sentinel") => {
            return Err(invalid(
                "Sentinel is not supported yet, name the master itself",
            ));
        }
        _ if scheme.contains("cluster") => {
            return Err(invalid(
                "Redis Cluster is not supported yet, name a server outside a cluster",
            ));
        }
        _ => return Err(invalid("unknown scheme")),
    }
    // The message of the `redis` crate may quote the URL or the value of a parameter, and both may contain a password.
    // A message that quotes one of them is not passed on.
    let values = || {
        url.split(['?', '&'])
            .skip(1)
            .filter_map(|field| Some(field.split_once('=')?.1))
    };
    let quotes = |detail: &str| {
        let has = |part: &str| !part.is_empty() && detail.contains(part);
        has(url) || values().any(has)
    };
    url.into_connection_info().map_err(|error| {
        let detail = error.detail().filter(|detail| !quotes(detail));
        invalid(detail.unwrap_or("malformed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_form_is_read() {
        for url in [
            "redis://localhost",
            "redis://user:secret@127.0.0.1:7000/3",
            "redis+unix:///tmp/redis.sock",
            "unix:///tmp/redis.sock",
        ] {
            assert!(parse_url(url).is_ok(), "{url}");
        }
        #[cfg(feature = "tls")]
        assert!(parse_url("rediss://localhost").is_ok());
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "",
            "localhost",
            "http://:secret@localhost",
            "redis://:secret@",
            "redis://:secret@host:port/",
            "redis://:secret@host/not-a-number",
            "redis://host/?protocol=secret",
            "redis+unix:///path?db=secret",
        ] {
            let message = format!("{:?}", parse_url(url).expect_err(url));
            assert!(!message.contains("secret"), "{message}");
            assert!(message.contains("redis://"), "{message}");
        }
    }
}
