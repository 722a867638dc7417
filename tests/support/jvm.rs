//! Java programs that lock with Redisson. The sources of these programs are in `tests/redisson`.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use crate::process::dies_with_parent;

/// Compiles the Java programs, and returns the command that starts the program with this main class.
///
/// # Errors
/// If a JDK, Maven, or the registry from which Maven fetches Redisson is missing. The error names what is missing.
///
/// # Panics
/// If the Java programs do not compile.
pub fn program(class: &str) -> Result<Command, String> {
    static PREPARED: OnceLock<Result<(), String>> = OnceLock::new();
    PREPARED.get_or_init(prepare).clone()?;
    let target = folder().join("target");
    let class_path = std::env::join_paths([target.join("classes"), target.join("lib/*")]);
    let mut command = dies_with_parent("java");
    command
        .arg("-cp")
        .arg(class_path.map_err(|error| error.to_string())?)
        .arg(class);
    Ok(command)
}

fn folder() -> PathBuf {
    crate::root().join("tests/redisson")
}

fn prepare() -> Result<(), String> {
    let prepared = Command::new("sh")
        .arg(folder().join("prepare.sh"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("sh: {error}"))?;
    match prepared.status.code() {
        Some(0) => Ok(()),
        Some(3) => Err(String::from_utf8_lossy(&prepared.stdout).trim().to_owned()),
        _ => panic!("the Java programs do not compile, see above"),
    }
}
