#!/bin/sh
# Measures what lock-runtime adds to a service, and writes the tables of docs/guides/features.md and lock-runtime/README.md:
# sh tools/services.sh [RUNS]
#
# Each service connects and uses one lock. The service `redis` uses the redis crate alone; the others use lock-runtime
# with the features of their row. The script builds each service RUNS times (3 by default) without any earlier output, in
# turns, with two jobs, in the release profile. The table has the median of the processor times, which other programs on
# the machine change less than the elapsed times, and the size of the program without symbols. Each figure is followed by
# its ratio to that of `redis`.
set -eu
cd "$(dirname "$0")/.."
runs=${1:-3}
root=$PWD
folder=${CARGO_TARGET_DIR:-$root/target}/services
unset CARGO_TARGET_DIR
rm -rf "$folder"

# Creates a service: service NAME DEPENDENCY MAIN
service() {
    mkdir -p "$folder/$1/src"
    cp Cargo.lock "$folder/$1"
    cat >"$folder/$1/Cargo.toml" <<EOF
[package]
name = "service"
version = "0.1.0"
edition = "2024"

[dependencies]
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
$2

[workspace]
EOF
    printf '%s\n' "$3" >"$folder/$1/src/main.rs"
}

service redis 'redis = { version = "1", default-features = false, features = ["connection-manager", "script", "tokio-comp"] }' '
use redis::{Client, RedisError, Script};

const RELEASE: &str = "return redis.call(\"GET\", KEYS[1]) == ARGV[1] and redis.call(\"DEL\", KEYS[1])";

#[tokio::main]
async fn main() -> Result<(), RedisError> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".into());
    let mut redis = Client::open(url)?.get_connection_manager().await?;
    let mut set = redis::cmd("SET");
    set.arg("order:42").arg("me").arg("NX").arg("PX").arg(30_000);
    if set.query_async::<bool>(&mut redis).await? {
        println!("paid");
        Script::new(RELEASE).key("order:42").arg("me").invoke_async::<bool>(&mut redis).await?;
    }
    Ok(())
}'

# Creates a service with locks: locks NAME SETTINGS
locks() {
    service "$1" "lock-runtime = { path = \"$root/lock-runtime\"$2 }" '
use lock_runtime::{LockClient, LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> Result<(), LockError> {
    println!("paid {id}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    LockClient::connect(url).await?.install()?;
    Ok(pay(42).await?)
}'
}

locks in-process ', default-features = false'
locks one-server ', default-features = false, features = ["redis"]'
locks default ''
locks metrics ', features = ["metrics"]'
locks everything ', features = ["metrics", "redisson", "redlock", "tls-aws-lc"]'

run=0
while [ "$run" -lt "$runs" ]; do
    run=$((run + 1))
    for name in redis in-process one-server default metrics everything; do
        service=$folder/$name
        rm -rf "$service/target"
        if ! (cd "$service" && CARGO_INCREMENTAL=0 cargo build --offline --release --jobs 2 2>log && times >used); then
            cat "$service/log" >&2
            exit 1
        fi
        # The second line has the times of the commands: those of their own code, and those of the system.
        tr 'ms' '  ' <"$service/used" | awk 'NR == 2 { print $1 * 60 + $2 + $3 * 60 + $4 }' >>"$service/times"
        echo "run $run of $runs: $name" >&2
    done
done

# Prints a figure of a service: the median of its times in s, the number of its crates, or its size in bytes.
figure() {
    service=$folder/$2
    case $1 in
    time) sort -n "$service/times" | sed -n "$(((runs + 1) / 2))p" ;;
    crates) grep -c '^ *Compiling' "$service/log" ;;
    size) strip -o "$service/stripped" "$service/target/release/service" && wc -c <"$service/stripped" ;;
    esac
}

row() {
    for what in crates time size; do
        of_redis=$(figure $what redis)
        own=$(figure $what "$1")
        case $what in
        crates) awk "BEGIN { printf \"| $2 | %d (%.2f) \", $own, $own / $of_redis }" ;;
        time) awk "BEGIN { printf \"| %.0f s (%.2f) \", $own, $own / $of_redis }" ;;
        size) awk "BEGIN { printf \"| %.2f MB (%.2f) |\n\", $own / 1e6, $own / $of_redis }" ;;
        esac
    done
}

{
    echo '| service | crates | processor time of a cold build | size |'
    echo '|---|--:|--:|--:|'
    row redis 'the redis crate alone'
    row in-process 'no features: locks in process'
    row one-server '`redis`'
    row default 'the default: `redis`, `cluster`, `tls-ring`'
    row metrics 'the default and `metrics`'
    row everything 'all features'
} >"$folder/table"
sed -i -e '/<!-- services: begin -->/,/<!-- services: end -->/{/<!-- services: /!d}' \
    -e "/<!-- services: begin -->/r $folder/table" docs/guides/features.md lock-runtime/README.md
cat "$folder/table"
