//! The page as HTML. The template engine `maud` escapes each text.

use std::{
    fmt,
    time::{Duration, UNIX_EPOCH},
};

use lock_runtime::{Caller, FencingToken, Holder};
use maud::{DOCTYPE, Markup, html};

use crate::state::{
    Event, EventKind, Hold, LOCKS_AT_MOST, Lock, Ms, PAGE, Queued, Reading, Since, State, Trouble,
    View,
};

/// The parts of a page that change while the page is shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The `id` attributes of the page's elements that change, each with the element's new HTML.
    pub(crate) regions: Vec<(&'static str, String)>,
    /// The identities of the table's rows, each with the row's HTML.
    pub(crate) rows: Vec<(String, String)>,
    /// Whether everything that the page shows was read from the lock server.
    is_complete: bool,
}

/// The path under which a page is mounted, and the moment at which it is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) base: &'a str,
    /// The present moment, or `None` for a part of the page that is sent to the page's script. Such a part leaves out
    /// the times that change from second to second, because the script writes them.
    pub(crate) now: Option<Ms>,
    pub(crate) source: &'a Source,
}

/// The lock server and the namespace of the locks that a page shows.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) server: String,
    pub(crate) namespace: Option<String>,
}

impl Place<'_> {
    /// Returns the address of a page. The address of the front page has no slash at its end, because axum serves a
    /// nested router's root without this slash.
    fn link(&self, page: &str, query: &[(&str, &str)]) -> String {
        let mut link = format!("{}/{page}", self.base);
        if page.is_empty() && !self.base.is_empty() {
            link.truncate(self.base.len());
        }
        if !query.is_empty() {
            let mut pairs = form_urlencoded::Serializer::new(String::new());
            pairs.extend_pairs(query);
            link = format!("{link}?{}", pairs.finish());
        }
        link
    }

    fn lock(&self, key: &str) -> String {
        self.link("lock", &[("key", key)])
    }

    /// Returns an element that shows how long ago a moment was.
    fn ago(&self, since: Ms) -> Markup {
        let text = self.now.map(|now| people(now.saturating_sub(since)));
        html! { span data-since=(since) { @if let Some(text) = text { (text) } } }
    }

    /// Returns an element that shows how much time is left until a moment.
    fn left(&self, ends: Ms) -> Markup {
        let text = self.now.map(|now| people(ends.saturating_sub(now)));
        html! { span data-ends=(ends) { @if let Some(text) = text { (text) } } }
    }
}

/// After how many seconds a page without scripts loads itself again.
const RELOAD: u32 = 10;
/// After how many seconds a page without scripts loads itself again if a part of its contents was not read yet.
const RELOAD_INCOMPLETE: u32 = 2;

/// Returns the changing parts of the page that shows a view.
pub(crate) fn parts(state: &State, view: &View, place: Place<'_>) -> Parts {
    let banner = banner(state.trouble(view), place).into_string();
    let mut parts = match view {
        View::List {
            prefix,
            page,
            waiting,
        } => {
            let listed = state.list(view);
            let rows = listed.rows.iter();
            let pager = pager(prefix, *page, *waiting, listed.selected, place);
            let summary = html! {
                @if listed.held == 0 && !state.is_walked(prefix) {
                    "reading…"
                } @else {
                    b #held { (listed.held) } " held, "
                    b #waiting { (listed.waiting) } " waiting"
                }
                @if listed.read < listed.held {
                    " (" (listed.read) " of " (listed.held) " locks read)"
                }
                @if state.is_cut {
                    ". There are more locks than the " (LOCKS_AT_MOST) " that this page keeps: search for a longer prefix to see the others."
                }
            };
            Parts {
                regions: vec![
                    ("summary", summary.into_string()),
                    ("pager", pager.into_string()),
                ],
                rows: rows
                    .map(|(key, lock)| {
                        let row = list_row(key, lock, place).into_string();
                        ((*key).to_owned(), row)
                    })
                    .collect(),
                ..Parts::default()
            }
        }
        View::Lock { key } => {
            let queue = state.queue(key);
            let rows = queue.iter().enumerate();
            let hold = match state.lock(key) {
                None => html! { p { "reading…" } },
                Some(reading) => hold_details(reading, place),
            };
            Parts {
                regions: vec![
                    ("hold", hold.into_string()),
                    ("groups", groups(queue).into_string()),
                ],
                rows: rows
                    .map(|(index, queued)| {
                        let row = queue_row(index, queued, place).into_string();
                        (queued.owner.clone(), row)
                    })
                    .collect(),
                ..Parts::default()
            }
        }
        View::History => Parts {
            rows: state
                .history()
                .map(|event| {
                    let row = event_row(event, place).into_string();
                    (event.number.to_string(), row)
                })
                .collect(),
            ..Parts::default()
        },
    };
    parts.regions.push(("banner", banner));
    parts.is_complete = place.now.is_some_and(|now| state.is_complete(view, now));
    parts
}

