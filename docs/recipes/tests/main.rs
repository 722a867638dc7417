//! A test of each recipe: the usual case, and a case in which something fails.

mod cache;
mod exit_on_loss;
mod fenced_update;
mod fixture;
mod idempotent_post;
mod lock_layer;
mod migrations;
mod once_per_fire_time;
mod pages;
