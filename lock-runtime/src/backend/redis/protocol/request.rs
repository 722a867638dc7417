//! The words of one acquisition's requests, the text of its grant after the token, and the server's answers.

use std::{
    fmt::Write,
    sync::{
        self, Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{
    backend::{BackendError, Request},
    fencing::FencingToken,
    key::FENCE,
    layout::Layout,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};
use redis::{FromRedisValue, Value};

use crate::{
    backend::redis::{
        protocol::{
            grant::GrantSnapshot,
            layout::{Names, Scripts},
            units::{LATE_SLACK, claim_ms, millis, whole_millis},
        },
        transport::connection::{CallError, Connection},
    },
    background::{
        Context,
        shutdown::{TaskTracker, TrackedTask, drained},
        sync::lock,
    },
};

/// The room for what a request says of its owner beside the session: an owner of 32 digits, and two times.
const ROOM: usize = 64;

/// A request that was sent by the caller itself, whose answer may grant the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direct {
    /// None is under way.
    Idle,
    /// Sent then; the caller has not read the answer.
    Asked(Moment),
    /// The caller did not come back for the answer within a claim. The engine gives back what it may have granted.
    Revoked,
}

/// What every request of one acquisition says, the same bytes for life: a retry with other bytes would queue twice.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    context: Arc<Context>,
    pub(crate) names: Names,
    pub(crate) scripts: &'static Scripts,
    pub(crate) owner: OwnerId,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    /// How many offers its caller has missed, as other owners.
    pub(crate) missed: u32,
    /// The newest grant that it was told to be of, by that one's token; zero before.
    granted: AtomicU64,
    session_id: Arc<str>,
    /// Its place in the queue, once the server has given one: what it comes back to. Zero before.
    place: AtomicU64,
    /// Asks to be woken when a lock that is not free becomes free.
    pub(crate) notified: bool,
    direct: sync::Mutex<Direct>,
    /// The requests that the session sends for it. None is under way once the acquisition is over.
    sending: TaskTracker,
    /// The connection that carried the newest request.
    carried: sync::Mutex<Option<Arc<Connection>>>,
}

/// The server's answer to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    Granted(Grant),
    /// Granted already: an earlier request was carried out.
    Held(GrantSnapshot),
    Busy,
    /// The place in the queue, and when the grant of the holder ends by itself.
    Queued {
        place: u64,
        holder_ends: Moment,
    },
    /// The request came after its own end: nothing was changed.
    Late,
}

/// What leaving found on the server.
pub(crate) enum Left {
    /// The owner is neither queued nor inside.
    Out,
    /// The lock was free: the owner is inside.
    Granted(Grant),
    /// It is an owner of this grant, which was left as it is.
    Held(GrantSnapshot),
}

pub(crate) fn not_understood(error: &impl std::fmt::Display) -> BackendError {
    BackendError::Refused(format!("an answer that is not understood: {error}"))
}

pub(crate) fn decode<T: FromRedisValue>(value: Value) -> Result<T, CallError> {
    T::from_redis_value(value).map_err(|error| CallError::Refused(not_understood(&error)))
}

impl AcquireRequest {
    pub(crate) fn new(
        context: Arc<Context>,
        layout: Layout,
        request: &Request,
        session_id: Arc<str>,
    ) -> Self {
        Self {
            context,
            scripts: Scripts::of(layout),
            notified: false,
            names: Names::new(layout, request.name.clone()),
            owner: request.owner,
            lease: request.lease.time,
            wait: request.wait,
            missed: 0,
            granted: AtomicU64::new(0),
            session_id,
            place: AtomicU64::new(0),
            direct: sync::Mutex::new(Direct::Idle),
            sending: TaskTracker::new(),
            carried: sync::Mutex::default(),
        }
    }

    pub(crate) fn place(&self) -> Option<u64> {
        Some(self.place.load(Ordering::Acquire)).filter(|place| *place > 0)
    }

    /// The newest request goes over this connection.
    pub(crate) fn carry(&self, connection: &Arc<Connection>) {
        *lock(&self.carried) = Some(connection.clone());
    }

    pub(crate) fn carried_by(&self) -> Option<Arc<Connection>> {
        lock(&self.carried).clone()
    }

    /// The caller sends a request by itself now. False if the engine has given up what an earlier one was granted.
    pub(crate) fn ask(&self) -> bool {
        let mut direct = lock(&self.direct);
        let asks = *direct != Direct::Revoked;
        if asks {
            *direct = Direct::Asked(self.context.now());
        }
        asks
    }

    /// The caller has read the answer, and may take what it grants. False if the engine has given that up.
    pub(crate) fn answered(&self) -> bool {
        let mut direct = lock(&self.direct);
        let takes = *direct != Direct::Revoked;
        if takes {
            *direct = Direct::Idle;
        }
        takes
    }

    /// Gives up what an answer may have granted that its caller has not read within a claim.
    pub(crate) fn revoke(&self, now: Moment) -> bool {
        let mut direct = lock(&self.direct);
        let overdue = matches!(*direct, Direct::Asked(since) if since + CLAIM <= now);
        if overdue {
            *direct = Direct::Revoked;
        }
        overdue
    }

