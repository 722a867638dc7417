//! The state that the clones of a client share.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use lock_core::{backend::Backend, lease::Moment};

use crate::{
    background::{Context, shutdown::CancellationToken},
    events::Counters,
    lease::{
        hold::{HoldHost, HoldState, UnconfirmedRelease},
        registry::HoldRegistry,
        scheduler::RenewalScheduler,
    },
};

/// The state that all clones of a client share.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) registry: HoldRegistry,
    pub(crate) scheduler: Arc<RenewalScheduler>,
    /// Cancelled when the shutdown begins.
    pub(crate) shutdown: CancellationToken,
}

impl Shared {
    pub(crate) fn new(
        context: Arc<Context>,
        backend: Arc<dyn Backend>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            scheduler: Arc::new(RenewalScheduler::new(context.clone())),
            context,
            backend,
            counters,
            registry: HoldRegistry::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl HoldHost for Shared {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn begun(&self, hold: &Arc<HoldState>) {
        self.registry.add(hold);
        if !self.backend.maintains_leases() {
            self.scheduler.schedule(hold);
        }
    }

    fn due_by(&self, hold: &Arc<HoldState>, moment: Moment) {
        self.scheduler.bring_forward(hold, moment);
    }

    fn left(&self, hold: &Arc<HoldState>) {
        self.scheduler.remove(hold);
    }

    fn awaits_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment) {
        self.scheduler.watch_release(release, until);
    }

    fn released(&self, hold: &Arc<HoldState>) {
        self.registry.remove(hold);
    }
}
