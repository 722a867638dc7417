//! The kinds of arguments that a locked function can have.

use std::pin::Pin;

use lock_runtime::{LockClient, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

#[distributed_lock(key = "constant")]
async fn constant_key(id: u64, name: String, _unused: u64) -> Locked<String> {
    stay().await;
    Ok(format!("{id}{name}"))
}

#[tokio::test]
async fn a_constant_key_beside_arguments() {
    guarded("constant", Ok("7a".into()), async || {
        constant_key(7, "a".into(), 0).await
    })
    .await;
}

#[distributed_lock(key = "order:<id>")]
async fn moves_the_placeholder(id: String) -> Locked<Vec<String>> {
    let moved = vec![id];
    stay().await;
    Ok(moved)
}

#[tokio::test]
async fn the_body_moves_what_the_key_names() {
    guarded("order:a", Ok(vec!["a".into()]), async || {
        moves_the_placeholder("a".into()).await
    })
    .await;
}

#[distributed_lock(key = "order:<id>")]
async fn only_in_the_key(id: u64) -> Locked<()> {
    stay().await;
    Ok(())
}

#[tokio::test]
async fn an_argument_that_only_the_key_uses() {
    guarded("order:7", Ok(()), async || only_in_the_key(7).await).await;
}

#[distributed_lock(key = "<count>:<text>")]
async fn mutable(mut count: u64, mut text: String) -> Locked<(u64, String)> {
    count += 1;
    stay().await;
    text.push('b');
    Ok((count, text))
}

#[tokio::test]
async fn mutable_arguments_and_a_key_of_their_first_values() {
    guarded("1:a", Ok((2, "ab".into())), async || {
        mutable(1, "a".into()).await
    })
    .await;
}

struct Pair {
    left: String,
    right: u64,
}

#[distributed_lock(key = "<whole.1>")]
async fn patterns(
    (a, mut b): (u64, u64),
    Pair { left, right: c }: Pair,
    [d, .., e]: [u64; 3],
    ref f: u64,
    whole @ (h, _): (u64, u64),
    _: String,
) -> Locked<(String, u64)> {
    b += 1;
    stay().await;
    Ok((left, a + b + c + d + e + *f + h + whole.1))
}

#[tokio::test]
async fn patterns_are_taken_apart_in_the_body() {
    let value = ("a".to_owned(), 1 + 3 + 3 + 4 + 6 + 7 + 8 + 9);
    guarded("9", Ok(value), async || {
        let pair = Pair {
            left: "a".into(),
            right: 3,
        };
        patterns((1, 2), pair, [4, 5, 6], 7, (8, 9), "b".into()).await
    })
    .await;
}

/// An enum with a single variant. A pattern in a signature can destructure an enum with a single variant, because the
/// pattern always matches.
enum Only {
    One(String),
}

struct Wrapped<T>(T);

#[distributed_lock(
    key = "<a>:<left>:<c>:<d>/<e>:<f>:<h>:<i>:<text>:<by_reference>:<pair.right>:<all.0>:<type>"
)]
#[expect(clippy::too_many_arguments)]
async fn parts_of_patterns(
    (a, mut b): (u64, u64),
    Pair { left, right: c }: Pair,
    [d, .., e]: [u64; 3],
    ref f: u64,
    whole @ (h, _): (u64, u64),
    &(i, ref j): &(u64, String),
    Only::One(mut text): Only,
    (by_reference, _): &(u64, String),
    (Wrapped(pair), all @ (_, r#type)): (Wrapped<Pair>, (u64, u64)),
) -> Locked<String> {
    b += a + c + d + e + f + h + whole.1 + i + by_reference + pair.right + all.0;
    stay().await;
    text.push_str(&format!("{left}{b}{j}"));
    Ok(text)
}

#[tokio::test]
async fn a_key_names_the_parts_of_patterns() {
    let pair = |left: &str, right| Pair {
        left: left.into(),
        right,
    };
    guarded(
        "1:a:3:4/6:7:8:10:b:11:12:13:14",
        Ok("ba86c".into()),
        async || {
            parts_of_patterns(
                (1, 2),
                pair("a", 3),
                [4, 5, 6],
                7,
                (8, 9),
                &(10, "c".into()),
                Only::One("b".into()),
                &(11, String::new()),
                (Wrapped(pair("", 12)), (13, 14)),
            )
            .await
        },
    )
    .await;
}

#[distributed_lock(key = "<id>", client = locks)]
async fn only_in_the_options(
    Wrapped(locks): Wrapped<LockClient>,
    #[cfg(test)] (id, _): (u64, u64),
) -> Locked<()> {
    stay().await;
    Ok(())
}

#[tokio::test]
async fn the_client_is_a_part_of_a_pattern() {
    let locks = || Wrapped(LockClient::current().unwrap());
    guarded("1", Ok(()), async || {
        only_in_the_options(locks(), (1, 2)).await
    })
    .await;
    guarded("1", Ok("ab".into()), async || {
        boxed(locks(), (1, "a".into())).await
    })
    .await;
}

/// The attribute does not change the signature of a function that boxes its future. The function therefore binds the
/// patterns of its arguments before it renders the key.
#[distributed_lock(key = "<id>", client = locks)]
fn boxed(
    Wrapped(locks): Wrapped<LockClient>,
    (id, mut text): (u64, String),
) -> Pin<Box<dyn Future<Output = Locked<String>> + Send>> {
    Box::pin(async move {
        stay().await;
        text.push('b');
        Ok(text)
    })
}

#[distributed_lock(
    key = "<key>:<guard>:<client>:<call>:<output>:<body>:<hold>:<__key>:<__call>:<__output>:<__arg0>:<__arg10>"
)]
#[expect(clippy::too_many_arguments)]
async fn names_of_the_expansion(
    key: u64,
    guard: u64,
    client: u64,
    call: u64,
    output: u64,
    body: u64,
    hold: u64,
    __key: u64,
    __call: u64,
    __output: u64,
    __arg0: u64,
    __arg10: u64,
    (__arg1, v1): (u64, u64),
) -> Locked<Vec<u64>> {
    stay().await;
    Ok(vec![
        key, guard, client, call, output, body, hold, __key, __call, __output, __arg0, __arg10,
        __arg1, v1,
    ])
}

