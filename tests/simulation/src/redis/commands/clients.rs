//! Commands for connections.

use super::{
    super::{
        ConnectionId,
        data::Fault,
        numbers::integer,
        resp::Reply,
        state::{Kind, Role, State},
    },
    Answer, Caller, SYNTAX, is_word,
};

pub(crate) fn hello(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let mut resp3 = state
        .clients
        .get(&caller.id)
        .is_some_and(|client| client.resp3);
    if let Some(version) = args.get(1) {
        let version = integer(version);
        let version = version.ok_or("ERR Protocol version is not an integer or out of range")?;
        if !(2..=3).contains(&version) {
            return Err("NOPROTO unsupported protocol version".into());
        }
        resp3 = version == 3;
    }
    let mut name = None;
    let mut options = args.iter().skip(2);
    while let Some(option) = options.next() {
        if is_word(option, "AUTH") && options.len() >= 2 {
            options.nth(1);
        } else if is_word(option, "SETNAME") && options.len() >= 1 {
            name = options.next();
        } else {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
        }
    }
    if let Some(client) = state.clients.get_mut(&caller.id) {
        client.resp3 = resp3;
        if let Some(name) = name {
            client.name = name.to_vec();
        }
    }
    let id = i64::try_from(caller.id.0).unwrap_or(i64::MAX);
    let texts =
        |key: &str, value: &str| (Reply::bulk(key.as_bytes()), Reply::bulk(value.as_bytes()));
    let mut fields = vec![
        texts("server", "redis"),
        texts("version", super::server::VERSION),
        (Reply::bulk(b"proto"), Reply::Int(if resp3 { 3 } else { 2 })),
        (Reply::bulk(b"id"), Reply::Int(id)),
        texts("mode", state.kind.mode()),
    ];
    if !matches!(state.kind, Kind::Sentinel(_)) {
        let role = match state.role {
            Role::Primary => "master",
            Role::Replica { .. } => "replica",
        };
        fields.push(texts("role", role));
    }
    fields.push((Reply::bulk(b"modules"), Reply::Array(Vec::new())));
    Ok(Reply::Map(fields))
}

pub(crate) fn id(_: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::Int(i64::try_from(caller.id.0).unwrap_or(i64::MAX)))
}

pub(crate) fn getname(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    let name = state.clients.get(&caller.id).map(|client| &client.name);
    let name = name.filter(|name| !name.is_empty());
    Ok(name.map_or(Reply::Null, |name| Reply::bulk(name)))
}

pub(crate) fn setname(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    if !args[2].iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let error = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(error.into());
    }
    if let Some(client) = state.clients.get_mut(&caller.id) {
        client.name = args[2].to_vec();
    }
    Ok(Reply::OK)
}

/// Accepts `CLIENT SETINFO`, although a server of this `VERSION` does not have this command. Clients send
/// `CLIENT SETINFO` to servers of any version, and ignore the reply.
pub(crate) fn setinfo(_: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::OK)
}

pub(crate) fn switch(_: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    if is_word(args[2], "ON") || is_word(args[2], "OFF") {
        Ok(Reply::OK)
    } else {
        Err(SYNTAX)
    }
}

pub(crate) fn list(state: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    let lines = state.clients.iter().map(|(id, client)| {
        let name = String::from_utf8_lossy(&client.name);
        let (subscribed, resp) = (client.channels.len(), if client.resp3 { 3 } else { 2 });
        format!("id={} name={name} sub={subscribed} resp={resp}\n", id.0)
    });
    Ok(Reply::Bulk(lines.collect::<String>().into_bytes()))
}

pub(crate) fn kill(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    let &[_, _, filter, id] = args else {
        return Err(if args.len() == 3 {
            "ERR No such client".into()
        } else {
            SYNTAX
        });
    };
    if !is_word(filter, "ID") {
        return Err(SYNTAX);
    }
    let id = integer(id)
        .and_then(|id| u64::try_from(id).ok())
        .filter(|id| *id > 0);
    let id = id.ok_or(Fault::Borrowed("ERR client-id should be greater than 0"))?;
    let id = ConnectionId(id);
    let Some(client) = state.clients.get_mut(&id) else {
        return Ok(Reply::Int(0));
    };
    if id == caller.id {
        client.closes_after_reply = true;
    } else {
        state.close(id);
    }
    Ok(Reply::Int(1))
}

pub(crate) fn quit(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    if let Some(client) = state.clients.get_mut(&caller.id) {
        client.closes_after_reply = true;
    }
    Ok(Reply::OK)
}
