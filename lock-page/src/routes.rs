//! Answers the HTTP requests for the page.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Form, Router,
    extract::{OriginalUri, Query, Request, State as Shared},
    http::{
        HeaderMap, HeaderName, StatusCode, Uri,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION,
            REFERRER_POLICY, SET_COOKIE, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    middleware::{Next, from_fn_with_state},
    response::{
        Html, IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
    routing::get,
};
use lock_runtime::{FencingToken, ForcedRelease, LockError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Identify,
    access::{Access, mount},
    html::{self, Parts, Place, ReleaseForm, Source},
    json,
    poller::{Poller, Watching, with_causes},
    state::{LOCKS_AT_MOST, Ms, PAGE, View},
};

/// How long a request for an HTML page waits until everything that the page shows was read. After this time, the page
/// is sent with what was read so far. The stream of changes adds the rest; in a browser without scripts, the page loads
/// itself again.
const PAGE_PATIENCE: Duration = Duration::from_secs(1);
/// How long a request for a JSON document waits until everything in the document was read.
const JSON_PATIENCE: Duration = Duration::from_secs(5);
/// The shortest time between two events of a stream.
const EVENTS_APART: Duration = Duration::from_millis(150);
/// How often a silent stream sends a comment, so that proxies keep it open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const LONGEST_NAME: usize = 100;

const HEADERS: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // The value is not `no-referrer`, because browsers would then not send the origin of a form.
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (VARY, "Accept, Cookie"),
];

/// What the handlers share.
pub(crate) struct Site {
    pub(crate) poller: Arc<Poller>,
    pub(crate) source: Source,
    pub(crate) access: Access,
    pub(crate) allows_release: bool,
    pub(crate) identify: Option<Identify>,
    pub(crate) closing: CancellationToken,
}

impl Site {
    fn place<'a>(&'a self, base: &'a str, now: Option<Ms>) -> Place<'a> {
        Place {
            base,
            now,
            source: &self.source,
        }
    }
}

type Site_ = Shared<Arc<Site>>;

pub(crate) fn router<S: Clone + Send + Sync + 'static>(site: Site) -> Router<S> {
    let site = Arc::new(site);
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, kind)], text) })
    };
    let css = asset(
        "text/css; charset=utf-8",
        include_str!("../assets/page.css"),
    );
    let js = asset(
        "text/javascript; charset=utf-8",
        include_str!("../assets/page.js"),
    );
    let router = Router::new()
        .route("/", get(list))
        .route("/lock", get(lock))
        .route("/history", get(history))
        .route("/release", get(release_form).post(release))
        .route("/page.css", css)
        .route("/page.js", js);
    router
        .layer(from_fn_with_state(site.clone(), guard))
        .with_state(site)
}

/// Checks the visitor's token, and adds the headers that every answer has.
async fn guard(
    Shared(site): Site_,
    OriginalUri(original): OriginalUri,
    request: Request,
    next: Next,
) -> Response {
    let base = mount(&original, request.uri());
    let format = Format::of(request.uri(), request.headers());
    let mut response = match admit(&site, &base, &original, &request) {
        Some(response) => response,
        None if site.access.knows(request.headers()) => next.run(request).await,
        None => {
            let text = "Open the address that has the token, or send the header `Authorization: Bearer TOKEN`.";
            refuse_in(
                &format,
                StatusCode::UNAUTHORIZED,
                "A token is needed",
                text,
                site.place(&base, None),
            )
        }
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, axum::http::HeaderValue::from_static(value));
    }
    response
}

/// If the address contains the right token, sets the visitor's cookie, and redirects to the same address without the
/// token.
fn admit(site: &Site, base: &str, original: &Uri, request: &Request) -> Option<Response> {
    let pairs = form_urlencoded::parse(request.uri().query()?.as_bytes());
    let (tokens, rest): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| name == "token");
    let (_, token) = tokens.first()?;
    let cookie = site.access.admit(token, base)?;
    let rest = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(rest)
        .finish();
    let mut address = original.path().to_owned();
    if !rest.is_empty() {
        address = format!("{address}?{rest}");
    }
    Some(
        (
            StatusCode::SEE_OTHER,
            [(LOCATION, address), (SET_COOKIE, cookie)],
        )
            .into_response(),
    )
}

