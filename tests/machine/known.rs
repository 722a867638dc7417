//! Defects that the machine has found and that stand. What leads to them is left out of its sequences, and each has a
//! test here that fails until it is mended: then both go.

use lock_runtime::Strategy;

use crate::{
    model::{CallId, Lease, Model, Spec},
    steps::Step,
};

/// Whether a step leads to one.
pub(crate) fn leads_to_a_defect(model: &Model, step: &Step) -> bool {
    match step {
        Step::ShutDown(client) => model.rules.own_clock && notified(model).any(|of| of == *client),
        Step::Release(id) | Step::Drop(id) | Step::ReleaseTo { release: id, .. } => {
            model.rules.own_clock && is_kept_for_one_who_is_notified(model, *id)
        }
        Step::Begin(_, spec) => model.rules.own_clock && mixes(model, spec),
        _ => false,
    }
}

/// One who is notified, and one behind or before it whose lease can end by itself.
fn mixes(model: &Model, spec: &Spec) -> bool {
    let notified = |spec: &Spec| spec.strategy == Strategy::Notify;
    let ends = |spec: &Spec| spec.lease == Lease::Short;
    let mut waiting = model.calls.values().filter(|call| call.is_waiting());
    waiting.any(|call| {
        call.spec.keys.iter().any(|key| spec.keys.contains(key))
            && (notified(spec) && ends(&call.spec) || notified(&call.spec) && ends(spec))
    })
}

fn is_kept_for_one_who_is_notified(model: &Model, leaves: CallId) -> bool {
    let Some(call) = model.calls.get(&leaves) else {
        return false;
    };
    call.entries.iter().any(|entry| {
        let hold = &model.holds[entry.hold];
        let mut others = model.keys[hold.key].others.iter();
        (call.spec.at_least || hold.keep_until > model.now)
            && others.any(|id| model.calls[id].spec.strategy == Strategy::Notify)
    })
}

/// The clients of those who wait by `notify`.
fn notified(model: &Model) -> impl Iterator<Item = usize> {
    let waiting = model.calls.values().filter(|call| call.is_waiting());
    waiting
        .filter(|call| call.spec.strategy == Strategy::Notify)
        .map(|call| call.spec.client)
}
