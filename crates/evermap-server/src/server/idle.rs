//! When a worker looks for idle clients.

use std::time::{Duration, Instant};

use super::client::IdleLimits;
use super::config::Config;

/// The time that a TLS handshake may take, if idle clients may stay longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time between two looks.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The time of the next look. A look goes through all clients, which is cheaper than to keep them
/// in order, because most of them are active between two looks.
pub(super) struct IdleCheck {
    idle: Option<Duration>,
    interval: Duration,
    next: Instant,
}

impl IdleCheck {
    /// Returns `None` if no client can be idle for too long.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let shortest = match (config.idle_timeout, &config.tls) {
            (Some(idle), _) => idle,
            (None, Some(_)) => HANDSHAKE_TIMEOUT,
            (None, None) => return None,
        };
        // So a client is disconnected at most a quarter of the time too late.
        let interval = (shortest / 4).min(INTERVAL_MAX);
        Some(IdleCheck { idle: config.idle_timeout, interval, next: Instant::now() + interval })
    }

    /// Returns the time until the next look.
    pub(super) fn time_left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Returns the limits if it is time to look, and begins to wait for the next time.
    pub(super) fn limits_if_due(&mut self) -> Option<IdleLimits> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + self.interval;
        let handshake = self.idle.map_or(HANDSHAKE_TIMEOUT, |idle| idle.min(HANDSHAKE_TIMEOUT));
        Some(IdleLimits { idle: self.idle, handshake })
    }
}
