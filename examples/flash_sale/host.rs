//! The host is the process that starts the workers and reads their messages. If the command line asks for a kill, the
//! host kills a process. The host audits the sale after all workers have ended.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use lock_runtime::{FencingToken, Lock, LockClient};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::mpsc,
    task::yield_now,
    time::sleep,
};
use uuid::Uuid;

use crate::{
    Failure,
    args::{Kill, Place, Sale, Worker},
    buyer::{self, Purchase},
    message::Message,
    report::Report,
    servers::Rack,
    store::{self, RedisStore},
    worker::FATAL_PURCHASE,
};

/// The longest time that is allowed between the end of a killed worker's lease and the next sale.
const CRASH_MARGIN: Duration = Duration::from_millis(250);

/// The shortest time that a replica needs to take over from a killed primary. The sale must last longer than this time
/// after the kill.
const SHORTEST_FAILOVER: Duration = Duration::from_millis(500);

/// How long the host waits for the locks' keys to disappear if a server was killed. The promoted replica possibly lacks
/// the last release, and then keeps the grant until the grant's lease ends.
const KEYS_PATIENCE: Duration = Duration::from_secs(10);

/// Starts the processes of a sale whose locks are on a Redis server, and waits for the end of the sale. Returns whether
/// the sale was exact.
pub(crate) async fn host(sale: &Sale) -> Result<bool, Failure> {
    let Place::Redis {
        servers,
        processes,
        kill,
        keep,
    } = &sale.place
    else {
        return Err("a sale with workers needs a server".into());
    };
    let name = Uuid::new_v4().simple().to_string();
    println!(
        "flash sale  {} items, {} buyers in {processes} process{}, {}",
        sale.stock,
        sale.buyers * processes,
        if *processes > 1 { "es" } else { "" },
        sale.guard_word()
    );
    println!("sale        {name}");
    let rack = Rack::start(servers).await;
    let client = LockClient::connect(&rack.locks).await?;
    let lock = client.lock(buyer::lock_key(&name));
    let store = RedisStore::open(&rack.database, &name).await?;
    store.put_on_sale(sale.stock).await?;
    let (url, database) = (rack.locks.clone(), rack.database.clone());

    let (lines, mut heard) = mpsc::unbounded_channel();
    let mut floor = Floor {
        report: Report::open(sale.stock),
        workers: Vec::new(),
        rack,
        name: name.clone(),
        lock,
        guarded: sale.guarded,
        kill: *kill,
        primary_killed: None,
        queued_at_kill: usize::try_from(sale.buyers * processes - FATAL_PURCHASE.min(sale.buyers))?,
        gap: None,
        killed: false,
        commands: 0,
        acquired: 0,
    };
    for number in 1..=*processes {
        floor.workers.push(start(
            &Worker {
                number,
                buyers: sale.buyers,
                guarded: sale.guarded,
                url: url.clone(),
                database: database.clone(),
                think: sale.think,
                sale: name.clone(),
                victim: *kill == Kill::Worker && number == 1,
            },
            lines.clone(),
        )?);
    }
    drop(lines);

    let mut ready = 0;
    while let Some((number, word)) = heard.recv().await {
        match word {
            Word::Said(Message::Ready) => {
                ready += 1;
                if ready == *processes {
                    floor.open().await?;
                }
            }
            Word::Said(message) => floor.note(message).await?,
            Word::Ended if ready < *processes => {
                return Err(format!("worker {number} ended before the sale began").into());
            }
            Word::Ended => floor.ended(number).await?,
            Word::Garbled(why) => return Err(why.into()),
        }
    }
    floor.close(*keep).await
}

/// A line from a worker, or the end of its output.
enum Word {
    Said(Message),
    Garbled(String),
    Ended,
}

/// Starts a process of this program that runs as a worker. A task sends each of the worker's messages to `lines`,
/// together with the worker's number.
fn start(worker: &Worker, lines: mpsc::UnboundedSender<(u64, Word)>) -> Result<Child, Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(worker.to_args())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("a worker has no stdout")?;
    let number = worker.number;
    tokio::spawn(async move {
        let mut output = BufReader::new(output).lines();
        while let Ok(Some(line)) = output.next_line().await {
            let word = line.parse().map_or_else(Word::Garbled, Word::Said);
            // Sending a line fails only if the host has failed.
            let _ = lines.send((number, word));
        }
        let _ = lines.send((number, Word::Ended));
    });
    Ok(child)
}

