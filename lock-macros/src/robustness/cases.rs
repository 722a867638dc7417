//! Property tests that run the checks of `robustness` on random templates, attributes and functions. Most of them are
//! valid or nearly valid.

use std::{cell::Cell, fmt::Debug};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{TestError, TestRunner},
};

use super::{NO_TEXT, keys, tokens};

const CASES: u32 = 3000;

/// Runs a check on random inputs. The check returns `true` if an input was a useful test. Panics if fewer than
/// `telling` of the inputs were useful tests.
#[track_caller]
fn tried<T: Debug>(cases: impl Strategy<Value = T>, check: impl Fn(&T) -> bool, telling: u32) {
    let seen = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&cases, |case| {
        seen.set(seen.get() + u32::from(check(&case)));
        Ok(())
    });
    match outcome {
        Err(TestError::Fail(reason, case)) => panic!("{reason}: {case:?}"),
        outcome => outcome.unwrap(),
    }
    let seen = seen.get();
    eprintln!("{seen}");
    assert!(
        seen >= telling,
        "only {seen} of {CASES} inputs were useful tests"
    );
}

#[test]
fn values_are_told_apart_in_any_template() {
    let templates = prop_oneof![4 => sound_template(), 1 => template(), 1 => any::<String>()];
    let cases = (templates, vec(value(), 0..10));
    let check = |(template, values): &(String, Vec<String>)| {
        let texts: Vec<&[u8]> = [template]
            .into_iter()
            .chain(values)
            .map(String::as_bytes)
            .collect();
        keys(&texts.join(&NO_TEXT))
    };
    tried(cases, check, CASES / 4);
}

#[test]
fn no_tokens_panic() {
    let cases = (mostly(attribute(), soup()), item());
    let check = |(args, item): &(String, String)| tokens(format!("{args}\0{item}").as_bytes());
    tried(cases, check, CASES / 20);
}

/// Picks one word from a list whose words are separated by `¦`. A line break and indentation before a word are ignored.
fn one(words: &'static str) -> impl Strategy<Value = String> + Clone + use<> {
    let words = words
        .split('¦')
        .map(|word| word.strip_prefix("\n    ").unwrap_or(word).to_owned());
    select(words.collect::<Vec<_>>())
}

/// Picks a value of the first strategy with a probability of 19 in 20, and otherwise a value of the second strategy.
fn mostly(
    first: impl Strategy<Value = String> + 'static,
    second: impl Strategy<Value = String> + 'static,
) -> BoxedStrategy<String> {
    prop_oneof![19 => first, 1 => second].boxed()
}

const ARGUMENTS: &str = "id¦req¦größe¦r#type¦_x";

/// Generates a template that is valid most of the time.
fn sound_template() -> impl Strategy<Value = String> {
    let between = || mostly(one(":¦/¦|¦x:y¦é¦<<¦}"), one("-¦%¦"));
    let holes = vec((one("<a>¦<b.0>¦<self.c>"), between()), 1..5);
    (between(), holes).prop_map(|(start, holes)| {
        holes
            .iter()
            .fold(start, |text, (hole, between)| text + hole + between)
    })
}

/// Generates a template that can have any mistake.
fn template() -> impl Strategy<Value = String> {
    let between = one(":¦/¦|¦:x:¦é¦<<¦>>¦}¦{¦ : ¦¦-¦%¦%3A¦x");
    let hole = mostly(placeholder(), one("<¦>¦#id¦{id}¦${id}¦\n"));
    let pieces = vec((between, hole), 0..4);
    (one("¦a:¦{¦order ¦ ¦é"), pieces, one("¦:pay¦}¦:queue")).prop_map(|(start, pieces, end)| {
        pieces
            .iter()
            .fold(start, |text, (between, hole)| text + between + hole)
            + &end
    })
}

fn placeholder() -> impl Strategy<Value = String> {
    let head = mostly(one(ARGUMENTS), one("self¦type¦_¦x y¦0¦Self¦"));
    let format = mostly(Just(String::new()), one(":raw¦:?¦::X¦()¦..¦..:raw"));
    (head, vec(one(".name¦.0¦.12¦.r#fn¦.self"), 0..2), format)
        .prop_map(|(head, fields, format)| format!("<{head}{}{format}>", fields.concat()))
}

/// Generates short values from the characters of templates and escapes, so that two lists of values are often nearly
/// equal.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab0:/|%é<}-]{1,3}", 2 => one("%3A¦:¦a¦b¦a:b¦%¦%25"), 1 => any::<String>()]
}

const OPTIONS: &str = "key¦key¦key¦keys¦wait¦lease¦renew¦max_hold¦on_busy¦on_lost¦mode¦permits¦take¦hold_at_least¦strategy¦release¦replicas¦client¦\
    namespace¦guard¦map_err¦crate¦kye¦timeout¦r#key¦r#crate¦async¦_¦Self¦größe";

