use std::{io::Read, io::Write, time::Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{server::RedisServer, until};

const MS: Duration = Duration::from_millis(1);

/// A server, and a proxy in front of it.
struct Fixture {
    server: RedisServer,
    proxy: FaultProxy,
}

impl Fixture {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        Self { server, proxy }
    }

    /// Returns a connection through the proxy, after a first command and its reply have passed.
    async fn client(&self) -> Wire {
        let mut wire = Wire::to(&self.proxy).await;
        wire.ask("PING", "+PONG").await;
        wire
    }

    async fn has(&self, key: &str) -> bool {
        self.server.keys().await.iter().any(|name| name == key)
    }

    async fn until_has(&self, key: &str) {
        until(async || self.has(key).await).await;
    }

    async fn until_clients(&self, clients: usize) {
        until(async || self.server.client_count().await == clients).await;
    }
}

struct Wire(TcpStream);

impl Wire {
    async fn to(proxy: &FaultProxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port()));
        Self(stream.await.unwrap())
    }

    async fn send(&mut self, commands: &[&str]) {
        let bytes: String = commands.iter().map(|line| format!("{line}\r\n")).collect();
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }

    async fn expect(&mut self, reply: &str) {
        let mut buffer = vec![0; reply.len() + 2];
        self.0.read_exact(&mut buffer).await.unwrap();
        assert_eq!(String::from_utf8(buffer).unwrap(), format!("{reply}\r\n"));
    }

    async fn ask(&mut self, command: &str, reply: &str) {
        self.send(&[command]).await;
        self.expect(reply).await;
    }

    /// Returns the bytes that arrive before the connection is closed.
    async fn rest(&mut self) -> Vec<u8> {
        let (mut rest, mut byte) = (Vec::new(), [0]);
        let reading = async {
            while let Ok(1) = self.0.read(&mut byte).await {
                rest.push(byte[0]);
            }
        };
        let closed = backstage::within(PATIENCE, reading).await;
        closed.expect("the connection is closed");
        rest
    }

    /// Returns whether neither a byte nor the end of the stream arrives for a while.
    async fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let read = backstage::within(50 * MS, self.0.read(&mut byte)).await;
        read.is_none()
    }
}

#[tokio::test]
async fn without_a_fault_bytes_pass_and_are_counted() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    wire.ask("SET k v", "+OK").await;
    assert!(fixture.has("k").await);
    let proxy = &fixture.proxy;
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.request_bytes(), "PING\r\nSET k v\r\n".len() as u64);
    assert_eq!(proxy.reply_bytes(), "+PONG\r\n+OK\r\n".len() as u64);
    fixture.client().await;
    assert_eq!(proxy.connections(), 2);
    // When one end of a connection is closed, the proxy closes the other end.
    fixture.until_clients(1).await;
    drop(fixture.server);
    assert_eq!(wire.rest().await, b"");
}

#[tokio::test]
async fn each_direction_is_delayed() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.delay(40 * MS);
    let started = Instant::now();
    wire.ask("PING", "+PONG").await;
    let took = started.elapsed();
    assert!(took >= 80 * MS, "{took:?}");
    // Bytes that the proxy has delayed are delivered at once when the delay is set to zero.
    fixture.proxy.delay(Duration::from_secs(3600));
    let seen = fixture.proxy.wait_for_request(b"PING");
    wire.send(&["PING"]).await;
    seen.await;
    fixture.proxy.delay(Duration::ZERO);
    wire.expect("+PONG").await;
}

#[tokio::test]
async fn jitter_adds_to_the_delay_and_keeps_the_order() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.delay(2 * MS);
    fixture.proxy.jitter(30 * MS);
    let mut sum = Duration::ZERO;
    for _ in 0..20 {
        let started = Instant::now();
        wire.ask("PING", "+PONG").await;
        let took = started.elapsed();
        assert!(took >= 4 * MS, "{took:?}");
        sum += took;
    }
    // The expected sum is 680 ms with a standard deviation of 55 ms. Without jitter, the sum is 80 ms.
    assert!(sum > 280 * MS, "{sum:?}");
    for number in 0..20 {
        wire.send(&[&format!("ECHO {number:02}")]).await;
    }
    for number in 0..20 {
        wire.expect(&format!("$2\r\n{number:02}")).await;
    }
}

#[tokio::test]
async fn a_blackhole_holds_both_directions() {
    let fixture = Fixture::new().await;
    let (mut first, mut second) = (fixture.client().await, fixture.client().await);
    fixture.proxy.hold_replies(true);
    first.send(&["SET before 1"]).await;
    fixture.until_has("before").await;
    fixture.proxy.blackhole(true);
    fixture.proxy.hold_replies(false);
    let seen = fixture.proxy.wait_for_request(b"during");
    second.send(&["SET during 1"]).await;
    seen.await;
    assert!(first.is_silent().await && second.is_silent().await);
    assert!(!fixture.has("during").await);
    fixture.proxy.blackhole(false);
    first.expect("+OK").await;
    second.expect("+OK").await;
    assert!(fixture.has("during").await);
}

