//! User-defined items and arguments with names of the standard library or of this crate. The expansion of the attribute
//! must not refer to these items and arguments by mistake.

use support::guarded::{guarded, stay};

/// Modules that shadow crates.
mod modules {
    use super::stay;

    mod core {}
    mod std {}
    mod alloc {}
    mod lock_runtime {}
    mod __private {}
    mod v1 {}

    #[::lock_runtime::distributed_lock(key = "<id>", wait = "5s", lease = "30s", renew = true, max_hold = "1h", on_lost = continue, namespace = "lock", guard = hold)]
    pub(super) async fn hidden(mut id: u64) -> Result<u64, ::lock_runtime::LockError> {
        stay().await;
        id += u64::from(hold.token().get() > 0);
        Ok(id)
    }
}

/// Types, variants and functions that shadow names of the prelude.
#[allow(dead_code, non_camel_case_types, non_snake_case)]
mod prelude {
    use ::std::result::Result::{Err as Refused, Ok as Granted};

    use super::stay;

    pub(super) struct Duration;
    pub(super) struct Option;
    pub(super) struct Some;
    pub(super) struct None;
    pub(super) struct Err;
    pub(super) struct Box;
    pub(super) struct Vec;
    pub(super) struct String;
    pub(super) struct Pin;
    pub(super) struct LockError;
    pub(super) struct LockClient;
    pub(super) struct Call;
    pub(super) trait Future {}
    pub(super) trait Send {}
    pub(super) trait From {}
    pub(super) trait Into {}
    pub(super) trait Display {}
    pub(super) trait Drop {}
    pub(super) fn Ok(id: u64) -> u64 {
        id
    }
    pub(super) fn drop() {}
    pub(super) fn key() {}
    pub(super) fn call() {}

    pub(super) type Result<T> = ::std::result::Result<T, ::lock_runtime::LockError>;
    type u64 = ::core::primitive::u64;
    type bool = ::core::primitive::u8;

    #[::lock_runtime::distributed_lock(key = "<id>", wait = "5s", lease = "30s", renew = true)]
    pub(super) async fn hidden(id: u64, yes: bool) -> Result<u64> {
        stay().await;
        if id == 0 {
            return Refused(::lock_runtime::LockError::ShutDown);
        }
        Granted(Ok(id + yes as u64))
    }
}

/// Macros that shadow macros of the prelude.
mod macros {
    use super::stay;

    macro_rules! hide {
        ($($name:ident)*) => {$(
            #[allow(unused_macros)]
            macro_rules! $name { () => { compile_error!("the user's own macro") }; }
        )*};
    }

    hide!(panic assert unreachable format concat matches vec write todo);

    #[::lock_runtime::distributed_lock(key = "<id>", guard = hold)]
    pub(super) async fn hidden(id: u64) -> Result<u64, ::lock_runtime::LockError> {
        stay().await;
        Ok(id + u64::from(hold.lost_is_ready()))
    }

    trait Ready {
        fn lost_is_ready(&self) -> bool;
    }

    impl Ready for ::lock_runtime::Hold {
        fn lost_is_ready(&self) -> bool {
            self.remaining().is_zero()
        }
    }
}

/// User-defined methods that are in scope for every type.
mod methods {
    use lock_runtime::{LockError, distributed_lock};

    use super::stay;

    #[allow(dead_code)]
    trait Everything: Sized {
        fn run(self) -> u64 {
            1
        }
        fn wait(self, _: u64) -> u64 {
            1
        }
        fn build(&self) -> u64 {
            1
        }
        fn text(self) -> u64 {
            1
        }
        fn part(&mut self) -> u64 {
            1
        }
        fn client(&self) -> u64 {
            1
        }
        fn into_future(self) -> u64 {
            1
        }
    }

    impl<T> Everything for T {}

    #[distributed_lock(key = "order:<id>", wait = "5s")]
    pub(super) async fn hidden(id: u64) -> Result<u64, LockError> {
        stay().await;
        Ok(id.run() + id.build() + id.wait(1))
    }
}

/// A function with the name of the attribute, and arguments with the names of crates.
mod names {
    use support::guarded::stay;

    #[lock_runtime::distributed_lock(key = "<stay_>:<lock_runtime>:<core>")]
    pub(super) async fn distributed_lock(
        stay_: u64,
        lock_runtime: u64,
        core: &str,
    ) -> Result<u64, lock_runtime::LockError> {
        stay().await;
        Ok(stay_ + lock_runtime + core.len() as u64)
    }
}

#[tokio::test]
async fn modules_called_core_and_std() {
    guarded("7", Ok(8), async || modules::hidden(7).await).await;
}

#[tokio::test]
async fn types_and_functions_called_as_in_the_prelude() {
    guarded("7", Ok(8), async || prelude::hidden(7, 1).await).await;
}

#[tokio::test]
async fn macros_called_as_in_the_prelude() {
    guarded("7", Ok(7), async || macros::hidden(7).await).await;
}

#[tokio::test]
async fn methods_that_every_type_has() {
    guarded("order:7", Ok(3), async || methods::hidden(7).await).await;
}

#[tokio::test]
async fn a_function_called_as_the_attribute() {
    guarded("1:2:a", Ok(4), async || {
        names::distributed_lock(1, 2, "a").await
    })
    .await;
}
