//! The live view.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table};

use super::connection::Connection;
use super::hangup::{self, Watch};
use super::plain;
use super::sample::Sample;
use super::summary::{Summary, count, percent};
use super::target::Target;
use super::terminal;
use crate::failure::Failure;

/// The number of rates that the graph remembers.
const HISTORY_MAX: usize = 1000;
/// The width of the facts about the server, with their borders.
const FACTS_WIDTH: u16 = 48;
/// The least width of the graph where it is beside the facts, with its borders: its title fits.
const GRAPH_WIDTH: u16 = 28;
/// The height of the graph where it is below the facts, with its borders.
const GRAPH_HEIGHT: u16 = 4;
/// The time after which the view looks for a signal, or a new sample, while no key is pressed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Shows the server until the user quits.
pub(super) fn run(target: Target, interval: Duration) -> Result<(), Failure> {
    let terminal_error = |source| Failure::Io { what: "terminal".into(), source };
    let watch = Watch::start().map_err(terminal_error)?;
    let shown = || -> io::Result<()> {
        let mut screen = terminal::set_up()?;
        let mut view = View::new(target.address());
        let samples = take_samples(target, interval);
        while !watch.is_ended() {
            screen.draw(|frame| view.draw(frame))?;
            if event::poll(PATIENCE)?
                && let Event::Key(key) = event::read()?
                && view.press(key) == Answer::Quit
            {
                return Ok(());
            }
            view.receive(&samples);
        }
        Ok(())
    };
    let result = shown();
    terminal::restore();
    match result {
        // Nobody reads what went wrong.
        Err(_) if watch.is_ended() || hangup::is_hung_up(Duration::ZERO) => Ok(()),
        result => result.map_err(terminal_error),
    }
}

/// What the thread that takes samples sends: a sample, or why there is none.
type Taken = Result<Sample, String>;

/// Samples that another thread takes, so that a server that does not answer delays no key.
struct Samples {
    taken: Receiver<Taken>,
    /// Ends the thread when it is dropped.
    _stop: Sender<()>,
}

/// Takes a sample in every interval, and connects again whenever that fails.
fn take_samples(target: Target, interval: Duration) -> Samples {
    let (send, taken) = channel();
    let (stop, stopped) = channel::<()>();
    std::thread::spawn(move || {
        let mut connection = None;
        loop {
            let sample = take_sample(&mut connection, &target);
            if send.send(sample.map_err(|error| error.to_string())).is_err()
                || stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout)
            {
                return;
            }
        }
    });
    Samples { taken, _stop: stop }
}

fn take_sample(open: &mut Option<Connection>, target: &Target) -> io::Result<Sample> {
    // The connection is put back only if it can be used again.
    let mut connection = match open.take() {
        Some(connection) => connection,
        None => target.connect()?,
    };
    let sample = Sample::take(&mut connection)?;
    *open = Some(connection);
    Ok(sample)
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Continue,
    Quit,
}

/// What is shown.
struct View {
    address: String,
    /// The last sample, with which the next one is compared.
    last: Option<Sample>,
    summary: Option<Summary>,
    /// The rates of the last intervals, latest first.
    history: VecDeque<u64>,
    /// Why there is no sample.
    error: Option<String>,
    paused: bool,
}

impl View {
    fn new(address: &str) -> Self {
        View {
            address: address.to_owned(),
            last: None,
            summary: None,
            history: VecDeque::new(),
            error: None,
            paused: false,
        }
    }

    fn press(&mut self, key: KeyEvent) -> Answer {
        if key.kind == KeyEventKind::Release {
            return Answer::Continue;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Answer::Quit,
            KeyCode::Char('c' | 'd') if control => return Answer::Quit,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('r') => {
                (self.last, self.summary) = (None, None);
                self.history.clear();
            }
            _ => {}
        }
        Answer::Continue
    }

