// A variadic function uses the C ABI, and its arguments cannot be moved into a future.
use lock_runtime::distributed_lock;

unsafe extern "C" {
    #[distributed_lock(key = "job")]
    fn pay(format: *const u8, ...) -> i32;
}

fn main() {}
