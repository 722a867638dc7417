//! Chooses the next step at random among the steps that are possible in the current state.

use std::{fmt, marker::PhantomData};

use lock_runtime::Strategy as Waiting;
use proptest::{prelude::*, sample::select, strategy::Union};
use proptest_state_machine::ReferenceStateMachine;

use crate::model::{CLIENTS, CallId, Form, KEYS, Lease, Model, NAMES, Rules, Spec, Stage, Wait};

/// The largest number of callers that hold a lock or wait at the same time.
const MOST_CALLS: usize = 8;

#[derive(Clone)]
pub(crate) enum Step {
    /// A call begins and is polled.
    Begin(CallId, Spec),
    /// A call begins, is polled once, and is dropped.
    Abandon { client: usize, key: usize },
    /// A caller leaves: the guard is released, or the body ends.
    Release(CallId),
    /// A call is dropped while it holds a lock or waits.
    Drop(CallId),
    /// A caller leaves, and the call that is next in the queue is dropped before it has noticed its turn.
    ReleaseTo { release: CallId, dropped: CallId },
    /// A caller that holds a lock extends the lease of its hold.
    Extend(CallId),
    /// The clock advances by this many ms.
    Advance(u64),
    /// The operator deletes the key of a held lock.
    Delete(usize),
    /// The operator deletes the key of a held lock for which callers wait. Directly afterwards, another caller makes a
    /// single attempt to get the lock. The fields are the lock, the new call and its client.
    DeleteAndTry(usize, CallId, usize),
    /// The operator makes the key of a held lock expire.
    Expire(usize),
    /// All connections are cut.
    Cut,
    /// A client is shut down.
    ShutDown(usize),
}

impl fmt::Debug for Step {
    // Prints the step on a single line, even with `{:#?}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(id, spec) => write!(f, "Begin({id}: {spec:?})"),
            Self::Abandon { client, key } => write!(f, "Abandon(client {client}, {})", NAMES[*key]),
            Self::Release(id) => write!(f, "Release({id})"),
            Self::Drop(id) => write!(f, "Drop({id})"),
            Self::ReleaseTo { release, dropped } => {
                write!(f, "ReleaseTo({release}, {dropped} dropped)")
            }
            Self::Extend(id) => write!(f, "Extend({id})"),
            Self::Advance(time) => write!(f, "Advance({time} ms)"),
            Self::Delete(key) => write!(f, "Delete({})", NAMES[*key]),
            Self::DeleteAndTry(key, id, client) => {
                write!(f, "DeleteAndTry({}, {id}: client {client})", NAMES[*key])
            }
            Self::Expire(key) => write!(f, "Expire({})", NAMES[*key]),
            Self::Cut => f.write_str("Cut"),
            Self::ShutDown(client) => write!(f, "ShutDown({client})"),
        }
    }
}

/// A backend, and the rules by which the model describes it.
pub(crate) trait Place: 'static {
    const RULES: Rules;
}

pub(crate) struct Reference<P>(PhantomData<P>);

