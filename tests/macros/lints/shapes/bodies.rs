//! Bodies: their tails, exits and statements.

use super::{Failed, Locked, LockError, Order, pause, used};
use std::sync::Mutex;

// shape: returns
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn returns(id: u64) -> Locked<u64> {
    pause().await;
    return Ok(id);
}

// shape: returns_early
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn returns_early(id: u64) -> Locked<u64> {
    if id == 1 {
        return Ok(5);
    }
    pause().await;
    if id == 2 {
        return Ok(6);
    } else {
        return Ok(7);
    }
}

// shape: question_marks
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn question_marks(id: u64) -> Result<u64, Failed> {
    let first = returns(id).await?;
    Ok(returns(first).await?)
}

// shape: returns_an_error
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn returns_an_error(id: u64) -> Result<u64, Failed> {
    pause().await;
    if id == 1 {
        Err(Failed::Other)?;
    }
    returns(id).await.map_err(|error| Failed::from(error))
}

// shape: match_with_question_mark
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn match_with_question_mark(id: u64) -> Locked<u64> {
    let value = match returns(id).await {
        Ok(value) => value,
        Err(error) => return Err(error),
    };
    Ok(value)
}

// shape: let_and_return
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn let_and_return(id: u64) -> Locked<u64> {
    pause().await;
    let result = Ok(id);
    result
}

// shape: call_as_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn call_as_tail(id: u64) -> Locked<u64> {
    returns(id).await
}

// shape: block_as_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn block_as_tail(id: u64) -> Locked<u64> {
    {
        pause().await;
        { Ok(id) }
    }
}

// shape: parentheses_as_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn parentheses_as_tail(id: u64) -> Locked<u64> {
    pause().await;
    (Ok((id)))
}

// shape: match_as_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn match_as_tail(id: u64) -> Locked<u64> {
    pause().await;
    match id {
        1 => Ok(5),
        _ => return Ok(6),
    }
}

// shape: expression_only
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn expression_only(id: u64) -> Locked<u64> { Ok(id ^ 1) }

// shape: temporary_in_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn temporary_in_tail(id: u64, value: &Mutex<u64>) -> Locked<u64> {
    pause().await;
    let local = Mutex::new(id);
    used(&local);
    Ok(*value.lock().unwrap())
}

// shape: guard_over_await
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn guard_over_await(id: u64, value: &Mutex<u64>) -> Locked<u64> {
    let guard = value.lock().unwrap();
    pause().await;
    Ok(id ^ *guard)
}

// shape: if_let_temporary
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn if_let_temporary(id: u64, value: &Mutex<Option<u64>>) -> Locked<u64> {
    pause().await;
    if let Some(value) = *value.lock().unwrap() {
        Ok(value)
    } else {
        Ok(id)
    }
}

// shape: unreachable_after_return
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unreachable_after_return(id: u64) -> Locked<u64> {
    pause().await;
    return Ok(id);
    used(id);
}

// shape: unreachable_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unreachable_tail(id: u64) -> Locked<u64> {
    panic!("{}", id);
    Ok(id)
}

// shape: diverges
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn diverges(id: u64) -> Locked<u64> {
    used(id);
    loop {
        pause().await;
    }
}

// shape: empty_loop
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn empty_loop(id: u64) -> Locked<u64> {
    used(id);
    loop {}
}

// shape: unwritten
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unwritten(id: u64, other: u64) -> Locked<u64> {
    todo!()
}

// shape: unimplemented
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unimplemented(id: u64) -> Locked<u64> {
    pause().await;
    unimplemented!("{}", id)
}

// shape: panics
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn panics(id: u64) -> Locked<u64> {
    pause().await;
    assert!(id > 1);
    assert_eq!(id, 5);
    if id == 7 {
        panic!("seven");
    }
    let value: Option<u64> = None;
    Ok(value.unwrap() ^ value.expect("a value"))
}

// shape: loops
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn loops(id: u64, all: Vec<u64>) -> Locked<u64> {
    let mut sum = 0;
    for i in 0..all.len() {
        sum ^= all[i];
    }
    'outer: loop {
        while sum > 5 {
            sum -= 1;
            if sum == id {
                continue;
            }
        }
        pause().await;
        break;
    }
    for value in all.iter() {
        return Ok(*value);
    }
    Ok(sum)
}

// shape: break_with_value
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn break_with_value(id: u64) -> Locked<u64> {
    let found = 'search: {
        if id == 1 {
            break 'search 5;
        }
        pause().await;
        6
    };
    loop {
        break Ok(found);
    }
}

