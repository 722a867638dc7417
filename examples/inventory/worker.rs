//! Runs a buyer in a separate process, so that the buyer can be killed. The process runs the same program as its
//! parent.

use support::process::{Worker, dies_with_parent};

use crate::{
    Failure,
    guard::Guard,
    purchase::{INSIDE, Outcome, Pace},
    servers::Urls,
    session::{Lease, Session},
};

/// The first argument of a buyer's process.
pub(crate) const WORKER: &str = "--worker";

/// The text before the outcome of the purchase in the output of a buyer's process.
const ENDED: &str = "ended: ";

/// The parameters of a buyer's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) guard: Guard,
    pub(crate) pace: Pace,
    pub(crate) sale: String,
    pub(crate) urls: Urls,
}

impl Order {
    fn to_args(&self) -> [String; 6] {
        let Urls { stock, locks } = &self.urls;
        [
            WORKER.to_owned(),
            self.guard.to_string(),
            self.pace.to_string(),
            self.sale.clone(),
            stock.clone(),
            locks.clone(),
        ]
    }

    /// Parses the arguments that follow [`WORKER`].
    pub(crate) fn read(args: &[String]) -> Result<Self, String> {
        let [guard, pace, sale, stock, locks] = args else {
            return Err(format!("only this program itself may pass `{WORKER}`"));
        };
        Ok(Self {
            guard: guard.parse()?,
            pace: pace.parse()?,
            sale: sale.clone(),
            urls: Urls {
                stock: stock.clone(),
                locks: locks.clone(),
            },
        })
    }
}

/// The parent process's handle to the process of a buyer.
#[derive(Debug)]
pub(crate) struct Buyer(Worker);

impl Buyer {
    /// Starts a buyer's process, and waits until the buyer holds the lock and has read the stock.
    pub(crate) async fn send_in(order: &Order) -> Result<Self, Failure> {
        let mut command = dies_with_parent(std::env::current_exe()?);
        command.args(order.to_args());
        let mut worker = Worker::start(command);
        worker.until(INSIDE).await;
        Ok(Self(worker))
    }

    /// Kills the buyer's process (SIGKILL) and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    /// Waits for the end of the buyer's purchase, and returns how the purchase ended.
    pub(crate) async fn outcome(&mut self) -> Result<Outcome, Failure> {
        let line = self.0.until(ENDED).await;
        Ok(line.trim_start_matches(ENDED).parse()?)
    }
}

/// Runs the buyer for which this process was started. If the function fails, the error names the guard.
pub(crate) async fn work(order: &Order) -> Result<(), Failure> {
    let done = visit(order).await;
    done.map_err(|failure| format!("{}, alone: {failure}", order.guard).into())
}

async fn visit(order: &Order) -> Result<(), Failure> {
    let session = Session::open(order.guard, &order.urls, &order.sale).await?;
    let visit = session
        .visit("alone".into(), order.pace, Lease::Short)
        .await?;
    println!("{ENDED}{}", visit.outcome);
    session.close().await;
    Ok(())
}
