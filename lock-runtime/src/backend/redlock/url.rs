//! `redlock://[user:password@]host[:port],host[:port],..[/db]`: the URL of a quorum with several servers, one user and
//! one database.

use crate::{
    backend::redis::url::{Hosts, divide, parse_url},
    connect_error::ConnectError,
};

/// The smallest number of servers of which a majority is still up when one server is down.
const FEWEST: usize = 3;
/// The schemes of a quorum's URL, each with the scheme of the URLs of its servers.
const SCHEMES: [(&str, &str); 2] = [("redlock://", "redis://"), ("redlocks://", "rediss://")];

/// Returns whether a URL names a quorum.
pub(crate) fn is_redlock(url: &str) -> bool {
    SCHEMES.iter().any(|(scheme, _)| url.starts_with(scheme))
}

/// Parses the URL of a quorum.
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
