//! A report that several workers read at the same time, and that one worker rebuilds alone. In the middle, a worker hangs
//! while it reads, and is killed. At the end, the example prints what it saw, and fails if a rebuild overlapped a read.
//!
//! ```text
//! cargo run --example report                           the workers are tasks of this process
//! cargo run --example report -- redis://127.0.0.1/     the workers are processes
//! cargo run --example report -- redis                  the same, on a `redis-server` that the example starts
//! ```

use std::{
    ops::Range,
    process::{ExitCode, id},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lock_runtime::{LockClient, LockError, distributed_lock};
use support::{
    process::{Worker, dies_with_parent, signal},
    server::RedisServer,
};
use tokio::{sync::mpsc, time::sleep, try_join};

const RUN: Duration = Duration::from_secs(6);
const MS: Duration = Duration::from_millis(1);

type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The main task, to which the other tasks tell what they do. Other processes write this to their standard output.
type Main = Option<mpsc::UnboundedSender<String>>;

#[distributed_lock(key = "report:<report>", mode = read, wait = "5s", lease = "2s", renew = true)]
async fn read(report: u32, time: Duration, main: &Main) -> Result<(), LockError> {
    let _visit = Visit("read", micros(), main);
    if time > RUN {
        tell(main, "hangs".into());
    }
    sleep(time).await;
    Ok(())
}

#[distributed_lock(key = "report:<report>", mode = write, wait = "5s", lease = "2s", renew = true)]
async fn rebuild(report: u32, main: &Main) -> Result<(), LockError> {
    let _visit = Visit("rebuild", micros(), main);
    sleep(50 * MS).await;
    Ok(())
}

fn tell(main: &Main, line: String) {
    match main {
        Some(main) => drop(main.send(line)),
        None => println!("{line}"),
    }
}

/// A call that is inside the lock until this value is dropped, and then tells when it entered and when it left.
struct Visit<'a>(&'static str, u64, &'a Main);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        tell(self.2, format!("{} {} {}", self.0, self.1, micros()));
    }
}

/// The time since 1970, by the clock that all processes of this machine share.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or_default()
}

/// Worker 0 rebuilds the report, and the other workers read it. After half of the time, worker 1 hangs.
async fn work(url: String, report: u32, number: usize, main: Main) -> Result<(), Failure> {
    let client = LockClient::connect(&url).await?;
    let end = Instant::now() + RUN;
    while number == 0 && Instant::now() < end {
        client.scope(rebuild(report, &main)).await?;
        sleep(100 * MS).await;
    }
    let read_often = async || {
        while Instant::now() < end {
            let hangs = number == 1 && Instant::now() + RUN / 2 > end;
            let time = if hangs { 2 * RUN } else { 20 * MS };
            client.scope(read(report, time, &main)).await?;
        }
        Ok::<_, LockError>(())
    };
    try_join!(read_often(), read_often(), read_often())?;
    client.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [url, report, number] = &arguments[..] {
        work(url.clone(), report.parse()?, number.parse()?, None).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let url = arguments.first().map(String::as_str);
    let mut url = url.unwrap_or("memory:report").to_owned();
    let mut server = None; // runs until the end of the example
    if url == "redis" {
        url = server.insert(RedisServer::start().await).url();
    }
    let (says, mut said) = mpsc::unbounded_channel();
    let (mut tasks, mut processes) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let (url, says) = (url.clone(), says.clone());
        if url.starts_with("memory:") {
            tasks.push(tokio::spawn(work(url, id(), number, Some(says))));
            continue;
        }
        let mut command = dies_with_parent(std::env::current_exe()?);
        command.args([url, id().to_string(), number.to_string()]);
        let mut process = Worker::start(command);
        processes.push(process.pid());
        tokio::spawn(async move {
            while let Some(line) = process.line().await {
                let _ = says.send(line);
            }
        });
    }
    drop(says); // the channel ends with the last worker
    let (mut reads, mut rebuilds, mut killed) = (Vec::new(), Vec::new(), None);
    while let Some(line) = said.recv().await {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["hangs"] if killed.is_none() => {
                processes.get(1).inspect(|pid| signal(**pid, "KILL"));
                tasks.get(1).inspect(|task| task.abort());
                killed = Some(micros());
            }
            ["read", begin, end] => reads.push(begin.parse::<u64>()?..end.parse()?),
            [_, begin, end] => rebuilds.push(begin.parse::<u64>()?..end.parse()?),
            _ => {}
        }
    }
    let inside = |at| reads.iter().filter(|read| read.contains(at)).count();
    let most = reads.iter().map(|read| inside(&read.start)).max();
    let mut overlaps = 0;
    for it in &rebuilds {
        let with_it = |other: &&Range<u64>| it.start < other.end && other.start < it.end;
        overlaps += reads.iter().chain(&rebuilds).filter(with_it).count() - 1; // not with itself
    }
    let next = |it: &Range<u64>| it.start.checked_sub(killed?);
    let after = rebuilds.iter().filter_map(next).min();
    let (most, after) = (most.unwrap_or(0), after.unwrap_or(u64::MAX) / 1000);
    println!("{} reads, at most {most} at the same time", reads.len());
    println!("{} rebuilds, {overlaps} overlaps", rebuilds.len());
    println!("a reader was killed, and the next rebuild began {after} ms later");
    Ok(u8::from(overlaps > 0 || most < 2 || after > 5000).into())
}
