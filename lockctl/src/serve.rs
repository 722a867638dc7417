//! `lockctl serve`: the page that shows locks.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header::HOST, uri::Authority},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use clap::Args;
use lock_page::LockPage;
use lock_runtime::LockClient;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, complain};

/// The shortest allowed token. Attackers could guess a shorter token.
const SHORTEST_TOKEN: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address on which to serve the page. An address that other machines can reach needs `--token`
    #[arg(long, default_value = "127.0.0.1:8642")]
    listen: SocketAddr,
    /// Lets visitors release locks by force
    #[arg(long)]
    pub(crate) allow_release: bool,
    /// Shows the page only to visitors with this token of at least 16 characters; they add `?token=TOKEN` to the
    /// address at their first visit
    #[arg(long, env = "LOCKCTL_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl ServeArgs {
    fn check(&self) -> Result<(), Failure> {
        match &self.token {
            Some(token) if token.len() < SHORTEST_TOKEN => {
                let text = format!("the token is shorter than {SHORTEST_TOKEN} characters");
                Err(Failure::usage(text))
            }
            None if !self.listen.ip().is_loopback() => Err(Failure::usage(format!(
                "other machines reach {}: add `--token`, or listen on 127.0.0.1",
                self.listen
            ))),
            _ => Ok(()),
        }
    }
}

/// How long requests in progress have to complete after SIGINT or SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) async fn serve(client: &LockClient, args: &ServeArgs) -> Result<Exit, Failure> {
    args.check()?;
    let cannot = |error: std::io::Error| {
        let text = format!("cannot serve {}: {error}", args.listen);
        Failure::Text(Exit::BadSettings, text)
    };
    let listener = TcpListener::bind(args.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let closing = CancellationToken::new();
    let mut page = LockPage::new(client.clone()).closing(closing.clone());
    if args.allow_release {
        page = page.allow_release();
    }
    if let Some(token) = &args.token {
        page = page.token(token);
    }
    let mut app: Router = page.into_router();
    if args.token.is_none() {
        app = app.layer(from_fn(only_local_names));
    }

    let mut out = std::io::stdout();
    writeln!(out, "http://{address}/")?;
    out.flush()?;
    if args.token.is_some() {
        complain("add `?token=TOKEN` to the address at the first visit");
    }
    let closed = closing.clone();
    let signalled = async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        closing.cancel();
    };
    let late = closed.clone();
    let serving = axum::serve(listener, app).with_graceful_shutdown(signalled);
    tokio::select! {
        served = serving => served.map_err(cannot)?,
        // Without this limit, a client that has sent only a part of a request would keep the process running for ever.
        () = async {
            late.cancelled().await;
            tokio::time::sleep(GRACE).await;
        } => {}
    }
    Ok(Exit::Done)
}

/// Refuses requests whose header `Host` does not name this machine. A foreign web site can let its own name resolve to
/// the address of this machine. Without this check, the site's scripts could then read this page (DNS rebinding).
async fn only_local_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    let host = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let is_local = host.is_some_and(|host| {
        let name = host.host().trim_matches(['[', ']']);
        let address: Result<IpAddr, _> = name.parse();
        name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    if is_local {
        return next.run(request).await;
    }
    let text = "This page is served only to names of this machine, such as localhost.\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}
