//! A web shop that sells each item of its stock exactly once, however many processes of the shop run.
//!
//! The modules in the order in which a request passes through them: [`http`] → [`orders`] (the lock) → [`database`]
//! (the fenced writes). `README.md` describes the example.

pub mod database;
pub mod demo;
pub mod error;
pub mod http;
pub mod orders;
pub mod server;
pub mod telemetry;
