//! Rotating credentials: what a provider of credentials returns, when the engine calls the provider, and how an open
//! connection logs in again.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::Shared};
use lock_core::{backend::BoxFuture, lease::Moment};
use redis::RedisError;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    backend::redis::transport::wire::Wire,
    background::{Context, lock},
    credentials::{Credentials, Source},
    events::TARGET,
    limits,
};

/// The code of the error that is returned if the provider returns no credentials.
pub(crate) const NO_CREDENTIALS: &str = "NOCREDENTIALS";
/// How many calls of a provider can block their threads at the same time. The engine cannot stop a call that blocks,
/// and needs threads for other work, too.
const BLOCKED_AT_MOST: usize = 4;
/// The shortest and the longest pause before a failed login is repeated.
const LOGIN_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The result of one call of the provider.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    pub(crate) credentials: Credentials,
    at: Moment,
}

impl Obtained {
    /// Returns the moment at which the connection has to log in again, and the pause that follows a failed login.
    pub(crate) fn login_again(&self) -> Option<(Moment, Duration)> {
        let valid_for = self.credentials.valid_for?.max(LOGIN_PAUSE.0);
        let pause = (valid_for / 20).clamp(LOGIN_PAUSE.0, LOGIN_PAUSE.1);
        Some((self.at + valid_for / 5 * 4, pause))
    }
}

/// Returns the error of a connection that has no credentials, for this reason.
pub(crate) fn no_credentials(reason: &str) -> RedisError {
    let reason = reason.replace(char::is_control, " ");
    redis::make_extension_error(NO_CREDENTIALS.into(), Some(reason))
}

type Answer = (Moment, Result<Credentials, String>);
type Call = Shared<BoxFuture<'static, Answer>>;

/// Returns whether a connection can still use an answer of the provider.
fn is_fresh((at, answer): &Answer, now: Moment) -> bool {
    let valid_for = answer.as_ref().ok().and_then(|answer| answer.valid_for);
    let limit = valid_for.map_or(limits::UNCLAIMED_FOR, |time| {
        limits::UNCLAIMED_FOR.min(time / 5 * 4)
    });
    *at + limit >= now
}

/// A provider of credentials. Connections that are made during one call of the provider share the answer to this call.
pub(crate) struct Provider {
    source: Source,
    /// The call of the provider that is under way, or whose answer no connection has used yet.
    call: Mutex<Option<Call>>,
    /// The user in the newest answer.
    user: Mutex<Option<String>>,
    /// One permit for each thread on which a call of the provider can run.
    threads: Arc<Semaphore>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider(..)")
    }
}

