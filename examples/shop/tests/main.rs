//! The tests of the shop. Only the demo needs a server, which it starts itself.

mod demo;
mod errors;
mod fixture;
mod health;
mod sales;
mod shutdown;
mod traces;
