//! Functions whose lints must be the same with and without the attribute.
//!
//! A comment `// shape: NAME` begins each shape. The tests compile this crate twice, once with `--cfg annotated`. A plain
//! function cannot use its arguments in a key, so it uses them in a call of `used`.

use std::fmt::{self, Display};

pub use lock_runtime::LockError;

pub mod arguments;
pub mod bodies;
pub mod boxed;
pub mod declarations;
pub mod methods;
pub mod options;
pub mod others;

pub type Locked<T> = std::result::Result<T, LockError>;

#[derive(Clone, Debug)]
pub struct Order {
    pub id: u64,
    pub name: String,
    pub size: (u64, u64),
}

pub struct Wrapper<T>(pub T);

#[derive(Debug)]
pub enum Failed {
    Lock(LockError),
    Other,
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Failed::Lock(error)
    }
}

impl Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Is what an await waits for.
pub async fn pause() {}

/// Stands in a plain function for the options of the attribute, which use these values.
pub fn used<T>(_: T) {}