fn refuse(status: StatusCode, title: &str, text: &str, place: Place<'_>) -> Response {
    (status, Html(html::message(title, text, place))).into_response()
}

/// Answers a request that was refused, in the format that was asked for.
fn refuse_in(
    format: &Format,
    status: StatusCode,
    title: &str,
    text: &str,
    place: Place<'_>,
) -> Response {
    match format {
        Format::Json => {
            let json = serde_json::json!({ "error": title, "detail": text });
            let kind = [(CONTENT_TYPE, "application/json")];
            (status, kind, json.to_string()).into_response()
        }
        Format::Html | Format::Events => refuse(status, title, text, place),
    }
}

/// The query parameters of the page's addresses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    q: String,
    page: Option<usize>,
    waiting: Option<String>,
    key: String,
    paused: Option<String>,
}

/// The format of the answer to a request.
enum Format {
    Html,
    Json,
    Events,
}

impl Format {
    fn of(uri: &Uri, headers: &HeaderMap) -> Self {
        let query = uri.query().unwrap_or_default();
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let asked = pairs.find(|(name, _)| name == "format");
        let accept = headers
            .get(ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .unwrap_or_default();
        match asked.as_ref().map(|(_, format)| &**format) {
            Some("json") => Self::Json,
            None if accept.contains("text/event-stream") => Self::Events,
            None if accept.contains("application/json") && !accept.contains("text/html") => {
                Self::Json
            }
            _ => Self::Html,
        }
    }
}

/// A request for a page.
#[derive(axum::extract::FromRequestParts)]
struct Visit {
    original: OriginalUri,
    uri: Uri,
    headers: HeaderMap,
}

impl Visit {
    fn base(&self) -> String {
        mount(&self.original, &self.uri)
    }
}

async fn list(site: Site_, visit: Visit, Query(params): Query<Params>) -> Response {
    let last = LOCKS_AT_MOST / PAGE;
    let view = View::List {
        prefix: params.q.clone(),
        page: params.page.unwrap_or(1).clamp(1, last) - 1,
        waiting: params.waiting.is_some(),
    };
    show(site, visit, view, params).await
}

async fn lock(site: Site_, visit: Visit, Query(params): Query<Params>) -> Response {
    let key = params.key.clone();
    show(site, visit, View::Lock { key }, params).await
}

async fn history(site: Site_, visit: Visit, Query(params): Query<Params>) -> Response {
    show(site, visit, View::History, params).await
}

/// Answers with a view in the format that the request asks for.
async fn show(Shared(site): Site_, visit: Visit, view: View, params: Params) -> Response {
    let base = visit.base();
    let poller = &site.poller;
    let format = Format::of(&visit.uri, &visit.headers);
    let at = |now| site.place(&base, now);
    if let Err(error) = poller.check(&view) {
        let (status, text) = (StatusCode::BAD_REQUEST, with_causes(&error));
        return refuse_in(&format, status, "Not a valid key", &text, at(None));
    }
    let too_many = || {
        let text = "Too many different pages are watched. Try again later.";
        refuse_in(
            &format,
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many viewers",
            text,
            at(None),
        )
    };
    match format {
        Format::Events => match poller.follow(&view) {
            Some(watching) => events(site.clone(), watching, base).into_response(),
            None => too_many(),
        },
        Format::Json => {
            if !poller.look(&view, JSON_PATIENCE).await {
                return too_many();
            }
            let mut json = json::view(&poller.state(), &view, poller.now());
            json["server"] = site.source.server.as_str().into();
            json["namespace"] = site.source.namespace.as_deref().into();
            ([(CONTENT_TYPE, "application/json")], json.to_string()).into_response()
        }
        Format::Html => {
            if !poller.look(&view, PAGE_PATIENCE).await {
                return too_many();
            }
            let place = at(Some(poller.now()));
            let parts = html::parts(&poller.state(), &view, place);
            let is_paused = params.paused.is_some();
            Html(html::page(
                &view,
                &parts,
                place,
                is_paused,
                site.allows_release,
            ))
            .into_response()
        }
    }
}

/// A stream of the changes of a view.
struct Stream {
    site: Arc<Site>,
    watching: Watching,
    base: String,
    answers: watch::Receiver<u64>,
    /// What the stream has sent to the viewer so far, or `None` before the first event.
    sent: Option<Sent>,
}

struct Sent {
    rows: BTreeMap<String, String>,
    order: Vec<String>,
    regions: Vec<(&'static str, String)>,
}

/// One event of a stream.
#[derive(Serialize)]
struct Change<'a> {
    now: u64,
    /// The elements of the page whose HTML has changed, by their `id` attributes.
    regions: BTreeMap<&'a str, &'a str>,
    /// The identities of the rows in their new order, or `None` if the order has not changed.
    order: Option<Vec<&'a str>>,
    /// The table rows whose HTML has changed, by their identities.
    rows: BTreeMap<&'a str, &'a str>,
}

fn events(
    site: Arc<Site>,
    watching: Watching,
    base: String,
) -> Sse<impl futures_util::Stream<Item = Result<sse::Event, Infallible>>> {
    let stream = Stream {
        answers: site.poller.answers(),
        site,
        watching,
        base,
        sent: None,
    };
    let events = futures_util::stream::unfold(stream, |mut stream| async {
        let closing = stream.site.closing.clone();
        let event = closing.run_until_cancelled(stream.next()).await?;
        Some((Ok(event), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

impl Stream {
    async fn next(&mut self) -> sse::Event {
        if self.sent.is_some() {
            tokio::time::sleep(EVENTS_APART).await;
        }
        loop {
            self.answers.mark_unchanged();
            let poller = &self.site.poller;
            let place = self.site.place(&self.base, None);
            let parts = html::parts(&poller.state(), self.watching.view(), place);
            if let Some(event) = self.change(parts) {
                return event;
            }
            if self.answers.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns an event with the parts that the viewer does not have yet, or `None` if the viewer has everything.
    fn change(&mut self, parts: Parts) -> Option<sse::Event> {
        let order: Vec<_> = parts.rows.iter().map(|(id, _)| id.clone()).collect();
        let rows: BTreeMap<_, _> = parts.rows.into_iter().collect();
        let now = self.site.poller.now();
        let change = {
            let sent = self.sent.as_ref();
            let regions = parts
                .regions
                .iter()
                .filter(|region| sent.is_none_or(|sent| !sent.regions.contains(region)));
            let changed = rows
                .iter()
                .filter(|(id, row)| sent.is_none_or(|sent| sent.rows.get(*id) != Some(row)));
            let is_moved = sent.is_none_or(|sent| sent.order != order);
            Change {
                now,
                regions: regions.map(|(name, html)| (*name, html.as_str())).collect(),
                order: is_moved.then(|| order.iter().map(String::as_str).collect()),
                rows: changed
                    .map(|(id, row)| (id.as_str(), row.as_str()))
                    .collect(),
            }
        };
        if change.regions.is_empty() && change.rows.is_empty() && change.order.is_none() {
            return None;
        }
        let event = sse::Event::default().data(serde_json::to_string(&change).ok()?);
        self.sent = Some(Sent {
            rows,
            order,
            regions: parts.regions,
        });
        Some(event.retry(Duration::from_secs(1)))
    }
}

/// The fields of the form of a forced release, as the browser sends them.
#[derive(Debug, Deserialize)]
struct Released {
    key: String,
    token: u64,
    typed: String,
    csrf: String,
    #[serde(default)]
    by: String,
}

async fn release_form(site: Site_, visit: Visit, Query(params): Query<Params>) -> Response {
    confirm(&site, &visit, &params.key, None).await
}

/// Answers with the form of a forced release, which shows the hold that the visitor is about to end.
async fn confirm(site: &Site, visit: &Visit, key: &str, refusal: Option<&str>) -> Response {
    let base = visit.base();
    let place = site.place(&base, None);
    if !site.allows_release {
        return read_only(place);
    }
    let status = match site.poller.status(key).await {
        Ok(status) => status,
        Err(error) => return failed(&error, place),
    };
    let Some(holder) = &status.holder else {
        let page = html::released(
            key,
            "Nobody holds this lock",
            "There is nothing to release.",
            place,
        );
        return (StatusCode::CONFLICT, Html(page)).into_response();
    };
    let Some(token) = holder.token else {
        let text = "The holder has no fencing token, so it does not use this library. Release the lock with the program that holds it.";
        let page = html::released(key, "This lock cannot be released here", text, place);
        return (StatusCode::CONFLICT, Html(page)).into_response();
    };
    let by = site
        .identify
        .as_ref()
        .and_then(|identify| identify(&visit.headers));
    let form_token = site.access.form_token(&visit.headers, &base);
    let form = ReleaseForm {
        key,
        token,
        holder,
        readers: crate::state::readers(&status),
        waiting: status.waiters,
        field: &form_token.field,
        by: by.as_deref(),
        refusal,
    };
    let status = match refusal {
        None => StatusCode::OK,
        Some(_) => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let page = Html(html::release(&form, place));
    (status, [(SET_COOKIE, form_token.cookie)], page).into_response()
}

async fn release(Shared(site): Site_, visit: Visit, Form(form): Form<Released>) -> Response {
    let base = visit.base();
    let place = site.place(&base, None);
    if !site.allows_release {
        return read_only(place);
    }
    if !site.access.may_change(&visit.headers, &form.csrf) {
        let text = "The form does not come from this page, or is too old. Nothing was released. Open the form again.";
        return refuse(StatusCode::FORBIDDEN, "Refused", text, place);
    }
    if form.typed.trim() != form.key {
        let refusal = "What you have typed is not the key. Nothing was released.";
        return confirm(&site, &visit, &form.key, Some(refusal)).await;
    }
    let identified = site
        .identify
        .as_ref()
        .and_then(|identify| identify(&visit.headers));
    let by = identified.unwrap_or_else(|| form.by.trim().to_owned());
    if by.is_empty() || by.chars().count() > LONGEST_NAME || by.chars().any(char::is_control) {
        let refusal = "Type your name, with at most 100 characters. Nothing was released.";
        return confirm(&site, &visit, &form.key, Some(refusal)).await;
    }
    let token = FencingToken::new(form.token);
    match site.poller.release(&form.key, token, &by).await {
        Err(error) => failed(&error, place),
        Ok(ForcedRelease::Released) => {
            let text = format!(
                "The hold with token {token} has ended. Its holder learns of this at its next renewal or check."
            );
            Html(html::released(&form.key, "Released", &text, place)).into_response()
        }
        Ok(_) => {
            let text =
                format!("The hold with token {token} has ended meanwhile. Nothing was changed.");
            let page = html::released(&form.key, "Not released", &text, place);
            (StatusCode::CONFLICT, Html(page)).into_response()
        }
    }
}

fn read_only(place: Place<'_>) -> Response {
    let text = "This page only shows locks. It was started without the permission to release them.";
    refuse(StatusCode::FORBIDDEN, "Read-only", text, place)
}

fn failed(error: &LockError, place: Place<'_>) -> Response {
    let status = match error {
        LockError::InvalidKey(_) => StatusCode::BAD_REQUEST,
        LockError::Unreachable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    refuse(status, "This request failed", &with_causes(error), place)
}
