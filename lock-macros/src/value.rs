//! Parses the values of all options except the durations and the numbers of permits: `key`, `on_busy`, `map_err`,
//! `strategy`, `renew` and so on.

use lock_core::options::{Mode, OnLost, Release, Strategy};
use quote::ToTokens as _;
use syn::{Expr, ExprLit, ExprPath, Ident, Lit, LitStr, Path, UnOp};

use crate::{mistakes::Mistakes, suggest, template};

/// Removes the invisible groups that `macro_rules` puts around its fragments.
pub(crate) fn ungrouped(expr: Expr) -> Expr {
    match expr {
        Expr::Group(group) => ungrouped(*group.expr),
        other => other,
    }
}

pub(crate) fn text(value: &Expr) -> Option<&LitStr> {
    match value {
        // Like rustc, this function does not accept a literal with a suffix, such as `"a"b`, as a string.
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) if literal.suffix().is_empty() => Some(literal),
        _ => None,
    }
}

/// Returns whether an expression of this form can have the type `Duration` or `u32`.
pub(crate) fn can_be_computed(value: &Expr) -> bool {
    match value {
        Expr::Lit(_) | Expr::Range(_) | Expr::Closure(_) | Expr::Array(_) | Expr::Tuple(_) => false,
        Expr::Reference(_) | Expr::Assign(_) | Expr::Infer(_) => false,
        Expr::Unary(unary) => matches!(unary.op, UnOp::Deref(_)),
        _ => true,
    }
}

pub(crate) fn key(value: &Expr, mistakes: &mut Mistakes) -> Option<LitStr> {
    if let Some(literal) = text(value) {
        return Some(literal.clone());
    }
    match value {
        Expr::Macro(call) => {
            let name = call.mac.path.segments.last().map(|segment| segment.ident.to_string());
            let name = name.unwrap_or_default();
            mistakes.add(
                value,
                format_args!(
                    "`{name}!` cannot build a key: write one string literal with placeholders, as in `key = \"order:<id>\"`"
                ),
            );
        }
        _ => mistakes.add(
            value,
            "the key is not a string literal: write one with placeholders, as in `key = \"order:<id>\"`",
        ),
    }
    None
}

/// The error message for a value of `keys` that is not a list.
pub(crate) const NO_LIST: &str = "`keys` is a list: write `keys = [\"account:<from>\", \"account:<to>\"]`, `keys = \"account:<ids..>\"` for each item of the argument `ids`, or `key = \"…\"` for one lock";

/// Splits an element of a list of keys into its mode, if it has one, and its key.
pub(crate) fn mode_and_key(value: Expr, mistakes: &mut Mistakes) -> Option<(Option<Mode>, Expr)> {
    let Expr::Call(call) = &value else {
        return Some((None, value));
    };
    let (Expr::Path(name), Some(key), 1) = (&*call.func, call.args.first(), call.args.len()) else {
        return Some((None, value));
    };
    let mode = match name.path.get_ident().map(ToString::to_string).as_deref() {
        Some("read") => Mode::Read,
        Some("write") => Mode::Write,
        _ => {
            mistakes.add(
                name,
                "a key of a list can have the mode `read` or `write`: write `keys = [\"account:<from>\", read \"rates\"]`",
            );
            return None;
        }
    };
    Some((Some(mode), ungrouped(key.clone())))
}

/// Returns the elements of a list of keys, or reports a mistake and returns `None`.
pub(crate) fn keys(value: &Expr, mistakes: &mut Mistakes) -> Option<Vec<Expr>> {
    match value {
        Expr::Array(list) if list.elems.is_empty() => mistakes.add(
            value,
            "the list of keys is empty: name the locks, as in `keys = [\"account:<from>\", \"account:<to>\"]`",
        ),
        Expr::Array(list) => return Some(list.elems.iter().cloned().map(ungrouped).collect()),
        // A single literal can stand for several keys, as in `keys = "item:<ids..>"`.
        value if text(value).is_some() => return Some(vec![value.clone()]),
        _ => mistakes.add(
            value,
            NO_LIST,
        ),
    }
    None
}

/// What a call does instead of returning an error if its lock is busy.
pub(crate) enum OnBusy {
    Skip,
    /// Calls this function instead of returning an error.
    Fallback(ExprPath),
}

