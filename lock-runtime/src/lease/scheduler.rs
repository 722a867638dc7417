//! Renewal: the engine's thread extends the leases of holds while their bodies run.
//!
//! Holds that are due at the same moment share renewal commands. Each hold gets its own result, so the failed renewal
//! of one lock does not affect the others. The renewals continue even if a user's runtime is blocked or has ended.

use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Backend, BackendError, Extend, Renewed, ToRenew},
    lease::Moment,
};
use tokio::sync::Notify;

use crate::{
    background::{Context, Polled, ShutdownSignal, isolated, lock},
    events::TARGET,
    lease::{
        Applied, Requested,
        due_queue::{DueQueue, Scheduled},
        hold::{HoldState, UnconfirmedRelease},
        policy,
    },
    limits,
};

/// The scheduler of one client's renewals and checks. The scheduler also watches the releases that are not confirmed
/// yet.
#[derive(Debug)]
pub(crate) struct RenewalScheduler {
    context: Arc<Context>,
    backend: Arc<dyn Backend>,
    schedule: Mutex<DueQueue<HoldState>>,
    /// How often the backend's server has changed.
    changes: AtomicUsize,
    earlier: Arc<Notify>,
    started: AtomicBool,
    ending: ShutdownSignal,
    offers: Mutex<Offers>,
    releases: Mutex<Releases>,
}

/// A lock that was granted to a caller whose body has not begun.
#[derive(Debug)]
struct Offer {
    hold: Weak<HoldState>,
    /// The moment at which the lock is given back.
    until: Moment,
    /// The moment at which the engine asks the caller's runtime whether it runs.
    ask_at: Moment,
    polled: Option<Polled>,
}

impl Offer {
    /// Returns the hold if it still waits for its body.
    fn hold(&self) -> Option<Arc<HoldState>> {
        let hold = self.hold.upgrade();
        hold.filter(|hold| hold.unused_until().is_some())
    }
}

/// The locks that were granted to callers whose bodies have not begun.
#[derive(Debug, Default)]
struct Offers {
    offers: Vec<Offer>,
    /// The moment at which the scheduler next wakes to check the offers.
    armed: Option<Moment>,
}

/// The releases whose callers wait for the confirmation.
#[derive(Debug, Default)]
struct Releases {
    /// The releases, ordered by the moment at which each release moves to the background if it is still unconfirmed.
    unconfirmed: VecDeque<(Moment, Weak<dyn UnconfirmedRelease>)>,
    /// The moment at which the scheduler next wakes to check the releases.
    armed: Option<Moment>,
}

impl Releases {
    /// Removes each release at the front of the queue whose caller has stopped waiting. Most callers read the
    /// confirmation long before their release would move to the background.
    fn skip_confirmed(&mut self) {
        let confirmed =
            |(_, releasing): &(_, Weak<dyn UnconfirmedRelease>)| releasing.strong_count() == 0;
        while self.unconfirmed.front().is_some_and(confirmed) {
            self.unconfirmed.pop_front();
        }
    }
}

impl RenewalScheduler {
    pub(crate) fn new(context: Arc<Context>, backend: Arc<dyn Backend>) -> Self {
        Self {
            context,
            backend,
            schedule: Mutex::default(),
            changes: AtomicUsize::new(0),
            earlier: Arc::default(),
            started: AtomicBool::new(false),
            ending: ShutdownSignal::default(),
            offers: Mutex::default(),
            releases: Mutex::default(),
        }
    }

    /// Renews and checks a hold until [`remove`](Self::remove) is called. Does nothing for a hold that has no local
    /// deadline.
    pub(crate) fn schedule(self: &Arc<Self>, hold: &Arc<HoldState>) {
        let Some(due) = hold.first_due(self.context.now()) else {
            return;
        };
        self.insert(hold, due);
        if !self.started.swap(true, Ordering::AcqRel) {
            let scheduler = Arc::downgrade(self);
            self.context.spawn(run(scheduler, self.earlier.clone()));
        }
    }

    /// Makes the next renewal or check of a hold due at `due`, unless it is due earlier already. If a renewal of the hold
    /// is in progress, the next one will be due at `due` at the latest, or at once if `due` has passed by then.
    pub(crate) fn bring_forward(&self, hold: &Arc<HoldState>, due: Moment) {
        if lock(&self.schedule).bring_forward(hold, due) {
            self.earlier.notify_one();
        }
    }

