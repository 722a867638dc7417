//! Blocks: a grant that several neighbours of the queue share, all of one process. The process hands it on from one to
//! the next in memory, in the order of the queue, and releases it once, at the end.
//!
//! Each member has a token of its own, the first one of the grant and those after it. The server knows the grant by its
//! first token. All members have asked for the same lease, so that a crash frees the lock as soon as any of them
//! allows.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{
    backend::{BackendError, BoxFuture, Released, Renewed},
    fencing::FencingToken,
    key::LockName,
    lease::{CLAIM, Grant, Moment, less_drift},
    owner::OwnerId,
};

use super::{Server, link::Link};
use crate::{clock::boot as clock, engine, sync::lock};

/// What the server says of a grant.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    /// The grant's own token, and its first member's.
    pub(super) first: u64,
    pub(super) owners: Vec<OwnerId>,
    lease: Duration,
    /// Of the link that was told.
    inbox: String,
    /// How long it is valid, from a moment known to lie before that.
    pub(super) validity: Duration,
    pub(super) after: Moment,
}

impl Standing {
    /// Reads `token|lease|inbox|owner owner …`, of which so much is left, in ms, since that was asked.
    pub(super) fn told(grant: &str, left: u64, asked: Moment) -> Option<Self> {
        let mut fields = grant.split('|');
        let mut next = || fields.next();
        let (first, lease, inbox) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?);
        let owners = next()?.split(' ').map(|owner| owner.parse().ok());
        Some(Self {
            first,
            owners: owners.collect::<Option<_>>()?,
            lease: Duration::from_millis(lease),
            inbox: inbox.to_owned(),
            validity: Duration::from_millis(left),
            after: asked,
        })
    }

    /// The same, pushed: it stands as a claim.
    pub(super) fn pushed(grant: &str, after: Moment) -> Option<Self> {
        let standing = Self::told(grant, 0, after)?;
        let validity = standing.lease.min(CLAIM);
        Some(Self {
            validity,
            ..standing
        })
    }

    fn until(&self) -> Moment {
        self.after + less_drift(self.validity)
    }

    /// The grant as its only owner has it.
    pub(super) fn sole(&self) -> Turn {
        Turn {
            grant: Grant {
                token: FencingToken::new(self.first),
                valid_until: Some(self.until()),
                validity: self.validity,
                queued: true,
            },
            confirmed: self.validity,
        }
    }
}

/// A waiting caller's turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) grant: Grant,
    /// For how long the server had confirmed the grant at its newest word. With less than two thirds of it left, it has
    /// to be renewed before a body starts.
    pub(super) confirmed: Duration,
}

/// A grant that several share.
#[derive(Debug)]
struct Block {
    link: Arc<Link>,
    tokens: Range<u64>,
    lease: Duration,
    /// Who is inside, or was the last to be.
    inside: (u64, OwnerId),
    /// Those whose turn is still to come.
    next: VecDeque<OwnerId>,
    /// Nobody is inside any more, and the lock is still to be kept for a while.
    kept: bool,
    /// All have had their turn. It is known until its release is confirmed, for that is by its first token.
    over: bool,
    /// The server lets nobody else in before then.
    until: Moment,
    /// For how long that was, when it was confirmed.
    confirmed: Duration,
}

impl Block {
    /// Whether one of those to come still waits.
    fn has_next(&self, name: &LockName) -> bool {
        let waits = |owner: &OwnerId| self.link.lines.waits(name, *owner);
        self.next.iter().any(waits)
    }

    /// Lets the next one in that still waits; false if there is none, or no time left.
    fn pass(&mut self, name: &LockName, now: Moment) -> bool {
        if self.until <= now {
            return false;
        }
        while let Some(owner) = self.next.pop_front() {
            let token = self.tokens.end - 1 - self.next.len() as u64;
            let until = self.until.min(now + less_drift(self.lease));
            let turn = Turn {
                grant: Grant {
                    token: FencingToken::new(token),
                    valid_until: Some(until),
                    validity: until.since(now),
                    queued: true,
                },
                confirmed: self.confirmed,
            };
            if self.link.lines.tell(name, owner, Ok(turn)) {
                self.inside = (token, owner);
                return true;
            }
        }
        false
    }

    /// Whether the server may keep the grant for longer than a member's lease: a nested entry has asked for that.
    fn is_stretched(&self, now: Moment) -> bool {
        self.until > now + self.lease
    }
}

/// The blocks of a process, by lock.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<HashMap<LockName, Block>>);

/// What becomes of a grant when one of its holders leaves.
enum Passed {
    /// It was the holder's alone.
    Sole,
    /// The next one is inside.
    On { stretched: Option<(u64, Duration)> },
    /// It was no member's any more.
    Stale,
    /// Nobody is to come: the grant of this token is released.
    Over(u64),
    /// Time is up as far as is known here, and some are still to come.
    Late(Arc<Link>),
}

