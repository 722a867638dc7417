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
    /// An owner enters while the link's own request for it lies on a connection that broke, and may still be read.
    GateOpensWithTheBreak,
    /// A request that is sent again is a grant of its own.
    ResendGrantsAnew,
    /// A cancelled call sends nothing.
    CancelWithoutLeave,
    /// Leaving takes the caller out of the queue, and forgets that it may have been granted.
    LeaveLooksAtTheQueueOnly,
    /// Nobody looks.
    NoLook,
    /// A waiter that cannot be told stays at the head.
    DeadHeadStays,
    /// A waiter that cannot be told is given the lock.
    GivenUnheard,
    /// A pushed grant stands for its whole lease.
    PushedForTheWholeLease,
    /// A free lock is taken without a look at the queue.
    Barging,
    /// A waiter that comes back queues at the end.
    PlaceForgotten,
    /// The place in the queue is the server's time, and nothing else.
    PlaceByClockAlone,
    /// A waiter begins its wait anew with each connection.
    WaitBeginsAnew,
    /// A counter that was lost starts again at one.
    CounterStartsAgain,
}