#[tokio::test]
async fn a_blackhole_hides_that_an_end_was_closed() {
    let mut fixture = Fixture::new().await;
    let (mut stays, goes) = (fixture.client().await, fixture.client().await);
    fixture.proxy.blackhole(true);
    drop(goes);
    assert!(stays.is_silent().await);
    assert_eq!(fixture.server.client_count().await, 2);
    fixture.server.kill();
    assert!(stays.is_silent().await);
    fixture.proxy.blackhole(false);
    assert_eq!(stays.rest().await, b"");
}

#[tokio::test]
async fn held_requests_are_delivered_in_order() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.hold_requests(true);
    for number in 0..5 {
        let seen = fixture.proxy.wait_for_request(b"RPUSH");
        wire.send(&[&format!("RPUSH list {number}")]).await;
        seen.await;
    }
    assert!(!fixture.has("list").await);
    fixture.proxy.hold_requests(false);
    for number in 1..=5 {
        wire.expect(&format!(":{number}")).await;
    }
    let whole = "*5\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4";
    wire.ask("LRANGE list 0 -1", whole).await;
}

#[tokio::test]
async fn held_replies_are_delivered_later() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.hold_replies(true);
    wire.send(&["SET k v"]).await;
    fixture.until_has("k").await;
    assert!(wire.is_silent().await);
    fixture.proxy.hold_replies(false);
    wire.expect("+OK").await;
}

#[tokio::test]
async fn a_connection_that_lost_a_reply_stays_silent() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.drop_replies(true);
    wire.send(&["SET k v"]).await;
    fixture.until_has("k").await;
    until(async || fixture.proxy.reply_bytes() == "+PONG\r\n+OK\r\n".len() as u64).await;
    assert!(wire.is_silent().await);
    fixture.proxy.drop_replies(false);
    wire.send(&["SET later v"]).await;
    fixture.until_has("later").await;
    assert!(wire.is_silent().await);
    fixture.client().await.ask("GET k", "$1\r\nv").await;
    fixture.proxy.cut();
    assert_eq!(wire.rest().await, b"");
}

#[tokio::test]
async fn bytes_are_passed_one_by_one() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.split_bytes(true);
    wire.ask("SET k v", "+OK").await;
    wire.ask("GET k", "$1\r\nv").await;
    // The proxy passes a reply of 5,000 bytes on in many pieces, so a single read returns fewer than 4,096 bytes.
    let text = "x".repeat(5000);
    wire.send(&[&format!("ECHO {text}")]).await;
    let mut read = [0; 4096];
    let first = wire.0.read(&mut read).await.unwrap();
    assert!(first < 4096, "{first} bytes at once");
    let mut rest = vec![0; format!("$5000\r\n{text}\r\n").len() - first];
    wire.0.read_exact(&mut rest).await.unwrap();
}

#[tokio::test]
async fn a_cut_closes_both_ends_of_all_connections() {
    let fixture = Fixture::new().await;
    let (mut first, mut second) = (fixture.client().await, fixture.client().await);
    fixture.proxy.cut();
    assert_eq!(first.rest().await, b"");
    assert_eq!(second.rest().await, b"");
    fixture.until_clients(0).await;
    fixture.client().await.ask("PING", "+PONG").await;
}

#[tokio::test]
async fn a_cut_ends_what_is_held() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.blackhole(true);
    let seen = fixture.proxy.wait_for_request(b"SET");
    wire.send(&["SET k v"]).await;
    seen.await;
    fixture.proxy.cut();
    assert_eq!(wire.rest().await, b"");
    fixture.proxy.blackhole(false);
    fixture.until_clients(0).await;
    assert!(!fixture.has("k").await);
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_request_bytes() {
    for split in [false, true] {
        let fixture = Fixture::new().await;
        let (mut wire, mut other) = (fixture.client().await, fixture.client().await);
        fixture.proxy.split_bytes(split);
        fixture
            .proxy
            .cut_after_request_bytes("SET a 1\r\nSET b 2\r".len() as u64);
        wire.send(&["SET a 1", "SET b 2"]).await;
        assert_eq!(other.rest().await, b"");
        fixture.until_clients(0).await;
        assert_eq!(fixture.server.keys().await, ["a"]);
        // The proxy cuts the connections only once, so a new connection works.
        fixture.client().await.ask("SET c 3", "+OK").await;
    }
}