pub(crate) fn on_busy(value: &Expr, mistakes: &mut Mistakes) -> Option<OnBusy> {
    let named =
        |value: &Expr, name: &str| matches!(value, Expr::Path(path) if path.path.is_ident(name));
    match value {
        value if named(value, "error") => return None,
        value if named(value, "skip") => return Some(OnBusy::Skip),
        Expr::Call(call) if named(&call.func, "fallback") => {
            let mut args = call.args.iter();
            match (args.next().cloned().map(ungrouped), args.next()) {
                (Some(Expr::Path(path)), None) => return Some(OnBusy::Fallback(path)),
                (Some(Expr::Lit(ExprLit { lit: Lit::Str(name), .. })), None) => mistakes.add(
                    &name,
                    format_args!("the fallback is a path, not a text: write `on_busy = fallback({})`", path_like(&name, "sold_out")),
                ),
                _ => mistakes.add(
                    value,
                    "the fallback is the path of an `async fn` that takes this function's arguments and a `LockError`: write `on_busy = fallback(sold_out)`",
                ),
            }
        }
        value if named(value, "fallback") => mistakes.add(
            value,
            "the fallback needs a path, of an `async fn` that takes this function's arguments and a `LockError`: write `on_busy = fallback(sold_out)`",
        ),
        _ => mistakes.add(
            value,
            "a call whose lock is busy fails, is skipped or falls back: write `on_busy = error`, `on_busy = skip` or `on_busy = fallback(path)`, without quotes",
        ),
    }
    None
}

/// Returns the text of the literal if it is a path, otherwise `example`.
pub(crate) fn path_like(literal: &LitStr, example: &str) -> String {
    let text = literal.value();
    match literal.parse::<Path>() {
        Ok(_) => text,
        Err(_) => example.into(),
    }
}

pub(crate) fn map_err(value: &Expr, mistakes: &mut Mistakes) -> Option<Expr> {
    match value {
        Expr::Path(_) => return Some(value.clone()),
        Expr::Closure(closure) if closure.asyncness.is_none() => return Some(value.clone()),
        Expr::Lit(ExprLit {
            lit: Lit::Str(name),
            ..
        }) => mistakes.add(
            name,
            format_args!(
                "`map_err` is a path, not a text: write `map_err = {}`",
                path_like(name, "PayError::Lock")
            ),
        ),
        _ => mistakes.add(
            value,
            "`map_err` is a function from `LockError` to the error type: write its path, as in `map_err = PayError::Lock`, or a closure, as in `map_err = |error| PayError::Lock(error)`",
        ),
    }
    None
}

/// Names of modes, including names from other libraries, and the mode that each name stands for.
const MODE_NAMES: [(&str, &str); 5] = [
    ("read", "read"),
    ("reader", "read"),
    ("shared", "read"),
    ("write", "write"),
    ("exclusive", "write"),
];

pub(crate) fn mode(value: &Expr, mistakes: &mut Mistakes) -> Option<Mode> {
    let is =
        |value: &Expr, name: &str| matches!(value, Expr::Path(path) if path.path.is_ident(name));
    // The mode `exclusive` means the same as `write`, because a writer excludes all other callers.
    for (name, mode) in [
        ("read", Mode::Read),
        ("write", Mode::Write),
        ("exclusive", Mode::Write),
    ] {
        if is(value, name) {
            return Some(mode);
        }
    }
    let (called, number) = match value {
        Expr::Call(call) => (&*call.func, call.args.first()),
        value => (value, None),
    };
    if is(called, "permits") {
        let number = match number {
            Some(Expr::Lit(ExprLit {
                lit: Lit::Int(number),
                ..
            })) => number.to_string(),
            Some(Expr::Path(number)) => number.to_token_stream().to_string().replace(" :: ", "::"),
            _ => "10".into(),
        };
        mistakes.add(
            value,
            format_args!("a semaphore has no mode: write `permits = {number}` instead of `mode`"),
        );
        return None;
    }
    // The last part of a path decides, as in `Mode::Read`.
    let last = match value {
        Expr::Path(path) => path.path.segments.last(),
        _ => None,
    };
    let meant = last.and_then(|last| {
        let name = last.ident.to_string();
        let nearest = suggest::nearest(&name, MODE_NAMES.iter().map(|(name, _)| *name))?;
        MODE_NAMES.iter().find(|(name, _)| *name == nearest)
    });
    match meant {
        Some((_, meant)) => mistakes.add(
            value,
            format_args!(
                "this is no mode: did you mean `mode = {meant}`? The modes are `read` and `write`"
            ),
        ),
        None => mistakes.add(
            value,
            "this is no mode: write `mode = read` or `mode = write`, without quotes",
        ),
    }
    None
}

pub(crate) fn strategy(value: &Expr, mistakes: &mut Mistakes) -> Option<Strategy> {
    let is = |name: &str| matches!(value, Expr::Path(path) if path.path.is_ident(name));
    for (name, strategy) in [
        ("handoff", Strategy::Handoff),
        ("notify", Strategy::Notify),
        ("spin", Strategy::Spin),
    ] {
        if is(name) {
            return Some(strategy);
        }
    }
    mistakes.add(
        value,
        "this is no strategy: write `strategy = handoff`, `strategy = notify` or `strategy = spin`, without quotes",
    );
    None
}

