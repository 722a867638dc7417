//! The command-line arguments of the flash sale.

use std::{fmt::Display, str::FromStr, time::Duration};

use crate::worker::FATAL_PURCHASE;

pub(crate) const USAGE: &str = "\
usage: flash_sale [--stock N] [--buyers N] [--think MS] [--unguarded]
                  [(--redis URL [--database URL] | --servers cluster|sentinel [--kill-primary])
                   [--processes N] [--kill-one] [--keep]]
  --stock N        items for sale (100; 200 with --kill-primary)
  --buyers N       buyers in each process, each buys once (256 in one process, 64 in each of several)
  --think MS       how long a buyer holds the lock between reading the stock and buying (0; 5 with --kill-primary)
  --unguarded      the same sale without the lock: it oversells
  --redis URL      keeps stock and locks on a Redis server, and runs the buyers in worker processes; without it, all is in this process
  --database URL   keeps the stock on this single Redis server, and only the locks at --redis, which then may also be a
                   redis+cluster:// or redis+sentinel:// URL
  --servers WHICH  starts the servers itself: a cluster, or a primary with replicas and Sentinels, and a server for the stock
  --kill-primary   kills the primary of the lock (SIGKILL) when a quarter of the stock is sold
  --processes N    worker processes (1)
  --kill-one       kills one worker (SIGKILL) while it is inside the lock
  --keep           leaves the sale's data on the server";

/// The parameters of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sale {
    pub(crate) stock: u64,
    /// The number of buyers in each worker process.
    pub(crate) buyers: u64,
    /// How long each buyer pauses, while it holds the lock, between reading the stock and buying.
    pub(crate) think: Duration,
    pub(crate) guarded: bool,
    pub(crate) place: Place,
}

impl Sale {
    pub(crate) fn guard_word(&self) -> &'static str {
        if self.guarded { "guarded" } else { "unguarded" }
    }
}

/// Where a sale stores its stock and its locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The stock and the locks are in the memory of this process.
    Memory,
    /// The stock and the locks are on servers, and the buyers are in separate processes.
    Redis {
        servers: Servers,
        processes: u64,
        kill: Kill,
        keep: bool,
    },
}

/// The servers of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    /// Servers that already run. Servers that already run. `locks` is the URL of the server that stores the locks, and
    /// `database` is the URL of the server that stores the stock.
    Running { locks: String, database: String },
    /// Servers that this process starts.
    Own(Topology),
}

/// The kind of servers that this process starts for the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    Cluster,
    Sentinel,
}

/// Which process the host kills in the middle of the sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    Nobody,
    /// A worker that holds the lock.
    Worker,
    /// The primary that stores the lock.
    Primary,
}

/// The role of this process, according to its command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Help,
    Host(Sale),
    Worker(Worker),
}

/// The parameters of a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) number: u64,
    pub(crate) buyers: u64,
    pub(crate) guarded: bool,
    /// The URL of the server that stores the locks.
    pub(crate) url: String,
    /// The URL of the server that stores the stock.
    pub(crate) database: String,
    pub(crate) think: Duration,
    pub(crate) sale: String,
    /// Whether the host will kill this worker while one of its buyers holds the lock.
    pub(crate) victim: bool,
}

impl Worker {
    /// Returns the command-line arguments that [`read`] parses into the parameters of this worker.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            "--worker".into(),
            self.number.to_string(),
            "--sale".into(),
            self.sale.clone(),
            "--buyers".into(),
            self.buyers.to_string(),
            "--redis".into(),
            self.url.clone(),
            "--database".into(),
            self.database.clone(),
            "--think".into(),
            self.think.as_millis().to_string(),
        ];
        args.extend((!self.guarded).then(|| "--unguarded".into()));
        args.extend(self.victim.then(|| "--victim".into()));
        args
    }
}

