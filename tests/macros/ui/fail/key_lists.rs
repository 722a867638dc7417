// `<ids..>` makes one key for each item of a list. `<ids..>` is allowed only in `keys`, and only once in each key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "item:<ids..>")]
async fn one_key(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<ids>")]
async fn no_list(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "stock:<shops..>:<ids..>")]
async fn pairs(shops: &[u64], ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["cart:<cart>", "item:<..>"])]
async fn empty(cart: u64, ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<ids..:raw>")]
async fn raw(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<idz..>")]
async fn unknown(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<..ids>")]
async fn first(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "item:<items..id>")]
async fn field_of_each(items: &[u64]) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["item:<ids..>", "item:<ids..>"])]
async fn twice(ids: &[u64]) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
