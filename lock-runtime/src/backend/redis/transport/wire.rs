//! The wire: one connection to a server. Commands leave and replies arrive in the order of the connection.
//!
//! A command belongs to the reply at the same place in the order, so the wire keeps a queue of the commands that are
//! under way. One task, the driver, reads everything that arrives, notes when it arrived, and hands it on. If no command
//! is under way, the thread that sends a command also writes it, because a switch to the driver's thread would cost as
//! much as the rest of the round trip. Otherwise, the driver writes all commands that have come together in the meantime.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read},
    process,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use lock_core::lease::Moment;
use redis::{
    Arg, Cmd, ConnectionInfo, ErrorKind, Parser, Pipeline, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, RedisFuture, RedisResult, Value, aio::ConnectionLike,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, oneshot},
};

use crate::background::{
    Context, isolated, lock,
    network::{Socket, TryWrite},
};

/// How many bytes the driver reads at once.
const READ_SIZE: usize = 16 * 1024;

/// An event of a connection.
pub(crate) enum Arrival {
    /// The reply to a command that was sent at this moment.
    Reply { sent: Moment },
    /// A message that the server pushed.
    Push(PushInfo),
    /// The connection has ended.
    End,
}

type Receive = Box<dyn Fn(Arrival) + Send + Sync>;

/// The push message that confirms a command: its kind and its channel.
type Confirmation = (PushKind, Vec<u8>);

/// A command that is under way.
struct Pending {
    sent: Moment,
    /// Set if a push message answers the command.
    confirmed_by: Option<Confirmation>,
    answer: oneshot::Sender<RedisResult<Value>>,
}

/// The present writer of the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Nobody,
    /// The driver has taken bytes that it has not written yet.
    Driver,
    Caller,
}

struct State {
    pending: VecDeque<Pending>,
    try_write: Option<Arc<TryWrite>>,
    /// The bytes that the driver has not taken yet.
    unsent: Vec<u8>,
    writer: Writer,
    /// When a reply last arrived, or a command was sent while no command was under way.
    active: Moment,
    /// When a reply last arrived.
    replied: Moment,
    /// Why the connection has ended; `None` while it is open.
    end: Option<RedisError>,
}

/// The state that the callers and the driver share.
struct Link {
    state: Mutex<State>,
    /// Wakes the driver: there are bytes to write, or the connection has to end.
    wake: Notify,
    /// The process that made the connection. A forked process must not write to it.
    process: u32,
}

impl Link {
    fn new(try_write: Option<TryWrite>) -> Self {
        let state = State {
            pending: VecDeque::new(),
            try_write: try_write.map(Arc::new),
            unsent: Vec::new(),
            writer: Writer::Nobody,
            active: Moment::new(Duration::ZERO),
            replied: Moment::new(Duration::ZERO),
            end: None,
        };
        Self {
            state: Mutex::new(state),
            wake: Notify::new(),
            process: process::id(),
        }
    }

    /// Returns whether this process was forked from the one that made the connection. Such a process must not lock the
    /// mutex either: if another thread had locked it at the fork, it stays locked forever.
    fn is_forked(&self) -> bool {
        process::id() != self.process
    }

    /// Ends the connection. All commands under way fail.
    fn end(&self, error: RedisError) {
        let (pending, try_write) = {
            let mut state = lock(&self.state);
            state.end.get_or_insert_with(|| error.clone());
            state.unsent = Vec::new();
            (std::mem::take(&mut state.pending), state.try_write.take())
        };
        drop(try_write); // the socket is open as long as one of its ends
        self.wake.notify_one();
        for pending in pending {
            isolated(|| pending.answer.send(Err(error.clone())));
        }
    }

    /// Takes the bytes that the driver has to write next.
    fn take_unsent(&self) -> RedisResult<Vec<u8>> {
        let mut state = lock(&self.state);
        if let Some(error) = &state.end {
            return Err(error.clone());
        }
        if state.writer == Writer::Caller {
            return Ok(Vec::new()); // the caller wakes the driver afterwards
        }
        state.writer = match state.unsent.is_empty() {
            true => Writer::Nobody,
            false => Writer::Driver,
        };
        Ok(std::mem::take(&mut state.unsent))
    }
}

