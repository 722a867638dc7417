//! A moment that threads share without a mutex.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use lock_core::lease::Moment;

/// An optional moment that threads share without a mutex, stored in nanoseconds.
#[derive(Debug)]
pub(crate) struct AtomicMoment(pub(crate) AtomicU64);

impl AtomicMoment {
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn new(moment: Option<Moment>) -> Self {
        Self(AtomicU64::new(moment.map_or(Self::NONE, Self::nanos)))
    }

    pub(crate) fn nanos(moment: Moment) -> u64 {
        u64::try_from(moment.since_origin().as_nanos()).unwrap_or(Self::NONE - 1)
    }

    pub(crate) fn moment(nanos: u64) -> Option<Moment> {
        (nanos != Self::NONE).then(|| Moment::new(Duration::from_nanos(nanos)))
    }

    pub(crate) fn get(&self) -> Option<Moment> {
        Self::moment(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, moment: Option<Moment>) {
        let nanos = moment.map_or(Self::NONE, Self::nanos);
        self.0.store(nanos, Ordering::Release);
    }
}
