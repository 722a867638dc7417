//! The documentation of all crates has no warnings, and the public API of the published libraries shows no types of other
//! crates, except those that [`ALLOWED`] lists.
//!
//! A type of another crate in the API would make a new major version of that crate a breaking change of this project.
//! `rustdoc.sh` writes each API as JSON. The test collects the crates to which the JSON refers.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

/// The published libraries, each with the other crates whose types its API may show.
const ALLOWED: [(&str, &[&str]); 4] = [
    ("lock_core", &[]),
    ("lock_macros", &[]),
    // The futures of calls implement `Unpin`, and `pin_project_lite` writes the bounds of these implementations.
    (
        "lock_runtime",
        &["lock_core", "lock_macros", "pin_project_lite"],
    ),
    // The page is a router of axum, and `http` has axum's types of a request. The page closes its streams when a
    // `CancellationToken` of tokio-util is cancelled.
    ("lock_page", &["axum", "http", "lock_runtime", "tokio_util"]),
];

#[test]
fn the_public_api_shows_only_listed_crates() {
    document();
    for (library, allowed) in ALLOWED {
        let shown = shown(library);
        for (other, places) in &shown {
            assert!(
                allowed.contains(&&**other),
                "the API of {library} shows the crate {other}: {places:#?}"
            );
        }
        for other in allowed {
            assert!(
                shown.contains_key(*other),
                "{library} does not show {other}"
            );
        }
    }
}

/// Documents all crates of the workspace, as docs.rs does. Panics if rustdoc warns.
fn document() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("rustdoc.sh");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["doc", "--workspace", "--no-deps", "--all-features"])
        .env("RUSTDOC", script)
        .env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    // Cargo describes this package to the test by variables. The build script of `ring` reads variables of the same names,
    // so with them, cargo would compile `ring` and all packages that use it again.
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| of_package(name)) {
        cargo.env_remove(name);
    }
    let output = cargo.output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
}

/// Returns the other crates to which the API of a library refers, each with the items that refer to the crate.
fn shown(library: &str) -> BTreeMap<String, BTreeSet<String>> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let text = fs::read_to_string(target.join(format!("doc/{library}.json"))).unwrap();
    let api: Value = serde_json::from_str(&text).unwrap();
    let mut shown: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    // The walk begins at the root, because the JSON also has hidden items.
    let (mut reached, mut next) = (BTreeSet::new(), vec![api["root"].as_u64().unwrap()]);
    while let Some(id) = next.pop() {
        let item = &api["index"][id.to_string()];
        if item["crate_id"] != 0 || is_implicit(&item["inner"]) || !reached.insert(id) {
            continue;
        }
        let mut names = BTreeSet::new();
        collect(&item["inner"], &api, &mut names, &mut next);
        let span = &item["span"];
        let place = format!("{} at {}:{}", item["name"], span["filename"], span["begin"]);
        for name in names {
            shown.entry(name).or_default().insert(place.clone());
        }
    }
    assert!(reached.len() > 1, "{library} has no public items");
    for standard in ["alloc", "core", "proc_macro", "std"] {
        shown.remove(standard);
    }
    shown
}

/// Returns whether an item is an implementation that nobody has written for the type: that of an auto trait, or of a trait
/// that is implemented for all types.
fn is_implicit(inner: &Value) -> bool {
    let implementation = &inner["impl"];
    implementation["is_synthetic"] == true || !implementation["blanket_impl"].is_null()
}

/// Collects the crates to which a part of an item refers, and the ids of the items inside the item.
fn collect(part: &Value, api: &Value, names: &mut BTreeSet<String>, inside: &mut Vec<u64>) {
    match part {
        Value::Array(parts) => {
            inside.extend(parts.iter().filter_map(Value::as_u64));
            for part in parts {
                collect(part, api, names, inside);
            }
        }
        Value::Object(fields) => {
            // The fields `path` and `id` describe a type or a trait, and `source` and `id` describe a re-export. The id of
            // an item of this crate that is hidden has no summary.
            let other = &api["paths"][part["id"].to_string()]["crate_id"];
            if other.as_u64().is_some_and(|number| number != 0) {
                let name = &api["external_crates"][other.to_string()]["name"];
                names.insert(name.as_str().unwrap().to_owned());
            } else if fields.contains_key("source") {
                inside.extend(part["id"].as_u64());
            }
            for part in fields.values() {
                collect(part, api, names, inside);
            }
        }
        _ => {}
    }
}
