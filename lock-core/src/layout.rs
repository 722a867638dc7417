//! How locks are stored on a server, and what that means for their names and their waiters.

use crate::{
    key::{KeyError, LockKey, LockName},
    options::Strategy,
};

/// The namespace of a client that names none.
const DEFAULT_NAMESPACE: &str = "lock";

/// How locks are stored on a server, and under which names. Whoever shares a lock uses the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Layout {
    /// Our own, with a queue: everything that is promised holds.
    #[default]
    Native,
    /// That of Redisson's `RLock`, to share locks with JVM services: see `LockClientBuilder::layout` in `lock-runtime`.
    Redisson,
}

impl Layout {
    /// How callers wait that do not say so themselves.
    #[must_use]
    pub const fn default_strategy(self) -> Strategy {
        match self {
            Self::Native => Strategy::Handoff,
            Self::Redisson => Strategy::Notify,
        }
    }

    /// Whether callers may wait so.
    #[must_use]
    pub const fn allows(self, strategy: Strategy) -> bool {
        match self {
            Self::Native => true,
            // Redisson would take a lock that is free, whoever queued for it.
            Self::Redisson => !matches!(strategy, Strategy::Handoff),
        }
    }

    /// The name under which a lock is stored. Without a namespace a native lock is of the namespace `lock`, and one of
    /// Redisson's has the name that is given to `getLock`.
    ///
    /// # Errors
    /// [`KeyError`] for what cannot be stored under a name of its own.
    ///
    /// ```
    /// # use lock_core::{key::LockKey, layout::Layout};
    /// let key = LockKey::new("order:42").unwrap();
    /// let name = |layout: Layout, namespace| layout.name(namespace, &key).unwrap().to_string();
    /// assert_eq!(name(Layout::Native, None), "{lock:order:42}");
    /// assert_eq!(name(Layout::Redisson, None), "order:42");
    /// assert_eq!(name(Layout::Redisson, Some("shop")), "shop:order:42");
    /// ```
    pub fn name(self, namespace: Option<&str>, key: &LockKey) -> Result<LockName, KeyError> {
        match self {
            Self::Native => LockName::new(namespace.unwrap_or(DEFAULT_NAMESPACE), key),
            Self::Redisson => LockName::plain(namespace, key),
        }
    }

    /// The key in a lock's name, as its callers write it. Redisson's layout tells no namespace from a key: there it is the
    /// whole name.
    ///
    /// ```
    /// # use lock_core::{key::LockKey, layout::Layout};
    /// for key in ["order:42", "{order:42}:pay"] {
    ///     let name = Layout::Native.name(Some("shop"), &LockKey::new(key).unwrap()).unwrap();
    ///     assert_eq!(Layout::Native.key(&name), key);
    /// }
    /// ```
    #[must_use]
    pub fn key(self, name: &LockName) -> &str {
        let name = name.as_str();
        let (Self::Native, Some((namespace, key))) = (self, name.split_once(':')) else {
            return name;
        };
        match namespace.strip_prefix('{') {
            Some(_) => key.strip_suffix('}').unwrap_or(key),
            None => key,
        }
    }
}
