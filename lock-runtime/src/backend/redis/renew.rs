//! Renewals and checks, of one grant or of many by one command.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    backend::{BackendError, Renewed, ToRenew},
    fencing::FencingToken,
    key::LockName,
    lease::less_drift,
};

use super::{
    Arg, Server,
    attempt::{millis, not_understood},
    block::Known,
};

/// How many grants one command renews: a loaded server is busy with them for less than a millisecond.
pub(super) const TOGETHER_AT_MOST: usize = 100;

impl Server {
    /// Extends what the holder under this token has.
    pub(in crate::backend) async fn renew(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        lease: Duration,
        how: &str,
    ) -> Result<Renewed, BackendError> {
        let one = [ToRenew { name, token, lease }];
        let mut answers = self.renew_together(&one, how).await?;
        Ok(answers.pop().unwrap_or(Renewed::NotHeld))
    }

    /// Extends what the holders have, by one command; where that is refused, for whatever one of them has, each by a
    /// command of its own.
    pub(super) async fn renew_all(
        self: &Arc<Self>,
        holders: &[ToRenew<'_>],
    ) -> Vec<Result<Renewed, BackendError>> {
        match self.renew_together(holders, "").await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(BackendError::Refused(_)) if holders.len() > 1 => {
                let each = holders
                    .iter()
                    .map(|one| self.renew(one.name, one.token, one.lease, ""));
                join_all(each).await
            }
            Err(error) => holders.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn renew_together(
        self: &Arc<Self>,
        holders: &[ToRenew<'_>],
        how: &str,
    ) -> Result<Vec<Renewed>, BackendError> {
        let known: Vec<_> = holders
            .iter()
            .map(|one| self.blocks.known(one.name, one.token))
            .collect();
        // The server knows a grant by its first token.
        let standing = holders.iter().zip(&known).filter_map(|(one, known)| {
            let token = match known {
                Known::Sole => one.token,
                Known::Inside(first) => FencingToken::new(*first),
                Known::Over => return None,
            };
            Some(ToRenew { token, ..*one })
        });
        let renewed = self
            .renew_grants(&standing.collect::<Vec<_>>(), how)
            .await?;
        let mut renewed = renewed.into_iter();
        let answers = holders.iter().zip(&known).map(|(one, known)| {
            let first = match known {
                Known::Over => return Renewed::NotHeld,
                Known::Sole => None,
                Known::Inside(first) => Some(*first),
            };
            let renewed = renewed.next().unwrap_or(Renewed::NotHeld);
            match (first, renewed) {
                (Some(_), Renewed::Until(until)) => {
                    self.blocks
                        .confirm(one.name, one.token, until, how == "anew");
                }
                (Some(first), Renewed::NotHeld) => self.lose_block(one.name, first),
                (None, _) => {}
            }
            renewed
        });
        Ok(answers.collect())
    }

    /// Extends grants, each named by its own token, by one command.
    async fn renew_grants(
        self: &Arc<Self>,
        grants: &[ToRenew<'_>],
        how: &str,
    ) -> Result<Vec<Renewed>, BackendError> {
        if grants.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = grants.iter().map(|grant| grant.name.as_str()).collect();
        let texts: Vec<_> = grants
            .iter()
            .flat_map(|grant| [grant.token.to_string(), millis(grant.lease)])
            .collect();
        let mut args = Vec::with_capacity(1 + texts.len());
        args.push(Arg::Text(how));
        args.extend(texts.iter().map(|text| Arg::Text(text)));
        let answered = self.run(self.scripts.renew, &keys, &args).await?;
        let left: Vec<i64> =
            redis::from_redis_value(answered.value).map_err(|error| not_understood(&error))?;
        if left.len() != grants.len() {
            return Err(not_understood(&"another number of grants"));
        }
        let renewed = |left| match u64::try_from(left) {
            Ok(left) => Renewed::Until(answered.sent + less_drift(Duration::from_millis(left))),
            Err(_) => Renewed::NotHeld,
        };
        Ok(left.into_iter().map(renewed).collect())
    }
}
