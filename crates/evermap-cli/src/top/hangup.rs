//! Ends the live view when its terminal goes away, or a signal asks for it.
//!
//! The library that reads keys reads on and on from a terminal that has gone away, and a terminal
//! that accepts no output stops the thread that draws. So another thread watches.

use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::terminal;

/// The time after which the thread looks for a signal.
const PATIENCE: Duration = Duration::from_millis(100);
/// The time that the view has to end by itself, and then the terminal to be restored.
const GRACE: Duration = Duration::from_millis(500);

/// A thread that ends the process if the view does not end when it should.
pub(super) struct Watch {
    ended: Arc<AtomicBool>,
    /// Ends the thread when it is dropped.
    _view: Sender<()>,
}

impl Watch {
    /// Installs the handlers of signals, and starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            // Without this, a signal would leave the terminal as the view needs it.
            signal_hook::flag::register(signal, ended.clone())?;
        }
        let (view, is_over) = channel();
        let flag = ended.clone();
        std::thread::Builder::new().name("watch".into()).spawn(move || watch(&flag, &is_over))?;
        Ok(Watch { ended, _view: view })
    }

    /// Returns whether the view has to end.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

fn watch(ended: &AtomicBool, view: &Receiver<()>) {
    while !ended.load(Relaxed) && !is_hung_up(PATIENCE) {
        if view.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
    }
    ended.store(true, Relaxed);
    if view.recv_timeout(GRACE) == Err(RecvTimeoutError::Disconnected) {
        return;
    }
    // In a thread, because this waits too if the terminal accepts no output.
    let (restoring, restored) = channel::<()>();
    std::thread::spawn(move || {
        terminal::restore();
        drop(restoring);
    });
    let _ = restored.recv_timeout(GRACE);
    std::process::exit(0);
}

/// Waits up to `patience` for the terminal to go away, and returns whether it has.
pub(super) fn is_hung_up(patience: Duration) -> bool {
    let (input, output) = (io::stdin(), io::stdout());
    let terminals = [
        input.is_terminal().then(|| input.as_raw_fd()),
        output.is_terminal().then(|| output.as_raw_fd()),
    ];
    // A negative number is ignored. These two events are reported without being asked for.
    let mut polled =
        terminals.map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: 0, revents: 0 });
    let millis = patience.as_millis() as libc::c_int;
    // SAFETY: the array is valid for the call, which writes only to `revents`.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    ready > 0 && polled.iter().any(|fd| fd.revents & (libc::POLLHUP | libc::POLLERR) != 0)
}
