//! The terminal of the live view: put into the state that the view needs, and restored.
//!
//! The functions of the same names of the library that draws are not used, because they report
//! with `eprintln!` that the terminal cannot be restored. If it has gone away, standard error has
//! too, and that panics.

use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::sync::Once;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// A terminal that is never dropped, because that reports with `eprintln!` if the cursor cannot be
/// shown again. [`restore`] shows it.
pub(super) type Screen = ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>;

/// Makes the terminal read keys one by one, and show an empty screen. A panic restores it.
pub(super) fn set_up() -> io::Result<Screen> {
    restore_before_panics();
    let screen = enable_raw_mode()
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen))
        .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
    if screen.is_err() {
        restore();
    }
    screen.map(ManuallyDrop::new)
}

/// Restores the terminal. Does what can be done if it has gone away, or if it was not set up.
pub(super) fn restore() {
    // Nobody would read that this has failed. The mode comes first, because it matters most.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Makes a panic restore the terminal first, so that its message can be read.
fn restore_before_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            print(panic);
        }));
    });
}
