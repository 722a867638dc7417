//! Real servers, real processes and a fault proxy for the tests, examples and benchmarks of this workspace.

pub mod process;
pub mod proxy;
pub mod server;

/// Asks until the answer is yes.
///
/// # Panics
/// If that does not happen within 20 s: what a test waits for has to happen.
pub async fn until(mut question: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !question().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), asking)
        .await
        .expect("what the test waits for happens within 20 s");
}

/// The README's code, compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
