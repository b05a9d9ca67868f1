//! Making neighbouring units free, where enough units are free, but scattered.
//!
//! A window of as many units is chosen in which the fewest bytes are in use. The records in it are
//! moved elsewhere, or, in a cache, evicted where that is not possible: the larger ones among them,
//! which would need neighbours themselves.

use std::time::{Duration, Instant};

use evermap_pm::Medium;
use evermap_pm::heap::Window;
use evermap_pm::sync::MutexGuard;

use super::empty::RECLAMATION_WAIT;
use super::hand::Event;
use crate::{Evermap, Result};

/// The number of windows that are tried: blocks that another thread holds may be in them.
const WINDOWS: u32 = 8;
/// How long it waits for other maintenance, and how often it looks.
const TURN_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);

impl<M: Medium> Evermap<M> {
    /// Makes `bytes` bytes in neighbouring units free, or lets the file of a cache become longer if
    /// that is not possible. Returns `true` if there may be such units now.
    ///
    /// The calling thread must not hold a guard.
    pub(crate) fn make_neighbours(&self, bytes: u64) -> Result<bool> {
        let mut events = Vec::new();
        let done = self.make_window(bytes, &mut events);
        self.show_evictions(&events);
        if let Ok(None) = done {
            self.file.pool.heap().extend_length_goal(bytes);
        }
        Ok(done? != Some(false))
    }

    /// Makes a window free. Returns `Some(false)` if something stays in all that were tried, or
    /// other maintenance takes long, and `None` if none can be chosen.
    fn make_window(&self, bytes: u64, events: &mut Vec<Event>) -> Result<Option<bool>> {
        let Some(_sweeping) = self.wait_for_turn().filter(|_| !self.is_closed()) else {
            return Ok(Some(false));
        };
        // Nothing else evicts, and takes the space that is left for the records that move.
        let _hand = self.file.maintenance.evictor.hold();
        for _ in 0..WINDOWS {
            let Some(window) = self.file.pool.heap().window(bytes) else { return Ok(None) };
            self.empty_window(&window, events)?;
            self.wait_for_reclamation(window.evacuation(), RECLAMATION_WAIT);
            if window.is_free() {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Moves the records in a window elsewhere, or evicts them.
    fn empty_window(&self, window: &Window<'_, M>, events: &mut Vec<Event>) -> Result<()> {
        let (map, evicts) = (self.default_map(), self.evicts());
        self.move_out(window.evacuation(), &mut |extent, offset| {
            if evicts {
                map.evict_block(extent, offset, events)?;
            }
            Ok(evicts)
        })?;
        Ok(())
    }

    /// Waits for a while until no other thread sweeps, checks or moves records. The holder may
    /// itself wait for a reader of the calling thread, so it does not wait for long.
    fn wait_for_turn(&self) -> Option<MutexGuard<'_, ()>> {
        let began = Instant::now();
        loop {
            let turn = self.file.maintenance.try_sweeping();
            if turn.is_some() || began.elapsed() >= TURN_WAIT {
                return turn;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
