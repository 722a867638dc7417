//! Commands for publishing and subscribing.

use super::{
    super::{
        ConnectionId,
        resp::Reply,
        state::{Kind, State},
    },
    Answer, Caller, Command,
    keys::matches,
};

/// Returns whether a RESP2 connection that is subscribed to a channel is allowed to send this command.
pub(crate) fn is_allowed_to_subscribers(command: &Command) -> bool {
    matches!(command.name, "subscribe" | "unsubscribe" | "ping" | "quit")
}

fn notice(kind: &str, channel: Option<&[u8]>, count: usize) -> Reply {
    Reply::Push(vec![
        Reply::bulk(kind.as_bytes()),
        channel.map_or(Reply::Null, Reply::bulk),
        Reply::count(count),
    ])
}

pub(crate) fn subscribe(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let mut notices = Vec::with_capacity(args.len() - 1);
    for channel in &args[1..] {
        let Some(client) = state.clients.get_mut(&caller.id) else {
            break;
        };
        if client.channels.insert(channel.to_vec()) {
            let subscribers = state.channels.entry(channel.to_vec()).or_default();
            subscribers.push(caller.id);
        }
        notices.push(notice("subscribe", Some(channel), client.channels.len()));
    }
    Ok(Reply::Many(notices))
}

pub(crate) fn unsubscribe(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let Some(client) = state.clients.get(&caller.id) else {
        return Ok(Reply::Null);
    };
    let all: Vec<Vec<u8>> = match &args[1..] {
        [] => client.channels.iter().cloned().collect(),
        some => some.iter().map(|channel| channel.to_vec()).collect(),
    };
    if all.is_empty() {
        return Ok(notice("unsubscribe", None, 0));
    }
    let notices = all.iter().map(|channel| {
        let left = leave(state, caller.id, channel);
        notice("unsubscribe", Some(channel), left)
    });
    Ok(Reply::Many(notices.collect()))
}

/// Removes a connection from a channel, and returns the number of channels to which it is still subscribed.
fn leave(state: &mut State, id: ConnectionId, channel: &[u8]) -> usize {
    if let Some(subscribers) = state.channels.get_mut(channel) {
        subscribers.retain(|subscriber| *subscriber != id);
        if subscribers.is_empty() {
            state.channels.remove(channel);
        }
    }
    let Some(client) = state.clients.get_mut(&id) else {
        return 0;
    };
    client.channels.remove(channel);
    client.channels.len()
}

/// Removes a connection from all channels.
pub(crate) fn unsubscribe_all(state: &mut State, id: ConnectionId) {
    let Some(client) = state.clients.get_mut(&id) else {
        return;
    };
    for channel in std::mem::take(&mut client.channels) {
        leave(state, id, &channel);
    }
}

/// Publishes a message. In a cluster, the other nodes also receive the message, but the reply counts only the
/// subscribers of this node.
pub(crate) fn publish(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    if let Kind::Node(node) = &mut state.kind {
        node.bus.push((args[1].to_vec(), args[2].to_vec()));
    }
    tell(state, caller, args[1], args[2])
}

/// Sends a message to the subscribers of this server.
pub(crate) fn tell(state: &mut State, _: Caller, channel: &[u8], message: &[u8]) -> Answer {
    let Some(subscribers) = state.channels.get(channel) else {
        return Ok(Reply::Int(0));
    };
    let message = Reply::Push(vec![
        Reply::bulk(b"message"),
        Reply::bulk(channel),
        Reply::bulk(message),
    ]);
    for id in subscribers {
        let resp3 = state.clients.get(id).is_some_and(|client| client.resp3);
        message.write(state.outbox.buffer(*id), resp3);
    }
    Ok(Reply::count(subscribers.len()))
}

pub(crate) fn numsub(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let counts = args[2..].iter().flat_map(|channel| {
        let count = state.channels.get(*channel).map_or(0, Vec::len);
        [Reply::bulk(channel), Reply::count(count)]
    });
    Ok(Reply::Array(counts.collect()))
}

/// Returns the channels that have subscribers. If a pattern is given, returns only those that match it.
pub(crate) fn active(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let pattern = args.get(2).copied().unwrap_or(b"*");
    let channels = state.channels.keys();
    let matching = channels.filter(|channel| matches(pattern, channel));
    Ok(Reply::Array(
        matching.map(|channel| Reply::bulk(channel)).collect(),
    ))
}
