//! The end of a client: a token that says so, and trackers of the tasks that it waits for.

pub(crate) use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken as TrackedTask},
};

/// Ends when none of these tasks is left. New ones may begin meanwhile, and later.
pub(crate) async fn drained(tasks: &TaskTracker) {
    tasks.close();
    tasks.wait().await;
}
