//! Seeds whose runs once broke a promise. They are run again before new seeds.

use crate::{
    shrink::follow,
    world::{Outcome, run},
};

/// Each seed, and the steps that lead from its plan to the plan that failed (see [`follow`]).
const FAILED: [(u64, &[usize]); 35] = [
    (0, &[]),
    (18, &[]),
    (256, &[]),
    (358, &[]),
    (375, &[]),
    (398, &[]),
    (1_229, &[]),
    (1_110, &[]),
    (21_577, &[]),
    (50_898, &[]),
    (3_001_462, &[]),
    (4_013_081, &[]),
    (7_015_977, &[2, 5, 5, 5, 5, 7]),
    (12_001_727, &[]),
    (61_004_604, &[]),
    (61_009_487, &[]),
    (
        61_009_487,
        &[1, 6, 1, 1, 4, 1, 3, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 7],
    ),
    (62_009_283, &[22]),
    (63_011_108, &[35]),
    (91_019_802, &[1, 14, 19, 18, 7, 14, 3, 19, 19]),
    (322_438, &[]),
    (334_388, &[]),
    (405_078_011, &[]),
    (436_476_383, &[]),
    (730_003_066, &[]),
    (900_005_747, &[6, 3, 1, 4, 11, 14, 14, 14, 14]),
    (900_104_620, &[6, 7, 7, 8, 9, 9]),
    (910_001_579, &[21, 30]),
    (970_010_481, &[3, 8, 9, 13]),
    (1_040_057_186, &[2, 2, 5, 5, 9, 2, 2]),
    (1_100_002_257, &[]),
    (7_800_005_690, &[12, 14, 15]),
    (7_860_002_023, &[]),
    (7_860_002_227, &[]),
    (1_795_623_484_464, &[5, 11, 11, 11, 13]),
];

/// Runs the plans that once failed. Returns the outcome of each run, and the arguments of the example `simulate` that
/// repeat the run.
pub fn replay() -> impl Iterator<Item = (String, Outcome)> {
    FAILED.into_iter().map(|(seed, steps)| {
        let plan = follow(seed, steps);
        let steps: Vec<_> = steps.iter().map(ToString::to_string).collect();
        let arguments = if steps.is_empty() {
            format!("--seed {seed}")
        } else {
            format!("--seed {seed} --steps {}", steps.join(","))
        };
        (arguments, run(&plan, false))
    })
}
