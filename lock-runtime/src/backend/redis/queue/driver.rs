//! Handles the events of a session: the session starts, the server pushes a message to the session, or the
//! session has to send the requests of waiters.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use lock_core::key::LockName;

use crate::backend::redis::{
    protocol::grant::Message,
    queue::{enqueue::enqueue, grants::take_up, heartbeat::beat, server::Server},
    session::{Driver, Session},
    transport::connection::Pushed,
};
use crate::events::TARGET;
use crate::limits;

/// The maximum number of characters that are logged of a message that the client does not understand.
const LOGGED_AT_MOST: usize = 100;

impl Driver for Server {
    fn started(self: Arc<Self>, session: &Arc<Session>) {
        let (session, server) = (session.clone(), Arc::downgrade(&self));
        let context = self.context.clone();
        self.context.spawn(async move {
            let beating = || AssertUnwindSafe(beat(session.clone(), server.clone()));
            // The user's code can panic here: a layer of `tracing`, or the waker of a caller.
            while beating().catch_unwind().await.is_err() {
                context.sleep(limits::HEARTBEAT).await;
            }
        });
    }

    /// Handles a message that the server pushed. A message on the session's own channel announces a grant. A message on
    /// another channel, a channel of Redisson, announces that the lock of this channel is free.
    fn pushed(self: Arc<Self>, session: &Arc<Session>, push: &Pushed) {
        if push.channel != session.channel() {
            return session.subscribers.wake(&push.channel);
        }
        match Message::read(&push.payload, &session.session_id, push.after) {
            Some(Message::Free) => {}
            Some(Message::Granted(name, grant)) => {
                take_up(&self, session, &name, &grant);
            }
            None => {
                let payload: String = push.payload.chars().take(LOGGED_AT_MOST).collect();
                // An attacker can send many forged messages, so only the first forged message is logged as a warning.
                if session.is_first_forgery() {
                    tracing::warn!(target: TARGET, server = %self.address(), ?payload, "ignored a message that no lock script sent; further such messages are logged at DEBUG");
                } else {
                    tracing::debug!(target: TARGET, server = %self.address(), ?payload, "ignored a message that no lock script sent");
                }
            }
        }
    }

    fn enqueue(self: Arc<Self>, session: &Arc<Session>, name: &LockName) {
        enqueue(&self, session, name);
    }
}
