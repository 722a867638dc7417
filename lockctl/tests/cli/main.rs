//! Tests of the command-line tool, on real Redis processes.

mod arguments;
mod doctor;
mod list;
mod release;
mod run;
mod serve;
mod tool;
mod viewer;
mod watch;