/// Returns a whole page.
pub(crate) fn page(
    view: &View,
    parts: &Parts,
    place: Place<'_>,
    is_paused: bool,
    may_release: bool,
) -> String {
    let region = |name: &str| {
        let region = parts.regions.iter().find(|(of, _)| *of == name);
        maud::PreEscaped(region.map_or("", |(_, html)| html))
    };
    let rows = html! { @for (_, row) in &parts.rows { (maud::PreEscaped(row)) } };
    let body = match view {
        View::List {
            prefix, waiting, ..
        } => html! {
            form #search role="search" method="get" action=(place.link("", &[])) {
                label for="q" { "Keys that begin with" }
                input #q type="search" name="q" value=(prefix) maxlength="1024" autocomplete="off" spellcheck="false";
                label { input type="checkbox" name="waiting" value="1" checked[*waiting]; " with waiters only" }
                button { "Search" }
            }
            p #summary { (region("summary")) }
            table {
                caption { "Locks that are held" }
                thead { tr {
                    @for title in ["Key", "Token", "Holder", "Held for", "Lease left", "Waiting"] { th scope="col" { (title) } }
                } }
                tbody #rows { (rows) }
            }
            nav #pager aria-label="Pages" { (region("pager")) }
        },
        View::Lock { key } => html! {
            h2 { span .key { (key) } (copy(key)) }
            div #hold { (region("hold")) }
            @if may_release {
                p { a .danger href=(place.link("release", &[("key", key)])) { "Release by force…" } }
            }
            h3 { "Queue" }
            div #groups { (region("groups")) }
            table {
                caption { "Callers that wait, in the order in which they enter" }
                thead { tr {
                    @for title in ["Place", "Process", "Caller", "Waits for", "Gives up in"] { th scope="col" { (title) } }
                } }
                tbody #rows { (rows) }
            }
        },
        View::History => html! {
            h2 { "History" }
            p { "Forced releases by this page, and holds that ended without a release. Only what happens while somebody looks at one of these pages is recorded." }
            table {
                caption { "The newest events first" }
                thead { tr {
                    @for title in ["When", "What", "Key", "Token", "Holder"] { th scope="col" { (title) } }
                } }
                tbody #rows { (rows) }
            }
        },
    };
    let title = match view {
        View::List { .. } => "Locks".to_owned(),
        View::Lock { key } => format!("{key} – Locks"),
        View::History => "History – Locks".to_owned(),
    };
    let main = html! { div #banner role="status" { (region("banner")) } (body) };
    let pause = html! {
        form #pause method="get" data-paused[is_paused] {
            @for (name, value) in query(view) { input type="hidden" name=(name) value=(value); }
            @if is_paused {
                button { "Resume" }
            } @else {
                button name="paused" value="1" { "Pause" }
            }
        }
    };
    let reload = match (is_paused, parts.is_complete) {
        (true, _) => None,
        (false, true) => Some(RELOAD),
        (false, false) => Some(RELOAD_INCOMPLETE),
    };
    layout(&title, Some(pause), reload, main, place)
}

