//! First stage of the expansion: parses the attribute's arguments into [`Args`], which has a field for each option.

use std::time::Duration;

use lock_core::{
    advice::advised,
    options::{Defaults, LockOptions, Mode, OnLost, OptionsError, Release, Strategy},
};
use proc_macro2::{Span, TokenStream};
use syn::{
    Expr, Ident, LitStr, Path,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    parse_quote,
};

use crate::{
    duration::{self, Length},
    mistakes::Mistakes,
    option::{option, separator},
    option_names,
    permits::{self, Count},
    template::{self, Piece},
    value::{self, OnBusy},
};

/// The options of one attribute. An option with a mistake is treated as absent.
pub(crate) struct Args {
    pub(crate) key: Option<Keys>,
    pub(crate) wait: Option<Length>,
    pub(crate) lease: Option<Length>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_hold: Option<Length>,
    pub(crate) hold_at_least: Option<Length>,
    pub(crate) on_busy: Option<OnBusy>,
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) mode: Option<Mode>,
    pub(crate) permits: Option<Count>,
    pub(crate) take: Option<Count>,
    pub(crate) map_err: Option<Expr>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) release: Option<Release>,
    pub(crate) replicas: Option<usize>,
    pub(crate) client: Option<Expr>,
    pub(crate) namespace: Option<LitStr>,
    pub(crate) guard: Option<Ident>,
    /// The path by which the generated code refers to the crate lock-runtime.
    pub(crate) root: Path,
}

/// The key or the keys of a call.
pub(crate) enum Keys {
    One(Key),
    Several(Vec<Key>),
}

impl Keys {
    /// Returns the templates of the keys as one label. Spans and metrics group the calls of the function by this label.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::One(key) => key.literal.value(),
            Self::Several(keys) => {
                let templates: Vec<_> = keys.iter().map(|key| key.literal.value()).collect();
                templates.join(", ")
            }
        }
    }
}

/// Pairs of options of which a call has one at most, and the message for both of them.
const CONFLICTS: [([&str; 2], &str); 3] = [
    (
        ["key", "keys"],
        "both `key` and `keys`: write `key` for one lock, `keys` for several",
    ),
    (
        ["mode", "permits"],
        "both `mode` and `permits`: write `mode` for a lock, `permits` for a semaphore",
    ),
    (
        ["keys", "permits"],
        "both `keys` and `permits`: write `key` for one semaphore, or remove `permits` for several locks",
    ),
];

/// A parsed key. Errors about a key point at the whole literal, because a part of a literal has no span of its own.
pub(crate) struct Key {
    pub(crate) literal: LitStr,
    pub(crate) pieces: Vec<Piece>,
    /// The mode of a key in a list that has a mode of its own.
    pub(crate) mode: Option<Mode>,
}

