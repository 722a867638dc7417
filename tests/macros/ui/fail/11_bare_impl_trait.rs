// If the return type is `impl Trait`, the macro cannot know whether the hidden type can hold a `LockError`.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> impl std::fmt::Display {
    "paid"
}

fn main() {}
