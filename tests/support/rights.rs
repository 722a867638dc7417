//! The rights that a Redis user needs, as `docs/guides/acl.md` prints them. The lines of the guide are generated from the
//! engine's table of commands.

use std::{fs, io};

use crate::{page, root, server::has_shard_channels};

#[expect(dead_code, reason = "only the engine sends the arguments")]
#[path = "../../lock-runtime/src/backend/redis/preflight/acl.rs"]
mod acl;

use acl::{
    EVERY_SCRIPT, NATIVE_CLUSTER_SCRIPTS, NATIVE_SCRIPTS, REDISSON_CLUSTER_SCRIPTS,
    REDISSON_SCRIPTS, ScriptCommand,
};

/// The commands that every connection sends, and without which the connection cannot be used.
const EVERY_CONNECTION: &[&str] = &["client|id", "info", "subscribe", "time", "eval", "evalsha"];
/// The commands that every connection sends, and without which the connection can still be used.
pub const OPTIONAL: &[&str] = &["client|kill", "client|setname", "script|load"];

/// A kind of deployment, with a line of its own in the guide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single,
    /// The servers of a group that Sentinels watch.
    Group,
    /// The Sentinels of a group.
    Sentinel,
    /// The servers of a Redis Cluster.
    Cluster,
    /// The servers of a Redlock.
    Redlock,
    /// A single server with locks in Redisson's layout.
    Redisson,
    /// A Redis Cluster of Redis 7.0 or later with locks in Redisson's layout.
    RedissonCluster,
    /// The additional rights for a client with the option `replicas`.
    Replicas,
}

impl Deployment {
    /// All deployments.
    pub const ALL: [Self; 8] = [
        Self::Single,
        Self::Group,
        Self::Sentinel,
        Self::Cluster,
        Self::Redlock,
        Self::Redisson,
        Self::RedissonCluster,
        Self::Replicas,
    ];

    /// Returns the name of the marker in the guide.
    fn marker(self) -> &'static str {
        match self {
            Self::Single => "rights on a server",
            Self::Group => "rights on the servers of a group",
            Self::Sentinel => "rights on a sentinel",
            Self::Cluster => "rights in a cluster",
            Self::Redlock => "rights in a redlock",
            Self::Redisson => "rights with redisson",
            Self::RedissonCluster => "rights with redisson in a cluster",
            Self::Replicas => "rights for replicas",
        }
    }

    /// Returns the names of the commands that the user needs, in the order of the guide.
    #[must_use]
    pub fn commands(self) -> Vec<&'static str> {
        let of = |scripts: &[ScriptCommand]| scripts.iter().map(|it| it.right).collect::<Vec<_>>();
        let (connection, scripts): (&[&str], &[&[ScriptCommand]]) = match self {
            Self::Sentinel => {
                return vec!["client|id", "subscribe", "sentinel|get-master-addr-by-name"];
            }
            Self::Replicas => return vec!["wait"],
            Self::Single | Self::Redlock => (&[], &[NATIVE_SCRIPTS]),
            Self::Group => (&["role"], &[NATIVE_SCRIPTS]),
            Self::Cluster => (
                &["cluster|slots", "cluster|info", "asking"],
                &[NATIVE_SCRIPTS, NATIVE_CLUSTER_SCRIPTS],
            ),
            Self::Redisson => (&["unsubscribe"], &[REDISSON_SCRIPTS]),
            Self::RedissonCluster => (
                &[
                    "unsubscribe",
                    "cluster|slots",
                    "cluster|info",
                    "asking",
                    "pubsub|shardnumsub",
                    "ssubscribe",
                    "sunsubscribe",
                ],
                &[REDISSON_SCRIPTS, REDISSON_CLUSTER_SCRIPTS],
            ),
        };
        let mut commands = [EVERY_CONNECTION, OPTIONAL, connection].concat();
        for scripts in [EVERY_SCRIPT].iter().chain(scripts) {
            // Some commands are both sent by connections and called by scripts. Each command is listed once.
            let others = of(scripts).into_iter();
            let others: Vec<_> = others.filter(|it| !commands.contains(it)).collect();
            commands.extend(others);
        }
        commands
    }

    /// Returns the patterns of keys and of channels that the user needs.
    #[must_use]
    pub fn patterns(self) -> &'static [&'static str] {
        match self {
            Self::Single | Self::Group => &["~lock:fence", "~{lock:*", "&lock:session:*"],
            Self::Sentinel => &["&+switch-master"],
            Self::Cluster => &["~lock:*", "~{lock:*", "&lock:session:*"],
            Self::Redlock => &["~lock:fence*", "~{lock:*", "&lock:session:*"],
            Self::Redisson => &[
                "~lock:fence",
                "~order:*",
                "~redisson_lock_token:*",
                "&lock:session:*",
                "&redisson_lock__channel:*",
            ],
            Self::RedissonCluster => &[
                "~lock:*",
                "~order:*",
                "~redisson_lock_token:*",
                "&lock:session:*",
                "&redisson_lock__channel:*",
            ],
            Self::Replicas => &[],
        }
    }

    fn line(self) -> String {
        let mut words = vec!["ACL SETUSER locks".to_owned()];
        let patterns = self.patterns().iter().map(|&pattern| pattern.to_owned());
        if self != Self::Replicas {
            words.extend(["on", ">secret", "resetchannels"].map(str::to_owned));
        }
        words.extend(patterns);
        words.extend(self.commands().iter().map(|command| format!("+{command}")));
        words.join(" ")
    }

    /// Returns the arguments of the command `ACL` that an administrator enters on the installed server. The arguments
    /// are those that the guide prints, without the commands that the server does not know.
    ///
    /// # Panics
    /// If the guide has no line for this deployment.
    #[must_use]
    pub fn entered(self) -> Vec<String> {
        let mut words = self.printed();
        if !has_shard_channels() {
            words.retain(|word| !["+ssubscribe", "+sunsubscribe", "+spublish"].contains(&&**word));
        }
        words
    }

    /// Returns the arguments of the command `ACL` that the guide prints for this deployment.
    ///
    /// # Panics
    /// If the guide has no such line.
    #[must_use]
    pub fn printed(self) -> Vec<String> {
        let guide = fs::read_to_string(root().join(GUIDE)).expect("the guide can be read");
        let marker = format!("<!-- {}: begin -->", self.marker());
        let (_, rest) = guide.split_once(&marker).expect("the guide has the marker");
        let line = rest.lines().find(|line| line.starts_with("ACL SETUSER"));
        let words = line.expect("the guide lists the rights").split(' ');
        words.skip(1).map(str::to_owned).collect()
    }
}

