//! The names of the attribute's options, and the names that other lock libraries use for the same options.

use crate::suggest;

/// Each option with an example. `options.md` explains the options.
const OPTIONS: [(&str, &str); 20] = [
    ("key", "key = \"order:<id>\""),
    ("keys", "keys = [\"account:<from>\", \"account:<to>\"]"),
    ("wait", "wait = \"5s\""),
    ("lease", "lease = \"30s\""),
    ("renew", "renew = true"),
    ("max_hold", "max_hold = \"10m\""),
    ("hold_at_least", "hold_at_least = \"10s\""),
    ("on_busy", "on_busy = skip"),
    ("on_lost", "on_lost = continue"),
    ("mode", "mode = read"),
    ("permits", "permits = 10"),
    ("take", "take = 2"),
    ("map_err", "map_err = PayError::Lock"),
    ("client", "client = self.locks"),
    ("namespace", "namespace = \"shop\""),
    ("guard", "guard = hold"),
    ("crate", "crate = ::lock_runtime"),
    ("strategy", "strategy = spin"),
    ("release", "release = background"),
    ("replicas", "replicas = 1"),
];

/// Groups of names that other lock libraries use for an option, in lower case without `_`, and the advice for each
/// group.
const FOREIGN: [(&[&str], &str); 10] = [
    (
        &["timeout"],
        "write `wait = \"…\"` for how long to wait for the lock, or `lease = \"…\"` for how long to have it",
    ),
    (
        &[
            "waittime",
            "waittimeout",
            "acquiretimeout",
            "lockacquiretimeout",
            "maxwait",
            "blocking",
        ],
        "write `wait = \"…\"` for how long to wait for the lock",
    ),
    (
        &[
            "ttl",
            "expire",
            "expires",
            "expiry",
            "expiration",
            "leasetime",
            "leasetimeout",
            "duration",
            "lockatmostfor",
        ],
        "write `lease = \"…\"` for how long to have the lock",
    ),
    (
        &["lockatleastfor", "minhold", "minlease"],
        "write `hold_at_least = \"…\"` for how long the lock stays taken, however quick the body is",
    ),
    (
        &["fallback", "onfail", "onfailure", "skip"],
        "write `on_busy = skip` or `on_busy = fallback(path)` for what to do while the lock is busy",
    ),
    (
        &["watchdog", "autorenew", "renewal", "extend", "keepalive"],
        "write `renew = true` to renew an explicit lease; without `lease` it is renewed anyway",
    ),
    (
        &["name", "lock", "lockname", "lockkey", "id", "resource"],
        "write `key = \"…\"` to name the lock",
    ),
    (
        &[
            "semaphore",
            "limit",
            "concurrency",
            "concurrencylimit",
            "maxconcurrency",
            "maxconcurrent",
            "maxpermits",
            "slots",
        ],
        "write `permits = …` for how many calls run at the same time",
    ),
    (
        &[
            "read",
            "reads",
            "reader",
            "readers",
            "readonly",
            "shared",
            "write",
            "exclusive",
        ],
        "write `mode = read` or `mode = write`; in a list, a key can have a mode of its own, as in `keys = [\"account:<from>\", read \"rates\"]`",
    ),
    (
        &[
            "redis",
            "pool",
            "connection",
            "backend",
            "manager",
            "locker",
        ],
        "write `client = …` for the client that locks",
    ),
];

pub(crate) fn is_known(name: &str) -> bool {
    OPTIONS.iter().any(|(known, _)| *known == name)
}

/// Returns an example of this option, or the general form of an option for an unknown name.
pub(crate) fn example(name: &str) -> &'static str {
    OPTIONS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or("name = value", |(_, example)| example)
}

/// Returns the message for an unknown option.
pub(crate) fn unknown(name: &str) -> String {
    let plain = name.replace('_', "").to_lowercase();
    if let Some((_, answer)) = FOREIGN
        .iter()
        .find(|(names, _)| names.contains(&plain.as_str()))
    {
        return format!("`{name}` is not an option: {answer}");
    }
    match suggest::nearest(name, OPTIONS.iter().map(|(known, _)| *known)) {
        Some(meant) => format!("`{name}` is not an option: did you mean `{meant}`?"),
        None => format!(
            "`{name}` is not an option: the options are {}",
            suggest::list(OPTIONS.iter().map(|(known, _)| *known))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_show_their_option() {
        for (name, example) in OPTIONS {
            assert!(example.starts_with(&format!("{name} = ")), "{name}");
        }
    }

    #[test]
    fn the_documentation_has_a_row_for_each_option() {
        let documentation = include_str!("options.md");
        for (name, _) in OPTIONS {
            assert!(documentation.contains(&format!("\n| `{name} = ")), "{name}");
        }
    }

    #[test]
    fn foreign_names_are_translated() {
        for (name, option) in [
            ("timeout", "`wait"),
            ("waitTime", "`wait"),
            ("wait_time", "`wait"),
            ("ttl", "`lease"),
            ("expire", "`lease"),
            ("leaseTime", "`lease"),
            ("lockAtLeastFor", "`hold_at_least"),
            ("fallback", "`on_busy"),
            ("max_concurrency", "`permits"),
            ("permit", "`permits"),
        ] {
            let message = unknown(name);
            assert!(message.contains(option), "{message}");
        }
    }
}
