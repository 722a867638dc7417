//! The command-line arguments of the example.

use std::{fmt::Display, str::FromStr};

use crate::worker::FATAL_PURCHASE;

pub(crate) const USAGE: &str = "\
usage: flash_sale [--stock N] [--buyers N] [--unguarded] [--redis URL [--processes N] [--kill-one] [--keep]]
  --stock N        items for sale (100)
  --buyers N       buyers in each process, each buys once (256 in one process, 64 in each of several)
  --unguarded      the same sale without the lock: it oversells
  --redis URL      keeps stock and locks on a Redis server, and runs the buyers in worker processes; without it, all is in this process
  --processes N    worker processes (1)
  --kill-one       kills one worker (SIGKILL) while it is inside the lock
  --keep           leaves the sale's data on the server";

/// The parameters of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sale {
    pub(crate) stock: u64,
    /// The number of buyers in each process.
    pub(crate) buyers: u64,
    pub(crate) guarded: bool,
    pub(crate) place: Place,
}

impl Sale {
    pub(crate) fn guard_word(&self) -> &'static str {
        if self.guarded { "guarded" } else { "unguarded" }
    }
}

/// Where the stock and the locks are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The stock and the locks are in the memory of this process.
    Memory,
    /// The stock and the locks are on a server, and the buyers are in separate processes.
    Redis {
        url: String,
        processes: u64,
        kill_one: bool,
        keep: bool,
    },
}

/// The role of this process.
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
    pub(crate) url: String,
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
    let (mut url, mut sale) = (None, None);
    let (mut unguarded, mut kill_one, mut keep, mut victim) = (false, false, false, false);
    while let Some(option) = args.next() {
        match option.as_str() {
            "--stock" => stock = Some(number(&option, args.next(), 1..=1_000_000)?),
            "--buyers" => buyers = Some(number(&option, args.next(), 1..=1_000_000)?),
            "--processes" => processes = Some(number(&option, args.next(), 1..=256)?),
            "--worker" => worker = Some(number(&option, args.next(), 1..=256)?),
            "--redis" => url = Some(value(&option, args.next())?),
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
    if let (Some(number), Some(sale), Some(buyers), Some(url)) = (worker, sale, buyers, &url) {
        return Ok(Role::Worker(Worker {
            number,
            buyers,
            guarded,
            url: url.clone(),
            sale,
            victim,
        }));
    }

    let place = match url {
        Some(url) => Place::Redis {
            url,
            processes: processes.unwrap_or(1),
            kill_one,
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
                        "`{option}` needs `--redis URL`: without a server the sale is in this process"
                    ));
                }
            }
            Place::Memory
        }
    };
    let processes = processes.unwrap_or(1);
    let stock = stock.unwrap_or(100);
    let buyers = buyers.unwrap_or(if processes > 1 { 64 } else { 256 });
    if kill_one && unguarded {
        return Err(
            "`--kill-one` kills a worker that holds the lock: `--unguarded` has none".into(),
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
    let sure = buyers * (processes - u64::from(kill_one));
    if sure < stock {
        return Err(format!(
            "{sure} buyers cannot buy {stock} items, each buys one: raise `--buyers` or lower `--stock`"
        ));
    }
    Ok(Role::Host(Sale {
        stock,
        buyers,
        guarded,
        place,
    }))
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
