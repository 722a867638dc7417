//! The requests to the in-process backend: attempts to acquire a lock, and the other methods of a backend.

use super::*;

struct MemoryAttempt {
    registry: Arc<Registry>,
    link: Arc<Link>,
    application: Arc<str>,
    shutting_down: Arc<AtomicBool>,
    request: Request,
    look: Arc<Notify>,
    deadline: Moment,
    /// The ticket that orders the caller among the waiters, or `None` until the caller waits.
    ticket: Option<u64>,
    /// How often the caller was queued: once at first, and once more after each offer that it missed.
    queued: u32,
    /// The number of waiters that were before the caller when it left the queue; `None` if it was not in the queue.
    ahead: Option<usize>,
    settled: bool,
}

impl MemoryAttempt {
    /// Tries to enter the lock. If the lock is not free, or others wait for it, queues a caller whose request has a
    /// `wait`.
    fn view(&mut self) -> View {
        let Self {
            registry,
            application,
            request,
            look,
            deadline,
            ticket,
            queued,
            ..
        } = self;
        registry.with(&request.name, |slot, common| {
            let mut held = slot.held.iter_mut();
            if let Some(held) = held.find(|held| held.owner == request.owner) {
                // The owner takes its offer, so the owner's lease begins now.
                let until = end(request.lease);
                held.until = until.map(|until| until + limits::MEMORY_MARGIN);
                let now = CLOCK.now();
                let handoff = (held.stage == Stage::Offered).then(|| now.since(held.since));
                (held.since, held.stage) = (now, Stage::Entered);
                let granted = View::Granted(held.token, until, handoff);
                slot.nudge(common);
                return granted;
            }
            if slot.queue.is_empty() && slot.fits(request.mode) {
                let until = end(request.lease);
                let ends = until.map(|until| until + limits::MEMORY_MARGIN);
                let origin = origin(request, application);
                let who = (request.owner, request.mode);
                let token = slot.grant(who, origin, ends, Stage::Entered, common);
                return View::Granted(token, until, None);
            }
            let holder_ends = slot.held.iter().filter_map(|held| held.until).min();
            if request.wait.is_zero() {
                return View::Busy;
            }
            let ticket = *ticket.get_or_insert_with(|| TICKETS.fetch_add(1, Ordering::Relaxed));
            // A waiter that was offered the lock, but was polled too late, returns to its old place in the queue.
            if let Err(place) = slot.place(ticket) {
                let waiter = Waiter {
                    ticket,
                    owner: request.owner,
                    mode: request.mode,
                    origin: origin(request, application),
                    deadline: *deadline,
                    claim: claim_after(*queued),
                    look: look.clone(),
                };
                *queued += 1;
                slot.queue.insert(place, waiter);
            }
            // Some waiters might not be polled. Every waiter therefore checks the lock again when the present grant or
            // offer ends, or after a claim (2 s), whichever is earlier.
            let soon = CLOCK.now() + CLAIM;
            View::Waiting(holder_ends.map_or(soon, |ends| ends.min(soon)))
        })
    }

    fn granted(
        &self,
        token: FencingToken,
        valid_until: Option<Moment>,
        handoff: Option<Duration>,
    ) -> Grant {
        Grant {
            token,
            valid_until,
            validity: self.request.lease.time,
            queued: self.ticket.is_some(),
            handoff,
        }
    }
}

impl Attempt for MemoryAttempt {
    fn enter(&mut self) -> BoxFuture<'_, Result<Answer, BackendError>> {
        Box::pin(async move {
            self.deadline = CLOCK.now() + self.request.wait;
            let look = self.look.clone();
            loop {
                self.link.works().await;
                if self.shutting_down.load(Ordering::Acquire) {
                    return Err(BackendError::ShutDown);
                }
                match self.view() {
                    View::Granted(token, until, handoff) => {
                        self.settled = true;
                        return Ok(Answer::Granted(self.granted(token, until, handoff)));
                    }
                    View::Busy => {
                        self.settled = true;
                        return Ok(Answer::Busy);
                    }
                    View::Waiting(soon) => tokio::select! {
                        biased;
                        () = look.notified() => {}
                        () = CLOCK.sleep_until(soon) => {}
                    },
                }
            }
        })
    }

    fn leave(&mut self) -> BoxFuture<'_, Result<Leaving, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            Ok(self.leave_now())
        })
    }

    fn held_by(&self) -> Option<Box<HeldBy>> {
        let holder = self.registry.status(&self.request.name).holder?;
        Some(Box::new(HeldBy::new(holder, self.ahead)))
    }
}

impl MemoryAttempt {
    fn leave_now(&mut self) -> Leaving {
        let may_enter = self.registry.with(&self.request.name, |slot, _| {
            let mut held = slot.held.iter();
            held.any(|held| held.owner == self.request.owner)
                    // A holder that releases the lock after the end of this `wait` does not wake this caller.
                    || slot.queue.is_empty() && slot.fits(self.request.mode)
        });
        let leaving = match may_enter.then(|| self.view()) {
            Some(View::Granted(token, until, handoff)) => {
                Leaving::Granted(self.granted(token, until, handoff))
            }
            _ => {
                self.ahead = self.registry.with(&self.request.name, |slot, common| {
                    let ahead = self.ticket.and_then(|ticket| slot.place(ticket).ok());
                    slot.remove(self.request.owner, self.ticket, common);
                    ahead
                });
                Leaving::Left
            }
        };
        self.settled = true;
        leaving
    }
}

