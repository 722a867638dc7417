//! A worker process, which runs some of the buyers. The buyers begin when the host writes a line to the worker's stdin.

use std::{
    future::pending,
    io::{self, BufRead, Write},
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use lock_runtime::{FencingToken, LockClient};
use tokio::sync::oneshot;

use crate::{
    Failure,
    args::Worker,
    buyer::{self, Crowd},
    message::Message,
    store::{Receipt, RedisStore, Shelf, Store, StoreError},
};

/// The host kills the victim (one of the workers) during the victim's purchase with this number, counted from 1.
pub(crate) const FATAL_PURCHASE: u64 = 10;

pub(crate) async fn work(worker: Worker) -> Result<(), Failure> {
    let client = LockClient::connect(&worker.url).await?;
    client.clone().install()?;
    let store = RedisStore::open(&worker.database, &worker.sale).await?;
    let opening = opening();
    tell(&Message::Ready);
    opening.await?;

    let tell_all = |purchase| tell(&Message::Purchase(purchase));
    let crowd = Crowd {
        sale: &worker.sale,
        prefix: &format!("worker-{}/buyer-", worker.number),
        buyers: worker.buyers,
        guarded: worker.guarded,
        think: worker.think,
    };
    if worker.victim {
        buyer::rush(crowd, Fatal::new(store), tell_all).await;
    } else {
        buyer::rush(crowd, store, tell_all).await;
    }
    client.shutdown().await;
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

/// Returns a receiver that completes when the host sends a line. A worker that holds the lock must not outlive the
/// host. This function therefore also starts a thread that ends the process when the host ends.
fn opening() -> oneshot::Receiver<()> {
    let (open, opened) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        if let Some(Ok(_)) = lines.next() {
            // An error means that the worker has failed, so nobody waits for the signal.
            let _ = open.send(());
            lines.next();
        }
        process::exit(1);
    });
    opened
}

/// A store that does not answer during the purchase with the number [`FATAL_PURCHASE`]. The buyer thus holds the lock
/// until its process is killed.
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
    async fn look(&self, token: Option<FencingToken>, buyer: &str) -> Result<Shelf, StoreError> {
        let shelf = self.store.look(token, buyer).await?;
        let purchase = 1 + self.purchases.fetch_add(1, Ordering::Relaxed);
        if purchase == FATAL_PURCHASE {
            tell(&Message::Inside);
            pending::<()>().await;
        }
        Ok(shelf)
    }

    async fn sell(
        &self,
        token: Option<FencingToken>,
        left: u64,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        self.store.sell(token, left, receipt).await
    }
}
