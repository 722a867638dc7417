//! A flash sale: many buyers, few items, and purchases that first read the stock and then write it. If the buyers take
//! the lock, each item is sold once. With `--unguarded`, the buyers do not take the lock.
//!
//! ```text
//! cargo run --release --example flash_sale
//! cargo run --release --example flash_sale -- --unguarded
//! cargo run --release --example flash_sale -- --processes 4 --redis redis://127.0.0.1/
//! cargo run --release --example flash_sale -- --processes 4 --redis redis://127.0.0.1/ --kill-one
//! cargo run --release --example flash_sale -- --processes 4 --servers cluster --kill-primary
//! cargo run --release --example flash_sale -- --processes 4 --servers sentinel --kill-primary
//! ```
//!
//! The last two commands start a Redis Cluster, or a primary with replicas and Sentinels, and kill the primary of the
//! lock in the middle of the sale. The stock is on another server, just as a shop has its stock in a database. If a
//! buyer has lost the lock, the server with the stock recognizes this by the buyer's fencing token, and refuses the
//! buyer.
//!
//! The program exits with 0 if the sale was exact, with 2 if the arguments are wrong, and with 1 otherwise.

mod args;
mod buyer;
mod host;
mod message;
mod report;
mod servers;
mod store;
mod worker;

use std::{error::Error, process::ExitCode};

use lock_runtime::LockClient;

use crate::{
    args::{Place, Role, Sale},
    buyer::Crowd,
    report::Report,
    store::MemoryStore,
};

/// An error that ends the program.
type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match args::read(std::env::args().skip(1)) {
        Ok(Role::Help) => {
            println!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Role::Host(sale)) => match sale.place {
            Place::Memory => sell_here(&sale).await,
            Place::Redis { .. } => host::host(&sale).await,
        },
        Ok(Role::Worker(worker)) => worker::work(worker).await.map(|()| true),
        Err(mistake) => {
            eprintln!("flash_sale: {mistake}\n`flash_sale --help` lists the options");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("flash_sale: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a sale in this process. Returns whether the sale was exact.
async fn sell_here(sale: &Sale) -> Result<bool, Failure> {
    println!(
        "flash sale  {} items, {} buyers in this process, {}",
        sale.stock,
        sale.buyers,
        sale.guard_word()
    );
    let client = LockClient::connect("memory:").await?;
    client.clone().install()?;
    let store = MemoryStore::with_stock(sale.stock);
    let mut report = Report::open(sale.stock);
    let note = |purchase| report.note(purchase);
    let crowd = Crowd {
        sale: "here",
        prefix: "buyer-",
        buyers: sale.buyers,
        guarded: sale.guarded,
        think: sale.think,
    };
    buyer::rush(crowd, store.clone(), note).await;
    report.print_throughput();
    if sale.guarded {
        report.print_waits();
        let stats = client.stats();
        report.print_commands(stats.commands, stats.acquired);
    }
    let (left, receipts) = store.audit();
    Ok(report.judge(left, &receipts))
}