// shape: unused_locals
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_locals(id: u64) -> Locked<u64> {
    pause().await;
    let unused = 1;
    let mut needless = 2;
    let assigned;
    assigned = id;
    let (first, second) = (1, 2);
    let _ignored = first;
    let _ = returns(id);
    Ok(needless)
}

// shape: unused_results
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_results(id: u64, mut all: Vec<u64>) -> Locked<u64> {
    returns(id).await;
    all.pop();
    all.len();
    id + 1;
    all.iter().map(|value| value + 1);
    Ok(id)
}

// shape: unit_values
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unit_values(id: u64) -> Locked<()> {
    let nothing = pause().await;
    used(id);
    Ok(nothing)
}

// shape: clones
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<order.id>"))]
pub async fn clones(order: Order) -> Locked<Order> {
    pause().await;
    let copy = order.clone();
    let name = order.name.clone().to_string();
    let id = order.id.clone();
    Ok(Order { name: name, id: id, ..copy })
}

// shape: closures
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn closures(id: u64, all: Vec<u64>) -> Locked<u64> {
    let add = |value: u64| value + id;
    let unused = |value: u64| 1;
    let later = async move { return Locked::Ok(id) };
    let sum = all.iter().map(|value| add(*value)).fold(0, |sum, value| { return sum + value; });
    Ok(sum ^ later.await?)
}

// shape: nested_items
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn nested_items(id: u64) -> Locked<u64> {
    pause().await;
    use std::collections::HashMap;
    const LIMIT: u64 = 5;
    struct Unused;
    fn dead(id: u64) -> u64 {
        return id;
    }
    fn half(value: u64) -> u64 {
        value / 2
    }
    Ok(half(id) ^ LIMIT)
}

// shape: inner_attributes
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn inner_attributes(id: u64) -> Locked<u64> {
    #![allow(unused_variables)]
    #![expect(clippy::let_unit_value)]
    let unused = 1;
    pause().await;
    Ok(id)
}

// shape: statement_attributes
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn statement_attributes(id: u64) -> Locked<u64> {
    pause().await;
    #[allow(unused_variables)]
    let unused = 1;
    #[expect(unused_variables)]
    let expected = 1;
    #[expect(unused_variables)]
    let unfulfilled = id;
    #[rustfmt::skip]
    let skipped = unfulfilled;
    Ok(skipped)
}

// shape: macros
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn macros(id: u64) -> Locked<u64> {
    println!("{}", id);
    dbg!(id);
    let text = format!("text");
    let all = vec![id; 5];
    pause().await;
    Ok(matches!(id, 1) as u64 ^ all.len() as u64 ^ text.len() as u64)
}

// shape: arithmetic
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn arithmetic(id: u64, all: &[u64]) -> Locked<u64> {
    pause().await;
    let sum = id + 1 - 2 * 3 / 4 % 5;
    let cast = sum as u32 as u64;
    let same = cast as u64;
    let float = 1.5;
    let big = 1000000 + all[0];
    Ok(same ^ (float as u64) ^ big & 3 | 4 << 1)
}

// shape: booleans
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn booleans(id: u64, yes: bool) -> Locked<bool> {
    pause().await;
    if yes == true {
        if id == 1 {
            return Ok(false);
        }
    }
    if !yes { Ok(false) } else { Ok(true) }
}

// shape: long
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn long(id: u64) -> Locked<u64> {
    let mut sum = id;
    if sum == 1 {
        if sum == 2 {
            if sum == 3 {
                if sum == 4 {
                    sum = 5;
                }
            }
        }
    }
    pause().await;
    match sum {
        1 => sum = 2,
        2 => sum = 3,
        3 => sum = 4,
        _ => {}
    }
    while sum > 100 {
        sum -= 1;
    }
    Ok(sum)
}

// shape: large_local
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn large_local(id: u64) -> Locked<u64> {
    let large = [0_u8; 600_000];
    pause().await;
    Ok(id ^ u64::from(large[3]))
}

// shape: large_frame
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn large_frame(id: u64) -> Locked<u64> {
    let large = [id; 4_000];
    used(&large);
    pause().await;
    Ok(large[3])
}

// shape: large_output
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn large_output(id: u64) -> Locked<[u8; 20_000]> {
    pause().await;
    used(id);
    Ok([0; 20_000])
}

// shape: awaits_large_futures
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn awaits_large_futures(id: u64) -> Locked<u64> {
    large_local(id).await
}

