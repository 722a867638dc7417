//! Locked functions whose futures are not `Send`, and locked functions whose futures are `Send`.

use std::{cell::RefCell, rc::Rc};

use lock_runtime::{LockClient, distributed_lock};
use support::guarded::{Probe, guarded, stay};
use tokio::task::LocalSet;

use crate::Locked;

#[distributed_lock(key = "local:<id>")]
async fn not_send(id: u64, shared: Rc<RefCell<Vec<u64>>>) -> Locked<usize> {
    let other = Rc::clone(&shared);
    stay().await;
    other.borrow_mut().push(id);
    Ok(shared.borrow().len())
}

#[tokio::test]
async fn on_a_local_set() {
    let on_its_own = async || {
        let (client, probe) = (LockClient::current().unwrap(), Probe::current());
        let call = not_send(7, Rc::new(RefCell::new(vec![1])));
        let call = tokio::task::spawn_local(probe.scope(client.scope(call)));
        call.await.unwrap()
    };
    let calls = guarded("local:7", Ok(2), on_its_own);
    LocalSet::new().run_until(calls).await;
}

#[distributed_lock(key = "spawned:<id>")]
async fn is_send(id: u64, text: &'static str) -> Locked<String> {
    let kept = RefCell::new(text.to_owned());
    stay().await;
    Ok(format!("{id}{}", kept.into_inner()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads() {
    let on_its_own = async || {
        let (client, probe) = (LockClient::current().unwrap(), Probe::current());
        let call = tokio::spawn(probe.scope(client.scope(is_send(7, "a"))));
        call.await.unwrap()
    };
    guarded("spawned:7", Ok("7a".into()), on_its_own).await;
}
