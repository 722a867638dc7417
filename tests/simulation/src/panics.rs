//! Records the panics of tasks, which the runtime catches silently.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records panics of this thread from now on, and forgets earlier panics.
pub(crate) fn watch() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST.set(Some(info.to_string()));
            before(info);
        }));
    });
    LAST.set(None);
}

/// Takes the text of this thread's last panic. Returns `None` if there was no panic.
pub(crate) fn last() -> Option<String> {
    LAST.take()
}
