//! `lockctl leader` and `lockctl resign`: who has a role, and a request to give it up.

use clap::Args;
use lock_runtime::{FencingToken, LockClient};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    inspect::{self, InspectArgs},
    list::Origin,
    output::{Format, write_one},
};

#[derive(Debug, Args)]
pub(crate) struct ResignArgs {
    /// The name of the role
    name: String,
}

#[derive(Serialize)]
struct Report {
    name: String,
    asked: bool,
    leader: Option<Origin>,
    token: Option<u64>,
}

/// Shows who leads, and the candidates.
pub(crate) async fn leader(
    client: &LockClient,
    format: Format,
    args: &InspectArgs,
) -> Result<Exit, Failure> {
    inspect::inspect(client, format, &args.of_leader()).await
}

/// Asks the leader to resign.
pub(crate) async fn resign(
    client: &LockClient,
    format: Format,
    args: &ResignArgs,
) -> Result<Exit, Failure> {
    let leader = client.leader(&args.name).dismiss().await?;
    let report = Report {
        name: args.name.clone(),
        asked: leader.is_some(),
        leader: leader
            .as_ref()
            .and_then(|leader| leader.caller.as_ref().map(Origin::from)),
        token: leader
            .as_ref()
            .and_then(|leader| leader.token.map(FencingToken::get)),
    };
    write_one(format, &report, || match &leader {
        Some(leader) => format!(
            "asked {} to resign as `{}`: it does so within a third of its lease",
            Origin::text(report.leader.as_ref(), &leader.owner.to_string()),
            args.name
        ),
        None => format!("nobody leads `{}`", args.name),
    })?;
    Ok(if report.asked { Exit::Done } else { Exit::No })
}