// shape: recursive
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn recursive(id: u64, only: u64) -> Locked<u64> {
    if id == 0 { Ok(0) } else { Box::pin(recursive(id - 1, only)).await }
}

// shape: recursive_without_end
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn recursive_without_end(id: u64) -> Locked<u64> {
    Box::pin(recursive_without_end(id)).await
}

// shape: yields_async
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn yields_async(id: u64) -> Result<impl std::future::Future<Output = u64>, LockError> {
    pause().await;
    let block = async { async { 1 } };
    drop(block);
    Ok(async move { id })
}

// shape: comments
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn comments(id: u64) -> Locked<u64> {
    // TODO: something
    /// Documents nothing.
    let value = id;
    pause().await;

    //a comment
    Ok(value)
    // after the tail
}

// shape: empty_statement
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn empty_statement(id: u64) -> Locked<u64> {
    pause().await;;
    let value = { id };
    let value = (value);
    if (value == 1) {};
    Ok(value)
}

// shape: semicolon_missing
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn semicolon_missing(id: u64) -> Locked<()> {
    pause().await;
    if id == 1 {
        used(id)
    }
    Ok(used(id))
}

// shape: wildcard_match
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn wildcard_match(id: u64, error: Failed) -> Locked<u64> {
    pause().await;
    match error {
        Failed::Lock(error) => Err(error),
        _ => Ok(id),
    }
}

// shape: uses_deprecated
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn uses_deprecated(id: u64) -> Locked<u64> {
    pause().await;
    Ok(u64::max_value() ^ id)
}

// shape: unused_unsafe
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_unsafe(id: u64) -> Locked<u64> {
    pause().await;
    unsafe { Ok(id) }
}

// shape: unsafe_as_tail
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unsafe_as_tail(id: u64, pointer: *const u64) -> Locked<u64> {
    unsafe {
        Ok(id ^ *pointer)
    }
}

// shape: unused_macro
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn unused_macro(id: u64) -> Locked<u64> {
    macro_rules! unused { () => { 1 } }
    macro_rules! returned { ($value:expr) => { return Ok($value) } }
    pause().await;
    returned!(id)
}

// shape: let_else
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn let_else(id: u64, other: Option<u64>) -> Locked<u64> {
    #[cfg(not(annotated))] used(id);
    pause().await;
    let Some(value) = other else {
        return Ok(5);
    };
    let other = if let Some(other) = other { other } else { return Ok(6) };
    Ok(value ^ other)
}

// shape: edition_dependent
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn edition_dependent(id: u64, all: Box<[u64]>) -> Locked<u64> {
    pause().await;
    for value in [1_u64, 2, 3].into_iter() {
        used(value);
    }
    for value in all.into_iter() {
        used(value);
    }
    Ok(id)
}

// shape: disjoint_fields
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<order.id>"))]
pub async fn disjoint_fields(order: Order, pair: (String, Mutex<String>)) -> Locked<String> {
    let name = move || order.name;
    let part = move || pair.0;
    pause().await;
    Ok(name() + &part())
}

// shape: computed
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn computed(id: u8) -> Locked<u8> {
    pause().await;
    let all = [1, 2, id];
    let bit = 1_u8 << 9;
    if id < 0 {
        return Ok(bit);
    }
    match id {
        0..=255 => Ok(all[5]),
        _ => Ok(255 + 1),
    }
}

// shape: statements_without_effect
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn statements_without_effect(id: u64, name: &str) -> Locked<u64> {
    pause().await;
    id;
    name.clone();
    let _ = Mutex::new(1).lock();
    while true {
        break;
    }
    for value in Some(id) {
        used(value);
    }
    if let value = id {
        used(value);
    }
    'unused: loop {
        return Ok(id);
    }
}

// shape: async_closures
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn async_closures(id: u64) -> Locked<u64> {
    let block = |value: u64| async move { value };
    let closure = async |value: u64| { return value; };
    let error = async { Err::<u64, _>(Failed::Other)?; Ok::<u64, Failed>(1) };
    drop(error);
    Ok(block(id).await ^ closure(id).await)
}

// shape: spelled_names
#[cfg_attr(annotated, lock_runtime::distributed_lock(key = "a:<id>"))]
pub async fn spelled_names(id: u64) -> Locked<u64> {
    const limit: u64 = 5;
    struct lower_case;
    fn CamelCase() -> u64 { 1 }
    let Sum = 1;
    pause().await;
    used(lower_case);
    Ok(id ^ limit ^ CamelCase() ^ Sum)
}
