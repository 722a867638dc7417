//! Tests of the migration runner.

use lock_runtime::LockError;
use recipes::migrations::{migrate, step};
use tokio::join;

use crate::fixture::{Store, machines};

const MIGRATIONS: [&str; 2] = [
    "CREATE TABLE log (entry TEXT)",
    "INSERT INTO log VALUES ('first')",
];
const ENTRIES: &str = "SELECT COUNT(*) FROM log";

#[tokio::test]
async fn instances_that_start_together_run_each_migration_once() {
    let store = Store::new("PRAGMA user_version").await;
    let [one, other] = machines().await;
    let database = &store.database;
    let (a, b, c, d) = join!(
        migrate(&one, database, &MIGRATIONS),
        migrate(&other, database, &MIGRATIONS),
        migrate(&one, database, &MIGRATIONS[..1]),
        migrate(&other, database, &MIGRATIONS),
    );
    for migrated in [a, b, c, d] {
        migrated.unwrap();
    }
    assert_eq!(store.number(ENTRIES).await, 1);

    // A start that finds nothing to do needs no lock.
    let held = one.lock("migrations").acquire().await.unwrap();
    migrate(&other, database, &MIGRATIONS).await.unwrap();
    migrate(&other, database, &MIGRATIONS[..1]).await.unwrap();
    held.release().await;
}

/// A holder that was stopped after it had read the version goes on when a later holder has claimed the table.
#[tokio::test]
async fn the_table_refuses_a_migration_of_a_late_holder() {
    let store = Store::new("PRAGMA user_version").await;
    let [one, _] = machines().await;
    migrate(&one, &store.database, &MIGRATIONS).await.unwrap();
    let late = store
        .number("SELECT lock_token - 1 FROM schema_version")
        .await;
    let refused = step(&store.database, 2, late, "INSERT INTO log VALUES ('late')").await;
    assert!(refused.unwrap_err().to_string().contains("later holder"));
    assert_eq!(store.number(ENTRIES).await, 1);
}

/// An instance loses its lock while the database delays its migration.
#[tokio::test]
async fn a_migration_of_an_instance_that_loses_its_lock_runs_once() {
    let store = Store::new("PRAGMA user_version").await;
    let [one, other] = machines().await;
    migrate(&one, &store.database, &MIGRATIONS[..1])
        .await
        .unwrap();
    let mut writer = store.database.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut *writer)
        .await
        .unwrap();
    let testing = one.testing().expect("the client is in-process");
    let (lost, ()) = join!(
        migrate(&one, &store.database, &MIGRATIONS),
        support::until(async || testing.lose("migrations")),
    );
    let lost = lost.unwrap_err();
    let lost = lost.downcast_ref::<LockError>();
    assert!(matches!(lost, Some(LockError::Lost { .. })), "{lost:?}");
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut *writer)
        .await
        .unwrap();
    migrate(&other, &store.database, &MIGRATIONS).await.unwrap();
    assert_eq!(store.number(ENTRIES).await, 1);
}
