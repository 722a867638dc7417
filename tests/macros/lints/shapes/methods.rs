//! Receivers, traits and their implementations.

use super::{Locked, pause, used};
use crate::options::seconds;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Account {
    pub id: u64,
    pub name: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Small(pub u8);

// shape: by_reference
impl Account {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_reference(&self) -> Locked<&str> {
        pause().await;
        Ok(&self.name)
    }

    // shape: by_exclusive_reference
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_exclusive_reference(&mut self, to: u64) -> Locked<&mut u64> {
        pause().await;
        self.id = to;
        Ok(&mut self.id)
    }

    // shape: by_needless_exclusive_reference
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_needless_exclusive_reference(&mut self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    // shape: by_value
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_value(self) -> Locked<Self> {
        pause().await;
        Ok(self)
    }

    // shape: by_mutable_value
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_mutable_value(mut self) -> Locked<Self> {
        pause().await;
        self.id ^= 1;
        Ok(self)
    }

    // shape: by_needlessly_mutable_value
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_needlessly_mutable_value(mut self) -> Locked<Self> {
        pause().await;
        Ok(self)
    }

    // shape: part_of_self
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn part_of_self(self) -> Locked<String> {
        pause().await;
        Ok(self.name)
    }

    // shape: self_of_the_key_only
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn self_of_the_key_only(self) -> Locked<u64> {
        #[cfg(not(annotated))] used(&self);
        pause().await;
        Ok(1)
    }

    // shape: unused_self
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a"))]
    pub async fn unused_self(&self) -> Locked<u64> {
        pause().await;
        Ok(1)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a"))]
    pub async fn unused_self_by_value(self) -> Locked<u64> {
        pause().await;
        Ok(1)
    }

    // shape: typed_receivers
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn typed_value(self: Self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn typed_reference(self: &Self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    // shape: smart_receivers
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_arc(self: Arc<Self>) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_rc(self: Rc<Self>) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_box(self: Box<Self>) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn by_pin(self: Pin<&mut Self>) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    // shape: named_like_conventions
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn into_id(&self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn to_id(self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a"))]
    pub async fn from_str(name: &str) -> Locked<Self> {
        pause().await;
        Ok(Account { id: 1, name: name.to_string() })
    }

    // shape: constructor
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub async fn new(id: u64) -> Locked<Account> {
        pause().await;
        Ok(Account { id, name: String::new() })
    }

    // shape: dead_method
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    async fn dead_method(&self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    // shape: private_method
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    async fn private_method(&self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    /// Calls it.
    pub fn calls_private_method(&self) {
        drop(self.private_method());
    }
}

// shape: small_receiver
impl Small {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.0>"))]
    pub async fn small_receiver(&self, other: &Small) -> Locked<u8> {
        pause().await;
        Ok(self.0 ^ other.0)
    }
}

// shape: default_methods
pub trait Job {
    const ID: u64;

    fn id(&self) -> u64;

    #[allow(async_fn_in_trait)]
    async fn required(&self, id: u64, name: &str) -> Locked<u64>;

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn default_method(
        &self,
        id: u64,
    ) -> Locked<u64> {
        pause().await;
        Ok(id ^ self.id())
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn default_without_self(id: u64, other: u64) -> Locked<u64> {
        pause().await;
        Ok(id ^ Self::ID)
    }
}

// shape: trait_implementation
impl Job for Account {
    const ID: u64 = 1;

    fn id(&self) -> u64 {
        self.id
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<other>"))]
    async fn required(&self, other: u64, _: &str) -> Locked<u64> {
        pause().await;
        Ok(self.id ^ other)
    }
}

// shape: refined_implementation
impl Job for Small {
    const ID: u64 = 2;

    fn id(&self) -> u64 {
        u64::from(self.0)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn required(&self, id: u64, name: &str) -> Locked<u64> {
        return Ok(id ^ self.id());
    }
}

// shape: generic_implementation
pub struct Store<T, const N: usize>(pub [T; N]);

impl<T: Clone, const N: usize> Store<T, N> {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub async fn generic_method<U>(&self, id: u64, other: U) -> Locked<(T, U)>
    where
        U: Send,
    {
        pause().await;
        used(id);
        Ok((self.0[0].clone(), other))
    }
}

// shape: async_trait_declaration
#[async_trait::async_trait]
pub trait Service: Send + Sync {
    async fn run(&self, tenant: u64, limit: u64) -> Locked<u64>;

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<tenant>"))]
    async fn provided(&self, tenant: u64, limit: u64) -> Locked<u64> {
        #[cfg(not(annotated))] used(tenant);
        pause().await;
        Ok(limit)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<tenant>"))]
    async fn provided_unused(&self, tenant: u64, unused: u64) -> Locked<u64> {
        pause().await;
        Ok(tenant)
    }
}

// shape: async_trait_implementation
#[async_trait::async_trait]
impl Service for Account {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<tenant>:<self.id>"))]
    async fn run(&self, tenant: u64, limit: u64) -> Locked<u64> {
        #[cfg(not(annotated))] used(tenant);
        pause().await;
        return Ok(limit);
    }
}

// shape: async_trait_patterns
#[async_trait::async_trait]
pub trait Patterns {
    async fn patterns(&mut self, pair: (u64, u64), mutable: u64, name: &str) -> Locked<u64>;
}

#[async_trait::async_trait]
impl Patterns for Account {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<mutable>"))]
    async fn patterns(&mut self, (first, second): (u64, u64), mut mutable: u64, _: &str) -> Locked<u64> {
        pause().await;
        mutable ^= 1;
        self.id = mutable;
        Ok(first)
    }
}

// shape: async_trait_options
#[async_trait::async_trait]
impl Service for Small {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<tenant>", wait = seconds(limit), guard = hold))]
    async fn run(&self, tenant: u64, limit: u64) -> Locked<u64> {
        #[cfg(not(annotated))] used((tenant, seconds(limit)));
        #[cfg(not(annotated))] let hold = self.0;
        pause().await;
        used(&hold);
        Ok(1)
    }
}

// shape: async_trait_not_send
#[async_trait::async_trait(?Send)]
pub trait Local {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn local(self: Rc<Self>, id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }
}

// shape: generic_trait
pub trait Storage<T>: Sized {
    type Item;

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn fetch(&mut self, id: u64) -> Locked<Option<T>>
    where
        T: Clone,
        Self::Item: Default,
    {
        pause().await;
        used(id);
        Ok(None)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn replace(self, id: u64, item: T) -> Locked<(Self, T)> {
        pause().await;
        used(id);
        Ok((self, item))
    }
}

// shape: async_trait_boxed_away
#[async_trait::async_trait]
impl Patterns for Small {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<name>"))]
    async fn patterns(&mut self, pair: (u64, u64), mutable: u64, name: &str) -> Locked<u64> {
        let unused = 1;
        if pair.0 == 1 {
            return Ok(mutable);
        }
        #[cfg(not(annotated))] used(name);
        Ok(pair.1)
    }
}

// shape: self_in_the_body
impl Account {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<other.id>"))]
    pub async fn self_in_the_body(other: Account) -> Locked<Account> {
        pause().await;
        Ok(Account { id: other.id, name: Account::default_name() })
    }

    fn default_name() -> String {
        String::from("")
    }

    // shape: same_name
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn run(&self) -> Locked<u64> {
        pause().await;
        Ok(self.id)
    }

    // shape: named_like_a_trait
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn next(&mut self) -> Locked<Option<u64>> {
        pause().await;
        Ok(Some(self.id))
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub async fn is_new(&mut self) -> Locked<bool> {
        pause().await;
        Ok(self.id == 1)
    }
}
