// Shapes of functions that must compile.
#![deny(warnings)]
#![allow(dead_code)]

use std::{
    fmt::{self, Display},
    pin::Pin,
    time::Duration,
};

use lock_runtime::{LockClient, LockError, distributed_lock};

type Result<T, E = LockError> = std::result::Result<T, E>;

const WAIT: Duration = Duration::from_secs(1);

struct OrderId(u64);

impl Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

struct Request {
    user: (u64, String),
}

#[distributed_lock(key = "constant")]
async fn constant(_id: u64, name: String) -> Result<String> {
    Ok(name)
}

#[distributed_lock(key = "order:<id>:<req.user.1:raw>/<req.user.0>", wait = WAIT, lease = "30s", renew = true, max_hold = "1h")]
async fn moved(id: OrderId, req: Request) -> Result<(OrderId, String)> {
    Ok((id, req.user.1))
}

#[distributed_lock(key = "<id>")]
async fn only_in_the_key(id: u64) -> Result<()> {
    Ok(())
}

#[distributed_lock(key = "<count>")]
async fn mutable(mut count: u64, (mut a, _): (u64, String), _: String, ref b: String) -> Result<u64> {
    count += 1;
    a += count;
    Ok(a + b.len() as u64)
}

#[distributed_lock(key = "<name>:<id>:<_kind>", client = locks)]
async fn only_in_the_options(
    (id, _): (u64, u64),
    Request { user: (_kind, name) }: Request,
    (locks,): (LockClient,),
) -> Result<()> {
    Ok(())
}

#[distributed_lock(key = "<key>:<guard>:<client>:<call>:<output>:<__key>:<__call>:<__output>:<__arg0>")]
async fn own_names(
    key: u64,
    guard: u64,
    client: u64,
    call: u64,
    output: u64,
    __key: u64,
    __call: u64,
    __output: u64,
    __arg0: u64,
    (a, b): (u64, u64),
) -> Result<u64> {
    Ok(key + guard + client + call + output + __key + __call + __output + __arg0 + a + b)
}

#[distributed_lock(key = "<type>:<r#fn>:<r#type>")]
async fn raw(r#type: u64, r#fn: &str) -> Result<u64> {
    Ok(r#type + r#fn.len() as u64)
}

#[distributed_lock(key = "<id>")]
async fn conditional(
    id: u64,
    #[cfg(all())] yes: u64,
    #[cfg(any())] no: Missing,
    #[allow(unused_variables)] unused: u64,
    #[expect(unused_variables)] expected: u64,
) -> Result<u64> {
    Ok(id + yes)
}

#[distributed_lock(key = "<id>")]
async fn generic<'a, T: Display + Clone, const N: usize>(id: &'a T, all: [u64; N]) -> Result<(&'a T, usize)>
where
    T: Sized,
{
    Ok((id, all.len()))
}

#[distributed_lock(key = "<id>")]
async fn hidden_argument(id: impl Display, from: &[u64]) -> Result<&u64, LockError> {
    Ok(&from[0])
}

#[distributed_lock(key = "hidden")]
async fn hidden(end: u64) -> Result<impl Iterator<Item = u64>> {
    Ok(0..end)
}

#[distributed_lock(key = "<n>")]
async fn recursive(n: u64) -> Result<u64> {
    if n == 0 { Ok(0) } else { Box::pin(recursive(n - 1)).await }
}

#[distributed_lock(key = "boxed:<n>")]
fn boxed(n: u64) -> Pin<Box<dyn Future<Output = Result<u64>> + Send>> {
    let m = n.saturating_sub(1);
    Box::pin(async move { if m == 0 { Ok(0) } else { boxed(m).await } })
}

#[distributed_lock(key = "boxed:<n>")]
fn boxed_with_exits_of_its_closures(n: u64) -> Pin<Box<dyn Future<Output = Result<u64>> + Send>> {
    fn half(n: u64) -> Option<u64> {
        return Some(n.checked_div(2)?);
    }
    let more = move |n: u64| { if n == 0 { return 1 } n };
    let later = async move { return Result::<_>::Ok(recursive(n).await?) };
    return Box::pin(async move { Ok(half(more(n)).unwrap_or(later.await?)) })
}

#[distributed_lock(key = "diverges")]
async fn diverges() -> Result<()> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "todo")]
async fn unwritten() -> Result<()> {
    panic!("unwritten")
}

#[distributed_lock(key = "inner")]
async fn inner_attributes() -> Result<()> {
    #![allow(unused_variables)]
    let x = 1;
    Ok(())
}

#[distributed_lock(key = "<<literal>>")]
async fn not_send() -> Result<u64> {
    let counter = std::rc::Rc::new(1);
    tokio::task::yield_now().await;
    Ok(*counter)
}

#[distributed_lock(key = "cell:<cell>")]
async fn not_sync(cell: CellText) -> Result<u64> {
    Ok(cell.0.get())
}

struct CellText(std::cell::Cell<u64>);

impl Display for CellText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(f)
    }
}

struct Account {
    id: u64,
    locks: LockClient,
    text: String,
}

impl Account {
    #[distributed_lock(key = "{account:<self.id>}:read", client = self.locks, namespace = "bank", guard = hold, mode = read)]
    async fn borrowed(&self) -> Result<&str> {
        let _token = hold.token();
        Ok(&self.text)
    }

    #[distributed_lock(key = "account:<self.id>", client = self.locks, on_lost = continue)]
    async fn exclusive(&mut self, text: String) -> Result<&mut String> {
        self.text = text;
        Ok(&mut self.text)
    }

    #[distributed_lock(key = "account:<self.id>", on_lost = cancel)]
    async fn owned(mut self) -> Result<Self> {
        self.id += 1;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn partly_moved(self) -> Result<String> {
        Ok(self.text)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn unused(self: Box<Self>, _: u64) -> Result<()> {
        Ok(())
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn pinned(self: Pin<&mut Self>) -> Result<u64> {
        Ok(self.id)
    }

    #[distributed_lock(key = "new:<id>")]
    async fn associated(id: u64, locks: LockClient) -> Result<Self> {
        Ok(Self { id, locks, text: String::new() })
    }
}

trait Report {
    fn name(&self) -> String;

    #[allow(async_fn_in_trait)]
    #[distributed_lock(key = "report:<day>")]
    async fn report(&self, day: u64) -> Result<String> {
        Ok(self.name())
    }
}

macro_rules! locked {
    ($name:ident, $key:literal, $argument:ident: $ty:ty, $returned:ty, $body:block) => {
        #[distributed_lock(key = $key, crate = ::lock_runtime)]
        async fn $name($argument: $ty) -> $returned $body
    };
}

locked!(from_a_macro, "macro:<id>", id: u64, Result<u64>, { Ok(id) });

fn send<T: Send>(_: T) {}

fn main() {
    send(constant(1, String::new()));
    send(recursive(1));
    send(not_sync(CellText(std::cell::Cell::new(1))));
    let _ = not_send();
    send(generic(&1, [1, 2]));
    send(own_names(1, 2, 3, 4, 5, 6, 7, 8, 9, (10, 11)));
}