/// Sends a line to each worker. The worker's buyers begin when this line arrives.
async fn open_doors(workers: &mut [Child]) -> Result<(), Failure> {
    for worker in workers {
        // The host keeps the worker's stdin open, because the worker ends when its stdin is closed.
        let stdin = worker.stdin.as_mut().ok_or("a worker has no stdin")?;
        stdin.write_all(b"go\n").await?;
    }
    Ok(())
}

/// The time without sales after a worker was killed.
struct Gap {
    since: Instant,
    /// The token of the killed worker's hold, and the time that was left of its lease when it was killed. `None` until
    /// the killed worker has ended. The host compares tokens, because a sale with a higher token was made after the
    /// kill.
    allowed: Option<(u64, Duration)>,
}

/// A sale in progress, with its workers and its results so far.
struct Floor {
    report: Report,
    workers: Vec<Child>,
    rack: Rack,
    /// The name of the sale.
    name: String,
    lock: Lock,
    guarded: bool,
    kill: Kill,
    /// The time at which the lock's primary was killed.
    primary_killed: Option<Instant>,
    /// The number of waiters at which the host kills the victim: the worker process whose buyer holds the lock. When
    /// the server reports this number, all remaining buyers are queued behind the buyer that holds the lock.
    queued_at_kill: usize,
    gap: Option<Gap>,
    killed: bool,
    commands: u64,
    acquired: u64,
}

impl Floor {
    /// Lets the buyers begin. If the sale has a victim (a worker that the host will kill), lets only the victim's
    /// buyers begin. The other buyers begin when the victim holds the lock.
    async fn open(&mut self) -> Result<(), Failure> {
        self.report.reopen();
        let last = if self.kill == Kill::Worker {
            1
        } else {
            self.workers.len()
        };
        open_doors(&mut self.workers[..last]).await
    }

    /// Lets the buyers of the other workers begin, and waits until they are queued behind the victim. After that, kills
    /// the victim, which holds the lock.
    async fn kill_worker(&mut self) -> Result<(), Failure> {
        let Some((victim, others)) = self.workers.split_first_mut() else {
            return Err("there is no worker to kill".into());
        };
        open_doors(others).await?;
        while self.lock.status().await?.waiters < self.queued_at_kill {
            yield_now().await;
        }
        self.report
            .say("the victim is inside, all others are queued: SIGKILL");
        victim.start_kill()?;
        self.gap = Some(Gap {
            since: Instant::now(),
            allowed: None,
        });
        Ok(())
    }

    /// Kills the primary that stores the lock.
    async fn kill_primary(&mut self) -> Result<(), Failure> {
        let key = format!("{{lock:{}}}", buyer::lock_key(&self.name));
        let port = self.rack.kill_primary(&key).await;
        let port = port.ok_or("the host kills only servers that it has started")?;
        self.primary_killed = Some(Instant::now());
        self.report
            .say(&format!("the primary of the lock, at port {port}: SIGKILL"));
        Ok(())
    }

    fn worker(&mut self, number: u64) -> Result<&mut Child, Failure> {
        let index = usize::try_from(number)? - 1;
        self.workers
            .get_mut(index)
            .ok_or_else(|| "there is no worker with this number".into())
    }

