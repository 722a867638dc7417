//! Moves the slots of a Redis Cluster from primary to primary during the whole run.

use std::{collections::BTreeSet, time::Duration};

use support::cluster::ClusterServers;
use tokio::time::sleep;

use crate::{
    Options,
    dice::Dice,
    plan::{BUFFERED, BUFFERED_FROM, COLD, HOT, SLOW, SLOW_FROM, WARM, slot_of},
};

/// The number of primaries.
const PRIMARIES: u64 = 3;
/// On average, one in this number of moves is slow. In a slow move, the slot is in migration between two primaries for
/// up to [`SLOWEST`].
const SLOW_ONE_IN: u64 = 8;
const SLOWEST: Duration = Duration::from_millis(500);

/// Moves one slot after another to a random primary.
pub(crate) struct Moves {
    dice: Dice,
    /// The slots of the keys for which callers wait: the hot keys, the warm keys, and those of the slow pollers.
    busy: Vec<u16>,
    pub(crate) fast: u64,
    pub(crate) slow: u64,
    /// All slots that were moved so far.
    pub(crate) slots: BTreeSet<u16>,
}

impl Moves {
    pub(crate) fn new(options: &Options) -> Self {
        let processes = u32::try_from(options.processes).unwrap_or(1);
        let busy = (0..HOT + WARM)
            .chain(SLOW_FROM..SLOW_FROM + SLOW * processes)
            .chain(BUFFERED_FROM..BUFFERED_FROM + BUFFERED);
        Self {
            dice: Dice::new(options.seed),
            busy: busy.map(slot_of).collect(),
            fast: 0,
            slow: 0,
            slots: BTreeSet::new(),
        }
    }

    /// Returns the slot of a hot key, of another key for which callers wait, or of a cold key.
    fn slot(&mut self) -> u16 {
        let below = match self.dice.below(3) {
            0 => HOT.into(),
            1 => self.busy.len() as u64,
            _ => {
                let cold = self.dice.below(COLD.into());
                return slot_of(HOT + WARM + u32::try_from(cold).unwrap_or(0));
            }
        };
        self.busy[usize::try_from(self.dice.below(below)).unwrap_or(0)]
    }

    /// Moves one slot to another primary.
    pub(crate) async fn strike(&mut self, cluster: &ClusterServers) {
        let slot = self.slot();
        let from = cluster.primary_of(slot).await as u64;
        let to = (from + 1 + self.dice.below(PRIMARIES - 1)) % PRIMARIES;
        let to = usize::try_from(to).unwrap_or(0);
        if self.dice.below(SLOW_ONE_IN) == 0 {
            cluster.begin_move(slot, to).await;
            let part = u32::try_from(self.dice.below(100)).unwrap_or(0);
            sleep(SLOWEST * part / 100).await;
            cluster.end_move(slot, to).await;
            self.slow += 1;
        } else {
            cluster.move_slot(slot, to).await;
            self.fast += 1;
        }
        self.slots.insert(slot);
    }
}
