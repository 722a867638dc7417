//! Sends commands to the server. While few commands are under way, each new command is sent at once. While many
//! commands are under way, new commands are collected into a batch. After the runtime has run the other ready tasks,
//! one write sends the batch. If many tasks share a connection, a write for each command would cost more CPU time than
//! all other work.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use lock_core::backend::BoxFuture;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::sync::oneshot;

use crate::{
    backend::redis::transport::health::Health,
    background::{Context, TaskRuntime, lock},
};

/// A new command is batched if at least this number of other commands are under way.
const BATCH_THRESHOLD: usize = 8;

type Answer = oneshot::Sender<RedisResult<Value>>;

/// The commands of the next write, in order.
#[derive(Default)]
struct Pending {
    commands: Vec<(Cmd, Answer)>,
    /// Whether a task was started that sends the pending commands.
    leaving: bool,
}

/// The sending half of a connection.
#[derive(Clone)]
pub(crate) struct Batcher {
    redis: MultiplexedConnection,
    pending: Arc<Mutex<Pending>>,
    /// The runtime on which the connection runs.
    runtime: TaskRuntime,
    health: Arc<Health>,
    context: Arc<Context>,
}

impl Batcher {
    /// Creates the batcher of a connection that runs on the calling runtime.
    pub(crate) fn new(
        redis: MultiplexedConnection,
        health: Arc<Health>,
        context: Arc<Context>,
    ) -> Self {
        Self {
            redis,
            pending: Arc::default(),
            runtime: context.present_runtime(),
            health,
            context,
        }
    }

    /// Sends a command after all earlier commands. `others` is the number of other commands under way. If the future is
    /// dropped before the answer comes, the command is possibly not sent. The connection skips a command that has not
    /// been written yet, unless the command is part of a batch.
    ///
    /// If `asking` is set, sends `ASKING` right before the command.
    pub(crate) async fn send(
        &self,
        command: &Cmd,
        others: usize,
        asking: bool,
    ) -> RedisResult<Value> {
        if asking {
            let sending: BoxFuture<'_, _> = Box::pin(send_asking(self.redis.clone(), command));
            return sending.await;
        }
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
            None => {
                // The future is boxed, so that the future of a command in a batch stays small. Small futures matter
                // because the allocator of the C library takes a slow path for each allocation of more than 1,032
                // bytes. The clone is therefore not part of the boxed future.
                let mut redis = self.redis.clone();
                let sending: BoxFuture<'_, _> = Box::pin(redis.send_packed_command(command));
                sending.await
            }
            Some(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
        }
    }

    fn begin_leaving(&self) {
        let leaving: BoxFuture<'static, ()> = Box::pin(self.clone().leave());
        self.context.spawn_on(&self.runtime, leaving);
    }

    async fn leave(self) {
        // Yields, so that tasks that are about to send a command can add it to the next write.
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
        // The first poll puts the commands of the batch into the connection's queue, ahead of all commands that are
        // sent later.
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
                self.health.heard(self.context.now());
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

/// Sends `ASKING` and a command, one right after the other.
pub(crate) async fn send_asking(
    mut redis: MultiplexedConnection,
    command: &Cmd,
) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(command.clone());
    let mut answers = redis.send_packed_commands(&pipeline, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// Returns the error for a connection whose runtime has ended.
fn gone() -> RedisError {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionReset,
        "the runtime of the connection has ended",
    )
    .into()
}
