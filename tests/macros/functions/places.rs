//! The places where a function can be written: in functions, in blocks, in `macro_rules` macros.

use lock_runtime::{LockClient, LockError, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

async fn outer(id: u64) -> Locked<u64> {
    #[distributed_lock(key = "inner:<id>")]
    async fn inner(id: u64) -> Locked<u64> {
        stay().await;
        Ok(id)
    }
    inner(id).await
}

#[distributed_lock(key = "outer:<id>")]
async fn locked_outer(id: u64) -> Locked<u64> {
    struct Inner(u64);
    impl Inner {
        #[distributed_lock(key = "inner:<self.0>")]
        async fn call(&self) -> Locked<u64> {
            stay().await;
            Ok(self.0)
        }
    }
    const MORE: u64 = 1;
    Ok(Inner(id).call().await? + MORE)
}

#[tokio::test]
async fn functions_in_functions() {
    guarded("inner:7", Ok(7), async || outer(7).await).await;
    guarded("outer:7", Ok(8), async || locked_outer(7).await).await;
    guarded("block", Ok(7), async || {
        #[distributed_lock(key = "block")]
        async fn in_a_closure(id: u64) -> Locked<u64> {
            stay().await;
            Ok(id)
        }
        in_a_closure(7).await
    })
    .await;
}

macro_rules! locked_functions {
    ($($(#[$attr:meta])* $visibility:vis fn $name:ident [$key:literal] ($argument:ident: $ty:ty) -> $returned:ty $body:block)*) => {
        $(
            $(#[$attr])*
            #[distributed_lock(key = $key, wait = "5s")]
            $visibility async fn $name($argument: $ty) -> $returned $body
        )*
    };
    ($($visibility:vis fn $name:ident [$a:literal, $b:literal] ($argument:ident: $ty:ty) -> $returned:ty $body:block)*) => {
        $(
            #[distributed_lock(keys = [$a, $b], wait = "5s")]
            $visibility async fn $name($argument: $ty) -> $returned $body
        )*
    };
}

mod made {
    use super::*;

    locked_functions! {
        /// A function with a doc comment.
        pub(super) fn number ["macro:<id>"] (id: u64) -> Locked<u64> {
            stay().await;
            Ok(id)
        }

        #[allow(clippy::needless_return)]
        pub(super) fn borrowed ["macro:<text>"] (text: &str) -> Result<&str, LockError> {
            stay().await;
            let text = text.strip_prefix('a').ok_or(LockError::ShutDown)?;
            return Ok(text);
        }
    }

    locked_functions! {
        pub(super) fn under_two_keys ["macro:<id>", "second:<id>"] (id: u64) -> Locked<u64> {
            let second = LockClient::current()?.lock("second:7");
            assert!(second.is_held_here());
            stay().await;
            Ok(id)
        }
    }
}

/// Defines a function with a local variable `id`, whose name comes from the macro. The name of the argument that the
/// key contains comes from the caller of the macro.
macro_rules! with_names_of_its_own {
    ($name:ident, $key:literal, $id:ident) => {
        #[distributed_lock(key = $key)]
        async fn $name($id: u64, mut other: u64) -> Locked<u64> {
            let id = 100;
            other += $id;
            stay().await;
            Ok(id + other)
        }
    };
}

with_names_of_its_own!(hygienic, "hygiene:<id>", id);

/// Defines a struct with one method for each field. The argument of the methods and their key come from the macro.
macro_rules! all_its_own {
    ($name:ident { $($field:ident: $ty:ty),* }) => {
        struct $name { $($field: $ty),* }

        impl $name {
            $(
                #[distributed_lock(key = "own:<day>:<self.id>")]
                async fn $field(&self, day: u64) -> Locked<$ty> {
                    stay().await;
                    Ok(self.$field.clone())
                }
            )*
        }
    };
}

all_its_own!(Record {
    id: u64,
    title: String
});

/// Defines a method. The receiver, the arguments and the body come from the caller of the macro.
macro_rules! passed_on {
    ($(#[$attr:meta])* ($($arguments:tt)*) -> $returned:ty { $($body:tt)* }) => {
        impl Record {
            $(#[$attr])*
            async fn passed_on($($arguments)*) -> $returned { $($body)* }
        }
    };
}

passed_on! {
    #[distributed_lock(key = "passed:<self.id>:<more>")]
    (&mut self, more: u64) -> Locked<u64> {
        self.id += more;
        stay().await;
        Ok(self.id)
    }
}

#[tokio::test]
async fn functions_made_by_macro_rules() {
    guarded("macro:7", Ok(7), async || made::number(7).await).await;
    guarded("macro:ab", Ok("b"), async || made::borrowed("ab").await).await;
    guarded("macro:7", Ok(7), async || made::under_two_keys(7).await).await;
    guarded("hygiene:1", Ok(103), async || hygienic(1, 2).await).await;
    let record = || Record {
        id: 7,
        title: "a".into(),
    };
    guarded("own:1:7", Ok(7), async || record().id(1).await).await;
    guarded("own:1:7", Ok("a".into()), async || record().title(1).await).await;
    guarded("passed:7:2", Ok(9), async || record().passed_on(2).await).await;
}
