//! `serve`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use lock_runtime::LockClient;
use support::server::shared_server;

use crate::tool::{Running, key, lockctl, output};

const MINUTE: Duration = Duration::from_secs(60);

/// Starts the page on a free port. Returns the process and the page's address without `http://`.
pub(crate) fn serve(url: &str, words: &[&str]) -> (Running, String) {
    let words = [&["serve", "--listen", "127.0.0.1:0"], words].concat();
    let mut page = Running::start(lockctl(url, &words));
    let line = page.line();
    let address = line.strip_prefix("http://127.0.0.1:").expect("it serves");
    let port = address.strip_suffix('/').expect("it is a URL");
    let address = format!("127.0.0.1:{port}");
    (page, address)
}

/// Sends an HTTP request, and returns the whole answer.
pub(crate) fn ask(address: &str, path: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_locks_until_it_is_told_to_end() {
    let url = shared_server().await.url();
    let client = LockClient::connect(&url).await.unwrap();
    let key = key();
    let held = client.lock(&key).lease(MINUTE).acquire().await.unwrap();
    for signal in ["TERM", "INT"] {
        let (mut page, address) = serve(&url, &[]);
        let host = format!("Host: {address}\r\n");
        let answer = ask(&address, &format!("/?q={key}&format=json"), &host);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains(&format!(r#""token":{}"#, held.token())),
            "{answer}"
        );
        let form = ask(&address, &format!("/release?key={key}"), &host);
        assert!(form.starts_with("HTTP/1.1 403"), "{form}");
        // A viewer's open stream does not prevent the process from ending.
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = format!("GET / HTTP/1.1\r\n{host}Accept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        // Clients that have sent nothing, or only a part of a request, do not prevent it either.
        let _silent = TcpStream::connect(&address).unwrap();
        let mut half = TcpStream::connect(&address).unwrap();
        half.write_all(b"GET / HT").unwrap();
        page.signal(signal);
        let code = tokio::task::spawn_blocking(move || page.code());
        let code = tokio::time::timeout(MINUTE / 2, code)
            .await
            .expect("it ends");
        assert_eq!(code.unwrap(), Some(0), "SIG{signal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_for_releases_shows_the_form() {
    let url = shared_server().await.url();
    let client = LockClient::connect(&url).await.unwrap();
    let key = key();
    let _held = client.lock(&key).lease(MINUTE).acquire().await.unwrap();
    let (_page, address) = serve(&url, &["--allow-release"]);
    let host = format!("Host: {address}\r\n");
    let form = ask(&address, &format!("/release?key={key}"), &host);
    assert!(form.starts_with("HTTP/1.1 200"), "{form}");
    assert!(form.contains("Type the key to confirm"), "{form}");
}

/// The owner of a foreign web site can let its name resolve to the address of this machine. Requests with such a name
/// are refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_a_token_answers_only_to_local_names() {
    let url = shared_server().await.url();
    let (_page, address) = serve(&url, &[]);
    let port = address.rsplit(':').next().unwrap();
    let status = |host: &str| {
        let answer = ask(&address, "/page.css", &format!("Host: {host}\r\n"));
        answer["HTTP/1.1 ".len()..][..3].to_owned()
    };
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        assert_eq!(status(&format!("{host}:{port}")), "200", "{host}");
        assert_eq!(status(host), "200", "{host}");
    }
    for host in ["evil.test", "127.0.0.1.evil.test", "10.0.0.1", ""] {
        assert_eq!(status(&format!("{host}:{port}")), "421", "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_the_page() {
    let url = shared_server().await.url();
    let token = "a-token-of-24-characters";
    let (_page, address) = serve(&url, &["--token", token]);
    // With a token, the page also answers to other names, because a proxy can give the page another name.
    let host = "Host: locks.test\r\n";
    assert!(ask(&address, "/", host).starts_with("HTTP/1.1 401"));
    let first = ask(&address, &format!("/?token={token}"), host);
    assert!(first.starts_with("HTTP/1.1 303"), "{first}");
    let cookie = first
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next())
        .expect("it sets a cookie");
    let second = ask(&address, "/", &format!("{host}Cookie: {cookie}\r\n"));
    assert!(second.starts_with("HTTP/1.1 200"), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_page_is_refused() {
    let url = shared_server().await.url();
    let token = "a-token-of-24-characters";
    for (words, code, text) in [
        (&["--listen", "0.0.0.0:0"][..], 2, "--token"),
        (&["--listen", "[::]:0"], 2, "--token"),
        (&["--listen", "8642"], 2, "invalid"),
        (&["--token", ""], 2, "16 characters"),
        (
            &["--listen", "0.0.0.0:0", "--token", "short"],
            2,
            "16 characters",
        ),
        (&["--read-only", "--allow-release"], 77, "--read-only"),
        (
            &["--listen", "192.0.2.1:80", "--token", token],
            78,
            "192.0.2.1",
        ),
    ] {
        let words = [&["serve"], words].concat();
        let ran = output(&url, &words).with_code(code);
        assert!(ran.stderr.contains(text), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "");
    }
}
