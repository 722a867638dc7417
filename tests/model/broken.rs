//! What the checker has to notice: the protocol with one of its rules taken out.

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// The local deadline of a reply counts from its arrival.
    DeadlineFromTheReply,
    /// The local deadline of a pushed grant counts from its arrival, and it is not confirmed.
    DeadlineFromThePush,
    /// The two clocks are taken to run alike.
    NoDrift,
    /// A release does not compare the token.
    ReleaseOfAnyToken,
    /// A renewal writes the grant of an owner that has lost it.
    RenewalResurrects,
    /// An old connection is not closed before requests are sent again over a new one, and they have no end.
    LateAcquireAccepted,
    /// An owner enters while the session's own request for it lies on a connection that broke, and may still be read.
    GateOpensWithTheBreak,
    /// An owner whose request is sent again does not find the grant that it has already, and queues.
    QueuesBehindItself,
    /// The same in a batch.
    BatchQueuesBehindItself,
    /// An owner that gives back its turn does not leave as well: a request for it that is read later may get it the lock.
    OfferGivenBackAlone,
    /// A cancelled call sends nothing.
    CancelWithoutLeave,
    /// Leaving takes the caller out of the queue, and forgets that it may have been granted.
    LeaveChecksTheQueueOnly,
    /// Nobody probes.
    NoProbe,
    /// A waiter that cannot be told stays at the head.
    DeadHeadStays,
    /// A waiter that cannot be told is given the lock.
    GivenUnheard,
    /// A pushed grant stands for its whole lease.
    PushedForTheWholeLease,
    /// A free lock is taken while others queue for it.
    Barging,
    /// A waiter that comes back queues at the end.
    PlaceForgotten,
    /// The place in the queue is the server's time, and nothing else.
    PlaceByClockAlone,
    /// A waiter begins its wait again with each connection.
    WaitBeginsAgain,
    /// The owner of a cohort that leaves passes on the whole grant.
    LeaveFreesTheCohort,
    /// The last waiter of a cohort that leaves releases it, though another is inside.
    LastWaiterReleases,
    /// A cohort that is known and described once more is passed on from its beginning.
    KnownCohortTakenUpAgain,
    /// A member that has left is given its turn nevertheless.
    SkippedTurnStays,
    /// A member is given its turn for a claim from now on, whatever is known of the cohort.
    PassIgnoresDeadline,
    /// The members of a cohort that was lost wait on.
    LostCohortStaysAway,
    /// A cohort whose deadline has passed is released, also if members of it wait: a late description of it is taken up.
    LostCohortReleasedFirst,
    /// Who comes back with an old place asks alone, as at first: a free lock is its queue's head's.
    HeadBeforeWhoComesBack,
    /// Who was never told of a place does not queue again.
    ComesBackToAPlaceOnly,
    /// Who comes back to a place that is dead by the server's clock, which jumped, gets it.
    DeadPlaceStands,
    /// Who has its turn by an older grant keeps it when the server has given it a newer one.
    OlderGrantStands,
    /// A caller of a batch sends a request of its own as well, over a new connection.
    AloneAndInABatch,
    /// A cohort goes over process boundaries.
    CohortOfTwoSessions,
    /// A cohort has members of different leases.
    CohortOfTwoLeases,
    /// A cohort of which nobody waits any more is not released.
    EmptyCohortStays,
    /// A cohort costs one token.
    OneTokenForACohort,
    /// The members of a cohort share a token.
    MembersShareAToken,
    /// A member that is given its turn enters while the request that names it is still under way.
    EntersBesideItsRequest,
    /// A caller renews its turn by itself, and what the server answers lets it in when it is polled, whatever has become
    /// of its turn; nobody passes its turn on. So it was before cohorts had offers.
    AnswerSeats,
    /// A caller that was told of its turn enters, also when the offer has been passed on.
    EntersWithoutOffer,
    /// An offer that nobody takes stands for as long as it is renewed.
    OfferStands,
    /// A renewal that is answered after the local deadline extends the hold.
    AnswerRevives,
    /// A grant whose owner has not read its reply, and that a reply to others describes, is offered to that owner, also when
    /// it is inside.
    UnreadGrantOffered,
    /// A grant in a reply that nobody reads stands for its lease.
    DirectGrantStands,
    /// The engine gives up a reply, and its caller reads it nevertheless.
    RevokedEnters,
    /// A probe asks for any of the waiters.
    ProbeAsksForAnybody,
    /// A counter that was lost starts again at one.
    CounterStartsAgain,
}
