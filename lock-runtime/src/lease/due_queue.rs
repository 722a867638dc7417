//! A schedule of items, ordered by when they are due.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use lock_core::lease::Moment;

use crate::lease::moment::AtomicMoment;

/// The position of one item in the schedule. The position changes only while the schedule's mutex is locked.
#[derive(Debug)]
pub(crate) struct DueEntry {
    /// When the item is due; `None` while the item is not in the schedule.
    due: AtomicMoment,
    /// The item's index among the items that are due at the same moment.
    place: AtomicU32,
    /// When the item has to be due once it is in the schedule again; `None` if nothing has asked for it.
    wanted: AtomicMoment,
    ended: AtomicBool,
}

impl DueEntry {
    pub(crate) fn new() -> Self {
        Self {
            due: AtomicMoment::new(None),
            place: AtomicU32::new(0),
            wanted: AtomicMoment::new(None),
            ended: AtomicBool::new(false),
        }
    }

    /// Records the item's position in the schedule.
    pub(crate) fn move_to(&self, due: Moment, place: usize) {
        let place = u32::try_from(place).expect("a process has fewer than 2^32 holds");
        self.place.store(place, Ordering::Release);
        self.due.set(Some(due));
    }

    /// Records that the item is no longer in the schedule. Returns the item's last position, or `None` if the item was
    /// not in the schedule.
    pub(crate) fn take(&self) -> Option<(Moment, usize)> {
        let due = self.due.get()?;
        self.due.set(None);
        Some((due, self.place.load(Ordering::Acquire) as usize))
    }

    /// Makes the item due at `due` at the latest when it is inserted next.
    fn want(&self, due: Moment) {
        let wanted = self.wanted.get().map_or(due, |wanted| wanted.min(due));
        self.wanted.set(Some(wanted));
    }

    /// Returns when the item has to be due at the latest, and forgets this moment.
    fn take_wanted(&self) -> Option<Moment> {
        let wanted = self.wanted.get();
        self.wanted.set(None);
        wanted
    }

    /// Prevents the item from being scheduled again.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.due.get()
    }

    pub(crate) fn is_scheduled(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }
}

/// An item that can be scheduled.
pub(crate) trait Scheduled {
    fn due_entry(&self) -> &DueEntry;
}

/// A schedule of items, ordered by when they are due.
#[derive(Debug)]
pub(crate) struct DueQueue<T> {
    due: BTreeMap<Moment, Vec<Arc<T>>>,
    /// The moment at which a timer wakes the owner of the schedule; `None` if no timer is set.
    armed: Option<Moment>,
}

impl<T> Default for DueQueue<T> {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            armed: None,
        }
    }
}

impl<T: Scheduled> DueQueue<T> {
    /// Adds an item to the schedule, unless [`DueEntry::end`] was called for the item. Returns `true` if the item is
    /// due before the timer of the schedule's owner fires, so that the owner has to wake earlier.
    pub(crate) fn insert(&mut self, item: &Arc<T>, due: Moment) -> bool {
        if !item.due_entry().is_scheduled() {
            return false;
        }
        let wanted = item.due_entry().take_wanted();
        let due = wanted.map_or(due, |wanted| wanted.min(due));
        let items = self.due.entry(due).or_default();
        item.due_entry().move_to(due, items.len());
        items.push(item.clone());
        let earlier = self.armed.is_none_or(|armed| due < armed);
        if earlier {
            self.armed = Some(due);
        }
        earlier
    }

    /// Removes an item from the schedule. Returns `false` if the item was not in the schedule.
    pub(crate) fn remove(&mut self, item: &T) -> bool {
        let Some((due, place)) = item.due_entry().take() else {
            return false;
        };
        if let Entry::Occupied(mut entry) = self.due.entry(due) {
            let items = entry.get_mut();
            items.swap_remove(place);
            if let Some(moved) = items.get(place) {
                moved.due_entry().move_to(due, place);
            }
            if items.is_empty() {
                entry.remove();
            }
        }
        true
    }

    /// Makes an item due at `due`, unless the item is due earlier already. Does not add an item that is not in the
    /// schedule; such an item will be due at `due` at the latest when it is inserted. Returns `true` if the schedule's
    /// owner has to wake before its timer fires.
    pub(crate) fn bring_forward(&mut self, item: &Arc<T>, due: Moment) -> bool {
        let Some(planned) = item.due_entry().due() else {
            item.due_entry().want(due);
            return false;
        };
        due < planned && self.remove(item) && self.insert(item, due)
    }

    /// Removes and returns all items that are due at `now`. Also returns the moment at which the schedule's owner has
    /// to wake next; `None` if no timer is set.
    pub(crate) fn take_due(&mut self, now: Moment) -> (Vec<Arc<T>>, Option<Moment>) {
        let mut taken = Vec::new();
        while let Some(entry) = self.due.first_entry() {
            if *entry.key() > now {
                break;
            }
            taken.extend(entry.remove());
        }
        for item in &taken {
            item.due_entry().take();
        }
        // A timer that was set for an item stays set when the item is removed. If the timer moved to a later moment,
        // each new item that is due before that moment would have to wake the owner.
        if self.armed.is_none_or(|armed| armed <= now) {
            self.armed = self.due.keys().next().copied();
        }
        (taken, self.armed)
    }

