//! Patterns, unused arguments and the types of arguments.

use super::{Locked, Order, Wrapper, pause, used};
use std::collections::HashMap;
use std::sync::Arc;

// shape: unused_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_argument(id: u64, other: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: key_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn key_only(id: u64, other: u64) -> Locked<u64> {
    #[cfg(not(annotated))] used(id);
    pause().await;
    Ok(other)
}

// shape: underscore_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn underscore_argument(id: u64, _other: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: underscore_in_key
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<_id>"))]
pub async fn underscore_in_key(_id: u64, other: u64) -> Locked<u64> {
    pause().await;
    Ok(other)
}

// shape: underscore_used
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<_id>"))]
pub async fn underscore_used(_id: u64) -> Locked<u64> {
    pause().await;
    Ok(_id)
}

// shape: wild
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn wild(id: u64, _: u64, _: Order) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: mutable
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn mutable(mut id: u64) -> Locked<u64> {
    pause().await;
    id ^= 1;
    Ok(id)
}

// shape: needlessly_mutable
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn needlessly_mutable(
    mut id: u64,
    mut other: Order,
) -> Locked<u64> {
    pause().await;
    Ok(id ^ other.id)
}

// shape: unused_mutable
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_mutable(id: u64, mut other: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: assigned_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn assigned_only(id: u64, mut other: u64) -> Locked<u64> {
    pause().await;
    other = 5;
    Ok(id)
}

// shape: overwritten
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn overwritten(id: u64, mut other: u64) -> Locked<u64> {
    other = 5;
    pause().await;
    Ok(id ^ other)
}

// shape: tuple
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<first>"))]
pub async fn tuple((first, second): (u64, u64)) -> Locked<u64> {
    pause().await;
    Ok(first ^ second)
}

// shape: tuple_of_the_key_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<first>"))]
pub async fn tuple_of_the_key_only((first, second): (u64, u64)) -> Locked<u64> {
    #[cfg(not(annotated))] used(first);
    pause().await;
    Ok(second)
}

// shape: tuple_unused
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn tuple_unused(id: u64, (first, second): (u64, u64), (_, _): (u64, u64)) -> Locked<u64> {
    pause().await;
    Ok(id ^ first)
}

// shape: tuple_mutable
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<first>"))]
pub async fn tuple_mutable((mut first, mut second): (u64, u64)) -> Locked<u64> {
    pause().await;
    first ^= 1;
    Ok(first ^ second)
}

// shape: structure
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>:<first>"))]
pub async fn structure(Order { id, name, size: (first, _) }: Order) -> Locked<u64> {
    pause().await;
    drop(name);
    Ok(id ^ first)
}

// shape: structure_rest
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn structure_rest(Order { id: id, name, .. }: Order) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: wrapper
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn wrapper(Wrapper(id): Wrapper<u64>, Wrapper((user, name)): Wrapper<(u64, String)>) -> Locked<u64> {
    pause().await;
    drop(name);
    Ok(id ^ user)
}

// shape: reference_pattern
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn reference_pattern(&id: &u64, &(first, second): &(u64, u64)) -> Locked<u64> {
    pause().await;
    Ok(id ^ first ^ second)
}

// shape: by_reference
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn by_reference(ref id: u64, ref mut name: String) -> Locked<u64> {
    pause().await;
    name.push('a');
    Ok(*id)
}

// shape: part_by_reference
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn part_by_reference((ref id, ref mut name): (u64, String)) -> Locked<u64> {
    pause().await;
    name.push('a');
    Ok(*id)
}

// shape: at_pattern
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn at_pattern(whole @ (id, other): (u64, u64)) -> Locked<u64> {
    pause().await;
    Ok(id ^ other ^ whole.0)
}

// shape: array_pattern
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn array_pattern([id, ..]: [u64; 3], [.., last]: [u64; 2]) -> Locked<u64> {
    pause().await;
    Ok(id ^ last)
}

// shape: argument_attributes
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn argument_attributes(
    id: u64,
    #[cfg(all())] yes: u64,
    #[cfg(any())] no: Missing,
    #[allow(unused_variables)] unused: u64,
    #[expect(unused_variables)] expected: u64,
    #[expect(unused_variables)] unfulfilled: u64,
) -> Locked<u64> {
    pause().await;
    Ok(id ^ yes ^ unfulfilled)
}

// shape: reference_types
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn reference_types(
    id: &String,
    all: &Vec<u64>,
    small: &u8,
    maybe: &Option<String>,
    boxed: &Box<u64>,
) -> Locked<usize> {
    pause().await;
    Ok(id.len() ^ all.len() ^ usize::from(*small) ^ usize::from(maybe.is_some()) ^ usize::from(**boxed == 1))
}

// shape: exclusive_references
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn exclusive_references(id: u64, count: &mut u64, name: &mut String) -> Locked<u64> {
    pause().await;
    drop(name.len());
    Ok(id ^ *count)
}

// shape: owned_types
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn owned_types(id: String, all: Vec<u64>, boxed: Box<u64>, shared: Arc<Vec<u64>>, map: HashMap<u64, u64>) -> Locked<usize> {
    pause().await;
    Ok(id.len() ^ all.len() ^ shared.len() ^ map.len() ^ usize::from(*boxed == 1))
}

// shape: large_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn large_argument(id: u64, large: [u8; 20_000]) -> Locked<u64> {
    pause().await;
    Ok(id ^ u64::from(large[3]))
}

/// Awaits it.
pub async fn awaits_large() {
    drop(large_argument(1, [0; 20_000]).await);
}

// shape: borrowed_output
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn borrowed_output(id: u64, order: &Order) -> Locked<&str> {
    pause().await;
    used(id);
    Ok(&order.name)
}

// shape: hidden_lifetime
pub struct Borrowed<'a>(pub &'a str);

#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn hidden_lifetime(id: u64, borrowed: Borrowed<'_>) -> Locked<usize> {
    pause().await;
    used(id);
    Ok(borrowed.0.len())
}

// shape: shadowing
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn shadowing(id: u64, other: String) -> Locked<u64> {
    let id = id;
    let other = other.len();
    pause().await;
    let id = id ^ 1;
    let other = u64::from(other == 1);
    Ok(id ^ other)
}

// shape: generated_names
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<__key>:<key>"))]
pub async fn generated_names(key: u64, call: u64, __key: u64, __call: u64, __arg0: u64) -> Locked<u64> {
    pause().await;
    Ok(key ^ call ^ __key ^ __call ^ __arg0)
}

// shape: raw_names
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<type>"))]
pub async fn raw_names(r#type: u64, r#id: u64) -> Locked<u64> {
    pause().await;
    Ok(r#type ^ r#id)
}

// shape: function_pointers
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn function_pointers<F: Fn(u64) -> u64>(id: u64, call: F, other: fn(u64) -> u64, object: &dyn Fn(u64) -> u64) -> Locked<u64> {
    pause().await;
    Ok(call(id) ^ other(id) ^ object(id))
}