    fn receive(&mut self, samples: &Samples) {
        loop {
            match samples.taken.try_recv() {
                Ok(taken) if !self.paused => self.show(taken),
                Ok(_) => {}
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn show(&mut self, taken: Taken) {
        match taken {
            Ok(sample) => {
                if let Some(last) = &self.last {
                    let summary = Summary::between(last, &sample);
                    self.history.push_front(summary.rate.round() as u64);
                    self.history.truncate(HISTORY_MAX);
                    self.summary = Some(summary);
                }
                (self.last, self.error) = (Some(sample), None);
            }
            // The server may have restarted: its counters begin anew, and what is shown stays.
            Err(error) => (self.last, self.error) = (None, Some(error)),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [title, body, footer] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.title(), title);
        let keys = "q quit   p pause   r restart the measurement";
        frame.render_widget(Line::from(keys).dim(), footer);
        if let Some(summary) = &self.summary {
            self.draw_summary(summary, frame, body);
        }
    }

    fn title(&self) -> Line<'_> {
        let title = match &self.summary {
            Some(summary) => plain::title(&self.address, summary),
            None => self.address.clone(),
        };
        let state = match (&self.error, self.paused, &self.summary) {
            (Some(error), ..) => format!("  {error}; trying again").red(),
            (_, true, _) => "  paused".yellow(),
            (_, _, None) => "  measuring".dim(),
            _ => "".into(),
        };
        Line::from_iter([title.bold(), state])
    }

    fn draw_summary(&self, summary: &Summary, frame: &mut Frame<'_>, area: Rect) {
        let cells = plain::command_cells(summary);
        let facts = plain::facts(summary);
        // With their borders and the names of the columns.
        let commands_height = cells.len() as u16 + 3;
        let facts_height = facts.len() as u16 + 2;
        // A narrow screen has the graph below the facts.
        let (beside, below) = match area.width < FACTS_WIDTH + GRAPH_WIDTH {
            true => (0, GRAPH_HEIGHT),
            false => (area.width - FACTS_WIDTH, 0),
        };
        let rows = [
            Constraint::Length(commands_height),
            Constraint::Length(facts_height),
            Constraint::Length(below),
            Constraint::Min(0),
        ];
        let [commands, middle, lower, keys] = Layout::vertical(rows).areas(area);
        let columns = [Constraint::Min(0), Constraint::Length(beside)];
        let [left, right] = Layout::horizontal(columns).areas(middle);
        draw_commands(cells, frame, commands);
        draw_facts(&facts, frame, left);
        self.draw_history(summary, frame, if below > 0 { lower } else { right });
        draw_keys(summary, frame, keys);
    }

    fn draw_history(&self, summary: &Summary, frame: &mut Frame<'_>, area: Rect) {
        let block = block(format!("commands per second: {}", count(summary.rate)));
        let width = usize::from(block.inner(area).width);
        // The latest rate is on the right.
        let mut rates: Vec<u64> = self.history.iter().copied().take(width).collect();
        rates.resize(width, 0);
        rates.reverse();
        frame.render_widget(Sparkline::default().data(&rates).block(block).cyan(), area);
    }
}

fn block(title: impl Into<String>) -> Block<'static> {
    Block::new().borders(Borders::ALL).border_style(Style::new().dim()).title(title.into())
}

fn draw_commands(cells: Vec<[String; 6]>, frame: &mut Frame<'_>, area: Rect) {
    // All of them fit into 60 columns.
    let latency = Constraint::Length(if area.width < 70 { 8 } else { 9 });
    let widths = [
        Constraint::Max(16),
        Constraint::Length(11),
        Constraint::Length(8),
        latency,
        latency,
        latency,
    ];
    let right_aligned = |cells: [String; 6]| {
        let mut cells = cells.into_iter();
        let name = cells.next().map(Text::from);
        Row::new(name.into_iter().chain(cells.map(|cell| Text::from(cell).right_aligned())))
    };
    let header = right_aligned(plain::COLUMNS.map(str::to_owned)).bold();
    let rows = cells.into_iter().map(right_aligned);
    let table = Table::new(rows, widths).header(header).block(block("commands"));
    frame.render_widget(table, area);
}

fn draw_facts(facts: &[(&str, String)], frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> =
        facts.iter().map(|(name, value)| Line::from(format!("{name:<12} {value}"))).collect();
    frame.render_widget(Paragraph::new(lines).block(block("server")), area);
}

fn draw_keys(summary: &Summary, frame: &mut Frame<'_>, area: Rect) {
    let Some(keys) = &summary.hot_keys else { return };
    let rows = keys.iter().map(|(key, share, rate)| {
        let numbers = [percent(*share), count(*rate)];
        let numbers = numbers.into_iter().map(|number| Text::from(number).right_aligned());
        Row::new(numbers.chain([Text::from(key.as_str())]))
    });
    let widths = [Constraint::Length(8), Constraint::Length(11), Constraint::Min(10)];
    let header = Row::new(["   share", " per second", "key"]).bold();
    let title = block("hot keys, by samples");
    frame.render_widget(Table::new(rows, widths).header(header).block(title), area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn sample(at: Instant, gets: u64, hot: bool) -> Sample {
        let stats = |pairs: &[(&str, String)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
        };
        let general = stats(&[
            ("version", "1.6.45 test".into()),
            ("uptime", "3723".into()),
            ("cmd_get", gets.to_string()),
            ("get_hits", (gets / 2).to_string()),
            ("bytes", "1048576".into()),
            ("limit_maxbytes", "4194304".into()),
            ("curr_connections", "3".into()),
        ]);
        let latency = stats(&[("get:histogram", format!("85000={gets}"))]);
        let hot_keys = stats(&[("hotkeys_samples", "8".into()), ("hotkey:user%3A1", "4".into())]);
        Sample::new(at, general, &latency, hot.then_some(hot_keys))
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn view(hot: bool) -> View {
        let mut view = View::new("host:1");
        let at = Instant::now();
        view.show(Ok(sample(at, 100, hot)));
        view.show(Ok(sample(at + Duration::from_secs(1), 2100, hot)));
        view
    }

    #[test]
    fn everything_is_on_the_screen() {
        let screen = drawn(&view(true), 80, 30);
        for text in [
            "host:1, 1.6.45 test, up 01:02:03",
            "get                    2.00k    50.0%   85.0 µs   85.0 µs   85.0 µs",
            "delete                     0        -         -         -         -",
            "memory       1.00 MiB of 4.00 MiB (25.0%)",
            "commands per second: 2.00k",
            "   50.0%       1.00k user:1",
            "q quit",
        ] {
            assert!(screen.contains(text), "{text:?} in\n{screen}");
        }
        assert!(!drawn(&view(false), 80, 30).contains("hot keys"));
    }

    #[test]
    fn narrow_screens_have_all_columns_and_headings() {
        let screen = drawn(&view(true), 60, 36);
        for text in
            ["per second     hits", "p99.9│", "arithmetic ", "commands per second: 2.00k", "user:1"]
        {
            assert!(screen.contains(text), "{text:?} in\n{screen}");
        }
    }

    #[test]
    fn screens_of_any_size_can_be_drawn() {
        let view = view(true);
        for (width, height) in [(1, 1), (7, 3), (40, 10), (300, 100)] {
            drawn(&view, width, height);
        }
    }

    #[test]
    fn keys_pause_restart_and_quit() {
        let mut view = view(true);
        let press = |view: &mut View, key| view.press(KeyEvent::from(KeyCode::Char(key)));
        assert_eq!(press(&mut view, 'p'), Answer::Continue);
        assert!(drawn(&view, 80, 30).contains("paused"));
        press(&mut view, 'p');
        assert!(!drawn(&view, 80, 30).contains("paused"));
        press(&mut view, 'r');
        assert!(drawn(&view, 80, 30).contains("host:1  measuring"));
        assert_eq!(press(&mut view, 'x'), Answer::Continue);
        assert_eq!(press(&mut view, 'q'), Answer::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(interrupt), Answer::Quit);
    }

    #[test]
    fn a_server_that_is_gone_is_reported_until_it_is_back() {
        let mut view = view(true);
        view.show(Err("connection refused".into()));
        let screen = drawn(&view, 120, 30);
        assert!(screen.contains("connection refused; trying again"), "{screen}");
        assert!(screen.contains("2.00k"), "what was measured stays");
        view.show(Ok(sample(Instant::now(), 5, true)));
        assert!(!drawn(&view, 120, 30).contains("refused"));
    }
}
