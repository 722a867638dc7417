//! A Redis server in the thread of a test.