impl<P: Place> ReferenceStateMachine for Reference<P> {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::new(P::RULES)).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Step> {
        let living = model.calls.iter().filter(|(_, call)| alive(call.stage));
        let living: Vec<CallId> = living.map(|(id, _)| *id).collect();
        let inside: Vec<CallId> = living
            .iter()
            .copied()
            .filter(|id| model.calls[id].is_inside())
            .collect();
        let mut steps = vec![(1, (0..CLIENTS).prop_map(Step::ShutDown).boxed())];
        if living.len() < MOST_CALLS {
            steps.push((20, begin(model, &inside)));
            // `join` makes a caller queue behind another caller of its client. Both callers can then get the lock as
            // one cohort.
            let lines = lines(model);
            if !lines.is_empty() {
                steps.push((10, join(model, lines)));
            }
        }
        // If a caller waits for a lock that its own client holds, the caller may be a member of the cohort that holds
        // the lock. Such callers are dropped more often than others.
        let members = members(model);
        if !members.is_empty() {
            steps.push((4, select(members).prop_map(Step::Drop).boxed()));
        }
        if !inside.is_empty() {
            steps.push((12, select(inside.clone()).prop_map(Step::Release).boxed()));
            steps.push((2, select(inside.clone()).prop_map(Step::Extend).boxed()));
        }
        if !living.is_empty() {
            steps.push((4, select(living).prop_map(Step::Drop).boxed()));
        }
        let turns = turns_to_waste(model, &inside);
        if !turns.is_empty() {
            steps.push((6, select(turns).boxed()));
        }
        if model.rules.own_clock {
            steps.push((
                10,
                select(vec![10, 30, 60, 100])
                    .prop_map(Step::Advance)
                    .boxed(),
            ));
        } else {
            let abandon = (0..CLIENTS, 0..KEYS);
            let abandon = abandon.prop_map(|(client, key)| Step::Abandon { client, key });
            steps.push((3, abandon.boxed()));
        }
        let held: Vec<usize> = (0..KEYS).filter(|key| removable(model, *key)).collect();
        if model.rules.operator {
            steps.push((1, Just(Step::Cut).boxed()));
            if !held.is_empty() {
                let mut contended = held.clone();
                contended.retain(|key| !model.keys[*key].queue.is_empty());
                if !contended.is_empty() {
                    let id = next_id(model);
                    let tries = (select(contended), 0..CLIENTS);
                    let tries =
                        tries.prop_map(move |(key, client)| Step::DeleteAndTry(key, id, client));
                    steps.push((2, tries.boxed()));
                }
                steps.push((1, select(held.clone()).prop_map(Step::Delete).boxed()));
                steps.push((1, select(held).prop_map(Step::Expire).boxed()));
            }
        }
        Union::new_weighted(steps).boxed()
    }

    fn apply(mut model: Model, step: &Step) -> Model {
        model.moments.clear();
        match step {
            Step::Begin(id, spec) => model.begin(*id, spec.clone()),
            Step::Abandon { client, .. } => model.abandon(*client),
            Step::Cut => {}
            Step::Release(id) => model.release(*id),
            Step::Drop(id) => model.drop_call(*id),
            Step::ReleaseTo { release, dropped } => model.release_to(*release, *dropped),
            Step::Extend(id) => model.extend(*id),
            Step::Advance(time) => model.advance(*time),
            Step::Delete(key) | Step::Expire(key) => model.remove(*key),
            Step::DeleteAndTry(key, id, client) => {
                model.remove(*key);
                model.begin(*id, Spec::once(*client, *key));
            }
            Step::ShutDown(client) => model.shut_down(*client),
        }
        model
    }

    fn preconditions(model: &Model, step: &Step) -> bool {
        is_possible(model, step) && !Self::apply(model.clone(), step).has_raced
    }
}

fn is_possible(model: &Model, step: &Step) -> bool {
    let is = |id: &CallId, wanted: fn(Stage) -> bool| {
        model.calls.get(id).is_some_and(|call| wanted(call.stage))
    };
    let inside = |stage| stage == Stage::Inside;
    match step {
        Step::Begin(id, spec) => !model.calls.contains_key(id) && may_begin(model, spec),
        Step::Abandon { client, .. } => !model.clients[*client].closed,
        Step::Release(id) => is(id, inside) && !keeps_for_its_own(model, *id),
        Step::Extend(id) => is(id, inside),
        Step::Drop(id) => is(id, alive),
        Step::ReleaseTo { release, dropped } => {
            is(release, inside)
                && would_get(model, *release, *dropped)
                && !keeps_for_its_own(model, *release)
        }
        Step::Delete(key) | Step::Expire(key) => removable(model, *key),
        Step::DeleteAndTry(key, id, _) => {
            let queue = &model.keys[*key].queue;
            let is_new = !model.calls.contains_key(id);
            is_new && removable(model, *key) && !queue.is_empty()
        }
        Step::ShutDown(client) => !model.clients[*client].closed,
        Step::Advance(_) | Step::Cut => true,
    }
}

fn next_id(model: &Model) -> CallId {
    model.calls.keys().last().map_or(0, |last| last + 1)
}

