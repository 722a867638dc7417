//! Tests of the page that shows locks, in headless Chromium.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use axum::Router;
use base64::Engine as _;
use fantoccini::{Client, ClientBuilder, Locator, key::Key, wd::WebDriverCompatibleCommand};
use http::Method;
use lock_page::LockPage;
use lock_runtime::{LockClient, LockGuard, LossReason};
use serde_json::{Value, json};
use support::{
    process::{Mortal, dies_with_parent},
    server::{RedisServer, free_port},
    stores::until_waiting,
};
use url::{ParseError, Url};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The size of a window, in pixels.
#[derive(Debug, Clone, Copy)]
struct Size {
    width: u32,
    height: u32,
    is_phone: bool,
}

const DESKTOP: Size = Size {
    width: 1280,
    height: 800,
    is_phone: false,
};
const PHONE: Size = Size {
    width: 390,
    height: 844,
    is_phone: true,
};

/// A Chromium, and the driver process through which the tests control it.
struct Browser {
    client: Client,
    _driver: Mortal,
}

/// A WebDriver command that only Chromium's driver has.
#[derive(Debug)]
struct Special {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Special {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!(
            "session/{}/{}",
            session.unwrap_or_default(),
            self.path
        ))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

impl Browser {
    async fn open() -> Self {
        Self::with(json!({})).await
    }

    async fn with(preferences: Value) -> Self {
        let port = free_port();
        let mut command = dies_with_parent("chromedriver");
        command
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver = Mortal::start(command).expect("chromedriver is installed");
        let options = json!({
            "goog:chromeOptions": {
                "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"],
                "prefs": preferences,
            },
            "goog:loggingPrefs": { "performance": "ALL", "browser": "ALL" },
        });
        let Value::Object(capabilities) = options else {
            unreachable!()
        };
        let began = Instant::now();
        let client = loop {
            let mut builder =
                ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
            builder.capabilities(capabilities.clone());
            match builder.connect(&format!("http://127.0.0.1:{port}")).await {
                Ok(client) => break client,
                Err(error) => assert!(began.elapsed() < 30 * SECOND, "{error}"),
            }
            tokio::time::sleep(SECOND / 10).await;
        };
        let browser = Self {
            client,
            _driver: driver,
        };
        browser.resize(DESKTOP).await;
        browser
    }

    async fn special(&self, path: &'static str, body: Value) -> Value {
        self.client.issue_cmd(Special { path, body }).await.unwrap()
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.special(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": params }),
        )
        .await
    }

