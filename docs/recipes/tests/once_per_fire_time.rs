//! Tests of the job that runs once per fire time.

use std::{
    future::{Ready, pending, ready},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use lock_runtime::LockError;
use recipes::once_per_fire_time::{Error, TABLE, fire_time, once};
use tokio::{runtime::Handle, sync::Notify, task::block_in_place, time::sleep};

use crate::fixture::{Store, machines, until_waiting};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The work of a machine.
fn work(machine: &str) -> Ready<Result<String, Error>> {
    ready(Ok(machine.to_owned()))
}

/// The clock of the second machine is 40 s behind, so it starts the job when the first machine has long ended it.
#[tokio::test]
async fn machines_whose_clocks_differ_run_a_job_once() {
    let store = Store::new(TABLE).await;
    let [first, second] = machines().await;
    let noon = UNIX_EPOCH + 1_000_000 * MINUTE;
    let [one, other] = [noon + SECOND / 5, noon + SECOND / 2].map(|now| fire_time(now, MINUTE));
    assert_eq!((one, one), (60_000_000, other));

    let ran = once(&first, &store.database, "report", one, work("first")).await;
    assert_eq!(ran.unwrap().as_deref(), Some("first"));
    let again = async { Err("the second machine does the work again".into()) };
    let repeated = once(&second, &store.database, "report", other, again).await;
    assert_eq!(repeated.unwrap(), None);
    let next = once(&second, &store.database, "report", one + 60, work("second")).await;
    assert_eq!(next.unwrap().as_deref(), Some("second"));
    assert_eq!(store.number("SELECT COUNT(*) FROM runs").await, 2);
}

#[tokio::test]
async fn a_machine_that_waits_repeats_the_work_of_one_that_crashes() {
    let store = Store::new(TABLE).await;
    let [first, second] = machines().await;
    let database = store.database.clone();
    let crashes = tokio::spawn(async move {
        once(&first, &database, "report", 0, pending())
            .await
            .map(drop)
    });
    support::until(async || {
        second
            .lock("job:report:0")
            .status()
            .await
            .unwrap()
            .holder
            .is_some()
    })
    .await;
    let (client, database) = (second.clone(), store.database.clone());
    let waits =
        tokio::spawn(async move { once(&client, &database, "report", 0, work("second")).await });
    until_waiting(&second, "job:report:0", 1).await;
    crashes.abort();
    let ran = waits.await.unwrap().unwrap();
    assert_eq!(ran.as_deref(), Some("second"));
}

/// The work blocks its thread during the loss, so the engine cannot drop it. Its record is sent although the next holder
/// has recorded a result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_refuses_the_record_of_a_late_holder() {
    let store = Store::new(TABLE).await;
    let [first, second] = machines().await;
    let testing = first.testing().expect("the client is in-process");
    let (database, recorded) = (store.database.clone(), Arc::new(Notify::new()));
    let next = {
        let recorded = recorded.clone();
        async move {
            let ran = once(&second, &database, "report", 0, work("second")).await;
            assert_eq!(ran.unwrap().as_deref(), Some("second"));
            recorded.notify_one();
        }
    };
    let blocks = async {
        assert!(testing.lose("job:report:0"));
        tokio::spawn(next);
        block_in_place(|| Handle::current().block_on(recorded.notified()));
        work("first").await
    };
    // If the database answers in the same poll, the body ends before it is dropped, and finds that its record is refused.
    let late = once(&first, &store.database, "report", 0, blocks).await;
    assert!(!matches!(late, Ok(Some(_))), "{late:?}");
    // The statement of the late holder is before this one.
    store.database.close().await;
    let database = sqlx::SqlitePool::connect(&store.url).await.unwrap();
    let results = sqlx::query_scalar::<_, String>("SELECT result FROM runs");
    assert_eq!(results.fetch_all(&database).await.unwrap(), ["second"]);
}

/// The job fires each minute, and keeps a lock without the fire time for 50 s.
#[tokio::test(start_paused = true)]
async fn hold_at_least_alone_repeats_one_run_and_skips_another() {
    let [first, second] = machines().await;
    let [first, second] = [first, second].map(|client| {
        client
            .lock("report")
            .wait(Duration::ZERO)
            .hold_at_least(50 * SECOND)
    });
    first.run(async {}).await.expect("the run of 0:00");
    sleep(55 * SECOND).await;
    second
        .run(async {})
        .await
        .expect("the run of 0:00 again: this clock is 55 s behind");
    sleep(5 * SECOND).await;
    let skipped = first.run(async {}).await;
    assert!(
        matches!(skipped, Err(LockError::Busy { .. })),
        "{skipped:?}"
    );
}
