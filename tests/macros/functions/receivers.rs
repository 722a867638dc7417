//! The types that `self` can have.

use std::{pin::Pin, rc::Rc, sync::Arc};

use lock_runtime::{LockClient, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

#[derive(Debug, Clone, PartialEq)]
struct Account {
    id: u64,
    owner: String,
}

fn account() -> Account {
    Account {
        id: 7,
        owner: "a".into(),
    }
}

// A receiver with an explicit type, such as `self: &Self`, means the same as the short form. The tests cover both,
// because the macro has separate code for receivers with an explicit type.
#[allow(clippy::needless_arbitrary_self_type)]
impl Account {
    #[distributed_lock(key = "account:<self.id>")]
    async fn by_reference(&self) -> Locked<&str> {
        stay().await;
        Ok(&self.owner)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_exclusive_reference(&mut self, to: u64) -> Locked<&mut u64> {
        self.id = to;
        stay().await;
        Ok(&mut self.id)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_value(self) -> Locked<Self> {
        stay().await;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_mutable_value(mut self) -> Locked<Self> {
        self.owner.push('b');
        stay().await;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn of_which_a_field_is_moved(self) -> Locked<String> {
        stay().await;
        Ok(self.owner)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn unused(self) -> Locked<u64> {
        stay().await;
        Ok(1)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_typed_value(self: Self) -> Locked<u64> {
        stay().await;
        Ok(self.id)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_typed_reference(self: &mut Self) -> Locked<u64> {
        stay().await;
        self.id += 1;
        Ok(self.id)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_arc(self: Arc<Self>) -> Locked<Arc<Self>> {
        stay().await;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_arc_reference(self: &Arc<Self>) -> Locked<Arc<Self>> {
        stay().await;
        Ok(self.clone())
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_box(self: Box<Self>) -> Locked<Account> {
        stay().await;
        Ok(*self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_mutable_box(mut self: Box<Self>) -> Locked<Box<Self>> {
        stay().await;
        self.id += 1;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_rc(self: Rc<Self>) -> Locked<u64> {
        stay().await;
        Ok(self.id)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_pin(mut self: Pin<&mut Self>) -> Locked<u64> {
        stay().await;
        self.id += 1;
        Ok(self.id)
    }

    #[distributed_lock(key = "account:<id>")]
    async fn without_self(id: u64) -> Locked<Self> {
        stay().await;
        Ok(Self { id, ..account() })
    }
}

#[tokio::test]
async fn references_to_self() {
    guarded("account:7", Ok("a".to_owned()), async || {
        account().by_reference().await.map(str::to_owned)
    })
    .await;
    guarded("account:7", Ok(9), async || {
        account().by_exclusive_reference(8).await.map(|id| {
            *id += 1;
            *id
        })
    })
    .await;
    guarded("account:7", Ok(8), async || {
        account().by_typed_reference().await
    })
    .await;
}

#[tokio::test]
async fn self_by_value() {
    guarded("account:7", Ok(account()), async || {
        account().by_value().await
    })
    .await;
    let pushed = Account {
        owner: "ab".into(),
        ..account()
    };
    guarded("account:7", Ok(pushed), async || {
        account().by_mutable_value().await
    })
    .await;
    guarded("account:7", Ok("a".to_owned()), async || {
        account().of_which_a_field_is_moved().await
    })
    .await;
    guarded("account:7", Ok(1), async || account().unused().await).await;
    guarded("account:7", Ok(7), async || {
        account().by_typed_value().await
    })
    .await;
}

#[tokio::test]
async fn self_behind_a_pointer() {
    let shared = Arc::new(account());
    guarded("account:7", Ok(shared.clone()), async || {
        shared.clone().by_arc().await
    })
    .await;
    guarded("account:7", Ok(shared.clone()), async || {
        shared.by_arc_reference().await
    })
    .await;
    guarded("account:7", Ok(account()), async || {
        Box::new(account()).by_box().await
    })
    .await;
    let next = Box::new(Account { id: 8, ..account() });
    guarded("account:7", Ok(next), async || {
        Box::new(account()).by_mutable_box().await
    })
    .await;
    guarded("account:7", Ok(7), async || {
        Rc::new(account()).by_rc().await
    })
    .await;
    guarded("account:7", Ok(8), async || {
        Pin::new(&mut account()).by_pin().await
    })
    .await;
}

#[tokio::test]
async fn an_associated_function() {
    guarded("account:7", Ok(account()), async || {
        Account::without_self(7).await
    })
    .await;
}

struct Ledger {
    name: String,
    locks: LockClient,
}

impl Ledger {
    #[distributed_lock(key = "ledger:<self.name>", client = self.locks, guard = hold)]
    async fn post(&mut self, entry: u64) -> Locked<u64> {
        stay().await;
        assert!(hold.token().get() > 0);
        Ok(entry)
    }

    #[distributed_lock(key = "ledger:<self.name>", client = self.locks)]
    async fn close(self) -> Locked<String> {
        stay().await;
        Ok(self.name)
    }
}

#[tokio::test]
async fn a_client_that_self_has() {
    let ledger = || Ledger {
        name: "a".into(),
        locks: LockClient::current().unwrap(),
    };
    guarded("ledger:a", Ok(3), async || ledger().post(3).await).await;
    guarded("ledger:a", Ok("a".into()), async || ledger().close().await).await;
}
