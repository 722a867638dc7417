#![doc = include_str!("../README.md")]
//!
//! # Modules
//! [`backend::Backend`] is the contract of the built-in backends. A client accepts no other backend.

pub mod advice;
pub mod backend;
pub mod duration;
pub mod error;
pub mod fencing;
pub mod key;
pub mod layout;
pub mod lease;
pub mod options;
pub mod owner;
