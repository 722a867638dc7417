//! Runs one process of the shop, or a demo with two processes and a Redis server.
//!
//! ```text
//! cargo run -p shop -- demo           # starts everything, sells a stock, and runs until Ctrl-C
//! cargo run -p shop -- demo --once    # the same, and ends after the sale
//! LOCK_URL=redis://127.0.0.1/ cargo run -p shop
//! ```

use std::{error::Error, process::ExitCode};

use shop::{demo, server};

const USAGE: &str = "\
usage: shop [demo [--once]]
without `demo`, runs one process of the shop with these environment variables:
  LOCK_URL      the lock server, such as redis://127.0.0.1/ (required)
  DATABASE_URL  sqlite:FILE?mode=rwc or postgres://… (sqlite:shop.db?mode=rwc)
  SHOP_LISTEN   the address to listen on (127.0.0.1:8080)";

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome: Result<(), Box<dyn Error + Send + Sync>> = match args[..] {
        [] => server::run().await,
        ["demo"] => demo::run(demo::End::AtCtrlC).await,
        ["demo", "--once"] => demo::run(demo::End::AfterSale).await,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shop: {error}");
            ExitCode::FAILURE
        }
    }
}
