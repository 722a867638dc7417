//! Builds the requests of one acquisition, and reads the server's answers.

use std::{
    fmt::Write,
    sync::{
        self, Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Request},
    error::HeldBy,
    fencing::FencingToken,
    lease::{CLAIM, Grant, Moment, less_drift},
    options::Mode,
    owner::OwnerId,
};
use redis::{FromRedisValue, Value};

use crate::{
    backend::redis::{
        protocol::{
            command::{claim_ms, millis, whole_millis},
            grant::{GrantSnapshot, LeaseWord},
            layout::{Names, Scripts},
            words::{Since, members, read_holder, word},
        },
        transport::{call_error::CallError, connection::Connection},
    },
    background::{Context, TaskTracker, TrackedTask, drained, lock},
    limits,
};

/// The usual length of a queue entry and of a grant, in bytes. A text of this capacity seldom has to grow while it is
/// written.
const TEXT: usize = 192;

/// The content that all requests of one owner share, and the state of these requests. The owner's queue entry never
/// changes, because a retry with another entry would queue the owner twice.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    context: Arc<Context>,
    pub(crate) names: Names,
    pub(crate) scripts: &'static Scripts,
    pub(crate) owner: OwnerId,
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    pub(crate) wait: Duration,
    session_id: Arc<str>,
    /// The words `application/host/pid`, in escaped form (see `words.rs`). Together with `function`
    /// ([`Request::function`]), they tell people where the caller runs.
    process: Arc<str>,
    function: &'static str,
    /// What the server reported about the holder when it last refused the lock to this owner, or when the owner left
    /// the queue.
    held_by: sync::Mutex<Option<Box<HeldBy>>>,
    /// The moment at which the first request to queue the caller was sent.
    first_sent: sync::OnceLock<Moment>,
    /// Whether the attempt itself has sent a request that is not answered. The answer can grant the lock.
    is_asked: AtomicBool,
    /// The requests that the session has sent for this acquisition, and that are not answered yet. The acquisition ends
    /// only after these requests.
    sending: TaskTracker,
    /// The connection that carried the newest request.
    carried: sync::Mutex<Option<Arc<Connection>>>,
}

/// The server's answer to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    Granted(Grant),
    /// The server has carried out an earlier request, which granted the lock to the owner.
    Held {
        grant: GrantSnapshot,
        place: Option<u64>,
    },
    Busy,
    /// The caller is in the queue, at this place. The holder's grant ends at `holder_ends`, unless the holder renews
    /// it.
    Queued {
        place: u64,
        holder_ends: Moment,
    },
}

/// The server's answer to a request to leave.
pub(crate) enum Left {
    /// The owner does not hold the lock, and is no longer in the queue.
    Out {
        /// The place in the queue from which the request to leave removed the owner, if it had one.
        place: Option<u64>,
    },
    /// The lock was free, and was granted to the owner.
    Granted(Grant),
    /// The owner is a member of this grant. The request to leave did not change the grant.
    Held(GrantSnapshot),
}

pub(crate) fn not_understood(error: &impl std::fmt::Display) -> BackendError {
    BackendError::Refused(format!("the client cannot parse the answer: {error}"))
}

pub(crate) fn decode<T: FromRedisValue>(value: Value) -> Result<T, CallError> {
    T::from_redis_value(value).map_err(|error| CallError::Refused(not_understood(&error)))
}

impl AcquireRequest {
    pub(crate) fn new(
        context: Arc<Context>,
        scripts: &'static Scripts,
        names: Names,
        request: &Request,
        session_id: Arc<str>,
        process: Arc<str>,
    ) -> Self {
        Self {
            context,
            scripts,
            names,
            owner: request.owner,
            lease: request.lease.time,
            mode: request.mode,
            wait: request.wait,
            session_id,
            process,
            function: request.function,
            held_by: sync::Mutex::default(),
            first_sent: sync::OnceLock::new(),
            is_asked: AtomicBool::new(false),
            sending: TaskTracker::new(),
            carried: sync::Mutex::default(),
        }
    }

    /// Returns the script argument that names the caller's place. If the answer to the first request was lost, the
    /// argument is the server's time at which that request was sent: a repeated request may be under way for long, but
    /// asks for the old place. A first request has an empty argument, and counts as sent at `first`. The callers of a
    /// batch have different moments `first`, so that they stay in order.
    pub(crate) fn place_to_request(
        &self,
        connection: &Connection,
        place: Option<u64>,
        first: Moment,
    ) -> String {
        let first_sent = self.first_sent.get().copied();
        let _ = self.first_sent.set(first);
        match (place, first_sent) {
            (Some(place), _) => place.to_string(),
            (None, Some(sent)) => connection.server_micros(sent).max(1).to_string(),
            (None, None) => String::new(),
        }
    }