impl Args {
    /// Reads all options. Continues after a mistake in an option, so that the user sees every mistake at once.
    pub(crate) fn read(tokens: TokenStream, mistakes: &mut Mistakes) -> Self {
        let mut args = Self {
            key: None,
            wait: None,
            lease: None,
            renew: None,
            max_hold: None,
            hold_at_least: None,
            on_busy: None,
            on_lost: None,
            mode: None,
            permits: None,
            take: None,
            map_err: None,
            strategy: None,
            release: None,
            replicas: None,
            client: None,
            namespace: None,
            guard: None,
            root: parse_quote!(::lock_runtime),
        };
        let mut seen = Vec::new();
        let read = |input: ParseStream<'_>| {
            while !input.is_empty() {
                let before = mistakes.count();
                if let Some((name, value)) = option(input, mistakes) {
                    args.accept(&name, &value, &mut seen, mistakes);
                }
                separator(input, mistakes.count() > before, mistakes);
            }
            Ok(())
        };
        match read.parse2(tokens) {
            // The parser also fails if tokens are left unread. After an earlier mistake, unread tokens are a
            // consequence of that mistake, so they get no error of their own.
            Err(error) if mistakes.is_empty() => mistakes.add_at(error.span(), error),
            _ => {}
        }
        let named = |name: &str| seen.iter().any(|seen| seen == name);
        // A missing key is reported only if there is no other mistake, because an unknown option is possibly a misspelt
        // `key`.
        if !named("key") && !named("keys") && mistakes.is_empty() {
            mistakes.add_at(
                Span::call_site(),
                "no key: name the lock, as in `#[distributed_lock(key = \"order:<id>\")]`",
            );
        }
        match &args.take {
            Some(take) if !named("permits") => mistakes.add(
                take.tokens(),
                "`take` without `permits`: write how many permits there are, as in `permits = 10`, or remove `take`",
            ),
            take => permits::agree(args.permits.as_ref(), take.as_ref(), mistakes),
        }
        args.agree(mistakes);
        args
    }

    fn accept(
        &mut self,
        name: &Ident,
        value: &Expr,
        seen: &mut Vec<String>,
        mistakes: &mut Mistakes,
    ) {
        let written = name.unraw().to_string();
        if !option_names::is_known(&written) {
            mistakes.add(name, option_names::unknown(&written));
            return;
        }
        if seen.contains(&written) {
            mistakes.add(
                name,
                format_args!("`{written}` is given twice: remove one of them"),
            );
            return;
        }
        let conflict = CONFLICTS.iter().find(|(pair, _)| {
            pair.contains(&written.as_str()) && pair.iter().any(|one| seen.contains(&(*one).into()))
        });
        seen.push(written.clone());
        if let Some((_, message)) = conflict {
            mistakes.add(name, message);
            return;
        }
        match written.as_str() {
            "key" => self.key = one_key(value, mistakes).map(Keys::One),
            "keys" => self.key = keys(value, mistakes).map(Keys::Several),
            "wait" => self.wait = duration::read(name, value, mistakes),
            "lease" => self.lease = duration::read(name, value, mistakes),
            "max_hold" => self.max_hold = duration::read(name, value, mistakes),
            "hold_at_least" => self.hold_at_least = duration::read(name, value, mistakes),
            "renew" => self.renew = value::renew(value, mistakes),
            "on_lost" => self.on_lost = value::on_lost(value, mistakes),
            "on_busy" => self.on_busy = value::on_busy(value, mistakes),
            "map_err" => self.map_err = value::map_err(value, mistakes),
            "mode" => self.mode = value::mode(value, mistakes),
            "permits" => self.permits = permits::read(name, value, mistakes),
            "take" => self.take = permits::read(name, value, mistakes),
            "strategy" => self.strategy = value::strategy(value, mistakes),
            "release" => self.release = value::release(value, mistakes),
            "replicas" => self.replicas = value::replicas(value, mistakes),
            "client" => self.client = Some(value.clone()),
            "namespace" => self.namespace = value::namespace(value, mistakes),
            "guard" => self.guard = value::guard(value, mistakes),
            "crate" => {
                if let Some(root) = value::root(value, mistakes) {
                    self.root = root;
                }
            }
            _ => unreachable!("`{written}` is a known option"),
        }
    }

    /// Refuses literals that contradict each other or exceed a limit. This method calls `LockOptions::complete` of
    /// lock-core. The engine calls `complete` again at run time, when all values are known.
    fn agree(&mut self, mistakes: &mut Mistakes) {
        let mut options = LockOptions {
            wait: self.wait.as_ref().and_then(Length::known),
            // The value of a lease is known here only if the lease is a literal. For any other lease, this method
            // assumes the default, and the value is checked later: when the user's crate is compiled, or at run time.
            lease: self
                .lease
                .as_ref()
                .map(|lease| lease.known().unwrap_or(Defaults::default().lease)),
            renew: self.renew,
            max_hold: self
                .max_hold
                .as_ref()
                .map(|max_hold| max_hold.known().unwrap_or(Defaults::default().lease)),
            mode: self.mode.unwrap_or_default(),
            on_lost: OnLost::Cancel,
            strategy: None,
            release: None,
            replicas: None,
            // If the lease is not a literal, `hold_at_least` is not compared with the lease here, but at run time.
            hold_at_least: match &self.lease {
                Some(Length::Value(_)) => None,
                _ => self.hold_at_least.as_ref().and_then(Length::known),
            }
            .unwrap_or_default(),
        };
        // Each iteration removes the refused value, so that the next iteration finds the next mistake.
        while let Err(error) = options.complete(&Defaults::default()) {
            let refused = match error {
                OptionsError::WaitTooLong => {
                    options.wait = None;
                    &self.wait
                }
                OptionsError::LeaseTooShort
                | OptionsError::RenewedLeaseTooShort
                | OptionsError::LeaseTooLong => {
                    options.lease = Some(Defaults::default().lease);
                    &self.lease
                }
                OptionsError::HoldAtLeastAboveLease => {
                    options.hold_at_least = Duration::ZERO;
                    &self.hold_at_least
                }
                OptionsError::MaxHoldWithoutRenewal => {
                    options.max_hold = None;
                    &self.max_hold
                }
                _ => {
                    mistakes.add_at(Span::call_site(), advised(&error));
                    return;
                }
            };
            match refused {
                Some(length) => mistakes.add(length.tokens(), advised(&error)),
                None => mistakes.add_at(Span::call_site(), advised(&error)),
            }
        }
    }
}

