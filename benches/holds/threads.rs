//! The processor time of this process and its threads, as Linux counts it.

use std::{fs, path::Path, time::Duration};

/// What `stat` counts in: 100 ticks a second, on every Linux of today.
const TICK: Duration = Duration::from_millis(10);

/// Used so far by the threads of that name; `None` where the system does not say.
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

/// Used so far by the whole process.
pub(crate) fn of_process() -> Option<Duration> {
    of(Path::new("/proc/self"))
}

fn of(folder: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // After the name, which may have spaces: the fields from the third on.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}
