//! Parses the URLs of the Redis backend: `redis://`, `redis+sentinel://`, `redis+cluster://`, their TLS forms, and
//! `unix:`.

use redis::IntoConnectionInfo;

use crate::{backend::redis::transport::sentinel::SentinelConfig, connect_error::ConnectError};

/// Parses the URL of a Redis server.
pub(crate) fn parse_url(url: &str) -> Result<redis::ConnectionInfo, ConnectError> {
    let invalid = |detail: &str| ConnectError::InvalidUrl {
        detail: detail.to_owned(),
    };
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "redis" | "redis+unix" | "unix" | "valkey" | "valkey+unix" => {}
        "rediss" | "valkeys" => {}
        _ if scheme.contains("sentinel") => {
            return Err(invalid(
                "write redis+sentinel://sentinel1,sentinel2,sentinel3/group",
            ));
        }
        _ if scheme.contains("cluster") => {
            return Err(invalid("write redis+cluster://host1,host2,host3"));
        }
        _ => return Err(invalid("unknown scheme")),
    }
    // An error message of the `redis` crate may quote the URL or the value of a parameter, both of which may contain a
    // password. A message that quotes one of them is therefore replaced by `malformed`.
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

/// The URL schemes of a group that Sentinels watch, each with the scheme that is used to parse its single servers.
const GROUP_SCHEMES: [(&str, &str); 2] = [
    ("redis+sentinel://", "redis://"),
    ("rediss+sentinel://", "rediss://"),
];
/// The URL schemes of a Redis Cluster, each with the scheme that is used to parse its single servers.
const CLUSTER_SCHEMES: [(&str, &str); 2] = [
    ("redis+cluster://", "redis://"),
    ("rediss+cluster://", "rediss://"),
];
/// The port on which a Sentinel listens by default.
const SENTINEL_PORT: u16 = 26379;

/// Returns whether a URL names a group of servers that Sentinels watch.
pub(crate) fn is_group(url: &str) -> bool {
    GROUP_SCHEMES
        .iter()
        .any(|(scheme, _)| url.starts_with(scheme))
}

/// Returns whether a URL names servers of a Redis Cluster.
pub(crate) fn is_cluster(url: &str) -> bool {
    CLUSTER_SCHEMES
        .iter()
        .any(|(scheme, _)| url.starts_with(scheme))
}

/// Parses `redis+cluster://[user:password@]host[:port],host[:port],..`.
pub(crate) fn parse_cluster(url: &str) -> Result<Vec<redis::ConnectionInfo>, ConnectError> {
    let invalid = |detail: &str| ConnectError::InvalidUrl {
        detail: detail.to_owned(),
    };
    let scheme = CLUSTER_SCHEMES
        .iter()
        .find_map(|(scheme, each)| Some((*each, url.strip_prefix(scheme)?)));
    let (each, rest) = scheme.ok_or_else(|| invalid("unknown scheme"))?;
    let Hosts { user, hosts, path } = divide(rest);
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    if !path.trim_matches('/').is_empty() {
        return Err(invalid("a Redis Cluster has no numbered databases"));
    }
    let servers = hosts.into_iter();
    servers
        .map(|host| parse_url(&format!("{each}{user}{host}/{query}")))
        .collect()
}

/// The parts of a URL that names several hosts.
pub(crate) struct Hosts<'a> {
    /// The user, the password and the `@` that follows them, or an empty string.
    pub(crate) user: &'a str,
    pub(crate) hosts: Vec<&'a str>,
    /// The text that follows the hosts, from the first `/` or `?`, or an empty string.
    pub(crate) path: &'a str,
}

/// Divides the part of a URL that follows the scheme. The hosts begin after the last `@`, because a password may
/// contain `@`, `,`, `/` or `?`.
pub(crate) fn divide(rest: &str) -> Hosts<'_> {
    let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
    let (hosts, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    Hosts {
        user,
        hosts: hosts.split(',').map(str::trim).collect(),
        path,
    }
}