pub(crate) fn release(value: &Expr, mistakes: &mut Mistakes) -> Option<Release> {
    let is = |name: &str| matches!(value, Expr::Path(path) if path.path.is_ident(name));
    for (name, release) in [
        ("confirmed", Release::Confirmed),
        ("background", Release::Background),
    ] {
        if is(name) {
            return Some(release);
        }
    }
    mistakes.add(
        value,
        "this is no release: write `release = confirmed` or `release = background`, without quotes",
    );
    None
}

pub(crate) fn renew(value: &Expr, mistakes: &mut Mistakes) -> Option<bool> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Bool(renew),
            ..
        }) => Some(renew.value),
        Expr::Lit(_) => {
            mistakes.add(
                value,
                "`renew` is a switch: write `renew = true` or `renew = false`, without quotes",
            );
            None
        }
        _ => {
            mistakes.add(
                value,
                "`renew` needs a literal, not an expression: write `renew = true` or `renew = false`",
            );
            None
        }
    }
}

pub(crate) fn replicas(value: &Expr, mistakes: &mut Mistakes) -> Option<usize> {
    let count = match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(count),
            ..
        }) if count.suffix().is_empty() => count.base10_parse().ok(),
        _ => None,
    };
    if count.is_none() {
        mistakes.add(
            value,
            "`replicas` is how many replicas of the server must have the grant: write a number, as in `replicas = 1`",
        );
    }
    count
}

pub(crate) fn on_lost(value: &Expr, mistakes: &mut Mistakes) -> Option<OnLost> {
    match value {
        Expr::Continue(jump) if jump.label.is_none() => Some(OnLost::Continue),
        Expr::Path(path) if path.path.is_ident("cancel") => Some(OnLost::Cancel),
        _ => {
            mistakes.add(
                value,
                "a body whose lease is lost is dropped or runs on: write `on_lost = cancel` or `on_lost = continue`, without quotes",
            );
            None
        }
    }
}

pub(crate) fn namespace(value: &Expr, mistakes: &mut Mistakes) -> Option<LitStr> {
    let Some(literal) = text(value) else {
        mistakes.add(
            value,
            "the namespace is not a string literal: write `namespace = \"shop\"`, or set it when the client is built",
        );
        return None;
    };
    let namespace = literal.value();
    let mistake = if namespace.is_empty() {
        "the namespace is empty: name one, or remove the option"
    } else if namespace.chars().any(lock_core::key::is_control) {
        "the namespace has a control character, a line separator or a mark of writing direction: remove it"
    } else if namespace.trim() != namespace {
        "the namespace begins or ends with a blank: remove it"
    } else if namespace.contains(['<', '>']) {
        "a namespace has no placeholders: write them in the key"
    } else {
        return Some(literal.clone());
    };
    mistakes.add(literal, mistake);
    None
}

pub(crate) fn guard(value: &Expr, mistakes: &mut Mistakes) -> Option<Ident> {
    if let Expr::Path(path) = value
        && let Some(name) = path.path.get_ident()
        && name != "self"
        && name != "Self"
        && name != "crate"
        && name != "super"
    {
        return Some(name.clone());
    }
    let name = match text(value).map(LitStr::value) {
        Some(name) if template::is_name(&name) => name,
        _ => "hold".into(),
    };
    mistakes.add(
        value,
        format_args!("`guard` is a name under which the body finds its hold: write `guard = {name}`, without quotes"),
    );
    None
}

pub(crate) fn root(value: &Expr, mistakes: &mut Mistakes) -> Option<Path> {
    let path = match value {
        Expr::Path(path) if path.qself.is_none() => Some(path.path.clone()),
        _ => text(value).and_then(|literal| literal.parse().ok()),
    };
    let quoted = text(value).is_some();
    match path {
        Some(path) if !quoted && is_absolute(&path) => Some(path),
        Some(path) => {
            let names: Vec<String> = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            let start = if names.first().is_some_and(|name| name == "crate") {
                ""
            } else {
                "::"
            };
            let mut names: Vec<String> = names
                .into_iter()
                .filter(|name| name != "self" && name != "super")
                .collect();
            if names.is_empty() {
                names.push("lock_runtime".into());
            }
            mistakes.add(
                value,
                format_args!(
                    "the expansion needs a path that is valid everywhere: write `crate = {start}{}`, without quotes",
                    names.join("::")
                ),
            );
            None
        }
        None => {
            mistakes.add(
                value,
                "`crate` is the path of lock-runtime: write `crate = ::lock_runtime`",
            );
            None
        }
    }
}

/// Returns whether the path is `::name…`, `crate::…`, or the expansion of `$crate` in a `macro_rules` macro.
fn is_absolute(path: &Path) -> bool {
    let first = path.segments.first();
    path.leading_colon.is_some()
        || first.is_some_and(|first| first.ident == "crate" || first.ident == "$crate")
}
