//! Renews and checks grants. One command renews one grant or many.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lock_core::{
    backend::{BackendError, Extend, Renewed, ToRenew},
    fencing::FencingToken,
    key::LockName,
    lease::{Moment, less_drift},
    owner::OwnerId,
};

use crate::backend::redis::{
    core::{Core, cohorts::Known},
    protocol::{
        command::{Arg, millis},
        request::not_understood,
    },
    queue::{grants, server::Server},
};
use crate::limits;

/// The largest number of grants that one command renews. Even under load, a server renews this many grants in less than
/// a millisecond.
pub(crate) const BATCH_LIMIT: usize = 100;

/// Extends, restarts or checks the lease of the holder with this token.
pub(crate) async fn renew(
    server: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    extend: Extend,
) -> Result<Renewed, BackendError> {
    // A longer lease is not shared, so the other members of the cohort queue again.
    let dissolved = grants::dissolve(server, name, token, Some(extend.lease())).await?;
    if let (Some(renewed), Extend::To(_)) = (dissolved, extend) {
        return Ok(renewed);
    }
    let one = [ToRenew {
        name,
        token,
        extend,
    }];
    let mut answers = renew_batch(server, &one, extend.is_restart()).await?;
    Ok(answers.pop().unwrap_or(Renewed::NotHeld))
}

