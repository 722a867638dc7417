// Only a function has a body to lock.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "job")]
struct S;

#[distributed_lock(key = "job")]
enum E {}

#[distributed_lock(key = "job")]
mod inner {}

#[distributed_lock(key = "job")]
trait T {}

#[distributed_lock(key = "job")]
const C: u8 = 0;

fn main() {}