/// The guide that lists the rights.
const GUIDE: &str = "docs/guides/acl.md";

/// Writes the line of each deployment into the guide.
///
/// # Errors
/// If the guide cannot be read or written, or lacks a marker.
pub fn write() -> io::Result<()> {
    Deployment::ALL.into_iter().try_for_each(|deployment| {
        let block = format!("```text\n{}\n```", deployment.line());
        page::update(&root().join(GUIDE), deployment.marker(), &block)
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    /// The guide is up to date: `cargo run --bin guides` writes it.
    #[test]
    fn the_guide_lists_the_rights_of_the_table() {
        for deployment in Deployment::ALL {
            let printed = format!("ACL {}", deployment.printed().join(" "));
            assert_eq!(printed, deployment.line(), "run `cargo run --bin guides`");
        }
    }

    fn scripts(folder: &Path) -> Vec<(String, String)> {
        let files = fs::read_dir(folder).expect("the folder of the scripts can be read");
        let files = files.map(|file| file.expect("the folder of the scripts can be read").path());
        let scripts = files.filter(|path| path.extension().is_some_and(|it| it == "lua"));
        let read = |path: std::path::PathBuf| {
            let text = fs::read_to_string(&path).expect("a script can be read");
            (path.display().to_string(), text)
        };
        scripts.map(read).collect()
    }

    /// Returns the rights for the commands that a script calls.
    fn called(script: &str) -> BTreeSet<String> {
        let calls = script.split("redis.").skip(1).filter_map(|rest| {
            let rest = rest
                .strip_prefix("call(")
                .or_else(|| rest.strip_prefix("pcall("))?;
            let mut words = rest.strip_prefix('\'')?.split('\'');
            let command = words.next()?.to_lowercase();
            Some(match &*command {
                "pubsub" => format!("{command}|{}", words.nth(1)?.to_lowercase()),
                _ => command,
            })
        });
        calls.collect()
    }

    /// Each command that a script calls is in the table, and each command in the table is called by a script.
    #[test]
    fn the_table_has_the_commands_of_the_scripts() {
        let protocol = root().join("lock-runtime/src/backend/redis/protocol");
        let of = |deployment: Deployment| -> BTreeSet<String> {
            deployment
                .commands()
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        let mut all = BTreeSet::new();
        for (folder, allowed) in [
            ("native", of(Deployment::Cluster)),
            ("quorum", of(Deployment::Redlock)),
            ("redisson", of(Deployment::RedissonCluster)),
        ] {
            for (script, text) in scripts(&protocol.join(folder)) {
                let called = called(&text);
                let missing: Vec<_> = called.difference(&allowed).collect();
                assert!(missing.is_empty(), "{script}: {missing:?}");
                all.extend(called);
            }
        }
        // If a script called a command in a form that `called` does not read, `all` would lack this command.
        let tables = [
            EVERY_SCRIPT,
            NATIVE_SCRIPTS,
            NATIVE_CLUSTER_SCRIPTS,
            REDISSON_SCRIPTS,
            REDISSON_CLUSTER_SCRIPTS,
        ];
        for command in tables.into_iter().flatten() {
            assert!(
                all.contains(command.right),
                "no script calls {}",
                command.right
            );
        }
    }
}
