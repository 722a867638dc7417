//! Blocks: a grant that several neighbours of the queue share, all of one process. The process hands it on from one to
//! the next in memory, in the order of the queue, and releases it once, at the end.
//!
//! Each member has a token of its own, the first one of the grant and those after it. The server knows the grant by its
//! first token. All members have asked for the same lease, so that a crash frees the lock as soon as any of them
//! allows.

use std::{
    collections::{HashMap, VecDeque},
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

    pub(super) fn until(&self) -> Moment {
        self.after + less_drift(self.validity)
    }

    /// What a body needs two thirds of to start on: of a claim, where less is left of the grant.
    fn confirmed(&self) -> Duration {
        self.validity.max(self.lease.min(CLAIM))
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
            confirmed: self.confirmed(),
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

/// How far a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// One is inside.
    Running,
    /// Nobody is inside any more, and the lock is still to be kept for a while.
    Kept,
    /// All have had their turn, or the server has another grant. It is known until its release is confirmed, for that is
    /// by its first token.
    Over,
    /// It is released, and known while anybody waits: what is heard of it late counts no more.
    Released,
    /// Time was up, as far as is known here, and those who were to come ask anew: where the server still has the grant, they
    /// share it again. It is known for the one that was inside.
    Late,
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
    state: State,
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

    /// Whether it is the one that is inside, or was the last to be.
    fn is_of(&self, token: u64) -> bool {
        self.inside.0 == token
    }

    fn is_over(&self) -> bool {
        !matches!(self.state, State::Running | State::Kept)
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
    On,
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
        if !block.is_of(token) {
            return Passed::Stale;
        }
        match block.state {
            State::Running | State::Kept => {}
            State::Over => return Passed::Over(first), // once more, for the release was not confirmed
            State::Released => return Passed::Stale,
            State::Late => {
                blocks.remove(name);
                return Passed::Stale;
            }
        }
        block.state = State::Running;
        if block.pass(name, now) {
            return Passed::On;
        }
        if block.has_next(name) {
            let link = block.link.clone();
            blocks.remove(name);
            return Passed::Late(link);
        }
        block.state = State::Over;
        Passed::Over(first)
    }

    /// The lease of a block that is kept for longer than that, for the member inside that leaves, if others are to come.
    fn stretched(&self, name: &LockName, token: u64, now: Moment) -> Option<Duration> {
        let mut blocks = lock(&self.0);
        let block = blocks.get_mut(name)?;
        if !block.is_of(token) || block.is_over() {
            return None;
        }
        block.state = State::Running;
        (block.is_stretched(now) && block.has_next(name)).then_some(block.lease)
    }

    /// Of the blocks of a link, those whose time is up while others are to come: the one inside has not noticed. Those
    /// that nobody asks about any more are forgotten.
    pub(super) fn late(&self, link: &Arc<Link>, now: Moment) -> Vec<LockName> {
        let mut blocks = lock(&self.0);
        blocks.retain(|name, block| {
            let known = block.state != State::Released || block.link.lines.are_at(name);
            known || !Arc::ptr_eq(&block.link, link)
        });
        let late = blocks.iter_mut().filter(|(name, block)| {
            let ours = Arc::ptr_eq(&block.link, link) && !block.is_over();
            ours && block.until <= now && block.has_next(name)
        });
        let late = late.map(|(name, block)| {
            block.state = State::Late;
            block.next.clear();
            name.clone()
        });
        late.collect()
    }

    /// How the server knows the grant of this token.
    pub(super) fn known(&self, name: &LockName, token: FencingToken) -> Known {
        let token = token.get();
        match lock(&self.0).get(name) {
            Some(block) if block.tokens.contains(&token) => {
                if block.is_of(token) && block.state == State::Running {
                    Known::Inside(block.tokens.start)
                } else {
                    Known::Over
                }
            }
            _ => Known::Sole,
        }
    }

    /// The server has confirmed the grant until then, to the member under this token; `anew`: whatever it had confirmed
    /// before. What it had asked for and is answered when it has left counts no more: its lease may have begun anew.
    pub(super) fn confirm(&self, name: &LockName, token: FencingToken, until: Moment, anew: bool) {
        if let Some(block) = lock(&self.0).get_mut(name)
            && block.is_of(token.get())
            && !block.is_over()
        {
            block.until = if anew { until } else { block.until.max(until) };
            block.confirmed = block.lease;
        }
    }

    /// Knows the block of this token no more, if it is over: its release is confirmed, or its lease has ended.
    pub(super) fn forget(&self, name: &LockName, token: FencingToken) {
        let mut blocks = lock(&self.0);
        let Some(block) = blocks
            .get_mut(name)
            .filter(|block| block.is_over() && block.tokens.contains(&token.get()))
        else {
            return;
        };
        if block.link.lines.are_at(name) {
            block.state = State::Released;
        } else {
            blocks.remove(name);
        }
    }

    /// The server holds the grant no more. Returns the link of those who are still to come.
    fn lose(&self, name: &LockName, first: u64) -> Option<Arc<Link>> {
        let mut blocks = lock(&self.0);
        let block = blocks
            .get_mut(name)
            .filter(|block| block.tokens.start == first)?;
        block.state = State::Over;
        block.next.clear();
        Some(block.link.clone())
    }

    /// The lease of a block whose member under this token leaves, if others of it are to come.
    fn lease_of_others(&self, name: &LockName, token: FencingToken) -> Option<Duration> {
        let blocks = lock(&self.0);
        let block = blocks.get(name)?;
        let inside = block.is_of(token.get()) && !block.is_over();
        (inside && block.has_next(name)).then_some(block.lease)
    }

    /// Lets nobody in; false if nobody was let in already.
    fn keep(&self, name: &LockName, token: FencingToken) -> bool {
        let mut blocks = lock(&self.0);
        let block = blocks.get_mut(name);
        let block = block.filter(|block| block.is_of(token.get()) && !block.is_over());
        block
            .is_some_and(|block| std::mem::replace(&mut block.state, State::Kept) == State::Running)
    }

    /// Ends a block that is kept. Returns the token that its grant has.
    fn end(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        let mut blocks = lock(&self.0);
        let block = blocks.get_mut(name);
        let block = block.filter(|block| block.is_of(token.get()) && !block.is_over())?;
        block.state = State::Over;
        Some(FencingToken::new(block.tokens.start))
    }

    /// How many members of a block are to come while one is inside.
    pub(super) fn to_come(&self, name: &LockName) -> Option<usize> {
        let blocks = lock(&self.0);
        let block = blocks.get(name).filter(|block| !block.is_over())?;
        Some(block.next.len())
    }

    /// Whether the owner is inside under an older token than this.
    fn is_inside(&self, name: &LockName, owner: OwnerId, token: u64) -> bool {
        let blocks = lock(&self.0);
        let block = blocks.get(name).filter(|block| !block.is_over());
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
                engine::spawn(
                    self.clone()
                        .give_back(name.clone(), token, standing.until()),
                );
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
            let newest = |block: &Block| {
                let (known, late) = (block.tokens.start, block.state == State::Late);
                known > first || (known == first && !late)
            };
            if blocks.get(name).is_some_and(newest) {
                return;
            }
            let mut block = Block {
                link: link.clone(),
                tokens: first..first + standing.owners.len() as u64,
                lease: standing.lease,
                inside: (first, last),
                until: standing.until(),
                confirmed: standing.confirmed(),
                next: standing.owners.into(),
                state: State::Running,
            };
            let passed = block.pass(name, clock::now());
            if !passed && block.has_next(name) {
                // Time is up, as far as is known here.
                (true, blocks.remove(name))
            } else {
                if !passed {
                    // All of them have gone: it is given back.
                    block.state = State::Over;
                    let token = FencingToken::new(block.inside.0);
                    engine::spawn(self.clone().give_back(name.clone(), token, block.until));
                }
                (false, blocks.insert(name.clone(), block))
            }
        };
        if let Some(replaced) = replaced.filter(|replaced| !replaced.is_over()) {
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
        while let Some(lease) = self.blocks.stretched(name, token.get(), clock::now()) {
            // Whoever comes next has asked for less. It begins before the next one enters, who may extend it again.
            if self.renew(name, token, lease, "anew").await? == Renewed::NotHeld {
                break;
            }
        }
        let first = match self.blocks.pass(name, token.get(), clock::now()) {
            Passed::Sole => return self.release_grant(name, token, keep_until).await,
            Passed::Stale => return Ok(Released::NotHeld),
            Passed::On => return Ok(Released::Released),
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

    /// Gives back a turn that nobody takes.
    pub(super) fn give_back(
        self: Arc<Self>,
        name: LockName,
        token: FencingToken,
        lease_ends: Moment,
    ) -> BoxFuture<'static, ()> {
        let duty = self.begin_duty();
        Box::pin(async move {
            let until = lease_ends.max(clock::now() + CLAIM);
            let _ = clock::timeout_at(until, self.release(&name, token, None)).await;
            self.blocks.forget(&name, token);
            drop(duty);
        })
    }

    /// What the member under this token has is gone.
    pub(super) fn lose(self: &Arc<Self>, name: &LockName, token: FencingToken) {
        if let Known::Inside(first) = self.blocks.known(name, token) {
            self.lose_block(name, first);
            self.blocks.forget(name, token);
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
            let ends = moment + CLAIM;
            tokio::select! {
                () = clock::sleep_until(moment) => server.give_back(name, token, ends).await,
                // Nobody is to come any more: the server keeps it alone.
                () = server.until_refusing() => {
                    if let Some(first) = server.blocks.end(&name, token) {
                        let keeping = server.release_grant(&name, first, Some(moment));
                        let _ = clock::timeout_at(ends, keeping).await;
                        server.blocks.forget(&name, first);
                    }
                }
            }
            drop(duty);
        })
    }
}
