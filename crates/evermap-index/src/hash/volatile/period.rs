//! Grace periods of a domain, for callers that must not wait.

use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::Duration;

use evermap_pm::Domain;

/// A grace period that has begun.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct GracePeriod(u64);

/// Begins a grace period.
pub(super) fn start(domain: &Domain) -> GracePeriod {
    fence(SeqCst);
    GracePeriod(domain.stats().epoch + 2)
}

/// Returns `true` if the grace period is over.
pub(super) fn is_over(domain: &Domain, period: GracePeriod) -> bool {
    if domain.stats().epoch < period.0 {
        domain.drain_within(Duration::ZERO);
    }
    domain.stats().epoch >= period.0
}
