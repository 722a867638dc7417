//! A web shop that sells each item of its stock exactly once, however many processes of the shop run.
//!
//! A request passes through the modules in this order: [`http`] → [`orders`] (takes the lock) → [`database`] (makes the
//! fenced writes). `README.md` describes the example.

pub mod database;
pub mod demo;
pub mod error;
pub mod http;
pub mod orders;
pub mod server;
pub mod telemetry;
