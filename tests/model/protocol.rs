//! The protocol as a model for the checker: the possible actions in each state, and their results.

use std::time::Duration;

use lock_core::lease::Moment;
use stateright::{Model, Property};

use crate::{
    attempt_state::AttemptState,
    broken::Broken,
    cohorts::Chore,
    properties::{self, Promise},
    scenario::Scenario,
    server::{Server, micros},
    state::{
        Attempt, Behind, Caller, CallerId, Event, Home, Observed, Phase, Process, ProcessId,
        Session, Stamp, State, Tick,
    },
};

/// The time at the start of each run. `START` is larger than [`JUMP`], so that the server's clock can be set back.
const START: Tick = 3;
/// The number of ticks by which the server's clock jumps.
const JUMP: Tick = 2;

pub(crate) fn moment_of(stamp: Stamp) -> Moment {
    Moment::new(Duration::from_millis(stamp.into()))
}

#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) scenario: Scenario,
    pub(crate) broken: Option<Broken>,
    pub(crate) promises: Vec<Promise>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(CallerId),
    Finish(CallerId),
    /// The server reads the next request of a session.
    Serve(ProcessId),
    ServeHome(ProcessId, usize),
    /// The server reads an unread request of a connection that the process has closed.
    ServeOld(ProcessId),
    /// A process reads the next push or reply of its session.
    Hear(ProcessId),
    HearHome(ProcessId, usize),
    StopWaiting(CallerId),
    LosePatience(CallerId),
    Tend(CallerId),
    /// The future of a slow caller (one that is polled late or never) is polled.
    Poll(CallerId),
    /// The engine gives up the grant in a reply that a slow caller (one that is polled late or never) has not read.
    Revoke(CallerId),
    /// The heartbeat makes the waiting members of a cohort queue again, passes on the cohort's offer, or renews the
    /// grant of the offer.
    TendCohort(ProcessId, Chore),
    /// The caller's hold is lost, because its local deadline has passed.
    Lose(CallerId),
    /// The heartbeat probes on behalf of a waiter.
    Probe(CallerId),
    Reconnect(ProcessId),
    /// The server notices that an old connection is closed.
    Notice(ProcessId),
    Tick,
    Cancel(CallerId),
    Crash(ProcessId),
    Break(ProcessId),
    LosePush(ProcessId),
    LoseReply(ProcessId, usize),
    LoseState,
    /// The server restarts without its state.
    Restart,
    JumpAhead,
    JumpBack,
    Lag(ProcessId),
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Cancel(_)
                | Self::Crash(_)
                | Self::Break(_)
                | Self::LosePush(_)
                | Self::LoseReply(..)
                | Self::LoseState
                | Self::Restart
                | Self::JumpAhead
                | Self::JumpBack
                | Self::Lag(_)
        )
    }
}

impl Protocol {
    pub(crate) fn new(scenario: Scenario, broken: Option<Broken>) -> Self {
        Self {
            promises: properties::promises(&scenario),
            scenario,
            broken,
        }
    }

    pub(crate) fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    pub(crate) fn process_of(&self, id: CallerId) -> ProcessId {
        self.scenario.terms.process_of(id)
    }

    /// Returns the time on the clock of a process.
    pub(crate) fn moment(&self, state: &State, process: ProcessId) -> Moment {
        moment_of(self.stamp(state, process))
    }

    pub(crate) fn stamp(&self, state: &State, process: ProcessId) -> Stamp {
        let now = self.scenario.terms.millis(state.now) - u64::from(state.processes[process].lag);
        Stamp::try_from(now).unwrap_or(Stamp::MAX)
    }

    pub(crate) fn clock_of(&self, state: &State, id: CallerId) -> Moment {
        self.moment(state, self.process_of(id))
    }

    pub(crate) fn callers_of(&self, process: ProcessId) -> impl Iterator<Item = CallerId> {
        (0..)
            .zip(&self.scenario.terms.callers)
            .filter_map(move |(id, of)| (*of == process).then_some(id))
    }

    /// Returns the latest time at which a caller may be waiting.
    fn last_queue(&self) -> Tick {
        let (terms, faults) = (&self.scenario.terms, &self.scenario.faults);
        let spare = faults.late + 2 * faults.jumps_back + faults.lags + faults.state_losses + 2;
        START + terms.begin_within + terms.wait + spare.cast_signed()
    }

