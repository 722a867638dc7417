//! The nodes of a Redlock, given in one of two forms. `redlock://[user:password@]host[:port],host[:port],..[/db]` is
//! the URL of a Redlock whose servers have one user and one database. The other form is a list of URLs, each of which
//! names one node.

use crate::{
    backend::redis::{
        transport::connector::Place,
        url::{Hosts, divide, is_cluster, is_group, parse_group, parse_url},
    },
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
    let mut nodes: Vec<redis::ConnectionInfo> = Vec::with_capacity(hosts.len());
    let mut addresses = Vec::with_capacity(hosts.len());
    for host in hosts {
        let node = parse_url(&format!("{each}{user}{host}{path}"))?;
        let address = node.addr().to_string().to_lowercase();
        if addresses.contains(&address) {
            return Err(ConnectError::SameServerTwice { server: address });
        }
        addresses.push(address);
        nodes.push(node);
    }
    Ok(nodes)
}

/// Parses the URLs of the nodes of a Redlock. Each URL names a server, or a group that Sentinels watch. The credentials
/// are those of the Sentinels of all groups.
pub(crate) fn parse_nodes(
    urls: &[String],
    credentials: Option<&(String, String)>,
) -> Result<Vec<Place>, ConnectError> {
    if urls.len() < FEWEST {
        return Err(ConnectError::TooFewServers {
            servers: urls.len(),
        });
    }
    let mut nodes = Vec::with_capacity(urls.len());
    let mut known: Vec<(String, String)> = Vec::new();
    for url in urls {
        if is_cluster(url) {
            return Err(ConnectError::ClusterNode);
        }
        if is_redlock(url) {
            return Err(ConnectError::InvalidUrl {
                detail: "a node of a Redlock is one server, redis://host, or one group, redis+sentinel://sentinel1,sentinel2/group".into(),
            });
        }
        // Two groups are the same if they have the same name and a Sentinel in common.
        let (node, group, addresses) = if is_group(url) {
            let config = parse_group(url, credentials)?;
            let sentinels = config.sentinels.iter();
            let addresses: Vec<_> = sentinels.map(|info| info.addr().to_string()).collect();
            let group = config.group.clone();
            (Place::Group(config), group, addresses)
        } else {
            let info = parse_url(url)?;
            let address = info.addr().to_string();
            (Place::Server(info), String::new(), vec![address])
        };
        let mut names: Vec<_> = addresses
            .into_iter()
            .map(|address| (group.clone(), address.to_lowercase()))
            .collect();
        if let Some((_, server)) = names.iter().find(|name| known.contains(name)) {
            let server = match group.is_empty() {
                true => server.clone(),
                false => format!("{server}/{group}"),
            };
            return Err(ConnectError::SameServerTwice { server });
        }
        known.append(&mut names);
        nodes.push(node);
    }
    Ok(nodes)
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
        #[cfg(feature = "tls")]
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
        parse_nodes(&urls, None).map(|nodes| nodes.len())
    }

    const GROUP: &str = "redis+sentinel://:secret@s1,s2,s3/shop";

    #[test]
    fn a_node_is_a_server_or_a_group() {
        assert_eq!(nodes(&["redis://a", "redis://b:7000/3", GROUP]), Ok(3));
        let others = "redis+sentinel://s1,s2,s3/other";
        assert_eq!(nodes(&[others, "unix:///tmp/redis.sock", GROUP]), Ok(3));
    }

    #[test]
    fn a_list_of_nodes_is_refused_without_its_passwords() {
        let two = ConnectError::TooFewServers { servers: 2 };
        assert_eq!(nodes(&["redis://a", GROUP]), Err(two));
        let cluster = "redis+cluster://:secret@c";
        assert_eq!(
            nodes(&["redis://a", "redis://b", cluster]),
            Err(ConnectError::ClusterNode)
        );
        let again = "redis+sentinel://s4,s3:26379/shop";
        for urls in [
            ["redis://a", "redis://b", "redis://:secret@A:6379/1"],
            [GROUP, "redis://b", again],
        ] {
            let error = nodes(&urls).unwrap_err();
            let is_twice = matches!(error, ConnectError::SameServerTwice { .. });
            assert!(is_twice, "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
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
