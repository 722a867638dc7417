// A value in the key has a type that does not implement `Display`.
use lock_runtime::{LockError, distributed_lock};

struct Secret;

struct Request {
    secret: Secret,
}

#[distributed_lock(key = "order:<secret>")]
async fn pay(secret: Secret) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<nothing>")]
async fn unit(nothing: ()) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<request.secret>")]
async fn field(request: Request) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
