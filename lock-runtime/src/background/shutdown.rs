//! The shutdown of a client: a cancellation token, and trackers of the tasks that the shutdown waits for.

pub(crate) use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken as TrackedTask},
};

/// Waits until none of the tasks is left. New tasks may start during the wait and afterwards.
pub(crate) async fn drained(tasks: &TaskTracker) {
    tasks.close();
    tasks.wait().await;
}