    /// Returns the time at which all calls have to be over and the server has to be empty.
    pub(crate) fn horizon(&self) -> Tick {
        let terms = &self.scenario.terms;
        self.last_queue()
            + (2 * terms.wait + 1).max(terms.body + terms.longest_lease() + terms.claim)
    }

    fn may_begin(&self, state: &State, id: CallerId) -> bool {
        let index = usize::from(id);
        state.callers[index].phase == Phase::Idle
            && state.now <= START + self.scenario.terms.begin_within
            && state.processes[self.scenario.terms.process_of(id)].alive
            && !self.scenario.terms.is_next_owner(id)
            // Callers begin in the order of their numbers.
            && (index == 0 || state.callers[index - 1].phase != Phase::Idle)
    }

    /// Adds the actions that are due. Normally, all due actions happen before the next tick. If the next tick begins
    /// while an action is still due, the action is late.
    fn due(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, process) in state.processes.iter().enumerate() {
            if !process.main.requests.is_empty() {
                actions.push(Action::Serve(id));
            }
            if !process.main.events.is_empty() {
                actions.push(Action::Hear(id));
            }
            actions
                .extend((0..process.home.requests.len()).map(|index| Action::ServeHome(id, index)));
            actions.extend((0..process.home.events.len()).map(|index| Action::HearHome(id, index)));
            if process.alive && !process.main.up {
                actions.push(Action::Reconnect(id));
            }
            actions.extend(self.awaited(state, id).into_iter().map(Action::Probe));
            let chore = self.chore(state, id).filter(|_| process.alive);
            actions.extend(chore.map(|chore| Action::TendCohort(id, chore)));
        }
        for (id, caller) in (0..).zip(&state.callers) {
            let slow = self.scenario.terms.is_slow(id);
            if !slow && self.waited_enough(state, id) {
                actions.push(Action::StopWaiting(id));
            }
            if self.is_unread(state, id) {
                actions.push(Action::Revoke(id));
            }
            if self.is_impatient(state, id) {
                actions.push(Action::LosePatience(id));
            }
            if self.tending(state, id).is_some() {
                actions.push(Action::Tend(id));
            }
            if let Phase::Inside(hold) = caller.phase {
                if self.clock_of(state, id) >= hold.until && !slow {
                    actions.push(Action::Lose(id));
                } else if state.now >= hold.since + self.scenario.terms.body {
                    actions.push(Action::Finish(id));
                }
            }
        }
    }

    /// Adds the actions that may happen at any time or not at all.
    fn free(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, caller) in (0..).zip(&state.callers) {
            if self.may_begin(state, id) {
                actions.push(Action::Begin(id));
            }
            if self.scenario.terms.is_slow(id) {
                if self.may_poll(state, id) {
                    actions.push(Action::Poll(id));
                }
                if self.waited_enough(state, id) {
                    actions.push(Action::StopWaiting(id));
                }
                let now = self.clock_of(state, id);
                if matches!(caller.phase, Phase::Inside(hold) if now >= hold.until) {
                    actions.push(Action::Lose(id));
                }
            }
            if let Phase::Inside(hold) = caller.phase {
                let in_time = self.clock_of(state, id) < hold.until;
                if in_time && state.now < hold.since + self.scenario.terms.body {
                    actions.push(Action::Finish(id));
                }
            }
        }
        for (id, process) in state.processes.iter().enumerate() {
            if let Some(old) = &process.old {
                actions.push(Action::Notice(id));
                if !old.is_empty() {
                    actions.push(Action::ServeOld(id));
                }
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.faults;
        if left.any == 0 {
            return;
        }
        for (id, caller) in (0..).zip(&state.callers) {
            let called = !matches!(caller.phase, Phase::Idle | Phase::Ended(_));
            if called && left.cancels > 0 {
                actions.push(Action::Cancel(id));
            }
        }
        for (id, process) in state.processes.iter().enumerate() {
            if !process.alive {
                continue;
            }
            let concerned = self.concerns(state, id);
            if left.crashes > 0 && concerned {
                actions.push(Action::Crash(id));
            }
            if left.breaks > 0 && process.main.up && concerned {
                actions.push(Action::Break(id));
            }
            if left.lost_pushes > 0 && matches!(process.main.events.first(), Some(Event::Push(_))) {
                actions.push(Action::LosePush(id));
            }
            if left.lost_replies > 0 {
                actions.extend(
                    (0..process.home.events.len()).map(|index| Action::LoseReply(id, index)),
                );
            }
            if left.lags > 0 && concerned {
                actions.push(Action::Lag(id));
            }
        }
        let begun = state.callers[0].phase != Phase::Idle;
        for (more, action) in [
            (left.state_losses, Action::LoseState),
            (left.restarts, Action::Restart),
            (left.jumps_ahead, Action::JumpAhead),
            (left.jumps_back, Action::JumpBack),
        ] {
            if more > 0 && begun {
                actions.push(action);
            }
        }
    }

    /// Returns whether any call of the process has begun and not yet ended.
    fn concerns(&self, state: &State, process: ProcessId) -> bool {
        (0..).zip(&state.callers).any(|(id, caller)| {
            self.scenario.terms.process_of(id) == process
                && caller.phase != Phase::Idle
                && !caller.has_ended()
        })
    }

    fn tick(&self, state: &mut State) {
        let mut due = Vec::new();
        self.due(state, &mut due);
        if due.is_empty() {
            let neglected = properties::somebody_is_neglected(self, state);
            state.observed.neglected = if neglected {
                state.observed.neglected + 1
            } else {
                0
            };
        } else {
            state.faults.late -= 1;
            state.observed.neglected = 0;
        }
        state.now += 1;
        state.server.clock += 1;
        state.server.into_tick = 0;
        state.server.expire();
        self.give_up_releases(state);
        for process in &mut state.processes {
            process.probed = false;
        }
        if state.now > self.last_queue() {
            for process in &mut state.processes {
                process.old = None; // the server's TCP keepalive has closed the old connection
            }
        }
    }

    /// Makes the server lose its state, while one tick passes.
    fn lose_state(&self, state: &mut State) {
        state.server.clock += 1;
        state.now += 1;
        state.server.lose_state();
        for process in &mut state.processes {
            process.probed = false;
        }
        for caller in &mut state.callers {
            caller.joined = None;
        }
    }

    fn restart(&self, state: &mut State) {
        self.lose_state(state);
        for id in 0..state.processes.len() {
            if state.processes[id].alive {
                self.break_main(state, id);
            }
            let floor = micros(state.server.clock);
            let this = &mut state.processes[id];
            this.old = None;
            this.home.floor = floor;
        }
    }

    /// Gives up the background releases that have reached their time limits.
    fn give_up_releases(&self, state: &mut State) {
        for process in 0..state.processes.len() {
            let now = state.now;
            let letting_go = &mut state.processes[process].letting_go;
            let given_up: Vec<_> = letting_go
                .extract_if(.., |(_, until)| *until <= now)
                .collect();
            for (first, _) in given_up {
                self.forget(state, process, first);
            }
            self.forget_released(state, process);
        }
    }

    pub(crate) fn is_over(&self, state: &State) -> bool {
        let ended = (0..).zip(&state.callers).all(|(id, caller)| {
            // A slow caller that is never polled again never ends.
            let forgotten = self.scenario.terms.is_slow(id) && caller.waits();
            let never = caller.phase == Phase::Idle && !self.may_begin(state, id);
            caller.has_ended() || never || forgotten && caller.behind.is_none()
        });
        ended && state.server.grant.is_none() && state.server.queue.is_empty()
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let terms = &self.scenario.terms;
        let floor = micros(START);
        let process = Process {
            alive: true,
            lag: 0,
            main: Session {
                up: true,
                floor,
                answered: u16::try_from(terms.millis(START)).unwrap_or(0),
                sending_batch: false,
                requests: Vec::new(),
                events: Vec::new(),
            },
            old: None,
            home: Home {
                floor,
                requests: Vec::new(),
                events: Vec::new(),
            },
            entry: None,
            letting_go: Vec::new(),
            probed: false,
            probing: false,
        };
        let caller = Caller {
            phase: Phase::Idle,
            wait_until: 0,
            began: 0,
            asked: 0,
            place: None,
            joined: None,
            attempt: Attempt(AttemptState::new()),
            told: None,
            joins: false,
            resending: false,
            carried: None,
            behind: None,
        };
        vec![State {
            now: START,
            server: Server::new(START),
            processes: vec![process; terms.processes()],
            callers: vec![caller; terms.callers.len()],
            faults: self.scenario.faults,
            observed: Observed::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if properties::is_broken(self, state) {
            return; // the states after a broken promise are irrelevant
        }
        self.due(state, actions);
        let in_time = actions.is_empty();
        self.free(state, actions);
        self.faults(state, actions);
        if (in_time || state.faults.late > 0) && !self.is_over(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(id) => self.begin(&mut state, id),
            Action::Finish(id) => self.finish(&mut state, id),
            Action::Serve(process) => self.serve(&mut state, process),
            Action::ServeHome(process, index) => self.serve_home(&mut state, process, index),
            Action::ServeOld(process) => self.serve_old(&mut state, process),
            Action::Hear(process) => self.hear(&mut state, process),
            Action::HearHome(process, index) => {
                let heard = state.processes[process].home.events.remove(index);
                if let Event::Reply {
                    caller,
                    sent,
                    reply,
                } = heard
                {
                    self.hear_reply(&mut state, caller, sent, reply);
                }
            }
            Action::StopWaiting(id) => self.stop_waiting(&mut state, id),
            Action::LosePatience(id) => self.lose_patience(&mut state, id),
            Action::Tend(id) => self.tend(&mut state, id),
            Action::Poll(id) => self.poll(&mut state, id),
            Action::Revoke(id) => self.revoke(&mut state, id),
            Action::TendCohort(process, chore) => match chore {
                Chore::PassOn => self.pass_on(&mut state, process),
                Chore::Renew(lease) => self.renew_offer(&mut state, process, lease),
                Chore::Suspend => self.suspend(&mut state, process),
            },
            Action::Lose(id) => self.lose(&mut state, id),
            Action::Probe(id) => self.probe(&mut state, id),
            Action::Reconnect(process) => self.reconnect(&mut state, process),
            Action::Notice(process) => state.processes[process].old = None,
            Action::Tick => self.tick(&mut state),
            Action::Cancel(id) => {
                state.faults.cancels -= 1;
                self.cancel(&mut state, id);
            }
            Action::Crash(process) => {
                state.faults.crashes -= 1;
                self.crash(&mut state, process);
            }
            Action::Break(process) => {
                state.faults.breaks -= 1;
                self.break_main(&mut state, process);
            }
            Action::LosePush(process) => {
                state.faults.lost_pushes -= 1;
                if let Event::Push(push) = state.processes[process].main.events.remove(0) {
                    state.observed.lost_push = state.observed.lost_push.max(Some(push.token));
                }
            }
            Action::LoseReply(process, index) => {
                state.faults.lost_replies -= 1;
                let lost = state.processes[process].home.events.remove(index);
                if let Event::Reply { caller, reply, .. } = lost {
                    self.answer_lost(&mut state, caller, reply);
                }
            }
            Action::LoseState => {
                state.faults.state_losses -= 1;
                self.lose_state(&mut state);
            }
            Action::Restart => {
                state.faults.restarts -= 1;
                self.restart(&mut state);
            }
            Action::JumpAhead => {
                state.faults.jumps_ahead -= 1;
                state.server.clock += JUMP;
                state.server.expire();
            }
            Action::JumpBack => {
                state.faults.jumps_back -= 1;
                state.server.clock -= JUMP;
            }
            Action::Lag(process) => {
                state.faults.lags -= 1;
                state.processes[process].lag += 1;
            }
        }
        if action.is_fault() {
            state.faults.any -= 1;
        }
        for (id, caller) in (0..).zip(&mut state.callers) {
            forget_what_is_over(caller, state.server.is_queued(id));
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.now <= self.horizon()
    }
}

/// Clears the values on which no later step depends, so that the checker does not visit states that differ only in such
/// values.
fn forget_what_is_over(caller: &mut Caller, is_queued: bool) {
    if let Phase::Ended(_) = caller.phase {
        caller.wait_until = 0;
        caller.began = 0;
        caller.asked = 0;
        caller.place = None;
        caller.attempt = Attempt(AttemptState::new());
        caller.told = None;
        caller.joins = false;
        if !matches!(
            caller.behind,
            Some(Behind::Gate(_) | Behind::Leave { .. } | Behind::LeaveFromHome { .. })
        ) {
            caller.carried = None;
        }
    }
    // While the caller is in the server's queue, the check for overtaken callers needs the caller's number in the order
    // of joining.
    if caller.has_ended() && !is_queued {
        caller.joined = None;
    }
}
