//! A process that ends as soon as it loses a lock.
//!
//! After a loss, the engine drops the body at its next `.await`. It cannot end a blocking call, a spawned task or code of
//! another library. If such code must not go on beside the next holder, let the process end: a supervisor starts it
//! again. The engine's own thread notices the loss, even while the body blocks its thread.
//!
//! The end of the process does not replace fencing tokens. If the process itself is stopped, or its machine is suspended,
//! its writes can arrive before it notices the loss.

use std::process;

use lock_runtime::{LockClient, LockClientBuilder};

/// Returns the builder of a client whose process ends when one of the client's locks is lost. Use a client of its own for
/// the locks whose loss must end the process.
pub fn builder(url: &str) -> LockClientBuilder {
    LockClient::builder().url(url).on_lost(|loss| {
        eprintln!(
            "lock {} (token {}) was lost, so this process ends",
            loss.key, loss.token
        );
        // `abort` ends the process at once. `exit` would run handlers first, which can block.
        process::abort();
    })
}
