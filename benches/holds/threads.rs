//! The processor time of this process and its threads, as Linux counts it.

use std::{fs, path::Path, time::Duration};

/// The unit of `stat`: 100 ticks a second on all current Linux systems.
const TICK: Duration = Duration::from_millis(10);

/// The time used so far by the threads with this name; `None` if the system does not report it.
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

/// The time used so far by the whole process.
pub(crate) fn of_process() -> Option<Duration> {
    of(Path::new("/proc/self"))
}

fn of(folder: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The fields from the third on, after the name, which may contain spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}
