//! A script, and the commands that run it on a server.

use std::{fmt, sync::Arc};

use redis::Cmd;

/// A Lua script that the server runs atomically.
pub(crate) struct Script {
    /// The name under which metrics count the script.
    pub(crate) name: Arc<str>,
    source: String,
    hash: String,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// Creates the script whose source consists of these parts.
    pub(crate) fn new(name: &str, parts: &[&str]) -> Self {
        let source = parts.concat();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self {
            name: name.to_ascii_lowercase().into(),
            source,
            hash,
        }
    }

    /// Returns the command that runs the script by its hash. The command fails if the server has not cached the script.
    pub(crate) fn by_hash(&self, keys: &[&str], args: &[impl AsRef<str>]) -> Cmd {
        // Memory for the whole command is reserved at once, so that adding the arguments does not allocate again.
        let args = args.iter().map(AsRef::as_ref);
        let parts = keys.iter().copied().chain(args.clone());
        let bytes = self.hash.len() + 8 + parts.map(str::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), "EVALSHA".len() + bytes);
        command.arg("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys);
        for arg in args {
            command.arg(arg);
        }
        command
    }

    /// Returns a command that has the arguments of `by_hash`, and the script's source instead of its hash. A server
    /// that runs this command caches the script.
    pub(crate) fn by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}
