//! Functions that return a boxed future.

use super::{Locked, Order, pause, used};
use std::future::Future;
use std::pin::Pin;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

// shape: boxed
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed(id: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move {
        pause().await;
        Ok(id)
    })
}

// shape: boxed_written_out
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_written_out(
    id: u64,
) -> Pin<Box<dyn Future<Output = Result<u64, super::LockError>> + Send>> {
    Box::pin(async move {
        pause().await;
        return Ok(id);
    })
}

// shape: boxed_undocumented_dead
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
fn boxed_undocumented_dead(id: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move {
        pause().await;
        Ok(id)
    })
}

// shape: boxed_unused
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_unused(id: u64, unused: u64, mut needless: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move {
        pause().await;
        let other = 1;
        Ok(id ^ needless)
    })
}

// shape: boxed_statements
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<order.id>"))]
pub fn boxed_statements(order: Order, text: String) -> BoxFuture<'static, Locked<u64>> {
    let next = order.id + 1;
    let unused = 5;
    let length = text.len();
    Box::pin(async move {
        pause().await;
        Ok(next ^ length as u64)
    })
}

// shape: boxed_by_value
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<order.id>"))]
pub fn boxed_by_value(order: Order, other: &String) -> BoxFuture<'static, Locked<u64>> {
    used(other);
    let id = order.id;
    Box::pin(async move {
        pause().await;
        Ok(id)
    })
}

// shape: boxed_methods
pub struct Account {
    pub id: u64,
}

impl Account {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<self.id>"))]
    pub fn borrowed(&self, other: u64) -> BoxFuture<'_, Locked<u64>> {
        Box::pin(async move {
            pause().await;
            Ok(self.id ^ other)
        })
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub fn hidden<'a>(&'a self, id: &'a u64) -> Pin<Box<dyn Future<Output = Locked<u64>> + 'a>> {
        Box::pin(async move {
            if *id == 1 {
                return Ok(1);
            }
            pause().await;
            Ok(self.id ^ id)
        })
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    fn dead_boxed(&self, id: u64) -> BoxFuture<'_, Locked<u64>> {
        Box::pin(async move {
            pause().await;
            Ok(self.id ^ id)
        })
    }
}

// shape: boxed_hidden_lifetime
pub struct Borrowed<'a>(pub &'a str);

#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<borrowed.0>"))]
pub fn boxed_hidden_lifetime(borrowed: Borrowed) -> BoxFuture<Locked<usize>> {
    Box::pin(async move {
        pause().await;
        Ok(borrowed.0.len())
    })
}

// shape: boxed_key_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_key_only(id: u64) -> BoxFuture<'static, Locked<u64>> {
    #[cfg(not(annotated))] used(id);
    Box::pin(async move {
        pause().await;
        Ok(1)
    })
}

// shape: boxed_no_await
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_no_await(id: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move { Ok(id) })
}

// shape: boxed_complex
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_complex(id: u64) -> Pin<Box<dyn Future<Output = Result<Vec<(String, Option<Box<dyn Fn(u64, &str) -> Vec<u64> + Send>>)>, super::LockError>> + Send>> {
    Box::pin(async move {
        pause().await;
        Ok(vec![(id.to_string(), None)])
    })
}

// shape: boxed_diverges
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub fn boxed_diverges(id: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move {
        used(id);
        loop {
            pause().await;
        }
    })
}

// shape: boxed_unsafe
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub unsafe fn boxed_unsafe(id: u64) -> BoxFuture<'static, Locked<u64>> {
    Box::pin(async move {
        pause().await;
        Ok(id)
    })
}
