//! `lockctl` shows and controls the locks of `lock-runtime`.

mod access;
mod doctor;
mod exit;
mod inspect;
mod leader;
mod limit;
mod list;
mod output;
mod release;
mod run;
mod serve;
mod watch;

use std::{io, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lock_runtime::{AccessMode, Layout, LockClient, LockClientBuilder};
use tokio::time::Instant;

use crate::{
    access::{AccessArgs, KeyArg},
    exit::{Exit, Failure},
    output::Format,
};

/// Shows and controls the distributed locks of lock-runtime.
#[derive(Debug, Parser)]
#[command(name = "lockctl", version, after_help = exit::TABLE)]
struct Cli {
    #[command(flatten)]
    server: ServerArgs,
    /// The format of the output
    #[arg(long, short, global = true, value_enum, default_value_t)]
    output: Format,
    /// Refuses `run`, `release`, `resign`, `limit` with a number, and `serve --allow-release`; the user on the server then needs only the right to read
    #[arg(long, global = true, env = "LOCKCTL_READ_ONLY", value_parser = clap::builder::FalseyValueParser::new())]
    read_only: bool,
    #[command(subcommand)]
    command: Command,
}

/// The options that say where and how the locks are stored.
#[derive(Debug, Clone, Args)]
struct ServerArgs {
    /// The URL of the server: `redis://`, `rediss://`, `unix:`, `redis+sentinel://`, `redis+cluster://` or
    /// `redlock://`. If several URLs are given, each of them names one server of a Redlock
    #[arg(long, short, global = true, env = "LOCK_URL", hide_env_values = true)]
    url: Vec<String>,
    /// The namespace of the locks
    #[arg(long, short, global = true, env = "LOCK_NAMESPACE")]
    namespace: Option<String>,
    /// The format in which the locks are stored
    #[arg(long, global = true, value_enum, default_value_t)]
    layout: LayoutName,
    /// How long to wait for an answer from the server
    #[arg(long, global = true, default_value = "3s", value_parser = humantime::parse_duration)]
    patience: Duration,
    #[command(flatten)]
    access: AccessArgs,
}

/// The options of a subcommand, and the private key for TLS.
#[derive(Debug, Args)]
struct WithKey<A: Args> {
    #[command(flatten)]
    key: KeyArg,
    #[command(flatten)]
    args: A,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LayoutName {
    /// The layout of lock-runtime.
    #[default]
    Native,
    /// The layout of Redisson's `RLock`. `list` and `watch` then show all keys that look like locks.
    Redisson,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the locks that are held
    List(WithKey<list::ListArgs>),
    /// Shows the holder and the queue of a lock
    Inspect(WithKey<inspect::InspectArgs>),
    /// Shows the held locks and their changes: a table on a terminal, otherwise a line for each change
    Watch(WithKey<watch::WatchArgs>),
    /// Runs a command while holding a lock
    Run(run::RunArgs),
    /// Ends the current hold of a lock by force
    Release(WithKey<release::ReleaseArgs>),
    /// Shows who has a role, and the candidates for it
    Leader(WithKey<inspect::InspectArgs>),
    /// Asks the process that has a role to give it up, within a third of its lease
    Resign(WithKey<leader::ResignArgs>),
    /// Shows or sets the number of permits of a semaphore, for all callers in the fleet
    Limit(WithKey<limit::LimitArgs>),
    /// Serves a page that shows the locks, until SIGINT or SIGTERM
    Serve(WithKey<serve::ServeArgs>),
    /// Checks whether the servers are set up well for locks, and says what to do if they are not
    Doctor(KeyArg),
    /// Writes the completions for a shell to stdout
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the manual page to stdout
    Man,
}

fn main() -> Exit {
    if let Some(exit) = run::become_command(std::env::args_os()) {
        return exit;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // If the user asked for help, `print` writes the help to stdout. An error of `print` is ignored, because
            // the reader has possibly closed the pipe.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
        }
    };
    execute(cli).unwrap_or_else(Failure::report)
}

fn execute(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Completions { shell } => {
            // The completions are generated into memory first, because the generator panics if stdout is closed.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lockctl", &mut script);
            write(&script)
        }
        Command::Man => write(&man()?),
        _ => {
            log_to_stderr();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(perform(cli))
        }
    }
}