/// Returns the query of a view, without its path.
fn query(view: &View) -> Vec<(&'static str, String)> {
    match view {
        View::List {
            prefix,
            page,
            waiting,
        } => {
            let mut query = vec![("q", prefix.clone()), ("page", (page + 1).to_string())];
            if *waiting {
                query.push(("waiting", "1".into()));
            }
            query
        }
        View::Lock { key } => vec![("key", key.clone())],
        View::History => Vec::new(),
    }
}

fn layout(
    title: &str,
    pause: Option<Markup>,
    reload: Option<u32>,
    main: Markup,
    place: Place<'_>,
) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" data-now=[place.now] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(place.link("page.css", &[]));
                @if let Some(seconds) = reload {
                    noscript { meta http-equiv="refresh" content=(seconds); }
                }
                @if pause.is_some() {
                    script src=(place.link("page.js", &[])) defer {}
                }
            }
            body {
                a .skip href="#main" { "Skip to the content" }
                header {
                    h1 { a href=(place.link("", &[])) { "Locks" } }
                    p #source {
                        @match &place.source.namespace {
                            Some(namespace) => { "Namespace " b { (namespace) } },
                            None => "No namespace",
                        }
                        " on " b { (place.source.server) }
                    }
                    nav aria-label="Main" { a href=(place.link("history", &[])) { "History" } }
                    @if let Some(pause) = pause { (pause) }
                }
                main #main tabindex="-1" { (main) }
            }
        }
    };
    page.into_string()
}

/// Returns a page that contains only a title and a text.
pub(crate) fn message(title: &str, text: &str, place: Place<'_>) -> String {
    let main =
        html! { h2 { (title) } p { (text) } p { a href=(place.link("", &[])) { "All locks" } } };
    layout(title, None, None, main, place)
}

/// The values that the form of a forced release shows.
pub(crate) struct ReleaseForm<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: FencingToken,
    pub(crate) holder: &'a Holder,
    /// The number of readers that hold the lock; 0 if a writer holds it.
    pub(crate) readers: usize,
    pub(crate) waiting: usize,
    pub(crate) field: &'a str,
    /// The name of the visitor, or `None` if the visitor has to type a name.
    pub(crate) by: Option<&'a str>,
    /// The reason why the page refused the visitor's last attempt, if it did.
    pub(crate) refusal: Option<&'a str>,
}

