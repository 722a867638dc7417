//! Tests of a layer of `tracing` that panics on the engine's thread.

use std::{fmt::Debug, time::Duration};

use futures_util::FutureExt;
use lock_runtime::LockClient;
use support::{proxy::FaultProxy, server::RedisServer};
use tokio::time::sleep;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::spans::record;

const SECOND: Duration = Duration::from_secs(1);

/// The lock whose background release makes the layer panic.
const KEY: &str = "panic:release";

/// A layer that panics when the release of the lock [`KEY`] moves to the background.
pub(crate) struct PanickingLayer;

impl<S: Subscriber> Layer<S> for PanickingLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        assert!(
            !(text.0.contains(KEY) && text.0.contains("releasing in the background")),
            "the layer panics"
        );
    }
}

/// The values of all fields of an event, one after another.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0 += &format!("{value:?} ");
    }
}

/// A release is not confirmed within a second, and a layer panics when the engine moves this release to the background.
/// The engine still renews the other leases of the client.
#[tokio::test]
async fn a_panic_at_a_late_release_ends_no_renewal() {
    record();
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let client = LockClient::connect(&proxy.url()).await.unwrap();
    let renewed = client.lock("panic:renewed").lease(3 * SECOND).renew(true);
    let renewed = renewed.acquire().await.unwrap();
    let late = client.lock(KEY).acquire().await.unwrap();
    proxy.hold_replies(true);
    let mut releasing = Box::pin(late.release());
    assert!((&mut releasing).now_or_never().is_none());
    // The caller of the release is not polled, so only the engine notices that the release is late.
    sleep(SECOND + SECOND / 5).await;
    proxy.hold_replies(false);
    sleep(4 * SECOND).await;
    assert_eq!(renewed.loss(), None);
    renewed.release().await;
    releasing.await;
}