fn one_key(value: &Expr, mistakes: &mut Mistakes) -> Option<Key> {
    let key = key(value, mistakes)?;
    if let Some(list) = template::lists(&key.pieces).next() {
        mistakes.add(
            value,
            format_args!(
                "`<{}>` stands for several locks: write `keys = {}`",
                list.written,
                key.literal.token()
            ),
        );
    }
    Some(key)
}

fn keys(value: &Expr, mistakes: &mut Mistakes) -> Option<Vec<Key>> {
    let is_list = matches!(value, Expr::Array(_));
    let mut keys: Vec<Key> = Vec::new();
    for value in value::keys(value, mistakes)? {
        let Some((mode, value)) = value::mode_and_key(value, mistakes) else {
            continue;
        };
        let Some(mut key) = key(&value, mistakes) else {
            continue;
        };
        key.mode = mode;
        if !is_list && template::lists(&key.pieces).next().is_none() {
            mistakes.add(&value, value::NO_LIST);
        }
        if keys.iter().any(|other| other.pieces == key.pieces) {
            mistakes.add(
                value,
                "this key is in the list twice: remove one of them, or name another lock",
            );
        }
        keys.push(key);
    }
    Some(keys)
}

fn key(value: &Expr, mistakes: &mut Mistakes) -> Option<Key> {
    let literal = value::key(value, mistakes)?;
    match template::parse(&literal.value()) {
        Ok(pieces) => Some(Key {
            literal,
            pieces,
            mode: None,
        }),
        Err(error) => {
            mistakes.add(literal, error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn read(tokens: TokenStream) -> Result<Args, Vec<String>> {
        let mut mistakes = Mistakes::default();
        let args = Args::read(tokens, &mut mistakes);
        if mistakes.is_empty() {
            Ok(args)
        } else {
            Err(mistakes.messages())
        }
    }

    fn mistakes(tokens: TokenStream) -> Vec<String> {
        read(tokens).err().unwrap_or_default()
    }

    #[track_caller]
    fn refused(tokens: TokenStream, says: &str) {
        let text = tokens.to_string();
        let messages = mistakes(tokens);
        assert_eq!(messages.len(), 1, "{text}: {messages:?}");
        assert!(
            messages[0].starts_with("#[distributed_lock] "),
            "{text}: {messages:?}"
        );
        assert!(messages[0].contains(says), "{text}: {messages:?}");
    }

    #[test]
    fn all_options_are_read() {
        let args = read(quote! {
            key = "order:<id>", wait = "0s", lease = "30s", renew = true, max_hold = limits::HOLD,
            on_lost = continue, client = self.locks.get(0), namespace = "shop", guard = held, crate = ::locks,
            hold_at_least = "2s", on_busy = fallback(Self::later), map_err = PayError::Lock, mode = read,
            strategy = notify, release = background,
        });
        let args = args.unwrap_or_else(|messages| panic!("{messages:?}"));
        assert!(matches!(args.key, Some(Keys::One(key)) if key.pieces.len() == 2));
        assert!(matches!(args.on_busy, Some(OnBusy::Fallback(_))));
        assert!(args.map_err.is_some());
        assert_eq!(args.strategy, Some(Strategy::Notify));
        assert_eq!(args.release, Some(Release::Background));
        assert_eq!(
            args.hold_at_least.and_then(|time| time.known()),
            Some(Duration::from_secs(2))
        );
        assert_eq!(
            args.wait.and_then(|wait| wait.known()),
            Some(Duration::ZERO)
        );
        assert_eq!(
            args.lease.and_then(|lease| lease.known()),
            Some(Duration::from_secs(30))
        );
        assert_eq!(args.renew, Some(true));
        assert!(matches!(args.max_hold, Some(Length::Value(_))));
        assert_eq!(args.on_lost, Some(OnLost::Continue));
        assert_eq!(args.mode, Some(Mode::Read));
        assert!(args.client.is_some());
        assert_eq!(
            args.namespace.map(|namespace| namespace.value()),
            Some("shop".into())
        );
        assert_eq!(
            args.guard.map(|guard| guard.to_string()),
            Some("held".into())
        );
        let root = args.root;
        assert_eq!(quote!(#root).to_string(), quote!(::locks).to_string());
    }

    #[test]
    fn a_key_is_needed_once() {
        refused(quote!(), "no key");
        refused(quote!(wait = "5s"), "no key");
        refused(quote!(key = "a", key = "b"), "twice");
        refused(quote!(key = "a", keys = ["b"]), "both `key` and `keys`");
        assert!(mistakes(quote!(keys = ["a:<x>", "b:<y>"])).is_empty());
        refused(quote!(keys = []), "the list of keys is empty");
        refused(quote!(keys = "a"), "`keys` is a list");
        refused(quote!(keys = 5), "`keys` is a list");
        assert!(mistakes(quote!(keys = "a:<x..>")).is_empty());
        assert!(mistakes(quote!(keys = ["a:<x..>", "b:<y..>", "c:<x>"])).is_empty());
        refused(quote!(key = "a:<x..>"), "write `keys = \"a:<x..>\"`");
        refused(quote!(keys = ["a:<x..>", "a:<x..>"]), "twice");
        refused(quote!(keys = "a:<x..>:<y..>"), "two lists in one key");
        refused(quote!(keys = ["a", "b:<..>"]), "`<..>` is empty");
        refused(quote!(keys = "a:<x..:raw>"), "write `<x..>`");
        refused(quote!(keys = ["a", 5]), "string literal");
        assert!(mistakes(quote!(keys = ["a", read "b:<x..>", write "c"])).is_empty());
        refused(
            quote!(keys = ["a", shared "b"]),
            "the mode `read` or `write`",
        );
        refused(quote!(keys = ["a", read "a"]), "twice");
        refused(quote!(keys = [read 5]), "no value for `keys`");
        refused(quote!(keys = ["a", "a>"]), "closes nothing");
        refused(quote!(keys = ["a:<x>", "b", "a:<x>"]), "twice");
        refused(quote!("order:<id>"), "write `key = ");
        refused(quote!(key = 5), "string literal");
        refused(quote!(key = "a"b), "string literal");
        refused(quote!(key = format!("a{}", id)), "format!");
    }

    #[test]
    fn names_are_checked() {
        refused(quote!(kye = "a"), "did you mean `key`?");
        refused(quote!(key = "a", timeout = "5s"), "`wait = ");
        refused(quote!(key = "a", ttl = 5), "`lease = ");
        refused(quote!(key = "a", frobnicate), "the options are `key`");
    }

    #[test]
    fn form_is_checked() {
        refused(quote!(key = "a" wait = "5s"), "no comma before `wait`");
        refused(quote!(key = "a"; wait = "5s"), "no comma before `;`");
        refused(quote!(key = order:<id>), "the key is not a string literal");
        refused(quote!(key = "a", wait), "write `wait = \"5s\"`");
        refused(quote!(key = "a", wait("5s")), "write `wait = \"5s\"`");
        refused(quote!(key = "a", wait =), "write `wait = \"5s\"`");
        refused(quote!(key = "a", = "5s"), "`name = value`");
    }

    #[test]
    fn values_are_checked() {
        refused(quote!(key = "a", renew = "true"), "without quotes");
        refused(
            quote!(key = "a", renew = renew),
            "needs a literal, not an expression",
        );
        refused(
            quote!(key = "a", on_lost = "continue"),
            "on_lost = continue",
        );
        refused(quote!(key = "a", on_lost = retry), "on_lost = continue");
        refused(quote!(key = "a", on_busy = "skip"), "on_busy = skip");
        refused(quote!(key = "a", on_busy = fallback("f")), "fallback(f)");
        refused(quote!(key = "a", on_busy = fallback(|| 1)), "the path of");
        refused(quote!(key = "a", on_busy = fallback), "needs a path");
        refused(quote!(key = "a", on_busy = retry), "on_busy = skip");
        refused(quote!(key = "a", map_err = "E::L"), "map_err = E::L");
        refused(quote!(key = "a", map_err = async |e| e), "or a closure");
        refused(quote!(key = "a", map_err = wrap(1)), "or a closure");
        refused(quote!(key = "a", strategy = "spin"), "without quotes");
        refused(quote!(key = "a", release = "background"), "without quotes");
        refused(quote!(key = "a", guard = "held"), "guard = held");
        refused(quote!(key = "a", guard = a.b), "a name");
        refused(quote!(key = "a", namespace = ""), "empty");
        refused(quote!(key = "a", namespace = "<id>"), "no placeholders");
        refused(quote!(key = "a", crate = locks), "crate = ::locks");
        refused(quote!(key = "a", crate = "::locks"), "crate = ::locks");
    }

    #[test]
    fn modes_are_checked() {
        for tokens in [quote!(exclusive), quote!(write)] {
            let args = read(quote!(key = "a", mode = #tokens));
            assert_eq!(args.ok().and_then(|args| args.mode), Some(Mode::Write));
        }
        for tokens in [
            quote!("read"),
            quote!(frobnicate),
            quote!(5),
            quote!(read()),
        ] {
            refused(
                quote!(key = "a", mode = #tokens),
                "write `mode = read` or `mode = write`, without quotes",
            );
        }
        for (tokens, meant) in [
            (quote!(reader), "read"),
            (quote!(readers), "read"),
            (quote!(shared), "read"),
            (quote!(Mode::Read), "read"),
            (quote!(writer), "write"),
            (quote!(Exclusive), "write"),
        ] {
            refused(
                quote!(key = "a", mode = #tokens),
                &format!("did you mean `mode = {meant}`? The modes are `read` and `write`"),
            );
        }
        for (tokens, number) in [
            (quote!(permits(3)), "3"),
            (quote!(permits(limits::GPUS)), "limits::GPUS"),
            (quote!(permits(a + b)), "10"),
            (quote!(permits("3")), "10"),
            (quote!(permits()), "10"),
            (quote!(permits), "10"),
        ] {
            refused(
                quote!(key = "a", mode = #tokens),
                &format!("write `permits = {number}` instead of `mode`"),
            );
        }
        refused(quote!(key = "a", mode = read, mode = read), "twice");
        refused(quote!(key = "a", mode), "write `mode = read`");
    }

    #[test]
    fn permits_are_checked() {
        for tokens in [
            quote!(permits = 1),
            quote!(permits = 1000),
            quote!(permits = 10, take = 10),
            quote!(take = 2, permits = 10),
            quote!(take = 1000, permits = GPUS),
            quote!(permits = 10, take = jobs),
            quote!(
                permits = GPUS,
                take = jobs,
                wait = "0s",
                strategy = spin,
                guard = hold
            ),
        ] {
            assert_eq!(mistakes(quote!(key = "a", #tokens)), [""; 0], "{}", tokens);
        }
        let args = read(quote!(key = "a", permits = 10, take = jobs));
        let args = args.unwrap_or_else(|messages| panic!("{messages:?}"));
        assert_eq!(args.permits.and_then(|permits| permits.known()), Some(10));
        assert!(matches!(args.take, Some(Count::Value(_))));
        for (tokens, says) in [
            (quote!(permits = 0), "write `permits = 1` or more"),
            (quote!(permits = 0, take = 1), "write `permits = 1` or more"),
            (quote!(permits = 1001), "write `permits = 1000` or less"),
            (
                quote!(permits = 99999999999, take = 20),
                "write `permits = 1000` or less",
            ),
            (quote!(permits = 3, take = 0), "write `take = 1`"),
            (quote!(permits = GPUS, take = 0), "write `take = 1`"),
            (
                quote!(permits = 3, take = 4),
                "write `take = 3` or less, or raise `permits`",
            ),
            (
                quote!(permits = GPUS, take = 1001),
                "write `take = 1000` or less",
            ),
            (quote!(take = 2), "`take` without `permits`"),
            (quote!(take = jobs), "`take` without `permits`"),
            (quote!(permits = "3"), "write `permits = 3`, without quotes"),
            (
                quote!(permits = 3, take = "jobs"),
                "write `take = jobs`, without quotes",
            ),
            (quote!(permits = 3, take = "-"), "write `take = 2`"),
            (quote!(permits = 3, take), "write `take = 2`"),
            (quote!(permits(3)), "write `permits = 10`"),
            (quote!(permits = 3, permits = 3), "twice"),
            (
                quote!(permits = 3, mode = read),
                "both `mode` and `permits`",
            ),
            (
                quote!(mode = write, permits = 3, take = 2),
                "both `mode` and `permits`",
            ),
        ] {
            refused(quote!(key = "a", #tokens), says);
        }
        refused(
            quote!(keys = ["a", "b"], permits = 3, take = 2),
            "both `keys` and `permits`: write `key`",
        );
        refused(
            quote!(permits = 3, keys = "a:<ids..>"),
            "both `keys` and `permits`: write `key`",
        );
    }

    #[test]
    fn durations_agree() {
        refused(quote!(key = "a", lease = "0s"), "at least 10ms");
        refused(quote!(key = "a", lease = "9ms"), "at least 10ms");
        refused(quote!(key = "a", lease = "2d"), "at most 24 hours");
        refused(quote!(key = "a", wait = "2d"), "at most 24 hours");
        refused(
            quote!(key = "a", lease = "500ms", renew = true),
            "at least 1s",
        );
        refused(
            quote!(key = "a", lease = "30s", max_hold = "1m"),
            "`max_hold`",
        );
        refused(
            quote!(key = "a", lease = LEASE, max_hold = HOLD),
            "`max_hold`",
        );
        refused(
            quote!(key = "a", lease = "1s", hold_at_least = "2s"),
            "`hold_at_least`",
        );
        assert!(mistakes(quote!(key = "a", lease = LEASE, hold_at_least = "1h")).is_empty());
        assert!(mistakes(quote!(key = "a", hold_at_least = "1h")).is_empty());
        assert!(mistakes(quote!(key = "a", max_hold = "1m")).is_empty());
        assert!(
            mistakes(quote!(
                key = "a",
                lease = LEASE,
                renew = true,
                max_hold = "1m"
            ))
            .is_empty()
        );
    }

    #[test]
    fn each_mistake_is_reported() {
        let messages = mistakes(quote!(
            key = "",
            wait = "5",
            leese = "1s",
            lease = "1ms",
            max_hold = "1s"
        ));
        assert_eq!(messages.len(), 5, "{messages:?}");
    }
}
