//! A fleet of clients of an API, which together make at most ten calls at a time. In the middle, a client is killed while it
//! makes calls. At the end, the example prints what it saw, and fails if more than ten calls were made at a time.
//!
//! ```text
//! cargo run --example calls                           the clients are tasks of this process
//! cargo run --example calls -- redis://127.0.0.1/     the clients are processes
//! cargo run --example calls -- redis                  the same, on a `redis-server` that the example starts
//! ```

use std::{
    process::{ExitCode, id},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lock_runtime::{LockClient, LockError};
use support::{
    process::{Worker, dies_with_parent, signal},
    server::RedisServer,
};
use tokio::{sync::mpsc, time::sleep, try_join};

const RUN: Duration = Duration::from_secs(7);
/// The largest number of calls at a time, in the whole fleet.
const CALLS: i32 = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The main task, to which the other tasks tell what they do. Other processes write this to their standard output.
type Main = Option<mpsc::UnboundedSender<String>>;

/// A call of the API by this client, until the value is dropped. The call tells when it begins (1) and when it ends (-1).
struct Call<'a>(usize, &'a Main);

impl Call<'_> {
    fn tell(&self, step: i32) {
        let line = format!("{} {step} {}", self.0, micros());
        match self.1 {
            Some(main) => drop(main.send(line)),
            None => println!("{line}"),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.tell(-1);
    }
}

/// The time since 1970, by the clock that all processes of this machine share.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or_default()
}

/// A client of the API, in which four tasks make one call after another.
async fn work(url: String, run: u32, number: usize, main: Main) -> Result<(), Failure> {
    let client = LockClient::connect(&url).await?;
    let api = client
        .semaphore(format!("api:{run}"), CALLS.unsigned_abs())
        .lease(Duration::from_secs(2))
        .renew(true);
    let end = Instant::now() + RUN;
    let call_often = async || {
        while Instant::now() < end {
            let call_once = api.run(async {
                let call = Call(number, &main);
                call.tell(1);
                sleep(Duration::from_millis(20)).await;
            });
            call_once.await?;
        }
        Ok::<_, LockError>(())
    };
    try_join!(call_often(), call_often(), call_often(), call_often())?;
    client.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [url, run, number] = &arguments[..] {
        work(url.clone(), run.parse()?, number.parse()?, None).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut url = arguments
        .first()
        .map_or("memory:calls".to_owned(), String::clone);
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
    drop(says); // the channel ends with the last client
    sleep(RUN / 2).await;
    processes.get(1).inspect(|pid| signal(**pid, "KILL"));
    tasks.get(1).inspect(|task| task.abort());
    let killed = micros();
    let (mut steps, mut unfinished) = (Vec::new(), 0);
    while let Some(line) = said.recv().await {
        if let [client, step, time] = line.split(' ').collect::<Vec<_>>()[..] {
            let step: i32 = step.parse()?;
            steps.push((time.parse()?, step));
            unfinished += step * i32::from(client == "1");
        }
    }
    // A killed process does not tell that its calls have ended.
    steps.extend((0..unfinished).map(|_| (killed, -1)));
    steps.sort_unstable(); // a call that ends comes before one that begins at the same time
    let made = steps.len() / 2;
    let (mut now, mut most, mut full) = (0, 0, u64::MAX);
    for (time, step) in steps {
        now += step;
        most = most.max(now);
        if now == CALLS && time > killed {
            full = full.min((time - killed) / 1000);
        }
    }
    println!("{made} calls, at most {most} at the same time");
    println!("a client was killed, and {full} ms later the others made {CALLS} calls at a time");
    Ok(u8::from(most != CALLS || full > 5000).into())
}