/// Of what the server knows a token.
pub(super) enum Known {
    /// It is the grant's, as far as is known here.
    Sole,
    /// It is of the member that is inside, and the grant has this one.
    Inside(u64),
    /// It is of a member that has left.
    Over,
}

impl Blocks {
    /// Hands a block on, for the member under this token leaves.
    fn pass(&self, name: &LockName, token: u64, now: Moment) -> Passed {
        let mut blocks = lock(&self.0);
        let Some(block) = blocks.get_mut(name) else {
            return Passed::Sole;
        };
        if !block.tokens.contains(&token) {
            return Passed::Sole;
        }
        let first = block.tokens.start;
        if block.inside.0 != token {
            return Passed::Stale;
        }
        if block.over {
            return Passed::Over(first); // once more, for the release was not confirmed
        }
        block.kept = false;
        let stretched = block.is_stretched(now).then_some((first, block.lease));
        if block.pass(name, now) {
            if stretched.is_some() {
                block.until = block.until.min(now + less_drift(block.lease));
            }
            return Passed::On { stretched };
        }
        block.over = true;
        if block.has_next(name) {
            let link = block.link.clone();
            blocks.remove(name);
            return Passed::Late(link);
        }
        Passed::Over(first)
    }

    /// How the server knows the grant of this token.
    pub(super) fn known(&self, name: &LockName, token: FencingToken) -> Known {
        let token = token.get();
        match lock(&self.0).get(name) {
            Some(block) if block.tokens.contains(&token) => {
                if block.inside.0 == token && !block.over && !block.kept {
                    Known::Inside(block.tokens.start)
                } else {
                    Known::Over
                }
            }
            _ => Known::Sole,
        }
    }

    /// The server has confirmed a grant until then; `anew`: whatever it had confirmed before.
    pub(super) fn confirm(&self, name: &LockName, first: u64, until: Moment, anew: bool) {
        if let Entry::Occupied(mut entry) = lock(&self.0).entry(name.clone())
            && entry.get().tokens.start == first
        {
            let block = entry.get_mut();
            block.until = if anew { until } else { block.until.max(until) };
            block.confirmed = block.lease;
        }
    }

    /// Knows the block of this token no more, if it is over: its release is confirmed, or its lease has ended.
    pub(super) fn forget(&self, name: &LockName, token: FencingToken) {
        let mut blocks = lock(&self.0);
        let over = |block: &Block| block.over && block.tokens.contains(&token.get());
        if blocks.get(name).is_some_and(over) {
            blocks.remove(name);
        }
    }

    /// The server holds the grant no more. Returns the link of those who are still to come.
    fn lose(&self, name: &LockName, first: u64) -> Option<Arc<Link>> {
        let mut blocks = lock(&self.0);
        let block = blocks
            .get_mut(name)
            .filter(|block| block.tokens.start == first)?;
        block.over = true;
        block.next.clear();
        Some(block.link.clone())
    }

    /// The lease of a block whose member under this token leaves, if others of it are to come.
    fn lease_of_others(&self, name: &LockName, token: FencingToken) -> Option<Duration> {
        let blocks = lock(&self.0);
        let block = blocks.get(name)?;
        let inside = block.inside.0 == token.get() && !block.over;
        (inside && block.has_next(name)).then_some(block.lease)
    }

    /// Lets nobody in; false if nobody was let in already.
    fn keep(&self, name: &LockName, token: FencingToken) -> bool {
        let mut blocks = lock(&self.0);
        let block = blocks.get_mut(name);
        let block = block.filter(|block| block.inside.0 == token.get());
        block.is_some_and(|block| !std::mem::replace(&mut block.kept, true))
    }

    /// How many members of a block are to come while one is inside.
    pub(super) fn to_come(&self, name: &LockName) -> Option<usize> {
        let blocks = lock(&self.0);
        let block = blocks.get(name).filter(|block| !block.over)?;
        Some(block.next.len())
    }

    /// Whether the owner is inside under an older token than this.
    fn is_inside(&self, name: &LockName, owner: OwnerId, token: u64) -> bool {
        let blocks = lock(&self.0);
        let block = blocks.get(name).filter(|block| !block.over);
        block.is_some_and(|block| block.inside.1 == owner && block.inside.0 < token)
    }

    /// The member inside and how many of its block are still to come, for the grant of this token.
    pub(super) fn seen(&self, name: &LockName, first: u64) -> Option<((u64, OwnerId), usize)> {
        let blocks = lock(&self.0);
        let block = blocks.get(name)?;
        let waits = |owner: &&OwnerId| block.link.lines.waits(name, **owner);
        (block.tokens.start == first)
            .then(|| (block.inside, block.next.iter().filter(waits).count()))
    }
}

