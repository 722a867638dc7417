//! The protocol between a client and a server: keys, scripts, requests, replies and grants.

pub(crate) mod command;
pub(crate) mod grant;
pub(crate) mod layout;
pub(crate) mod request;
pub(crate) mod scripts;
pub(crate) mod slot;
pub(crate) mod words;
