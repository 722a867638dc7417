//! Stands in for `cluster` if the feature `cluster` is off. There is no value of the type `Cluster`, so the compiler
//! removes the code that uses one.
#![expect(
    clippy::unused_async,
    reason = "the methods are those of the module `cluster`"
)]

use std::sync::Arc;

use lock_core::{backend::BackendError, key::LockName, lease::Moment};
use tokio::sync::Notify;

use crate::{
    backend::redis::{
        core::Link,
        preflight::Failure,
        session::{Host, Session},
        topology::node::Node,
        transport::{
            call_error::Redirect,
            connection::Connection,
            connector::{Connector, ServerCheck},
        },
    },
    background::Context,
};

#[derive(Debug)]
pub(crate) enum Cluster {}

impl Cluster {
    pub(crate) fn new(_: Arc<Context>, _: Vec<Connector>, _: Arc<Notify>, _: Host) -> Arc<Self> {
        unreachable!("the builder has refused the URL of a cluster")
    }

    pub(crate) async fn node(self: &Arc<Self>, _: &LockName) -> Result<Arc<Node>, BackendError> {
        match **self {}
    }

    pub(crate) fn known_node(&self, _: &LockName) -> Option<Arc<Node>> {
        match *self {}
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match *self {}
    }

    pub(crate) fn node_of(&self, _: &Arc<Session>) -> Option<Arc<Node>> {
        match *self {}
    }

    pub(crate) fn linked(&self, _: Link) -> Option<Arc<Session>> {
        match *self {}
    }

    pub(crate) fn serves(&self, _: &Arc<Session>, _: &LockName) -> bool {
        match *self {}
    }

    pub(crate) async fn connected(
        self: &Arc<Self>,
        _: &LockName,
    ) -> Result<(Arc<Node>, Arc<Connection>), BackendError> {
        match **self {}
    }

    pub(crate) async fn connection(
        &self,
        _: &Arc<Session>,
        _: &LockName,
    ) -> Result<Arc<Connection>, BackendError> {
        match *self {}
    }

    pub(crate) fn at(&self, _: &Redirect) -> Arc<Node> {
        match *self {}
    }

    pub(crate) fn moved(&self, _: &Redirect) {
        match *self {}
    }

    pub(crate) fn seed(&self) -> &Connector {
        match *self {}
    }

    pub(crate) async fn check(self: &Arc<Self>, _: ServerCheck, _: Moment) -> Result<(), Failure> {
        match **self {}
    }

    pub(crate) fn check_later(&self, _: ServerCheck) {
        match *self {}
    }

    pub(crate) fn begin_shutdown(&self) {
        match *self {}
    }

    pub(crate) fn is_closed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn close(&self) {
        match *self {}
    }
}
