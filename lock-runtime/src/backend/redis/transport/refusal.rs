//! Parses a server's refusal of a command: finds out which right the Redis user lacks, and names this right.

/// The kind of right that the Redis user lacks, according to a server's refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Command,
    Key,
    Channel,
}

/// Returns the kind of right that the user lacks, or `None` if the error has another cause.
pub(crate) fn refused(error: &str) -> Option<Refused> {
    let is_refusal = error.contains("user executing the script can't")
        || error.contains("no permissions")
        || error.contains("No permissions");
    Some(match error {
        _ if !is_refusal => return None,
        error if error.contains("to run the '") => Refused::Command,
        error if error.contains("channel") => Refused::Channel,
        error if error.contains(" key") => Refused::Key,
        _ => Refused::Command,
    })
}

/// Adds two facts to the server's refusal of a command: which right the user lacks, and how an administrator grants
/// this right. Returns any other text unchanged.
pub(crate) fn with_missing_right(refusal: String) -> String {
    match missing_right(&refusal) {
        Some(advice) => format!("{refusal}: {advice}"),
        None => refusal,
    }
}

fn missing_right(refusal: &str) -> Option<String> {
    let refused = refused(refusal)?;
    if let Some((_, rest)) = refusal.split_once("to run the '") {
        let (command, _) = rest.split_once('\'')?;
        return Some(format!(
            "an administrator grants the right with `ACL SETUSER <user> +{command}`"
        ));
    }
    let advice = match refused {
        Refused::Channel => {
            "an administrator grants the right with `ACL SETUSER <user> &lock:session:*`"
        }
        Refused::Key => "docs/guides/acl.md lists the patterns of keys that the user needs",
        // Redis 6.2 and 7.0 do not name the command that they refuse inside a script.
        Refused::Command => {
            "`ACL LOG` names the command, and docs/guides/acl.md lists the commands that the user needs"
        }
    };
    Some(advice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The refusals are those of Redis 6.2.16, 7.0.15 and 7.4.1, and of Valkey 8.0.1.
    #[test]
    fn the_missing_right_is_named() {
        for (refusal, advice) in [
            (
                "NOPERM this user has no permissions to run the 'zadd' command or its subcommand",
                Some("+zadd`"),
            ),
            (
                "NOPERM User locks has no permissions to run the 'script|load' command",
                Some("+script|load`"),
            ),
            (
                "ERR ACL failure in script: User locks has no permissions to run the 'zadd' command script: 0523, on @user_script:1.",
                Some("+zadd`"),
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 0523, on @user_script:1.",
                Some("`ACL LOG`"),
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
                Some("patterns of keys"),
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: 733d",
                Some("patterns of keys"),
            ),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                Some("&lock:session:*`"),
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command",
                Some("&lock:session:*`"),
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'",
                None,
            ),
        ] {
            let named = with_missing_right(refusal.to_owned());
            match advice {
                Some(advice) => assert!(named.contains(advice), "{named}"),
                None => assert_eq!(named, refusal),
            }
        }
    }
}
