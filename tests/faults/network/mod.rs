//! The network: requests, replies and pushes that are late, lost, repeated or forged.

mod forged;
mod pushes;
mod requests;
mod slow_line;
