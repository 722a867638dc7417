//! A runtime of the test support, in which real time passes even if the test's clock is paused or the test's threads
//! are blocked.

use std::{
    future::Future,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
};

fn handle() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let (sender, started) = mpsc::channel();
        thread::Builder::new()
            .name("backstage".into())
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the test support can build a runtime");
                let _ = sender.send(runtime.handle().clone());
                runtime.block_on(std::future::pending::<()>());
            })
            .expect("the test support can start a thread");
        started.recv().expect("the test support's runtime starts")
    })
}

/// Runs a future in real time, on the test support's runtime. If the future panics, the caller panics too. If the
/// caller stops waiting for the result, the future is aborted.
pub(crate) async fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let mut running = JoinSet::new();
    running.spawn_on(future, handle());
    match running.join_next().await.expect("one task was spawned") {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Waits for a duration of real time.
pub(crate) async fn sleep(duration: Duration) {
    run(async move { tokio::time::sleep(duration).await }).await;
}

/// Runs a future on the caller's task, for at most `patience` of real time. Returns `None` if the future does not end
/// within `patience`.
pub(crate) async fn within<T>(patience: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = sleep(patience) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn patience_is_real_under_a_paused_clock() {
        let started = Instant::now();
        assert_eq!(within(30 * MS, std::future::pending::<()>()).await, None);
        assert!(started.elapsed() >= 30 * MS);
        assert_eq!(within(30 * MS, async { 1 }).await, Some(1));
    }

    #[tokio::test]
    #[should_panic(expected = "as loud as ever")]
    async fn a_panic_backstage_is_the_callers() {
        run(async { panic!("as loud as ever") }).await;
    }
}
