//! The mutants: small changes that break the engine. Each mutant is a patch file, which also names the tests that must
//! fail with the change.
//!
//! A file of `patches/` begins with a header:
//!
//! ```text
//! suite: faults
//! caught-by: row_09
//! what: a retry does not know its own grant
//! ```
//!
//! An empty line and a diff in the format of `git diff` follow the header.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A suite, which is a group of tests. Each mutant is tested with one suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// The tests of all promises. No test but those that the patch names is allowed to fail.
    Promises,
    /// The rows of the fault matrix that the patch names.
    Faults,
    /// The tests in `tests/crowds` that the patch names.
    Crowds,
    /// The tests in `tests/options` that the patch names.
    Options,
    /// The tests in `tests/options/api.rs` that the patch names.
    Api,
    /// The tests in `tests/operations` that the patch names.
    Operations,
    /// The tests in `tests/macros/functions` that the patch names.
    Functions,
    /// The tests of the attribute's compile errors that the patch names.
    Ui,
    /// The unit tests of the three published crates that the patch names.
    Unit,
    /// The tests in `tests/simulation` that the patch names.
    Simulation,
    /// The soak that the patch names, for one minute. The soak `calm` has no faults, and the soak `faults` has random
    /// faults.
    Soak,
}

impl Suite {
    /// The suites in the order in which they are run.
    pub const ALL: [Self; 11] = [
        Self::Promises,
        Self::Faults,
        Self::Crowds,
        Self::Options,
        Self::Api,
        Self::Operations,
        Self::Functions,
        Self::Ui,
        Self::Unit,
        Self::Simulation,
        Self::Soak,
    ];

    /// Returns the name of the suite in the header of a patch file. Except for `unit` and `soak`, this is also the name
    /// of the suite's test target.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Promises => "promises",
            Self::Faults => "faults",
            Self::Crowds => "crowds",
            Self::Options => "options",
            Self::Api => "api",
            Self::Operations => "operations",
            Self::Functions => "functions",
            Self::Ui => "ui",
            Self::Unit => "unit",
            Self::Simulation => "simulation",
            Self::Soak => "soak",
        }
    }
}

/// A mutant: a change to the engine's sources.
#[derive(Debug)]
pub struct Patch {
    /// The suite that has to notice the change.
    pub suite: Suite,
    /// The tests that must notice the change, each named by the beginning of its path. In the suites `faults`,
    /// `crowds` and `unit`, a name can be any part of the path.
    pub caught_by: Vec<String>,
    /// How the changed engine behaves.
    pub what: String,
    file: PathBuf,
}

impl Patch {
    /// Reads the header of a file. The error says what is wrong with the file.
    fn read(file: PathBuf) -> Result<Self, String> {
        let wrong = |what: &str| format!("{}: {what}", file.display());
        let text = fs::read_to_string(&file).map_err(|error| wrong(&error.to_string()))?;
        let header = text.split("\n\n").next().unwrap_or_default();
        let field = |name: &str| {
            let mut values = header.lines().filter_map(|line| line.strip_prefix(name));
            values
                .next()
                .map(str::trim)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| wrong(&format!("`{name}` is missing in the header")))
        };
        let suite = field("suite:")?;
        let suite = Suite::ALL.into_iter().find(|known| known.name() == suite);
        Ok(Self {
            suite: suite.ok_or_else(|| wrong("the suite is not known"))?,
            caught_by: field("caught-by:")?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            what: field("what:")?.to_owned(),
            file,
        })
    }

    /// Returns whether one of the names in `caught_by` begins with `test`.
    #[must_use]
    pub fn is_for(&self, test: &str) -> bool {
        self.caught_by.iter().any(|name| name.starts_with(test))
    }

    /// Checks whether the patch fits the sources in a folder.
    ///
    /// # Errors
    /// Git's error if the patch does not fit.
    pub fn check(&self, sources: &Path) -> Result<(), String> {
        self.git_apply(sources, &["--check"])
    }

    /// Applies the patch to the sources in a folder.
    ///
    /// # Errors
    /// Git's error if the patch does not fit, in which case no file is changed.
    pub fn apply(&self, sources: &Path) -> Result<(), String> {
        self.git_apply(sources, &[])
    }

    /// Undoes [`apply`](Self::apply).
    ///
    /// # Errors
    /// Git's error if the patch was not applied.
    pub fn revert(&self, sources: &Path) -> Result<(), String> {
        self.git_apply(sources, &["--reverse"])
    }

    fn git_apply(&self, sources: &Path, options: &[&str]) -> Result<(), String> {
        let output = Command::new("git")
            .arg("apply")
            .args(options)
            .arg(&self.file)
            .current_dir(sources)
            // With this setting, git does not find a repository that contains the folder. Inside a repository, `git
            // apply` would skip the files of the patch that are outside the current folder.
            .env("GIT_CEILING_DIRECTORIES", sources.join(".."))
            .output()
            .map_err(|error| format!("git: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}", self.file.display(), said.trim()))
    }
}

/// Returns all patches, in the order of their file names.
///
/// # Errors
/// The error names the file that cannot be read, and the reason.
pub fn all() -> Result<Vec<Patch>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants/patches");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|ending| ending == "patch"))
        .collect();
    files.sort();
    files.into_iter().map(Patch::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies_to_the_sources() {
        let patches = all().unwrap();
        assert!(!patches.is_empty());
        let checks = patches.iter().map(|patch| patch.check(support::root()));
        let wrong: Vec<String> = checks.filter_map(Result::err).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Collects the name and the text of each source file below a folder.
    fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
                found.push((name.to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }

    #[test]
    fn every_test_that_has_to_notice_exists() {
        for suite in [
            Suite::Promises,
            Suite::Faults,
            Suite::Crowds,
            Suite::Options,
            Suite::Simulation,
        ] {
            let mut files = Vec::new();
            sources(
                &support::root().join("tests").join(suite.name()),
                &mut files,
            );
            let patches = all().unwrap().into_iter();
            for patch in patches.filter(|patch| patch.suite == suite) {
                for test in &patch.caught_by {
                    let function = format!("fn {}", test.rsplit("::").next().unwrap());
                    let exists = files.iter().any(|(name, text)| {
                        name.starts_with(test.as_str()) || text.contains(&function)
                    });
                    assert!(exists, "{}: there is no test {test}", patch.file.display());
                }
            }
        }
    }

    #[test]
    fn a_patch_is_applied_and_reverted() {
        let folder = std::env::temp_dir().join(format!("patches_{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, file) = (folder.join("source.rs"), folder.join("mutant.patch"));
        fs::write(&source, "one\ntwo\n").unwrap();
        let diff = "--- a/source.rs\n+++ b/source.rs\n@@ -1,2 +1,2 @@\n-one\n+1\n two\n";
        let header = "suite: options\ncaught-by: keys::one keys::two\nwhat: counts otherwise\n\n";
        fs::write(&file, format!("{header}{diff}")).unwrap();
        let patch = Patch::read(file).unwrap();
        assert_eq!(patch.suite, Suite::Options);
        assert!(patch.is_for("keys::t") && !patch.is_for("one"));
        patch.check(&folder).unwrap();
        patch.apply(&folder).unwrap();
        assert_eq!(fs::read_to_string(&source).unwrap(), "1\ntwo\n");
        patch.apply(&folder).unwrap_err();
        patch.revert(&folder).unwrap();
        assert_eq!(fs::read_to_string(&source).unwrap(), "one\ntwo\n");
        fs::remove_dir_all(folder).unwrap();
    }
}
