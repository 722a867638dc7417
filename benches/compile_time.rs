//! Measures how much `#[distributed_lock]` adds to the compile time. Compares 200 functions with the attribute to the
//! same functions without it.
//!
//! ```text
//! cargo bench --bench compile_time [-- --rounds 5]
//! ```
//!
//! The benchmark writes two crates with the same dependencies to `target/tmp/compile_time`. The benchmark compiles both
//! crates with each command (check, debug build, release build) in several rounds, without incremental compilation. The
//! benchmark prints the median times, their ratio, and the additional time for each function.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use progress::Progress;

const FUNCTIONS: u32 = 200;

const COMMANDS: [(&str, &[&str]); 3] = [
    ("cargo check", &["check"]),
    ("cargo build", &["build"]),
    ("cargo build --release", &["build", "--release"]),
];

/// Returns the source of a crate with many functions like those of a typical service. Each function has some arguments,
/// some awaits, and the service's own error type. If `attribute` is set, each function has the attribute
/// `#[distributed_lock]`.
fn source(attribute: bool) -> String {
    let mut source = String::from(
        "use lock_runtime::LockError;\n\
         #[derive(Debug)]\n\
         pub enum PayError { Lock(LockError), Parse(std::num::ParseIntError) }\n\
         impl From<LockError> for PayError { fn from(error: LockError) -> Self { Self::Lock(error) } }\n\
         impl From<std::num::ParseIntError> for PayError {\n\
             fn from(error: std::num::ParseIntError) -> Self { Self::Parse(error) }\n\
         }\n\
         pub struct Receipt { pub id: u64, pub cents: u64, pub who: String }\n\
         async fn charge(id: u64, cents: u64) -> Result<u64, PayError> {\n\
             tokio::task::yield_now().await;\n\
             format!(\"{id}\").parse::<u64>().map(|id| id + cents).map_err(PayError::from)\n\
         }\n",
    );
    for number in 0..FUNCTIONS {
        if attribute {
            let _ = writeln!(
                source,
                "#[lock_runtime::distributed_lock(key = \"order:<id>:{number}\", wait = \"5s\", lease = \"30s\")]"
            );
        }
        let _ = writeln!(
            source,
            "pub async fn pay_{number}(id: u64, mut cents: u64, who: String) -> Result<Receipt, PayError> {{\n\
                 if cents == {number} {{ return Err(\"no number\".parse::<u64>().unwrap_err().into()); }}\n\
                 cents += charge(id, cents).await?;\n\
                 let who = format!(\"{{who}} {number}\");\n\
                 cents += charge(id, {number}).await?;\n\
                 Ok(Receipt {{ id, cents, who }})\n\
             }}"
        );
    }
    // The compiler generates no code for a future that nobody polls. The function `all` therefore polls the futures of
    // all functions.
    source.push_str("pub async fn all() -> Result<u64, PayError> {\n    let mut sum = 0;\n");
    for number in 0..FUNCTIONS {
        let _ = writeln!(
            source,
            "    sum += Box::pin(pay_{number}({number}, 7, String::new())).await?.cents;"
        );
    }
    source.push_str(
        "    Ok(sum)\n}\npub fn drive() -> Result<u64, PayError> {\n    \
         tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(all())\n}\n",
    );
    source
}

fn write_crate(folder: &Path, name: &str, attribute: bool) -> std::io::Result<PathBuf> {
    let runtime = support::root().join("lock-runtime");
    let folder = folder.join(name);
    fs::create_dir_all(folder.join("src"))?;
    fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\nlock-runtime = {{ path = {runtime:?} }}\n\
             tokio = {{ version = \"1\", features = [\"rt\"] }}\n\n[workspace]\n"
        ),
    )?;
    // With a copy of `Cargo.lock`, the crate uses the same versions of its dependencies as the workspace.
    let lock = support::root().join("Cargo.lock");
    fs::copy(lock, folder.join("Cargo.lock"))?;
    fs::write(folder.join("src/lib.rs"), source(attribute))?;
    Ok(folder)
}

/// Rewrites the crate's source, so that cargo compiles the crate again, and runs cargo. Returns the time that cargo
/// took.
fn compile(folder: &Path, arguments: &[&str]) -> Result<Duration, String> {
    let source = folder.join("src/lib.rs");
    let text = fs::read(&source).map_err(|error| error.to_string())?;
    fs::write(&source, text).map_err(|error| error.to_string())?;
    let started = Instant::now();
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--quiet")
        .current_dir(folder)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", folder.with_file_name("target"))
        .stdin(Stdio::null())
        .status()
        .map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!(
            "cargo {arguments:?} failed in {}",
            folder.display()
        ));
    }
    Ok(started.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn run(rounds: usize) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile_time");
    let write = |name, attribute| {
        write_crate(&folder, name, attribute).map_err(|error| format!("{name}: {error}"))
    };
    let (plain, annotated) = (write("plain", false)?, write("annotated", true)?);
    println!("{FUNCTIONS} functions, medians of {rounds} interleaved rounds\n");
    println!("| command | plain | annotated | ratio | more for each function |");
    println!("|---|---|---|---|---|");
    let progress = Progress::of_steps(COMMANDS.len() * (1 + rounds));
    for (name, arguments) in COMMANDS {
        progress.begin(format_args!("{name}, the dependencies"));
        // The first run of a command also compiles the dependencies, so the results leave out its time.
        compile(&plain, arguments)?;
        compile(&annotated, arguments)?;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            progress.begin(format_args!("{name}, round {round}"));
            without.push(compile(&plain, arguments)?);
            with.push(compile(&annotated, arguments)?);
        }
        let (without, with) = (median(&mut without), median(&mut with));
        let row = format!(
            "| {name} | {:.2} s | {:.2} s | {:.2} | {:.1} ms |",
            without.as_secs_f64(),
            with.as_secs_f64(),
            with.as_secs_f64() / without.as_secs_f64(),
            with.saturating_sub(without).as_secs_f64() * 1000.0 / f64::from(FUNCTIONS)
        );
        progress::suspend(|| println!("{row}"));
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut rounds = 5;
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            // Cargo passes this argument to every benchmark.
            ("--bench", None) => {}
            ("--rounds", Some(number))
                if number.parse::<usize>().is_ok_and(|number| number > 0) =>
            {
                rounds = number.parse().unwrap_or(rounds);
            }
            _ => {
                eprintln!("usage: cargo bench --bench compile_time [-- --rounds N]");
                return ExitCode::FAILURE;
            }
        }
    }
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
