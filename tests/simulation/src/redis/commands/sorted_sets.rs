//! Commands for sorted sets.

use super::{
    super::{
        data::{DataSet, Fault},
        numbers::{double, integer, range_end},
        resp::Reply,
        sorted_set::SortedSet,
    },
    Answer, NOT_AN_INTEGER, SYNTAX, index_range, integer_arg,
};

const NOT_A_FLOAT: Fault = Fault::Borrowed("ERR value is not a valid float");
const BAD_RANGE: Fault = Fault::Borrowed("ERR min or max is not a float");

/// The options of ZADD.
#[derive(Default)]
struct AddOptions {
    if_absent: bool,
    if_present: bool,
    if_greater: bool,
    if_less: bool,
    counts_changes: bool,
    increments: bool,
}

impl AddOptions {
    /// Returns the options and the arguments after them.
    fn parse<'a>(args: &'a [&'a [u8]]) -> (Self, &'a [&'a [u8]]) {
        let mut options = Self::default();
        for (place, option) in args.iter().enumerate() {
            let option = match option.to_ascii_uppercase().as_slice() {
                b"NX" => &mut options.if_absent,
                b"XX" => &mut options.if_present,
                b"GT" => &mut options.if_greater,
                b"LT" => &mut options.if_less,
                b"CH" => &mut options.counts_changes,
                b"INCR" => &mut options.increments,
                _ => return (options, &args[place..]),
            };
            *option = true;
        }
        (options, &[])
    }

    fn check(&self, pairs: &[&[u8]]) -> Result<(), Fault> {
        if pairs.is_empty() || pairs.len() % 2 == 1 {
            return Err(SYNTAX);
        }
        if self.if_absent && self.if_present {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        let compares = u8::from(self.if_greater) + u8::from(self.if_less);
        if compares + u8::from(self.if_absent) > 1 {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        if self.increments && pairs.len() > 2 {
            return Err("ERR INCR option supports a single increment-element pair".into());
        }
        Ok(())
    }
}

pub(crate) fn zadd(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (options, pairs) = AddOptions::parse(&args[2..]);
    options.check(pairs)?;
    let scores = pairs.iter().step_by(2).map(|score| double(score));
    let scores: Vec<f64> = scores.collect::<Option<_>>().ok_or(NOT_A_FLOAT)?;
    if data.sorted_set(args[1], ms)?.is_none() && options.if_present {
        return Ok(if options.increments {
            Reply::Null
        } else {
            Reply::Int(0)
        });
    }
    let set = data.sorted_set_or_new(args[1], ms)?;
    let (mut added, mut changed, mut last) = (0, 0, None);
    for (mut score, pair) in scores.into_iter().zip(pairs.chunks_exact(2)) {
        let member = pair[1];
        let Some(old) = set.score(member) else {
            if !options.if_present {
                set.insert(member, score);
                added += 1;
                last = Some(score);
            }
            continue;
        };
        if options.if_absent {
            continue;
        }
        if options.increments {
            score += old;
            if score.is_nan() {
                return Err("ERR resulting score is not a number (NaN)".into());
            }
        }
        if options.if_greater && score <= old || options.if_less && score >= old {
            continue;
        }
        last = Some(score);
        if score != old {
            set.insert(member, score);
            changed += 1;
        }
    }
    data.remove_empty(args[1]);
    Ok(match last {
        _ if !options.increments && options.counts_changes => Reply::Int(added + changed),
        _ if !options.increments => Reply::Int(added),
        Some(score) => Reply::Double(score),
        None => Reply::Null,
    })
}

pub(crate) fn zscore(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let set = data.sorted_set(args[1], ms)?;
    let score = set.and_then(|set| set.score(args[2]));
    Ok(score.map_or(Reply::Null, Reply::Double))
}

pub(crate) fn zrank(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let set = data.sorted_set(args[1], ms)?;
    let rank = set.and_then(|set| set.rank(args[2]));
    Ok(rank.map_or(Reply::Null, Reply::count))
}

pub(crate) fn zcard(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let set = data.sorted_set(args[1], ms)?;
    Ok(Reply::count(set.map_or(0, |set| set.len())))
}

/// The two ends of a range of scores. Each end is a score, and a flag that is set if the range excludes this score.
type Ends = ((f64, bool), (f64, bool));

fn ends(min: &[u8], max: &[u8]) -> Result<Ends, Fault> {
    let min = range_end(min).ok_or(BAD_RANGE)?;
    Ok((min, range_end(max).ok_or(BAD_RANGE)?))
}

pub(crate) fn zcount(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (min, max) = ends(args[2], args[3])?;
    let set = data.sorted_set(args[1], ms)?;
    Ok(Reply::count(
        set.map_or(0, |set| set.ranks_of(min, max).len()),
    ))
}

pub(crate) fn zrem(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let Some(set) = data.sorted_set(args[1], ms)? else {
        return Ok(Reply::Int(0));
    };
    let removed = args[2..].iter().filter(|member| set.remove(member)).count();
    data.remove_empty(args[1]);
    Ok(Reply::count(removed))
}

pub(crate) fn zremrangebyrank(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (start, end) = (integer_arg(args[2])?, integer_arg(args[3])?);
    remove_ranks(data, ms, args[1], |set| index_range(start, end, set.len()))
}

pub(crate) fn zremrangebyscore(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (min, max) = ends(args[2], args[3])?;
    remove_ranks(data, ms, args[1], |set| set.ranks_of(min, max))
}

fn remove_ranks(
    data: &mut DataSet,
    ms: i64,
    key: &[u8],
    ranks: impl Fn(&SortedSet) -> std::ops::Range<usize>,
) -> Answer {
    let Some(set) = data.sorted_set(key, ms)? else {
        return Ok(Reply::Int(0));
    };
    let ranks = ranks(set);
    let removed: Vec<_> = set.range(ranks.clone()).cloned().collect();
    set.remove_ranks(ranks);
    data.remove_empty(key);
    let count = removed.len();
    data.note_taken(removed);
    Ok(Reply::count(count))
}

pub(crate) fn zpopmin(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    pop(data, ms, args, SortedSet::pop_first)
}

pub(crate) fn zpopmax(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    pop(data, ms, args, SortedSet::pop_last)
}

type Popped = Option<(f64, std::sync::Arc<[u8]>)>;

fn pop(data: &mut DataSet, ms: i64, args: &[&[u8]], next: fn(&mut SortedSet) -> Popped) -> Answer {
    if args.len() > 3 {
        return Err(SYNTAX);
    }
    let count = match args.get(2) {
        Some(count) => {
            let count = integer(count).and_then(|count| usize::try_from(count).ok());
            Some(count.ok_or(Fault::Borrowed(
                "ERR value is out of range, must be positive",
            ))?)
        }
        None => None,
    };
    let set = data.sorted_set(args[1], ms)?;
    let mut popped = Vec::new();
    if let Some(set) = set {
        while popped.len() < count.unwrap_or(1)
            && let Some((score, member)) = next(set)
        {
            popped.push((member, score));
        }
        data.remove_empty(args[1]);
        data.note_taken(
            popped
                .iter()
                .map(|(member, score)| (*score, member.clone())),
        );
    }
    Ok(match count {
        Some(_) => Reply::Scored(popped),
        None => Reply::Popped(popped.pop()),
    })
}

/// The options of ZRANGE.
#[derive(Default)]
struct RangeOptions {
    by_score: bool,
    reversed: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

impl RangeOptions {
    fn parse(args: &[&[u8]]) -> Result<Self, Fault> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => options.with_scores = true,
                b"BYSCORE" => options.by_score = true,
                b"REV" => options.reversed = true,
                b"LIMIT" if args.len() >= 2 => {
                    let mut next = || integer_arg(args.next().unwrap_or(&&b""[..]));
                    options.limit = Some((next()?, next()?));
                }
                _ => return Err(SYNTAX),
            }
        }
        if options.limit.is_some_and(|(_, count)| count != -1) && !options.by_score {
            return Err(
                "ERR syntax error, LIMIT is only supported in combination with either \
                        BYSCORE or BYLEX"
                    .into(),
            );
        }
        Ok(options)
    }
}

pub(crate) fn zrange(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let options = RangeOptions::parse(&args[4..])?;
    let (first, second) = (args[2], args[3]);
    let found = if options.by_score {
        let (min, max) = if options.reversed {
            ends(second, first)?
        } else {
            ends(first, second)?
        };
        let set = data.sorted_set(args[1], ms)?;
        set.map(|set| (set.ranks_of(min, max), set))
    } else {
        let integer = |text| integer(text).ok_or(NOT_AN_INTEGER);
        let (start, end) = (integer(first)?, integer(second)?);
        let set = data.sorted_set(args[1], ms)?;
        set.map(|set| {
            let count = set.len();
            let ranks = index_range(start, end, count);
            let ranks = if options.reversed {
                count - ranks.end..count - ranks.start
            } else {
                ranks
            };
            (ranks, set)
        })
    };
    let (skipped, most) = options.limit.unwrap_or((0, -1));
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let Some((ranks, set)) = found else {
        return Ok(Reply::Array(Vec::new()));
    };
    let Ok(skipped) = usize::try_from(skipped) else {
        return Ok(Reply::Array(Vec::new()));
    };
    let entries: &mut dyn Iterator<Item = _> = if options.reversed {
        &mut set.range(ranks).rev()
    } else {
        &mut set.range(ranks)
    };
    let entries = entries.skip(skipped).take(most);
    Ok(if options.with_scores {
        Reply::Scored(
            entries
                .map(|(score, member)| (member.clone(), *score))
                .collect(),
        )
    } else {
        Reply::Array(entries.map(|(_, member)| Reply::bulk(member)).collect())
    })
}