/// A connection. The connection is closed when its last clone is dropped.
#[derive(Clone)]
pub(crate) struct Wire {
    link: Arc<Link>,
    context: Arc<Context>,
    _open: Arc<Open>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

struct Open(Arc<Link>);

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.is_forked() {
            return;
        }
        let error = io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the connection was closed",
        );
        self.0.end(error.into());
    }
}

impl Wire {
    /// Logs in to a server over an open socket. The driver runs on the engine's thread, and passes everything that
    /// arrives to `receive`, in the order in which it arrives.
    pub(crate) async fn open(
        context: &Arc<Context>,
        socket: Socket,
        info: &ConnectionInfo,
        receive: impl Fn(Arrival) + Send + Sync + 'static,
    ) -> RedisResult<Self> {
        let link = Arc::new(Link::new(Some(socket.try_write)));
        let driver = Driver {
            link: link.clone(),
            context: context.clone(),
            parser: Parser::new(),
            receive: Box::new(receive),
        };
        context.spawn(driver.run(socket.read, socket.write));
        let wire = Self {
            _open: Arc::new(Open(link.clone())),
            link,
            context: context.clone(),
        };
        wire.log_in(info.redis_settings()).await?;
        Ok(wire)
    }

    /// Switches to RESP3, in which the server pushes messages, and selects the database.
    async fn log_in(&self, settings: &RedisConnectionInfo) -> RedisResult<()> {
        let mut hello = redis::cmd("HELLO");
        hello.arg("3");
        if let Some(password) = settings.password() {
            let user = settings.username().unwrap_or("default");
            hello.arg("AUTH").arg(user).arg(password);
        }
        let (_, greeting) = self.send(&hello)?;
        let database = settings.db();
        let selecting = if database == 0 {
            None
        } else {
            Some(self.send(redis::cmd("SELECT").arg(database))?)
        };
        greeting.receive().await?.extract_error().map_err(|error| {
            // A server that does not know the command quotes its arguments, and thus the password.
            let detail = error.detail().unwrap_or_default();
            if detail.starts_with("unknown command") {
                let old = "the server does not know the command HELLO, so it has no RESP3";
                return (ErrorKind::RESP3NotSupported, old).into();
            }
            error
        })?;
        if let Some((_, selected)) = selecting {
            selected.receive().await?.extract_error().map_err(|error| {
                let refused = "the server refused to switch the database";
                let detail = error.detail().unwrap_or_default().to_owned();
                RedisError::from((error.kind(), refused, detail))
            })?;
        }
        Ok(())
    }

    /// Sends a command. Returns the moment at which it was sent, and its reply. The reply to a command that is dropped
    /// is ignored.
    pub(crate) fn send(&self, command: &Cmd) -> RedisResult<(Moment, Reply)> {
        let (answer, reply) = oneshot::channel();
        let entry = (confirmation(command), answer);
        let sent = self.write(&command.get_packed_command(), [entry])?;
        Ok((sent, Reply(reply)))
    }

    /// Sends `ASKING` and a command, one right after the other. Returns the reply to the command.
    pub(crate) fn send_asking(&self, command: &Cmd) -> RedisResult<(Moment, Reply)> {
        let mut bytes = redis::cmd("ASKING").get_packed_command();
        bytes.extend(command.get_packed_command());
        let ((asking, _), (answer, reply)) = (oneshot::channel(), oneshot::channel());
        let sent = self.write(&bytes, [(None, asking), (confirmation(command), answer)])?;
        Ok((sent, Reply(reply)))
    }

