//! Commands of a node of a Redis Cluster.

use super::{
    super::{
        Address,
        cluster::{Node, slot_of},
        data::Fault,
        resp::Reply,
        state::{Kind, State},
    },
    Answer, Caller,
};

const DISABLED: Fault = Fault::Borrowed("ERR This instance has cluster support disabled");

fn node(state: &mut State) -> Result<&mut Node, Fault> {
    match &mut state.kind {
        Kind::Node(node) => Ok(node),
        Kind::Store | Kind::Sentinel(_) => Err(DISABLED),
    }
}

pub(crate) fn asking(state: &mut State, caller: Caller, _: &[&[u8]]) -> Answer {
    node(state)?;
    if let Some(client) = state.clients.get_mut(&caller.id) {
        client.asking = true;
    }
    Ok(Reply::OK)
}

pub(crate) fn info(state: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    let view = &node(state)?.view;
    let is_up = if view.is_up { "ok" } else { "fail" };
    let epoch = view.epoch;
    let text = format!("cluster_state:{is_up}\r\ncluster_current_epoch:{epoch}\r\n");
    Ok(Reply::Bulk(text.into_bytes()))
}

pub(crate) fn keyslot(state: &mut State, _: Caller, args: &[&[u8]]) -> Answer {
    node(state)?;
    Ok(Reply::Int(slot_of(args[2]).into()))
}

pub(crate) fn slots(state: &mut State, _: Caller, _: &[&[u8]]) -> Answer {
    let view = &node(state)?.view;
    let describe = |node: &Address| {
        // The ID has forty characters, like the ID of a real node.
        let id = format!("{:0>40}", node.host);
        Reply::Array(vec![
            Reply::bulk(node.host.as_bytes()),
            Reply::Int(node.port.into()),
            Reply::bulk(id.as_bytes()),
            Reply::Array(Vec::new()),
        ])
    };
    let ranges = view.ranges.iter().map(|(first, last, primary)| {
        let mut fields = vec![
            Reply::Int((*first).into()),
            Reply::Int((*last).into()),
            describe(primary),
        ];
        let replicas = view.replicas.get(primary).into_iter().flatten();
        fields.extend(replicas.map(describe));
        Reply::Array(fields)
    });
    Ok(Reply::Array(ranges.collect()))
}
