//! `lockctl release --force`: ends the current hold of a lock.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use lock_runtime::{FencingToken, ForcedRelease, LockClient};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    list::{Held, State, holders, time},
    output::{Format, write_one},
};

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The key of the lock
    key: String,
    /// Confirms that you know that the holder is possibly still at work. The holder learns of the loss at its next
    /// renewal or check; until then, it can work at the same time as the next holder
    #[arg(long, required = true)]
    force: bool,
    /// Releases the lock only if its holder has this fencing token, which `list` and `inspect` show. If several callers
    /// hold the lock, the token names the reader whose hold ends
    #[arg(long)]
    token: Option<u64>,
    /// Does not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// The name of the operator, for the log: by default the user, the host and the process
    #[arg(long)]
    by: Option<String>,
}

#[derive(Serialize)]
struct Report {
    key: String,
    released: bool,
    token: Option<u64>,
    by: String,
}

pub(crate) async fn release(
    client: &LockClient,
    format: Format,
    args: &ReleaseArgs,
) -> Result<Exit, Failure> {
    let lock = client.lock(&args.key);
    let by = args.by.clone().unwrap_or_else(whoami);
    let status = lock.status().await?;
    let meant = match args.token {
        None => status.holder.as_ref(),
        Some(token) => {
            let token = FencingToken::new(token);
            holders(&status).find(|holder| holder.token == Some(token))
        }
    };
    let held = meant.map(|holder| Held::by(&args.key, &status, holder));
    match (&held, Held::of(&args.key, &status)) {
        (None, Some(other)) => {
            let text = if other.mode.is_shared() {
                format!(
                    "`{}` is now held by {} callers, and none of them has this token: nothing was changed",
                    args.key,
                    holders(&status).count()
                )
            } else {
                format!(
                    "`{}` is now held by {} with another token: nothing was changed",
                    args.key,
                    other.holder_text()
                )
            };
            return Err(Failure::Text(Exit::No, text));
        }
        (Some(_), _) if holders(&status).count() > 1 && args.token.is_none() => {
            return Err(Failure::usage(format!(
                "`{}` is held by {} callers: name one of them with `--token`; `lockctl inspect` shows the tokens",
                args.key,
                holders(&status).count()
            )));
        }
        _ => {}
    }
    if let Some(held) = &held
        && !args.yes
    {
        confirm(held)?;
    }
    let token = meant.and_then(|holder| holder.token);
    let outcome = match (&held, token) {
        (None, _) => ForcedRelease::NotHeld,
        (Some(held), None) => {
            let text = format!(
                "the lock is held by {}, which has no fencing token and does not use this library: release the lock in the program that holds it",
                held.holder_text()
            );
            return Err(Failure::Text(Exit::Refused, text));
        }
        // The token identifies the hold that the user has confirmed. If another caller holds the lock by now, it keeps
        // the lock.
        (Some(_), Some(token)) => lock.force_release(token, &by).await?,
    };
    let report = Report {
        key: args.key.clone(),
        released: outcome == ForcedRelease::Released,
        token: token.map(FencingToken::get),
        by,
    };
    write_one(format, &report, || match (outcome, token) {
        (ForcedRelease::Released, Some(token)) => format!(
            "released `{}`: the hold with token {token} has ended, and its holder learns of this at its next renewal or check{}",
            args.key,
            match (&held, holders(&status).count()) {
                (Some(held), 2..) if held.readers > 0 =>
                    format!("; the lock is still read by {}", held.readers - 1),
                (_, more @ 2..) => format!("; {} more have permits", more - 1),
                _ => String::new(),
            }
        ),
        (_, Some(token)) => {
            format!(
                "the hold of `{}` with token {token} has ended meanwhile: nothing was changed",
                args.key
            )
        }
        (_, None) => format!("nobody holds `{}`", args.key),
    })?;
    Ok(match outcome {
        ForcedRelease::Released => Exit::Done,
        _ => Exit::No,
    })
}

/// Asks the user at a terminal to type the key.
fn confirm(held: &Held) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "a forced release asks for confirmation, and the input is no terminal: add `--yes`",
        ));
    }
    let (by, work) = match held.state {
        State::Held => ("held by", "The holder may still be at work."),
        State::Kept => (
            "kept after the hold of",
            "The hold has ended, and `hold_at_least` keeps the lock taken.",
        ),
    };
    let mut ask = io::stderr();
    let _ = write!(
        ask,
        "`{}` is {} {}{} with {} of its lease left; {} wait.\n{} Type the key to release the lock: ",
        held.key,
        by,
        held.holder_text(),
        match held.readers {
            0 => String::new(),
            readers => format!(" (read by {readers})"),
        },
        time(held.lease_left_ms),
        held.waiting,
        work,
    );
    let mut typed = String::new();
    io::stdin().lock().read_line(&mut typed)?;
    if typed.trim_end_matches(['\r', '\n']) == held.key {
        Ok(())
    } else {
        Err(Failure::usage(
            "the typed text is not the key: nothing was released",
        ))
    }
}

/// Returns the names of the user and the host, and the ID of this process, for the log.
fn whoami() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid());
    let user = user.ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| format!("uid {}", nix::unistd::getuid()));
    let user = match std::env::var("SUDO_USER") {
        Ok(behind) if !behind.is_empty() => format!("{behind} as {user}"),
        _ => user,
    };
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy();
    format!("{user}@{host} (lockctl, pid {})", std::process::id())
}
