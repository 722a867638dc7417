// rustc reports an unknown field at the key, without a suggestion that would replace the key by code.
use lock_runtime::{LockError, distributed_lock};

struct Request {
    user: User,
    guest: Option<User>,
}

struct User {
    name: String,
}

#[distributed_lock(key = "order:<req.usre>")]
async fn similar(req: Request) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<req.name>")]
async fn deeper(req: Request) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<req.guest.name>")]
async fn optional(req: Request) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id.0>")]
async fn primitive(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