impl Server {
    /// Gives those who wait here their turns of a grant that the server tells of, unless that is known already.
    pub(super) fn take_up(self: &Arc<Self>, link: &Arc<Link>, name: &LockName, standing: Standing) {
        if let [owner] = standing.owners[..] {
            // An owner that has gone meanwhile gives the grant back by itself; but not one that is inside under an older one.
            let told = link.lines.tell(name, owner, Ok(standing.sole()));
            if !told && self.blocks.is_inside(name, owner, standing.first) {
                let token = FencingToken::new(standing.first);
                self.release_behind(name, token, None, Some(standing.until()));
            }
            return;
        }
        let Some(last) = standing.owners.last().copied() else {
            return;
        };
        if *standing.inbox != *link.inbox {
            return; // an owner that has come here from another link takes its place again when this has ended
        }
        let first = standing.first;
        let (requeue, replaced) = {
            let mut blocks = lock(&self.blocks.0);
            let newest = |block: &Block| block.tokens.start >= first;
            if blocks.get(name).is_some_and(newest) {
                return;
            }
            let mut block = Block {
                link: link.clone(),
                tokens: first..first + standing.owners.len() as u64,
                lease: standing.lease,
                inside: (first, last),
                until: standing.until(),
                confirmed: standing.validity,
                next: standing.owners.into(),
                kept: false,
                over: false,
            };
            block.over = !block.pass(name, clock::now());
            let token = FencingToken::new(block.inside.0);
            if block.over && block.has_next(name) {
                // Time is up, as far as is known here.
                (true, blocks.remove(name))
            } else {
                if block.over {
                    // All of them have gone: it is given back.
                    self.release_behind(name, token, None, Some(block.until));
                }
                (false, blocks.insert(name.clone(), block))
            }
        };
        if let Some(replaced) = replaced.filter(|replaced| !replaced.over) {
            // The server has lost it.
            replaced.link.requeue(self, Some(name));
        }
        if requeue {
            link.requeue(self, Some(name));
        }
    }

    /// Releases what the holder under this token has: in memory, where another one of its block is to come.
    pub(in crate::backend) async fn release(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        keep_until: Option<Moment>,
    ) -> Result<Released, BackendError> {
        let keep_until = keep_until.filter(|until| *until > clock::now());
        if let Some(until) = keep_until
            && let Some(lease) = self.blocks.lease_of_others(name, token)
        {
            return self.keep_block(name, token, until, lease).await;
        }
        let first = match self.blocks.pass(name, token.get(), clock::now()) {
            Passed::Sole => return self.release_grant(name, token, keep_until).await,
            Passed::Stale => return Ok(Released::NotHeld),
            Passed::On { stretched: None } => return Ok(Released::Released),
            Passed::On {
                stretched: Some((first, lease)),
            } => {
                self.shorten(name, first, lease);
                return Ok(Released::Released);
            }
            Passed::Over(first) => first,
            Passed::Late(link) => {
                // They take their places again: in this grant, where the server still has it. Released, it would go to others.
                link.requeue(self, Some(name));
                return Ok(Released::NotHeld);
            }
        };
        let grant = FencingToken::new(first);
        let released = self.release_grant(name, grant, keep_until).await;
        if released.is_ok() {
            self.blocks.forget(name, grant);
        }
        released
    }

    /// A block's grant is gone, whoever of it is inside.
    pub(super) fn lose_block(self: &Arc<Self>, name: &LockName, first: u64) {
        if let Some(link) = self.blocks.lose(name, first) {
            link.requeue(self, Some(name));
        }
    }

    /// Lets nobody in until then, and then the next one. The server keeps the lock for as long, should this process end.
    async fn keep_block(
        self: &Arc<Self>,
        name: &LockName,
        token: FencingToken,
        until: Moment,
        lease: Duration,
    ) -> Result<Released, BackendError> {
        let lease = lease.max(until.since(clock::now()) + CLAIM);
        match self.blocks.known(name, token) {
            Known::Inside(_) if self.renew(name, token, lease, "").await? == Renewed::NotHeld => {
                return Ok(Released::NotHeld);
            }
            _ => {}
        }
        if !self.blocks.keep(name, token) {
            return Ok(Released::Released); // asked once more
        }
        engine::spawn(self.release_at(until, name.clone(), token));
        Ok(Released::Released)
    }

    fn release_at(
        self: &Arc<Self>,
        moment: Moment,
        name: LockName,
        token: FencingToken,
    ) -> BoxFuture<'static, ()> {
        let (server, duty) = (self.clone(), self.begin_duty());
        Box::pin(async move {
            clock::sleep_until(moment).await;
            let ends = Some(moment + CLAIM);
            server.release_until(name, token, None, ends).await;
            drop(duty);
        })
    }

    /// The lease of a grant begins anew behind the one that has just entered, for whoever was inside before had asked for more.
    fn shorten(self: &Arc<Self>, name: &LockName, first: u64, lease: Duration) {
        let (server, name, duty) = (self.clone(), name.clone(), self.begin_duty());
        engine::spawn(async move {
            let until = clock::now() + lease;
            let token = FencingToken::new(first);
            let shortening = server.renew_grant(&name, token, lease, "anew");
            let _ = clock::timeout_at(until, shortening).await;
            drop(duty);
        });
    }
}