#[tokio::test]
async fn arguments_named_as_the_expansion_names_its_own() {
    guarded(
        "1:2:3:4:5:6:7:8:9:10:11:12",
        Ok((1..15).collect()),
        async || names_of_the_expansion(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, (13, 14)).await,
    )
    .await;
}

#[distributed_lock(key = "<id>")]
async fn conditional(
    id: u64,
    #[cfg(test)] there: u64,
    #[cfg(not(test))] not_there: Missing,
    #[cfg(test)] (a, b): (u64, u64),
    #[cfg(not(test))] (c, d): Missing,
    #[cfg_attr(test, allow(unused_variables))] unused: u64,
) -> Locked<u64> {
    stay().await;
    Ok(id + there + a + b)
}

#[distributed_lock(key = "<id>")]
async fn either(#[cfg(test)] id: u64, #[cfg(not(test))] id: String) -> Locked<u64> {
    stay().await;
    Ok(id)
}

#[tokio::test]
async fn arguments_under_a_cfg() {
    guarded("1", Ok(10), async || conditional(1, 2, (3, 4), 5).await).await;
    guarded("1", Ok(1), async || either(1).await).await;
}

#[distributed_lock(key = "<type>:<r#fn>:<r#async>")]
async fn r#match(r#type: u64, r#fn: &str, mut r#async: u64) -> Locked<u64> {
    r#async += r#type;
    stay().await;
    Ok(r#async + r#fn.len() as u64)
}

struct Raw {
    r#type: u64,
}

impl Raw {
    #[distributed_lock(key = "<self.type>:<self.r#type>:<other.type>:<other.r#type>")]
    async fn r#loop(&self, other: Self) -> Locked<u64> {
        stay().await;
        Ok(self.r#type + other.r#type)
    }
}

#[tokio::test]
async fn raw_identifiers() {
    guarded("1:ab:3", Ok(6), async || r#match(1, "ab", 3).await).await;
    guarded("1:1:2:2", Ok(3), async || {
        Raw { r#type: 1 }.r#loop(Raw { r#type: 2 }).await
    })
    .await;
}

#[distributed_lock(key = "lints")]
async fn lint_levels(
    #[allow(unused_variables)] allowed: u64,
    #[expect(unused_variables)] expected: u64,
    #[allow(unused_mut)] mut quiet: u64,
    #[deny(unused_variables)] used: u64,
) -> Locked<u64> {
    stay().await;
    Ok(quiet + used)
}

#[tokio::test]
async fn lint_levels_on_arguments() {
    guarded("lints", Ok(7), async || lint_levels(1, 2, 3, 4).await).await;
}

#[distributed_lock(key = "<id>")]
async fn hidden_type(
    id: impl std::fmt::Display + Send,
    parts: &[impl AsRef<str>],
) -> Locked<String> {
    stay().await;
    Ok(format!("{id}{}", parts[0].as_ref()))
}

#[tokio::test]
async fn arguments_of_a_hidden_type() {
    guarded("7", Ok("7a".into()), async || hidden_type(7, &["a"]).await).await;
}
