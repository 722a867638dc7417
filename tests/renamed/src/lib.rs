//! A crate that uses `#[distributed_lock]`, but renames its dependency `lock-runtime` to `locks`, so that no crate
//! `lock_runtime` is in scope. The edition of this crate is 2021, and that of the attribute is 2024.

use locks::{distributed_lock, LockError};

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

/// A machine of a cluster. In edition 2024, `gen` is a keyword.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// How often the machine has started.
    pub gen: u64,
}

/// Names a field that is a keyword in the edition of the attribute.
///
/// # Errors
/// If the lock cannot be acquired.
#[distributed_lock(key = "node:<node.gen>:<gen>", crate = ::locks)]
pub async fn restart(node: Node, gen: u64, inside: impl AsyncFn()) -> Result<u64, LockError> {
    inside().await;
    Ok(node.gen + gen)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use locks::LockClient;
    use support::guarded::{guarded, stay};

    use super::*;

    thread_local!(static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) });

    struct Witness(&'static str);

    impl Witness {
        fn number(&self) -> u64 {
            self.0.len() as u64
        }
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            DROPPED.with_borrow_mut(|dropped| dropped.push(self.0));
        }
    }

    /// Defines a function with and without the attribute, and asserts that both drop the same values in this order.
    macro_rules! same_drops {
        ($a:ident $body:block => $order:expr) => {{
            #[distributed_lock(key = "drops", crate = ::locks)]
            async fn locked($a: Witness, _: Witness, _b: Witness) -> Result<u64, LockError> $body
            async fn plain($a: Witness, _: Witness, _b: Witness) -> Result<u64, LockError> $body
            let client = LockClient::connect("memory:").await.unwrap();
            let arguments = || (Witness("a"), Witness("_"), Witness("_b"));
            let (a, wild, b) = arguments();
            plain(a, wild, b).await.unwrap();
            assert_eq!(DROPPED.take(), $order);
            let (a, wild, b) = arguments();
            client.scope(locked(a, wild, b)).await.unwrap();
            assert_eq!(DROPPED.take(), $order);
        }};
    }

    /// In this edition, the temporaries of a block's tail expression are dropped after the variables of the block.
    #[tokio::test]
    #[allow(clippy::needless_return)]
    async fn temporaries_of_the_tail_are_dropped_before_the_arguments() {
        same_drops!(a {
            let local = Witness("local");
            Ok(Witness("temporary").number() + local.number() + a.number())
        } => ["local", "temporary", "_b", "_", "a"]);
        same_drops!(a {
            let local = Witness("local");
            later().await;
            match Witness("temporary").number() {
                0 => Ok(0),
                number => Ok(number + local.number() + a.number()),
            }
        } => ["local", "temporary", "_b", "_", "a"]);
        same_drops!(a {
            let local = Witness("local");
            return Ok(Witness("temporary").number() + local.number() + a.number());
        } => ["temporary", "local", "_b", "_", "a"]);
    }

    async fn later() {
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn a_field_that_is_a_keyword_in_a_later_edition() {
        guarded("node:1:2", Ok(3), async || {
            restart(Node { gen: 1 }, 2, stay).await
        })
        .await;
    }

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