impl Provider {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            call: Mutex::default(),
            user: Mutex::default(),
            threads: Arc::new(Semaphore::new(BLOCKED_AT_MOST)),
        }
    }

    /// Returns the user in the newest answer.
    pub(crate) fn user(&self) -> Option<String> {
        lock(&self.user).clone()
    }

    /// Returns whether a call of the provider is under way.
    pub(crate) fn is_asked(&self) -> bool {
        let call = lock(&self.call);
        call.as_ref().is_some_and(|call| call.peek().is_none())
    }

    /// Calls the provider, or waits for the call that is under way. The calling code has to limit the time. If the
    /// calling code stops waiting, the call continues, and the next connection uses its answer. The engine can thus use
    /// a provider that is slower than one try to connect.
    pub(crate) async fn get(&self, context: &Arc<Context>) -> Result<Obtained, RedisError> {
        let mut own_calls = 0;
        let (at, answer) = loop {
            let call = {
                let mut call = lock(&self.call);
                match &*call {
                    Some(call) => call.clone(),
                    None => {
                        own_calls += 1;
                        call.insert(self.start(context)).clone()
                    }
                }
            };
            let answer = call.clone().await;
            {
                let mut newest = lock(&self.call);
                if newest.as_ref().is_some_and(|newest| newest.ptr_eq(&call)) {
                    *newest = None;
                }
            }
            // The answer can be old, if all connections that waited for this call have given up, or if this future was
            // not polled. A second answer to a call of this future is used in any case, so that the loop ends.
            if own_calls == 2 || is_fresh(&answer, context.now()) {
                break answer;
            }
        };
        match answer {
            Ok(credentials) => {
                *lock(&self.user) = Some(credentials.user.clone());
                Ok(Obtained { credentials, at })
            }
            Err(detail) => Err(no_credentials(&detail)),
        }
    }

    fn start(&self, context: &Arc<Context>) -> Call {
        let (source, threads) = (self.source.clone(), self.threads.clone());
        let context = context.clone();
        let asking = async move {
            let no_answer = || Err(format!("no answer within {:?}", limits::PROVIDER_PATIENCE));
            let until = context.now() + limits::PROVIDER_PATIENCE;
            let answering = async {
                let thread = threads.acquire_owned().await;
                let (engine, clock) = (context.handle().clone(), context.clone());
                // The provider runs on a thread of its own, because it can block, and the engine's thread renews all
                // leases.
                let asking = context.handle().spawn_blocking(move || {
                    let _thread = thread;
                    let asking =
                        || engine.block_on(timeout(limits::PROVIDER_PATIENCE, source.ask()));
                    let answer = match catch_unwind(AssertUnwindSafe(asking)) {
                        Ok(answer) => answer.unwrap_or_else(|_| no_answer()),
                        Err(_) => Err("the provider has panicked".into()),
                    };
                    // The time is read here, because possibly nobody polls this call when its answer comes.
                    (clock.now(), answer)
                });
                asking.await.unwrap_or_else(|ended| {
                    let ended = Err(format!(
                        "the call of the provider was not carried out: {ended}"
                    ));
                    (context.now(), ended)
                })
            };
            // A provider that blocks its thread is not stopped by the time limit above, so this second time limit is
            // needed.
            let answer = context.timeout_at(until, answering).await;
            answer.unwrap_or_else(|| (until, no_answer()))
        };
        asking.boxed().shared()
    }

    /// Logs in on an open connection before the credentials of the provider expire. Ends when the provider returns
    /// credentials that do not expire.
    pub(crate) async fn keep_logged_in(
        self: Arc<Self>,
        context: Arc<Context>,
        server: String,
        mut wire: Wire,
        first: Obtained,
    ) {
        let mut next = first.login_again();
        while let Some((at, pause)) = next {
            context.sleep_until(at).await;
            let login = async {
                let obtained = self.get(&context).await?;
                let mut auth = redis::cmd("AUTH");
                auth.arg(&obtained.credentials.user);
                auth.arg(&obtained.credentials.password);
                let until = context.now() + limits::COMMAND_PATIENCE;
                let answered = context.timeout_at(until, auth.exec_async(&mut wire)).await;
                answered.unwrap_or_else(|| {
                    Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
                })?;
                Ok::<_, RedisError>(obtained)
            };
            next = match login.await {
                Ok(obtained) => obtained.login_again(),
                Err(error) => {
                    tracing::warn!(target: TARGET, %server, %error, "cannot log in with new credentials on an open connection, trying again");
                    Some((context.now() + pause, pause))
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU64, Ordering},
    };

    use tokio::runtime::Handle;

    use super::*;
    use crate::background::{
        Process, Random,
        clock::Clock,
        network::{Network, Socket},
    };

    #[derive(Clone, Default)]
    struct TestClock(Arc<AtomicU64>);

    impl Clock for TestClock {
        fn now(&self) -> Moment {
            Moment::new(Duration::from_secs(self.0.load(Ordering::Acquire)))
        }

        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    struct Nothing;

    impl Random for Nothing {
        fn bits(&self) -> u128 {
            0
        }
    }

    impl Network for Nothing {
        fn connect<'a>(
            &'a self,
            _: &'a redis::ConnectionAddr,
        ) -> BoxFuture<'a, std::io::Result<Socket>> {
            unreachable!("no test connects")
        }
    }

    /// What the first call of a provider does.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum First {
        Answers,
        Panics,
    }

    /// Starts a connection that calls the provider and gives up. Then lets the provider answer, and returns the
    /// provider. The password in each answer is the number of the call.
    async fn answered_too_late(context: &Arc<Context>, first: First) -> Provider {
        let calls = AtomicU64::new(0);
        let may_answer = Arc::new(Semaphore::new(0));
        let gate = may_answer.clone();
        let provider = Provider::new(Source::new(move || {
            let call = calls.fetch_add(1, Ordering::AcqRel);
            let gate = gate.clone();
            async move {
                let _permit = gate.acquire().await;
                assert!(call > 0 || first == First::Answers, "the first call panics");
                let credentials = Credentials::new("user", call.to_string());
                Ok::<_, Infallible>(credentials.valid_for(Duration::from_secs(100)))
            }
        }));
        assert!(provider.get(context).now_or_never().is_none());
        may_answer.add_permits(1);
        let all = u32::try_from(BLOCKED_AT_MOST).expect("few threads");
        let answered = provider.threads.acquire_many(all).await;
        drop(answered.expect("the semaphore is never closed"));
        provider
    }

    fn context(clock: &TestClock) -> Arc<Context> {
        Arc::new(Context::new(
            Process::current(),
            Box::new(clock.clone()),
            Box::new(Nothing),
            Box::new(Nothing),
            Handle::current(),
        ))
    }

    #[tokio::test]
    async fn the_next_connection_uses_the_answer_of_a_slow_provider() {
        let clock = TestClock::default();
        let context = context(&clock);
        let provider = answered_too_late(&context, First::Answers).await;
        clock.0.store(4, Ordering::Release);
        let obtained = provider.get(&context).await.expect("the provider answers");
        assert_eq!(obtained.credentials.password, "0");
        let (login, _) = obtained.login_again().expect("the credentials expire");
        assert_eq!(login.since_origin(), Duration::from_secs(80));
    }

    #[tokio::test]
    async fn an_answer_that_nobody_has_read_becomes_outdated() {
        let clock = TestClock::default();
        let context = context(&clock);
        let provider = answered_too_late(&context, First::Answers).await;
        clock.0.store(3_600, Ordering::Release);
        let obtained = provider.get(&context).await.expect("the provider answers");
        assert_eq!(obtained.credentials.password, "1");
    }

    #[tokio::test]
    async fn a_panic_that_nobody_has_noticed_becomes_outdated() {
        let clock = TestClock::default();
        let context = context(&clock);
        let provider = answered_too_late(&context, First::Panics).await;
        clock.0.store(3_600, Ordering::Release);
        let obtained = provider.get(&context).await.expect("the provider answers");
        assert_eq!(obtained.credentials.password, "1");
    }

    #[tokio::test]
    async fn credentials_that_have_nearly_expired_are_not_used() {
        let now = |seconds| Moment::new(Duration::from_secs(seconds));
        let credentials = Credentials::new("user", "").valid_for(Duration::from_secs(5));
        let answer = (now(0), Ok(credentials));
        assert!(is_fresh(&answer, now(4)));
        assert!(!is_fresh(&answer, now(5)));
    }
}
