// Nobody can tell whether the hidden type carries an error.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64) -> impl std::fmt::Display {
    "paid"
}

fn main() {}
