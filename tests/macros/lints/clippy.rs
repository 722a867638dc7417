//! Runs clippy on the crate `shapes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

/// A file of `shapes`, and a line in it.
pub(crate) type Place = (String, u64);

/// The messages of a run, by lint and place.
pub(crate) type Found = BTreeMap<(String, Place), String>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Level {
    /// All lints warn. The run finds the lints.
    Warn,
    /// All lints are forbidden. The run finds `forbid(LINT)` for each attribute that sets a forbidden lint to another
    /// level.
    Forbid,
}

/// Returns the folder of the crate.
pub(crate) fn shapes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shapes")
}

/// Returns the version of rustc that clippy belongs to, as in `1.95.0`.
pub(crate) fn version() -> String {
    let text = text(clippy(&["--rustc", "--version"]).stdout);
    text.split(' ')
        .nth(1)
        .expect("`rustc`, then a version")
        .to_owned()
}

/// Checks the crate. Panics if the crate does not compile.
pub(crate) fn check(edition: &str, annotated: bool, level: Level) -> Found {
    let mut args = arguments(edition, annotated);
    args.push("--emit=metadata".to_owned());
    args.push(format!(
        "-o{}/shapes-{edition}-{annotated}-{level:?}.rmeta",
        env!("CARGO_TARGET_TMPDIR")
    ));
    args.push("--error-format=json".to_owned());
    let flag = if level == Level::Warn { "-W" } else { "-F" };
    args.extend(lints().into_iter().map(|lint| flag.to_owned() + &lint));
    let messages = text(clippy(&args).stderr);
    messages
        .lines()
        .flat_map(|message| read(message, level))
        .collect()
}

/// Returns the lines at which a coverage region of the crate begins. The compiler lists the regions in the MIR.
pub(crate) fn covered_lines(annotated: bool) -> BTreeSet<Place> {
    let mir = format!("{}/shapes-{annotated}.mir", env!("CARGO_TARGET_TMPDIR"));
    let mut args = vec!["--rustc".to_owned()];
    args.extend(arguments("2024", annotated));
    args.extend(["--emit=mir".to_owned(), format!("-o{mir}")]);
    args.extend(["-Cinstrument-coverage", "--cap-lints=allow"].map(str::to_owned));
    let output = clippy(&args);
    assert!(output.status.success(), "{}", text(output.stderr));
    let mir = fs::read_to_string(mir).unwrap();
    // As in `coverage Code { bcb: bcb0 } => shapes/bodies.rs:7:5: 7:11 (#0);`.
    let lines = mir.lines().filter_map(|line| {
        let line = line.trim_start().strip_prefix("coverage Code ")?;
        let (path, place) = line.split_once(".rs:")?;
        let (line, _) = place.split_once(':')?;
        let file = path.rsplit(['/', '\\', ' ']).next()?;
        Some((format!("{file}.rs"), line.parse().ok()?))
    });
    lines.collect()
}

/// Returns the arguments that all runs of the compiler have.
fn arguments(edition: &str, annotated: bool) -> Vec<String> {
    let mut args = vec![
        format!("{}/lib.rs", shapes().display()),
        format!("--edition={edition}"),
        "--crate-name=shapes".to_owned(),
        "--crate-type=lib".to_owned(),
        "--check-cfg=cfg(annotated, test)".to_owned(),
        format!("-Ldependency={}", dependencies().display()),
    ];
    let libraries = [
        ("lock_runtime", ".rlib"),
        ("tokio", ".rlib"),
        ("tracing", ".rlib"),
        ("async_trait", env::consts::DLL_SUFFIX),
    ];
    args.extend(
        libraries.map(|(name, extension)| {
            format!("--extern={name}={}", newest(name, extension).display())
        }),
    );
    if annotated {
        args.push("--cfg=annotated".to_owned());
    }
    args
}

/// Reads a message of clippy. A message has one place for each primary span.
fn read(message: &str, level: Level) -> Vec<((String, Place), String)> {
    let message: Value =
        serde_json::from_str(message).unwrap_or_else(|_| panic!("not JSON: {message}"));
    let text = message["message"].as_str().unwrap_or_default();
    let rendered = message["rendered"].as_str().unwrap_or(text);
    let is_error = message["level"] == "error";
    let Some(code) = message["code"]["code"].as_str() else {
        // Of the messages without a code, only the summary of a run is expected.
        assert!(!is_error || text.starts_with("aborting"), "{rendered}");
        return Vec::new();
    };
    let lint = match level {
        Level::Warn => {
            assert!(!is_error, "{rendered}");
            code.to_owned()
        }
        // "allow(dead_code) incompatible with previous forbid"
        Level::Forbid if code == "E0453" => {
            let lint = text
                .split(['(', ')'])
                .nth(1)
                .expect("the lint in parentheses");
            format!("forbid({lint})")
        }
        Level::Forbid => return Vec::new(),
    };
    let spans = message["spans"].as_array().into_iter().flatten();
    let places = spans
        .filter(|span| span["is_primary"] == true)
        .filter_map(place);
    places
        .map(|place| ((lint.clone(), place), text.to_owned()))
        .collect()
}

/// Returns the place of a span. For the code of a macro, the place is that of the macro's call.
fn place(mut span: &Value) -> Option<Place> {
    loop {
        let file = Path::new(span["file_name"].as_str()?);
        if file.parent() == Some(&shapes()) {
            let name = file.file_name()?.to_str()?;
            return Some((name.to_owned(), span["line_start"].as_u64()?));
        }
        span = &span["expansion"]["span"];
    }
}

/// Returns the names of all lints. Lints of the group `cargo` are left out, because they read the manifest of a package.
fn lints() -> Vec<String> {
    let help = text(clippy(&["-Whelp"]).stdout);
    let mut cargo = Vec::new();
    let mut lints = Vec::new();
    for line in help.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("clippy::cargo"), first) => cargo.extend(
                first
                    .into_iter()
                    .chain(words)
                    .map(|name| name.trim_end_matches(',')),
            ),
            (Some(name), Some("allow" | "warn" | "deny" | "forbid")) => lints.push(name),
            _ => {}
        }
    }
    lints.retain(|name| !cargo.contains(name));
    assert!(lints.len() > 500, "clippy lists only {} lints", lints.len());
    lints.into_iter().map(str::to_owned).collect()
}

/// Returns the folder with the libraries that this test program was linked with.
fn dependencies() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

/// Returns the newest library of a crate. The folder can contain several, which cargo has compiled with different
/// features. cargo compiles a library again if its source has changed, so the newest one has the current source.
fn newest(name: &str, extension: &str) -> PathBuf {
    let files = dependencies().read_dir().unwrap();
    let libraries = files.map(|file| file.unwrap().path()).filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.trim_start_matches("lib")
            .starts_with(&format!("{name}-"))
            && file.ends_with(extension)
    });
    let newest = libraries.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no compiled library `{name}` beside this test program"))
}

fn clippy<T: AsRef<std::ffi::OsStr>>(args: &[T]) -> Output {
    let mut clippy = Command::new("clippy-driver");
    clippy.args(args).env("CLIPPY_CONF_DIR", shapes());
    let output = clippy.output();
    output.unwrap_or_else(|error| {
        panic!("clippy-driver: {error}; install it with `rustup component add clippy`")
    })
}

fn text(output: Vec<u8>) -> String {
    String::from_utf8(output).unwrap()
}
