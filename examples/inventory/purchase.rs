//! The body of a purchase reads the stock, pauses, and writes the stock minus one. If two buyers run this body at once,
//! they can buy the same item.

use std::{
    fmt,
    future::pending,
    str::FromStr,
    time::{Duration, Instant},
};

use lock_runtime::FencingToken;
use tokio::time::sleep;

use crate::{Failure, shop::Shop};

/// The line that a buyer in a separate process writes once it has read the stock. The process that started the buyer
/// waits for this line.
pub(crate) const INSIDE: &str = "inside";

/// What a buyer does between the read and the write of the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Pauses for this time, as if the buyer checked a card or printed a label.
    Thinks(Duration),
    /// Holds the lock for this time, and then leaves without buying.
    Stays(Duration),
    /// Does not end the purchase until its process is killed.
    Dies,
    /// Awaits the shop's permission to continue. The shop gives this permission once other buyers have bought, or once
    /// it is clear that the lock never expires.
    Awaits,
    /// Waits for the same permission as [`Awaits`](Self::Awaits), but with calls that block the thread.
    Blocks,
}

const DIES: &str = "dies";
const AWAITS: &str = "awaits";
const BLOCKS: &str = "blocks";

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thinks(time) | Self::Stays(time) => write!(f, "{} ms", time.as_millis()),
            Self::Dies => f.write_str(DIES),
            Self::Awaits => f.write_str(AWAITS),
            Self::Blocks => f.write_str(BLOCKS),
        }
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            DIES => Ok(Self::Dies),
            AWAITS => Ok(Self::Awaits),
            BLOCKS => Ok(Self::Blocks),
            _ => Err(format!(
                "`{name}` is not what a buyer in a separate process can do"
            )),
        }
    }
}

/// How a purchase ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sold,
    SoldOut,
    /// The shop refused the write, because it has seen a higher fencing token than the token of this buyer.
    Refused,
    /// The lease ended, and the buyer's body was dropped at an `.await`.
    Cancelled,
    /// The buyer got the lock, and left without trying to buy.
    Left,
}

impl Outcome {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Sold, "sold"),
        (Self::SoldOut, "sold-out"),
        (Self::Refused, "refused"),
        (Self::Cancelled, "cancelled"),
        (Self::Left, "left"),
    ];
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(outcome, _)| outcome == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

impl FromStr for Outcome {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.iter().find(|(_, known)| *known == name);
        let found = named.map(|(outcome, _)| *outcome);
        found.ok_or_else(|| format!("no outcome is called `{name}`"))
    }
}

/// One buyer's purchase.
#[derive(Debug)]
pub(crate) struct Purchase<'a> {
    shop: &'a Shop,
    buyer: &'a str,
    pace: Pace,
    /// The time at which the buyer's last try began. Only under `WATCH`, a buyer can make several tries.
    pub(crate) entered: Option<Instant>,
    pub(crate) left: Option<Instant>,
    pub(crate) tries: u64,
}

impl<'a> Purchase<'a> {
    pub(crate) fn new(shop: &'a Shop, buyer: &'a str, pace: Pace) -> Self {
        Self {
            shop,
            buyer,
            pace,
            entered: None,
            left: None,
            tries: 0,
        }
    }

    /// Runs the purchase. `token` is the fencing token of the hold, if the guard issues tokens.
    pub(crate) async fn run(&mut self, token: Option<FencingToken>) -> Result<Outcome, Failure> {
        self.enter();
        let outcome = match self.pace {
            Pace::Stays(time) => {
                sleep(time).await;
                Outcome::Left
            }
            Pace::Blocks => self.run_blocking(token)?,
            Pace::Thinks(_) | Pace::Dies | Pace::Awaits => {
                let item = self.shop.stock().await?;
                if item == 0 {
                    Outcome::SoldOut
                } else {
                    self.think().await?;
                    accepted(self.shop.sell(item, self.buyer, token).await?)
                }
            }
        };
        self.left = Some(Instant::now());
        Ok(outcome)
    }

    fn run_blocking(&self, token: Option<FencingToken>) -> Result<Outcome, Failure> {
        let mut shop = self.shop.blocking()?;
        let item = shop.stock()?;
        println!("{INSIDE}");
        shop.word()?;
        Ok(accepted(shop.sell(item, self.buyer, token)?))
    }

    /// Runs the purchase without a lock. Repeats the purchase until no other buyer changes the stock between its read
    /// and its write, or until everything is sold.
    pub(crate) async fn run_optimistic(&mut self) -> Result<Outcome, Failure> {
        let outcome = loop {
            self.enter();
            let item = self.shop.watch().await?;
            if item == 0 {
                self.shop.unwatch().await?;
                break Outcome::SoldOut;
            }
            self.think().await?;
            if self.shop.sell_unchanged(item, self.buyer).await? {
                break Outcome::Sold;
            }
        };
        self.left = Some(Instant::now());
        Ok(outcome)
    }

    fn enter(&mut self) {
        self.entered = Some(Instant::now());
        self.tries += 1;
    }

    async fn think(&self) -> Result<(), Failure> {
        match self.pace {
            Pace::Thinks(time) | Pace::Stays(time) => sleep(time).await,
            Pace::Dies => {
                println!("{INSIDE}");
                pending::<()>().await;
            }
            // If the buyer tries again, it already has the shop's permission to continue.
            Pace::Awaits | Pace::Blocks if self.tries > 1 => {}
            Pace::Awaits | Pace::Blocks => {
                println!("{INSIDE}");
                self.shop.word().await?;
            }
        }
        Ok(())
    }
}

fn accepted(accepted: bool) -> Outcome {
    if accepted {
        Outcome::Sold
    } else {
        Outcome::Refused
    }
}