    /// Renews or checks all holds soon, because the backend's server has changed, and may lack grants.
    fn check_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let (now, group) = (self.context.now(), self.backend.renewal_batch());
        lock(&self.schedule).bring_all_forward(now, group, limits::GROUP_PAUSE);
    }

    /// Gives the lock of a hold back if its body has not begun by `until`. Soon asks the runtime that has polled the caller
    /// whether it runs.
    pub(crate) fn watch_offer(&self, hold: &Arc<HoldState>, until: Moment, polled: Option<Polled>) {
        let ask_at = self.context.now() + limits::ASK_RUNTIME_AFTER;
        let mut taken = Vec::new();
        let mut offers = lock(&self.offers);
        if offers.offers.len() == offers.offers.capacity() {
            taken.extend(offers.offers.extract_if(.., |offer| offer.hold().is_none()));
        }
        offers.offers.push(Offer {
            hold: Arc::downgrade(hold),
            until,
            ask_at,
            polled,
        });
        let due = ask_at.min(until);
        let is_earlier = offers.armed.is_none_or(|armed| due < armed);
        if is_earlier {
            offers.armed = Some(due);
        }
        drop(offers);
        if is_earlier {
            self.earlier.notify_one();
        }
    }

    /// Gives back the locks whose bodies have not begun in time. Returns the moment at which the scheduler has to call this
    /// method again.
    fn withdraw_offers(&self, now: Moment) -> Option<Moment> {
        let (mut taken, mut untaken, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let next = {
            let mut offers = lock(&self.offers);
            if offers.armed.is_none_or(|armed| now < armed) {
                return offers.armed;
            }
            for mut offer in std::mem::take(&mut offers.offers) {
                match offer.hold() {
                    Some(hold) if offer.until <= now => late.push(hold),
                    Some(_) => {
                        if offer.ask_at <= now {
                            untaken.extend(offer.polled.take());
                            offer.ask_at = offer.until;
                        }
                        offers.offers.push(offer);
                        continue;
                    }
                    None => {}
                }
                taken.push(offer);
            }
            let due = offers
                .offers
                .iter()
                .map(|offer| offer.ask_at.min(offer.until));
            offers.armed = due.min();
            offers.armed
        };
        // With the last handle to a runtime, tokio drops the user's hooks.
        isolated(move || drop(taken));
        for caller in untaken {
            self.context.runtimes().ask(&self.context, &caller, now);
        }
        for hold in late {
            isolated(|| hold.give_up_unused(now));
        }
        next
    }

    /// Makes a release continue in the background if its caller has not read the answer by `until`.
    pub(crate) fn watch_release(&self, release: Weak<dyn UnconfirmedRelease>, until: Moment) {
        let mut releases = lock(&self.releases);
        releases.skip_confirmed();
        releases.unconfirmed.push_back((until, release));
        if releases.armed.is_none_or(|armed| until < armed) {
            releases.armed = Some(until);
            self.earlier.notify_one();
        }
    }

    /// Moves a release to the background if its caller has not read the answer in time. Returns the moment at which the
    /// scheduler has to call this method again. This moment does not change when a release is confirmed, so that a
    /// later release does not have to wake the scheduler.
    fn finish_releases(&self, now: Moment) -> Option<Moment> {
        let mut late = Vec::new();
        let next = {
            let mut releases = lock(&self.releases);
            if releases.armed.is_none_or(|armed| now < armed) {
                return releases.armed;
            }
            loop {
                releases.skip_confirmed();
                match releases.unconfirmed.front() {
                    Some((until, _)) if *until <= now => {}
                    _ => break,
                }
                let first = releases.unconfirmed.pop_front();
                late.extend(first.and_then(|(_, releasing)| releasing.upgrade()));
            }
            releases.armed = releases.unconfirmed.front().map(|(until, _)| *until);
            releases.armed
        };
        for releasing in late {
            isolated(move || releasing.go_on_in_background());
        }
        next
    }

    fn insert(&self, hold: &Arc<HoldState>, due: Moment) {
        let mut schedule = lock(&self.schedule);
        if !self.ending.has_begun() && schedule.insert(hold, due) {
            self.earlier.notify_one();
        }
    }

    /// Stops renewing and checking a hold.
    pub(crate) fn remove(&self, hold: &Arc<HoldState>) {
        let mut schedule = lock(&self.schedule);
        hold.due_entry().end();
        schedule.remove(hold);
    }

    /// Stops all renewals and checks, and logs a warning for each hold that needs them. The engine calls this method
    /// when the client has ended.
    pub(crate) fn end(&self) {
        let mut schedule = lock(&self.schedule);
        self.ending.begin();
        let holds = schedule.take_all();
        drop(schedule);
        let renewed =
            |hold: &&Arc<HoldState>| hold.is_in_use() && hold.is_valid() && hold.plan().is_some();
        for hold in holds.iter().filter(renewed) {
            tracing::warn!(target: TARGET, key = %hold.key, token = %hold.token,
                "the client was dropped or shut down while this lock is held, so its lease is no longer renewed");
        }
    }

    /// Handles the answer to a renewal or check that was sent at `now`. Returns `false` if the renewal or check has
    /// failed and has to be sent again.
    fn apply_answer(
        &self,
        sent: &SentRenewal,
        answer: Result<Renewed, BackendError>,
        now: Moment,
    ) -> bool {
        let hold = &sent.hold;
        match answer {
            Ok(answer) => {
                // A lost or released hold is not renewed again.
                let Ok(applied) = hold.apply(sent.requested, answer) else {
                    return true;
                };
                if applied == Applied::Renewed {
                    hold.renewed();
                    tracing::debug!(target: TARGET, key = %hold.key, token = %hold.token, extend = ?sent.extend, "lease renewed");
                }
                let lease = hold.plan().map_or(hold.terms.time, |plan| plan.lease);
                let renews = hold.step(now) != Extend::Check;
                if let Some(deadline) = hold.deadline() {
                    // The answer to a request from before a change can come from the previous server.
                    let is_current = sent.changes == self.changes.load(Ordering::Acquire);
                    let due = match is_current {
                        true => policy::next_due(lease, deadline, renews, now),
                        false => now,
                    };
                    self.insert(hold, due);
                }
            }
            Err(error) => {
                sent.failed(&error);
                return error == BackendError::ShutDown;
            }
        }
        true
    }
}

