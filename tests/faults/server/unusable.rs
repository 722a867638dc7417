//! Row 35 of `docs/faults.md`: servers that cannot be used.

use std::time::{Duration, Instant};

use lock_runtime::{ConnectError, LockClient, LockError};
use support::server::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::fixture::{SECOND, row};

/// Row 35 of `docs/faults.md`: connecting to an unusable server returns a specific variant of `ConnectError` within
/// `wait`. The error does not show the password of the URL.
#[tokio::test]
async fn row_35_unusable_servers() {
    row(35, async |seen| {
        let mut refusal = async |url: String| {
            let asked = Instant::now();
            let refused = LockClient::builder().url(url).wait(SECOND).connect().await;
            seen.within("connecting returns an error", SECOND, asked.elapsed());
            let error = refused.expect_err("the server cannot be used");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            error
        };
        let server = RedisServer::builder()
            .arg("--requirepass", "another")
            .start()
            .await;
        let port = server.port();
        let wrong = refusal(format!("redis://:secret@127.0.0.1:{port}/")).await;
        assert!(
            matches!(wrong, ConnectError::Authentication { .. }),
            "{wrong}"
        );
        let none = refusal(format!("redis://127.0.0.1:{port}/")).await;
        assert!(
            matches!(none, ConnectError::Authentication { .. }),
            "{none}"
        );

        let mut limited = redis::cmd("ACL");
        limited.arg(&[
            "SETUSER",
            "few",
            "on",
            ">secret",
            "~*",
            "resetchannels",
            "+@all",
        ]);
        let mut admin = server.connection().await;
        limited.exec_async(&mut admin).await.unwrap();
        let channel = refusal(format!("redis://few:secret@127.0.0.1:{port}/")).await;
        assert!(
            matches!(channel, ConnectError::Permission { .. }),
            "{channel}"
        );
        assert!(channel.to_string().contains("channel"), "{channel}");

        let plain = refusal(format!("rediss://:secret@127.0.0.1:{port}/")).await;
        assert!(matches!(plain, ConnectError::NoTls { .. }), "{plain}");
        assert!(format!("{plain:?}").contains("write redis://"), "{plain}");

        let secured = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let secured = RedisServer::builder()
            .tls(&secured.cert.pem(), &secured.signing_key.serialize_pem())
            .start()
            .await;
        let closed = refusal(format!("redis://:secret@127.0.0.1:{}/", secured.tls_port())).await;
        assert!(matches!(closed, ConnectError::Closed { .. }), "{closed}");
        assert!(
            format!("{closed:?}").contains("write rediss://"),
            "{closed}"
        );

        let cluster = RedisServer::builder().arg("--cluster-enabled", "yes");
        let cluster = cluster.start().await;
        let node = refusal(format!("redis://127.0.0.1:{}/", cluster.port())).await;
        assert!(matches!(node, ConnectError::Cluster { .. }), "{node}");
        let single = RedisServer::start().await;
        let single = refusal(format!("redis+cluster://127.0.0.1:{}", single.port())).await;
        assert!(matches!(single, ConnectError::NoCluster { .. }), "{single}");

        let sentinel = RedisServer::builder().sentinel().start().await;
        let watcher = refusal(format!("redis://127.0.0.1:{}/", sentinel.port())).await;
        assert!(
            matches!(watcher, ConnectError::Sentinel { .. }),
            "{watcher}"
        );
        for (scheme, told) in [
            ("redis-sentinel", "redis+sentinel://"),
            ("redis+sentinel", "the name of the group is missing"),
            ("redis-cluster", "redis+cluster://"),
        ] {
            let unknown = refusal(format!("{scheme}://:secret@127.0.0.1:{port}/")).await;
            assert!(unknown.to_string().contains(told), "{unknown}");
        }

        let web = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = web.local_addr().unwrap().port();
        let answering = tokio::spawn(async move {
            while let Ok((mut socket, _)) = web.accept().await {
                let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        });
        let other = refusal(format!("redis://:secret@127.0.0.1:{port}/")).await;
        assert!(matches!(other, ConnectError::NotRedis { .. }), "{other}");
        answering.abort();

        let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = old.local_addr().unwrap().port();
        let answering = tokio::spawn(answer_in_resp2(old));
        let resp2 = refusal(format!("redis://:secret@127.0.0.1:{port}/")).await;
        assert!(matches!(resp2, ConnectError::NoResp3 { .. }), "{resp2}");
        answering.abort();

        let nobody = support::server::free_port();
        let closed = refusal(format!("redis://:secret@127.0.0.1:{nobody}/")).await;
        assert!(
            matches!(closed, ConnectError::Unreachable { .. }),
            "{closed}"
        );
    })
    .await;
}

/// Answers as a server or a proxy that speaks only RESP2, and knows neither `HELLO` nor any other command.
async fn answer_in_resp2(listener: TcpListener) {
    while let Ok((mut socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut command = [0; 4096];
            while let Ok(1..) = socket.read(&mut command).await {
                let refused = b"-ERR unknown command 'HELLO'\r\n";
                if socket.write_all(refused).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Row 35 of `docs/faults.md`: the user of a running client loses a right. A call that needs this right returns an
/// error that names the right.
#[tokio::test]
async fn row_35_right_taken_away() {
    row(35, async |seen| {
        let server = RedisServer::start().await;
        let client = crate::fixture::client(&server.url()).await;
        let mut taken = redis::cmd("ACL");
        taken.arg(&["SETUSER", "default", "-evalsha", "-eval"]);
        let mut admin = server.connection().await;
        taken.exec_async(&mut admin).await.unwrap();
        let asked = Instant::now();
        let refused = client.lock("k").wait(SECOND).acquire().await;
        seen.within("a call returns an error", Duration::ZERO, asked.elapsed());
        let Err(LockError::Refused { detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("evalsha"), "{detail}");
    })
    .await;
}
