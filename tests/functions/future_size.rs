//! How large the future of a locked function is, beside that of the same function without the attribute.

use std::mem::size_of_val;

use lock_runtime::distributed_lock;

use crate::Locked;

const KIB: usize = 1024;

struct Large([u8; KIB]);

struct WithDrop([u8; KIB]);

impl Drop for WithDrop {
    fn drop(&mut self) {
        self.0[0] = 0;
    }
}

async fn later() {
    tokio::task::yield_now().await;
}

async fn consume(large: Large) -> u8 {
    later().await;
    large.0[0]
}

/// Stamps out a function twice, and measures both futures.
macro_rules! sizes {
    ([$($arguments:tt)*] $body:block, [$($given:expr),*]) => {{
        #[distributed_lock(key = "k")]
        async fn locked($($arguments)*) -> Locked<u8> $body
        async fn plain($($arguments)*) -> Locked<u8> $body
        (size_of_val(&locked($($given),*)), size_of_val(&plain($($given),*)))
    }};
}

#[test]
fn sizes() {
    let (locked, plain) = sizes!([] { later().await; Ok(0) }, []);
    let fixed = locked - plain;
    println!("fixed: {fixed}");
    let large = || Large([0; KIB]);
    let with_drop = || WithDrop([0; KIB]);
    let all = [
        ("used after an await", sizes!([a: Large] { later().await; Ok(a.0[0]) }, [large()])),
        ("used before an await", sizes!([a: Large] { let n = a.0[0]; later().await; Ok(n) }, [large()])),
        ("unused", sizes!([_a: Large] { later().await; Ok(0) }, [large()])),
        ("wild", sizes!([_: Large] { later().await; Ok(0) }, [large()])),
        ("moved into a call", sizes!([a: Large] { Ok(consume(a).await) }, [large()])),
        ("with Drop", sizes!([a: WithDrop] { later().await; Ok(a.0[0]) }, [with_drop()])),
        ("with Drop, unused", sizes!([_a: WithDrop] { later().await; Ok(0) }, [with_drop()])),
        ("mut", sizes!([mut a: Large] { later().await; a.0[0] += 1; later().await; Ok(a.0[1]) }, [large()])),
        ("pattern", sizes!([(a, _): (Large, u8)] { later().await; Ok(a.0[1]) }, [(large(), 0)])),
        ("two", sizes!([a: Large, b: WithDrop] { later().await; Ok(a.0[0]+b.0[1]) }, [large(), with_drop()])),
        ("by reference", sizes!([a: &Large] { later().await; Ok(a.0[0]) }, [&large()])),
    ];
    for (shape, (locked, plain)) in all {
        println!("{shape}: plain {plain} locked {locked}, less fixed {} ratio {:.2}", locked - fixed, (locked-fixed) as f64/plain as f64);
    }
}
