//! Tests of the feature `metrics`: the metrics agree with the calls that a test has made.

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

use lock_runtime::{LockClient, LockError, METRIC_BUCKETS, distributed_lock};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use support::{
    server::RedisServer,
    stores::{Store, on_every_store, on_stores_with_a_queue, until_waiting},
    until,
};

const SECOND: Duration = Duration::from_secs(1);

fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &METRIC_BUCKETS)
            .unwrap()
            .install_recorder();
        lock_runtime::describe_metrics();
        handle.expect("no other recorder is installed")
    })
}

/// Returns the value of a metric with these labels, or zero if the metric was never recorded.
fn metric(name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = recorder().render();
    let has = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name)
            && labels
                .iter()
                .all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    };
    let values = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter(has);
    let values = values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    values.sum()
}

fn acquisitions(label: &str, outcome: &str) -> f64 {
    let labels = [("name", label), ("outcome", outcome), ("kind", "exclusive")];
    metric("lock_acquire_seconds_count", &labels)
}

#[distributed_lock(key = "metric:<id>", wait = "20s")]
async fn nested(id: u64, depth: u64) -> Result<(), LockError> {
    match depth {
        0 => Ok(()),
        _ => Box::pin(nested(id, depth - 1)).await,
    }
}

/// For each waiter, the metric `lock_handoff_seconds` records the time from the offer of the lock until the waiter
/// takes the lock. Callers that do not wait are not recorded.
#[tokio::test]
async fn each_handoff_is_timed() {
    recorder();
    on_stores_with_a_queue(async |store: Store| {
        let [client, other] = store.clients().await;
        let label: &'static str = Box::leak(support::server::free_port().to_string().into());
        let guard = client.lock("k").label(label).acquire().await.unwrap();
        let handoffs = || metric("lock_handoff_seconds_count", &[("name", label)]);
        assert_eq!(handoffs(), 0.0);
        let mut waiting = tokio::task::JoinSet::new();
        for (waiters, client) in [&client, &client, &other, &client].into_iter().enumerate() {
            waiting.spawn(
                client
                    .lock("k")
                    .label(label)
                    .wait(20 * SECOND)
                    .run(async {}),
            );
            until_waiting(&other, "k", waiters + 1).await;
        }
        guard.release().await;
        while let Some(entered) = waiting.join_next().await {
            entered.unwrap().unwrap();
        }
        assert_eq!(handoffs(), 4.0, "{store:?}");
        let time = metric("lock_handoff_seconds_sum", &[("name", label)]);
        assert!(time > 0.0 && time < 4.0, "{store:?}: {time}");
    })
    .await;
}

/// On every backend, the metrics agree with the calls of this test. Metrics that count events are exact.
#[tokio::test]
async fn metrics_equal_what_was_done() {
    recorder();
    on_every_store(async |store: Store| {
        let client = store.client().await;
        // The locks on each store have a label of their own, because the recorder counts for the whole process.
        let label: &'static str = Box::leak(support::server::free_port().to_string().into());
        let lock = |key: &str| client.lock(key).label(label).wait(20 * SECOND);
        for _ in 0..5 {
            lock("metric:own").run(async {}).await.unwrap();
        }
        let guard = lock("metric:held").acquire().await.unwrap();
        assert_eq!(metric("lock_holding", &[("name", label)]), 1.0);
        for _ in 0..3 {
            let busy = client.lock("metric:held").label(label).try_acquire().await;
            assert!(matches!(busy, Err(LockError::Busy { .. })));
        }
        let waiting = tokio::spawn(lock("metric:held").run(async {}));
        until(async || metric("lock_waiting", &[("name", label)]) == 1.0).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        guard
            .run(lock("metric:held").run(async {}))
            .await
            .unwrap()
            .unwrap();
        guard.release().await;
        let lost = lock("metric:lost").lease(Duration::from_millis(300));
        let lost = lost.run(std::future::pending::<()>()).await;
        assert!(matches!(lost, Err(LockError::Lost { .. })));
        client.shutdown().await;
        let after = lock("metric:own").run(async {}).await;
        assert!(matches!(after, Err(LockError::ShutDown)));

        let outcomes = [
            ("granted", 7.0),
            ("busy", 3.0),
            ("dropped", 1.0),
            ("reentered", 1.0),
            ("shut_down", 1.0),
        ];
        for (outcome, count) in outcomes {
            assert_eq!(acquisitions(label, outcome), count, "{store:?}: {outcome}");
        }
        let held = |outcome| {
            metric(
                "lock_held_seconds_count",
                &[("name", label), ("outcome", outcome)],
            )
        };
        assert_eq!((held("released"), held("lost")), (6.0, 1.0), "{store:?}");
        let lost = metric("lock_lost_total", &[("name", label), ("reason", "expired")]);
        assert_eq!(lost, 1.0, "{store:?}");
        let warned = metric("lock_lease_warnings_total", &[("name", label)]);
        assert_eq!(warned, 1.0, "{store:?}");
        for gauge in ["lock_waiting", "lock_holding"] {
            assert_eq!(metric(gauge, &[("name", label)]), 0.0, "{store:?}: {gauge}");
        }
    })
    .await;
}