    /// Makes all items in the schedule due soon, unless they are due earlier already: the first `group` items at `now`,
    /// and each following group of items one `pause` later.
    pub(crate) fn bring_all_forward(&mut self, now: Moment, group: usize, pause: Duration) {
        let planned = std::mem::take(&mut self.due);
        let items = planned
            .into_iter()
            .flat_map(|(due, items)| items.into_iter().map(move |item| (due, item)));
        let mut soon = now;
        for (number, (due, item)) in items.enumerate() {
            if number > 0 && number % group == 0 {
                soon = soon + pause;
            }
            self.insert(&item, due.min(soon));
        }
    }

    /// Removes all items from the schedule, and returns them.
    pub(crate) fn take_all(&mut self) -> Vec<Arc<T>> {
        let items = std::mem::take(&mut self.due).into_values().flatten();
        items.inspect(|item| _ = item.due_entry().take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(DueEntry);

    impl Scheduled for Item {
        fn due_entry(&self) -> &DueEntry {
            &self.0
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds))
    }

    fn items<const N: usize>() -> [Arc<Item>; N] {
        std::array::from_fn(|_| Arc::new(Item(DueEntry::new())))
    }

    fn is_same(taken: &[Arc<Item>], expected: &[&Arc<Item>]) -> bool {
        taken.len() == expected.len()
            && expected
                .iter()
                .all(|item| taken.iter().any(|one| Arc::ptr_eq(one, item)))
    }

    #[test]
    fn items_are_taken_when_they_are_due() {
        let mut schedule = DueQueue::default();
        let [a, b, c] = items();
        assert!(schedule.insert(&a, at(3)));
        assert!(!schedule.insert(&b, at(5)));
        assert!(schedule.insert(&c, at(2)));
        let (taken, next) = schedule.take_due(at(3));
        assert!(is_same(&taken, &[&a, &c]));
        assert_eq!(next, Some(at(5)));
        assert_eq!(schedule.take_due(at(4)).1, Some(at(5)));
        let (taken, next) = schedule.take_due(at(5));
        assert!(is_same(&taken, &[&b]));
        assert_eq!(next, None);
        assert!(
            schedule.insert(&a, at(9)),
            "an item that was taken can be inserted again"
        );
    }

    #[test]
    fn the_owner_wakes_for_an_item_that_has_left_and_not_earlier_for_the_next() {
        let mut schedule = DueQueue::default();
        let [a, b] = items();
        schedule.insert(&a, at(1));
        schedule.insert(&b, at(7));
        assert!(schedule.remove(&a));
        assert!(!schedule.remove(&a));
        assert_eq!(schedule.take_due(at(0)).1, Some(at(1)));
        assert_eq!(schedule.take_due(at(1)).1, Some(at(7)));
    }

    #[test]
    fn items_of_one_moment_leave_in_any_order() {
        let mut schedule = DueQueue::default();
        let [a, b, c] = items();
        for item in [&a, &b, &c] {
            schedule.insert(item, at(1));
        }
        assert!(schedule.remove(&a) && schedule.remove(&c));
        assert!(is_same(&schedule.take_due(at(1)).0, &[&b]));
        assert!(
            !schedule.remove(&b),
            "an item that was taken is not in the schedule"
        );
    }

    #[test]
    fn an_item_is_brought_forward_and_never_put_off() {
        let mut schedule = DueQueue::default();
        let [a, b] = items();
        schedule.insert(&a, at(5));
        assert!(!schedule.bring_forward(&a, at(6)));
        assert!(schedule.bring_forward(&a, at(4)));
        assert!(
            !schedule.bring_forward(&b, at(1)),
            "`b` is not in the schedule"
        );
        assert!(is_same(&schedule.take_due(at(4)).0, &[&a]));
    }

    #[test]
    fn an_item_that_was_brought_forward_while_it_was_out_is_inserted_earlier() {
        let mut schedule = DueQueue::default();
        let [a] = items();
        assert!(!schedule.bring_forward(&a, at(3)));
        assert!(!schedule.bring_forward(&a, at(4)));
        assert!(schedule.insert(&a, at(9)));
        assert!(is_same(&schedule.take_due(at(3)).0, &[&a]));
        schedule.insert(&a, at(9));
        assert!(schedule.take_due(at(8)).0.is_empty());
    }

    #[test]
    fn all_items_are_brought_forward_in_groups_and_none_is_put_off() {
        let mut schedule = DueQueue::default();
        let [a, b, c, d] = items();
        for (item, due) in [(&a, 2), (&b, 7), (&c, 9), (&d, 9)] {
            schedule.insert(item, at(due));
        }
        schedule.bring_all_forward(at(4), 2, Duration::from_secs(1));
        let (taken, next) = schedule.take_due(at(2));
        assert!(is_same(&taken, &[&a]));
        assert_eq!(next, Some(at(4)));
        assert!(is_same(&schedule.take_due(at(4)).0, &[&b]));
        assert!(is_same(&schedule.take_due(at(5)).0, &[&c, &d]));
    }

    #[test]
    fn an_item_that_has_ended_is_scheduled_no_more() {
        let mut schedule = DueQueue::default();
        let [a] = items();
        schedule.insert(&a, at(1));
        a.due_entry().end();
        assert!(schedule.remove(&a));
        assert!(!schedule.insert(&a, at(2)));
        assert!(schedule.take_due(at(9)).0.is_empty());
    }

    #[test]
    fn a_cleared_schedule_is_empty() {
        let mut schedule = DueQueue::default();
        let [a] = items();
        schedule.insert(&a, at(1));
        assert_eq!(schedule.take_all().len(), 1);
        assert!(!schedule.remove(&a));
        assert!(schedule.take_due(at(9)).0.is_empty());
    }
}
