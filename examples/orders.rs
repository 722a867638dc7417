//! A small service that takes payments: one at a time for each order, and different orders concurrently.
//!
//! ```text
//! cargo run --example orders                                    locks of this process
//! cargo run --example orders -- --redis redis://127.0.0.1/      the same locks, shared by all processes
//! ```
//!
//! The example exits with 0 only if three conditions hold. No two payments of an order overlapped, callers got the lock
//! in the order in which they called, and each call had its expected result.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::{Future, pending},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, Hold, LockClient, LockError, distributed_lock};
use tokio::{
    sync::{Barrier, Notify},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Pays an order. While the body of this function runs, no other caller of these functions pays the same order.
#[distributed_lock(key = "order:<id>", wait = "5s", lease = "30s", guard = hold)]
async fn pay<B: Future>(
    id: u64,
    who: Caller,
    shop: Arc<Shop>,
    bank: B,
) -> Result<Receipt, PayError> {
    shop.take_payment(id, who, &hold, bank).await
}

/// Pays an order under the same lock as `pay`, for a caller that waits at most 100 ms for the lock.
#[distributed_lock(key = "order:<id>", wait = "100ms", lease = "30s", guard = hold)]
async fn pay_at_once<B: Future>(
    id: u64,
    who: Caller,
    shop: Arc<Shop>,
    bank: B,
) -> Result<Receipt, PayError> {
    shop.take_payment(id, who, &hold, bank).await
}

/// Pays an order under the same lock as `pay`, for a caller whose connection possibly hangs. A body that runs for more
/// than 300 ms is dropped, and the next caller gets the lock of the order.
#[distributed_lock(key = "order:<id>", wait = "5s", lease = "300ms", guard = hold)]
async fn pay_by_phone<B: Future>(
    id: u64,
    who: Caller,
    shop: Arc<Shop>,
    bank: B,
) -> Result<Receipt, PayError> {
    shop.take_payment(id, who, &hold, bank).await
}

/// Runs the three scenarios of the example. The scenarios wait for events instead of fixed times. Only the simulated
/// bank takes a fixed time.
async fn open(shop: &Arc<Shop>) -> Result<(), PayError> {
    let bank_takes = || async { sleep(Duration::from_millis(50)).await };

    println!("\none order, many callers: they enter in the order in which they asked");
    let bank_agrees = Arc::new(Notify::new());
    let agreed = bank_agrees.clone();
    let agreement = async move { agreed.notified().await };
    let ann = shop.serve(42, "ann", pay(42, "ann", shop.clone(), agreement));
    shop.until_inside(42, "ann").await;
    let bob = shop.serve(42, "bob", pay(42, "bob", shop.clone(), bank_takes()));
    shop.until_queued(42, 1).await?;
    let cleo = shop.serve(42, "cleo", pay(42, "cleo", shop.clone(), bank_takes()));
    shop.until_queued(42, 2).await?;
    let at_once = pay_at_once(42, "dan", shop.clone(), bank_takes());
    let dan = shop.serve(42, "dan", at_once);
    shop.expect(dan, "dan", Answer::Busy).await;
    bank_agrees.notify_one();
    shop.expect(ann, "ann", Answer::Paid).await;
    shop.expect(bob, "bob", Answer::Paid).await;
    shop.expect(cleo, "cleo", Answer::Paid).await;
    shop.expect_entered(42, &["ann", "bob", "cleo"]);

    println!("\na caller that hangs loses its lease, and the next one goes on");
    let by_phone = pay_by_phone(43, "eve", shop.clone(), pending::<()>());
    let eve = shop.serve(43, "eve", by_phone);
    shop.until_inside(43, "eve").await;
    let fay = shop.serve(43, "fay", pay(43, "fay", shop.clone(), bank_takes()));
    shop.expect(eve, "eve", Answer::Lost).await;
    shop.expect(fay, "fay", Answer::Paid).await;
    shop.expect_entered(43, &["eve", "fay"]);

    println!(
        "\ndifferent orders run side by side: each of these two pays only when both are inside"
    );
    let both = Arc::new(Barrier::new(2));
    let meet = || {
        let both = both.clone();
        async move { both.wait().await }
    };
    let gil = shop.serve(44, "gil", pay(44, "gil", shop.clone(), meet()));
    let hal = shop.serve(45, "hal", pay(45, "hal", shop.clone(), meet()));
    shop.expect(gil, "gil", Answer::Paid).await;
    shop.expect(hal, "hal", Answer::Paid).await;
    shop.expect_receipts(6);
    Ok(())
}

/// The time limit of the example. The example normally takes about a second. If a lock is never granted, the example
/// fails after this time.
const CLOSING_TIME: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    let url = match lock_url(std::env::args().skip(1)) {
        Ok(url) => url,
        Err(mistake) => {
            eprintln!("orders: {mistake}\nusage: orders [--redis URL]");
            return ExitCode::from(2);
        }
    };
    let client = match LockClient::connect(url).await {
        Ok(client) => client,
        Err(error) => {
            eprintln!("orders: {error:?}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = client.clone().install() {
        eprintln!("orders: {error}");
        return ExitCode::FAILURE;
    }

    let shop = Arc::new(Shop::new(client));
    match timeout(CLOSING_TIME, open(&shop)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => shop.wrong(format!("the shop had to stop: {error}")),
        Err(_) => shop.wrong(format!("a caller still waits after {CLOSING_TIME:?}")),
    }
    let mistakes = shop.book().mistakes.clone();
    for mistake in &mistakes {
        println!("wrong: {mistake}");
    }
    if mistakes.is_empty() {
        println!("\nall as promised: no overlap, order kept, paid, busy and lost where expected");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the URL of the lock server, or `memory:` (locks in this process) if there are no arguments. Fails if the
/// arguments are not valid.
fn lock_url(mut arguments: impl Iterator<Item = String>) -> Result<String, String> {
    let url = match arguments.next() {
        None => return Ok("memory:".into()),
        Some(flag) if flag == "--redis" => arguments
            .next()
            .ok_or("`--redis` needs a URL, such as redis://127.0.0.1/")?,
        Some(flag) if flag.starts_with('-') => return Err(format!("unknown option `{flag}`")),
        Some(url) => url,
    };
    match arguments.next() {
        None => Ok(url),
        Some(extra) => Err(format!("unexpected argument `{extra}` after the URL")),
    }
}

type Caller = &'static str;

/// The proof of a payment. The fencing token shows which of two payments came later.
struct Receipt(FencingToken);

/// The reason why an order was not paid. The error type of a guarded function needs only one thing: a conversion from
/// [`LockError`].
#[derive(Debug)]
enum PayError {
    Lock(LockError),
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl fmt::Display for PayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Paid,
    Busy,
    Lost,
    Failed,
}

/// The shop, which prints events and checks that the locks keep their promises.
struct Shop {
    client: LockClient,
    opened: Instant,
    book: Mutex<Book>,
    entered: Notify,
}

#[derive(Default)]
struct Book {
    inside: HashMap<u64, (Caller, Hold)>,
    entries: Vec<(u64, Caller, FencingToken)>,
    receipts: Vec<Receipt>,
    mistakes: Vec<String>,
}

/// A value that shows that a caller is inside its body. The body owns this value. When the body ends or is dropped, the
/// value is dropped too, and its `Drop` removes the caller from `Book::inside`.
struct Inside {
    shop: Arc<Shop>,
    id: u64,
    token: FencingToken,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut book = self.shop.book();
        if let Some((_, hold)) = book.inside.get(&self.id)
            && hold.token() == self.token
        {
            book.inside.remove(&self.id);
        }
    }
}

impl Shop {
    fn new(client: LockClient) -> Self {
        Self {
            client,
            opened: Instant::now(),
            book: Mutex::default(),
            entered: Notify::new(),
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong(&self, mistake: String) {
        self.book().mistakes.push(mistake);
    }

    fn log(&self, id: u64, token: Option<FencingToken>, event: fmt::Arguments<'_>) {
        let ms = self.opened.elapsed().as_millis();
        let token = token.map_or_else(|| "-".into(), |token| token.to_string());
        println!("{ms:>6} ms  order:{id}  token {token:<16}  {event}");
    }

    /// Does the work of a payment under the lock, and detects whether another caller is inside the same lock.
    async fn take_payment<B: Future>(
        self: &Arc<Self>,
        id: u64,
        who: Caller,
        hold: &Hold,
        bank: B,
    ) -> Result<Receipt, PayError> {
        let _inside = self.enter(id, who, hold);
        bank.await;
        self.log(id, Some(hold.token()), format_args!("{who} pays"));
        Ok(Receipt(hold.token()))
    }

    fn enter(self: &Arc<Self>, id: u64, who: Caller, hold: &Hold) -> Inside {
        let token = hold.token();
        {
            let mut book = self.book();
            // If the lease of a caller has ended, the caller is no longer inside the lock, because its body is never
            // polled again.
            if let Some((other, held)) = book.inside.insert(id, (who, hold.clone()))
                && held.loss().is_none()
            {
                let overlap = format!("{who} entered order:{id} while {other} was inside");
                book.mistakes.push(overlap);
            }
            book.entries.push((id, who, token));
            self.log(id, Some(token), format_args!("{who} enters"));
        }
        self.entered.notify_waiters();
        Inside {
            shop: self.clone(),
            id,
            token,
        }
    }

    /// Runs one call in a task. Logs the call, and its error if it fails.
    fn serve<C>(self: &Arc<Self>, id: u64, who: Caller, call: C) -> JoinHandle<Answer>
    where
        C: Future<Output = Result<Receipt, PayError>> + Send + 'static,
    {
        let shop = self.clone();
        shop.log(id, None, format_args!("{who} asks"));
        tokio::spawn(async move {
            match call.await {
                Ok(receipt) => {
                    shop.book().receipts.push(receipt);
                    Answer::Paid
                }
                Err(PayError::Lock(LockError::Busy { waited, .. })) => {
                    let waited = waited.as_millis();
                    shop.log(
                        id,
                        None,
                        format_args!("{who} gives up: busy for {waited} ms"),
                    );
                    Answer::Busy
                }
                Err(PayError::Lock(LockError::Lost { token, .. })) => {
                    shop.log(id, Some(token), format_args!("{who} has lost the lease"));
                    Answer::Lost
                }
                Err(error) => {
                    shop.log(id, None, format_args!("{who} failed: {error}"));
                    Answer::Failed
                }
            }
        })
    }

    /// Waits until `who` is inside its body for this order.
    async fn until_inside(&self, id: u64, who: Caller) {
        loop {
            let entered = self.entered.notified();
            let inside = self.book().inside.get(&id).map(|(caller, _)| *caller);
            if inside == Some(who) {
                return;
            }
            entered.await;
        }
    }

    /// Waits until this many callers are queued for this order.
    async fn until_queued(&self, id: u64, callers: usize) -> Result<(), LockError> {
        let lock = self.client.lock(format!("order:{id}"));
        while lock.status().await?.waiters != callers {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn expect(&self, call: JoinHandle<Answer>, who: Caller, expected: Answer) {
        match call.await {
            Ok(answer) if answer == expected => {}
            Ok(answer) => self.wrong(format!(
                "the result of {who} is {answer:?}, and {expected:?} was expected"
            )),
            Err(error) => self.wrong(format!("the task of {who} failed: {error}")),
        }
    }

    /// Checks that exactly these callers held the lock of this order, in this sequence, and that their fencing tokens
    /// rise.
    fn expect_entered(&self, id: u64, expected: &[Caller]) {
        let book = self.book();
        let of_order = || book.entries.iter().filter(|entry| entry.0 == id);
        let callers: Vec<Caller> = of_order().map(|entry| entry.1).collect();
        let rising = of_order().is_sorted_by(|one, next| one.2 < next.2);
        drop(book);
        if callers != expected {
            self.wrong(format!(
                "{callers:?} entered order:{id}, and {expected:?} were expected"
            ));
        }
        if !rising {
            self.wrong(format!("the tokens of order:{id} do not rise"));
        }
    }

    /// Checks that the expected number of payments was made, and that each payment had its own fencing token.
    fn expect_receipts(&self, expected: usize) {
        let tokens: HashSet<_> = self
            .book()
            .receipts
            .iter()
            .map(|receipt| receipt.0)
            .collect();
        if tokens.len() != expected {
            let found = tokens.len();
            self.wrong(format!(
                "{found} different receipts were given, and {expected} were expected"
            ));
        }
    }
}
