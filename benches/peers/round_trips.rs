//! Measures the cost of a round trip that does nothing, over a bare socket and with the client library.

use std::time::Duration;

use support::server::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    baselines::{Tuning, connect},
    clock::{nanos, now},
};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

/// Returns the times at which the measurement begins and ends. The measurement begins after a warm-up of a tenth of
/// `span`.
fn times(span: Duration) -> [u64; 2] {
    let from = now() + nanos(span / 10);
    [from, from + nanos(span)]
}

/// Returns the time of a round trip over a tokio socket, in µs. The time includes the network, the kernel's work at
/// both ends, and the wake-up of the task.
pub(crate) async fn of_a_socket(server: &RedisServer, span: Duration) -> f64 {
    let port = server.port();
    let asking = async move {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
        socket.set_nodelay(true)?;
        let mut answer = [0; PONG.len()];
        let ([from, end], mut count, mut begun) = (times(span), 0_u64, 0);
        loop {
            let time = now();
            if time >= end {
                return std::io::Result::Ok((time - begun) as f64 / 1e3 / count as f64);
            }
            if time >= from {
                begun = if count == 0 { time } else { begun };
                count += 1;
            }
            socket.write_all(PING).await?;
            socket.read_exact(&mut answer).await?;
            assert_eq!(answer, PONG, "the server answers PING with PONG");
        }
    };
    // The task runs on a worker thread, like the tasks that measure the locks.
    let asked = tokio::spawn(asking).await;
    asked
        .expect("the task of the round trips does not panic")
        .expect("the server answers")
}

/// Returns the time of a round trip with the client library over a shared connection, in µs. Unlike the time on a bare
/// socket, this time includes the time of the library and of the library's own task.
pub(crate) async fn of_the_crate(server: &RedisServer, span: Duration) -> f64 {
    let mut connection = connect(&server.url(), Tuning::Ours).await;
    let asking = async move {
        let ([from, end], mut count, mut begun) = (times(span), 0_u64, 0);
        loop {
            let time = now();
            if time >= end {
                return (time - begun) as f64 / 1e3 / count as f64;
            }
            if time >= from {
                begun = if count == 0 { time } else { begun };
                count += 1;
            }
            let pong: String = redis::cmd("PING")
                .query_async(&mut connection)
                .await
                .expect("the server answers");
            assert_eq!(pong, "PONG", "the server answers PING with PONG");
        }
    };
    tokio::spawn(asking)
        .await
        .expect("the task of the round trips does not panic")
}
