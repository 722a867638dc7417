//! Recipes for common tasks with a lock. `README.md` lists them by task.

pub mod cache;
pub mod exit_on_loss;
pub mod fenced_update;
pub mod idempotent_post;
pub mod lock_layer;
pub mod migrations;
pub mod once_per_fire_time;
