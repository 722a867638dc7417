//! Mutants of the protocol, each with one rule removed, which the checker has to detect.

/// The rule that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// The local deadline of a reply counts from its arrival.
    DeadlineFromTheReply,
    /// The local deadline of a pushed grant counts from its arrival, and the grant is not confirmed.
    DeadlineFromThePush,
    /// The process's clock and the server's are assumed to run at the same rate.
    NoDrift,
    /// A release does not compare the token.
    ReleaseOfAnyToken,
    /// A renewal writes the grant of an owner that has lost it.
    RenewalResurrects,
    /// An old connection is not closed before requests are sent again over a new one, and the requests have no
    /// deadline.
    LateAcquireAccepted,
    /// An owner enters while the session's own request for it is on a connection that broke, and may still be read.
    GateOpensWithTheBreak,
    /// An owner whose request is sent again does not find its existing grant, and queues.
    QueuesBehindItself,
    /// The same in a batch.
    BatchQueuesBehindItself,
    /// An owner that gives back its turn does not leave as well, so a request for it that is read later may get it the
    /// lock.
    OfferGivenBackAlone,
    /// A cancelled call sends nothing.
    CancelWithoutLeave,
    /// Leaving removes the caller from the queue but ignores that it may have been granted the lock.
    LeaveChecksTheQueueOnly,
    /// Probes are not sent.
    NoProbe,
    /// A waiter that cannot hear its grant stays at the head.
    DeadHeadStays,
    /// A waiter that cannot hear its grant is granted the lock.
    GivenUnheard,
    /// A pushed grant stands for its whole lease.
    PushedForTheWholeLease,
    /// A free lock is taken while other callers queue for it.
    Barging,
    /// A waiter that comes back queues at the end.
    PlaceForgotten,
    /// The place in the queue is the server's time alone.
    PlaceByClockAlone,
    /// A waiter's wait restarts with each connection.
    WaitBeginsAgain,
    /// An owner of a cohort that leaves passes on the whole grant.
    LeaveFreesTheCohort,
    /// The last waiter of a cohort that leaves releases the grant although another member is inside.
    LastWaiterReleases,
    /// A known cohort that is described again is passed on from its beginning.
    KnownCohortTakenUpAgain,
    /// A member that has left is given its turn nevertheless.
    SkippedTurnStays,
    /// A member is given its turn for a claim from now on, whatever the deadline of the cohort.
    PassIgnoresDeadline,
    /// The members of a lost cohort go on waiting.
    LostCohortStaysAway,
    /// A cohort whose deadline has passed is released even if members wait, so a late description of it is taken up.
    LostCohortReleasedFirst,
    /// A caller that comes back with an old place asks alone, as in its first request, although a free lock belongs to
    /// the head of the queue.
    HeadBeforeWhoComesBack,
    /// A caller that was never told of a place does not queue again.
    ComesBackToAPlaceOnly,
    /// A caller that comes back keeps a place that is dead by the server's clock, which jumped.
    DeadPlaceStands,
    /// A caller with a turn by an older grant keeps it when the server has given it a newer one.
    OlderGrantStands,
    /// A caller in a batch also sends a request of its own over a new connection.
    AloneAndInABatch,
    /// A cohort goes over process boundaries.
    CohortOfTwoSessions,
    /// A cohort has members of different leases.
    CohortOfTwoLeases,
    /// A cohort without waiting members is not released.
    EmptyCohortStays,
    /// A cohort uses up only one token.
    OneTokenForACohort,
    /// The members of a cohort share a token.
    MembersShareAToken,
    /// A member that is given its turn enters while the request that names it is still under way.
    EntersBesideItsRequest,
    /// A caller renews its turn by itself, and the server's answer lets it in when it is polled, whatever has happened
    /// to its turn; nobody passes its turn on. This was the protocol before cohorts had offers.
    AnswerSeats,
    /// A caller that was told of its turn enters although the offer has been passed on.
    EntersWithoutOffer,
    /// An untaken offer stands for as long as it is renewed.
    OfferStands,
    /// A renewal that is answered after the local deadline extends the hold.
    AnswerRevives,
    /// A grant whose owner has not read its reply, and that a reply to others describes, is offered to that owner even
    /// if it is inside.
    UnreadGrantOffered,
    /// A grant in an unread reply stands for its lease.
    DirectGrantStands,
    /// The engine gives up a reply, and its caller reads it nevertheless.
    RevokedEnters,
    /// A probe asks for any waiter.
    ProbeAsksForAnybody,
    /// A lost counter starts again at one.
    CounterStartsAgain,
}
