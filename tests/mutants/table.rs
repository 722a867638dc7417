//! The mutants: one or more a promise, and for each test of a row of the fault matrix one that it catches.

mod faults;
mod options;
mod promises;
mod soak;

/// Which tests shall notice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// A promise's own, and no others of that suite.
    Promises,
    /// These rows, and whatever others.
    Faults,
    /// These options, and whatever others.
    Options,
    /// A soak of a minute, `calm` or with `faults`.
    Soak,
}

pub(crate) struct Mutant {
    pub(crate) suite: Suite,
    /// How the names of the tests that notice begin, without their module in the fault matrix.
    pub(crate) caught_by: &'static [&'static str],
    pub(crate) what: &'static str,
    pub(crate) changes: &'static [Change],
}

pub(crate) struct Change {
    pub(crate) file: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

/// All of them.
pub(crate) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [
        promises::MUTANTS,
        faults::MUTANTS,
        options::MUTANTS,
        soak::MUTANTS,
    ]
    .into_iter()
    .flatten()
}