    /// Records that `connection` carries the newest request.
    pub(crate) fn carry(&self, connection: &Arc<Connection>) {
        *lock(&self.carried) = Some(connection.clone());
    }

    pub(crate) fn carried_by(&self) -> Option<Arc<Connection>> {
        lock(&self.carried).clone()
    }

    /// Records that the attempt itself sends a request.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// Records that the attempt's own requests are answered.
    pub(crate) fn answered(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    /// Returns whether all requests that the attempt itself has sent are answered. Requests that the session sends for the
    /// attempt do not count.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_asked.load(Ordering::Acquire)
    }

    /// Registers a request that the session sends for this acquisition. The request counts as under way until the
    /// returned value is dropped. Returns `None` after a call of [`end`](Self::end), because the session then does not
    /// have to send a further request for the caller. [`end`](Self::end) keeps no mutex locked while it waits, so a
    /// caller that is not polled does not delay the requests of other callers.
    pub(crate) fn send(&self) -> Option<TrackedTask> {
        let task = self.sending.token();
        (!self.sending.is_closed()).then_some(task)
    }

    /// Returns whether no request for this acquisition can have an effect any longer: neither those of the caller itself,
    /// nor those of its session.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_answered() && self.sending.is_empty()
    }

    /// Waits until all requests that the session sent for this acquisition have ended. From the start of this call, the
    /// session sends no further request for this acquisition.
    pub(crate) async fn end(&self) {
        drained(&self.sending).await;
    }

    /// Returns the owner's entry in the queue.
    pub(crate) fn member(&self) -> String {
        let wait = whole_millis(self.wait);
        let mut member = String::with_capacity(TEXT);
        let _ = write!(member, "{}|", self.owner);
        member.push_str(&self.session_id);
        let _ = write!(member, "|{}|{wait}|", self.lease_word());
        self.push_words(&mut member);
        member
    }

    /// Returns the part of the stored grant that follows the token, for a request that is sent now over `connection`.
    pub(crate) fn tail(&self, connection: &Connection) -> String {
        let mut tail = String::with_capacity(TEXT);
        let _ = write!(tail, "{}|", self.lease_word());
        tail.push_str(&self.session_id);
        let _ = write!(tail, "|{}|", self.owner);
        self.push_words(&mut tail);
        let since = Since(connection.server_micros(self.context.now()));
        let _ = write!(tail, "|{since}");
        tail
    }

    /// Returns the lease in ms, and the mode.
    pub(crate) fn lease_word(&self) -> LeaseWord {
        LeaseWord(self.lease, self.mode)
    }

    fn push_words(&self, text: &mut String) {
        text.push_str(&self.process);
        text.push('/');
        text.push_str(&word(self.function));
    }

    /// Returns what the server reported about the holder when it last refused the lock to this owner, or when the owner
    /// left the queue.
    pub(crate) fn held_by(&self) -> Option<Box<HeldBy>> {
        lock(&self.held_by).clone()
    }

    /// Stores what the server has reported about the holder.
    fn note_holder(&self, connection: &Connection, held: Option<Vec<u8>>, ahead: Option<usize>) {
        let now = connection.server_micros(self.context.now());
        // The lock's key may contain bytes that are not UTF-8, because another program has written them.
        let held = held.as_deref().map(String::from_utf8_lossy);
        *lock(&self.held_by) = held.and_then(|held| {
            let holder = read_holder(&held, None, now)?;
            // The other members of the holder's cohort also enter before the caller, so they count as ahead of the
            // caller.
            let ahead = ahead.map(|ahead| ahead + members(&held).saturating_sub(1));
            Some(Box::new(HeldBy::new(holder, ahead)))
        });
    }

    /// Returns the latest moment at which the requests sent so far can still have an effect.
    pub(crate) fn run_out(&self) -> Moment {
        self.context.now() + self.wait + self.lease.max(CLAIM) + limits::LATE_SLACK
    }

    /// Returns the server time after which a request does nothing, or an empty string if there is no such limit. A
    /// limit is needed only if this client is not allowed to close its earlier connections on the server. A client that
    /// is allowed to do so closes a broken connection on the server, so a request over that connection cannot arrive
    /// late.
    pub(crate) fn not_after(&self, connection: &Connection) -> String {
        if connection.may_kill {
            String::new()
        } else {
            let end = self.context.now() + self.wait + limits::LATE_SLACK;
            connection.server_micros(end).to_string()
        }
    }

    /// Builds the grant from the token in the reply to a request that was sent at `sent`.
    fn taken(&self, token: i64, sent: Moment) -> Grant {
        Grant {
            token: FencingToken::new(u64::try_from(token).unwrap_or_default()),
            valid_until: Some(sent + less_drift(self.lease)),
            validity: self.lease,
            queued: false,
            handoff: None,
        }
    }

    /// Sends the request for the lock over `connection`, and reads the reply. `place` is the owner's known place in the queue.
    pub(crate) async fn acquire(
        &self,
        connection: &Connection,
        place: Option<u64>,
    ) -> Result<Reply, CallError> {
        let asking = {
            let keys = self.names.keys();
            // A writer that waits cannot grant the lock to the next waiter.
            let grants = self.wait.is_zero() || self.mode.is_shared();
            let key_count = if grants { keys.len() } else { 3 };
            let (tail, not_after) = (self.tail(connection), self.not_after(connection));
            // The answer to an earlier request was lost. The caller does not lose its place with the answer. A reader that
            // does not wait asks for no place, but the script looks for its earlier grant.
            let place = if self.wait.is_zero() && self.mode == Mode::Write {
                String::new()
            } else {
                self.place_to_request(connection, place, self.context.now())
            };
            let (script, lease) = match self.mode {
                Mode::Write => (self.scripts.acquire, millis(self.lease)),
                _ => (self.scripts.acquire_shared, self.lease_word().to_string()),
            };
            let args = [
                tail.as_str(),
                &lease,
                &connection.floor,
                &millis(self.wait),
                claim_ms(),
                &not_after,
                &place,
            ];
            let count = args.len() - usize::from(place.is_empty());
            connection.run(script, &keys[..key_count], &args[..count])
        };
        let (reply, sent) = asking.await?;
        let reply = match reply {
            Value::Int(token) => {
                return Ok(Reply::Granted(self.taken(token, sent)));
            }
            reply => reply,
        };
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let state: String = decode(next())?;
        Ok(match state.as_str() {
            "held" => {
                let grant = snapshot(next(), next(), sent)?;
                let place = decode(next())?;
                Reply::Held { grant, place }
            }
            "queued" => Reply::Queued {
                place: decode(next())?,
                holder_ends: ends(decode(next())?, sent),
            },
            "busy" => {
                self.note_holder(connection, decode(next())?, None);
                Reply::Busy
            }
            _ => return Err(connection.too_late()),
        })
    }

    /// Removes the owner from the queue. With `give_up`, also releases the lock if the owner has a grant that no other
    /// owner shares. Without `give_up`, a queued owner is granted the lock if the lock is free and no owner that was
    /// queued earlier is still waiting.
    pub(crate) async fn leave(
        &self,
        connection: &Connection,
        give_up: bool,
    ) -> Result<Left, CallError> {
        let leaving = {
            let keys = self.names.keys_to_release();
            let (owner, member) = (self.owner.to_string(), self.member());
            let tail = self.tail(connection);
            let args = [
                owner.as_str(),
                &member,
                &connection.floor,
                claim_ms(),
                if give_up { "abandon" } else { "enter" },
                &tail,
                &self.session_id,
            ];
            connection.run(self.scripts.leave, &keys, &args)
        };
        let (reply, sent) = leaving.await?;
        let reply: Vec<Value> = decode(reply)?;
        let mut fields = reply.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let state: String = decode(next())?;
        Ok(match state.as_str() {
            "held" => Left::Held(snapshot(next(), next(), sent)?),
            "granted" => Left::Granted(Grant {
                queued: true,
                ..self.taken(decode(next())?, sent)
            }),
            _ => {
                let place = decode(next())?;
                self.note_holder(connection, decode(next())?, decode(next())?);
                Left::Out { place }
            }
        })
    }
}

/// Parses the grant in a reply to a request that was sent at `sent`.
fn snapshot(grant: Value, left: Value, sent: Moment) -> Result<GrantSnapshot, CallError> {
    let (grant, left): (String, u64) = (decode(grant)?, decode(left)?);
    GrantSnapshot::parse(&grant, left, sent)
        // The error must not quote the grant, because the session id in the grant is a secret.
        .ok_or_else(|| {
            CallError::Refused(not_understood(&format_args!(
                "a grant of {} bytes",
                grant.len()
            )))
        })
}

/// Returns the moment `left` ms after `asked`. A negative `left` counts as zero.
pub(crate) fn ends(left: i64, asked: Moment) -> Moment {
    asked + Duration::from_millis(u64::try_from(left).unwrap_or_default())
}
