//! Declarations: visibility, documentation, attributes, generics and return types.

use super::{Failed, Locked, LockError, Order, pause, used};
use std::fmt::Display;

// shape: documented
/// Locks an order.
///
/// # Errors
///
/// Returns each lock error.
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn documented(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: undocumented
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn undocumented(
    id: u64,
    other: u64,
) -> Locked<u64> {
    pause().await;
    Ok(id ^ other)
}

// shape: no_errors_section
/// Has no section for its errors.
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn no_errors_section(
    id: u64,
)
-> Locked<u64>
{
    pause().await;
    Ok(id)
}

// shape: no_panics_section
/// Has no section for its panics.
///
/// # Errors
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn no_panics_section(id: u64) -> Locked<u64> {
    pause().await;
    let text = id.to_string();
    Ok(text.parse().unwrap())
}

// shape: private
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
async fn private(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

/// Calls it.
pub fn calls_private() {
    drop(private(1));
}

// shape: dead
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
async fn dead(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: expected_dead
#[expect(dead_code)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
async fn expected_dead(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: expectations
#[expect(unused_variables, clippy::used_underscore_binding)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn expectations(id: u64, other: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: lint_levels
#[allow(unused_variables, clippy::needless_return)]
#[warn(clippy::shadow_same)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn lint_levels(id: u64, other: u64) -> Locked<u64> {
    pause().await;
    return Ok(id);
}

// shape: visibility
mod inner {
    use super::{Locked, pause};

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub async fn unreachable(id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub(super) async fn of_the_parent(id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    pub(in super::super) async fn of_the_crate(id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }
}

/// Calls them.
pub fn calls_inner() {
    drop((inner::unreachable(1), inner::of_the_parent(1), inner::of_the_crate(1)));
}

// shape: unsafe_function
/// Has no section for its safety.
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async unsafe fn unsafe_function(
    id: u64,
    pointer: *const u64,
) -> Locked<u64> {
    pause().await;
    Ok(id ^ *pointer)
}

// shape: unsafe_blocks
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unsafe_blocks(id: u64, pointer: *const u64) -> Locked<u64> {
    pause().await;
    let read = unsafe { *pointer };
    let sum = unsafe { id ^ read };
    Ok(sum)
}

// shape: inline
#[inline(always)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn inline(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: must_use
#[must_use]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn must_use(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: must_use_below
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
#[must_use = "because"]
#[doc(hidden)]
pub async fn must_use_below(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: deprecated
#[deprecated(note = "use another")]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn deprecated(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

/// Calls it.
pub fn calls_deprecated() {
    drop(deprecated(1));
}

// shape: names
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<customerId>"))]
pub async fn getOrder(customerId: u64, größe: u64) -> Locked<u64> {
    pause().await;
    let Sum = customerId ^ größe;
    Ok(Sum)
}

// shape: single_chars
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<a>"))]
pub async fn single_chars(a: u64, b: u64, c: u64, d: u64, e: u64) -> Locked<u64> {
    pause().await;
    let f = a ^ b ^ c ^ d ^ e;
    Ok(f)
}

// shape: many_arguments
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<first>"))]
pub async fn many_arguments(
    first: u64,
    second: u64,
    third: u64,
    fourth: u64,
    fifth: u64,
    sixth: u64,
    seventh: u64,
    eighth: u64,
) -> Locked<u64> {
    pause().await;
    Ok(first ^ second ^ third ^ fourth ^ fifth ^ sixth ^ seventh ^ eighth)
}

// shape: bools
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<first>"))]
pub async fn bools(
    first: bool,
    second: bool,
    third: bool,
    fourth: bool,
) -> Locked<bool> {
    pause().await;
    Ok(first || second || third || fourth)
}

// shape: generic
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn generic<'a, T: Display + Clone, const N: usize>(
    id: &'a T,
    all: [u64; N],
) -> Locked<(&'a T, usize)>
where
    T: Sized,
{
    pause().await;
    Ok((id, all.len()))
}

// shape: needless_lifetime
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<name>"))]
pub async fn needless_lifetime<'name>(name: &'name str) -> Locked<&'name str> {
    pause().await;
    Ok(name)
}

// shape: unused_lifetime
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<name>"))]
pub async fn unused_lifetime<'a, 'b, T>(name: &'a str, other: T) -> Locked<T>
where
    T: 'static,
    T: Send + Send,
{
    pause().await;
    used(name);
    Ok(other)
}

// shape: static_lifetime
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<name>"))]
pub async fn static_lifetime<'a: 'static>(name: &'a str) -> Locked<usize> {
    pause().await;
    Ok(name.len())
}

// shape: impl_arguments
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn impl_arguments(id: impl Display, all: impl IntoIterator<Item = u64>) -> Locked<u64> {
    used(&id);
    pause().await;
    Ok(all.into_iter().sum())
}

// shape: impl_output
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<end>"))]
pub async fn impl_output(end: u64) -> Locked<impl Iterator<Item = u64>> {
    pause().await;
    Ok(0..end)
}

// shape: complex_output
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn complex_output(
    id: u64,
) -> Result<
    Vec<(String, Option<Box<dyn Fn(u64, &str) -> Result<Vec<u64>, String> + Send + Sync>>, Vec<Option<u64>>)>,
    LockError,
> {
    pause().await;
    Ok(vec![(id.to_string(), None, vec![])])
}

// shape: complex_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn complex_argument(
    id: u64,
    call: Vec<(String, Option<Box<dyn Fn(u64, &str) -> Result<Vec<u64>, String> + Send + Sync>>, Vec<Option<u64>>)>,
) -> Locked<u64> {
    pause().await;
    Ok(id ^ u64::from(call.is_empty()))
}

// shape: unit_output
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unit_output(id: u64) -> Locked<()> {
    pause().await;
    used(id);
    Ok(())
}

// shape: odd_outputs
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn boxed_vector(id: u64) -> Result<Box<Vec<Box<u64>>>, LockError> {
    pause().await;
    Ok(Box::new(vec![Box::new(id)]))
}

#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn nested_options(id: u64) -> std::result::Result<Option<Option<u64>>, crate::Failed> {
    pause().await;
    Ok(Some(Some(id)))
}

// shape: own_error
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn own_error(id: u64) -> Result<u64, Failed> {
    pause().await;
    if id == 1 { Err(Failed::Other) } else { Ok(id) }
}

// shape: not_send
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn not_send(id: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let text = "5".parse::<u64>()?;
    pause().await;
    Ok(id ^ text)
}

/// Is never sent.
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn not_send_inside(id: u64, other: std::rc::Rc<u64>) -> Locked<u64> {
    pause().await;
    Ok(id ^ *other)
}

// shape: never_awaited
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn never_awaited(id: u64) -> Locked<u64> {
    documented(id);
    pause();
    Ok(id)
}

// shape: no_await
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn no_await(id: u64) -> Locked<u64> {
    Ok(id)
}

// shape: conditional
#[cfg(all())]
#[cfg_attr(all(), inline)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
#[cfg_attr(any(), inline(never))]
pub async fn conditional(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: unexpected_cfg
#[cfg_attr(unheard_of, inline)]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unexpected_cfg(id: u64) -> Locked<u64> {
    pause().await;
    #[cfg(never_heard_of)]
    drop(id);
    Ok(id)
}

// shape: in_a_function
/// Has a locked function inside.
pub fn in_a_function() {
    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn inside(id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
    async fn dead_inside(id: u64) -> Locked<u64> {
        pause().await;
        Ok(id)
    }

    drop(inside(1));
}

// shape: from_a_macro
macro_rules! locked {
    ($name:ident, $id:ident, $type:ty, $body:block) => {
        #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
        pub async fn $name($id: $type) -> Locked<$type> $body
    };
}

locked!(from_a_macro, id, u64, {
    pause().await;
    let unused = 1;
    return Ok(id);
});

// shape: test_function
#[cfg(test)]
mod tests {
    use super::Locked;

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a"))]
    async fn helper() -> Locked<u64> {
        Ok(1)
    }
}

// shape: order_argument
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<order.id>"))]
pub async fn order_argument(
    order: Order,
) -> Locked<u64> {
    pause().await;
    Ok(order.id)
}

// shape: private_types
struct Hidden(u64);

trait Bound {}

#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<hidden.0>"))]
pub(crate) async fn private_types<T: Bound>(hidden: Hidden, other: T) -> Locked<T> {
    #[cfg(not(annotated))] used(&hidden);
    pause().await;
    Ok(other)
}

// shape: reachable_private_types
mod reachable {
    use super::{Locked, pause};

    struct Unnamed(u64);

    trait Bound {}

    #[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a"))]
    pub async fn reachable_private_types<T: Bound>(hidden: Unnamed) -> Locked<u64> {
        pause().await;
        Ok(hidden.0)
    }
}

// shape: dynamic
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn dynamic(id: &dyn Display, other: Box<dyn Display + Send>) -> Locked<String> {
    used(id);
    pause().await;
    Ok(other.to_string())
}

// shape: cold
#[cold]
#[doc = "Is rarely called."]
#[doc(alias = "rare")]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
#[inline(never)]
pub async fn cold(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: useless_attributes
#[inline]
#[inline]
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn useless_attributes(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: markdown
/// Locks some_thing of a HashMap
///  * with a bad list
/// - and `code

#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn markdown(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}

// shape: empty_doc
///
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn empty_doc(id: u64) -> Locked<u64> {
    pause().await;
    Ok(id)
}
