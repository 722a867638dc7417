use std::{
    io::Write,
    pin::pin,
    sync::OnceLock,
    task::{self, Wake, Waker},
};

use redis::{ConnectionAddr, IntoConnectionInfo};
use tokio::{
    io::{BufWriter, DuplexStream, duplex, sink},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use super::*;

/// Parses `bytes` that arrive in parts of `length` bytes.
fn parsed(bytes: &[u8], length: usize) -> Vec<Value> {
    let mut parser = Parser::new();
    let mut values = Vec::new();
    for mut part in bytes.chunks(length) {
        loop {
            match parser.parse_value(Arrived(&mut part)) {
                Ok(value) => values.push(value),
                Err(error) if error.is_timeout() => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    values
}

#[test]
fn replies_arrive_in_parts_of_any_length() {
    let bytes =
        b"+OK\r\n$5\r\nhello\r\n:17\r\n_\r\n*2\r\n$2\r\na\n\r\n*1\r\n:-1\r\n-MOVED 1 h:2\r\n\
        >3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n%1\r\n+k\r\n#t\r\n$-1\r\n(123456789012345678901\r\n\
        =8\r\ntxt:a\r\nb\r\n!5\r\nERR a\r\n,-1.5e3\r\n|1\r\n+k\r\n*1\r\n~2\r\n:1\r\n_\r\n+v\r\n*0\r\n>1\r\n+c\r\n";
    let whole = parsed(bytes, bytes.len());
    assert_eq!(whole.len(), 16, "{whole:?}");
    for length in 1..bytes.len() {
        assert_eq!(parsed(bytes, length), whole, "parts of {length} bytes");
    }
}

/// A wire to a server that the test plays.
struct Pair {
    wire: Wire,
    server: TcpStream,
    /// The events of the wire, in order.
    arrived: Arc<Mutex<Vec<String>>>,
}

impl Pair {
    /// `at_once` limits the bytes that a caller writes itself. If it is zero, only the driver writes, and what it
    /// writes has to be flushed.
    async fn open(at_once: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let twin = stream.try_clone().unwrap();
        let (read, write) = TcpStream::from_std(stream).unwrap().into_split();
        let socket = Socket {
            read: Box::new(read),
            write: match at_once {
                0 => Box::new(BufWriter::new(write)),
                _ => Box::new(write),
            },
            try_write: Box::new(move |bytes| match &bytes[..at_once.min(bytes.len())] {
                [] => Err(io::ErrorKind::WouldBlock.into()),
                some => (&twin).write(some),
            }),
        };
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let seen = arrived.clone();
        let receive = move |arrival| match arrival {
            Arrival::Reply { .. } => lock(&seen).push("reply".to_owned()),
            Arrival::Push(push) => lock(&seen).push(format!("{:?}", push.kind)),
            Arrival::End => lock(&seen).push("end".to_owned()),
        };
        let greeting = async {
            let (mut server, _) = listener.accept().await.unwrap();
            let hello = redis::cmd("HELLO").arg("3").get_packed_command();
            server.read_exact(&mut vec![0; hello.len()]).await.unwrap();
            server.write_all(b"%0\r\n").await.unwrap();
            server
        };
        let info = info();
        let opening = Wire::open(Context::of_process(), socket, &info, receive);
        let (wire, server) = tokio::join!(opening, greeting);
        let wire = wire.unwrap();
        lock(&arrived).clear();
        Self {
            wire,
            server,
            arrived,
        }
    }

    async fn says(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).await.unwrap();
    }

    /// Waits until the wire has ended.
    async fn ended(&self) {
        while lock(&self.arrived).last().map(String::as_str) != Some("end") {
            tokio::task::yield_now().await;
        }
    }
}

fn info() -> ConnectionInfo {
    let address = ConnectionAddr::Tcp("127.0.0.1".into(), 6379);
    address.into_connection_info().unwrap()
}

/// Returns a socket whose writes the test decides, and the server's end for reading from it.
fn socket(
    write: impl AsyncWrite + Send + Unpin + 'static,
    try_write: Option<TryWrite>,
) -> (Socket, DuplexStream) {
    let (read, server) = duplex(1024);
    let (read, write) = (Box::new(read), Box::new(write));
    let never = || -> TryWrite { Box::new(|_| Err(io::ErrorKind::WouldBlock.into())) };
    let try_write = try_write.unwrap_or_else(never);
    let socket = Socket {
        read,
        write,
        try_write,
    };
    (socket, server)
}

fn echo(text: &str) -> Cmd {
    let mut command = redis::cmd("ECHO");
    command.arg(text);
    command
}

/// A caller writes any part of its command itself, and the driver writes the rest, in order.
#[tokio::test]
async fn a_short_write_is_completed() {
    let bytes: Vec<u8> = ["a", "b", "c"]
        .iter()
        .flat_map(|text| echo(text).get_packed_command())
        .collect();
    for at_once in 0..=echo("a").get_packed_command().len() {
        let mut pair = Pair::open(at_once).await;
        let replies = ["a", "b", "c"].map(|text| pair.wire.send(&echo(text)).unwrap().1);
        let mut arrived = vec![0; bytes.len()];
        pair.server.read_exact(&mut arrived).await.unwrap();
        assert_eq!(arrived, bytes, "{at_once} bytes at once");
        pair.says(b"+a\r\n+b\r\n+c\r\n").await;
        for (reply, text) in replies.into_iter().zip(["a", "b", "c"]) {
            assert_eq!(
                reply.receive().await,
                Ok(Value::SimpleString(text.to_owned()))
            );
        }
        assert!(pair.wire.is_idle());
        drop(pair.wire);
        assert_eq!(pair.server.read(&mut [0]).await.unwrap(), 0);
    }
}

/// Push messages and replies are handed on in the order in which they arrive.
#[tokio::test]
async fn many_push_messages_come_between_two_replies() {
    const PUSHES: usize = 100_000;
    let mut pair = Pair::open(usize::MAX).await;
    let replies = ["a", "b"].map(|text| pair.wire.send(&echo(text)).unwrap().1);
    let mut bytes = b"+a\r\n".to_vec();
    bytes.extend(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n".repeat(PUSHES));
    bytes.extend(b"+b\r\n");
    pair.says(&bytes).await;
    for reply in replies {
        reply.receive().await.unwrap();
    }
    let arrived = lock(&pair.arrived).clone();
    assert_eq!(arrived.len(), PUSHES + 2);
    assert_eq!(arrived.first().unwrap(), "reply");
    assert_eq!(arrived.last().unwrap(), "reply");
}

/// A server that ends a subscription by itself pushes the message that also confirms the command.
#[tokio::test]
async fn a_push_message_confirms_only_its_own_command() {
    let mut pair = Pair::open(usize::MAX).await;
    let (_, first) = pair.wire.send(&echo("a")).unwrap();
    let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
    let (_, second) = pair.wire.send(unsubscribe.arg("c")).unwrap();
    let ended = |channel| format!(">3\r\n$12\r\nsunsubscribe\r\n$1\r\n{channel}\r\n:0\r\n");
    pair.says(ended("c").as_bytes()).await;
    pair.says(b"+a\r\n").await;
    assert_eq!(
        first.receive().await,
        Ok(Value::SimpleString("a".to_owned()))
    );
    pair.says(ended("d").as_bytes()).await;
    pair.says(b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n:7\r\n")
        .await;
    pair.says(ended("c").as_bytes()).await;
    let confirmation = Value::Push {
        kind: PushKind::SUnsubscribe,
        data: vec![Value::BulkString(b"c".to_vec()), Value::Int(0)],
    };
    assert_eq!(second.receive().await, Ok(confirmation));
    assert!(pair.wire.is_idle());
    let arrived = lock(&pair.arrived).clone();
    assert_eq!(arrived.iter().filter(|what| *what != "reply").count(), 4);
}

/// The server names attributes before the reply or the push message that they annotate.
#[tokio::test]
async fn attributes_are_ignored() {
    let mut pair = Pair::open(usize::MAX).await;
    let (_, reply) = pair.wire.send(&echo("a")).unwrap();
    pair.says(b"|1\r\n+k\r\n:1\r\n>2\r\n+message\r\n+c\r\n|1\r\n+k\r\n:1\r\n+OK\r\n")
        .await;
    assert_eq!(reply.receive().await, Ok(Value::Okay));
    assert_eq!(*lock(&pair.arrived), ["Message", "reply"]);
}

/// An error answers a command that a push message would confirm.
#[tokio::test]
async fn a_refused_subscription_is_answered() {
    let mut pair = Pair::open(usize::MAX).await;
    let mut subscribe = redis::cmd("SUBSCRIBE");
    let (_, reply) = pair.wire.send(subscribe.arg("c")).unwrap();
    pair.says(b"-NOPERM no\r\n").await;
    let refused = reply.receive().await.unwrap().extract_error();
    assert_eq!(refused.unwrap_err().code(), Some("NOPERM"));
}

/// A server that closes the connection says why, possibly before it has read a command.
#[tokio::test]
async fn an_error_without_a_command_is_the_reason_of_the_end() {
    let mut pair = Pair::open(usize::MAX).await;
    pair.says(b"-ERR max number of clients reached\r\n").await;
    pair.ended().await;
    let error = pair.wire.send(&echo("a")).err().unwrap();
    assert!(
        error.to_string().contains("max number of clients"),
        "{error}"
    );
}

/// After a reply that does not fit, no reply can be told from another, so the connection ends.
#[tokio::test]
async fn a_reply_that_does_not_fit_ends_the_connection() {
    for (command, answer) in [
        (None, "+OK\r\n"),
        (Some("SUBSCRIBE"), "+OK\r\n"),
        (Some("ECHO"), "no reply\r\n"),
        (Some("ECHO"), "$?\r\n;1\r\na\r\n;0\r\n"),
        (Some("ECHO"), &*"*1\r\n".repeat(200)),
    ] {
        let mut pair = Pair::open(usize::MAX).await;
        let sent = command.map(|name| pair.wire.send(redis::cmd(name).arg("c")).unwrap().1);
        pair.says(answer.as_bytes()).await;
        pair.ended().await;
        if let Some(reply) = sent {
            assert!(reply.receive().await.is_err());
        }
        assert!(pair.wire.send(&echo("a")).is_err());
    }
}

/// A server that never reads fills all buffers. Commands are accepted nevertheless, and dropping the wire closes the
/// socket.
#[tokio::test]
async fn a_server_that_never_reads_is_left() {
    let mut pair = Pair::open(usize::MAX).await;
    let long = "x".repeat(1 << 20);
    let replies: Vec<_> = (0..16)
        .map(|_| pair.wire.send(&echo(&long)).unwrap().1)
        .collect();
    let link = pair.wire.link.clone();
    while lock(&link.state).writer != Writer::Driver {
        tokio::task::yield_now().await;
    }
    pair.wire.send(&echo(&long)).unwrap();
    assert!(!pair.wire.is_idle());
    drop(pair.wire);
    {
        let state = lock(&link.state);
        assert!(state.try_write.is_none() && state.unsent.capacity() == 0);
    }
    for reply in replies {
        assert!(reply.receive().await.is_err());
    }
    let mut rest = Vec::new();
    pair.server.read_to_end(&mut rest).await.ok();
    assert!(rest.len() < 16 << 20);
}

/// The connection ends in the middle of a reply: the commands under way fail, and so does each later one.
#[tokio::test]
async fn a_connection_that_ends_fails_its_commands() {
    let mut pair = Pair::open(usize::MAX).await;
    let replies = ["a", "b"].map(|text| pair.wire.send(&echo(text)).unwrap().1);
    let sent = echo("a").get_packed_command().len() * 2;
    pair.server.read_exact(&mut vec![0; sent]).await.unwrap();
    pair.says(b"+a\r\n$5\r\nhe").await;
    drop(pair.server);
    let [first, second] = replies;
    assert!(first.receive().await.is_ok());
    assert!(second.receive().await.is_err());
    assert!(pair.wire.send(&echo("c")).is_err());
}
/// Logs in to a server that answers at once.
async fn open(
    socket: Socket,
    server: &mut DuplexStream,
    receive: impl Fn(Arrival) + Send + Sync + 'static,
) -> Wire {
    let info = info();
    let opening = Wire::open(Context::of_process(), socket, &info, receive);
    // `HELLO` is sent in the first poll, so the answer comes after it.
    let (wire, answered) = tokio::join!(biased; opening, server.write_all(b"%0\r\n"));
    answered.unwrap();
    wire.unwrap()
}

/// A reply that comes before the whole command was written does not let a later command overtake the rest.
#[tokio::test]
async fn a_command_waits_for_the_bytes_before_it() {
    let direct = Arc::new(Mutex::new(0));
    let wrote = direct.clone();
    let try_write: TryWrite = Box::new(move |bytes| {
        *lock(&wrote) += 1;
        Ok(bytes.len() - 1)
    });
    let (write, _unread) = duplex(1); // one byte of HELLO, and nothing more
    let (socket, mut server) = socket(write, Some(try_write));
    let wire = open(socket, &mut server, |_| {}).await;
    let writes = |writer| {
        let state = lock(&wire.link.state);
        state.unsent.is_empty() && state.writer == writer
    };
    while !writes(Writer::Nobody) {
        tokio::task::yield_now().await;
    }
    let early = wire.send(&echo("a")).unwrap().1;
    while !writes(Writer::Driver) {
        tokio::task::yield_now().await;
    }
    server.write_all(b"-ERR too long\r\n").await.unwrap();
    early.receive().await.unwrap();
    assert!(wire.is_idle());
    wire.send(&echo("b")).unwrap();
    assert_eq!(*lock(&direct), 2, "HELLO and the first command");
}

/// A caller writes without the mutex. A command that is sent meanwhile comes after the rest of its command.
#[tokio::test]
async fn a_command_comes_after_one_that_a_caller_writes() {
    let wire = Arc::new(OnceLock::<Wire>::new());
    let other = wire.clone();
    let try_write: TryWrite = Box::new(move |bytes| {
        if let Some(wire) = other.get() {
            wire.send(&echo("second")).unwrap();
            assert_eq!(wire.link.take_unsent().unwrap(), b"");
        }
        Ok(bytes.len() / 2)
    });
    let (write, mut written) = duplex(1 << 10);
    let (socket, mut server) = socket(write, Some(try_write));
    let opened = open(socket, &mut server, |_| {}).await;
    let mut reads = async |expected: &[u8]| {
        let mut read = vec![0; expected.len()];
        written.read_exact(&mut read).await.unwrap();
        assert_eq!(read, expected);
    };
    let rest = |command: &Cmd| {
        let bytes = command.get_packed_command();
        bytes[bytes.len() / 2..].to_vec()
    };
    reads(&rest(redis::cmd("HELLO").arg("3"))).await;
    while lock(&opened.link.state).writer != Writer::Nobody {
        tokio::task::yield_now().await; // the driver has not noticed yet that it has written everything
    }
    wire.get_or_init(|| opened).send(&echo("first")).unwrap();
    let second = echo("second").get_packed_command();
    reads(&[rest(&echo("first")), second].concat()).await;
}

/// Neither a receiver nor a waker that panics ends the connection.
#[tokio::test]
async fn a_panic_of_a_caller_does_not_reach_the_driver() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker panics");
        }
    }
    let (socket, mut server) = socket(sink(), None);
    let wire = open(socket, &mut server, |_| panic!("a receiver panics")).await;
    let [first, second] = ["a", "b"].map(|text| wire.send(&echo(text)).unwrap().1);
    let mut first = pin!(first.receive());
    let waker = Waker::from(Arc::new(Panics));
    let polled = first.as_mut().poll(&mut task::Context::from_waker(&waker));
    assert!(polled.is_pending());
    server.write_all(b"+a\r\n>1\r\n+c\r\n+b\r\n").await.unwrap();
    assert!(second.receive().await.is_ok());
    assert!(first.await.is_ok());
}

/// A server that closes the connection may have answered commands before.
#[tokio::test]
async fn replies_are_read_after_a_write_has_failed() {
    let (write, closed) = duplex(64);
    drop(closed);
    let (socket, mut server) = socket(write, None);
    let wire = open(socket, &mut server, |_| {}).await;
    let replies = ["a", "b"].map(|text| wire.send(&echo(text)).unwrap().1);
    server.write_all(b"+a\r\n").await.unwrap();
    drop(server);
    let [first, second] = replies;
    assert!(first.receive().await.is_ok());
    assert!(second.receive().await.is_err());
}

/// The errors of a server that does not know `HELLO` quote its arguments.
#[tokio::test]
async fn the_error_of_a_login_shows_no_password() {
    for quote in ['`', '\''] {
        let (socket, mut server) = socket(sink(), None);
        let settings = RedisConnectionInfo::default().set_password("secret");
        let info = info().set_redis_settings(settings);
        let opening = Wire::open(Context::of_process(), socket, &info, |_| {});
        let refusing = async {
            let quoted =
                ["3", "AUTH", "default", "secret"].map(|arg| format!("{quote}{arg}{quote}"));
            let error = format!(
                "-ERR unknown command {quote}HELLO{quote}, with args beginning with: {}\r\n",
                quoted.join(" ")
            );
            server.write_all(error.as_bytes()).await.unwrap();
        };
        let (opened, ()) = tokio::join!(biased; opening, refusing);
        let error = opened.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::RESP3NotSupported);
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}

/// A forked process neither closes the connection nor locks the mutex, which another thread may have locked at the
/// fork.
#[test]
fn a_forked_process_leaves_the_connection_alone() {
    let mut link = Link::new(None);
    link.process += 1;
    let link = Arc::new(link);
    let wire = Wire {
        link: link.clone(),
        context: Context::of_process().clone(),
        _open: Arc::new(Open(link.clone())),
    };
    let state = lock(&link.state);
    assert!(wire.send(&echo("a")).is_err());
    drop(wire);
    assert!(state.end.is_none());
}

/// The silence counts from the newest reply, or from the first command since no command was under way.
#[tokio::test]
async fn silence_counts_from_the_newest_reply() {
    const LATER: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(5);
    let mut pair = Pair::open(usize::MAX).await;
    let asked = pair.wire.send(&echo("a")).unwrap();
    sleep(PAUSE).await;
    let (second, last) = pair.wire.send(&echo("b")).unwrap();
    assert_eq!(pair.wire.silent_for(asked.0 + LATER), LATER);
    assert!(!pair.wire.has_replied_since(second));
    pair.says(b">2\r\n+message\r\n+c\r\n").await;
    sleep(PAUSE).await;
    assert_eq!(pair.wire.silent_for(asked.0 + LATER), LATER);
    pair.says(b"+a\r\n").await;
    asked.1.receive().await.unwrap();
    assert!(pair.wire.has_replied_since(second));
    assert!(pair.wire.silent_for(second + LATER) < LATER);
    pair.says(b"+b\r\n").await;
    last.receive().await.unwrap();
    assert_eq!(pair.wire.silent_for(second + LATER), Duration::ZERO);
    sleep(PAUSE).await;
    let (third, _reply) = pair.wire.send(&echo("c")).unwrap();
    assert_eq!(pair.wire.silent_for(third + LATER), LATER);
}

/// `ASKING` and its command reach the server one right after the other, and only the reply to the command counts.
#[tokio::test]
async fn asking_comes_right_before_its_command() {
    let mut pair = Pair::open(3).await;
    let (_, reply) = pair.wire.send_asking(&echo("a")).unwrap();
    let (_, after) = pair.wire.send(&echo("b")).unwrap();
    let mut bytes = redis::cmd("ASKING").get_packed_command();
    bytes.extend(echo("a").get_packed_command());
    bytes.extend(echo("b").get_packed_command());
    let mut arrived = vec![0; bytes.len()];
    pair.server.read_exact(&mut arrived).await.unwrap();
    assert_eq!(arrived, bytes);
    pair.says(b"+OK\r\n+a\r\n+b\r\n").await;
    for (reply, text) in [(reply, "a"), (after, "b")] {
        let text = Value::SimpleString(text.to_owned());
        assert_eq!(reply.receive().await, Ok(text));
    }
}
