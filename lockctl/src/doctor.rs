//! `lockctl doctor` checks whether the servers are set up well for locks, and says what to do if they are not. A failed
//! check is a finding.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{Duration, Instant, SystemTime},
};

use lock_runtime::{ConnectError, LockClient};
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use serde::Serialize;

use crate::{
    ServerArgs,
    exit::{Exit, Failure, advice, with_advice},
    output::{Format, people, write_one},
};

/// The oldest version of Redis whose commands the scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The share of `maxmemory`, in percent, from which on the memory in use is a finding.
const FULL: u64 = 90;
/// The largest difference between the clocks of the server and of this machine that is not a finding.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);
/// The longest round trip to a server that is not a finding.
const SLOW: Duration = Duration::from_millis(50);
/// The number of keys that one `SCAN` of the search for left-over queues examines.
const KEYS_PER_STEP: usize = 200;
/// The largest number of left-over queues whose names the report contains.
const NAMED: usize = 10;

/// The result of one check.
#[derive(Debug, Serialize)]
struct Check {
    server: String,
    check: &'static str,
    ok: bool,
    found: String,
    /// What the user has to do about the finding; `None` if the check has passed.
    cure: Option<String>,
}

/// Collects the results of the checks.
#[derive(Default)]
struct Report {
    server: String,
    checks: Vec<Check>,
}

impl Report {
    fn pass(&mut self, check: &'static str, found: impl Into<String>) {
        self.push(check, found.into(), None);
    }

    fn find(&mut self, check: &'static str, found: impl Into<String>, cure: impl Into<String>) {
        self.push(check, found.into(), Some(cure.into()));
    }

    fn push(&mut self, check: &'static str, found: String, cure: Option<String>) {
        self.checks.push(Check {
            server: self.server.clone(),
            check,
            ok: cure.is_none(),
            found,
            cure,
        });
    }

    fn findings(&self) -> usize {
        self.checks.iter().filter(|check| !check.ok).count()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut server = "";
        for check in &self.checks {
            if check.server != server {
                server = &check.server;
                let _ = writeln!(text, "{server}");
            }
            let mark = if check.ok { "ok  " } else { "FIND" };
            let _ = writeln!(text, "  {mark} {:<12} {}", check.check, check.found);
            if let Some(cure) = &check.cure {
                let _ = writeln!(text, "                    -> {cure}");
            }
        }
        match self.findings() {
            0 => text.push_str("no finding"),
            1 => text.push_str("1 finding"),
            more => {
                let _ = write!(text, "{more} findings");
            }
        }
        text
    }
}

pub(crate) async fn doctor(servers: &ServerArgs, format: Format) -> Result<Exit, Failure> {
    let mut report = Report {
        server: "the client".into(),
        ..Report::default()
    };
    connect(servers, &mut report).await?;
    for url in &servers.url {
        match members(url, servers).await {
            Ok(members) => {
                for member in members {
                    examine(&member, servers, &mut report).await;
                }
            }
            // `connect` has already reported that the client cannot connect. This finding adds the error for the single
            // URL.
            Err(error) => report.find("address", error, "check the URL, and that the server runs"),
        }
    }
    write_one(format, &report.checks, || report.text())?;
    Ok(match report.findings() {
        0 => Exit::Done,
        _ => Exit::No,
    })
}

/// Connects a client as a service does, and reports each finding that prevents a service from connecting.
async fn connect(servers: &ServerArgs, report: &mut Report) -> Result<(), Failure> {
    let connected = match servers.builder()?.connect().await {
        Err(error @ ConnectError::Eviction { .. }) => {
            report.find("eviction", error.to_string(), cure(&error));
            servers.builder()?.allow_eviction(true).connect().await
        }
        connected => connected,
    };
    match connected {
        Ok(client) => {
            report.pass(
                "connect",
                "a service can connect, and has the rights that it needs",
            );
            acquire(&client, report).await;
            client.shutdown().await;
        }
        Err(error) => report.find(name(&error), error.to_string(), cure(&error)),
    }
    Ok(())
}