impl Drop for RenewalScheduler {
    fn drop(&mut self) {
        self.earlier.notify_one();
    }
}

/// Runs the scheduler's loop until the client has been dropped.
async fn run(scheduler: Weak<RenewalScheduler>, earlier: Arc<Notify>) {
    let mut server_changed = None;
    loop {
        let (next, is_changed) = {
            let Some(scheduler) = scheduler.upgrade() else {
                return;
            };
            let now = scheduler.context.now();
            let (due, next) = lock(&scheduler.schedule).take_due(now);
            let next = next
                .into_iter()
                .chain(scheduler.finish_releases(now))
                .chain(scheduler.withdraw_offers(now))
                .min();
            for holds in batches(&*scheduler.backend, due) {
                // Each batch has its own task, so a server that is slow or silent does not delay the other batches.
                scheduler
                    .context
                    .spawn(renew_together(scheduler.clone(), holds));
            }
            let next = next.map(|next| scheduler.context.sleep_until(next));
            let waiting = || scheduler.backend.server_changed();
            (next, server_changed.get_or_insert_with(waiting))
        };
        let next = async {
            match next {
                Some(next) => next.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = is_changed => {
                server_changed = None;
                if let Some(scheduler) = scheduler.upgrade() {
                    scheduler.check_all();
                }
            }
            () = next => {}
            () = earlier.notified() => {}
        }
    }
}

/// Divides holds of one client into batches. One command renews the holds of a batch. All holds of a batch belong to
/// one shard: in a Redis Cluster, a primary that does not answer would otherwise delay the answers of other primaries.
fn batches(backend: &dyn Backend, mut due: Vec<Arc<HoldState>>) -> Vec<Vec<Arc<HoldState>>> {
    let shard = |hold: &Arc<HoldState>| backend.shard(&hold.name);
    due.sort_by_cached_key(shard);
    let by_shard = due.chunk_by(|a, b| shard(a) == shard(b));
    let batches = by_shard.flat_map(|holds| holds.chunks(backend.renewal_batch()));
    batches.map(<[_]>::to_vec).collect()
}

/// A renewal or check of one hold, sent to the backend.
#[derive(Debug)]
struct SentRenewal {
    hold: Arc<HoldState>,
    extend: Extend,
    requested: Requested,
    /// How often the backend's server had changed when the request was sent.
    changes: usize,
    /// Whether the request has been counted as failed.
    has_failed: AtomicBool,
}

impl SentRenewal {
    fn of(hold: Arc<HoldState>, changes: usize, now: Moment) -> Self {
        let extend = hold.step(now);
        let requested = hold.request(extend, now);
        Self {
            hold,
            extend,
            requested,
            changes,
            has_failed: AtomicBool::new(false),
        }
    }

    /// Records that the renewal or check failed, or has no answer yet. A failed check is not counted as a failed
    /// renewal.
    fn failed(&self, error: &BackendError) {
        let is_renewal = matches!(self.extend, Extend::To(_));
        if is_renewal && !self.has_failed.swap(true, Ordering::AcqRel) {
            self.hold.renewal_failed(error);
        }
    }

    fn to_renew(&self) -> ToRenew<'_> {
        ToRenew {
            name: &self.hold.name,
            token: self.hold.token,
            extend: self.extend,
        }
    }
}