fn alive(stage: Stage) -> bool {
    !matches!(stage, Stage::Ended(_))
}

fn begin(model: &Model, inside: &[CallId]) -> BoxedStrategy<Step> {
    let id = next_id(model);
    let rules = model.rules;
    let around: Vec<Option<CallId>> = std::iter::repeat_n(None, 3)
        .chain(inside.iter().copied().map(Some))
        .collect();
    let around = (prop::bool::weighted(0.4), select(around));
    let clients = (around, 0..CLIENTS)
        .prop_map(|((nested, around), client)| (around.filter(|_| nested), client));
    let keys = prop_oneof![
        6 => (0..KEYS).prop_map(|key| vec![key]),
        1 => (0..KEYS, 1..KEYS).prop_map(|(key, on)| vec![key, (key + on) % KEYS]),
    ];
    let waiting = prop_oneof![9 => Just(Waiting::Handoff), 1 => Just(Waiting::Spin)];
    let short = u32::from(rules.own_clock);
    let wait = prop_oneof![
        2 => Just(Wait::Zero),
        8 => Just(Wait::Long),
        3 * short => Just(Wait::Short),
    ];
    let lease = prop_oneof![
        5 => Just(Lease::Renewed),
        3 => Just(Lease::Long),
        4 * short => Just(Lease::Short),
    ];
    let form = prop_oneof![Just(Form::Guard), Just(Form::Body)];
    let at_least = prop::bool::weighted(0.15);
    let owners = model.calls.iter().map(|(id, call)| (*id, call.spec.client));
    let owners: std::collections::BTreeMap<CallId, usize> = owners.collect();
    (clients, keys, form, waiting, wait, lease, at_least)
        .prop_map(
            move |((under, client), keys, form, strategy, wait, lease, at_least)| {
                let several = keys.len() > 1;
                let client = under.map_or(client, |around| owners[&around]);
                let spins = strategy == Waiting::Spin;
                let spec = Spec {
                    client,
                    form: if several { Form::Body } else { form },
                    strategy: if several { Waiting::Handoff } else { strategy },
                    wait: if several && wait == Wait::Short {
                        Wait::Long
                    } else {
                        wait
                    },
                    lease: match lease {
                        _ if several => Lease::Renewed,
                        Lease::Short if spins => Lease::Long,
                        lease => lease,
                    },
                    // The test's functions with two locks have no minimum hold. A caller with `spin` may be granted the
                    // lock at any millisecond, so its minimum hold might end at the same time as another event.
                    at_least: at_least && !several && !spins,
                    under: under.filter(|_| !several),
                    keys,
                };
                Step::Begin(id, spec)
            },
        )
        .boxed()
}

/// Returns a pair for each lock with a queue: the client of the last caller in the queue, and the lock. Omits clients
/// that are shut down.
fn lines(model: &Model) -> Vec<(usize, usize)> {
    let keys = model.keys.iter().enumerate();
    let lines = keys.filter_map(|(key, state)| {
        let last = state.queue.back()?;
        Some((model.calls[last].spec.client, key))
    });
    lines
        .filter(|(client, _)| !model.clients[*client].closed)
        .collect()
}

/// Returns a step in which a client whose caller is last in a queue begins another call for the same lock.
fn join(model: &Model, lines: Vec<(usize, usize)>) -> BoxedStrategy<Step> {
    let id = next_id(model);
    let form = prop_oneof![Just(Form::Guard), Just(Form::Body)];
    let lease = prop_oneof![Just(Lease::Renewed), Just(Lease::Long)];
    let at_least = prop::bool::weighted(0.1);
    (select(lines), form, lease, at_least)
        .prop_map(move |((client, key), form, lease, at_least)| {
            let spec = Spec {
                form,
                lease,
                at_least,
                ..Spec::patient(client, key)
            };
            Step::Begin(id, spec)
        })
        .boxed()
}

/// Returns the callers that wait for a lock that their own client holds.
fn members(model: &Model) -> Vec<CallId> {
    let members = model.keys.iter().flat_map(|key| {
        let holder = key.held.map(|held| model.holds[held.hold].client);
        let waiting = key.queue.iter().copied();
        waiting.filter(move |id| Some(model.calls[id].spec.client) == holder)
    });
    members.collect()
}

