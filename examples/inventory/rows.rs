//! The scenarios and their results. The results of one guard (way to guard the stock) form a row of the tables.

use std::time::Duration;

use futures_util::future::try_join_all;
use progress::Progress;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    Failure,
    accidents::{self, Death, Late},
    guard::Guard,
    ours::Way,
    purchase::Pace,
    servers::Servers,
    shop::{Audit, Shop},
    waiters::{Plan, Waiters},
};

/// The guards that are measured with many callers of one key: one hand-written lock, and the locks of this project.
/// Each caller holds the key for a fixed time.
pub(crate) const WAITING: [Guard; 5] = [
    Guard::SetPx,
    Guard::Ours(Way::Spin),
    Guard::Ours(Way::Notify),
    Guard::Ours(Way::Handoff),
    Guard::Redlock,
];

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) items: u64,
    pub(crate) rush: Plan,
    /// How long each caller holds the one key that all callers want. Each hold time is measured in a run of its own.
    pub(crate) holds: &'static [Duration],
    /// The number of callers that want the same key.
    pub(crate) callers: usize,
}

/// The number of kinds of accidents: a death, a slow buyer, and a slow buyer that blocks its thread.
const ACCIDENTS: usize = 3;

const THINKING: Duration = Duration::from_millis(5);

/// The time limit of a scenario. The bodies of the longest scenario take 30 s together.
const PATIENCE: Duration = Duration::from_secs(120);

impl Size {
    pub(crate) const FULL: Self = Self {
        items: 192,
        rush: Plan {
            buyers: 32,
            sessions: 4,
            wishes: 16,
            walk: Duration::from_millis(10),
            pace: Pace::Thinks(THINKING),
        },
        holds: &[Duration::from_millis(300), Duration::from_millis(20)],
        callers: 100,
    };

    /// The size of a quick run. The results of a quick run are checked in the same way as those of a full run.
    pub(crate) const QUICK: Self = Self {
        items: 20,
        rush: Plan {
            buyers: 10,
            wishes: 4,
            ..Self::FULL.rush
        },
        holds: &[Duration::from_millis(20)],
        callers: 16,
    };
}

/// The results of one guard.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) guard: Guard,
    pub(crate) rush: Waiters,
    pub(crate) audit: Audit,
    pub(crate) death: Death,
    /// The result of the sale with a buyer that awaited the shop's permission for longer than its lease.
    pub(crate) late: Late,
    /// The result of the sale with a buyer that blocked its thread for longer than its lease. `None` for guards without
    /// a fencing token.
    pub(crate) blocked: Option<Late>,
}

impl Row {
    /// Returns the number of lost or doubled sales. A sale is lost if the buyer got a confirmation, but the sale has no
    /// record. A sale is doubled if its item was already sold.
    pub(crate) fn amiss(&self) -> u64 {
        self.audit.lost(self.rush.told()) + self.audit.doubled()
    }
}

/// The results of many callers of one key under one guard. Each caller holds the key for the same time.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) guard: Guard,
    pub(crate) hold: Duration,
    pub(crate) waiters: Waiters,
}

fn new_sale() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Runs a scenario with a time limit, because buyers would wait forever for a lock that is never released. An error
/// names the guard and the scenario.
async fn bounded<T>(
    guard: Guard,
    fixture: &str,
    playing: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match timeout(PATIENCE, playing).await {
        Ok(played) => played.map_err(|failure| format!("{guard}, {fixture}: {failure}").into()),
        Err(_) => Err(format!("{guard}, {fixture}: expected an end within {PATIENCE:?}").into()),
    }
}

/// Lets all buyers start at once. Together, the buyers want to buy more items than the shop has.
async fn rush(servers: &Servers, guard: Guard, size: Size) -> Result<(Waiters, Audit), Failure> {
    let sale = new_sale();
    let shop = Shop::open(&servers.urls(guard).stock, &sale).await?;
    shop.put_on_sale(size.items).await?;
    let waiters = Waiters::gather(servers, guard, &sale, size.rush).await?;
    let audit = shop.audit(size.items).await?;
    Ok((waiters, audit))
}

/// Returns the number of steps that [`sales`] and [`waits`] show in the progress bar.
pub(crate) fn steps(size: Size) -> usize {
    Guard::ALL.len() + ACCIDENTS + size.holds.len() * WAITING.len()
}

/// Runs the sale under every guard. The rushes run one after another, so that no rush disturbs the measured commands
/// and times of another rush. The accidents run concurrently to save time, because they mostly wait for leases to end.
pub(crate) async fn sales(
    servers: &Servers,
    size: Size,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    let mut rushes = Vec::new();
    for guard in Guard::ALL {
        progress.begin(format_args!("the rush: {guard}"));
        let rush = rush(servers, guard, size);
        rushes.push(bounded(guard, "the rush", rush).await?);
    }
    progress.begin("a death inside");
    let deaths =
        Guard::ALL.map(|guard| bounded(guard, "a death", accidents::death(servers, guard)));
    let deaths = try_join_all(deaths).await?;
    progress.begin("a slow buyer");
    let late = |guard, pace| bounded(guard, "a slow buyer", accidents::late(servers, guard, pace));
    let lates = Guard::ALL.map(|guard| late(guard, Pace::Awaits));
    let lates = try_join_all(lates).await?;
    progress.begin("a slow buyer that blocks its thread");
    let blocked = Guard::ALL.map(async |guard| match guard.is_ours() {
        true => Ok::<_, Failure>(Some(late(guard, Pace::Blocks).await?)),
        false => Ok(None),
    });
    let blocked = try_join_all(blocked).await?;
    let accidents = deaths.into_iter().zip(lates).zip(blocked);
    let rows = Guard::ALL.into_iter().zip(rushes).zip(accidents);
    let rows = rows.map(|((guard, (rush, audit)), ((death, late), blocked))| Row {
        guard,
        rush,
        audit,
        death,
        late,
        blocked,
    });
    Ok(rows.collect())
}

/// Lets many callers wait for one key, and measures them. Each guard in [`WAITING`] has one run for each hold time.
pub(crate) async fn waits(
    servers: &Servers,
    size: Size,
    progress: &Progress,
) -> Result<Vec<Waiting>, Failure> {
    let mut waits = Vec::new();
    for &hold in size.holds {
        for guard in WAITING {
            progress.begin(format_args!("{} callers × {hold:?}: {guard}", size.callers));
            let plan = Plan {
                buyers: size.callers,
                sessions: size.rush.sessions,
                wishes: 1,
                walk: Duration::ZERO,
                pace: Pace::Stays(hold),
            };
            let sale = new_sale();
            let waiters = Waiters::gather(servers, guard, &sale, plan);
            let waiters = bounded(guard, "the waiting", waiters).await?;
            waits.push(Waiting {
                guard,
                hold,
                waiters,
            });
        }
    }
    Ok(waits)
}
