//! The nodes of a Redlock, given in one of two forms. `redlock://[user:password@]host[:port],host[:port],..[/db]` is
//! the URL of a Redlock whose servers have one user and one database. The other form is a list of URLs, each of which
//! names one node.

use std::collections::HashSet;

use crate::{
    backend::redis::url::{Hosts, divide, is_cluster, is_group, parse_url},
    connect_error::ConnectError,
};

/// The smallest number of servers that a Redlock accepts. With this number, a majority is still up when one server is
/// down.
const FEWEST: usize = 3;
/// The schemes of a Redlock's URL, each with the scheme of the URLs of the Redlock's servers.
const SCHEMES: [(&str, &str); 2] = [("redlock://", "redis://"), ("redlocks://", "rediss://")];

/// Returns whether a URL names a Redlock.
pub(crate) fn is_redlock(url: &str) -> bool {
    SCHEMES.iter().any(|(scheme, _)| url.starts_with(scheme))
}

/// Parses the URL of a Redlock.
pub(crate) fn parse(url: &str) -> Result<Vec<redis::ConnectionInfo>, ConnectError> {
    let scheme = SCHEMES
        .iter()
        .find_map(|(scheme, each)| Some((*each, url.strip_prefix(scheme)?)));
    let Some((each, rest)) = scheme else {
        return Err(ConnectError::InvalidUrl {
            detail: "unknown scheme".into(),
        });
    };
    let Hosts { user, hosts, path } = divide(rest);
    if hosts.len() < FEWEST {
        return Err(ConnectError::TooFewServers {
            servers: hosts.iter().filter(|host| !host.is_empty()).count(),
        });
    }
    distinct(
        hosts
            .into_iter()
            .map(|host| parse_url(&format!("{each}{user}{host}{path}"))),
    )
}

/// Parses the URLs of the nodes of a Redlock. Each URL names a server.
pub(crate) fn parse_nodes(urls: &[String]) -> Result<Vec<redis::ConnectionInfo>, ConnectError> {
    if urls.len() < FEWEST {
        return Err(ConnectError::TooFewServers {
            servers: urls.len(),
        });
    }
    distinct(urls.iter().map(|url| match url {
        url if is_cluster(url) => Err(ConnectError::ClusterNode),
        url if is_group(url) => Err(ConnectError::SentinelNode),
        url if is_redlock(url) => Err(ConnectError::InvalidUrl {
            detail: "a node of a Redlock is one server, redis://host".into(),
        }),
        url => parse_url(url),
    }))
}

/// Returns the nodes, or an error if two nodes have the same address.
fn distinct(
    nodes: impl Iterator<Item = Result<redis::ConnectionInfo, ConnectError>>,
) -> Result<Vec<redis::ConnectionInfo>, ConnectError> {
    let mut addresses = HashSet::new();
    nodes
        .map(|node| {
            let node = node?;
            let server = node.addr().to_string().to_lowercase();
            if addresses.insert(server.clone()) {
                Ok(node)
            } else {
                Err(ConnectError::SameServerTwice { server })
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str) -> Vec<String> {
        let nodes = parse(url).expect(url);
        nodes.iter().map(|node| node.addr().to_string()).collect()
    }

    #[test]
    fn every_server_is_read() {
        assert_eq!(
            addresses("redlock://a,b:7000,[::1]:7001"),
            ["a:6379", "b:7000", "::1:7001"]
        );
        assert_eq!(addresses("redlock://a,b,c,d,e/").len(), 5);
        #[cfg(feature = "__tls")]
        assert_eq!(addresses("redlocks://a,b,c").len(), 3);
    }

    #[test]
    fn user_and_database_are_those_of_all() {
        for node in parse("redlock://me:p%2C%40w@a,b:7000,c/3").unwrap() {
            let settings = node.redis_settings();
            assert_eq!(settings.username(), Some("me"));
            assert_eq!(settings.password(), Some("p,@w"));
            assert_eq!(settings.db(), 3);
        }
    }

    #[test]
    fn two_servers_are_no_quorum() {
        for (url, servers) in [
            ("redlock://", 0),
            ("redlock://a", 1),
            ("redlock://:secret@a,b", 2),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error, ConnectError::TooFewServers { servers });
            let message = format!("{error:?}");
            assert!(message.contains("redlock://host1,host2,host3"), "{message}");
        }
    }

    #[test]
    fn one_server_has_one_vote() {
        for url in [
            "redlock://a,b,A",
            "redlock://a,b,a:6379",
            "redlock://:secret@a,b,c,b/2",
        ] {
            let error = parse(url).unwrap_err();
            assert!(
                matches!(error, ConnectError::SameServerTwice { .. }),
                "{error}"
            );
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    fn nodes(urls: &[&str]) -> Result<usize, ConnectError> {
        let urls: Vec<_> = urls.iter().map(|url| (*url).to_owned()).collect();
        parse_nodes(&urls).map(|nodes| nodes.len())
    }

    #[test]
    fn a_node_is_a_server() {
        let socket = "unix:///tmp/redis.sock";
        assert_eq!(nodes(&["redis://a", "redis://b:7000/3", socket]), Ok(3));
    }

    #[test]
    fn a_list_of_nodes_is_refused_without_its_passwords() {
        let two = ConnectError::TooFewServers { servers: 2 };
        assert_eq!(nodes(&["redis://a", "redis://b"]), Err(two));
        for (node, refused) in [
            ("redis+cluster://:secret@c", ConnectError::ClusterNode),
            (
                "redis+sentinel://:secret@s1,s2,s3/shop",
                ConnectError::SentinelNode,
            ),
            (
                "rediss+sentinel://:secret@s1,s2,s3/shop",
                ConnectError::SentinelNode,
            ),
        ] {
            assert_eq!(nodes(&["redis://a", "redis://b", node]), Err(refused));
        }
        let error = nodes(&["redis://a", "redis://b", "redis://:secret@A:6379/1"]).unwrap_err();
        let is_twice = matches!(error, ConnectError::SameServerTwice { .. });
        assert!(is_twice, "{error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        for wrong in ["memory:", "redlock://:secret@a,b,c", "http://:secret@a", ""] {
            let error = nodes(&["redis://a", "redis://b", wrong]).unwrap_err();
            let is_invalid = matches!(error, ConnectError::InvalidUrl { .. });
            assert!(is_invalid, "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn a_wrong_server_is_refused_without_its_password() {
        for url in [
            "redlock://:secret@a,,c",
            "redlock://:secret@a,b:port,c",
            "redlock://:secret@a,b,c/not-a-number",
        ] {
            let message = format!("{:?}", parse(url).expect_err(url));
            assert!(!message.contains("secret"), "{message}");
            assert!(message.contains("redlock://"), "{message}");
        }
    }
}