/// Parses `redis+sentinel://[user:password@]sentinel[:port],sentinel[:port],../group[/db]`.
pub(crate) fn parse_group(
    url: &str,
    credentials: Option<&(String, String)>,
) -> Result<SentinelConfig, ConnectError> {
    let invalid = |detail: &str| ConnectError::InvalidUrl {
        detail: detail.to_owned(),
    };
    let scheme = GROUP_SCHEMES
        .iter()
        .find_map(|(scheme, each)| Some((*each, url.strip_prefix(scheme)?)));
    let (each, rest) = scheme.ok_or_else(|| invalid("unknown scheme"))?;
    let Hosts { user, hosts, path } = divide(rest);
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut path = path.trim_start_matches('/').splitn(2, '/');
    let group = path.next().unwrap_or_default();
    if group.is_empty() {
        return Err(invalid(
            "the name of the group is missing: redis+sentinel://sentinel1,sentinel2,sentinel3/group",
        ));
    }
    let db = path.next().unwrap_or_default();
    let sentinels = hosts.into_iter().map(|host| {
        let has_port = !host.ends_with(']') && host.contains(':');
        let port = if has_port {
            String::new()
        } else {
            format!(":{SENTINEL_PORT}")
        };
        let info = parse_url(&format!("{each}{host}{port}"))?;
        Ok(match credentials {
            None => info,
            Some((user, password)) => {
                let settings = info.redis_settings().clone();
                info.set_redis_settings(settings.set_username(user).set_password(password))
            }
        })
    });
    Ok(SentinelConfig {
        group: group.to_owned(),
        sentinels: sentinels.collect::<Result<_, _>>()?,
        // The address that the Sentinels name replaces `localhost`.
        server: parse_url(&format!("{each}{user}localhost/{db}{query}"))?,
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
        #[cfg(feature = "__tls")]
        assert!(parse_url("rediss://localhost").is_ok());
    }

    #[test]
    fn an_escaped_password_is_read_as_it_was() {
        let password = "a:b@c/d?e#f%g [h]é+";
        let url = format!("redis://locks:{}@host/2", lock_core::key::escape(password));
        let info = parse_url(&url).unwrap();
        assert_eq!(info.redis_settings().password(), Some(password));
        assert_eq!(info.redis_settings().db(), 2);
        assert_eq!(info.addr().to_string(), "host:6379");
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

    #[test]
    fn a_group_is_read() {
        let url = "redis+sentinel://me:p%2C%40w@s1,[::1]:7001,s3:7002/shop/3";
        let group = parse_group(url, None).unwrap();
        let address = |info: &redis::ConnectionInfo| info.addr().to_string();
        let sentinels: Vec<_> = group.sentinels.iter().map(address).collect();
        assert_eq!(sentinels, ["s1:26379", "::1:7001", "s3:7002"]);
        assert_eq!(group.group, "shop");
        let settings = group.server.redis_settings();
        assert_eq!(settings.username(), Some("me"));
        assert_eq!(settings.password(), Some("p,@w"));
        assert_eq!(settings.db(), 3);
        // The credentials in the URL are for the servers of the group, and not for the Sentinels.
        assert_eq!(group.sentinels[0].redis_settings().password(), None);
        let own = ("reader".to_owned(), "secret".to_owned());
        let group = parse_group(url, Some(&own)).unwrap();
        let settings = group.sentinels[0].redis_settings();
        assert_eq!(settings.username(), Some("reader"));
        assert_eq!(settings.password(), Some("secret"));
    }

    #[test]
    fn the_servers_of_a_cluster_are_read() {
        let servers = parse_cluster("redis+cluster://me:p%2C%40w@h1,[::1]:7001/").unwrap();
        let addresses: Vec<_> = servers.iter().map(|info| info.addr().to_string()).collect();
        assert_eq!(addresses, ["h1:6379", "::1:7001"]);
        for server in servers {
            assert_eq!(server.redis_settings().username(), Some("me"));
            assert_eq!(server.redis_settings().password(), Some("p,@w"));
        }
        for url in [
            "redis+cluster://:secret@h1,h2/3",
            "redis+cluster://:secret@",
            "redis+cluster://:secret@h1:port",
        ] {
            let message = format!("{:?}", parse_cluster(url).expect_err(url));
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn a_wrong_group_is_refused_without_its_password() {
        for url in [
            "redis+sentinel://:secret@s1,s2",
            "redis+sentinel://:secret@s1,s2/",
            "redis+sentinel://:secret@s1:port/shop",
            "redis+sentinel://:secret@s1/shop/not-a-number",
            "redis+sentinel:///shop",
        ] {
            let message = format!("{:?}", parse_group(url, None).expect_err(url));
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
