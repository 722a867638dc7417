//! Lets many buyers start at once. Records what they did, how long they waited, and how many commands they sent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Barrier, task::JoinSet, time::sleep};

use crate::{
    Failure,
    guard::Guard,
    purchase::{Outcome, Pace},
    servers::Servers,
    session::{Lease, Session, Visit},
    shop::IN_TRANSACTION,
};

/// The number of buyers, and what they do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) buyers: usize,
    /// The number of clients that the buyers share.
    pub(crate) sessions: usize,
    /// How often each buyer wants to buy. A buyer stops earlier if everything is sold.
    pub(crate) wishes: usize,
    /// The pause between two visits of a buyer.
    pub(crate) walk: Duration,
    pub(crate) pace: Pace,
}

/// The results of a plan, which are the visits of the buyers to the shop, the times for which they waited, and the
/// commands that they sent.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// The visits of each buyer.
    visits: Vec<Vec<Visit>>,
    wall: Duration,
    commands: u64,
    sessions: usize,
    /// The waiting times of all visits, in ascending order.
    waits: Vec<Duration>,
}

impl Waiters {
    /// Lets all buyers start at once, and waits until the last buyer has finished.
    pub(crate) async fn gather(
        servers: &Servers,
        guard: Guard,
        sale: &str,
        plan: Plan,
    ) -> Result<Self, Failure> {
        let Plan {
            buyers, sessions, ..
        } = plan;
        let sessions =
            Session::open_many(guard, &servers.urls(guard), sale, sessions, buyers).await?;
        let doors = Arc::new(Barrier::new(plan.buyers + 1));
        let mut inside = JoinSet::new();
        for number in 0..plan.buyers {
            let (session, doors) = (sessions[number % sessions.len()].clone(), doors.clone());
            inside.spawn(async move {
                doors.wait().await;
                come(&session, number, plan).await
            });
        }
        let before = servers.sent(guard).await;
        doors.wait().await;
        let opened = Instant::now();
        let mut visits = Vec::new();
        while let Some(buyer) = inside.join_next().await {
            visits.push(buyer??);
        }
        let wall = opened.elapsed();
        let counted = servers.sent(guard).await - before;
        for session in &sessions {
            session.close().await;
        }
        let commands = counted + refused(&visits) * IN_TRANSACTION;
        Ok(Self::of(visits, wall, commands, sessions.len()))
    }

    /// Builds the results from the visits of each buyer, the total time, the number of commands, and the number of
    /// sessions.
    pub(crate) fn of(
        visits: Vec<Vec<Visit>>,
        wall: Duration,
        commands: u64,
        sessions: usize,
    ) -> Self {
        let mut waits: Vec<Duration> = visits.iter().flatten().map(|visit| visit.waited).collect();
        waits.sort_unstable();
        Self {
            visits,
            wall,
            commands,
            sessions,
            waits,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Visit> {
        self.visits.iter().flatten()
    }

    /// Returns the number of visits. Several tries in one visit count once.
    pub(crate) fn entries(&self) -> u64 {
        self.waits.len() as u64
    }

    /// Returns the number of tries in all visits, including the failed tries.
    pub(crate) fn tries(&self) -> u64 {
        self.all().map(|visit| visit.tries).sum()
    }

    /// Returns the buyers that got the answer that they had bought an item.
    pub(crate) fn told(&self) -> impl Iterator<Item = &str> {
        let bought = self.all().filter(|visit| visit.outcome == Outcome::Sold);
        bought.map(|visit| visit.buyer.as_str())
    }

    pub(crate) fn commands(&self) -> u64 {
        self.commands
    }

    pub(crate) fn per_acquisition(&self) -> f64 {
        self.commands as f64 / self.entries() as f64
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.commands as f64 / self.wall.as_secs_f64()
    }

    /// Returns the total time divided by the sum of the times of all bodies. The ideal ratio is 1, at which no time
    /// passes between the bodies.
    pub(crate) fn over_ideal(&self) -> f64 {
        let bodies: Duration = self.all().filter_map(|visit| visit.inside).sum();
        self.wall.as_secs_f64() / bodies.as_secs_f64()
    }

    /// Returns the waiting time that this share of the visits does not exceed. The share 0.5 gives the median, and 1.0
    /// the longest wait.
    pub(crate) fn wait(&self, share: f64) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        let wait = self.waits.get((last as f64 * share).round() as usize);
        wait.copied().unwrap_or_default()
    }

    /// Returns the smallest and the largest number of purchases that any one buyer made.
    pub(crate) fn least_and_most(&self) -> (usize, usize) {
        let bought = self.visits.iter().map(|visits| {
            let sold = |visit: &&Visit| visit.outcome == Outcome::Sold;
            visits.iter().filter(sold).count()
        });
        bought.fold((usize::MAX, 0), |(least, most), count| {
            (least.min(count), most.max(count))
        })
    }

    /// Returns the largest number of commands that callers in a queue are allowed to send. Two scripts are allowed for
    /// each acquisition, and a third script if the hold lasts at least 90 ms. One initial probe and five probes a
    /// second are allowed for each client. Because machines can be busy, one additional command is allowed for every
    /// twenty acquisitions.
    pub(crate) fn ceiling_of_a_queue(&self) -> u64 {
        const LONG: Duration = Duration::from_millis(90);
        const LOOKS_A_SECOND: f64 = 5.0;
        let inside = self.all().filter_map(|visit| visit.inside);
        let long = inside.filter(|time| *time >= LONG).count() as u64;
        let looks = self.sessions as f64 * (1.0 + LOOKS_A_SECOND * self.wall.as_secs_f64());
        let due = 2 * self.entries() + long + looks as u64;
        due + self.entries() / 20
    }
}

/// Returns the number of tries whose write the server refused. The server does not run the commands of a refused
/// transaction. The server's count of commands therefore lacks these commands, although the client sent them.
fn refused(visits: &[Vec<Visit>]) -> u64 {
    let visits = visits.iter().flatten();
    visits.map(|visit| visit.tries.saturating_sub(1)).sum()
}

async fn come(session: &Session, number: usize, plan: Plan) -> Result<Vec<Visit>, Failure> {
    let mut visits = Vec::new();
    for wish in 0..plan.wishes {
        if wish > 0 {
            sleep(plan.walk).await;
        }
        let buyer = format!("{number}-{wish}");
        let visit = session.visit(buyer, plan.pace, Lease::Ample).await?;
        let over = visit.outcome == Outcome::SoldOut;
        visits.push(visit);
        if over {
            break;
        }
    }
    Ok(visits)
}
