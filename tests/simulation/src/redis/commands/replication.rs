//! Commands about replication, and the command of a Sentinel.

use super::{
    super::{
        data::Fault,
        numbers::integer,
        resp::Reply,
        state::{Blocked, Kind, Role, State},
    },
    Answer, Caller, integer_arg,
};

const NOT_ON_REPLICAS: Fault = Fault::Borrowed(
    "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to \
     be writable (which is not the default) writes to replicas are just local and are not propagated.",
);

/// Blocks the connection until replicas have acknowledged its newest write, or until the time limit of the `WAIT` has
/// passed. [`State::answer_blocked`] sends the reply.
pub(crate) fn wait(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    if matches!(state.role, Role::Replica { .. }) {
        return Err(NOT_ON_REPLICAS);
    }
    let wanted = integer_arg(args[1])?;
    let timeout = integer(args[2]).ok_or("ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    let Some(client) = state.clients.get_mut(&caller.id) else {
        return Ok(Reply::Null);
    };
    let offset = client.written;
    let count = state.followers_at(offset);
    if i64::try_from(count).is_ok_and(|count| count >= wanted) {
        return Ok(Reply::count(count));
    }
    if let Some(client) = state.clients.get_mut(&caller.id) {
        client.is_blocked = true;
    }
    state.blocked.push(Blocked {
        id: caller.id,
        wanted: usize::try_from(wanted).unwrap_or(usize::MAX),
        offset,
        until: (timeout > 0).then(|| caller.now.saturating_add(timeout.saturating_mul(1000))),
    });
    Ok(Reply::Many(Vec::new()))
}

pub(crate) fn role(state: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    if let Kind::Sentinel(sentinel) = &state.kind {
        let groups = Reply::Array(vec![Reply::bulk(sentinel.group.as_bytes())]);
        return Ok(Reply::Array(vec![Reply::bulk(b"sentinel"), groups]));
    }
    let offset = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    Ok(Reply::Array(match &state.role {
        Role::Primary => {
            let followers = state.followers.iter().map(|(follower, acknowledged)| {
                Reply::Array(vec![
                    Reply::bulk(follower.host.as_bytes()),
                    Reply::bulk(follower.port.to_string().as_bytes()),
                    Reply::bulk(acknowledged.to_string().as_bytes()),
                ])
            });
            let followers = Reply::Array(followers.collect());
            vec![
                Reply::bulk(b"master"),
                Reply::Int(offset(state.offset)),
                followers,
            ]
        }
        Role::Replica { of } => vec![
            Reply::bulk(b"slave"),
            Reply::bulk(of.host.as_bytes()),
            Reply::Int(of.port.into()),
            Reply::bulk(b"connected"),
            Reply::Int(offset(state.offset)),
        ],
    }))
}

/// Carries out `SENTINEL GET-MASTER-ADDR-BY-NAME`.
pub(crate) fn primary_of_group(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let Kind::Sentinel(sentinel) = &state.kind else {
        return Ok(Reply::Null);
    };
    if args[2] != sentinel.group.as_bytes() {
        return Ok(Reply::Null);
    }
    let Some(primary) = &sentinel.primary else {
        return Ok(Reply::Null);
    };
    Ok(Reply::Array(vec![
        Reply::bulk(primary.host.as_bytes()),
        Reply::bulk(primary.port.to_string().as_bytes()),
    ]))
}
