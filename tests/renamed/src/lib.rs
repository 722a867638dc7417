//! A crate that uses `#[distributed_lock]`, but renames its dependency `lock-runtime` to `locks`, so that no crate
//! `lock_runtime` is in scope.

use locks::{LockError, distributed_lock};

/// A module of this crate that re-exports the dependency.
pub mod facade {
    pub use locks;
}

/// Uses every option for which the expansion contains a path.
///
/// # Errors
/// If the lock cannot be acquired.
#[distributed_lock(
    key = "order:<id>",
    wait = "5s",
    lease = "30s",
    renew = true,
    max_hold = "1h",
    on_lost = continue,
    namespace = "lock",
    guard = hold,
    crate = ::locks
)]
pub async fn pay(id: u64, inside: impl AsyncFn()) -> Result<u64, LockError> {
    inside().await;
    Ok(id + u64::from(hold.token().get() > 0))
}

/// Refers to the dependency by a path in this crate.
///
/// # Errors
/// If the lock cannot be acquired.
#[distributed_lock(key = "order:<id>", crate = crate::facade::locks)]
pub async fn cancel(id: u64, inside: impl AsyncFn()) -> Result<u64, LockError> {
    inside().await;
    Ok(id)
}

/// Defines an annotated function. A macro of a library can do this for users that do not depend on `lock-runtime`
/// themselves.
#[macro_export]
macro_rules! locked {
    ($(#[$attr:meta])* $visibility:vis async fn $name:ident[$key:literal]($($arguments:tt)*) -> $returned:ty $body:block) => {
        $(#[$attr])*
        #[$crate::facade::locks::distributed_lock(key = $key, crate = $crate::facade::locks)]
        $visibility async fn $name($($arguments)*) -> $returned $body
    };
}

#[cfg(test)]
mod tests {
    use support::guarded::{guarded, stay};

    use super::*;

    locked! {
        /// A doc comment, which the macro passes on to the function.
        async fn made["made:<id>"](id: u64) -> Result<u64, LockError> {
            stay().await;
            Ok(id)
        }
    }

    #[tokio::test]
    async fn by_the_other_name() {
        guarded("order:7", Ok(8), async || pay(7, stay).await).await;
    }

    #[tokio::test]
    async fn by_a_path_of_the_users_own() {
        guarded("order:7", Ok(7), async || cancel(7, stay).await).await;
        guarded("made:7", Ok(7), async || made(7).await).await;
    }
}
