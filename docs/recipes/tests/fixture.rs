//! A database, and clients of one lock server, for a test of its own.

use std::{env, fs, path::PathBuf};

use lock_runtime::LockClient;
use sqlx::{SqlitePool, sqlite::SqlitePoolOptions};
use uuid::Uuid;

/// A database file that is removed with this value.
pub(crate) struct Store {
    pub(crate) url: String,
    pub(crate) database: SqlitePool,
    folder: PathBuf,
}

impl Store {
    /// Creates a database, and runs a statement in it.
    pub(crate) async fn new(statement: &str) -> Self {
        let folder = env::temp_dir().join(format!("recipe-{}", Uuid::new_v4()));
        fs::create_dir(&folder).expect("a folder");
        let url = format!("sqlite:{}?mode=rwc", folder.join("store.db").display());
        // A statement is sent in the first poll of its future, so that a test can drop the future after that.
        let pool = SqlitePoolOptions::new().test_before_acquire(false);
        let database = pool.connect(&url).await.expect("a database");
        let store = Self {
            url,
            database,
            folder,
        };
        store.run(statement).await;
        store
    }

    pub(crate) async fn run(&self, statement: &str) {
        let run = sqlx::raw_sql(statement).execute(&self.database).await;
        run.expect("a statement");
    }

    /// Returns the number in the first column of the first row.
    pub(crate) async fn number(&self, query: &str) -> i64 {
        let number = sqlx::query_scalar(query).fetch_one(&self.database).await;
        number.expect("a number")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns two clients that share their locks, like the clients of two machines.
pub(crate) async fn machines() -> [LockClient; 2] {
    let url = format!("memory:{}", Uuid::new_v4());
    let connect = async || LockClient::connect(&url).await.expect("locks in process");
    [connect().await, connect().await]
}

/// Waits until a lock has this number of waiters.
pub(crate) async fn until_waiting(client: &LockClient, key: &str, waiters: usize) {
    support::until(async || client.lock(key).status().await.unwrap().waiters == waiters).await;
}
