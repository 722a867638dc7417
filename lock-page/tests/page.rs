//! Tests of the page that shows locks. These tests need no browser, and use real Redis processes.

use std::time::{Duration, Instant};

use axum::{
    Router,
    body::{Body, BodyDataStream},
    http::{
        HeaderMap, Request, StatusCode,
        header::{ACCEPT, AUTHORIZATION, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE},
    },
};
use futures_util::{StreamExt as _, future::join_all};
use lock_page::LockPage;
use lock_runtime::{LockClient, LockGuard, LossReason};
use redis::cmd;
use serde_json::Value;
use support::{
    server::{RedisServer, ask, shared_server},
    stores::{until, until_waiting},
};
use tower::ServiceExt as _;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Keys that contain HTML or URL syntax. These keys would break a page that does not escape them.
const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"quoted\" 'key'",
    "</td><img src=x onerror=alert(2)>",
    "a&amp;b&c=d?e#f+g%20h",
    "日本 ключ 🔒",
    "javascript:alert(3)",
];

/// Returns a client with a namespace of its own.
async fn client() -> LockClient {
    on(&shared_server().await.url()).await
}

async fn on(url: &str) -> LockClient {
    let namespace = Uuid::new_v4().to_string();
    let client = LockClient::builder().url(url).namespace(namespace);
    client.application("shop").connect().await.unwrap()
}

/// Mounts a page under `/ops/locks`, as a service could.
fn mounted(page: LockPage) -> Router {
    Router::new().nest("/ops", Router::new().nest("/locks", page.into_router()))
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns the cookie that the answer sets, as a browser would send it, and its attributes.
    #[track_caller]
    fn cookie(&self) -> (String, String) {
        let line = self.headers[SET_COOKIE].to_str().unwrap();
        let (cookie, attributes) = line.split_once("; ").unwrap();
        (cookie.to_owned(), attributes.to_owned())
    }

    /// Returns the value of a field of the answer's form.
    #[track_caller]
    fn field(&self, name: &str) -> String {
        let begin = format!(r#"name="{name}" value=""#);
        let (_, rest) = self
            .body
            .split_once(&begin)
            .expect("the form has the field");
        rest.split('"').next().unwrap().to_owned()
    }
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 1 << 22).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

async fn get(app: &Router, path: &str) -> Answer {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

/// Returns a view as JSON.
async fn json(app: &Router, path: &str) -> Value {
    let request = Request::get(path).header(ACCEPT, "application/json");
    let answer = send(app, request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.json()
}

fn encoded(pairs: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(pairs).finish()
}

/// The live changes of a view.
struct Live {
    stream: BodyDataStream,
    text: String,
}

impl Live {
    async fn open(app: &Router, path: &str) -> Self {
        let request = Request::get(path).header(ACCEPT, "text/event-stream");
        let request = request.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            stream: response.into_body().into_data_stream(),
            text: String::new(),
        }
    }

    /// Returns the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let event = data.map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
                continue;
            }
            let bytes = self.stream.next().await?.unwrap();
            self.text.push_str(str::from_utf8(&bytes).unwrap());
        }
    }

    /// Waits for an event for which `fits` returns true. Returns how long the event took to arrive.
    async fn until(&mut self, mut fits: impl FnMut(&Value) -> bool) -> Duration {
        let began = Instant::now();
        let waiting = async {
            loop {
                let event = self.next().await.expect("the stream goes on");
                if fits(&event) {
                    return;
                }
            }
        };
        let waited = tokio::time::timeout(20 * SECOND, waiting).await;
        waited.expect("the event comes");
        began.elapsed()
    }
}