fn name(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Permission { .. } => "rights",
        ConnectError::Authentication { .. } => "password",
        ConnectError::Cluster { .. } => "cluster",
        ConnectError::NoResp3 { .. } => "resp3",
        ConnectError::Eviction { .. } => "eviction",
        ConnectError::Tls { .. } | ConnectError::NoTls { .. } => "tls",
        _ => "connect",
    }
}

fn cure(error: &ConnectError) -> String {
    advice(error).unwrap_or_else(|| "see the server's message".into())
}

/// Acquires and releases a lock that no service uses.
async fn acquire(client: &LockClient, report: &mut Report) {
    let key = format!("lockctl:doctor:{}", std::process::id());
    let began = Instant::now();
    match client
        .lock(key)
        .lease(Duration::from_secs(1))
        .try_acquire()
        .await
    {
        Ok(guard) => {
            guard.release().await;
            let took = began.elapsed();
            report.pass(
                "lock",
                format!("acquired and released a lock in {}", exact(took)),
            );
        }
        Err(error) => {
            let text = with_advice(&error);
            let cure = if text.contains("READONLY") || text.contains("read only") {
                "write locks on the primary: name its address, or write a redis+sentinel:// or redis+cluster:// URL"
            } else if text.contains("OOM") {
                "raise maxmemory, or remove data"
            } else {
                "see the message"
            };
            report.find("lock", text, cure);
        }
    }
}

/// Returns a `redis://` or `rediss://` URL for each primary that stores the locks of a client with the given URL.
async fn members(url: &str, servers: &ServerArgs) -> Result<Vec<String>, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(vec![url.to_owned()]); // a URL without `://`, such as `unix:/path`
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let plain = if scheme.starts_with("rediss") {
        "rediss"
    } else {
        "redis"
    };
    let hosts: Vec<_> = hosts.split(',').collect();
    let at = |host: &str| format!("{plain}://{user}{host}/");
    match scheme.split_once('+').map_or(scheme, |(_, kind)| kind) {
        "sentinel" => {
            let group = path.split(['/', '?']).next().unwrap_or_default();
            let mut asking = redis::cmd("SENTINEL");
            asking.arg("GET-MASTER-ADDR-BY-NAME").arg(group);
            let sentinels = hosts.iter().map(|host| format!("{plain}://{host}/"));
            let (host, port): (String, u16) = first(sentinels, &asking, servers, true).await?;
            Ok(vec![at(&format!("{host}:{port}"))])
        }
        "cluster" => {
            let mut asking = redis::cmd("CLUSTER");
            asking.arg("NODES");
            let nodes: String =
                first(hosts.iter().map(|host| at(host)), &asking, servers, false).await?;
            Ok(primaries(&nodes).map(|host| at(&host)).collect())
        }
        _ if scheme.starts_with("redlock") => Ok(hosts.iter().map(|host| at(host)).collect()),
        _ => Ok(vec![url.to_owned()]),
    }
}

/// Returns the addresses of the primaries that store slots, from the answer to `CLUSTER NODES`.
fn primaries(nodes: &str) -> impl Iterator<Item = String> {
    nodes.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let is_primary = fields.get(2)?.split(',').any(|flag| flag == "master");
        let address = fields.get(1)?.split(['@', ',']).next()?;
        (is_primary && fields.len() > 8).then(|| address.to_owned())
    })
}

