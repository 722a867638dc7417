//! Commands for lists, which tests store at keys where a lock does not expect a list.

use super::{
    super::{data::DataSet, resp::Reply},
    Answer, index_range, integer_arg,
};

pub(crate) fn lpush(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let list = data.list_or_new(args[1], ms)?;
    args[2..]
        .iter()
        .for_each(|item| list.push_front(item.to_vec()));
    Ok(Reply::count(list.len()))
}

pub(crate) fn rpush(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let list = data.list_or_new(args[1], ms)?;
    args[2..]
        .iter()
        .for_each(|item| list.push_back(item.to_vec()));
    Ok(Reply::count(list.len()))
}

pub(crate) fn llen(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let list = data.list(args[1], ms)?;
    Ok(Reply::count(list.map_or(0, |list| list.len())))
}

pub(crate) fn lrange(data: &mut DataSet, ms: i64, args: &[&[u8]]) -> Answer {
    let (start, end) = (integer_arg(args[2])?, integer_arg(args[3])?);
    let Some(list) = data.list(args[1], ms)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let items = list.range(index_range(start, end, list.len()));
    Ok(Reply::Array(items.map(|item| Reply::bulk(item)).collect()))
}
