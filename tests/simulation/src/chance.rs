//! Random numbers. Each part of the simulation has its own stream of random numbers, and the seed determines all
//! streams.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::{
    Rng, RngCore, SeedableRng,
    seq::{IndexedRandom, SliceRandom},
};
use rand_chacha::ChaCha8Rng;

/// A stream of random numbers.
#[derive(Debug)]
pub struct Chance(Mutex<ChaCha8Rng>);

impl Chance {
    /// Returns the stream with the number `stream` for this seed.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Self(Mutex::new(random))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns 128 random bits.
    pub fn bits(&self) -> u128 {
        self.with(|random| u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()))
    }

    /// Returns true with a probability of `percent` %.
    pub fn percent(&self, percent: u32) -> bool {
        self.with(|random| random.random_range(0..100) < percent)
    }

    /// Returns the elements in a random order.
    pub fn shuffled<T>(&self, mut elements: Vec<T>) -> Vec<T> {
        self.with(|random| elements.shuffle(random));
        elements
    }

    /// Returns a random number in the range.
    pub fn among(&self, range: Range<u64>) -> u64 {
        self.with(|random| random.random_range(range))
    }

    /// Returns a random index below `length`.
    pub fn index(&self, length: usize) -> usize {
        self.with(|random| random.random_range(0..length))
    }

    /// Returns a random duration: a number of milliseconds in the range.
    pub fn millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.among(range))
    }

    /// Returns a random element of the slice.
    pub fn pick<T: Clone>(&self, of: &[T]) -> T {
        let picked = self.with(|random| of.choose(random).cloned());
        picked.expect("the slice has an element")
    }
}
