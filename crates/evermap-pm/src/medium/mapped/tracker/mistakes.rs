//! Mistakes that tests plant in instants, and that the exploration of all orders has to notice.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// No fence of all threads after the number is raised.
    NoFence,
    /// Pages are kept before that fence.
    NoWait,
    /// The number is raised after the pages are read.
    RaisedLate,
    /// The list of changed pages is taken before the number is raised.
    ListedEarly,
    /// A page is marked before what it holds is kept.
    MarkedEarly,
    /// A late store is not marked again.
    LateUnmarked,
    /// Late stores are not waited for before the next instant.
    LateNotAwaited,
    /// What was kept while changes are taken is not looked for afterwards.
    NoSecondLook,
    /// A compare-and-swap is not marked.
    CasUnmarked,
    /// Bytes that are filled in are not marked.
    FillUnmarked,
    /// Pages that are discarded are not marked.
    DiscardUnmarked,
}

#[cfg(not(test))]
#[inline]
pub(crate) fn planted(_: Mistake) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    pub(super) static PLANTED: std::cell::Cell<Option<Mistake>> =
        const { std::cell::Cell::new(None) };
}

/// Returns whether the test of this thread has planted the mistake.
#[cfg(test)]
pub(crate) fn planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}