/// Parses a command line. The error says what is wrong with the command line.
pub(crate) fn read(args: impl Iterator<Item = String>) -> Result<Role, String> {
    let mut args = args;
    let (mut stock, mut buyers, mut processes, mut worker) = (None, None, None, None);
    let (mut url, mut database, mut topology, mut sale) = (None, None, None, None);
    let (mut unguarded, mut kill_one, mut keep, mut victim) = (false, false, false, false);
    let (mut think, mut kill_primary) = (None, false);
    while let Some(option) = args.next() {
        match option.as_str() {
            "--stock" => stock = Some(number(&option, args.next(), 1..=1_000_000)?),
            "--buyers" => buyers = Some(number(&option, args.next(), 1..=1_000_000)?),
            "--processes" => processes = Some(number(&option, args.next(), 1..=256)?),
            "--worker" => worker = Some(number(&option, args.next(), 1..=256)?),
            "--redis" => url = Some(value(&option, args.next())?),
            "--database" => database = Some(value(&option, args.next())?),
            "--servers" => topology = Some(topology_of(&value(&option, args.next())?)?),
            "--think" => think = Some(number(&option, args.next(), 0..=1_000)?),
            "--kill-primary" => kill_primary = true,
            "--sale" => sale = Some(value(&option, args.next())?),
            "--unguarded" => unguarded = true,
            "--kill-one" => kill_one = true,
            "--keep" => keep = true,
            "--victim" => victim = true,
            "--help" | "-h" => return Ok(Role::Help),
            _ => return Err(format!("unknown argument `{option}`")),
        }
    }
    let guarded = !unguarded;
    let think = Duration::from_millis(think.unwrap_or(if kill_primary { 5 } else { 0 }));
    if let (Some(number), Some(sale), Some(buyers), Some(url)) = (worker, sale, buyers, &url) {
        return Ok(Role::Worker(Worker {
            number,
            buyers,
            guarded,
            url: url.clone(),
            database: database.unwrap_or_else(|| url.clone()),
            think,
            sale,
            victim,
        }));
    }

    let servers = match (url, topology, database) {
        (Some(_), Some(_), _) => {
            return Err("use either `--redis URL` or `--servers WHICH`".into());
        }
        (None, _, Some(_)) => return Err("`--database` needs `--redis URL`".into()),
        (Some(url), None, None) if url.contains("+cluster://") || url.contains("+sentinel://") => {
            return Err(
                "the stock needs a single server that survives a failover of the locks: add `--database redis://…`"
                    .into(),
            );
        }
        (Some(locks), None, database) => Some(Servers::Running {
            database: database.unwrap_or_else(|| locks.clone()),
            locks,
        }),
        (None, topology, None) => topology.map(Servers::Own),
    };
    let kill = match (kill_one, kill_primary, &servers) {
        (false, false, _) => Kill::Nobody,
        (true, false, _) => Kill::Worker,
        (false, true, Some(Servers::Own(_))) => Kill::Primary,
        (false, true, _) => return Err("`--kill-primary` needs `--servers WHICH`".into()),
        (true, true, _) => return Err("use either `--kill-one` or `--kill-primary`".into()),
    };
    let place = match servers {
        Some(servers) => Place::Redis {
            servers,
            processes: processes.unwrap_or(1),
            kill,
            keep,
        },
        None => {
            for (given, option) in [
                (processes.is_some(), "--processes"),
                (kill_one, "--kill-one"),
                (keep, "--keep"),
            ] {
                if given {
                    return Err(format!(
                        "`{option}` needs `--redis URL` or `--servers WHICH`, because a sale without a server runs in this process"
                    ));
                }
            }
            Place::Memory
        }
    };
    let processes = processes.unwrap_or(1);
    let stock = stock.unwrap_or(if kill_primary { 200 } else { 100 });
    let buyers = buyers.unwrap_or(if processes > 1 { 64 } else { 256 });
    if kill_one && unguarded {
        return Err(
            "`--kill-one` kills a worker that holds the lock, but a sale with `--unguarded` has no lock".into(),
        );
    }
    if kill_one && processes < 2 {
        return Err(
            "`--kill-one` needs a worker that survives: use `--processes 2` or more".into(),
        );
    }
    if kill_one && (buyers.min(stock) <= FATAL_PURCHASE) {
        return Err(format!(
            "`--kill-one` kills the buyer of item {FATAL_PURCHASE}: use a larger `--stock` and more `--buyers` than that"
        ));
    }
    if kill_primary && unguarded {
        return Err(
            "`--kill-primary` kills the primary of the lock, but a sale with `--unguarded` has no lock".into(),
        );
    }
    if kill_primary && stock < 2 * COHORT {
        return Err(format!(
            "`--kill-primary` needs a `--stock` of {} or more, so that the sale outlasts the kill",
            2 * COHORT
        ));
    }
    let sure = buyers * (processes - u64::from(kill_one));
    if sure < stock {
        return Err(format!(
            "{sure} buyers cannot buy {stock} items, because each buyer buys one item: raise `--buyers` or lower `--stock`"
        ));
    }
    Ok(Role::Host(Sale {
        stock,
        buyers,
        think,
        guarded,
        place,
    }))
}

/// The largest number of buyers of one process that share a grant. These buyers still take their turns after the
/// primary was killed, because turns inside a grant need no server.
const COHORT: u64 = 64;

fn topology_of(name: &str) -> Result<Topology, String> {
    match name {
        "cluster" => Ok(Topology::Cluster),
        "sentinel" => Ok(Topology::Sentinel),
        _ => Err(format!(
            "`--servers` is `cluster` or `sentinel`, not `{name}`"
        )),
    }
}

fn value(option: &str, value: Option<String>) -> Result<String, String> {
    value
        .filter(|value| !value.starts_with("--"))
        .ok_or_else(|| format!("`{option}` needs a value"))
}

fn number<N>(
    option: &str,
    given: Option<String>,
    range: std::ops::RangeInclusive<N>,
) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display,
{
    let given = value(option, given)?;
    let (least, most) = (range.start(), range.end());
    given
        .parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("`{option}` is a number from {least} to {most}, not `{given}`"))
}