    async fn resize(&self, size: Size) {
        let metrics = json!({
            "width": size.width,
            "height": size.height,
            "deviceScaleFactor": 1,
            "mobile": size.is_phone,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
            .await;
    }

    async fn text(&self, selector: &str) -> String {
        let found = self.client.find(Locator::Css(selector)).await;
        found
            .unwrap_or_else(|error| panic!("{selector}: {error}"))
            .text()
            .await
            .unwrap()
    }

    async fn count(&self, selector: &str) -> usize {
        self.client
            .find_all(Locator::Css(selector))
            .await
            .unwrap()
            .len()
    }

    async fn click(&self, selector: &str) {
        loop {
            let found = self.client.find(Locator::Css(selector)).await;
            let found = found.unwrap_or_else(|error| panic!("{selector}: {error}"));
            match found.click().await {
                // The page's script has replaced the element between the two commands.
                Err(error) if error.is_stale_element_reference() => {}
                clicked => return clicked.unwrap(),
            }
        }
    }

    async fn press(&self, keys: &str) {
        self.client
            .active_element()
            .await
            .unwrap()
            .send_keys(keys)
            .await
            .unwrap();
    }

    /// Waits until `fits` returns true for the text of an element. Returns how long the wait took.
    async fn until(&self, selector: &str, fits: impl Fn(&str) -> bool) -> Duration {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < 2 * MINUTE {
            // The page's script can replace the element between the two commands.
            if let Ok(found) = self.client.find(Locator::Css(selector)).await
                && let Ok(text) = found.text().await
            {
                if fits(&text) {
                    return began.elapsed();
                }
                last = text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("`{selector}` has the text {last:?}");
    }

    /// Writes a screenshot of the window.
    async fn screenshot(&self, size: Size, name: &str) {
        self.resize(size).await;
        let shot = self
            .devtools("Page.captureScreenshot", json!({ "format": "png" }))
            .await;
        let engine = base64::engine::general_purpose::STANDARD;
        let bytes = engine.decode(shot["data"].as_str().unwrap()).unwrap();
        let options = oxipng::Options::from_preset(3);
        let bytes = oxipng::optimize_from_memory(&bytes, &options).unwrap();
        assert!(bytes.len() < 200_000, "{name} has {} bytes", bytes.len());
        std::fs::write(support::root().join("docs/operations").join(name), bytes).unwrap();
    }

    /// Returns the addresses of all requests that the pages have made so far. Fails if the browser has logged an error,
    /// such as a violation of the page's security policy.
    async fn requests(&self) -> Vec<String> {
        let errors = self.special("se/log", json!({ "type": "browser" })).await;
        for entry in errors.as_array().unwrap() {
            let text = entry["message"].as_str().unwrap();
            assert!(
                !text.contains("Content Security Policy") && !text.contains("Uncaught"),
                "{text}"
            );
        }
        let log = self
            .special("se/log", json!({ "type": "performance" }))
            .await;
        let messages = log.as_array().unwrap().iter().map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            message["message"].clone()
        });
        let sent = messages.filter(|message| message["method"] == "Network.requestWillBeSent");
        sent.map(|message| {
            message["params"]["request"]["url"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
    }
}

/// A service with the page under `/ops/locks`. Returns the address of the page.
async fn serve(page: LockPage) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app: Router = Router::new().nest("/ops/locks", page.into_router());
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/ops/locks")
}

async fn client(server: &RedisServer, application: &str) -> LockClient {
    let client = LockClient::builder()
        .url(server.url())
        .application(application);
    client.connect().await.unwrap()
}

/// Holds 1,000 locks, for which 200 callers of three processes wait.
async fn fill(server: &RedisServer) -> (Vec<LockGuard>, Vec<tokio::task::JoinHandle<()>>) {
    let clients = [
        client(server, "shop").await,
        client(server, "billing").await,
        client(server, "reports").await,
    ];
    let mut guards = Vec::new();
    for number in 0..1000_usize {
        let seconds = 30 + (number as u32 * 37) % 90;
        let lock = clients[number % 3].lock(format!("order:{number:04}"));
        // Two thirds of the leases are renewed. The other leases are not renewed.
        let lock = match number % 3 {
            1 => lock.lease(2 * seconds * SECOND + MINUTE),
            _ => lock.lease(seconds * SECOND).renew(true),
        };
        let lock = lock.label("shop::orders::pay");
        guards.push(lock.acquire().await.unwrap());
    }
    let mut waiting = Vec::new();
    for number in 0..200_usize {
        // 20 callers wait for each of ten locks.
        let lock = clients[number / 2 % 3].lock(format!("order:{:04}", number % 10 * 3));
        let lock = lock.wait(10 * MINUTE).label("shop::orders::refund");
        waiting.push(tokio::spawn(async move { drop(lock.acquire().await) }));
    }
    for number in 0..10 {
        until_waiting(&clients[0], &format!("order:{:04}", number * 3), 20).await;
    }
    (guards, waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_locks_are_shown_and_searched() {
    let server = RedisServer::start().await;
    let (guards, waiting) = fill(&server).await;
    let page = serve(LockPage::new(client(&server, "page").await).allow_release()).await;
    let browser = Browser::open().await;
    browser.client.goto(&page).await.unwrap();
    browser.until("#held", |text| text == "1000").await;
    let took = browser
        .until("#summary", |text| text == "1000 held, 200 waiting")
        .await;
    println!("all 1,000 locks were read after {took:.1?}");
    assert_eq!(browser.count("#rows tr").await, 100);
    browser
        .until("#pager", |text| text.contains("Page 1 of 10"))
        .await;

    let late = client(&server, "late").await;
    let lock = late.lock("order:0050").wait(10 * MINUTE);
    let waiter = tokio::spawn(async move { drop(lock.acquire().await) });
    let took = browser
        .until("#rows tr:nth-child(51) td:last-child", |text| text == "1")
        .await;
    println!("a new waiter appeared after {took:.1?}");
    waiter.abort();
    until_waiting(&late, "order:0050", 0).await;
    browser
        .until("#summary", |text| text == "1000 held, 200 waiting")
        .await;

    browser.screenshot(DESKTOP, "page-desktop.png").await;
    // The page uses light or dark colours, as the system prefers.
    let mut backs = Vec::new();
    for scheme in ["light", "dark"] {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        let media = json!({ "features": [feature] });
        browser.devtools("Emulation.setEmulatedMedia", media).await;
        let body = browser.client.find(Locator::Css("body")).await.unwrap();
        backs.push(body.css_value("background-color").await.unwrap());
    }
    assert_ne!(backs[0], backs[1]);
    let light = json!({ "features": [] });
    browser.devtools("Emulation.setEmulatedMedia", light).await;
    // On the narrow screen of a phone, nothing is cut off at the right edge.
    browser.resize(PHONE).await;
    let wide = browser
        .client
        .execute("return document.documentElement.scrollWidth", vec![])
        .await;
    assert_eq!(wide.unwrap(), 390);
    browser.resize(DESKTOP).await;

    // The page searches the list while the user types, and the browser does not load the page again.
    let search = browser.client.find(Locator::Css("#q")).await.unwrap();
    search.send_keys("order:099").await.unwrap();
    let took = browser.until("#held", |text| text == "10").await;
    println!("the search took {took:.2?}");
    browser
        .until("#rows", |text| text.starts_with("order:0990"))
        .await;
    assert_eq!(browser.count("#rows tr").await, 10);
    assert!(
        browser
            .client
            .current_url()
            .await
            .unwrap()
            .query()
            .unwrap()
            .contains("q=order%3A099")
    );
    browser.client.refresh().await.unwrap();
    assert_eq!(browser.count("#rows tr").await, 10);

    // The view of one lock shows its queue and the waiting processes.
    browser
        .client
        .goto(&format!("{page}/lock?key=order:0003"))
        .await
        .unwrap();
    browser
        .until(".groups", |text| text.matches("billing@").count() == 1)
        .await;
    assert_eq!(browser.count("#rows tr").await, 20);
    assert_eq!(browser.count(".groups li").await, 3);
    assert_eq!(browser.text("#rows tr:nth-child(20) .place").await, "20");
    assert!(browser.text("#hold").await.contains("shop::orders::pay"));
    browser.screenshot(PHONE, "page-phone.png").await;

    // The bar that shows the remaining lease moves even between two readings of the lock from the server.
    let script = "return document.querySelector('#hold progress').value";
    let value = async || {
        browser
            .client
            .execute(script, vec![])
            .await
            .unwrap()
            .as_f64()
            .unwrap()
    };
    let before = value().await;
    browser.until("#hold", |_| true).await;
    tokio::time::sleep(SECOND).await;
    assert!((value().await - before).abs() > 100.0);

    let requests = browser.requests().await;
    assert!(requests.len() > 5, "{requests:?}");
    for request in requests {
        assert!(
            request.starts_with(&page) || request == "data:,",
            "{request}"
        );
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guards);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_and_a_release_appear_within_a_second() {
    let server = RedisServer::start().await;
    let (guards, waiting) = fill(&server).await;
    let holder = client(&server, "cron").await;
    let page = serve(LockPage::new(client(&server, "page").await)).await;
    let browser = Browser::open().await;
    browser.client.goto(&page).await.unwrap();
    browser.until("#held", |text| text == "1000").await;
    browser
        .until("#rows tr:nth-child(100)", |text| !text.contains("reading"))
        .await;
    // The test runs a script in the page, because the driver needs longer to read the text of the table than the page
    // needs to change.
    let appears = async |is_shown: bool| {
        let script = "return document.querySelector('#rows tr[data-id=nightly-report]') !== null";
        let began = Instant::now();
        while browser.client.execute(script, vec![]).await.unwrap() != is_shown {
            assert!(began.elapsed() < MINUTE);
        }
        began.elapsed()
    };
    for round in 0..5 {
        let guard = holder
            .lock("nightly-report")
            .lease(MINUTE)
            .acquire()
            .await
            .unwrap();
        let held = appears(true).await;
        let token = guard.token().to_string();
        // This lock is the first row of the page, because its key sorts before all other keys.
        let first = "#rows tr:first-child";
        let read = browser.until(first, |text| text.contains(&token)).await;
        guard.release().await;
        let released = appears(false).await;
        println!(
            "{round}: a hold appeared after {held:.2?}, its token {read:.2?} later; a release after {released:.2?}"
        );
        assert!(held < SECOND && released < SECOND);
    }
    // A paused page does not change.
    browser.click("#pause button").await;
    let guard = holder
        .lock("nightly-report")
        .lease(MINUTE)
        .acquire()
        .await
        .unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert!(!browser.text("#rows").await.contains("nightly-report"));
    browser.click("#pause button").await;
    browser
        .until("#rows", |text| text.contains("nightly-report"))
        .await;
    guard.release().await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guards);
}

/// A user releases a lock by force with the mouse: from the list to the lock, to the form, and to the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_asks_for_the_key() {
    let server = RedisServer::start().await;
    let holder = client(&server, "shop").await;
    let lock = holder
        .lock("order:<42> & \"co\"")
        .lease(3 * SECOND)
        .renew(true);
    let guard = lock.acquire().await.unwrap();
    let page = serve(LockPage::new(client(&server, "page").await).allow_release()).await;
    let browser = Browser::open().await;
    browser.client.goto(&page).await.unwrap();
    browser.click("#rows a.key").await;
    browser
        .until("#hold", |text| text.contains(&guard.token().to_string()))
        .await;
    browser.click("a.danger").await;
    let fill_in = async |typed: &str| {
        let field = browser.client.find(Locator::Css("#typed")).await.unwrap();
        field.send_keys(typed).await.unwrap();
        let name = browser.client.find(Locator::Css("#by")).await.unwrap();
        name.send_keys("alice").await.unwrap();
        browser.click("main button.danger").await;
    };
    fill_in("order:<42>").await;
    assert!(browser.text("#refusal").await.contains("not the key"));
    assert_eq!(guard.loss(), None);
    fill_in("order:<42> & \"co\"").await;
    assert_eq!(browser.text("#outcome").await, "Released");
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    browser.click("nav a").await;
    browser
        .until("#rows", |text| text.contains("released by force by alice"))
        .await;
    assert!(browser.text("#rows").await.contains("order:<42> & \"co\""));
    browser.requests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_recovers_when_the_lock_server_comes_back() {
    let mut server = RedisServer::builder().aof_always().start().await;
    let holder = client(&server, "shop").await;
    let guard = holder
        .lock("order:1")
        .lease(10 * MINUTE)
        .acquire()
        .await
        .unwrap();
    let page = serve(LockPage::new(client(&server, "page").await)).await;
    let browser = Browser::open().await;
    browser.client.goto(&page).await.unwrap();
    browser
        .until("#rows", |text| text.contains(&guard.token().to_string()))
        .await;
    for _ in 0..2 {
        server.kill();
        let told = browser
            .until("#banner", |text| text.contains("does not answer"))
            .await;
        server.restart().await;
        let recovered = browser.until("#banner", str::is_empty).await;
        println!("the page showed the outage after {told:.2?}, and its end after {recovered:.2?}");
        assert!(browser.text("#rows").await.contains("order:1"));
    }
    let other = holder
        .lock("order:2")
        .lease(MINUTE)
        .wait(MINUTE)
        .acquire()
        .await
        .unwrap();
    browser
        .until("#rows", |text| text.contains("order:2"))
        .await;
    drop((guard, other));
}

/// A page that is opened during an outage shows the outage at once, and does not claim that no lock is held. After the
/// outage, the page tells a lock that is only kept from a held one, and shows how much of the whole lease is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_opened_during_an_outage_says_so_at_once() {
    let mut server = RedisServer::start().await;
    let viewer = LockClient::builder().url(server.url()).namespace("shop");
    let page = serve(LockPage::new(viewer.connect_lazy().unwrap())).await;
    let browser = Browser::open().await;
    server.kill();
    browser.client.goto(&page).await.unwrap();
    let banner = browser.text("#banner").await;
    assert!(banner.contains("does not answer"), "{banner}");
    assert_eq!(browser.text("#summary").await, "reading…");
    let source = browser.text("#source").await;
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let port = port.trim_end_matches('/').to_owned();
    assert!(
        source.starts_with("Namespace shop on ") && source.ends_with(&port),
        "{source}"
    );
    server.restart().await;
    browser.until("#banner", str::is_empty).await;
    let holder = LockClient::builder().url(server.url()).namespace("shop");
    let holder = holder.connect().await.unwrap();
    let lock = |key: &str| holder.lock(key).lease(10 * MINUTE);
    let guard = lock("held").acquire().await.unwrap();
    let kept = lock("kept").hold_at_least(10 * MINUTE);
    kept.run(async {}).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    browser.client.goto(&page).await.unwrap();
    let row = |key: &str| format!("#rows tr[data-id={key}]");
    browser
        .until(&row("kept"), |text| text.contains("kept after"))
        .await;
    browser
        .until(&row("held"), |text| {
            text.contains(&guard.token().to_string()) && !text.contains("kept after")
        })
        .await;
    let script = "return document.querySelector('#rows tr[data-id=held] progress').max";
    let max = browser.client.execute(script, vec![]).await.unwrap();
    assert_eq!(max, 600_000);
    drop(guard);
}

/// Everything can be reached by the Tab and Enter keys: the search, a lock, the form, and the history.
#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_is_enough() {
    let server = RedisServer::start().await;
    let holder = client(&server, "shop").await;
    let guard = holder
        .lock("order:7")
        .lease(3 * SECOND)
        .renew(true)
        .acquire()
        .await
        .unwrap();
    let other = holder.lock("other").lease(MINUTE).acquire().await.unwrap();
    let page = serve(LockPage::new(client(&server, "page").await).allow_release()).await;
    let browser = Browser::open().await;
    browser.client.goto(&page).await.unwrap();
    browser.until("#held", |text| text == "2").await;
    let tab = String::from(char::from(Key::Tab));
    let enter = String::from(char::from(Key::Enter));
    // Presses the Tab key until this element has the focus.
    let tab_to = async |selector: &str| {
        for _ in 0..30 {
            browser.press(&tab).await;
            let script = "return document.activeElement.matches(arguments[0])";
            let has_focus = browser
                .client
                .execute(script, vec![selector.into()])
                .await
                .unwrap();
            if has_focus == true {
                return;
            }
        }
        panic!("{selector} cannot be reached by the keyboard");
    };
    browser.press(&tab).await;
    assert_eq!(
        browser
            .client
            .active_element()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "Skip to the content"
    );
    tab_to("#q").await;
    browser.press("order").await;
    browser.until("#held", |text| text == "1").await;
    tab_to("#rows a.key").await;
    // A row keeps the focus while its contents change. Here the contents change because the row shows the number of
    // waiters.
    let waiting = tokio::spawn(holder.lock("order:7").wait(MINUTE).acquire());
    browser
        .until("#rows td:last-child", |text| text == "1")
        .await;
    browser.press(&enter).await;
    browser
        .until("h2", |text| text.starts_with("order:7"))
        .await;
    tab_to("a.danger").await;
    browser.press(&enter).await;
    browser
        .until("h2", |text| text.starts_with("Release by force"))
        .await;
    // The field for the key has the focus when the form opens.
    browser.press("order:7").await;
    tab_to("#by").await;
    browser.press("bob").await;
    tab_to("main button.danger").await;
    browser.press(&enter).await;
    browser.until("#outcome", |text| text == "Released").await;
    assert_eq!(guard.lost().await, LossReason::NotHeld);
    let next = waiting.await.unwrap().unwrap();
    tab_to("nav a").await;
    browser.press(&enter).await;
    browser.until("#rows", |text| text.contains("by bob")).await;
    drop((next, other));
}

/// Without scripts the page is a plain table with links and forms, which loads itself again.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_works_without_scripts() {
    let server = RedisServer::start().await;
    let holder = client(&server, "shop").await;
    let mut guards = Vec::new();
    for number in 0..120 {
        guards.push(
            holder
                .lock(format!("order:{number:03}"))
                .lease(MINUTE)
                .acquire()
                .await
                .unwrap(),
        );
    }
    let page = serve(LockPage::new(client(&server, "page").await).allow_release()).await;
    let browser =
        Browser::with(json!({ "profile.managed_default_content_settings.javascript": 2 })).await;
    browser
        .client
        .goto(&format!("{page}?q=order&page=2"))
        .await
        .unwrap();
    assert_eq!(browser.count("html.live").await, 0, "scripts are disabled");
    browser
        .until("#pager", |text| text.contains("Page 2 of 2"))
        .await;
    browser
        .until("#rows", |text| {
            text.contains("order:119") && !text.contains("reading")
        })
        .await;
    // After some seconds the page loads itself again, and then shows the new state.
    let late = holder
        .lock("order:200")
        .lease(MINUTE)
        .acquire()
        .await
        .unwrap();
    browser
        .until("#rows", |text| text.contains("order:200"))
        .await;
    browser.click("#pause button").await;
    browser
        .until("#pause button", |text| text == "Resume")
        .await;
    assert_eq!(
        browser
            .count("noscript meta[http-equiv], head meta[http-equiv]")
            .await,
        0
    );

    let search = browser.client.find(Locator::Css("#q")).await.unwrap();
    search.clear().await.unwrap();
    search.send_keys("order:007").await.unwrap();
    browser.click("#search button").await;
    browser.until("#held", |text| text == "1").await;
    browser.click("#rows a.key").await;
    browser
        .until("#hold", |text| {
            text.contains(&guards[7].token().to_string())
        })
        .await;
    browser.click("a.danger").await;
    browser
        .client
        .find(Locator::Css("#typed"))
        .await
        .unwrap()
        .send_keys("order:007")
        .await
        .unwrap();
    browser
        .client
        .find(Locator::Css("#by"))
        .await
        .unwrap()
        .send_keys("carol")
        .await
        .unwrap();
    browser.click("main button.danger").await;
    browser.until("#outcome", |text| text == "Released").await;
    let holder = holder.lock("order:007").status().await.unwrap().holder;
    assert!(holder.is_none());
    browser.click("nav a").await;
    browser
        .until("#rows", |text| text.contains("by carol"))
        .await;
    drop((guards, late));
}
