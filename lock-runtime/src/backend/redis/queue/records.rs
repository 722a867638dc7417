//! The records that some locks have beside their grants: of a leader, of a semaphore, of a latch.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{
        BackendError, LatchStep, Led, LimitStep, Round, RoundTerms, TERM_KEPT, TermStep,
        without_leaders, without_readers,
    },
    fencing::FencingToken,
    key::{LockKey, LockName},
    layout::Layout,
};

use crate::backend::redis::{
    core::cohorts::Known,
    protocol::{
        command::{Arg, claim_ms, millis},
        request::not_understood,
        scripts,
    },
    queue::server::Server,
};

/// Adds a step to the record of a leader, and returns the record.
pub(crate) async fn lead(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    step: TermStep,
) -> Result<Option<Led>, BackendError> {
    if server.layout() == Layout::Redisson {
        return Err(without_leaders());
    }
    // The server identifies the grant of a cohort by the token of the cohort's first member.
    let grant = match server.core.with(|core| core.known(name, token)) {
        Known::Itself => format!("{token}|"),
        Known::Turn(first) => format!("{first}|"),
        Known::Over => return Ok(None),
    };
    let names = server.names(name);
    let record = format!("{}:term:fence", names.grant());
    let step = match step {
        TermStep::Lead => "lead",
        TermStep::Dismiss => "dismiss",
    };
    let (kept, token) = (millis(TERM_KEPT), token.to_string());
    let args = [&grant, step, &kept, &token].map(Arg::Text);
    let keys = [names.grant(), &record];
    let answered = server.run(name, &scripts::LEAD, &keys, &args).await?;
    let led: Option<(i64, bool)> =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    Ok(led.map(|(vacant, dismissed)| Led {
        vacant_for: u64::try_from(vacant).ok().map(Duration::from_millis),
        dismissed,
    }))
}

/// Reads or sets the number of permits of a semaphore, and returns the number that an operator has set.
pub(crate) async fn limit(
    server: &Arc<Server>,
    name: &LockName,
    step: LimitStep,
) -> Result<Option<u32>, BackendError> {
    let names = server.names(name);
    let keys = names.keys();
    if keys.len() < 5 {
        return Err(without_readers());
    }
    let (step, number, until) = match step {
        LimitStep::Read => ("", String::new(), server.now()),
        LimitStep::Set(number, until) => {
            let number = number.map_or_else(String::new, |it| it.to_string());
            ("set", number, until)
        }
    };
    let args = [
        Arg::Text(step),
        Arg::Text(&number),
        Arg::Floor,
        Arg::Text(claim_ms()),
        Arg::At(until),
    ];
    let answered = server.run(name, &scripts::LIMIT, &keys, &args).await?;
    redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))
}

/// Reads or changes a latch, and returns its present round. `lock` is the lock of the round that the step names.
pub(crate) async fn latch(
    server: &Arc<Server>,
    name: &LockName,
    lock: Option<&LockName>,
    step: LatchStep,
) -> Result<Option<Round>, BackendError> {
    if server.layout() == Layout::Redisson {
        return Err(without_readers());
    }
    let names = server.names(name);
    let record = format!("{}:round:fence", names.grant());
    let lock = lock.map(|lock| server.names(lock));
    let mut keys = vec![record.as_str(), names.fence()];
    if let Some(lock) = &lock {
        keys.extend([lock.grant(), lock.companion()]);
        keys.extend(lock.claim());
    }
    let (what, round, part, terms) = match step {
        LatchStep::Read => ("read", None, None, None),
        LatchStep::Join(terms) => ("join", None, None, Some(terms)),
        LatchStep::Keep(round) => ("keep", Some(round), None, None),
        LatchStep::Count(round, part) => ("count", Some(round), Some(part), None),
        LatchStep::Restart(terms, round) => ("restart", Some(round), None, Some(terms)),
    };
    let round = round.map_or_else(String::new, |round| round.to_string());
    let (parts, life) = terms.map_or_else(Default::default, |RoundTerms { parts, life }| {
        (parts.to_string(), millis(life))
    });
    let words = format!("{}/", server.process);
    let args = [
        Arg::Text(what),
        Arg::Text(&round),
        Arg::Text(part.as_ref().map_or("", LockKey::as_str)),
        Arg::Text(&parts),
        Arg::Text(&life),
        Arg::Floor,
        Arg::Text(claim_ms()),
        Arg::Text(&words),
    ];
    let answered = server.run(name, &scripts::LATCH, &keys, &args).await?;
    let seen: Option<(u64, u32, u32, u64, String)> =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    Ok(
        seen.map(|(generation, parts, counted, left, earlier)| Round {
            generation,
            parts,
            counted,
            remaining: Duration::from_millis(left),
            earlier: earlier.split(' ').filter_map(earlier_round).collect(),
        }),
    )
}

/// Parses the result of an earlier round, such as `17+`.
fn earlier_round(result: &str) -> Option<(u64, bool)> {
    let (generation, is_reached) = match result.strip_suffix('+') {
        Some(generation) => (generation, true),
        None => (result.strip_suffix('-')?, false),
    };
    Some((generation.parse().ok()?, is_reached))
}
