//! Walks through the names of the locks on all servers of a client, in steps that each take little of a server's time.

use std::{collections::VecDeque, sync::Arc};

use lock_core::{
    backend::{BackendError, BoxFuture, Scan},
    key::LockName,
};

use crate::backend::redis::{
    protocol::request::not_understood, queue::server::Server, topology::node::Node,
    transport::connection::Connection,
};

/// The number of keys that a server examines in one step. A server examines about a million keys in a second, and
/// serves no other client during a step, so a step takes about 0.2 ms.
const KEYS_PER_STEP: usize = 200;

/// A walk through the locks of one server, of a Redis Cluster, or of the nodes of a Redlock.
pub(crate) struct ServerScan {
    /// The servers and clusters that the walk has not finished.
    servers: VecDeque<Arc<Server>>,
    /// Those primaries of the server or cluster `servers[0]` that the walk has finished.
    done: Vec<Arc<Node>>,
    step: Option<Step>,
    pattern: String,
}

/// The next step of a walk on one primary.
#[derive(Clone)]
struct Step {
    node: Arc<Node>,
    /// The connection of the steps so far. A cursor means nothing to another server, and a new connection may lead to
    /// another server, so the walk starts again on a new connection.
    connection: Option<Arc<Connection>>,
    cursor: u64,
}

impl ServerScan {
    pub(crate) fn new(
        servers: impl IntoIterator<Item = Arc<Server>>,
        part: &str,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            servers: servers.into_iter().collect(),
            done: Vec::new(),
            step: None,
            pattern: format!("*{}*", literal(part)),
        })
    }

    /// Runs the next step.
    async fn run(&mut self) -> Result<Option<Vec<LockName>>, BackendError> {
        loop {
            let Some(server) = self.servers.front().cloned() else {
                return Ok(None);
            };
            let Some(step) = self.step.clone().or_else(|| self.first_step(&server)) else {
                self.done.clear();
                self.servers.pop_front();
                continue;
            };
            let Ok(connection) = step.node.connection().await else {
                if server.sessions.is_closed() {
                    return Err(BackendError::ShutDown);
                }
                // The server stores no locks any longer. If another server has replaced it, the walk continues there.
                self.finish(step.node);
                continue;
            };
            let is_same = |last: &Arc<Connection>| Arc::ptr_eq(last, &connection);
            let cursor = match &step.connection {
                Some(last) if is_same(last) => step.cursor,
                _ => 0,
            };
            let scanned = connection.scan(cursor, &self.pattern, KEYS_PER_STEP).await;
            match scanned {
                Ok(answer) => {
                    // After the last step, the server returns the cursor 0.
                    let (next, keys): (u64, Vec<Vec<u8>>) =
                        redis::from_redis_value(answer).map_err(|error| not_understood(&error))?;
                    if next == 0 {
                        self.finish(step.node);
                    } else {
                        self.step = Some(Step {
                            node: step.node,
                            connection: Some(connection),
                            cursor: next,
                        });
                    }
                    // A key that is not UTF-8 text does not belong to a lock.
                    let names = keys.iter().filter_map(|key| str::from_utf8(key).ok());
                    return Ok(Some(names.map(LockName::stored).collect()));
                }
                Err(error) => {
                    server.recover(error).await?;
                }
            }
        }
    }

    /// Returns the first step on the next primary of a server or cluster, or `None` after the last primary.
    fn first_step(&self, server: &Server) -> Option<Step> {
        let is_done = |node: &Arc<Node>| self.done.iter().any(|done| Arc::ptr_eq(done, node));
        let nodes = server.sessions.nodes();
        let node = nodes.into_iter().find(|node| !is_done(node))?;
        Some(Step {
            node,
            connection: None,
            cursor: 0,
        })
    }

    fn finish(&mut self, node: Arc<Node>) {
        self.done.push(node);
        self.step = None;
    }
}

impl Scan for ServerScan {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<LockName>>, BackendError>> {
        Box::pin(self.run())
    }
}

/// Returns a pattern that matches exactly this text.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_special_character_of_a_pattern_is_escaped() {
        assert_eq!(literal("shop:{order:4"), "shop:{order:4");
        assert_eq!(literal(r"a*b?[c-d]\e"), r"a\*b\?\[c\-d\]\\e");
    }
}
