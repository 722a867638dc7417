//! The functions that the attribute accepts and refuses, and its error messages.
//!
//! `fail/` has one case per mistake, numbered as in the list of mistakes. After a change of messages run with
//! `TRYBUILD=overwrite` and read the difference.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("macros/ui/pass/*.rs");
    cases.compile_fail("macros/ui/fail/*.rs");
}
