//! Mistakes that the tests of this module plant, and that its crash campaign has to notice.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// Segments are freed before the control that does not need them is durable.
    SegmentsFreedEarly,
    /// The control says that the image is complete before the image is durable.
    ControlBeforeImage,
    /// Records are accepted wherever they are, whatever their sequence number.
    IdentityUnchecked,
    /// New names of segments are not made durable.
    NamesUnsynced,
    /// After a failed sync another one is tried.
    SyncRetried,
    /// A checkpoint takes a record that is not durable.
    CheckpointAhead,
    /// The image is written before the sums of its new pages are durable.
    ImageBeforeSums,
    /// An opening takes the last record for durable because it can be read.
    TailTrusted,
}

#[cfg(not(test))]
#[inline]
pub(super) fn planted(_: Mistake) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    pub(super) static PLANTED: std::cell::Cell<Option<Mistake>> =
        const { std::cell::Cell::new(None) };
}

/// Returns whether the test of this thread has planted the mistake.
#[cfg(test)]
pub(super) fn planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}
