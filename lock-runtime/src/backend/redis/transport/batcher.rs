//! Sends commands to the server. While few commands are under way, each is sent at once. While many are, new commands
//! are sent together, with one write for all commands of one turn of their runtime: if many tasks share a connection,
//! writing costs more than everything else.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use lock_core::backend::BoxFuture;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{runtime::Handle, sync::oneshot};

use crate::background::sync::lock;

/// How many commands have to be under way before new ones are batched.
const BATCH_THRESHOLD: usize = 8;

type Answer = oneshot::Sender<RedisResult<Value>>;

/// The commands to send next, in order.
#[derive(Default)]
struct Pending {
    commands: Vec<(Cmd, Answer)>,
    /// Whether a task is about to send these.
    leaving: bool,
}

/// The sending end of a connection.
#[derive(Clone)]
pub(crate) struct Batcher {
    redis: MultiplexedConnection,
    pending: Arc<Mutex<Pending>>,
    /// The runtime on which the connection lives.
    runtime: Handle,
}

impl Batcher {
    /// Creates the batcher of a connection that lives on the calling runtime.
    pub(crate) fn new(redis: MultiplexedConnection) -> Self {
        Self {
            redis,
            pending: Arc::default(),
            runtime: Handle::current(),
        }
    }

    /// Sends a command, after all that were sent before, while `others` are under way. If dropped before its answer,
    /// the command may or may not be sent: the connection skips a command whose caller has gone.
    pub(crate) async fn send(&self, command: &Cmd, others: usize) -> RedisResult<Value> {
        let answer = {
            let mut pending = lock(&self.pending);
            if others < BATCH_THRESHOLD && !pending.leaving {
                None
            } else {
                let (answer, receiver) = oneshot::channel();
                pending.commands.push((command.clone(), answer));
                if !std::mem::replace(&mut pending.leaving, true) {
                    self.begin_leaving();
                }
                Some(receiver)
            }
        };
        match answer {
            None => self.redis.clone().send_packed_command(command).await,
            Some(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
        }
    }

    fn begin_leaving(&self) {
        let leaving: BoxFuture<'static, ()> = Box::pin(self.clone().leave());
        self.runtime.spawn(leaving);
    }

    async fn leave(self) {
        // Lets callers that are about to send join.
        tokio::task::yield_now().await;
        let commands = std::mem::take(&mut lock(&self.pending).commands);
        let mut pipeline = Pipeline::with_capacity(commands.len());
        let answers: Vec<Answer> = commands
            .into_iter()
            .map(|(command, answer)| {
                pipeline.add_command(command);
                answer
            })
            .collect();
        let mut redis = self.redis.clone();
        let mut sending = pin!(redis.send_packed_commands(&pipeline, 0, answers.len()));
        // After the first poll, these commands are ahead of all that are sent later.
        let first = std::future::poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
        {
            let mut pending = lock(&self.pending);
            pending.leaving = !pending.commands.is_empty();
            if pending.leaving {
                self.begin_leaving();
            }
        }
        let sent = match first {
            Poll::Ready(sent) => sent,
            Poll::Pending => sending.await,
        };
        match sent {
            Ok(values) => {
                for (value, answer) in values.into_iter().zip(answers) {
                    let _ = answer.send(Ok(value));
                }
            }
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Returns the error for a connection whose runtime has ended.
fn gone() -> RedisError {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionReset,
        "the runtime of the connection has ended",
    )
    .into()
}