/// Extends or checks the leases of several holders. Sends one command to a single server, or one command for each hash
/// slot in a Redis Cluster. If the server refuses a command for several grants, sends one command for each of these
/// grants, because a single grant may be the cause of the refusal. In a Redis Cluster, does the same if the first try of
/// a command for several grants fails for any reason.
pub(crate) async fn renew_all(
    server: &Arc<Server>,
    holders: &[ToRenew<'_>],
) -> Vec<Result<Renewed, BackendError>> {
    let shard = |one: &ToRenew<'_>| server.sessions.shard(one.name);
    let is_one_shard = holders
        .windows(2)
        .all(|two| shard(&two[0]) == shard(&two[1]));
    if is_one_shard {
        return renew_shard(server, holders).await;
    }
    let mut by_shard = BTreeMap::<u16, Vec<usize>>::new();
    for (number, one) in holders.iter().enumerate() {
        by_shard.entry(shard(one)).or_default().push(number);
    }
    let renewing = by_shard.into_values().map(async |numbers| {
        let some: Vec<_> = numbers.iter().map(|number| holders[*number]).collect();
        let answers = renew_shard(server, &some).await;
        numbers.into_iter().zip(answers)
    });
    let mut answers: Vec<_> = join_all(renewing).await.into_iter().flatten().collect();
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Extends or checks the leases of several holders with one command. In a Redis Cluster, all locks of these holders
/// must be in one hash slot.
async fn renew_shard(
    server: &Arc<Server>,
    holders: &[ToRenew<'_>],
) -> Vec<Result<Renewed, BackendError>> {
    match renew_batch(server, holders, false).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(BackendError::Refused(_)) if holders.len() > 1 => {
            // A server of a cluster that does not answer must not keep back the answers of the others.
            let patience = server.now() + limits::COMMAND_PATIENCE;
            let each = holders.iter().map(async |one| {
                let renewing = renew(server, one.name, one.token, one.extend);
                let renewed = server.context.timeout_at(patience, renewing).await;
                renewed.unwrap_or_else(|| Err(BackendError::Unreachable("no answer".into())))
            });
            join_all(each).await
        }
        Err(error) => holders.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Extends, restarts or checks the grant of this owner on a node of a Redlock. A node may have issued the same token to
/// another owner, so the request names the owner, too.
pub(crate) async fn renew_on_node(
    node: &Arc<Server>,
    name: &LockName,
    token: FencingToken,
    owner: OwnerId,
    extend: Extend,
) -> Result<Renewed, BackendError> {
    let grant = GrantToRenew {
        name,
        id: format!("{token} {owner}"),
        extend,
    };
    let renewed = renew_grants(node, &[grant], extend.is_restart(), &|| true).await?;
    let until = renewed.and_then(|until| until.into_iter().next().flatten());
    Ok(until.map_or(Renewed::NotHeld, Renewed::Until))
}

/// A grant to renew, and the text that identifies this grant on the server.
struct GrantToRenew<'a> {
    name: &'a LockName,
    /// The token of the grant. On a node of a Redlock, the text also contains the owner, because the token alone is not
    /// unique on a node.
    id: String,
    extend: Extend,
}

async fn renew_batch(
    server: &Arc<Server>,
    holders: &[ToRenew<'_>],
    restart: bool,
) -> Result<Vec<Renewed>, BackendError> {
    let known = |one: &ToRenew<'_>| server.core.with(|core| core.known(one.name, one.token));
    let at_first: Vec<_> = holders.iter().map(known).collect();
    // A member of a cohort whose cohort is no longer known has lost its turn. The member's token can be that of the grant,
    // which the other members possibly share again.
    let known = || -> Vec<_> {
        let known = holders.iter().map(known).zip(&at_first);
        let known = known.map(|(now, first)| match (first, now) {
            (Known::Turn(_) | Known::Over, Known::Itself) => Known::Over,
            (_, now) => now,
        });
        known.collect()
    };
    // The server identifies the grant of a cohort only by the token of the cohort's first member. A repeated command
    // must therefore not name the grant for a member that has passed its turn on: it would change the lease of the next
    // member.
    let (known, confirmed) = loop {
        let before = known();
        let grants = holders.iter().zip(&before).filter_map(|(one, known)| {
            let token = match known {
                Known::Itself => one.token,
                Known::Turn(first) => FencingToken::new(*first),
                Known::Over => return None,
            };
            Some(GrantToRenew {
                name: one.name,
                id: token.to_string(),
                extend: server
                    .core
                    .with(|core| core.shared(one.name, one.token, one.extend)),
            })
        });
        let grants: Vec<_> = grants.collect();
        // While a slot moves to another server of a cluster, its servers refuse commands with several keys.
        let may_move = grants.len() > 1 && server.sessions.is_cluster();
        let tries = AtomicUsize::new(0);
        let is_wanted = || {
            let is_first = tries.fetch_add(1, Ordering::Relaxed) == 0;
            let is_wanted = (is_first || !may_move) && known() == before;
            if is_wanted {
                // Noted for each try. The server can carry out a repeated try after a restart of the lease that the
                // engine has requested meanwhile, over another connection.
                note_requests(server, holders, &before);
            }
            is_wanted
        };
        let renewing = renew_grants(server, &grants, restart, &is_wanted);
        if let Some(confirmed) = renewing.await? {
            break (before, confirmed);
        }
        if may_move {
            return Err(BackendError::Refused(
                "the renewals were not carried out together".into(),
            ));
        }
    };
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
            // The cohort ignores the answer if the turn was passed on before the answer arrived.
            (Some(_), Some(until)) => {
                let now = server.now();
                let confirm = |core: &mut Core<_>| core.confirm(one.name, one.token, until, now);
                match server.core.with(confirm) {
                    true => Renewed::Until(until),
                    false => Renewed::NotHeld,
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

/// Records which leases members of cohorts are about to request. The server may carry out a request whose answer is lost.
fn note_requests(server: &Server, holders: &[ToRenew<'_>], known: &[Known]) {
    let now = server.now();
    for (one, known) in holders.iter().zip(known) {
        if matches!(known, Known::Turn(_)) {
            let until = now + one.extend.lease();
            server
                .core
                .with(|core| core.note_request(one.name, one.token, until));
        }
    }
}

/// Extends, restarts or checks grants with a single command. Returns the local deadline of each grant (`None` if the
/// server no longer has the grant). Returns `None` if `is_wanted` returned false before the server answered.
async fn renew_grants(
    server: &Arc<Server>,
    grants: &[GrantToRenew<'_>],
    restart: bool,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Vec<Option<Moment>>>, BackendError> {
    let Some(first) = grants.first() else {
        return Ok(Some(Vec::new()));
    };
    let keys: Vec<_> = grants.iter().map(|grant| grant.name.as_str()).collect();
    let texts: Vec<_> = grants
        .iter()
        .flat_map(|grant| [grant.id.clone(), millis(grant.extend.lease())])
        .collect();
    let mut args = Vec::with_capacity(1 + texts.len());
    args.push(if restart { Arg::Restart } else { Arg::Text("") });
    args.extend(texts.iter().map(|text| Arg::Text(text)));
    let script = server.scripts.renew;
    let renewing = server.run_while(first.name, script, &keys, &args, is_wanted);
    let Some(answered) = renewing.await? else {
        return Ok(None);
    };
    let left: Vec<i64> =
        redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
    if left.len() != grants.len() {
        return Err(not_understood(&"another number of grants"));
    }
    let until = |left| {
        let left = u64::try_from(left).ok()?;
        Some(answered.sent + less_drift(Duration::from_millis(left)))
    };
    Ok(Some(left.into_iter().map(until).collect()))
}
