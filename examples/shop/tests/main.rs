//! The tests of the shop. Only the test of the demo needs a server, and the demo starts this server itself.

mod demo;
mod errors;
mod fixture;
mod health;
mod sales;
mod shutdown;
mod traces;
