//! Checks that the published crates can be packaged, and which files their packages contain.

use std::{env, fs, process::Command};

use uuid::Uuid;

use crate::root;

/// The crates that a release publishes. A crate stands behind the crates that it needs.
const PUBLISHED: [&str; 5] = [
    "lock-core",
    "lock-macros",
    "lock-runtime",
    "lock-page",
    "lockctl",
];

/// The files that cargo adds to each package, and the files that each crate must have.
const ALWAYS: [&str; 7] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
];

/// Runs `cargo package` without a network, and returns what it writes to stdout and stderr.
fn package(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["package", "--offline", "--allow-dirty"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "`cargo package` fails:\n{stderr}");
    (stdout, stderr)
}

#[test]
fn a_package_has_its_readme_its_licences_and_its_sources_alone() {
    for name in PUBLISHED {
        let (list, _) = package(&["--list", "-p", name]);
        let (always, own): (Vec<_>, Vec<_>) = list
            .lines()
            // Outside of a git repository, cargo does not add this file.
            .filter(|file| *file != ALWAYS[0])
            .partition(|file| ALWAYS.contains(file));
        assert_eq!(always, ALWAYS[1..], "{name} has these files of {ALWAYS:?}");
        for file in own {
            let is_source = file.starts_with("src/")
                && [".lua", ".md", ".rs"].iter().any(|end| file.ends_with(end));
            let is_asset = name == "lock-page" && file.starts_with("assets/");
            assert!(
                is_source || is_asset,
                "the package of {name} contains {file}"
            );
            let bytes = fs::metadata(root().join(name).join(file))
                .expect("the file exists")
                .len();
            assert!(bytes < 100_000, "{file} of {name} has {bytes} bytes");
        }
    }
}

/// Cargo resolves the packages among themselves, as a registry would. A dependency without a version, or a feature that
/// only the workspace enables, fails here.
#[test]
fn the_published_crates_can_be_packaged_together() {
    let folder = env::temp_dir().join(format!("packages-{}", Uuid::new_v4().simple()));
    let mut arguments = vec![
        "--no-verify",
        "--target-dir",
        folder.to_str().expect("a path in UTF-8"),
    ];
    arguments.extend(PUBLISHED.iter().flat_map(|name| ["-p", name]));
    let (_, messages) = package(&arguments);
    for name in PUBLISHED {
        let version = env!("CARGO_PKG_VERSION");
        let file = folder.join(format!("package/{name}-{version}.crate"));
        assert!(file.exists(), "{name} is packaged:\n{messages}");
    }
    assert!(
        !messages.contains("warning: manifest"),
        "a crate lacks a description of itself:\n{messages}"
    );
    fs::remove_dir_all(folder).expect("the packages can be removed");
}