pub(crate) fn release(form: &ReleaseForm<'_>, place: Place<'_>) -> String {
    let main = html! {
        h2 { "Release by force: " span .key { (form.key) } }
        @if let Some(refusal) = form.refusal { p #refusal .trouble role="alert" { (refusal) } }
        dl {
            dt { "Token" } dd { (form.token) }
            dt { "Holder" } dd { (holder(form.holder.caller.as_ref(), &form.holder.owner)) }
            @if let Some(left) = form.holder.remaining {
                dt { "Lease left" } dd { (people(crate::state::millis(left))) }
            }
            @if form.readers > 0 { dt { "Readers" } dd { (form.readers) } }
            dt { "Waiting" } dd { (form.waiting) }
        }
        @if form.readers > 1 { p { "Only the hold of this reader ends. The other readers keep the lock." } }
        p {
            @if form.holder.kept {
                "Nobody works under the lock: " (KEPT) "."
            } @else {
                "The holder may still be at work. It learns of the loss at its next renewal or check, at most a third of its lease later. "
                strong { "Until then it can work at the same time as the next holder." }
            }
        }
        form method="post" action=(place.link("release", &[])) autocomplete="off" {
            input type="hidden" name="key" value=(form.key);
            input type="hidden" name="token" value=(form.token);
            input type="hidden" name="csrf" value=(form.field);
            p {
                label for="typed" { "Type the key to confirm" }
                input #typed name="typed" required autofocus spellcheck="false" autocapitalize="none";
            }
            @match form.by {
                Some(by) => p { "You are " b { (by) } "." },
                None => p {
                    label for="by" { "Your name, for the log" }
                    input #by name="by" required maxlength="100";
                },
            }
            p {
                button .danger { "Release by force" }
                " "
                a href=(place.lock(form.key)) { "Cancel" }
            }
        }
    };
    layout("Release by force", None, None, main, place)
}

pub(crate) fn released(key: &str, title: &str, text: &str, place: Place<'_>) -> String {
    let main = html! {
        h2 #outcome { (title) }
        p role="status" { (text) }
        p { a href=(place.lock(key)) { "Show the lock " span .key { (key) } } }
    };
    layout(title, None, None, main, place)
}

fn banner(trouble: Option<&Trouble>, place: Place<'_>) -> Markup {
    html! {
        @if let Some(trouble) = trouble {
            p .trouble {
                @if trouble.is_away {
                    strong { "The lock server does not answer" } " for " (place.ago(trouble.since))
                    ". What is shown may be out of date; the page recovers by itself."
                } @else {
                    strong { "The lock server refuses to answer." }
                }
                " " span .detail { (trouble.text) }
            }
        }
    }
}

fn pager(prefix: &str, page: usize, waiting: bool, selected: usize, place: Place<'_>) -> Markup {
    let pages = selected.div_ceil(PAGE).max(1);
    let link = |page: usize| {
        let number = (page + 1).to_string();
        let mut query = vec![("q", prefix), ("page", &*number)];
        if waiting {
            query.push(("waiting", "1"));
        }
        place.link("", &query)
    };
    html! {
        @if page > 0 { a rel="prev" href=(link((page - 1).min(pages - 1))) { "Previous" } " " }
        "Page " (page + 1) " of " (pages)
        @if page + 1 < pages { " " a rel="next" href=(link(page + 1)) { "Next" } }
    }
}

fn copy(key: &str) -> Markup {
    html! { button .copy type="button" data-copy=(key) aria-label={ "Copy the key " (key) } { "Copy" } }
}

/// Shows who holds a lock.
fn holder(caller: Option<&Caller>, owner: &dyn fmt::Display) -> Markup {
    html! {
        @if let Some(caller) = caller { (called(caller)) " " }
        span .owner { (owner) }
    }
}

/// Shows in which process and function a call runs.
fn called(caller: &Caller) -> Markup {
    html! {
        span .process { (process(caller)) }
        @if !caller.function.is_empty() { " " span .function { (caller.function) } }
    }
}

/// Names a process.
fn process(caller: &Caller) -> String {
    format!(
        "{}@{} (pid {})",
        caller.application, caller.host, caller.pid
    )
}

fn since(since: Since, place: Place<'_>) -> Markup {
    match since {
        Since::Exactly(since) => place.ago(since),
        Since::AtLatest(since) => html! { "at least " (place.ago(since)) },
    }
}

fn lease(hold: &Hold, place: Place<'_>) -> Markup {
    html! {
        @match hold.ends {
            None => "no end",
            Some(ends) => {
                progress data-ends=(ends) max=(hold.lease) value=[place.now.map(|now| ends.saturating_sub(now).min(hold.lease))]
                    aria-label="Lease left" {}
                " " (place.left(ends))
            }
        }
    }
}

fn token(token: Option<FencingToken>) -> String {
    token.map_or_else(|| "none".into(), |token| token.to_string())
}

fn list_row(key: &str, lock: &Lock, place: Place<'_>) -> Markup {
    let reading = lock.reading.as_ref();
    let hold = reading.and_then(|reading| reading.hold.as_ref());
    html! {
        tr data-id=(key) {
            th scope="row" { a .key href=(place.lock(key)) { (key) } (copy(key)) }
            @match (hold, reading) {
                (Some(hold), Some(reading)) => {
                    td .n data-label="Token" { (token(hold.token)) }
                    td data-label="Holder" {
                        @if hold.kept {
                            span .kept title=(KEPT) { "kept after" } " "
                        } @else if hold.readers > 0 {
                            span .readers { (read_by(hold.readers)) } " "
                        }
                        @match &hold.caller {
                            Some(caller) => (called(caller)),
                            None => span .owner { (hold.owner) },
                        }
                    }
                    td .n data-label="Held for" { (since(hold.since, place)) }
                    td .n data-label="Lease left" { (lease(hold, place)) }
                    td .n data-label="Waiting" { (reading.waiting) }
                }
                _ => td colspan="5" { "reading…" },
            }
        }
    }
}

/// Returns the state of a lock that readers hold.
fn read_by(readers: usize) -> String {
    format!("read by {readers}")
}

/// The meaning of a lock's state `kept`.
const KEPT: &str = "the hold has ended, and hold_at_least keeps the lock taken";

fn hold_details(reading: &Reading, place: Place<'_>) -> Markup {
    html! {
        dl {
            dt { "State" }
            @match &reading.hold {
                None => dd { "free" },
                Some(hold) => {
                    dd {
                        @if hold.kept {
                            "kept: " (KEPT)
                        } @else if hold.readers > 0 {
                            (read_by(hold.readers))
                        } @else {
                            "held"
                        }
                    }
                    dt { "Token" } dd { (token(hold.token)) }
                    dt { "Holder" } dd { (holder(hold.caller.as_ref(), &hold.owner)) }
                    dt { "Held for" } dd { (since(hold.since, place)) }
                    dt { "Lease left" } dd { (lease(hold, place)) }
                }
            }
            dt { "Waiting" } dd { (reading.waiting) }
        }
    }
}

/// Names the process of a waiter.
fn waiting_process(queued: &Queued) -> String {
    match &queued.caller {
        Some(caller) => format!("{}, session {}", process(caller), queued.session),
        None => format!("session {}", queued.session),
    }
}

/// Counts the waiters of each process.
fn groups(queue: &[Queued]) -> Markup {
    let mut groups: Vec<(&Queued, usize)> = Vec::new();
    for queued in queue {
        match groups
            .iter_mut()
            .find(|(of, _)| of.session == queued.session)
        {
            Some((_, count)) => *count += 1,
            None => groups.push((queued, 1)),
        }
    }
    html! {
        @if queue.is_empty() {
            p { "Nobody waits." }
        } @else {
            ul .groups aria-label="Waiting processes" {
                @for (of, count) in groups { li .(colour(&of.session)) { (waiting_process(of)) ": " (count) } }
            }
        }
    }
}

/// Returns the class that gives a process its colour.
fn colour(session: &str) -> String {
    let sum: usize = session.bytes().map(usize::from).sum();
    format!("g{}", sum % 6)
}

fn queue_row(index: usize, queued: &Queued, place: Place<'_>) -> Markup {
    html! {
        tr data-id=(queued.owner) .(colour(&queued.session)) {
            // In a live page, the script writes the position of each row. The HTML of a row therefore stays the same
            // when the waiter's position changes.
            td .place data-label="Place" { @if place.now.is_some() { (index + 1) } }
            td .process data-label="Process" { (waiting_process(queued)) }
            td data-label="Caller" {
                @if let Some(Caller { function, .. }) = &queued.caller { span .function { (function) } " " }
                span .owner { (queued.owner) }
            }
            td data-label="Waits for" { (place.ago(queued.since)) }
            td data-label="Gives up in" { (place.left(queued.gives_up)) }
        }
    }
}

/// Returns a sentence that describes an event of the history.
pub(crate) fn event_text(kind: &EventKind) -> String {
    match kind {
        EventKind::Forced { by } => format!("released by force by {by}"),
        EventKind::LeaseEnded => "the lease ended without a release".into(),
        EventKind::GoneAfterOutage => "gone when the server came back".into(),
    }
}

fn event_row(event: &Event, place: Place<'_>) -> Markup {
    let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(event.at));
    html! {
        tr data-id=(event.number) {
            td data-label="When" { time datetime=(at) { (at) } }
            td data-label="What" { (event_text(&event.kind)) }
            th scope="row" { a .key href=(place.lock(&event.key)) { (event.key) } }
            td data-label="Token" { (token(event.token)) }
            td data-label="Holder" { (holder(event.caller.as_ref(), &event.owner)) }
        }
    }
}

/// Returns a duration as readable text.
pub(crate) fn people(time: Ms) -> String {
    let seconds = time / 1000;
    match seconds {
        0..=59 => format!("{}.{} s", seconds, time % 1000 / 100),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
