//! A worker process, which runs some of the buyers. The buyers begin when the host writes a line to the worker's stdin.

use std::{
    future::pending,
    io::{self, BufRead, Write},
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use lock_runtime::LockClient;
use tokio::sync::oneshot;

use crate::{
    Failure,
    args::Worker,
    buyer,
    message::Message,
    store::{Receipt, RedisStore, Store, StoreError},
};

/// The number of the purchase, counted from 1, during which the victim is killed.
pub(crate) const FATAL_PURCHASE: u64 = 10;

pub(crate) async fn work(worker: Worker) -> Result<(), Failure> {
    let client = LockClient::connect(&worker.url).await?;
    client.clone().install()?;
    let store = RedisStore::open(&worker.url, &worker.sale).await?;
    let opening = opening();
    tell(&Message::Ready);
    opening.await?;

    let tell_all = |purchase| tell(&Message::Purchase(purchase));
    let (sale, prefix) = (&worker.sale, format!("worker-{}/buyer-", worker.number));
    if worker.victim {
        let store = Fatal::new(store);
        buyer::rush(
            sale,
            store,
            &prefix,
            worker.buyers,
            worker.guarded,
            tell_all,
        )
        .await;
    } else {
        buyer::rush(
            sale,
            store,
            &prefix,
            worker.buyers,
            worker.guarded,
            tell_all,
        )
        .await;
    }
    let stats = client.stats();
    tell(&Message::Done {
        acquired: stats.acquired,
        commands: stats.commands,
    });
    Ok(())
}

/// Writes a message to the host. Ends the process if the host has ended, because nobody would read the results.
fn tell(message: &Message) {
    if writeln!(io::stdout(), "{message}").is_err() {
        process::exit(1);
    }
}

/// Returns a receiver that resolves when the host sends a line. A worker that holds the lock must not outlive the host,
/// so this function also starts a thread that ends the process when the host ends.
fn opening() -> oneshot::Receiver<()> {
    let (open, opened) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        if let Some(Ok(_)) = lines.next() {
            // Sending fails only if the worker has failed.
            let _ = open.send(());
            lines.next();
        }
        process::exit(1);
    });
    opened
}

/// A store that does not answer during the fatal purchase, so that the buyer holds the lock until its process is
/// killed.
struct Fatal<S> {
    store: S,
    purchases: AtomicU64,
}

impl<S> Fatal<S> {
    fn new(store: S) -> Self {
        Self {
            store,
            purchases: AtomicU64::new(0),
        }
    }
}

impl<S: Store> Store for Fatal<S> {
    async fn stock(&self) -> Result<u64, StoreError> {
        let stock = self.store.stock().await?;
        let purchase = 1 + self.purchases.fetch_add(1, Ordering::Relaxed);
        if purchase == FATAL_PURCHASE {
            tell(&Message::Inside);
            pending::<()>().await;
        }
        Ok(stock)
    }

    async fn sell(&self, left: u64, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.sell(left, receipt).await
    }
}
