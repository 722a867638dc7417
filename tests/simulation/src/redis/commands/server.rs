//! Commands for the server itself, and for transactions.

use super::{
    super::{
        Mode,
        data::Fault,
        numbers::write_integer,
        resp::{Reply, write_length},
        state::{State, Transaction},
    },
    Answer, Caller, find, integer_arg, is_word, wrong_number,
};

/// The version of Redis whose behaviour and messages this server imitates.
pub(crate) const VERSION: &str = "7.0.15";

pub(crate) fn auth(_: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::OK)
}

pub(crate) fn echo(_: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    Ok(Reply::bulk(args[1]))
}

pub(crate) fn ping(state: &mut State, caller: Caller, args: &[&[u8]]) -> Answer {
    if args.len() > 2 {
        return Err(wrong_number("ping"));
    }
    let text = args.get(1).copied();
    // In RESP2, subscribers receive only arrays, so the reply to `PING` is an array.
    let client = state.clients.get(&caller.id);
    if client.is_some_and(|client| !client.resp3 && !client.channels.is_empty()) {
        let text = Reply::bulk(text.unwrap_or_default());
        return Ok(Reply::Array(vec![Reply::bulk(b"pong"), text]));
    }
    Ok(text.map_or(Reply::Status("PONG".into()), Reply::bulk))
}

pub(crate) fn select(_: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let index = integer_arg(args[1])?;
    match i32::try_from(index) {
        Ok(0) => Ok(Reply::OK),
        Ok(_) => Err("ERR DB index is out of range".into()),
        Err(_) => {
            Err("ERR value is out of range, value must between -2147483648 and 2147483647".into())
        }
    }
}

pub(crate) fn time(_: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    let text = |number: u64| {
        let mut text = Vec::with_capacity(10);
        write_integer(&mut text, i64::try_from(number).unwrap_or(i64::MAX));
        Reply::Bulk(text)
    };
    let parts = [caller.now / 1_000_000, caller.now % 1_000_000];
    Ok(Reply::Array(parts.map(text).into()))
}

pub(crate) fn info(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let run_id = &state.run_id;
    let count = state.clients.len();
    let mode = state.kind.mode();
    let role = if state.is_read_only() {
        "slave"
    } else {
        "master"
    };
    let loading = u8::from(state.mode == Mode::Loading);
    let sections = [
        (
            "server",
            format!(
                "# Server\r\nredis_version:{VERSION}\r\nredis_mode:{mode}\r\nrun_id:{run_id}\r\n"
            ),
        ),
        (
            "clients",
            format!("# Clients\r\nconnected_clients:{count}\r\n"),
        ),
        (
            "memory",
            "# Memory\r\nmaxmemory_policy:noeviction\r\n".to_owned(),
        ),
        (
            "persistence",
            format!("# Persistence\r\nloading:{loading}\r\n"),
        ),
        ("replication", format!("# Replication\r\nrole:{role}\r\n")),
    ];
    let wanted = |name: &str| {
        let any = ["all", "default", "everything"];
        let is_any = |arg: &&[u8]| any.iter().any(|any| is_word(arg, any));
        args.len() == 1
            || args[1..]
                .iter()
                .any(|arg| is_word(arg, name) || is_any(arg))
    };
    let texts = sections.into_iter().filter(|(name, _)| wanted(name));
    let texts: Vec<String> = texts.map(|(_, text)| text).collect();
    Ok(Reply::Bulk(texts.join("\r\n").into_bytes()))
}

/// Returns settings. This server knows only the setting of the eviction policy.
pub(crate) fn config_get(_: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    let policy = args[2..]
        .iter()
        .any(|name| is_word(name, "maxmemory-policy"));
    let policy = policy.then(|| {
        let (name, value) = (b"maxmemory-policy", b"noeviction");
        (Reply::bulk(name), Reply::bulk(value))
    });
    Ok(Reply::Map(policy.into_iter().collect()))
}

/// Accepts any setting and ignores it.
pub(crate) fn config_set(_: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::OK)
}

pub(crate) fn multi(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    let transaction = state.transaction(caller.id);
    if transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    *transaction = Some(Transaction::default());
    Ok(Reply::OK)
}

pub(crate) fn discard(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    let transaction = state.transaction(caller.id).take();
    transaction.ok_or("ERR DISCARD without MULTI")?;
    Ok(Reply::OK)
}

pub(crate) fn exec(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    let transaction = state.transaction(caller.id).take();
    let transaction = transaction.ok_or("ERR EXEC without MULTI")?;
    if transaction.broken {
        return Err(Fault::Borrowed(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    // Each reply is written right after its command has run. If a command publishes a message to its own connection,
    // the message therefore comes directly before the command's reply.
    write_length(
        state.outbox.buffer(caller.id),
        b'*',
        transaction.queued.len(),
    );
    for command in &transaction.queued {
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let answer = find(&args).and_then(|command| command.run(state, caller, &args));
        let resp3 = state.speaks_resp3(caller.id);
        let reply = answer.unwrap_or_else(Reply::Error);
        reply.write(state.outbox.buffer(caller.id), resp3);
    }
    Ok(Reply::Many(Vec::new()))
}
