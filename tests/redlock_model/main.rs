//! Models of a Redlock. `cargo test --test redlock_model` checks every reachable state.

mod marks;
mod tokens;

#[path = "../../lock-runtime/src/backend/redlock/agreement.rs"]
mod agreement;