/// Sends a command to one server after another until a server answers, and returns this answer.
async fn first<T: FromRedisValue>(
    urls: impl Iterator<Item = String>,
    command: &Cmd,
    servers: &ServerArgs,
    are_sentinels: bool,
) -> Result<T, String> {
    let mut last = "no server is named".to_owned();
    for url in urls {
        let asked = async {
            let connecting = servers
                .access
                .connect(&url, servers.patience, are_sentinels);
            let mut redis = connecting.await?;
            command
                .query_async(&mut redis)
                .await
                .map_err(|error| error.to_string())
        };
        match asked.await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs the checks of one server, and adds the results to the report.
async fn examine(url: &str, servers: &ServerArgs, report: &mut Report) {
    // The report shows the server's URL without the user and the password.
    report.server = url
        .rsplit('@')
        .next()
        .unwrap_or_default()
        .trim_end_matches('/')
        .to_owned();
    let connecting = servers.access.connect(url, servers.patience, false);
    let Ok(mut redis) = connecting.await else {
        let cure = "check the address and the password, and that the server runs";
        report.find("address", "no connection", cure);
        return;
    };
    let info: Result<String, _> = redis::cmd("INFO").query_async(&mut redis).await;
    match info {
        Ok(info) => examine_info(&fields(&info), report),
        Err(error) => report.find(
            "info",
            error.to_string(),
            "grant +info, see docs/guides/acl.md",
        ),
    }
    examine_clock(&mut redis, report).await;
    if let Err(error) = examine_queues(&mut redis, servers, report).await {
        let text = format!("left-over queues were not searched: {error}");
        report.find(
            "queues",
            text,
            "grant +scan, +pttl, +time and +zrange to the user of lockctl",
        );
    }
}

fn fields(info: &str) -> BTreeMap<&str, &str> {
    let lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name, value.trim())).collect()
}

fn examine_info(info: &BTreeMap<&str, &str>, report: &mut Report) {
    let field = |name: &str| info.get(name).copied().unwrap_or_default();
    let number = |name: &str| field(name).parse::<u64>().unwrap_or_default();

    let version = field("redis_version");
    let mut parts = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or_default());
    let pair = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    if pair < OLDEST {
        let text = format!("the server has version {version}, and locks need 6.2 or later");
        report.find("version", text, "install Redis 6.2 or later, or Valkey");
    } else {
        report.pass("version", version);
    }

    match field("role") {
        "slave" => {
            let primary = format!("{}:{}", field("master_host"), field("master_port"));
            report.find(
                "role",
                format!("the server is a replica of {primary}, and writes nothing"),
                format!("name the primary, redis://{primary}/, or write a redis+sentinel:// URL"),
            );
        }
        _ => report.pass("role", "primary"),
    }

    if field("aof_enabled") == "1" {
        report.pass("persistence", "append-only file");
    } else {
        report.find(
            "persistence",
            "a crash loses the newest locks, because there is no append-only file, and a second holder can enter",
            "set `appendonly yes` and `appendfsync always`, or refuse late writes by the fencing token: docs/guides/fencing.md",
        );
    }

    let (used, most) = (number("used_memory"), number("maxmemory"));
    if most > 0 && used * 100 >= most * FULL {
        report.find(
            "memory",
            format!("{} of {} are in use", megabytes(used), megabytes(most)),
            "raise maxmemory, or remove data: a server without memory refuses new locks",
        );
    } else {
        report.pass("memory", format!("{} in use", megabytes(used)));
    }

    match field("maxmemory_policy") {
        "noeviction" | "" => report.pass("eviction", "none"),
        policy => report.find(
            "eviction",
            format!("maxmemory-policy is {policy}: a full server drops locks that are held"),
            "set maxmemory-policy to noeviction",
        ),
    }
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes * 10 / (1 << 20);
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

/// Formats a short duration precisely, in hundredths of a millisecond.
fn exact(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.2} ms", time.as_secs_f64() * 1000.0)
    } else {
        people(time)
    }
}

