//! The values of the options that are no durations.

use lock_core::options::OnLost;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Path};

use crate::{mistakes::Mistakes, template};

/// The expression without the invisible groups that `macro_rules` puts around its fragments.
pub(crate) fn ungrouped(expr: Expr) -> Expr {
    match expr {
        Expr::Group(group) => ungrouped(*group.expr),
        other => other,
    }
}

fn text(value: &Expr) -> Option<&LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Some(literal),
        _ => None,
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

pub(crate) fn renew(value: &Expr, mistakes: &mut Mistakes) -> Option<bool> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Bool(renew),
            ..
        }) => Some(renew.value),
        _ => {
            mistakes.add(
                value,
                "`renew` is a switch: write `renew = true` or `renew = false`, without quotes",
            );
            None
        }
    }
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
    } else if namespace.chars().any(char::is_control) {
        "the namespace has a control character: remove it"
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
            let names: Vec<String> = names
                .into_iter()
                .filter(|name| name != "self" && name != "super")
                .collect();
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

/// `::name…`, `crate::…`, or what `$crate` of a `macro_rules` became.
fn is_absolute(path: &Path) -> bool {
    let first = path.segments.first();
    path.leading_colon.is_some()
        || first.is_some_and(|first| first.ident == "crate" || first.ident == "$crate")
}
