//! The functions that the attribute accepts, the functions that it refuses, and its error messages.
//!
//! `fail/` contains one file for each kind of mistake, and a `.stderr` file of the same name with the expected
//! messages. After you change a message, run the test with `TRYBUILD=overwrite` and review the diff.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("pass/*.rs");
    cases.compile_fail("fail/*.rs");
}
