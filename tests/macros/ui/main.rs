//! The functions that the attribute accepts and refuses, and its error messages.
//!
//! `fail/` has one file for each kind of mistake, and the expected messages in a `.stderr` file of the same name. After
//! a change of messages, run the test with `TRYBUILD=overwrite` and review the diff.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("macros/ui/pass/*.rs");
    cases.compile_fail("macros/ui/fail/*.rs");
}