/// Whether a hold still needs renewals or checks. This function also notices if the hold's deadline has passed.
fn needs_renewal(hold: &HoldState) -> bool {
    let needs = isolated(|| hold.due_entry().is_scheduled() && hold.loss().is_none());
    // Only a loss runs code that can panic, and it ends the renewals of the hold.
    needs.unwrap_or(false)
}

/// Returns the earliest deadline of the holds that still need renewals or checks; `None` if no hold needs them.
fn first_deadline<'a>(holds: impl Iterator<Item = &'a Arc<HoldState>>) -> Option<Moment> {
    let renewed = holds.filter(|hold| needs_renewal(hold));
    renewed.filter_map(|hold| hold.deadline()).min()
}

/// Renews or checks each of `holds`, which belong to one client. If the renewal or check of a hold fails, tries again
/// until the hold's local deadline.
async fn renew_together(scheduler: Arc<RenewalScheduler>, mut holds: Vec<Arc<HoldState>>) {
    loop {
        let now = scheduler.context.now();
        let changes = scheduler.changes.load(Ordering::Acquire);
        let sent: Vec<_> = holds
            .drain(..)
            .filter(|hold| needs_renewal(hold))
            .map(|hold| SentRenewal::of(hold, changes, now))
            .collect();
        let Some(answers) = answers(&scheduler, &sent).await else {
            return;
        };
        for (sent, answer) in sent.into_iter().zip(answers) {
            let applied = isolated(|| scheduler.apply_answer(&sent, answer, now));
            // After a panic, a hold that is not lost is not in the schedule yet, so its renewal is sent again.
            if !applied.unwrap_or(false) {
                holds.push(sent.hold);
            }
        }
        let Some(deadline) = first_deadline(holds.iter()) else {
            return;
        };
        let retry = scheduler.context.now() + limits::RENEW_AGAIN;
        scheduler.context.sleep_until(retry.min(deadline)).await;
    }
}

/// Returns the backend's answers to these renewals and checks; `None` if all of their holds are lost or released before
/// the answers arrive, or if the client has ended. If one hold is lost, the function still waits for the other answers.
async fn answers(
    scheduler: &RenewalScheduler,
    sent: &[SentRenewal],
) -> Option<Vec<Result<Renewed, BackendError>>> {
    let grants: Vec<_> = sent.iter().map(SentRenewal::to_renew).collect();
    // The renewals also run code of the user: a recorder of metrics, and a layer for spans.
    let mut answers = AssertUnwindSafe(scheduler.backend.renew_all(&grants)).catch_unwind();
    let context = &scheduler.context;
    let asked_at = context.now();
    let mut is_awaited = false;
    loop {
        let deadline = first_deadline(sent.iter().map(|sent| &sent.hold))?;
        let patience = asked_at + limits::RENEWAL_PATIENCE;
        let until = if is_awaited {
            deadline
        } else {
            deadline.min(patience)
        };
        let answered = tokio::select! {
            biased;
            () = scheduler.ending.begun() => return None,
            answered = context.timeout_at(until, &mut answers) => answered,
        };
        match answered {
            Some(Ok(answers)) => return Some(answers),
            Some(Err(_)) => {
                let panicked = BackendError::Unreachable("a renewal has panicked".into());
                return Some(sent.iter().map(|_| Err(panicked.clone())).collect());
            }
            None => {}
        }
        if !is_awaited && context.now() >= patience {
            is_awaited = true;
            let error = BackendError::Unreachable(scheduler.backend.no_answer());
            let renewed = sent.iter().filter(|sent| needs_renewal(&sent.hold));
            for sent in renewed {
                isolated(|| sent.failed(&error));
            }
        }
    }
}

/// Keeps the renewals of a client running. Dropping this value ends the renewals.
#[derive(Debug)]
pub(crate) struct Renewals(pub(crate) Arc<RenewalScheduler>);

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.end();
    }
}
