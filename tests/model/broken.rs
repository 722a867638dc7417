//! Variants of the protocol, each with one rule removed. The checker has to find a broken promise in each variant.
//! `main.rs` explains the terms.

/// A rule of the protocol that is removed. The comment of each variant describes the defective protocol without the
/// rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// The local deadline of a grant counts from the arrival of the reply, not from the sending of the request.
    DeadlineFromTheReply,
    /// The local deadline of a pushed grant counts from the push's arrival, and not from an earlier command.
    DeadlineFromThePush,
    /// A local deadline contains no allowance for drift between the clocks of the process and the server.
    NoDrift,
    /// A release frees the lock without comparing the release's token with the token of the grant.
    ReleaseOfAnyToken,
    /// A renewal by an owner that has lost its grant creates the grant again.
    RenewalResurrects,
    /// After a reconnect, the process resends requests without a time limit, although the server may still read earlier
    /// copies of these requests from the old connection.
    LateAcquireAccepted,
    /// An owner enters although its session's connection has broken. The server can still read a request for this owner
    /// from that connection.
    GateOpensWithTheBreak,
    /// When an owner that already has a grant sends its request again, the server queues the owner.
    QueuesBehindItself,
    /// When a batch is sent again and one of its owners already has a grant, the server queues that owner.
    BatchQueuesBehindItself,
    /// An owner gives back its turn without also sending `leave`. If the server later reads an older request of this
    /// owner, the server grants the owner the lock.
    OfferGivenBackAlone,
    /// A caller that is cancelled or gives up sends no `leave` in the background.
    CancelWithoutLeave,
    /// The script `leave` removes the caller from the queue, but does not give back a grant that the caller may already
    /// have.
    LeaveChecksTheQueueOnly,
    /// Sessions send no probes, so they do not find grants whose push was lost.
    NoProbe,
    /// A waiter whose `wait` is over, or that cannot be notified of its grant, stays at the head of the queue.
    DeadHeadStays,
    /// The lock is granted to a waiter that cannot be notified of the grant.
    GivenUnheard,
    /// Until the owner confirms a grant from a push, the grant lasts for its whole lease, not only for a claim (2 s).
    PushedForTheWholeLease,
    /// A caller takes a free lock although other callers queue for it.
    Barging,
    /// A waiter that queues again goes to the end of the queue, not to its old place.
    PlaceForgotten,
    /// A waiter's place is always the server's time. After the clock was set back, a new waiter overtakes older
    /// waiters.
    PlaceByClockAlone,
    /// A waiter's `wait` begins again with each new connection.
    WaitBeginsAgain,
    /// When a member leaves its cohort, the server takes the grant from the whole cohort and grants the lock to the
    /// next waiter.
    LeaveFreesTheCohort,
    /// When the last waiting member of a cohort leaves, the grant is released although another member holds the lock.
    LastWaiterReleases,
    /// When a message describes a cohort that the process knows already, the cohort's turns begin again with the first
    /// member.
    KnownCohortTakenUpAgain,
    /// If a member of a cohort no longer waits, this member is still offered its turn, instead of being passed over.
    SkippedTurnStays,
    /// The next member is offered its turn even if the cohort's local deadline has passed. The cohort's new local
    /// deadline is one claim (2 s) after the offer.
    PassIgnoresDeadline,
    /// The members of a lost cohort keep waiting for their turns instead of queueing again.
    LostCohortStaysAway,
    /// The grant of a cohort whose local deadline has passed is released before the cohort's waiting members queue
    /// again. Waiters behind the cohort then get the lock before these members.
    LostCohortReleasedFirst,
    /// A caller that queues again with an old place sends its own request instead of a batch, as if it had never
    /// queued. The request gives a free lock to the head of the queue, although the caller's old place is before the
    /// head.
    HeadBeforeWhoComesBack,
    /// A caller that never learned its place does not queue again when its cohort or its connection is lost.
    ComesBackToAPlaceOnly,
    /// A caller queues again at its old place although the server's clock has jumped ahead. By that clock, the `wait`
    /// of a caller at this place is already over.
    DeadPlaceStands,
    /// A caller that has an offer from an older grant keeps that offer, although the server has since granted the
    /// caller the lock again.
    OlderGrantStands,
    /// After a reconnect, a caller in a batch also sends its own request.
    AloneAndInABatch,
    /// The server puts waiters of several processes into one cohort.
    CohortOfTwoSessions,
    /// The server puts waiters with different leases into one cohort.
    CohortOfTwoLeases,
    /// If no member of a cohort is waiting, the cohort's grant is not released.
    EmptyCohortStays,
    /// The counter of fencing tokens rises by only one for a whole cohort.
    OneTokenForACohort,
    /// All members of a cohort have the same token.
    MembersShareAToken,
    /// A member of a cohort takes its offer and enters while a batch that includes this member is unanswered.
    EntersBesideItsRequest,
    /// A caller renews the grant of its offer by itself. The caller enters at its next poll after the server's answer,
    /// even if it has lost its turn in the meantime. A turn that a caller does not take is never passed on.
    AnswerSeats,
    /// A caller that was notified of its turn enters although the offer has been passed on.
    EntersWithoutOffer,
    /// An offer that its member does not take is renewed and never passed on.
    OfferStands,
    /// An answer to a renewal extends the hold even if it arrives after the local deadline.
    AnswerRevives,
    /// An owner that has not yet read the reply to its own request is offered a turn, because the reply to another
    /// request describes the same grant.
    UnreadGrantOffered,
    /// If a caller does not read the reply that contains its grant, the grant lasts for its whole lease.
    DirectGrantStands,
    /// A caller reads its reply and enters, although the engine has already given back the grant in that reply.
    RevokedEnters,
    /// A probe checks whether an arbitrary waiter of the process is still queued, and not whether the oldest waiter is.
    ProbeAsksForAnybody,
    /// If the server has lost the counter of fencing tokens, the counter starts again at one.
    CounterStartsAgain,
}
