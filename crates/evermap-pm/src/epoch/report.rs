//! Which thread holds up the reuse of memory.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::slots::{EPOCH_BITS, EPOCHS, GuardSlot, IDLE};
use super::threads::{OWNERS, name_of};
use super::{Domain, GracePeriod};

/// A thread that prevents the reuse of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holder {
    /// The system's id of the thread, or 0 if it is not known.
    pub thread: u32,
    /// The name of the thread, if it still exists and has one.
    pub name: Option<String>,
    /// The minimum time for which it has held the guard, or announced no quiescent state.
    pub held: Duration,
    /// Whether it is an online [`Reader`](super::Reader), not the holder of a guard.
    pub online: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}", self.thread)?;
        if let Some(name) = &self.name {
            write!(f, " (\"{name}\")")?;
        }
        let what = match self.online {
            true => "is online and has announced no quiescent state",
            false => "has held a guard",
        };
        write!(f, " {what} for at least {:.1} s", self.held.as_secs_f64())
    }
}

/// The error when more bytes wait for guards than the limit allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Number of bytes that wait.
    pub waiting: u64,
    /// The limit.
    pub limit: u64,
    /// The thread that holds the oldest guard, if it still holds it.
    pub holder: Option<Holder>,
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes wait to be reused, more than the limit of {}: ",
            self.waiting, self.limit
        )?;
        match &self.holder {
            Some(holder) => holder.fmt(f),
            None => f.write_str("a guard that has just been dropped held them up"),
        }
    }
}

/// A grace period that lasts long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How long a thread has waited for its end.
    pub waited: Duration,
    /// The thread that holds it up, if it still does.
    pub holder: Option<Holder>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a grace period has lasted for {:.1} s: ", self.waited.as_secs_f64())?;
        match &self.holder {
            Some(holder) => holder.fmt(f),
            None => f.write_str("a guard that has just been dropped held it up"),
        }
    }
}

/// What to do about grace periods that last long, if that is set.
pub(super) type Stalls = OnceLock<StallReport>;

pub(super) struct StallReport {
    /// How long a thread waits before its first report.
    pub(super) after: Duration,
    pub(super) report: Box<dyn Fn(&Stall) + Send + Sync>,
}

/// The reports of one wait.
pub(super) struct Watch<'d> {
    domain: &'d Domain,
    next: Option<Duration>,
}

impl<'d> Watch<'d> {
    pub(super) fn new(domain: &'d Domain) -> Self {
        Watch { domain, next: domain.stalls.get().map(|stalls| stalls.after) }
    }

    /// Reports a stall, if the wait has lasted long enough: at first after the configured time, and
    /// then each time it has doubled.
    pub(super) fn waited(&mut self, waited: Duration) {
        const LEAST: Duration = Duration::from_millis(1);
        if self.next.is_none_or(|next| waited < next) {
            return;
        }
        if let Some(stalls) = self.domain.stalls.get() {
            (stalls.report)(&self.domain.stall(waited));
        }
        self.next = Some(2 * waited.max(LEAST));
    }
}

impl Domain {
    /// Calls `report` when a thread has waited for a grace period for `after`, and then each time
    /// that time has doubled. The call comes from the waiting thread. Returns `false`, and changes
    /// nothing, if the domain has such a report already.
    pub fn report_stalls(
        &self,
        after: Duration,
        report: impl Fn(&Stall) + Send + Sync + 'static,
    ) -> bool {
        self.stalls.set(StallReport { after, report: Box::new(report) }).is_ok()
    }

    pub(super) fn stall(&self, waited: Duration) -> Stall {
        Stall { waited, holder: self.holder() }
    }

    /// Returns the thread that holds up a grace period: the one that has held a guard, or announced
    /// no quiescent state, for the longest time. `None` if the grace period is over, or no thread
    /// holds it up at the moment. O(slots). Never waits.
    pub fn held_up_by(&self, period: GracePeriod) -> Option<Holder> {
        if self.is_over(period) { None } else { self.holder() }
    }

    /// Returns the thread that keeps the epoch from advancing.
    fn holder(&self) -> Option<Holder> {
        self.oldest().filter(|&(lag, ..)| lag > 0).map(|oldest| self.describe(oldest))
    }

    /// Returns the thread that holds the oldest guard, or that announced a quiescent state least
    /// recently.
    pub fn oldest_guard(&self) -> Option<Holder> {
        self.oldest().map(|oldest| self.describe(oldest))
    }

    /// Returns the number of epochs that the oldest guard lags behind, the thread that holds it,
    /// and whether that is an online reader.
    fn oldest(&self) -> Option<(u64, u32, bool)> {
        let epoch = self.global.load(Relaxed);
        let own = self
            .own
            .iter()
            .zip(&OWNERS)
            .map(|(slot, owner)| (slot.announced.load(Relaxed), owner.load(Relaxed), false));
        let shared = self.shared.used().map(|GuardSlot { announced, online }| {
            let announced = announced.load(Relaxed);
            (announced, (announced >> EPOCH_BITS) as u32, online.load(Relaxed))
        });
        let busy = own.chain(shared).filter(|&(announced, ..)| announced != IDLE);
        busy.map(|(announced, thread, online)| (lag(epoch, announced), thread, online))
            .max_by_key(|&(lag, ..)| lag)
    }

    fn describe(&self, (lag, thread, online): (u64, u32, bool)) -> Holder {
        let (now, advanced) = (self.began.elapsed(), self.advanced.load(Relaxed));
        let held = if lag == 0 {
            Duration::ZERO
        } else {
            now.saturating_sub(Duration::from_nanos(advanced))
        };
        Holder { thread, name: name_of(thread), held, online }
    }

    pub(super) fn backlog(&self) -> Backlog {
        let (waiting, limit) = (self.bytes_waiting() as u64, self.limit.load(Relaxed));
        Backlog { waiting, limit, holder: self.oldest_guard() }
    }
}

/// Returns the number of epochs that an announcement lags behind.
pub(super) fn lag(epoch: u64, announced: u64) -> u64 {
    // An announcement of a later epoch than the one loaded before does not lag behind.
    let behind = epoch.wrapping_sub(announced) & EPOCHS;
    if behind > EPOCHS / 2 { 0 } else { behind }
}
