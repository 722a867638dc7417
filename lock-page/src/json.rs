//! The page's views as JSON documents. Most fields have the same names as in the JSON output of the command-line tool
//! `lockctl`.

use std::time::{Duration, UNIX_EPOCH};

use lock_runtime::Caller;
use serde_json::{Value, json};

use crate::{
    html::event_text,
    state::{EventKind, Hold, Ms, PAGE, Since, State, View},
};

/// Returns a view as a JSON document.
pub(crate) fn view(state: &State, view: &View, now: Ms) -> Value {
    let mut json = match view {
        View::List {
            prefix,
            page,
            waiting,
        } => {
            let listed = state.list(view);
            let locks = listed.rows.iter().map(|(key, lock)| {
                let reading = lock.reading.as_ref();
                let hold = reading.and_then(|reading| reading.hold.as_ref());
                let mut json = hold.map_or_else(|| json!({}), |hold| holder(hold, now));
                json["key"] = (*key).into();
                json["waiting"] = reading.map(|reading| reading.waiting).into();
                json
            });
            json!({
                "prefix": prefix,
                "only_waiting": waiting,
                "page": page + 1,
                "pages": listed.selected.div_ceil(PAGE).max(1),
                "held": listed.held,
                "read": listed.read,
                "waiting": listed.waiting,
                "more_than_shown": state.is_cut,
                "locks": locks.collect::<Vec<_>>(),
            })
        }
        View::Lock { key } => {
            let reading = state.lock(key);
            let hold = reading.and_then(|reading| reading.hold.as_ref());
            let queue = state.queue(key).iter().enumerate().map(|(index, queued)| {
                json!({
                    "position": index + 1,
                    "owner": queued.owner,
                    "session": queued.session,
                    "caller": queued.caller.as_ref().map(caller),
                    "queued_ms": now.saturating_sub(queued.since),
                    "gives_up_in_ms": queued.gives_up.saturating_sub(now),
                })
            });
            json!({
                "key": key,
                "held": hold.is_some(),
                "holder": hold.map(|hold| holder(hold, now)),
                "waiting": reading.map(|reading| reading.waiting),
                "queue": queue.collect::<Vec<_>>(),
            })
        }
        View::History => {
            let events = state.history().map(|event| {
                let at = UNIX_EPOCH + Duration::from_millis(event.at);
                json!({
                    "at": humantime::format_rfc3339_millis(at).to_string(),
                    "event": match &event.kind {
                        EventKind::Forced { .. } => "forced",
                        EventKind::LeaseEnded => "lease_ended",
                        EventKind::GoneAfterOutage => "gone_after_outage",
                    },
                    "text": event_text(&event.kind),
                    "key": event.key,
                    "token": event.token.map(u64::from),
                    "owner": event.owner,
                    "caller": event.caller.as_ref().map(caller),
                })
            });
            json!({ "history": events.collect::<Vec<_>>() })
        }
    };
    json["complete"] = state.is_complete(view, now).into();
    json["trouble"] = state
        .trouble(view)
        .map(|trouble| trouble.text.clone())
        .into();
    json
}

fn holder(hold: &Hold, now: Ms) -> Value {
    let (Since::Exactly(since) | Since::AtLatest(since)) = hold.since;
    json!({
        "token": hold.token.map(u64::from),
        "owner": hold.owner,
        "state": if hold.kept { "kept" } else { "held" },
        "mode": if hold.readers > 0 { "read" } else { "write" },
        "readers": hold.readers,
        "caller": hold.caller.as_ref().map(caller),
        "held_for_ms": now.saturating_sub(since),
        "held_for_is_exact": matches!(hold.since, Since::Exactly(_)),
        "lease_ms": hold.ends.map(|_| hold.lease),
        "lease_left_ms": hold.ends.map(|ends| ends.saturating_sub(now)),
    })
}

fn caller(caller: &Caller) -> Value {
    json!({
        "application": caller.application,
        "host": caller.host,
        "pid": caller.pid,
        "function": caller.function,
    })
}