/// Each counter exists with the value 0 before its first event, because Prometheus computes no increase for a counter that
/// first appears with the value 1. The counters of a name exist from its first acquisition on, and the others from the
/// creation of a client on.
#[tokio::test]
async fn each_counter_exists_before_its_first_event() {
    recorder();
    let client = LockClient::connect("memory:").await.unwrap();
    let is_there = |metric: &str, labels: &str| {
        let series = format!("{metric}{labels}");
        let text = recorder().render();
        text.lines().any(|line| line.starts_with(&series))
    };
    assert!(is_there("lock_wakeups_missed_total", ""));
    assert!(is_there("lock_reconnects_total", ""));
    let label = "metric:first";
    assert!(!recorder().render().contains(label));
    let guard = client.lock(label).label(label).acquire().await.unwrap();
    let zero = [
        ("lock_lost_total", ",reason=\"expired\""),
        ("lock_lost_total", ",reason=\"not_held\""),
        ("lock_lease_warnings_total", ""),
        ("lock_renewals_total", ",outcome=\"renewed\""),
        ("lock_renewals_total", ",outcome=\"failed\""),
    ];
    for (metric, more) in zero {
        let labels = format!("{{name=\"{label}\",kind=\"exclusive\"{more}}}");
        assert!(is_there(metric, &format!("{labels} 0")), "{metric}{labels}");
    }
    guard.release().await;
}

/// The label of an annotated function is the template of its key, never the key.
#[tokio::test]
async fn the_label_is_the_template() {
    recorder();
    let client = LockClient::connect("memory:").await.unwrap();
    client.scope(nested(71, 2)).await.unwrap();
    client.scope(nested(72, 0)).await.unwrap();
    assert_eq!(acquisitions("metric:<id>", "granted"), 2.0);
    assert_eq!(acquisitions("metric:<id>", "reentered"), 2.0);
    let text = recorder().render();
    assert!(!text.contains("metric:71"), "{text}");
}

/// The metrics count renewals, scripts and reconnects. The metrics also measure a wait that ends with a release.
#[tokio::test]
async fn renewals_scripts_and_reconnects_are_counted() {
    recorder();
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let label = "metric:renewed";
    let scripts = |name| metric("lock_script_seconds_count", &[("script", name)]);
    let before = (scripts("acquire"), scripts("release"));
    let lock = client.lock(label).label(label).lease(SECOND).renew(true);
    let guard = lock.acquire().await.unwrap();
    let waiting = client.lock(label).label(label).wait(20 * SECOND);
    let waiting = tokio::spawn(waiting.run(async {}));
    until_waiting(&client, label, 1).await;
    let renewed = [("name", label), ("outcome", "renewed")];
    until(async || metric("lock_renewals_total", &renewed) >= 2.0).await;
    assert!(scripts("renew") >= 2.0 && scripts("probe") >= 1.0);
    guard.release().await;
    waiting.await.unwrap().unwrap();
    assert!(scripts("acquire") >= before.0 + 2.0);
    assert!(scripts("release") >= before.1 + 2.0);
    assert_eq!(acquisitions(label, "granted"), 2.0);
    // The second caller waited during two renewals, which are a third of a second apart.
    let waited = metric("lock_acquire_seconds_sum", &[("name", label)]);
    assert!(waited >= 0.6, "{waited}");

    let reconnects = metric("lock_reconnects_total", &[]);
    let mut connection = server.connection().await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    let killed: usize = kill.query_async(&mut connection).await.unwrap();
    assert!(killed > 0);
    until(async || metric("lock_reconnects_total", &[]) >= reconnects + 1.0).await;
}