    /// Whether a caller has not come back for an answer within a claim.
    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        matches!(*lock(&self.direct), Direct::Asked(since) if since + CLAIM <= now)
    }

    pub(crate) fn is_revoked(&self) -> bool {
        *lock(&self.direct) == Direct::Revoked
    }

    /// Whether every request of the caller itself has been answered.
    pub(crate) fn is_answered(&self) -> bool {
        *lock(&self.direct) == Direct::Idle
    }

    /// The session sends a request for it, until this is dropped. `None` if the acquisition is over: it has been answered for
    /// good, or leaves. Whoever waits for the end of that owns nothing: a caller that is not polled delays no request of
    /// others.
    pub(crate) fn send(&self) -> Option<TrackedTask> {
        let sending = self.sending.token();
        (!self.sending.is_closed()).then_some(sending)
    }

    /// From its end on no request is under way, and none will be sent.
    pub(crate) async fn end(&self) {
        drained(&self.sending).await;
    }

    /// Notes a grant that it was told to be of. False if it was told of that one before, or of a later one.
    pub(crate) fn note_grant(&self, first: u64) -> bool {
        self.granted.fetch_max(first, Ordering::AcqRel) < first
    }

    pub(crate) fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Release);
    }

    /// The first place that an answer names is the owner's.
    fn learn_place(&self, place: u64) {
        let learnt = Ordering::AcqRel;
        let _ = self
            .place
            .compare_exchange(0, place, learnt, Ordering::Relaxed);
    }

    /// The owner's member of the queue.
    pub(crate) fn member(&self) -> String {
        let (lease, wait) = (whole_millis(self.lease), whole_millis(self.wait));
        let mut member = String::with_capacity(self.session_id.len() + ROOM);
        write!(member, "{}|{}|{lease}|{wait}", self.owner, self.session_id)
            .expect("a string grows");
        member
    }

    /// What the grant says after its token.
    pub(crate) fn tail(&self) -> String {
        let lease = whole_millis(self.lease);
        let mut tail = String::with_capacity(self.session_id.len() + ROOM);
        write!(tail, "{lease}|{}|{}", self.session_id, self.owner).expect("a string grows");
        tail
    }

    /// Until when what has been sent has an effect, at the longest.
    pub(crate) fn run_out(&self) -> Moment {
        self.context.now() + self.wait + self.lease.max(CLAIM) + LATE_SLACK
    }

    /// Where late requests cannot be stopped by closing the connection they were sent on, they stop themselves: the
    /// server's time from which on this one does nothing, empty if there is none.
    pub(crate) fn not_after(&self, connection: &Connection) -> String {
        if connection.may_kill {
            String::new()
        } else {
            let end = self.context.now() + self.wait + LATE_SLACK;
            connection.server_micros(end).to_string()
        }
    }

    /// A grant in the reply to a request that was sent then.
    fn taken(&self, token: i64, sent: Moment) -> Grant {
        Grant {
            token: FencingToken::new(u64::try_from(token).unwrap_or_default()),
            valid_until: Some(sent + less_drift(self.lease)),
            validity: self.lease,
            queued: false,
        }
    }

    /// Sends the request over `connection`.
    pub(crate) async fn acquire(&self, connection: &Connection) -> Result<Reply, CallError> {
        let asking = {
            let marker = if self.notified {
                marker(&self.session_id)
            } else {
                String::new()
            };
            let keys = [self.names.grant(), self.names.companion(), FENCE];
            let (tail, not_after) = (self.tail(), self.not_after(connection));
            let args = [
                tail.as_str(),
                &millis(self.lease),
                &connection.floor,
                &millis(self.wait),
                claim_ms(),
                &not_after,
                &marker,
            ];
            let count = args.len() - usize::from(!self.notified);
            connection.run(self.scripts.acquire, &keys, &args[..count])
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
                if let Some(place) = decode(next())? {
                    self.learn_place(place);
                }
                Reply::Held(grant)
            }
            "queued" => {
                let place = decode(next())?;
                // Also if the caller reads this too late to keep the place: it comes back to it.
                self.learn_place(place);
                Reply::Queued {
                    place,
                    holder_ends: ends(decode(next())?, sent),
                }
            }
            "busy" => Reply::Busy,
            _ => Reply::Late,
        })
    }

    /// Takes the owner out of the queue; out of the lock, too, if it is to be given up and nobody shares it.
    pub(crate) async fn leave(
        &self,
        connection: &Connection,
        give_up: bool,
    ) -> Result<Left, CallError> {
        let leaving = {
            let keys = self.names.keys();
            let (owner, member, tail) = (self.owner.to_string(), self.member(), self.tail());
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
            _ => Left::Out,
        })
    }
}

/// A grant in a reply to what was sent then.
fn snapshot(grant: Value, left: Value, sent: Moment) -> Result<GrantSnapshot, CallError> {
    let (grant, left): (String, u64) = (decode(grant)?, decode(left)?);
    GrantSnapshot::parse(&grant, left, sent)
        // It names a session, which is a secret.
        .ok_or_else(|| {
            CallError::Refused(not_understood(&format_args!(
                "a grant of {} bytes",
                grant.len()
            )))
        })
}

/// When something ends of which so much was left, in ms, when that was asked for.
pub(crate) fn ends(left: i64, asked: Moment) -> Moment {
    asked + Duration::from_millis(u64::try_from(left).unwrap_or_default())
}

/// How the server knows a session that is to be woken when a lock becomes free.
pub(crate) fn marker(session_id: &str) -> String {
    format!("notify|{session_id}")
}