/// Returns whether a call with these options may begin. The order in which calls outside the queue and calls with
/// several locks enter is not determined. Therefore, at most one call outside the queue waits for each lock at a time,
/// and at most one call with several locks waits in total.
fn may_begin(model: &Model, spec: &Spec) -> bool {
    let fits = spec.under.is_none_or(|around| {
        let around = model.calls.get(&around);
        around.is_some_and(|call| call.is_inside() && call.spec.client == spec.client)
    });
    let several = |spec: &Spec| spec.keys.len() > 1;
    let unordered = |spec: &Spec| spec.strategy != Waiting::Handoff;
    let clashes = |other: &Spec| {
        let open = |spec: &Spec| several(spec) || unordered(spec);
        let shared = spec.keys.iter().any(|key| other.keys.contains(key));
        several(spec) && several(other) || open(spec) && open(other) && shared
    };
    let mut waiting = model.calls.values().filter(|call| call.is_waiting());
    fits && (spec.wait == Wait::Zero || !waiting.any(|call| clashes(&call.spec)))
}

/// Returns whether the model can predict the next holder of a lock if the lock's grant is removed. There are three
/// cases in which the model cannot predict the next holder:
/// - No waiter would notice the removal.
/// - The first waiter has the same client as the holder. This waiter may be a member of the cohort that holds the lock.
///   A member of a cohort queues again only when its process notices the loss.
/// - The holder is a call with several locks that still waits for its next lock. Such a holder queues again when it
///   next confirms its grant, or when its process gets the lock again. The model knows neither time.
fn removable(model: &Model, key: usize) -> bool {
    let state = &model.keys[key];
    let holder = state.held.map(|held| &model.holds[held.hold]);
    let holder = holder.filter(|hold| hold.used).map(|hold| hold.client);
    let next = state.queue.front();
    let next = next.map(|next| model.calls[next].spec.client);
    holder.is_some() && next != holder && model.is_watched(key)
}

/// Returns whether a call has a minimum hold on a server, and another call of the same client waits for one of its
/// locks. If the call ended, its minimum hold would keep the lock taken for half an hour, and the client's shutdown
/// would wait until the lock is free.
fn keeps_for_its_own(model: &Model, id: CallId) -> bool {
    let call = &model.calls[&id];
    let waits_itself = |key: &usize| {
        let mut waiting = model.keys[*key].queue.iter();
        waiting.any(|other| model.calls[other].spec.client == call.spec.client)
    };
    !model.rules.own_clock && call.spec.at_least && call.spec.keys.iter().any(waits_itself)
}

/// Returns whether the call `waiting` gets a lock when the call `release` leaves. Returns false if the client of `waiting` does
/// not know yet that an older hold of this lock is gone: it may learn of that from the new grant before `waiting` is dropped.
fn would_get(model: &Model, release: CallId, waiting: CallId) -> bool {
    let entries = &model.calls[&release].entries;
    entries.iter().any(|entry| {
        let hold = &model.holds[entry.hold];
        let unaware = model.holds.iter().any(|older| {
            older.key == hold.key
                && older.client == model.calls[&waiting].spec.client
                && older.entries > 0
                && !older.stands
                && !older.known_lost
        });
        let is_next = model.keys[hold.key].queue.front() == Some(&waiting);
        hold.entries == 1 && hold.stands && is_next && !unaware
    })
}

fn turns_to_waste(model: &Model, inside: &[CallId]) -> Vec<Step> {
    let heads = model
        .keys
        .iter()
        .filter_map(|key| key.queue.front().copied());
    let heads: Vec<CallId> = heads.collect();
    let pairs = inside.iter().flat_map(|release| {
        let gets = heads
            .iter()
            .filter(|head| would_get(model, *release, **head));
        gets.map(|dropped| Step::ReleaseTo {
            release: *release,
            dropped: *dropped,
        })
    });
    pairs.collect()
}
