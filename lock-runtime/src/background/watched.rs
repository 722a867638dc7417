//! A value that tasks can watch for changes. Waiting tasks are woken in the order in which they began to wait.

use std::{
    fmt,
    pin::pin,
    sync::{Mutex, MutexGuard},
};

use tokio::sync::Notify;

use crate::background::lock;

/// A value that tasks can watch for changes.
#[derive(Default)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    /// Locks the current value.
    pub(crate) fn get(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// If `may` returns `true` for the current value, replaces the value, and returns the previous value. Otherwise
    /// returns `None`.
    pub(crate) fn replace_if(&self, may: impl FnOnce(&T) -> bool, value: T) -> Option<T> {
        let replaced = {
            let mut now = lock(&self.value);
            may(&now).then(|| std::mem::replace(&mut *now, value))
        };
        if replaced.is_some() {
            self.changed.notify_waiters();
        }
        replaced
    }

    /// Changes the value.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let changed = change(&mut lock(&self.value));
        self.changed.notify_waiters();
        changed
    }

    /// Replaces the value, and returns the previous value.
    pub(crate) fn replace(&self, value: T) -> T {
        let before = std::mem::replace(&mut *lock(&self.value), value);
        self.changed.notify_waiters();
        before
    }

    /// Waits until `find` returns `Some` for the current value, and returns the content of the `Some`.
    pub(crate) async fn until<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = find(&lock(&self.value));
            match found {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }
}