const LITERALS: &str = r##""5s"¦"100ms"¦"2d"¦"5"¦"-1s"¦"99999999999999999999s"¦""¦"hold"¦r#"5s"#¦"a"suffix¦b"5s"¦
    br#"a"#¦c"5s"¦cr#"5s"#¦'a'¦b'a'¦'\u{1F600}'¦5¦5s¦0xFFu8¦340282366920938463463374607431768211456¦1.5¦1.¦1e400¦-5¦
    true¦false¦"\u{0}"¦"{a}{b}""##;

const EXPRESSIONS: &str = r#"cancel¦continue¦continue 'a¦skip¦error¦fallback(later)¦fallback(Self::later::<T>)¦
    fallback()¦read¦write¦exclusive¦shared¦permits(3)¦spin¦notify¦handoff¦confirmed¦background¦hold¦id¦self¦self.locks¦r#type¦super::locks¦
    ::locks¦crate::locks¦limits::WAIT¦<T as Limits>::WAIT¦a.b?.c[0]¦GPUS¦*id¦|x| x¦return¦async move { x.await }¦
    format!("a{}", id)¦["a:<id>", "b"]¦["a:<id>", read "b"]¦[read]¦[]"#;

/// The options with which a random attribute can begin. Most of these options are valid.
const ATTRIBUTES: &str = r#"key = "a:<id>", wait = "5s", guard = hold,¦
    key = "<id>/<self.name>", client = self.locks,¦
    key = "a", lease = LEASE, renew = true, max_hold = "10m", on_lost = continue,¦
    keys = ["a:<id>", "b:<req.to>"], on_busy = skip,¦
    keys = [invisible("a:<id>"), invisible("b:<req.to>")],¦
    keys = ["a:<id>", read "b:<req.to>"],¦keys = [write "a", "b:<req.to..>", invisible("c")], mode = read,¦
    keys = "b:<req.to..>", guard = hold,¦
    key = "a:<id>", permits = 10,¦key = "a", permits = GPUS, take = req.jobs, guard = hold,¦
    key = "a", mode = read, on_busy = fallback(later), map_err = wrap,¦key = "a",¦"#;

fn attribute() -> impl Strategy<Value = String> {
    let is = mostly(Just(" = ".into()), one("¦ == ¦ => ¦: ¦ ="));
    let comma = mostly(Just(", ".into()), one("¦; ¦,,¦ "));
    let option = (one(OPTIONS), is, value_of_an_option(), comma)
        .prop_map(|(name, is, value, comma)| name + &is + &value + &comma);
    let options = prop_oneof![2 => Just(Vec::new()), 1 => vec(option, 1..3)];
    (one(ATTRIBUTES), options).prop_map(|(start, options)| start + &options.concat())
}

fn value_of_an_option() -> impl Strategy<Value = String> {
    let quoted = || template().prop_map(|text| format!("{text:?}"));
    let several = (quoted(), quoted()).prop_map(|(first, second)| format!("[{first}, {second}]"));
    let value = prop_oneof![4 => quoted(), 1 => several, 3 => one(LITERALS), 3 => one(EXPRESSIONS), 1 => soup()];
    let around = one("@¦@¦@¦@¦@¦@¦@¦@¦invisible(@)¦#[x] @");
    (around, value).prop_map(|(around, value)| around.replace('@', &value))
}

fn item() -> impl Strategy<Value = String> {
    let before = mostly(
        one("¦/// doc\n¦#[inline] ¦#[cfg(unix)] pub ¦pub(crate) ¦pub(in a::b) "),
        one(
            "#[distributed_lock(key = \"a\")] ¦#[a::distributed_lock] ¦#![x] ¦#[] ¦invisible(pub) ¦crate ",
        ),
    );
    let qualifier = mostly(
        one("async ¦async ¦async ¦default async ¦unsafe async ¦"),
        one("const ¦extern \"C\" ¦extern ¦safe ¦async async ¦async const unsafe extern r\"C\" "),
    );
    let name = mostly(one("f¦main¦r#fn"), one("¦_¦self¦'a¦fn"));
    let generics = mostly(
        one("¦<'a, T: Display>¦<const N: usize>"),
        one("<¦<>¦<'a: 'b, T = u8,>"),
    );
    let receiver = mostly(
        one("¦&self, ¦mut self: Box<Self>, ¦&'a mut self, ¦self, "),
        one("self: , ¦invisible(self), ¦&&self, ¦, "),
    );
    let arguments = (receiver, vec(argument(), 0..4))
        .prop_map(|(receiver, arguments)| receiver + "id: u64, req: Req, " + &arguments.join(", "));
    let bounds = mostly(
        one("¦ where T: Sized,"),
        one("where¦ where for<'b> &'b T: X"),
    );
    let function = (
        before,
        qualifier,
        name,
        generics,
        arguments,
        output(),
        bounds,
        body(),
    )
        .prop_map(
            |(before, qualifier, name, generics, arguments, output, bounds, body)| {
                format!(
                    "{before}{qualifier}fn {name}{generics}({arguments}) {output}{bounds} {body}"
                )
            },
        );
    let other =
        one("¦struct S;¦impl S { async fn f() {} }¦const C: u8 = 1;¦fn¦pub¦mod m {}¦m! {}¦#[x]");
    let longer = (function.clone(), soup()).prop_map(|(function, soup)| function + &soup);
    prop_oneof![20 => function, 1 => other, 1 => longer, 1 => soup()]
}