    fn write(
        &self,
        bytes: &[u8],
        entries: impl IntoIterator<Item = (Option<Confirmation>, oneshot::Sender<RedisResult<Value>>)>,
    ) -> RedisResult<Moment> {
        let link = &*self.link;
        if link.is_forked() {
            let forked = "the connection belongs to the process that was forked";
            return Err(io::Error::other(forked).into());
        }
        let mut state = lock(&link.state);
        if let Some(error) = &state.end {
            return Err(error.clone());
        }
        let sent = self.context.now();
        let is_alone = state.pending.is_empty();
        if is_alone {
            state.active = sent;
        }
        let is_idle = is_alone && state.unsent.is_empty() && state.writer == Writer::Nobody;
        let pending = entries.into_iter().map(|(confirmed_by, answer)| Pending {
            sent,
            confirmed_by,
            answer,
        });
        state.pending.extend(pending);
        let try_write = state.try_write.clone().filter(|_| is_idle);
        let Some(try_write) = try_write else {
            let is_first = state.unsent.is_empty();
            state.unsent.extend_from_slice(bytes);
            drop(state);
            if is_first {
                link.wake.notify_one();
            }
            return Ok(sent);
        };
        state.writer = Writer::Caller;
        // The system can run the server before the write returns, and then the driver needs the mutex.
        drop(state);
        // An error of the socket also reaches the driver, which then ends the connection.
        let written = try_write(bytes).unwrap_or(0);
        drop(try_write);
        let mut state = lock(&link.state);
        state.writer = Writer::Nobody;
        if state.end.is_none() {
            state.unsent.splice(..0, bytes[written..].iter().copied());
        }
        let is_rest = !state.unsent.is_empty();
        drop(state);
        if is_rest {
            link.wake.notify_one();
        }
        Ok(sent)
    }

    /// Returns whether no command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.link.state).pending.is_empty()
    }

    /// Returns for how long commands have been under way without a reply, or zero if no command is under way.
    pub(crate) fn silent_for(&self, now: Moment) -> Duration {
        let state = lock(&self.link.state);
        if state.pending.is_empty() {
            return Duration::ZERO;
        }
        now.since(state.active)
    }

    /// Returns whether a reply has arrived since `moment`.
    pub(crate) fn has_replied_since(&self, moment: Moment) -> bool {
        lock(&self.link.state).replied >= moment
    }
}

/// The reply to one command, or to the last of several commands.
pub(crate) struct Reply(oneshot::Receiver<RedisResult<Value>>);

impl Reply {
    pub(crate) async fn receive(self) -> RedisResult<Value> {
        self.0.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.send(command)?.1.receive().await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (answers, replies): (Vec<_>, Vec<_>) =
                (0..offset + count).map(|_| oneshot::channel()).unzip();
            let answers = answers.into_iter().map(|answer| (None, answer));
            self.write(&pipeline.get_packed_pipeline(), answers)?;
            let mut values = Vec::with_capacity(count);
            for reply in replies.into_iter().skip(offset) {
                values.push(Reply(reply).receive().await?);
            }
            Ok(values)
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Returns the push message that answers a command; `None` if a reply answers it.
fn confirmation(command: &Cmd) -> Option<Confirmation> {
    let mut args = command.args_iter();
    let (Some(Arg::Simple(name)), Some(Arg::Simple(channel))) = (args.next(), args.next()) else {
        return None;
    };
    let kind = match name {
        b"SUBSCRIBE" => PushKind::Subscribe,
        b"UNSUBSCRIBE" => PushKind::Unsubscribe,
        b"SSUBSCRIBE" => PushKind::SSubscribe,
        b"SUNSUBSCRIBE" => PushKind::SUnsubscribe,
        _ => return None,
    };
    Some((kind, channel.to_vec()))
}

fn ended() -> RedisError {
    let detail = "the connection has ended";
    io::Error::new(io::ErrorKind::ConnectionReset, detail).into()
}

/// Returns the error of a server that does not keep to the protocol. After such an error, no reply can be told from
/// another, so the connection ends.
fn broken_protocol(detail: &str) -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, detail.to_owned()).into()
}

/// Returns whether a write failed because the other end has closed the connection.
fn is_close(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// Reads what arrives, and writes what callers could not write themselves.
struct Driver {
    link: Arc<Link>,
    context: Arc<Context>,
    parser: Parser,
    receive: Receive,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.link.end(ended());
        isolated(|| (self.receive)(Arrival::End));
    }
}

