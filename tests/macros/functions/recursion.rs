//! Recursive functions. If a function calls itself under the same key, directly or through another function, the inner
//! call reenters the lock that the outer call holds.

use std::pin::Pin;

use lock_runtime::{InCurrentHold, LockClient, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

#[distributed_lock(key = "tree:<id>")]
async fn recursive(id: u64, depth: u64) -> Locked<u64> {
    if depth == 0 {
        stay().await;
        return Ok(0);
    }
    Ok(1 + Box::pin(recursive(id, depth - 1)).await?)
}

/// Locks a different key at each depth of the recursion.
#[distributed_lock(key = "depth:<depth>")]
async fn over_many_keys(depth: u64) -> Locked<u64> {
    if depth == 0 {
        stay().await;
        let root = LockClient::current()?.lock("depth:3");
        assert!(root.is_held_here());
        return Ok(0);
    }
    Ok(1 + Box::pin(over_many_keys(depth - 1)).await?)
}

#[distributed_lock(key = "walk:<id>")]
async fn even(id: u64, n: u64) -> Locked<bool> {
    if n == 0 {
        stay().await;
        return Ok(true);
    }
    Box::pin(odd(id, n - 1)).await
}

#[distributed_lock(key = "walk:<id>")]
async fn odd(id: u64, n: u64) -> Locked<bool> {
    match n {
        0 => Ok(false),
        n => Box::pin(even(id, n - 1)).await,
    }
}

#[distributed_lock(key = "boxed:<id>")]
fn boxed(id: u64, depth: u64) -> Pin<Box<dyn Future<Output = Locked<u64>> + Send>> {
    let next = depth.checked_sub(1);
    Box::pin(async move {
        let Some(next) = next else {
            stay().await;
            return Ok(0);
        };
        Ok(1 + boxed(id, next).await?)
    })
}

struct Node(Vec<Node>);

impl Node {
    #[distributed_lock(key = "tree")]
    async fn size(&self) -> Locked<usize> {
        let mut size = 1;
        for child in &self.0 {
            size += Box::pin(child.size()).await?;
        }
        if self.0.len() == 2 {
            stay().await;
        }
        Ok(size)
    }
}

#[tokio::test]
async fn a_function_enters_its_own_key_again() {
    guarded("tree:7", Ok(3), async || recursive(7, 3).await).await;
    guarded("boxed:7", Ok(3), async || boxed(7, 3).await).await;
    guarded("depth:3", Ok(3), async || over_many_keys(3).await).await;
}

#[tokio::test]
async fn functions_that_call_each_other_enter_their_key_again() {
    guarded("walk:7", Ok(true), async || even(7, 4).await).await;
    guarded("walk:7", Ok(true), async || odd(7, 3).await).await;
}

#[tokio::test]
async fn a_method_over_a_tree() {
    let leaf = || Node(Vec::new());
    let tree = Node(vec![Node(vec![leaf()]), leaf()]);
    guarded("tree", Ok(4), async || tree.size().await).await;
}

/// Returns the address of the current end of the stack. This function is not async, because a future can contain the
/// local variables of an `async fn`. The address of such a variable is not an address on the stack.
#[inline(never)]
fn end_of_stack() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(&here).addr()
}

#[distributed_lock(key = "deep:<id>")]
async fn deep(id: u64, depth: usize, stack: &mut Vec<usize>) -> Locked<()> {
    stack.push(end_of_stack());
    match depth.checked_sub(1) {
        Some(depth) => Box::pin(deep(id, depth, stack)).await,
        None => Ok(()),
    }
}

/// The stack of a worker thread has 2 MiB. With optimization, a thousand levels of recursion fit on this stack. Without
/// optimization, only 600 levels fit, because each temporary then has its own bytes in the stack frame.
#[tokio::test]
async fn a_level_takes_little_of_the_stack() {
    const LEVELS: usize = 50;
    const STACK: usize = 2 << 20;
    let most = STACK / if cfg!(debug_assertions) { 600 } else { 1000 };
    let client = LockClient::connect("memory:").await.unwrap();
    let mut levels = Vec::new();
    client.scope(deep(7, LEVELS, &mut levels)).await.unwrap();
    let each = levels[0].abs_diff(levels[LEVELS]) / LEVELS;
    println!("{each} B");
    assert!(each <= most, "{each} B");
}

#[distributed_lock(key = "deep:<id>")]
fn in_tasks(id: u64, depth: usize) -> Pin<Box<dyn Future<Output = Locked<usize>> + Send>> {
    Box::pin(async move {
        match depth.checked_sub(1) {
            Some(depth) => {
                let next = tokio::spawn(in_tasks(id, depth).in_current_hold());
                Ok(1 + next.await.expect("the task does not panic")?)
            }
            None => Ok(0),
        }
    })
}

/// A task begins with an empty stack, so a recursion with a task for each level can be as deep as memory allows.
#[tokio::test]
async fn a_task_for_each_level_needs_no_deeper_stack() {
    let client = LockClient::connect("memory:").await.unwrap();
    let levels = client.scope(in_tasks(7, 5_000)).await;
    assert_eq!(levels, Ok(5_000));
    assert_eq!(client.stats().acquired, 1);
}
