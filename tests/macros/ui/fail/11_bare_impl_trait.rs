// For a return type `impl Trait`, the macro cannot know whether the hidden type can carry a lock error.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> impl std::fmt::Display {
    "paid"
}

fn main() {}