async fn hold_all(client: &LockClient, keys: impl Iterator<Item = String>) -> Vec<LockGuard> {
    let locks = keys.map(|key| client.lock(key).lease(10 * MINUTE).acquire());
    let guards = join_all(locks).await;
    guards.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_keys_are_shown_as_text() {
    let client = client().await;
    let _guards = hold_all(&client, HOSTILE.iter().map(|key| (*key).to_owned())).await;
    let app = mounted(LockPage::new(client).allow_release());
    let list = get(&app, "/ops/locks").await;
    assert_eq!(list.status, StatusCode::OK);
    let mut live = Live::open(&app, "/ops/locks").await;
    let event = live.next().await.unwrap();
    let rows = event["rows"].as_object().unwrap().values();
    let rows: Vec<_> = rows.map(|row| row.as_str().unwrap()).collect();
    assert_eq!(rows.len(), HOSTILE.len());
    let mut texts = vec![list.body, rows.concat()];
    for key in HOSTILE {
        let query = encoded(&[("key", key)]);
        for page in ["lock", "release"] {
            let page = get(&app, &format!("/ops/locks/{page}?{query}")).await;
            assert_eq!(page.status, StatusCode::OK, "{key}");
            texts.push(page.body);
        }
        let search = encoded(&[("q", key)]);
        texts.push(get(&app, &format!("/ops/locks?{search}")).await.body);
        let lock = json(&app, &format!("/ops/locks/lock?{query}")).await;
        assert_eq!((&lock["key"], &lock["held"]), (&key.into(), &true.into()));
        assert!(
            texts[0].contains(&format!("/ops/locks/lock?{query}")),
            "{key}"
        );
    }
    for text in &texts {
        assert!(
            !text.contains("<script>alert") && !text.contains("<img"),
            "{text}"
        );
        assert!(
            !text.contains("\"quoted\" 'key'") && !text.contains("href=\"javascript:"),
            "{text}"
        );
    }
    assert!(texts[0].contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(texts[0].contains("日本 ключ 🔒"));
}

/// A text that is no valid key is never the key of a lock. However, another program can store data under such a name,
/// and a visitor can ask for the page of such a key.
#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_no_key_is_refused_or_skipped() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let mut redis = server.connection().await;
    for name in ["{lock:new\nline}", "{lock:other}", "{lock:list}"] {
        let _: () = ask(&mut redis, cmd("SET").arg(name).arg("1|2")).await;
    }
    let _: () = ask(&mut redis, cmd("DEL").arg("{lock:list}")).await;
    let _: () = ask(&mut redis, cmd("RPUSH").arg("{lock:list}").arg("x")).await;
    let _guard = client.lock("order:1").acquire().await.unwrap();
    let app = mounted(LockPage::new(client.clone()).allow_release());
    let list = json(&app, "/ops/locks").await;
    assert_eq!(
        (&list["held"], &list["complete"]),
        (&1.into(), &true.into()),
        "{list}"
    );
    assert_eq!(list["locks"][0]["key"], "order:1");
    for path in ["lock?key=new%0Aline", "lock?key=", "release?key=new%0Aline"] {
        let page = get(&app, &format!("/ops/locks/{path}")).await;
        assert_eq!(
            page.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            page.body
        );
    }
    let long = get(&app, &format!("/ops/locks?q={}", "x".repeat(2000))).await;
    assert_eq!(long.status, StatusCode::BAD_REQUEST);
    // A prefix of a valid key is not always a valid key itself, for example if it ends inside a hash tag.
    for path in ["?q=%7Bord", "?q=new%0Aline", "/lock?key=a%7Bb"] {
        let app = mounted(LockPage::new(client.clone())); // a page that has no other viewers
        let json = json(&app, &format!("/ops/locks{path}")).await;
        assert_eq!(
            (&json["trouble"], &json["complete"]),
            (&Value::Null, &true.into()),
            "{json}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_the_permission_releases_nothing() {
    let client = client().await;
    let guard = client.lock("k").lease(MINUTE).acquire().await.unwrap();
    let app = mounted(LockPage::new(client.clone()).secret("a secret"));
    let releasing = mounted(
        LockPage::new(client.clone())
            .secret("a secret")
            .allow_release(),
    );
    let page = get(&app, "/ops/locks/lock?key=k").await;
    assert!(!page.body.contains("Release by force"), "{}", page.body);
    assert_eq!(
        get(&app, "/ops/locks/release?key=k").await.status,
        StatusCode::FORBIDDEN
    );
    // This page also refuses a form of another process of the same service that does allow releases.
    let form = Form::open(&releasing).await;
    assert_eq!(form.send(&app).await.status, StatusCode::FORBIDDEN);
    assert!(is_held_by(&client, &guard).await);
}

/// Returns whether a lock is still held by this guard.
async fn is_held_by(client: &LockClient, guard: &LockGuard) -> bool {
    let status = client.lock(guard.key().as_str()).status().await.unwrap();
    status.holder.and_then(|holder| holder.token) == Some(guard.token())
}

/// The form of a forced release as a browser sends it.
struct Form {
    path: &'static str,
    cookie: Option<String>,
    origin: Option<&'static str>,
    fields: Vec<(&'static str, String)>,
}

impl Form {
    /// Opens the form, and fills it in.
    async fn open(app: &Router) -> Self {
        let page = get(app, "/ops/locks/release?key=k").await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        let (cookie, attributes) = page.cookie();
        assert_eq!(attributes, "Path=/ops/locks; HttpOnly; SameSite=Strict");
        Self {
            path: "/ops/locks/release",
            cookie: Some(cookie),
            origin: Some("http://page.test"),
            fields: vec![
                ("key", "k".into()),
                ("token", page.field("token")),
                ("csrf", page.field("csrf")),
                ("typed", "k".into()),
                ("by", "alice".into()),
            ],
        }
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        let field = self.fields.iter_mut().find(|(of, _)| *of == name);
        field.unwrap().1 = value.into();
        self
    }

    async fn send(&self, app: &Router) -> Answer {
        let mut request = Request::post(self.path)
            .header(HOST, "page.test")
            .header("content-type", "application/x-www-form-urlencoded");
        if let Some(origin) = self.origin {
            request = request.header(ORIGIN, origin);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        let fields: Vec<_> = self
            .fields
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        send(app, request.body(Body::from(encoded(&fields))).unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_needs_the_form_of_this_page() {
    let client = client().await;
    let lock = client.lock("k").lease(3 * SECOND).renew(true);
    let guard = lock.acquire().await.unwrap();
    let app = mounted(LockPage::new(client.clone()).allow_release());
    let other = mounted(LockPage::new(client.clone()).allow_release());
    let foreign = Form::open(&other).await;
    let form = || Form::open(&app);
    let forged = [
        Form {
            cookie: None,
            ..form().await
        },
        Form {
            cookie: foreign.cookie.clone(),
            ..form().await
        },
        Form {
            origin: None,
            ..form().await
        },
        Form {
            origin: Some("null"),
            ..form().await
        },
        Form {
            origin: Some("http://evil.test"),
            ..form().await
        },
        Form {
            origin: Some("http://page.test.evil.test"),
            ..form().await
        },
        form().await.set("csrf", ""),
        form().await.set("csrf", &"0".repeat(64)),
        form().await.set("csrf", &foreign.fields[2].1),
        foreign,
    ];
    for (number, form) in forged.iter().enumerate() {
        let answer = form.send(&app).await;
        assert_eq!(
            answer.status,
            StatusCode::FORBIDDEN,
            "{number}: {}",
            answer.body
        );
    }
    let incomplete = [
        form().await.set("typed", "K"),
        form().await.set("typed", ""),
        form().await.set("by", "  "),
        form().await.set("by", "line\nbreak"),
        form().await.set("by", &"x".repeat(101)),
    ];
    for (number, form) in incomplete.iter().enumerate() {
        let answer = form.send(&app).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{number}");
        assert!(
            answer.body.contains("Nothing was released"),
            "{}",
            answer.body
        );
    }
    let stale = form().await.set("token", "1").send(&app).await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    assert!(is_held_by(&client, &guard).await);
    assert_eq!(guard.loss(), None);

    let released = form().await.send(&app).await;
    assert_eq!(released.status, StatusCode::OK, "{}", released.body);
    assert!(
        released
            .body
            .contains(&format!("The hold with token {} has ended", guard.token()))
    );
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    let history = json(&app, "/ops/locks/history").await;
    let event = &history["history"][0];
    assert_eq!(
        (
            &event["event"],
            &event["key"],
            &event["token"],
            &event["text"]
        ),
        (
            &"forced".into(),
            &"k".into(),
            &guard.token().get().into(),
            &"released by force by alice".into()
        )
    );
    let free = get(&app, "/ops/locks/release?key=k").await;
    assert_eq!(free.status, StatusCode::CONFLICT);
}

/// If a service's `identify` function names the visitor, the form does not ask for a name. The page then ignores a name
/// in the sent form.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_can_name_its_visitors() {
    let client = client().await;
    let _guard = client.lock("k").lease(MINUTE).acquire().await.unwrap();
    let page = LockPage::new(client)
        .allow_release()
        .identify(|headers| Some(format!("user of {}", headers.get(HOST)?.to_str().ok()?)));
    let app = mounted(page);
    let form = Form::open(&app).await.set("by", "eve");
    assert_eq!(form.send(&app).await.status, StatusCode::OK);
    let history = json(&app, "/ops/locks/history").await;
    assert_eq!(
        history["history"][0]["text"],
        "released by force by user of page.test"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_admits_a_visitor_who_has_shown_it_once() {
    let client = client().await;
    let page = || LockPage::new(client.clone()).token("the right token");
    let app = mounted(page());
    let with = |name, value: &str| {
        let request = Request::get("/ops/locks?q=a").header(name, value);
        let request = request.body(Body::empty()).unwrap();
        send(&app, request)
    };
    for path in [
        "",
        "?token=",
        "?token=the+right+toke",
        "?token=the+right+token2",
        "/page.js",
        "/history",
    ] {
        let answer = get(&app, &format!("/ops/locks{path}")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(answer.headers.get(SET_COOKIE), None);
    }
    let first = get(&app, "/ops/locks?q=a&token=the+right+token").await;
    assert_eq!(first.status, StatusCode::SEE_OTHER);
    assert_eq!(first.headers[LOCATION], "/ops/locks?q=a");
    let (cookie, attributes) = first.cookie();
    assert_eq!(attributes, "Path=/ops/locks; HttpOnly; SameSite=Lax");
    assert!(!cookie.contains("right"), "{cookie}");
    assert_eq!(
        with(COOKIE, &format!("a=b; {cookie}")).await.status,
        StatusCode::OK
    );
    assert_eq!(
        with(COOKIE, &format!("{cookie}0")).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        with(COOKIE, &cookie[..cookie.len() - 2]).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        with(AUTHORIZATION, "Bearer the right token").await.status,
        StatusCode::OK
    );
    assert_eq!(
        with(AUTHORIZATION, "Bearer the wrong token").await.status,
        StatusCode::UNAUTHORIZED
    );
    // A program that asks for JSON reads why it is refused.
    let refused = get(&app, "/ops/locks?format=json").await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.json()["error"], "A token is needed");
    // Another process of the service accepts the cookie, because by default the token is the secret. A page with
    // another secret refuses the cookie.
    let request = || Request::get("/ops/locks").header(COOKIE, &cookie);
    let request = || request().body(Body::empty()).unwrap();
    assert_eq!(
        send(&mounted(page()), request()).await.status,
        StatusCode::OK
    );
    let another = mounted(page().secret("another"));
    assert_eq!(
        send(&another, request()).await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_forbids_scripts_from_elsewhere() {
    let client = client().await;
    let app = mounted(LockPage::new(client).token("a token"));
    for path in ["", "/lock?key=a", "/page.css", "/release", "?token=a+token"] {
        let headers = get(&app, &format!("/ops/locks{path}")).await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(headers["cache-control"], "no-store");
        assert_eq!(headers["x-content-type-options"], "nosniff");
    }
}

/// The page's links work if the page is mounted at the root, and under a path of any depth.
#[tokio::test(flavor = "multi_thread")]
async fn links_lead_to_the_page_where_it_is_mounted() {
    let client = client().await;
    let _guard = client.lock("k").lease(MINUTE).acquire().await.unwrap();
    let page = || LockPage::new(client.clone());
    let mounts = [
        ("", page().into_router()),
        ("/locks", Router::new().nest("/locks", page().into_router())),
        ("/ops/locks", mounted(page())),
        (
            "/locks",
            Router::new().nest_service("/locks", page().into_router::<()>()),
        ),
    ];
    for (mount, app) in mounts {
        let mut seen = Vec::new();
        let mut todo = vec![if mount.is_empty() {
            "/".to_owned()
        } else {
            mount.to_owned()
        }];
        while let Some(link) = todo.pop() {
            let page = get(&app, &link).await;
            assert_eq!(page.status, StatusCode::OK, "{mount}: {link}");
            for attribute in ["href=\"", "src=\"", "action=\""] {
                let links = page.body.split(attribute).skip(1);
                let links = links.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&"));
                let local = links.filter(|link| !link.starts_with(['#', 'd']));
                todo.extend(local.filter(|link| !seen.contains(link)));
            }
            seen.push(link);
            todo.sort();
            todo.dedup();
            todo.retain(|link| !seen.contains(link));
        }
        for page in ["/history", "/lock?key=k", "/page.css", "/page.js"] {
            assert!(
                seen.contains(&format!("{mount}{page}")),
                "{mount}: {seen:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_and_its_queue_are_told_as_json() {
    let client = client().await;
    let before = Instant::now();
    let guard = client
        .lock("order:42")
        .lease(MINUTE)
        .label("pay")
        .acquire()
        .await
        .unwrap();
    let mut waiting = Vec::new();
    for minutes in 1..=3 {
        let lock = client
            .lock("order:42")
            .wait(minutes * MINUTE)
            .label("refund");
        waiting.push(tokio::spawn(lock.acquire()));
        until_waiting(&client, "order:42", waiting.len()).await;
    }
    let app = mounted(LockPage::new(client));
    let list = json(&app, "/ops/locks?q=order").await;
    assert_eq!(
        (&list["held"], &list["waiting"]),
        (&1.into(), &3.into()),
        "{list}"
    );
    let lock = json(&app, "/ops/locks/lock?key=order:42").await;
    let holder = &lock["holder"];
    assert_eq!(holder["token"], guard.token().get());
    assert_eq!(holder["caller"]["application"], "shop");
    assert_eq!(holder["caller"]["pid"], std::process::id());
    assert_eq!(holder["caller"]["function"], "pay");
    assert_eq!(holder["held_for_is_exact"], true);
    let held = Duration::from_millis(holder["held_for_ms"].as_u64().unwrap());
    assert!(held <= before.elapsed() + SECOND, "{lock}");
    let left = holder["lease_left_ms"].as_u64().unwrap();
    assert!((30_000..=60_000).contains(&left), "{lock}");
    // The length of the lease is known, although the page looks only now.
    assert_eq!(holder["lease_ms"], 60_000, "{lock}");
    assert_eq!(holder["state"], "held", "{lock}");
    let queue = lock["queue"].as_array().unwrap();
    let minutes = queue
        .iter()
        .map(|waiter| waiter["gives_up_in_ms"].as_u64().unwrap());
    let minutes: Vec<_> = minutes.map(|ms| ms.div_ceil(60_000)).collect();
    assert_eq!(minutes, [1, 2, 3], "{lock}");
    assert_eq!(queue[0]["session"], queue[2]["session"]);
    assert_eq!(queue[0]["caller"]["function"], "refund");
    // The same lock is shown as JSON for the parameter `format=json`, and otherwise as an HTML page.
    let page = get(&app, "/ops/locks/lock?key=order:42&format=json")
        .await
        .json();
    assert_eq!(page["holder"]["token"], guard.token().get());
    let refused = get(&app, "/ops/locks/lock?key=&format=json").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.json()["error"], "Not a valid key");
    let page = get(&app, "/ops/locks/lock?key=order:42").await.body;
    let session = queue[0]["session"].as_str().unwrap();
    assert!(page.contains(&format!("session {session}: 3")), "{page}");
    let waiting_only = json(&app, "/ops/locks?waiting=1").await;
    assert_eq!(waiting_only["locks"].as_array().unwrap().len(), 1);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_list_has_100_locks() {
    let client = client().await;
    let keys = (0..250).map(|number| format!("order:{number:03}"));
    let _guards = hold_all(&client, keys.chain(["zebra".to_owned()])).await;
    let app = mounted(LockPage::new(client));
    let mut seen = Vec::new();
    for page in 1..=3 {
        let list = json(&app, &format!("/ops/locks?q=order&page={page}")).await;
        assert_eq!(
            (&list["held"], &list["pages"]),
            (&250.into(), &3.into()),
            "{list}"
        );
        assert_eq!(list["complete"], true);
        let keys = list["locks"].as_array().unwrap().iter();
        let keys: Vec<_> = keys
            .map(|lock| lock["key"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(keys.len(), [100, 100, 50][page - 1]);
        seen.extend(keys);
    }
    assert_eq!(seen[249], "order:249");
    assert!(seen.is_sorted_by(|one, next| one < next));
    let page = get(&app, "/ops/locks?q=order&page=2").await.body;
    assert_eq!(page.matches("<tr data-id").count(), 100);
    assert!(
        page.contains("Page 2 of 3") && page.contains("?q=order&amp;page=3"),
        "{page}"
    );
    for page in ["0", "99999999", "200"] {
        let list = json(&app, &format!("/ops/locks?page={page}")).await;
        assert!(list["locks"].as_array().unwrap().len() <= 100);
    }
}

/// The lock server gets at most 50 commands a second from a page, even if the page has many viewers. A page at which
/// nobody looks sends no commands.
#[tokio::test(flavor = "multi_thread")]
async fn all_viewers_together_cost_50_commands_a_second() {
    let server = RedisServer::start().await;
    let holder = LockClient::connect(server.url()).await.unwrap();
    let guards = hold_all(&holder, (0..1200).map(|number| format!("order:{number}"))).await;
    // The test forgets the guards, so that no client releases the locks. `hold_all` sets a lease, and such a lease is
    // not renewed. The holder's client therefore sends nothing more, and each command that the test counts is the
    // page's.
    drop(guards.into_iter().map(std::mem::forget).collect::<Vec<_>>());
    let client = LockClient::connect(server.url()).await.unwrap();
    let app = mounted(LockPage::new(client).allow_release());
    let mut streams = Vec::new();
    for number in 0..20 {
        let paths = [
            format!("/ops/locks?q=order:{number}"),
            format!("/ops/locks?page={number}"),
            format!("/ops/locks/lock?key=order:{number}"),
            "/ops/locks/history".into(),
        ];
        for path in paths {
            let mut live = Live::open(&app, &path).await;
            streams.push(tokio::spawn(async move {
                let mut events = 0;
                while live.next().await.is_some() {
                    events += 1;
                }
                events
            }));
        }
    }
    let commands = async || {
        let costs = server.costs().await;
        let names = ["scan", "evalsha", "eval", "script|load"];
        names
            .iter()
            .filter_map(|name| costs.get(*name))
            .map(|cost| cost.calls)
            .sum::<u64>()
    };
    tokio::time::sleep(SECOND).await;
    let (before, began) = (commands().await, Instant::now());
    let forms = (0..20).map(|number| {
        let app = &app;
        async move {
            get(app, &format!("/ops/locks/release?key=order:{number}"))
                .await
                .status
        }
    });
    for status in join_all(forms).await {
        assert_eq!(status, StatusCode::OK);
    }
    tokio::time::sleep(4 * SECOND).await;
    let (after, seconds) = (commands().await, began.elapsed().as_secs_f64());
    let rate = (after - before) as f64 / seconds;
    println!("{rate:.1} commands a second for 80 viewers");
    assert!((10.0..=50.5).contains(&rate), "{rate}");
    for stream in streams {
        stream.abort();
    }
    // Viewers who have left are forgotten after 15 s. After that, the page sends no scans and scripts.
    until(async || {
        let before = commands().await;
        tokio::time::sleep(SECOND).await;
        commands().await == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_and_a_release_are_told_within_a_second() {
    let client = client().await;
    let others = (0..300).map(|number| format!("other:{number}"));
    let _others = hold_all(&client, others).await;
    let app = mounted(LockPage::new(client.clone()));
    let mut list = Live::open(&app, "/ops/locks?q=order").await;
    let is_empty = |event: &Value| event["order"] == Value::Array(Vec::new());
    list.until(is_empty).await;
    for _ in 0..3 {
        let lock = client.lock("order:42").lease(MINUTE);
        let guard = lock.acquire().await.unwrap();
        let token = guard.token().to_string();
        let has_token = |event: &Value| event["rows"]["order:42"].to_string().contains(&token);
        let held = list.until(has_token).await;
        guard.release().await;
        let released = list.until(is_empty).await;
        println!("the stream reported a hold after {held:.2?}, a release after {released:.2?}");
        assert!(held < SECOND && released < SECOND, "{held:?}, {released:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_lock_tells_each_change() {
    let client = client().await;
    let app = mounted(LockPage::new(client.clone()));
    let mut live = Live::open(&app, "/ops/locks/lock?key=order:42").await;
    let shows =
        |text: String| move |event: &Value| event["regions"]["hold"].to_string().contains(&text);
    live.until(shows("free".into())).await;
    let lock = client.lock("order:42").wait(MINUTE);
    let guard = lock.acquire().await.unwrap();
    live.until(shows(guard.token().to_string())).await;
    let waiting = tokio::spawn(lock.acquire());
    let has_waiter = |event: &Value| {
        event["order"]
            .as_array()
            .is_some_and(|order| order.len() == 1)
    };
    live.until(has_waiter).await;
    guard.release().await;
    let second = waiting.await.unwrap().unwrap();
    live.until(shows(second.token().to_string())).await;
    second.release().await;
    live.until(shows("free".into())).await;
}

/// A lock that readers hold is shown with their number, in the list, on its own page and in the form of a forced release.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_counted() {
    let client = client().await;
    let app = mounted(LockPage::new(client.clone()).allow_release());
    let mut list = Live::open(&app, "/ops/locks").await;
    let mut live = Live::open(&app, "/ops/locks/lock?key=k").await;
    let row = |event: &Value| event["rows"]["k"].to_string();
    let shows = |text: &'static str| {
        move |event: &Value| event["regions"]["hold"].to_string().contains(text)
    };
    live.until(shows("free")).await;
    let read = async || {
        let lock = client.lock("k").read().lease(MINUTE);
        lock.acquire().await.unwrap()
    };
    let first = read().await;
    live.until(shows("read by 1<")).await;
    let [second, third] = [read().await, read().await];
    live.until(shows("read by 3<")).await;
    list.until(|event| row(event).contains("read by 3<")).await;

    let lock = json(&app, "/ops/locks/lock?key=k").await;
    let holder = &lock["holder"];
    assert_eq!(
        (&holder["mode"], &holder["readers"], &holder["state"]),
        (&"read".into(), &3.into(), &"held".into()),
        "{lock}"
    );
    assert_eq!(holder["token"], first.token().get(), "{lock}");
    let found = json(&app, "/ops/locks").await;
    assert_eq!(found["held"], 1, "{found}");
    assert_eq!(found["locks"][0]["readers"], 3, "{found}");

    // The form ends the hold of one reader, and says so.
    let form = get(&app, "/ops/locks/release?key=k").await.body;
    assert!(form.contains("The other readers keep the lock"), "{form}");
    let released = Form::open(&app).await.send(&app).await;
    assert_eq!(released.status, StatusCode::OK, "{}", released.body);
    live.until(shows("read by 2<")).await;
    assert!(is_held_by(&client, &second).await);

    second.release().await;
    live.until(shows("read by 1<")).await;
    // A writer follows the last reader.
    let writing = tokio::spawn(client.lock("k").wait(MINUTE).acquire());
    until_waiting(&client, "k", 1).await;
    let form = get(&app, "/ops/locks/release?key=k").await.body;
    assert!(!form.contains("The other readers"), "{form}");
    third.release().await;
    let writer = writing.await.unwrap().unwrap();
    live.until(shows("<dd>held<")).await;
    let lock = json(&app, "/ops/locks/lock?key=k").await;
    let holder = &lock["holder"];
    assert_eq!(
        (&holder["mode"], &holder["readers"], &holder["token"]),
        (&"write".into(), &0.into(), &writer.token().get().into()),
        "{lock}"
    );
    // The queue of a key with a hash tag has a name that could be the name of a lock.
    let _tagged = client.lock("{order:7}:pay").read().acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("{order:7}:pay").wait(MINUTE).acquire());
    until_waiting(&client, "{order:7}:pay", 1).await;
    let shown = async || {
        let found = json(&app, "/ops/locks?q=%7B").await;
        [
            found["held"].clone(),
            found["read"].clone(),
            found["waiting"].clone(),
        ] == [1, 1, 1]
    };
    until(shown).await;
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_service_closes() {
    let client = client().await;
    let closing = tokio_util::sync::CancellationToken::new();
    let app = mounted(LockPage::new(client).closing(closing.clone()));
    let mut live = Live::open(&app, "/ops/locks").await;
    live.next().await.unwrap();
    closing.cancel();
    let ended = tokio::time::timeout(5 * SECOND, async { while live.next().await.is_some() {} });
    ended.await.expect("the stream ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_told_and_found_again() {
    let mut server = RedisServer::builder().aof_always().start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let guard = client
        .lock("order:1")
        .lease(10 * MINUTE)
        .acquire()
        .await
        .unwrap();
    let app = mounted(LockPage::new(client));
    let mut live = Live::open(&app, "/ops/locks").await;
    live.until(|event| event["rows"]["order:1"].to_string().contains("progress"))
        .await;
    server.kill();
    let banner = |event: &Value| event["regions"]["banner"].as_str().map(str::to_owned);
    let told = |event: &Value| banner(event).is_some_and(|text| text.contains("does not answer"));
    live.until(told).await;
    let page = get(&app, "/ops/locks").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.body.contains("does not answer") && page.body.contains("order:1"));
    server.restart().await;
    live.until(|event| banner(event).as_deref() == Some(""))
        .await;
    let list = json(&app, "/ops/locks").await;
    assert_eq!((&list["trouble"], &list["held"]), (&Value::Null, &1.into()));
    assert_eq!(
        json(&app, "/ops/locks/history").await["history"],
        Value::Array(Vec::new())
    );
    // The server restarts without its data, so the hold is lost.
    server.kill();
    live.until(told).await;
    std::fs::remove_dir_all(server.folder().join("appendonlydir")).unwrap();
    server.restart().await;
    live.until(|event| event["order"] == Value::Array(Vec::new()))
        .await;
    let history = json(&app, "/ops/locks/history").await;
    let event = &history["history"][0];
    assert_eq!(
        (&event["event"], &event["key"]),
        (&"gone_after_outage".into(), &"order:1".into())
    );
    drop(guard);
}

/// If the lock server does not answer when somebody first looks at the page, the first page says so, and does not claim
/// that no lock is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_first_look_is_told_at_once() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for port in [1, port] {
        let server = format!("127.0.0.1:{port}");
        let client = LockClient::builder().url(format!("redis://{server}/"));
        let client = client.namespace("shop").connect_lazy().unwrap();
        let app = mounted(LockPage::new(client));
        let page = get(&app, "/ops/locks").await.body;
        assert!(page.contains("The lock server does not answer"), "{page}");
        assert!(!page.contains("id=\"held\""), "{page}");
        assert!(
            page.contains(&format!("Namespace <b>shop</b> on <b>{server}</b>")),
            "{page}"
        );
        for view in ["", "/lock?key=k", "/history"] {
            let json = json(&app, &format!("/ops/locks{view}")).await;
            assert!(json["trouble"].is_string(), "{view}: {json}");
            assert_eq!(json["complete"], false, "{view}: {json}");
            assert_eq!(
                (&json["server"], &json["namespace"]),
                (&server.as_str().into(), &"shop".into())
            );
        }
    }
}

/// The history shows a hold that ends with its lease. The history does not show a hold that is released or renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_without_a_release_is_told() {
    let client = client().await;
    let other = LockClient::builder().url(shared_server().await.url());
    let namespace = Uuid::new_v4().to_string();
    let other = other.namespace(&namespace).connect().await.unwrap();
    let app = mounted(LockPage::new(other.clone()));
    let mut live = Live::open(&app, "/ops/locks/history").await;
    live.next().await.unwrap();
    let released = other
        .lock("released")
        .lease(3 * SECOND)
        .acquire()
        .await
        .unwrap();
    let renewed = other
        .lock("renewed")
        .lease(2 * SECOND)
        .renew(true)
        .acquire()
        .await
        .unwrap();
    let crashed = other
        .lock("crashed")
        .lease(4 * SECOND)
        .acquire()
        .await
        .unwrap();
    // `hold_at_least` keeps this lock taken until its end, as its service has asked for.
    let tail = other
        .lock("tail")
        .lease(20 * SECOND)
        .hold_at_least(3 * SECOND);
    tail.run(async {}).await.unwrap();
    let is_kept = async || json(&app, "/ops/locks?q=tail").await["locks"][0]["state"] == "kept";
    until(is_kept).await;
    let page = get(&app, "/ops/locks/lock?key=tail").await.body;
    assert!(page.contains("kept: the hold has ended"), "{page}");
    let token = crashed.token().get();
    std::mem::forget(crashed); // as if its process had ended
    tokio::time::sleep(SECOND).await;
    released.release().await;
    live.until(|event| event["rows"].to_string().contains("crashed"))
        .await;
    renewed.release().await;
    tokio::time::sleep(SECOND).await;
    let history = json(&app, "/ops/locks/history").await;
    let events = history["history"].as_array().unwrap();
    assert_eq!(events.len(), 1, "{history}");
    assert_eq!(
        (&events[0]["event"], &events[0]["token"]),
        (&"lease_ended".into(), &token.into())
    );
    assert_eq!(events[0]["caller"]["pid"], std::process::id(), "{history}");
    drop(client);
}

/// Locks of the in-memory backend cannot be listed. The page shows the error that says so.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_cannot_be_listed_are_told() {
    let client = LockClient::connect("memory:").await.unwrap();
    let guard = client.lock("k").acquire().await.unwrap();
    let app = mounted(LockPage::new(client));
    let page = get(&app, "/ops/locks").await;
    assert!(page.body.contains("refuses to answer"), "{}", page.body);
    let lock = json(&app, "/ops/locks/lock?key=k").await;
    assert_eq!(lock["holder"]["token"], guard.token().get(), "{lock}");
}