impl Drop for MemoryAttempt {
    fn drop(&mut self) {
        if !self.settled {
            self.registry.with(&self.request.name, |slot, common| {
                slot.remove(self.request.owner, self.ticket, common);
            });
        }
    }
}

impl Backend for MemoryBackend {
    fn now(&self) -> Moment {
        CLOCK.now()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        CLOCK.sleep_until(deadline)
    }

    fn maintains_leases(&self) -> bool {
        true
    }

    fn attempt(&self, request: Request) -> Box<dyn Attempt> {
        Box::new(MemoryAttempt {
            registry: self.registry.clone(),
            link: self.link.clone(),
            application: self.application.clone(),
            shutting_down: self.shutting_down.clone(),
            deadline: CLOCK.now() + request.wait,
            request,
            look: Arc::default(),
            ticket: None,
            queued: 0,
            ahead: None,
            settled: false,
        })
    }

    fn acquire_multi(
        &self,
        requests: Vec<Request>,
    ) -> BoxFuture<'_, Result<MultiAnswer, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            if self.shutting_down.load(Ordering::Acquire) {
                return Err(BackendError::ShutDown);
            }
            Ok(self.registry.acquire_multi(&requests, &self.application))
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        let answer = if self.link.is_down() {
            Err(BackendError::Unreachable(PRETENDED_OUTAGE.into()))
        } else {
            Ok(self.registry.release(name, token, retain_until))
        };
        Box::pin(std::future::ready(answer))
    }

    fn release_in_background(
        &self,
        name: &LockName,
        token: FencingToken,
        retain_until: Option<Moment>,
        lease_ends: Option<Moment>,
        _: Moment,
    ) {
        let released = self.registry.release(name, token, retain_until);
        if released == Released::Released && lease_ends.is_some() {
            count(&self.counters.released);
        }
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        extend: Extend,
    ) -> BoxFuture<'a, Result<Renewed, BackendError>> {
        let renewed = self
            .registry
            .with(name, |slot, common| match slot.entered(token) {
                Some(held) => {
                    let until = CLOCK.now() + extend.lease();
                    match extend {
                        Extend::Check | Extend::To(_) => {
                            held.until =
                                held.until.map(|old| old.max(until + limits::MEMORY_MARGIN));
                            Renewed::Until(
                                held.until
                                    .map_or(until, |ends| ends - limits::MEMORY_MARGIN),
                            )
                        }
                        Extend::Restart(lease) => {
                            // A lease of `Duration::MAX` has no end, so the grant lasts as long as its hold.
                            held.until =
                                (lease < Duration::MAX).then_some(until + limits::MEMORY_MARGIN);
                            slot.nudge(common);
                            Renewed::Until(until)
                        }
                    }
                }
                None => Renewed::NotHeld,
            });
        Box::pin(std::future::ready(Ok(renewed)))
    }

    fn replicate<'a>(
        &'a self,
        _: &'a [(&'a LockName, FencingToken)],
        replicas: Replicas,
    ) -> BoxFuture<'a, Result<Replicated, BackendError>> {
        // The locks of this backend are lost only when the process itself ends, so no replica is needed.
        let replicated = Replicated::By {
            count: replicas.count,
            until: self.now() + MAX_LEASE,
        };
        Box::pin(std::future::ready(Ok(replicated)))
    }

    fn last_error(&self) -> Option<String> {
        self.link.is_down().then(|| PRETENDED_OUTAGE.into())
    }

    fn is_cut_off(&self, _: &LockName) -> bool {
        self.link.is_down()
    }

    fn is_answering<'a>(&'a self, _: Option<&'a LockName>, _: Duration) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(!self.link.is_down()))
    }

    fn downgrade<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            Ok(self.registry.with(name, |slot, common| {
                let Some(held) = slot.entered(token) else {
                    return false;
                };
                held.mode = Mode::Read;
                slot.admit(common);
                true
            }))
        })
    }

    fn lead<'a>(
        &'a self,
        name: &'a LockName,
        token: FencingToken,
        step: TermStep,
    ) -> BoxFuture<'a, Result<Option<Led>, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            Ok(self.registry.lead(name, token, step))
        })
    }

    fn limit<'a>(
        &'a self,
        name: &'a LockName,
        step: LimitStep,
    ) -> BoxFuture<'a, Result<Option<u32>, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            Ok(self.registry.limit(name, step))
        })
    }

    fn latch<'a>(
        &'a self,
        name: &'a LockName,
        lock: Option<&'a LockName>,
        step: LatchStep,
    ) -> BoxFuture<'a, Result<Option<Round>, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            let origin = Origin {
                application: self.application.clone(),
                function: "",
            };
            Ok(self.registry.latch(name, lock, step, origin))
        })
    }

    fn status<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Status, BackendError>> {
        Box::pin(async move {
            self.link.works().await;
            Ok(self.registry.status(name))
        })
    }

    fn begin_shutdown(&self) {
        self.shutting_down.store(true, Ordering::Release);
        self.registry.change(|State { common, locks, .. }| {
            for slot in locks.values() {
                let queued = slot.queue.iter().map(|waiter| waiter.look.clone());
                common.woken.extend(queued);
            }
        });
    }

    fn close(&self, _until: Moment) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
