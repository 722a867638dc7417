//! Tests of the jobs: two machines run the job of each fire time once.

use std::{env, fs, path::PathBuf, time::Duration};

use lock_runtime::LockClient;
use recipes::once_per_fire_time::TABLE;
use sqlx::SqlitePool;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

const EACH_SECOND: &str = "* * * * * *";

/// A database file that is removed with this value.
struct Store(SqlitePool, PathBuf);

impl Store {
    async fn new() -> Self {
        let folder = env::temp_dir().join(format!("recipe-{}", Uuid::new_v4()));
        fs::create_dir(&folder).expect("a folder");
        let url = format!("sqlite:{}?mode=rwc", folder.join("store.db").display());
        let database = SqlitePool::connect(&url).await.expect("a database");
        for table in [TABLE, "CREATE TABLE reports (fire_time BIGINT)"] {
            sqlx::raw_sql(table)
                .execute(&database)
                .await
                .expect("a table");
        }
        Self(database, folder)
    }

    async fn number(&self, query: &str) -> i64 {
        let number = sqlx::query_scalar(query).fetch_one(&self.0).await;
        number.expect("a number")
    }

    /// Waits until four fire times are recorded, and asserts that no report was written twice.
    async fn each_fire_time_has_one_report(&self) {
        let wait = async {
            while self.number("SELECT COUNT(*) FROM runs").await < 4 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(60), wait)
            .await
            .expect("four fire times");
        let twice = "SELECT COUNT(*) - COUNT(DISTINCT fire_time) FROM reports";
        assert_eq!(self.number(twice).await, 0);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.1);
    }
}

/// Returns two clients that share their locks, like the clients of two machines.
async fn machines() -> [LockClient; 2] {
    let url = format!("memory:{}", Uuid::new_v4());
    let connect = async || LockClient::connect(&url).await.expect("locks in process");
    [connect().await, connect().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_apalis_cron_run_each_fire_time_once() {
    let store = Store::new().await;
    let [one, other] = machines().await;
    let run = |locks| recipes_schedulers::apalis_cron::run(EACH_SECOND, locks, store.0.clone());
    tokio::select! {
        ended = run(one) => panic!("{ended:?}"),
        ended = run(other) => panic!("{ended:?}"),
        () = store.each_fire_time_has_one_report() => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_cron_schedulers_run_each_fire_time_once() {
    let store = Store::new().await;
    let mut schedulers = Vec::new();
    for locks in machines().await {
        let start = recipes_schedulers::tokio_cron_scheduler::start;
        schedulers.push(start(EACH_SECOND, locks, store.0.clone()).await.unwrap());
    }
    store.each_fire_time_has_one_report().await;
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
}