fn argument() -> impl Strategy<Value = String> + Clone {
    let attr = mostly(
        Just(String::new()),
        one("#[cfg(unix)] ¦#[allow(unused)] ¦/// doc\n¦#![x] "),
    );
    let plain = prop_oneof![
        one(ARGUMENTS),
        one("mut id¦ref a¦(a, mut b)¦_¦P { id, .. }¦x @ (y, ..)")
    ];
    let name = mostly(
        plain,
        one("self¦..¦m!()¦1¦&id¦a | b¦[a, ..]¦invisible(id)¦"),
    );
    let colon = mostly(Just(": ".into()), one("¦ = "));
    let ty = mostly(
        one("u64¦&'a str¦Option<u8>¦T¦impl Display¦[u8; N]¦Pair¦&mut dyn Fn(u8) -> u8"),
        one("invisible(u64)¦_¦!¦...¦(impl A + 'a)¦fn(u8) -> _¦<T as A>::B¦m!{}¦for<'a> fn(&'a u8)"),
    );
    (attr, name, colon, ty)
        .prop_map(|(attr, name, colon, ty)| attr + &name + &colon + &ty)
        .boxed()
}

fn output() -> impl Strategy<Value = String> + Clone {
    mostly(
        one(
            "-> Result<(), E>¦-> Result<Option<u8>, E>¦-> Result<impl Iterator<Item = u8> + '_, E>¦-> R¦\
            -> invisible(Result<(), E>)¦-> Pin<Box<dyn Future<Output = Result<u8, E>> + Send + 'a>>",
        ),
        one(
            "¦-> ()¦-> !¦-> impl Future<Output = R>¦-> impl A¦-> BoxFuture<'a, R>¦->¦-> _¦\
            -> Pin<Box<dyn Future<Output = ()>>>",
        ),
    )
}

fn body() -> impl Strategy<Value = String> + Clone {
    let whole = one(
        "{ body }¦{}¦{ #![allow(unused)] hold.token()?; Ok(()) }¦{ //! doc\n x }¦invisible({ body })¦\
        { before(); Box::pin(async move { inner }) }¦{ if x { return Ok(()) } x }",
    );
    let odd = one(
        ";¦¦(body)¦invisible(body)¦invisible()¦{ a. ; if }¦{ Box::pin(async {}) }¦{ pin() }¦{ else {} }¦= 1;¦\
        { if x { return m!(y?, invisible(z)) } Box::pin(async move { inner }) }",
    );
    mostly(
        whole,
        prop_oneof![odd, soup().prop_map(|soup| format!("{{ {soup} }}"))],
    )
}

const SIGNS: &str =
    "=¦,¦;¦:¦::¦->¦=>¦..¦...¦..=¦<¦>¦<<¦|¦||¦&¦&&¦!¦?¦#¦#!¦$¦@¦+¦-¦*¦/¦%¦^¦~¦'a¦'_¦'r#a¦/** doc */";

const WORDS: &str = "async¦fn¦await¦self¦Self¦super¦crate¦const¦default¦dyn¦else¦extern¦for¦if¦impl¦in¦let¦loop¦match¦\
    move¦mut¦pub¦ref¦return¦static¦struct¦try¦union¦unsafe¦where¦_¦r#async";

/// Generates arbitrary token trees, with every opened delimiter closed.
fn soup() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        one(SIGNS),
        one(WORDS),
        one(ARGUMENTS),
        one(LITERALS),
        one(OPTIONS)
    ];
    let group = |trees| {
        (one("()¦[]¦{}"), one("¦invisible"), vec(trees, 0..6)).prop_map(|(signs, word, trees)| {
            let (open, close) = signs.split_at(1);
            format!("{word}{open}{}{close}", trees.join(" "))
        })
    };
    leaf.prop_recursive(3, 24, 6, group).boxed()
}
