//! Tests of the command-line tool, on real Redis processes.

mod arguments;
#[path = "../../../tests/options/authority.rs"]
mod authority;
mod doctor;
mod leader;
mod limit;
mod list;
mod readers;
mod release;
mod run;
mod serve;
mod tls;
mod tool;
mod viewer;
mod watch;