impl Driver {
    async fn run(
        mut self,
        read: Box<dyn AsyncRead + Send + Unpin>,
        write: Box<dyn AsyncWrite + Send + Unpin>,
    ) {
        let error = self.drive(read, write).await.unwrap_or_else(|error| error);
        self.link.end(error);
    }

    /// Drives the connection until it ends, and returns the reason.
    async fn drive(
        &mut self,
        mut read: impl AsyncRead + Unpin,
        mut write: impl AsyncWrite + Unpin,
    ) -> RedisResult<RedisError> {
        let mut input = vec![0; READ_SIZE];
        let (mut output, mut written, mut is_flushed) = (Vec::new(), 0, true);
        let mut is_closed = false;
        loop {
            if written == output.len() {
                (output, written) = (self.link.take_unsent()?, 0);
            } else if let Some(error) = &lock(&self.link.state).end {
                return Ok(error.clone());
            }
            let is_writing = written < output.len();
            let writing = async {
                if is_writing {
                    return write.write(&output[written..]).await.map(Some);
                }
                write.flush().await.map(|()| None)
            };
            tokio::select! {
                biased;
                wrote = writing, if !is_closed && (is_writing || !is_flushed) => match wrote {
                    Ok(Some(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    Ok(Some(wrote)) => (written, is_flushed) = (written + wrote, false),
                    Ok(None) => is_flushed = true,
                    // The server has closed the connection. The replies that it sent before can still be read.
                    Err(error) if is_close(&error) => is_closed = true,
                    Err(error) => return Err(error.into()),
                },
                arrived = read.read(&mut input) => match arrived? {
                    0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    length => self.arrived(&input[..length])?,
                },
                () = self.link.wake.notified() => {
                    // Threads and tasks that are about to send a command can add it to the next write.
                    thread::yield_now();
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn arrived(&mut self, mut bytes: &[u8]) -> RedisResult<()> {
        let now = self.context.now();
        loop {
            let value = match self.parser.parse_value(Arrived(&mut bytes)) {
                Ok(Value::Attribute { data, .. }) => *data, // attributes only annotate
                Ok(value) => value,
                Err(error) if error.is_timeout() => return Ok(()), // the rest has not arrived
                Err(error) => return Err(error),
            };
            let pending = self.answered(&value, now)?;
            if let Value::Push { kind, data } = &value {
                let (kind, data) = (kind.clone(), data.clone());
                isolated(|| (self.receive)(Arrival::Push(PushInfo { kind, data })));
            }
            if let Some(Pending { sent, answer, .. }) = pending {
                isolated(|| (self.receive)(Arrival::Reply { sent }));
                isolated(|| answer.send(Ok(value)));
            }
        }
    }

    /// Returns the command that `value` answers. A push message that no command has asked for answers none.
    fn answered(&self, value: &Value, now: Moment) -> RedisResult<Option<Pending>> {
        let mut state = lock(&self.link.state);
        let expected = state.pending.front().map(|pending| &pending.confirmed_by);
        match (value, expected) {
            (Value::Push { kind, data }, Some(Some((expected, channel)))) => {
                let named =
                    matches!(data.first(), Some(Value::BulkString(name)) if name == channel);
                if kind != expected || !named {
                    return Ok(None);
                }
            }
            (Value::Push { .. }, _) => return Ok(None),
            (Value::ServerError(_), Some(_)) | (_, Some(None)) => {}
            (_, Some(Some(_))) => return Err(broken_protocol("a reply instead of a push message")),
            // A server says in this way why it closes the connection, for instance because it has too many.
            (Value::ServerError(error), None) => return Err(error.clone().into()),
            (_, None) => return Err(broken_protocol("a reply to no command")),
        }
        (state.active, state.replied) = (now, now);
        Ok(state.pending.pop_front())
    }
}

/// Bytes that have arrived. Further bytes can follow, so reading beyond the last byte is no end of the stream.
struct Arrived<'a, 'b>(&'a mut &'b [u8]);

impl Read for Arrived<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Read::read(self.0, into)
    }
}

#[cfg(test)]
mod tests;
