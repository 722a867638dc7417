//! How locks are stored on a server, and how the layout affects the names of locks and the ways to wait for locks.

use crate::{
    key::{KeyError, LockKey, LockName, escape},
    options::Strategy,
};

/// The namespace of a client for which no namespace is set.
pub const DEFAULT_NAMESPACE: &str = "lock";

/// How locks are stored on a server, and under which names. All services that share a lock have to use the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Layout {
    /// This crate's own layout, with a queue of waiting callers. All guarantees of this crate hold in this layout.
    #[default]
    Native,
    /// The layout of Redisson's `RLock`, in which Rust and JVM services can share locks: see
    /// `LockClientBuilder::layout` in `lock-runtime`.
    Redisson,
}

impl Layout {
    /// Returns the strategy of callers that do not choose one.
    #[must_use]
    pub const fn default_strategy(self) -> Strategy {
        match self {
            Self::Native => Strategy::Handoff,
            Self::Redisson => Strategy::Notify,
        }
    }

    /// Returns the name under which a lock is stored.
    ///
    /// Without a namespace, a native lock is stored in the namespace `lock`. A lock in Redisson's layout is then stored
    /// under exactly the name that a JVM service passes to `getLock`.
    ///
    /// # Errors
    /// Returns [`KeyError`] if the namespace and the key do not form a valid name.
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

    /// Returns the namespace as it is written in the names of locks, without the braces and the colon. Returns `None`
    /// if the names have no namespace.
    #[must_use]
    pub fn stored_namespace(self, namespace: Option<&str>) -> Option<String> {
        match self {
            Self::Native => Some(escape(namespace.unwrap_or(DEFAULT_NAMESPACE))),
            Self::Redisson => namespace.map(str::to_owned),
        }
    }

    /// Returns the key of the lock that is stored under `stored`. Returns `None` if no lock of this namespace has this
    /// name.
    ///
    /// ```
    /// # use lock_core::{key::LockKey, layout::Layout};
    /// let key = |stored| Layout::Native.key_in(Some("shop"), stored).map(|key| key.to_string());
    /// assert_eq!(key("{shop:order:42}"), Some("order:42".to_owned()));
    /// assert_eq!(key("shop:{order:42}:pay"), Some("{order:42}:pay".to_owned()));
    /// assert_eq!(key("{shop:order:42}:queue"), None);
    /// assert_eq!(key("{bookshop:order:42}"), None);
    /// ```
    #[must_use]
    pub fn key_in(self, namespace: Option<&str>, stored: &str) -> Option<LockKey> {
        let name = LockName::stored(stored);
        let key = match (self, namespace) {
            (Self::Redisson, Some(namespace)) => {
                stored.strip_prefix(namespace)?.strip_prefix(':')?
            }
            _ => self.key(&name),
        };
        let key = LockKey::new(key).ok()?;
        // The name can belong to a lock of another namespace, to the queue of a lock, or to other data.
        (self.name(namespace, &key).ok()? == name).then_some(key)
    }

    /// Returns the key that a lock's name contains, in the form in which callers write it. In Redisson's layout a name
    /// does not show where its namespace ends, so the whole name is returned.
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