/// The gauge `lock_connected` is 1 while the client is connected, and 0 during an outage.
#[tokio::test]
async fn an_outage_shows_in_a_gauge() {
    recorder();
    let mut server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let text = || recorder().render();
    let shows =
        |value| text().contains(&format!("lock_connected{{server=\"{address}\"}} {value}\n"));
    until(async || shows(1)).await;
    server.kill();
    until(async || shows(0)).await;
    server.restart().await;
    until(async || shows(1)).await;
    client.shutdown().await;
    assert!(shows(1), "the end of a client is no outage");
}

/// A script that grants the lock to the first waiter, but sends no message. Only a probe can then find the grant.
const GRANT_WITHOUT_MESSAGE: &str = "
    local head = redis.call('ZPOPMIN', KEYS[2])
    local owner, session, lease = string.match(head[1], '^(%x+)|([^|]+)|(%d+)')
    local token = string.format('%.0f', redis.call('INCR', KEYS[3]))
    redis.call('SET', KEYS[1], token .. '|' .. lease .. '|' .. session .. '|' .. owner, 'PX', 2000)";

/// Reports each metric at least once.
async fn report_every_metric() {
    let server = RedisServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.lock("every").wait(20 * SECOND);
    let renewed = lock.clone().lease(SECOND).renew(true);
    renewed.run(tokio::time::sleep(SECOND / 2)).await.unwrap();
    let lost = lock.clone().lease(Duration::from_millis(100));
    assert!(lost.run(std::future::pending::<()>()).await.is_err());

    let other = LockClient::connect(server.url()).await.unwrap();
    let guard = other.lock("every").acquire().await.unwrap();
    let waiting = tokio::spawn(lock.run(async {}));
    until_waiting(&client, "every", 1).await;
    let script = redis::Script::new(GRANT_WITHOUT_MESSAGE);
    let mut script = script.prepare_invoke();
    script.key(&["{lock:every}", "{lock:every}:queue", "lock:fence"][..]);
    let mut connection = server.connection().await;
    let () = script.invoke_async(&mut connection).await.unwrap();
    waiting.await.unwrap().unwrap();
    guard.release().await;

    let before = metric("lock_reconnects_total", &[]);
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    let _: usize = kill.query_async(&mut connection).await.unwrap();
    until(async || metric("lock_reconnects_total", &[]) > before).await;
    let leader = client.leader("every").label("every");
    let while_leading = leader.run(async |_| metric("lock_leader", &[("name", "every")]));
    assert_eq!(while_leading.await.unwrap(), 1.0);
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
    let words = words.filter(|word| word.starts_with("lock_") && *word != "lock_runtime");
    words.collect()
}

/// The guide names exactly the metrics that a service reports, and each metric has a description. The alerts, the
/// dashboard and the runbook use no other names.
#[tokio::test]
async fn the_guide_the_alerts_and_the_dashboard_name_what_a_service_reports() {
    recorder();
    report_every_metric().await;
    let text = recorder().render();
    let described = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let described: BTreeSet<_> = described
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("lock_"))
        .collect();
    let runbook = names(include_str!("../../docs/operations/runbook.md"));
    let unknown: Vec<_> = runbook.difference(&described).collect();
    assert!(unknown.is_empty(), "{unknown:?} in the runbook");
    let guide = include_str!("../../docs/guides/spans-and-metrics.md");
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `lock_"));
    let documented: BTreeSet<_> = rows.filter_map(|row| row.split('`').next()).collect();
    let reported: BTreeSet<_> = described
        .iter()
        .map(|name| &name["lock_".len()..])
        .collect();
    assert_eq!(documented, reported);

    let series: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let pages = [
        include_str!("../../docs/operations/prometheus-rules.yml"),
        include_str!("../../docs/operations/prometheus-rules-test.yml"),
        include_str!("../../docs/operations/grafana-dashboard.json"),
    ];
    for page in pages {
        let used = names(page);
        assert!(used.len() >= 5, "{used:?}");
        let unknown: Vec<_> = used.difference(&series).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {page}");
    }
}