    async fn note(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::Ready => {}
            Message::Inside => self.kill_worker().await?,
            Message::Purchase(purchase) => {
                if let Purchase::Sold {
                    token: Some(token), ..
                } = purchase
                {
                    self.measure(token);
                }
                self.report.note(purchase);
                let is_time = self.kill == Kill::Primary && self.report.is_a_quarter_sold();
                if is_time && self.primary_killed.is_none() {
                    self.kill_primary().await?;
                }
            }
            Message::Done { acquired, commands } => {
                self.acquired += acquired;
                self.commands += commands;
            }
        }
        Ok(())
    }

    /// Handles the end of a worker, which has finished, has failed or was killed.
    async fn ended(&mut self, number: u64) -> Result<(), Failure> {
        let status = self.worker(number)?.wait().await?;
        if status.success() {
            return Ok(());
        }
        if status.code().is_some() {
            self.report
                .fail(format!("worker {number} failed: {status}"));
            return Ok(());
        }
        self.report.say(&format!("worker {number} was killed"));
        self.killed = true;
        if !self.guarded {
            return Ok(());
        }
        let since = self.gap.take().map_or_else(Instant::now, |gap| gap.since);
        // At the kill, the time left of the lease was the time since the kill, plus the time left that the server
        // reports now.
        let passed = since.elapsed();
        let holder = self.lock.status().await?.holder;
        let token = holder.as_ref().and_then(|holder| holder.token);
        let token = token.map_or(self.report.newest_token(), FencingToken::get);
        let rest = holder.and_then(|holder| holder.remaining);
        self.gap = Some(Gap {
            since,
            allowed: Some((token, passed + rest.unwrap_or_default())),
        });
        Ok(())
    }

    /// Handles a sale under `token`. If this is the first sale after the kill, checks the gap, which is the time for
    /// which nothing was sold.
    fn measure(&mut self, token: u64) {
        let Some(Gap {
            since,
            allowed: Some((dead, rest)),
        }) = self.gap
        else {
            return;
        };
        if token <= dead {
            return; // an earlier sale that was reported late
        }
        self.gap = None;
        let gap = since.elapsed();
        self.report.say(&format!(
            "the next sale {} ms after the kill, with {} ms of the lease left then",
            gap.as_millis(),
            rest.as_millis()
        ));
        if gap > rest + CRASH_MARGIN {
            let late = (gap - rest).as_millis();
            self.report.fail(format!(
                "after the crash, the sale stopped for {late} ms longer than the lease"
            ));
        }
    }

    /// Reads the result of the sale over a new connection after all workers have ended, and prints a verdict. Returns
    /// whether the sale was exact.
    async fn close(mut self, keep: bool) -> Result<bool, Failure> {
        let name = self.name.clone();
        if self.kill == Kill::Worker && !self.killed {
            self.report
                .fail("the sale was over before the victim held the lock".into());
        }
        if self.gap.is_some() {
            let nobody = "nothing was sold after the kill".to_string();
            if self.kill == Kill::Worker {
                self.report.fail(nobody);
            } else {
                self.report.say(&nobody);
            }
        }
        if let Some(killed) = self.primary_killed {
            let after = self.report.last_sale_after(killed);
            if after < SHORTEST_FAILOVER {
                self.report
                    .fail("the sale was over before a replica took over".into());
            }
        } else if self.kill == Kill::Primary {
            self.report.fail("no primary was killed".into());
        }
        // If a worker was killed at the end of the sale, its lock is still taken until its lease ends. The host waits
        // for the end of the lease before it looks for keys that the locks have left.
        while self.killed
            && let Some(holder) = self.lock.status().await?.holder
        {
            sleep(holder.remaining.unwrap_or_default()).await;
        }

        self.report.print_throughput();
        if self.guarded {
            self.report.print_waits();
            self.report.print_commands(self.commands, self.acquired);
            if self.killed {
                println!("            (those of the killed worker are not known)");
            }
        }
        let reader = RedisStore::open(&self.rack.database, &name).await?;
        let (left, receipts) = reader.audit().await?;
        for key in self.keys_left(&reader).await? {
            if key.contains(&name) && !key.ends_with(":fence") {
                self.report
                    .fail(format!("the lock left `{key}` on the server"));
            } else {
                println!("keys left   {key}, the counter of the fencing tokens");
            }
        }
        if keep {
            println!("kept        {}*", store::data_prefix(&name));
        } else {
            reader.delete().await?;
        }
        Ok(self.report.judge(left, &receipts))
    }

    /// Returns the keys that the locks have left on the servers.
    async fn keys_left(&self, reader: &RedisStore) -> Result<Vec<String>, Failure> {
        let since = Instant::now();
        loop {
            let Some(keys) = self.rack.lock_keys().await else {
                if self.rack.locks == self.rack.database {
                    return Ok(reader.lock_keys(&self.name).await?);
                }
                println!("keys left   not checked on servers that others have started");
                return Ok(Vec::new());
            };
            let is_left = |key: &String| !key.ends_with(":fence");
            if !keys.iter().any(is_left) || since.elapsed() > KEYS_PATIENCE {
                return Ok(keys);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
