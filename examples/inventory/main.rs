//! Compares several ways to guard a stock against buyers that write at the same time. The same sale runs without a
//! guard, under `WATCH`, under hand-written locks that are common in articles, and under the locks of this project. The
//! example has three scenarios: a rush of buyers, a buyer that dies during its purchase, and a buyer that is slower
//! than its lease.
//!
//! ```text
//! cargo run --release --example inventory
//! cargo run --release --example inventory -- --write  # writes docs/inventory.{md,svg}, and docs/guides/strategies.md
//! cargo run --example inventory -- --quick
//! ```
//!
//! The example starts its own servers and needs `redis-server`. The example exits with 0 if each guard had its expected
//! result, with 2 if the arguments are wrong, and with 1 otherwise. Some guards are expected to oversell.

mod accidents;
mod args;
mod by_hand;
mod expected;
mod guard;
mod ours;
mod picture;
mod purchase;
mod rows;
mod servers;
mod session;
mod shop;
mod svg;
mod tables;
mod waiters;
mod worker;

use std::{error::Error, process::ExitCode};

use progress::Progress;

use crate::{
    args::{Job, Role},
    expected::Surprises,
    rows::Size,
    servers::Servers,
    tables::Report,
};

/// An error that ends the program.
type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args::read(&args) {
        Ok(Role::Help) => {
            println!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Role::Host(job)) => host(job).await,
        Ok(Role::Worker(order)) => worker::work(&order).await.map(|()| true),
        Err(mistake) => {
            eprintln!("inventory: {mistake}\n`inventory --help` lists the options");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("inventory: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all scenarios, and prints the tables. Returns whether all results were as expected. Writes the tables into the
/// pages only if all results were as expected.
async fn host(job: Job) -> Result<bool, Failure> {
    let size = if job.quick { Size::QUICK } else { Size::FULL };
    let servers = Servers::start().await;
    let progress = Progress::of_steps(rows::steps(size));
    let rows = rows::sales(&servers, size, &progress).await?;
    let waits = rows::waits(&servers, size, &progress).await?;
    drop(progress);

    let mut surprises = Surprises::default();
    for row in &rows {
        surprises.of_row(row);
    }
    for waiting in &waits {
        surprises.of_waiting(waiting);
    }
    let report = Report::new(&servers, size, &rows, &waits).await;
    println!("{report}");
    for surprise in surprises.lines() {
        eprintln!("inventory: {surprise}");
    }
    let fine = surprises.lines().is_empty();
    if fine {
        println!("Each of the {} ways came out as expected.", rows.len());
    }
    if fine && job.write {
        report.write(&picture::draw(&rows, &waits))?;
    }
    Ok(fine)
}
