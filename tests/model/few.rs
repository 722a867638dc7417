//! A list of at most four items that implements `Copy`.

/// The maximum length of a list. Four items are enough, because no process has more than four owners.
const MOST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Few<T>([Option<T>; MOST]);

impl<T: Copy> Few<T> {
    pub(crate) fn push(&mut self, item: T) {
        let end = self.0.iter_mut().find(|place| place.is_none());
        *end.expect("a list has at most four items") = Some(item);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + use<T> {
        self.0.into_iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl<T: Copy + PartialEq> Few<T> {
    pub(crate) fn contains(&self, item: T) -> bool {
        self.iter().any(|other| other == item)
    }
}

impl<T: Copy> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut few = Self([None; MOST]);
        for item in items {
            few.push(item);
        }
        few
    }
}
