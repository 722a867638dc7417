//! The size of the future of a locked function, compared with the size of the future of the same function without the
//! attribute. The expansion of the attribute can store an argument in three places:
//!
//! ```text
//! async fn pay(large: Large) -> … {       // 1: the captured argument, whose space remains after the move
//!     call.run(async move {               // 2: the argument as captured by the block
//!         let large = large;              // 3: the binding, if it lives across an await or has something to drop
//!         BODY
//!     }).await
//! }
//! ```
//!
//! Without the attribute, only the captured argument (1) and the binding (3) exist. With the attribute, an argument
//! that lives across an await is therefore stored in three places instead of two. An argument that does not live across
//! an await has no stored binding, and is stored in two places instead of one. The attribute thus always adds one copy
//! of the arguments, and the data of the lock.

use std::mem::{size_of, size_of_val};

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

impl Large {
    const NEW: Self = Self([0; KIB]);
}

impl WithDrop {
    const NEW: Self = Self([0; KIB]);
}

/// The sizes of the futures with and without the attribute, and of the arguments.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    locked: usize,
    plain: usize,
    arguments: usize,
}

impl Sizes {
    /// Asserts that the attribute adds at most one copy of the arguments and `fixed` bytes.
    fn one_copy_more(self, shape: &str, fixed: usize) -> Self {
        let Self {
            locked,
            plain,
            arguments,
        } = self;
        println!("{shape}: {plain} B, locked {locked} B, of which {fixed} B are fixed");
        assert!(locked > plain, "{shape}: {self:?}");
        assert!(
            locked <= plain + arguments + fixed,
            "{shape}: the attribute adds more than one copy: {self:?}"
        );
        self
    }

    fn within_1_6(self, fixed: usize) -> bool {
        10 * (self.locked - fixed) <= 16 * self.plain
    }
}

/// Defines a function with and without the attribute, and measures both futures.
macro_rules! sizes {
    ([$($name:pat => $ty:ty = $given:expr)?] $body:block) => {{
        #[distributed_lock(key = "k")]
        async fn locked($($name: $ty)?) -> Locked<u8> $body
        async fn plain($($name: $ty)?) -> Locked<u8> $body
        Sizes {
            locked: size_of_val(&locked($($given)?)),
            plain: size_of_val(&plain($($given)?)),
            arguments: 0 $(+ size_of::<$ty>())?,
        }
    }};
}

async fn later() {
    tokio::task::yield_now().await;
}

async fn consume(large: Large) -> u8 {
    later().await;
    large.0[0]
}

/// Returns the number of bytes that the attribute adds to the future of a function without arguments.
fn fixed() -> usize {
    let none = sizes!([] {
        later().await;
        Ok(0)
    });
    none.locked - none.plain
}

#[test]
fn the_lock_itself_needs_little() {
    println!("{} B", fixed());
    assert!(fixed() <= 264);
}

#[test]
fn arguments_that_live_over_an_await() {
    let fixed = fixed();
    let shapes = [
        (
            "used after an await",
            sizes!([large => Large = Large::NEW] {
                later().await;
                Ok(large.0[0])
            }),
        ),
        (
            "mut",
            sizes!([mut large => Large = Large::NEW] {
                later().await;
                large.0[0] += 1;
                later().await;
                Ok(large.0[0])
            }),
        ),
        (
            "moved into a call",
            sizes!([large => Large = Large::NEW] { Ok(consume(large).await) }),
        ),
        (
            "a pattern",
            sizes!([(left, right) => (Large, WithDrop) = (Large::NEW, WithDrop::NEW)] {
                later().await;
                Ok(left.0[0] + right.0[0])
            }),
        ),
        (
            "with Drop",
            sizes!([large => WithDrop = WithDrop::NEW] {
                later().await;
                Ok(large.0[0])
            }),
        ),
        (
            "with Drop, unused",
            sizes!([_large => WithDrop = WithDrop::NEW] {
                later().await;
                Ok(0)
            }),
        ),
        (
            "with Drop, `_`",
            sizes!([_ => WithDrop = WithDrop::NEW] {
                later().await;
                Ok(0)
            }),
        ),
        (
            "by reference",
            sizes!([large => &Large = &Large::NEW] {
                later().await;
                Ok(large.0[0])
            }),
        ),
    ];
    for (shape, sizes) in shapes {
        let sizes = sizes.one_copy_more(shape, fixed);
        assert!(sizes.within_1_6(fixed), "{shape}: {sizes:?}");
    }
}

/// The plain future contains one copy of these arguments. The attribute adds a second copy and therefore doubles the
/// size, which is more than `within_1_6` (a factor of 1.6) allows. Therefore, this test does not check `within_1_6`.
#[test]
fn arguments_that_are_only_captured() {
    let fixed = fixed();
    let shapes = [
        (
            "used before an await",
            sizes!([large => Large = Large::NEW] {
                let first = large.0[0];
                later().await;
                Ok(first)
            }),
        ),
        (
            "unused",
            sizes!([_large => Large = Large::NEW] {
                later().await;
                Ok(0)
            }),
        ),
        (
            "`_`",
            sizes!([_ => Large = Large::NEW] {
                later().await;
                Ok(0)
            }),
        ),
    ];
    for (shape, sizes) in shapes {
        sizes.one_copy_more(shape, fixed);
    }
}