#[tokio::test]
async fn a_connection_is_cut_before_the_next_byte() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.cut_after_request_bytes(0);
    wire.send(&["SET a 1"]).await;
    assert_eq!(wire.rest().await, b"");
    fixture.until_clients(0).await;
    assert!(!fixture.has("a").await);
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_reply_bytes() {
    for split in [false, true] {
        let fixture = Fixture::new().await;
        let mut wire = fixture.client().await;
        fixture.proxy.hold_replies(true);
        wire.send(&["ECHO hello", "SET k v"]).await;
        fixture.until_has("k").await;
        fixture.proxy.split_bytes(split);
        fixture.proxy.cut_after_reply_bytes(7);
        fixture.proxy.hold_replies(false);
        assert_eq!(wire.rest().await, b"$5\r\nhel");
        fixture.client().await.ask("PING", "+PONG").await;
    }
}

#[tokio::test]
async fn new_connections_are_refused() {
    let fixture = Fixture::new().await;
    let mut old = fixture.client().await;
    fixture.proxy.refuse(true);
    assert_eq!(Wire::to(&fixture.proxy).await.rest().await, b"");
    old.ask("PING", "+PONG").await;
    fixture.proxy.refuse(false);
    fixture.client().await;
}

#[tokio::test]
async fn half_open_connections_lose_their_server_and_do_not_know() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.half_open();
    fixture.until_clients(0).await;
    let seen = fixture.proxy.wait_for_request(b"SET k v");
    wire.send(&["SET k v"]).await;
    seen.await;
    assert!(wire.is_silent().await);
    assert!(!fixture.has("k").await);
    let mut new = fixture.client().await;
    fixture.proxy.cut();
    assert_eq!(wire.rest().await, b"");
    assert_eq!(new.rest().await, b"");
}

/// The bytes of a connection that was cut arrive later than the bytes of the connection that replaces it.
#[tokio::test]
async fn held_requests_outlive_their_connection() {
    let fixture = Fixture::new().await;
    let mut old = fixture.client().await;
    let proxy = &fixture.proxy;
    proxy.deliver_after_cut(true);
    proxy.hold_old_requests(true);
    proxy.hold_requests(true);
    let seen = proxy.wait_for_request(b"late");
    old.send(&["RPUSH list late"]).await;
    seen.await;
    proxy.cut();
    assert_eq!(old.rest().await, b"");
    proxy.hold_requests(false);
    let mut new = fixture.client().await;
    new.ask("RPUSH list early", ":1").await;
    // The server still considers the old connection open. It notices late that the connections of the fixture are closed.
    fixture.until_clients(2).await;
    proxy.hold_old_requests(false);
    fixture.until_clients(1).await;
    let both = "*2\r\n$5\r\nearly\r\n$4\r\nlate";
    new.ask("LRANGE list 0 -1", both).await;
}

#[tokio::test]
async fn requests_are_waited_for_from_the_call_on() {
    let fixture = Fixture::new().await;
    let (mut wire, mut other) = (fixture.client().await, fixture.client().await);
    wire.ask("ECHO needle", "$6\r\nneedle").await;
    let mut seen = std::pin::pin!(fixture.proxy.wait_for_request(b"needle"));
    assert!(backstage::within(50 * MS, seen.as_mut()).await.is_none());
    // Two halves of the pattern do not count if they come from two connections.
    wire.0.write_all(b"ECHO need").await.unwrap();
    other.0.write_all(b"le").await.unwrap();
    until(async || fixture.proxy.request_bytes() == 2 * 6 + 13 + 9 + 2).await;
    assert!(backstage::within(50 * MS, seen.as_mut()).await.is_none());
    // Two halves of the pattern count if both come from one connection.
    wire.0.write_all(b"le\r\n").await.unwrap();
    seen.await;
    // The pattern counts even if it is sent before the future is polled.
    let seen = fixture.proxy.wait_for_request(b"again");
    wire.expect("$6\r\nneedle").await;
    wire.ask("ECHO again", "$5\r\nagain").await;
    seen.await;
    let before = fixture.proxy.request_bytes();
    tokio::join!(fixture.proxy.until_requested(before), wire.send(&["PING"]));
}

#[tokio::test]
#[should_panic(expected = "no client has sent `a\\r\\n`")]
async fn a_request_that_cannot_come_any_more_fails_the_test() {
    let fixture = Fixture::new().await;
    let seen = fixture.proxy.wait_for_request(b"a\r\n");
    drop(fixture);
    seen.await;
}

/// The proxy's clock advances while the test's clock stands still.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_does_not_stop_the_proxy() {
    let fixture = Fixture::new().await;
    let mut wire = fixture.client().await;
    fixture.proxy.delay(30 * MS);
    let (real, paused) = (Instant::now(), tokio::time::Instant::now());
    wire.ask("PING", "+PONG").await;
    assert!(real.elapsed() >= 60 * MS);
    assert_eq!(paused.elapsed(), Duration::ZERO);
}

/// The proxy continues to work while the only thread of the test's runtime is blocked.
#[tokio::test]
async fn a_blocked_runtime_does_not_stop_the_proxy() {
    let fixture = Fixture::new().await;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", fixture.proxy.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}
