//! Renewals and checks of one grant, or of many by one command.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    backend::{BackendError, Extend, Renewed, ToRenew},
    fencing::FencingToken,
    key::LockName,
    lease::{Moment, less_drift},
};

use crate::backend::redis::{
    protocol::{command::Arg, request::not_understood, units::millis},
    queue::{cohort::Confirmation, cohort_registry::Known, server::Server},
};

/// How many grants one command renews. A loaded server needs less than a millisecond for this many.
pub(crate) const BATCH_LIMIT: usize = 100;

/// Extends the lease of the holder under this token.
pub(crate) async fn renew(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    extend: Extend,
) -> Result<Renewed, BackendError> {
    let one = [ToRenew {
        name,
        token,
        extend,
    }];
    let mut answers = renew_batch(server, &one, extend.is_restart()).await?;
    Ok(answers.pop().unwrap_or(Renewed::NotHeld))
}

/// Extends the leases of the holders by one command. If the server refuses the command because of one of the grants,
/// extends each lease by a command of its own.
pub(crate) async fn renew_all(
    server: &Arc<Server>,
    holders: &[ToRenew<'_>],
) -> Vec<Result<Renewed, BackendError>> {
    match renew_batch(server, holders, false).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(BackendError::Refused(_)) if holders.len() > 1 => {
            let each = holders
                .iter()
                .map(|one| renew(server, one.name, one.token, one.extend));
            join_all(each).await
        }
        Err(error) => holders.iter().map(|_| Err(error.clone())).collect(),
    }
}

async fn renew_batch(
    server: &Arc<Server>,
    holders: &[ToRenew<'_>],
    restart: bool,
) -> Result<Vec<Renewed>, BackendError> {
    let known: Vec<_> = holders
        .iter()
        .map(|one| server.cohorts.known(one.name, one.token))
        .collect();
    // The server knows a grant by its first token.
    let grants = holders.iter().zip(&known).filter_map(|(one, known)| {
        let token = match known {
            Known::Itself => one.token,
            Known::Turn(first) => FencingToken::new(*first),
            Known::Over => return None,
        };
        Some(ToRenew { token, ..*one })
    });
    let (confirmed, asked) = renew_grants(server, &grants.collect::<Vec<_>>(), restart).await?;
    let mut confirmed = confirmed.into_iter();
    let answers = holders.iter().zip(&known).map(|(one, known)| {
        let first = match known {
            Known::Over => return Renewed::NotHeld,
            Known::Itself => None,
            Known::Turn(first) => Some(*first),
        };
        let until = confirmed.next().flatten();
        match (first, until) {
            (None, Some(until)) => Renewed::Until(until),
            // An answer that arrives after the turn was passed on counts for nobody.
            (Some(_), Some(until)) => {
                let answer = Confirmation {
                    asked,
                    until,
                    restarted: restart,
                };
                if server
                    .cohorts
                    .confirm(one.name, one.token, answer, server.now())
                {
                    Renewed::Until(until)
                } else {
                    Renewed::NotHeld
                }
            }
            (Some(first), None) => {
                server.lose_cohort(one.name, first);
                Renewed::NotHeld
            }
            (None, None) => Renewed::NotHeld,
        }
    });
    Ok(answers.collect())
}

/// Extends grants, each named by its own token, by one command. Returns the local deadline of each grant that stands,
/// and the moment at which the command was sent.
async fn renew_grants(
    server: &Arc<Server>,
    grants: &[ToRenew<'_>],
    restart: bool,
) -> Result<(Vec<Option<Moment>>, Moment), BackendError> {
    if grants.is_empty() {
        return Ok((Vec::new(), server.now()));
    }
    let keys: Vec<_> = grants.iter().map(|grant| grant.name.as_str()).collect();
    let texts: Vec<_> = grants
        .iter()
        .flat_map(|grant| [grant.token.to_string(), millis(grant.extend.lease())])
        .collect();
    let mut args = Vec::with_capacity(1 + texts.len());
    args.push(if restart { Arg::Restart } else { Arg::Text("") });
    args.extend(texts.iter().map(|text| Arg::Text(text)));
    let answered = server
        .run(grants[0].name, server.scripts.renew, &keys, &args)
        .await?;
    let left: Vec<i64> =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    if left.len() != grants.len() {
        return Err(not_understood(&"another number of grants"));
    }
    let until = |left| {
        let left = u64::try_from(left).ok()?;
        Some(answered.sent + less_drift(Duration::from_millis(left)))
    };
    Ok((left.into_iter().map(until).collect(), answered.sent))
}
