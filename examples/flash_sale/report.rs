//! The output of a flash sale: progress, figures and the verdict.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use crate::{buyer::Purchase, store::Receipt};

/// The record of a sale since the buyers began.
#[derive(Debug)]
pub(crate) struct Report {
    stock: u64,
    opened: Instant,
    last_sale: Duration,
    /// The longest time between two sales.
    longest_pause: Duration,
    sold: u64,
    newest_token: u64,
    waits: Vec<Duration>,
    /// All failures so far, including the failures of single purchases.
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn open(stock: u64) -> Self {
        Self {
            stock,
            opened: Instant::now(),
            last_sale: Duration::ZERO,
            longest_pause: Duration::ZERO,
            sold: 0,
            newest_token: 0,
            waits: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Discards the record, and starts a new one whose time begins now. The host calls this method when it lets the
    /// buyers begin.
    pub(crate) fn reopen(&mut self) {
        *self = Self::open(self.stock);
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, what: &str) {
        println!("{:>6} ms  {what}", self.opened.elapsed().as_millis());
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.say(&why);
        self.failures.push(why);
    }

    /// Returns the highest fencing token of all purchases so far, or 0 if no purchase had a token.
    pub(crate) fn newest_token(&self) -> u64 {
        self.newest_token
    }

    pub(crate) fn note(&mut self, purchase: Purchase) {
        match purchase {
            Purchase::Sold { token, waited, .. } => {
                self.sold += 1;
                let now = self.opened.elapsed();
                if self.sold > 1 {
                    self.longest_pause = self.longest_pause.max(now - self.last_sale);
                }
                self.last_sale = now;
                self.newest_token = self.newest_token.max(token.unwrap_or(0));
                self.waits.push(waited);
                if self.sold.is_multiple_of(self.stock.div_ceil(10)) {
                    self.say(&format!("{} sold of {}", self.sold, self.stock));
                }
            }
            Purchase::SoldOut { waited } => self.waits.push(waited),
            Purchase::Failed { why } => self.fail(format!("a buyer failed: {why}")),
        }
    }

    /// Returns whether at least a quarter of the stock is sold.
    pub(crate) fn is_a_quarter_sold(&self) -> bool {
        self.sold >= self.stock.div_ceil(4)
    }

    /// Returns the time from `moment` until the last sale.
    pub(crate) fn last_sale_after(&self, moment: Instant) -> Duration {
        (self.opened + self.last_sale).saturating_duration_since(moment)
    }

    /// Prints how many items were sold per second.
    pub(crate) fn print_throughput(&self) {
        let seconds = self.last_sale.as_secs_f64().max(f64::EPSILON);
        println!(
            "throughput  {:.0} sales a second ({} in {:.0} ms)",
            self.sold as f64 / seconds,
            self.sold,
            seconds * 1e3
        );
        println!(
            "pauses      at most {} ms between two sales",
            self.longest_pause.as_millis()
        );
    }

    /// Prints how long buyers waited for the lock.
    pub(crate) fn print_waits(&mut self) {
        self.waits.sort_unstable();
        let last = self.waits.len().saturating_sub(1);
        let quantile = |percent| {
            self.waits
                .get(last * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        println!(
            "waits       p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            quantile(50),
            quantile(99),
            quantile(100)
        );
    }

    /// Prints the number of commands that the lock clients sent.
    pub(crate) fn print_commands(&self, commands: u64, acquired: u64) {
        let each = commands as f64 / acquired.max(1) as f64;
        println!("locks       {commands} commands for {acquired} acquisitions ({each:.2} each)");
    }

    /// Checks the remaining stock and the receipts. Returns whether the sale was exact, which means that each item was
    /// sold once, nothing else was sold, and nothing failed.
    pub(crate) fn judge(self, left: u64, receipts: &[Receipt]) -> bool {
        let sold = receipts.len() as u64;
        let items: HashSet<u64> = receipts.iter().map(|receipt| receipt.item).collect();
        let different = items.len() as u64;
        println!("shelf       {left} left of {}", self.stock);
        println!("receipts    {sold}, for {different} different items");
        for failure in &self.failures {
            println!("wrong       {failure}");
        }
        let all = items.iter().all(|item| (1..=self.stock).contains(item));
        let exact = left == 0 && sold == self.stock && different == self.stock && all;
        if exact {
            println!("exact: every item was sold once");
        } else if sold > different {
            println!(
                "OVERSOLD: {} buyers paid for an item that somebody else has too",
                sold - different
            );
        } else {
            println!(
                "NOT EXACT: {} items were not sold",
                self.stock.saturating_sub(sold)
            );
        }
        exact && self.failures.is_empty()
    }
}
