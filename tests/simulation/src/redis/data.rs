//! The data of a server: keys, their values and their expiries.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::sorted_set::SortedSet;

/// The text of an error, including its code.
pub(crate) type Fault = Cow<'static, str>;

pub(crate) const WRONG_TYPE: Fault =
    Cow::Borrowed("WRONGTYPE Operation against a key holding the wrong kind of value");

/// A hash. Its fields are in the order in which they were first written, as in Redis's encoding of small hashes.
pub(crate) type Hash = Vec<(Vec<u8>, Vec<u8>)>;

/// A value of any type.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    SortedSet(SortedSet),
    List(VecDeque<Vec<u8>>),
}

impl Value {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::SortedSet(_) => "zset",
            Self::List(_) => "list",
        }
    }
}

/// A value and its expiry.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The last millisecond in which the key exists.
    pub(crate) expires: Option<i64>,
    /// The number of the command that wrote the value as a whole. Only the judge reads it.
    pub(crate) command: u64,
    /// The time to live, in milliseconds, that a command has set since the value was written. Only the judge reads it.
    pub(crate) extended: Option<i64>,
}

/// An element that was removed from the front of a sorted set.
#[derive(Debug, Clone)]
pub(crate) struct Popped {
    pub(crate) score: f64,
    pub(crate) member: Arc<[u8]>,
    /// The number of the command that removed the element.
    pub(crate) command: u64,
}

/// The keys of a server with their values and expiries.
#[derive(Debug, Clone, Default)]
pub struct DataSet {
    entries: BTreeMap<Box<[u8]>, Entry>,
    /// The elements that were last removed from the front of sorted sets. Only the judge reads them.
    pub(crate) taken: VecDeque<Popped>,
    /// The number of the command that the server carries out. The server counts the commands of all clients.
    pub(crate) command: u64,
}

/// The number of elements in [`DataSet::taken`].
const TAKEN: usize = 256;

/// Defines one accessor for each type. An accessor returns the value at a key, `None` if the key does not exist, or an
/// error if the value is of another type. The accessor with `_or_new` creates the key first if it does not exist.
macro_rules! typed {
    ($($name:ident $(, $or_new:ident)?: $variant:ident($inner:ty);)*) => { $(
        pub(crate) fn $name(&mut self, key: &[u8], ms: i64) -> Result<Option<&mut $inner>, Fault> {
            match self.entry(key, ms) {
                Some(Entry { value: Value::$variant(inner), .. }) => Ok(Some(inner)),
                Some(_) => Err(WRONG_TYPE),
                None => Ok(None),
            }
        }

        $(pub(crate) fn $or_new(&mut self, key: &[u8], ms: i64) -> Result<&mut $inner, Fault> {
            if self.entry(key, ms).is_none() {
                self.put(key, Value::$variant(Default::default()), None);
            }
            Ok(self.$name(key, ms)?.expect("the key was created"))
        })?
    )* };
}

impl DataSet {
    /// Returns the entry of a key, or `None` if the key does not exist at this millisecond. Removes a key that has
    /// expired.
    pub(crate) fn entry(&mut self, key: &[u8], ms: i64) -> Option<&mut Entry> {
        let expires = self.entries.get(key)?.expires;
        if expires.is_some_and(|expires| ms > expires) {
            self.entries.remove(key);
            return None;
        }
        self.entries.get_mut(key)
    }

    /// Returns the entry of a key, or `None` if the key does not exist at this millisecond. Removes nothing.
    pub(crate) fn peek(&self, key: &[u8], ms: i64) -> Option<&Entry> {
        let entry = self.entries.get(key)?;
        entry
            .expires
            .is_none_or(|expires| ms <= expires)
            .then_some(entry)
    }

    typed! {
        text: Text(Vec<u8>);
        hash, hash_or_new: Hash(Hash);
        sorted_set, sorted_set_or_new: SortedSet(SortedSet);
        list, list_or_new: List(VecDeque<Vec<u8>>);
    }

    pub(crate) fn put(&mut self, key: &[u8], value: Value, expires: Option<i64>) {
        let entry = Entry {
            value,
            expires,
            command: self.command,
            extended: None,
        };
        match self.entries.get_mut(key) {
            Some(place) => *place = entry,
            None => {
                self.entries.insert(key.into(), entry);
            }
        }
    }

    /// Remembers elements that were removed from a sorted set.
    pub(crate) fn note_taken(&mut self, removed: impl IntoIterator<Item = (f64, Arc<[u8]>)>) {
        let command = self.command;
        let taken = removed.into_iter();
        self.taken.extend(taken.map(|(score, member)| Popped {
            score,
            member,
            command,
        }));
        let surplus = self.taken.len().saturating_sub(TAKEN);
        self.taken.drain(..surplus);
    }

    pub(crate) fn remove(&mut self, key: &[u8], ms: i64) -> bool {
        let lived = |entry: &Entry| entry.expires.is_none_or(|expires| ms <= expires);
        self.entries.remove(key).is_some_and(|entry| lived(&entry))
    }

    /// Removes a key if its value has no elements left.
    pub(crate) fn remove_empty(&mut self, key: &[u8]) {
        let is_empty = match self.entries.get(key).map(|entry| &entry.value) {
            Some(Value::Hash(hash)) => hash.is_empty(),
            Some(Value::SortedSet(set)) => set.is_empty(),
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Text(_)) | None => false,
        };
        if is_empty {
            self.entries.remove(key);
        }
    }

    pub(crate) fn remove_expired(&mut self, ms: i64) {
        let lives = |entry: &Entry| entry.expires.is_none_or(|expires| ms <= expires);
        self.entries.retain(|_, entry| lives(entry));
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the keys that exist at this millisecond, in order, with their entries.
    pub(crate) fn living(&self, ms: i64) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.entries
            .iter()
            .filter(move |(_, entry)| entry.expires.is_none_or(|expires| ms <= expires))
            .map(|(key, entry)| (&**key, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_lives_through_the_last_millisecond_of_its_expiry() {
        let mut data = DataSet::default();
        data.put(b"a", Value::Text(b"1".to_vec()), Some(10));
        assert_eq!(data.living(10).count(), 1);
        assert!(data.entry(b"a", 10).is_some());
        assert_eq!(data.living(11).count(), 0);
        assert!(data.entry(b"a", 11).is_none());
        // The key stays removed even if the clock is set back.
        assert!(data.entry(b"a", 10).is_none());
    }
}
