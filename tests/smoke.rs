use lock_runtime::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

async fn redis() -> LockClient {
    LockClient::builder()
        .url("redis://127.0.0.1:7999/")
        .namespace(uuid::Uuid::new_v4().to_string())
        .connect()
        .await
        .unwrap()
}
async fn both() -> [LockClient; 2] {
    [LockClient::connect("memory:").await.unwrap(), redis().await]
}
const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn order() {
    for c in both().await {
        let order = Arc::new(std::sync::Mutex::new(vec![]));
        let g = c.lock("k").acquire().await.unwrap();
        let mut hs = vec![];
        for i in 0..20usize {
            let cc = c.clone();
            let order = order.clone();
            hs.push(tokio::spawn(async move {
                cc.lock("k")
                    .wait(5 * S)
                    .run(async {
                        order.lock().unwrap().push(i);
                    })
                    .await
                    .unwrap();
            }));
            while c.lock("k").status().await.unwrap().waiters != i + 1 {
                tokio::task::yield_now().await;
            }
        }
        g.release().await;
        for h in hs {
            h.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
#[tokio::test]
async fn busy_in_time() {
    for c in both().await {
        let g = c.lock("k").acquire().await.unwrap();
        let t = Instant::now();
        let e = c.lock("k").try_acquire().await.unwrap_err();
        assert!(
            matches!(
                e,
                LockError::Busy {
                    with: BusyWith::ThisProcess,
                    ..
                }
            ),
            "{e}"
        );
        println!("{e} {:?}", t.elapsed());
        let t = Instant::now();
        let e = c.lock("k").wait(300 * MS).acquire().await.unwrap_err();
        assert!(matches!(e, LockError::Busy { .. }), "{e}");
        println!("{:?}", t.elapsed());
        assert!(t.elapsed() < 400 * MS && t.elapsed() >= 299 * MS);
        assert_eq!(c.lock("k").status().await.unwrap().waiters, 0);
        g.release().await;
        assert!(c.lock("k").status().await.unwrap().holder.is_none());
    }
}
#[tokio::test]
async fn loss() {
    for c in both().await {
        let t = Instant::now();
        let e = c
            .lock("k")
            .lease(300 * MS)
            .run(sleep(5 * S))
            .await
            .unwrap_err();
        println!("{e} {:?}", t.elapsed());
        assert!(matches!(
            e,
            LockError::Lost {
                reason: LossReason::Expired,
                ..
            }
        ));
        c.lock("k").try_acquire().await.unwrap().release().await;
        // waiters wake at expiry
        let g = c.lock("k").lease(500 * MS).acquire().await.unwrap();
        std::mem::forget(g);
        let t = Instant::now();
        c.lock("k")
            .wait(2 * S)
            .acquire()
            .await
            .unwrap()
            .release()
            .await;
        println!("enter after expiry {:?}", t.elapsed());
        assert!(t.elapsed() < 750 * MS);
    }
}
#[tokio::test]
async fn deleted() {
    let c = redis().await;
    let mut r = lock_runtime::redis::Client::open("redis://127.0.0.1:7999")
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let t = Instant::now();
    let e = c
        .lock("k")
        .lease(1500 * MS)
        .renew(true)
        .run(async {
            let keys: Vec<String> = lock_runtime::redis::cmd("KEYS")
                .arg("*}")
                .query_async(&mut r)
                .await
                .unwrap();
            println!("{keys:?}");
            let _: () = lock_runtime::redis::cmd("DEL")
                .arg(keys)
                .query_async(&mut r)
                .await
                .unwrap();
            sleep(5 * S).await
        })
        .await
        .unwrap_err();
    println!("{e} {:?}", t.elapsed());
    assert!(matches!(
        e,
        LockError::Lost {
            reason: LossReason::NotHeld,
            ..
        }
    ));
}
#[tokio::test]
async fn renewed() {
    let c = redis().await;
    c.lock("k")
        .lease(S)
        .renew(true)
        .run(async {
            std::thread::sleep(3 * S);
            sleep(10 * MS).await;
        })
        .await
        .unwrap();
    let e = c
        .lock("k")
        .lease(S)
        .renew(true)
        .max_hold(2 * S)
        .run(sleep(10 * S))
        .await
        .unwrap_err();
    println!("{e}");
    println!("{:?}", c.stats());
}
#[tokio::test]
async fn reentry() {
    for c in both().await {
        let c = &c;
        c.lock("k")
            .run(async {
                assert!(c.lock("k").is_held_here());
                c.lock("k")
                    .run(async {
                        c.lock("k").run(async {}).await.unwrap();
                    })
                    .await
                    .unwrap();
                // siblings take turns
                let n = std::cell::Cell::new(0);
                let sib = || {
                    c.lock("k").run(async {
                        assert_eq!(n.replace(1), 0);
                        sleep(20 * MS).await;
                        n.set(0);
                    })
                };
                let (a, b, d) = tokio::join!(sib(), sib(), sib());
                a.unwrap();
                b.unwrap();
                d.unwrap();
                // spawned strangers
                let c2 = c.clone();
                let e =
                    tokio::spawn(async move { c2.lock("k").wait(100 * MS).run(async {}).await })
                        .await
                        .unwrap()
                        .unwrap_err();
                println!("{e}");
                let c2 = c.clone();
                tokio::spawn(
                    async move { c2.lock("k").wait(100 * MS).run(async {}).await }
                        .in_current_hold(),
                )
                .await
                .unwrap()
                .unwrap();
            })
            .await
            .unwrap();
        assert!(!c.lock("k").is_held_here());
        assert!(c.lock("k").status().await.unwrap().holder.is_none());
        println!("{:?}", c.stats());
    }
}
#[tokio::test(start_paused = true)]
async fn paused() {
    let c = LockClient::connect("memory:").await.unwrap();
    let g = c.lock("k").acquire().await.unwrap();
    let t = tokio::time::Instant::now();
    let e = c.lock("k").wait(3600 * S).acquire().await.unwrap_err();
    assert_eq!(t.elapsed().as_secs(), 3600);
    println!("{e}");
    g.release().await;
    let e = c
        .lock("k")
        .lease(3600 * S)
        .run(sleep(7200 * S))
        .await
        .unwrap_err();
    println!("{e}");
}
#[test]
fn blocking() {
    for url in ["memory:", "redis://127.0.0.1:7999/"] {
        let c = LockClient::builder()
            .url(url)
            .namespace(uuid::Uuid::new_v4().to_string())
            .blocking_connect()
            .unwrap();
        let g = c.lock("k").blocking_acquire().unwrap();
        assert!(c.lock("k").blocking_try_acquire().is_err());
        g.blocking_release();
        c.lock("k")
            .blocking_try_acquire()
            .unwrap()
            .blocking_release();
    }
}
#[tokio::test]
async fn cancel() {
    for c in both().await {
        for us in (0..2000).step_by(10) {
            let g = if us % 20 == 0 {
                Some(c.lock("k").acquire().await.unwrap())
            } else {
                None
            };
            let l = c.lock("k").wait(S);
            let _ = tokio::time::timeout(
                Duration::from_micros(us),
                l.run(sleep(Duration::from_micros(500))),
            )
            .await;
            drop(g);
        }
        let t = Instant::now();
        c.lock("k").acquire().await.unwrap().release().await;
        println!("after cancels {:?} {:?}", t.elapsed(), c.stats());
        let t = Instant::now();
        c.shutdown().await;
        println!("shutdown {:?}", t.elapsed());
        assert!(matches!(
            c.lock("k").acquire().await,
            Err(LockError::ShutDown)
        ));
    }
}
#[tokio::test]
async fn bad() {
    for url in [
        "redis://127.0.0.1:1/",
        "redis://user:pw@127.0.0.1:7999/",
        "http://x",
        "redis://127.0.0.1:7999/99",
    ] {
        let t = Instant::now();
        let e = LockClient::connect(url).await.unwrap_err();
        println!("{url}: {e} {:?}", t.elapsed());
    }
}
