//! The lints that differ, each with its reason.

use crate::Side::{self, Extra, Missing};

/// A reason, and the lints that differ because of it.
pub(crate) struct Exception {
    pub(crate) reason: &'static str,
    pub(crate) side: Side,
    pub(crate) lints: &'static [&'static str],
    /// The shapes in which one of the lints differs. Empty if there are too many to list.
    pub(crate) shapes: &'static [&'static str],
    pub(crate) editions: &'static [&'static str],
}

const ALL: &[&str] = &["2018", "2021", "2024"];

pub(crate) const EXCEPTIONS: &[Exception] = &[
    Exception {
        reason: "the generated code binds each argument again inside of the body's block",
        side: Extra,
        lints: &[
            "clippy::shadow_reuse",
            "clippy::shadow_same",
            "clippy::shadow_unrelated",
        ],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the generated code borrows the parts of a pattern that the options use",
        side: Extra,
        lints: &["clippy::pattern_type_mismatch"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the generated code borrows the parts of a pattern that the options use",
        side: Extra,
        lints: &["clippy::unneeded_field_pattern"],
        shapes: &["structure", "structure_rest"],
        editions: ALL,
    },
    Exception {
        reason: "the generated code uses the name",
        side: Extra,
        lints: &["clippy::disallowed_macros"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the future of the call keeps the value of the body while the lock is released",
        side: Extra,
        lints: &["clippy::future_not_send"],
        shapes: &["not_send"],
        editions: ALL,
    },
    Exception {
        reason: "the loop ends the body's block, which is not the block of an `async fn`",
        side: Extra,
        lints: &["clippy::infinite_loop"],
        shapes: &["boxed_diverges"],
        editions: ALL,
    },
    Exception {
        reason: "the attribute `#![allow]` of the body is part of the generated code",
        side: Extra,
        lints: &["clippy::allow_attributes"],
        shapes: &["inner_attributes"],
        editions: ALL,
    },
    Exception {
        reason: "clippy takes the generated call for the tail of the function, and the user's tail for that of a block",
        side: Missing,
        lints: &["clippy::implicit_return"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "clippy takes the generated call for the tail of the function, or the user writes a closure in the attribute",
        side: Extra,
        lints: &["clippy::implicit_return"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the body stands in a generated block, so each of its blocks is nested deeper",
        side: Extra,
        lints: &["clippy::excessive_nesting"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the generated code is deeper than the body's block, where clippy stops",
        side: Missing,
        lints: &["clippy::excessive_nesting"],
        shapes: &["long"],
        editions: ALL,
    },
    Exception {
        reason: "the generated code awaits the lock",
        side: Missing,
        lints: &["clippy::unused_async"],
        shapes: &[],
        editions: ALL,
    },
    Exception {
        reason: "the generated code repeats the return type in the body, with its lifetimes",
        side: Missing,
        lints: &["clippy::needless_lifetimes"],
        shapes: &["generic", "needless_lifetime"],
        editions: ALL,
    },
    Exception {
        reason: "the generated code moves the argument into a block, for which clippy assumes that it needs its type",
        side: Missing,
        lints: &["clippy::ptr_arg"],
        shapes: &["reference_types"],
        editions: ALL,
    },
    Exception {
        reason: "the attribute stands between the comment and the function, and is removed",
        side: Missing,
        lints: &["clippy::empty_line_after_doc_comments"],
        shapes: &["markdown"],
        editions: ALL,
    },
    Exception {
        reason: "`#[tokio::main]` builds its runtime with the spans of the generated code",
        side: Missing,
        lints: &["clippy::missing_panics_doc"],
        shapes: &["main", "main_without_await"],
        editions: ALL,
    },
    Exception {
        reason: "the lint is right, and `#[tokio::main]` hides it in a plain function",
        side: Extra,
        lints: &["clippy::needless_return"],
        shapes: &["main_without_await"],
        editions: ALL,
    },
    Exception {
        reason: "`#[tokio::main]` allows the lint at the function's last statement, which is generated",
        side: Missing,
        lints: &[
            "forbid(clippy::diverging_sub_expression)",
            "forbid(clippy::expect_used)",
            "forbid(clippy::needless_return)",
            "forbid(clippy::unwrap_in_result)",
        ],
        shapes: &["main", "main_without_await"],
        editions: ALL,
    },
    Exception {
        reason: "`#[tokio::main]` allows the lint at the function's last statement, which is generated",
        side: Extra,
        lints: &[
            "forbid(clippy::diverging_sub_expression)",
            "forbid(clippy::expect_used)",
            "forbid(clippy::needless_return)",
            "forbid(clippy::unwrap_in_result)",
        ],
        shapes: &["main", "main_without_await"],
        editions: ALL,
    },
];
