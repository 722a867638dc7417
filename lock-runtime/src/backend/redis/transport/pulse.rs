//! Whether the server answers and can carry out commands: asked over the engine's own connection, which a crowd on other
//! runtimes does not hold up.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::lease::Moment;
use tokio::sync::watch;

use crate::{
    backend::redis::Server,
    background::{self, clock::boot as clock, sync::lock},
};

/// How long a server counts as readiness that could not carry out a command: those who wait ask it again much sooner.
const NOT_READY_AGE: Duration = Duration::from_secs(1);

/// When the server last said that it cannot carry out commands for the moment.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<Moment>>);

impl Readiness {
    pub(crate) fn note(&self) {
        *lock(&self.0) = Some(clock::now());
    }

    fn is_recent(&self) -> bool {
        let noted = *lock(&self.0);
        noted.is_some_and(|noted| clock::now().since(noted) < NOT_READY_AGE)
    }
}

/// What came of a question; `None` while it is under way.
type Answer = watch::Receiver<Option<bool>>;

/// The newest question, which all share who ask meanwhile, and how long it may take.
#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<Option<(Duration, Answer)>>);

impl Server {
    /// Whether the server answers within this time, and can carry out what it is asked for.
    pub(crate) async fn is_answering(self: &Arc<Self>, within: Duration) -> bool {
        let mut answer = self.ask_for_pulse(within);
        let answered = answer.wait_for(Option::is_some).await;
        answered.is_ok_and(|answered| *answered == Some(true)) && !self.readiness.is_recent()
    }

    fn has_heard_since(&self, moment: Moment) -> bool {
        let sessions = lock(&self.sessions);
        let mut sessions = sessions.values().flatten().chain(self.home.get());
        sessions.any(|session| {
            let connection = session.connected();
            connection.is_some_and(|connection| connection.health.has_heard_since(moment))
        })
    }

    fn ask_for_pulse(self: &Arc<Self>, within: Duration) -> Answer {
        let mut pulse = lock(&self.pulse.0);
        if let Some((patience, answer)) = &*pulse
            && *patience == within
            && answer.borrow().is_none()
        {
            return answer.clone();
        }
        let (answer, receiver) = watch::channel(None);
        *pulse = Some((within, receiver.clone()));
        let server = self.clone();
        // On the engine, which reads what has come before it looks at the time.
        background::spawn(async move {
            let asked = async {
                let connection = server.home().connection().await.ok()?;
                connection.ask_time().await.ok()
            };
            let began = clock::now();
            let answered = clock::timeout_at(began + within, asked).await;
            // On a busy machine the answer may come late, while a crowd hears others.
            let answers = answered.flatten().is_some() || server.has_heard_since(began);
            answer.send_replace(Some(answers));
        });
        receiver
    }
}
