//! The processor time of this process and of its threads, as Linux reports it.

use std::{fs, path::Path, time::Duration};

/// The length of a tick. Linux reports the times in a `stat` file of `/proc` in ticks. A second has 100 ticks on all
/// common platforms.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time that the threads with this name have used so far, or `None` if there is no such thread or
/// the system does not report the time.
pub(crate) fn of_thread(name: &str) -> Option<Duration> {
    let mut used = None;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let path = task.path();
        let is_named = |comm: String| comm.trim_end() == name;
        if fs::read_to_string(path.join("comm")).is_ok_and(is_named) {
            used = Some(used.unwrap_or_default() + of(&path)?);
        }
    }
    used
}

/// Returns the processor time that the whole process has used so far, or `None` if the system does not report the time.
pub(crate) fn of_process() -> Option<Duration> {
    of(Path::new("/proc/self"))
}

fn of(folder: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The second field of `stat` is the thread's name in parentheses. The name itself can contain spaces and
    // parentheses, so the third field follows the last closing parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}
