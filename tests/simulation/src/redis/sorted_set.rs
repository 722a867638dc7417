//! A sorted set: members ordered by their scores, and members with equal scores ordered by their names.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
};

/// A sorted set.
#[derive(Debug, Clone, Default)]
pub(crate) struct SortedSet {
    scores: BTreeMap<Arc<[u8]>, f64>,
    /// The members with their scores, in the order of the set.
    ranks: VecDeque<(f64, Arc<[u8]>)>,
}

fn order(entry: &(f64, Arc<[u8]>), score: f64, member: &[u8]) -> Ordering {
    let by_score = entry.0.partial_cmp(&score).unwrap_or(Ordering::Equal);
    by_score.then_with(|| entry.1[..].cmp(member))
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        self.place(score, member).ok()
    }

    fn place(&self, score: f64, member: &[u8]) -> Result<usize, usize> {
        self.ranks
            .binary_search_by(|entry| order(entry, score, member))
    }

    /// Sets the score of a member. A negative zero becomes positive, as in Redis's encoding of small sets.
    pub(crate) fn insert(&mut self, member: &[u8], score: f64) {
        let score = score + 0.0;
        self.remove(member);
        let member: Arc<[u8]> = member.into();
        let (Ok(place) | Err(place)) = self.place(score, &member);
        self.ranks.insert(place, (score, member.clone()));
        self.scores.insert(member, score);
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        if let Ok(place) = self.place(score, member) {
            self.ranks.remove(place);
        }
        true
    }

    /// Removes the members at these ranks.
    pub(crate) fn remove_ranks(&mut self, ranks: Range<usize>) {
        for (_, member) in self.ranks.drain(ranks) {
            self.scores.remove(&member);
        }
    }

    pub(crate) fn pop_first(&mut self) -> Option<(f64, Arc<[u8]>)> {
        let first = self.ranks.pop_front()?;
        self.scores.remove(&first.1);
        Some(first)
    }

    pub(crate) fn pop_last(&mut self) -> Option<(f64, Arc<[u8]>)> {
        let last = self.ranks.pop_back()?;
        self.scores.remove(&last.1);
        Some(last)
    }

    /// Returns the members at these ranks.
    pub(crate) fn range(
        &self,
        ranks: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = &(f64, Arc<[u8]>)> {
        self.ranks.range(ranks)
    }

    /// Returns the ranks of the members whose scores are in the range between two ends. Each end is a score, and a flag
    /// that is set if the range excludes this score.
    pub(crate) fn ranks_of(&self, min: (f64, bool), max: (f64, bool)) -> Range<usize> {
        let start = self.ranks.partition_point(|(score, _)| {
            if min.1 {
                *score <= min.0
            } else {
                *score < min.0
            }
        });
        let end = self.ranks.partition_point(|(score, _)| {
            if max.1 {
                *score < max.0
            } else {
                *score <= max.0
            }
        });
        start..end.max(start)
    }
}