/// Compares the server's clock with this machine's clock, and measures how fast the server answers.
async fn examine_clock(redis: &mut MultiplexedConnection, report: &mut Report) {
    let mut fastest = Duration::MAX;
    let mut difference = None;
    for _ in 0..5 {
        let began = Instant::now();
        let time: Result<(u64, u64), _> = redis::cmd("TIME").query_async(redis).await;
        let took = began.elapsed();
        let Ok((seconds, micros)) = time else {
            continue;
        };
        if took < fastest {
            fastest = took;
            let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
            let ours = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            difference = Some((theirs.abs_diff(ours), theirs < ours));
        }
    }
    let Some((difference, is_behind)) = difference else {
        return report.find(
            "clock",
            "the server does not answer the command TIME",
            "grant +time, see docs/guides/acl.md",
        );
    };
    if difference > CLOCKS_DIFFER + fastest {
        let direction = if is_behind { "behind" } else { "ahead of" };
        report.find(
            "clock",
            format!("the server's clock is {} {direction} this machine's", people(difference)),
            "run NTP on both machines: after a loss of state, fencing tokens continue from the server's clock",
        );
    } else {
        report.pass("clock", format!("differs by {}", exact(difference)));
    }
    if fastest > SLOW {
        report.find(
            "latency",
            format!("the server answers in {}", exact(fastest)),
            "move the service near to the server: each lock takes two round trips",
        );
    } else {
        report.pass("latency", format!("answers in {}", exact(fastest)));
    }
}

/// Searches the server for queues that no lock needs any longer.
async fn examine_queues(
    redis: &mut MultiplexedConnection,
    servers: &ServerArgs,
    report: &mut Report,
) -> redis::RedisResult<()> {
    let namespace = lock_runtime::escape(servers.namespace.as_deref().unwrap_or("lock"));
    let pattern = format!("*{namespace}:*:queue");
    let (mut cursor, mut queues, mut left) = (0_u64, 0, Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(&pattern)
            .arg("COUNT")
            .arg(KEYS_PER_STEP);
        let (next, keys): (u64, Vec<String>) = scan.query_async(redis).await?;
        for key in keys {
            queues += 1;
            if is_left_over(redis, &key).await? && left.len() < NAMED {
                left.push(key);
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    if left.is_empty() {
        report.pass("queues", format!("{queues} in use"));
    } else {
        let found = format!(
            "these queues are left over, because no lock needs them: {}",
            left.join(" ")
        );
        report.find(
            "queues",
            found,
            format!("remove the queues: redis-cli DEL '{}'", left.join("' '")),
        );
    }
    Ok(())
}

/// Returns whether a queue is left over. A queue is left over if it never expires, or if nobody holds its lock and each
/// waiter's `wait` is over.
async fn is_left_over(redis: &mut MultiplexedConnection, queue: &str) -> redis::RedisResult<bool> {
    let mut reading = redis::pipe();
    reading.cmd("TIME").cmd("PTTL").arg(queue);
    reading.cmd("EXISTS").arg(queue.trim_end_matches(":queue"));
    reading
        .cmd("ZRANGE")
        .arg(queue)
        .arg(0)
        .arg(99)
        .arg("WITHSCORES");
    type Read = ((u64, u64), i64, u8, Vec<(String, f64)>);
    let ((seconds, micros), left, held, entries): Read = reading.query_async(redis).await?;
    let now = (seconds * 1_000_000 + micros) as f64;
    // The entry of a waiter is `owner|session_id|lease|wait|words`, and its place is the time at which it was queued. The
    // lock scripts skip all other entries.
    let mut waits = entries.iter().filter_map(|(entry, place)| {
        let wait = entry.split('|').nth(3)?.parse::<f64>().ok()?;
        Some(place + wait * 1000.0)
    });
    let has_waiter = waits.clone().next().is_some();
    // The lock scripts set an expiry on every queue, so a queue without an expiry (-1) is left over.
    Ok(left == -1 || (held == 0 && has_waiter && waits.all(|end| end < now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primaries_of_a_cluster_are_those_with_slots() {
        let nodes = "a 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5460\n\
            b 127.0.0.1:7002@17002,host master - 0 0 2 connected 5461-16383\n\
            c 127.0.0.1:7003@17003 slave a 0 0 1 connected\n\
            d 127.0.0.1:7004@17004 master - 0 0 0 connected\n";
        let found: Vec<_> = primaries(nodes).collect();
        assert_eq!(found, ["127.0.0.1:7001", "127.0.0.1:7002"]);
    }
}