impl Command {
    /// Returns the private key for TLS that is written after the subcommand.
    fn key(&self) -> Option<&KeyArg> {
        match self {
            Self::List(WithKey { key, .. })
            | Self::Inspect(WithKey { key, .. })
            | Self::Leader(WithKey { key, .. })
            | Self::Resign(WithKey { key, .. })
            | Self::Limit(WithKey { key, .. })
            | Self::Watch(WithKey { key, .. })
            | Self::Release(WithKey { key, .. })
            | Self::Serve(WithKey { key, .. })
            | Self::Doctor(key) => Some(key),
            Self::Run(_) | Self::Completions { .. } | Self::Man => None,
        }
    }
}

async fn perform(mut cli: Cli) -> Result<Exit, Failure> {
    let began = Instant::now();
    if let Some(file) = cli.command.key().and_then(|key| key.file.clone()) {
        cli.server.access.key.file = Some(file);
    }
    let changes = match &cli.command {
        Command::Run(_) | Command::Release(_) | Command::Resign(_) => true,
        Command::Limit(with) => with.args.changes(),
        Command::Serve(with) => with.args.allow_release,
        _ => false,
    };
    if cli.read_only && changes {
        let text = "`--read-only` refuses this command";
        return Err(Failure::Text(Exit::NotPermitted, text.into()));
    }
    if matches!(cli.command, Command::Doctor(_)) {
        return doctor::doctor(&cli.server, cli.output).await;
    }
    let mut builder = cli.server.builder()?;
    if cli.read_only {
        builder = builder.access_mode(AccessMode::ReadOnly);
    }
    let client = match &cli.command {
        Command::Run(args) => {
            args.check()?;
            run::connect(builder, args).await?
        }
        _ => builder.connect().await?,
    };
    let done = match &cli.command {
        Command::List(with) => list::list(&client, cli.output, &with.args).await,
        Command::Inspect(with) => inspect::inspect(&client, cli.output, &with.args).await,
        Command::Leader(with) => leader::leader(&client, cli.output, &with.args).await,
        Command::Resign(with) => leader::resign(&client, cli.output, &with.args).await,
        Command::Limit(with) => limit::limit(&client, cli.output, &with.args).await,
        Command::Watch(with) => watch::watch(&client, cli.output, &with.args).await,
        Command::Run(args) => run::run(&client, args, began).await,
        Command::Release(with) => release::release(&client, cli.output, &with.args).await,
        Command::Serve(with) => serve::serve(&client, &with.args).await,
        Command::Doctor(_) | Command::Completions { .. } | Command::Man => {
            Ok(Exit::Done) // handled above
        }
    };
    client.shutdown().await;
    done
}

impl ServerArgs {
    fn builder(&self) -> Result<LockClientBuilder, Failure> {
        let layout = match self.layout {
            LayoutName::Native => Layout::Native,
            LayoutName::Redisson => Layout::Redisson,
        };
        let mut builder = LockClient::builder().wait(self.patience).layout(layout);
        builder = match &self.url[..] {
            [] => {
                let text = "no server: add `--url`, or set the environment variable LOCK_URL";
                return Err(Failure::Text(Exit::BadSettings, text.into()));
            }
            [url] => builder.url(url),
            urls => builder.redlock_nodes(urls.iter().cloned()),
        };
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        self.access.apply(builder, &self.url)
    }
}

/// Writes the engine's log events of the level `WARN` to stderr.
fn log_to_stderr() {
    use tracing_subscriber::fmt;
    let format = fmt::format().with_ansi(false).compact();
    fmt()
        .event_format(format)
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
}

fn write(text: &[u8]) -> Result<Exit, Failure> {
    use io::Write;
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(Exit::Done)
}

/// Renders the manual page of the command and of its subcommands.
fn man() -> Result<Vec<u8>, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for subcommand in command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    {
        let title = format!(".SH \"LOCKCTL {}\"\n", subcommand.get_name().to_uppercase());
        page.extend_from_slice(title.as_bytes());
        let man = clap_mangen::Man::new(subcommand.clone());
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
