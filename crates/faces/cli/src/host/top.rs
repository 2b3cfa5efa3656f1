//! `farpage top`: how the host kernel does, drawn anew every second.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use farpage_client::{Error, Figures, Host};
use farpage_daemon::hosts::{self, ClusterReading, Looks};
use farpage_daemon::reading::{HostReading, Row};
use farpage_supervisor::signals;
use farpage_text::size::human_count;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{LineGauge, Paragraph, Row as Cells, Sparkline, Table, TableState};

use super::WhichHost;
use super::figures::{cells, speed, summary, text, twice};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Looks whose faults are drawn.
const PAST: usize = 240;

/// True while the terminal is drawn on. Held by who changes what it shows.
static DRAWING: Mutex<bool> = Mutex::new(false);

/// Watch the host kernel live: objects, faults, pagers, memory
///
/// Keys: n, m, d, f, p sort by name, memory, dirty, faults, p99; up and down go through the
/// objects; q ends. Without a terminal it prints once what `farpage stats` prints.
#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub which: WhichHost,
}

/// By what objects are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Name,
    Memory,
    Dirty,
    Faults,
    P99,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Ends,
    Sorts(Order),
    /// Goes through the objects.
    Moves(i32),
    Nothing,
}

/// What is on the screen.
struct Page {
    reading: HostReading,
    faults: VecDeque<u64>,
    order: Order,
    chosen: TableState,
    /// Why nothing new is known.
    error: Option<String>,
}

/// Draws until it is told to end.
///
/// # Errors
/// When no host kernel answers, or the terminal cannot be drawn on.
pub fn top(args: &TopArgs) -> Result<()> {
    let drawn = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if drawn {
        // Before there are threads that could take a signal.
        signals::do_before_the_end(|| {
            let drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
            // The terminal may be gone.
            let _ = drawing.then(ratatui::try_restore);
            std::mem::forget(drawing);
        })?;
    }
    args.which.ask(|host| {
        if drawn {
            return Ok(watch(host, host.figures()?));
        }
        out!("{}", text(&twice(host, EVERY)?));
        Ok(Ok(()))
    })?
}

fn watch(host: &Host, first: Figures) -> Result<()> {
    let mut page = Page::new(HostReading::new(None, &first));
    let mut before = first;
    let cluster = Looks::start(host.path().into())?;
    let drawing = || DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut terminal = {
        let mut drawing = drawing();
        *drawing = true;
        ratatui::try_init().context("cannot draw on this terminal")?
    };
    let ended = loop {
        let drawn = {
            let _drawing = drawing();
            terminal.draw(|frame| page.draw(frame)).map(drop)
        };
        if let Err(error) = drawn {
            break Err(error).context("cannot draw on this terminal");
        }
        match page.wait(Instant::now() + EVERY) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(error) => break Err(error).context("cannot read the keyboard"),
        }
        let since_ns = EVERY.as_nanos() as u64 / 2;
        match host.figures() {
            // A key was hit: too soon to say anything a second.
            Ok(now) if now.at_ns < before.at_ns + since_ns => {}
            Ok(now) => {
                page.shows(HostReading::new(Some(&before), &now).with(cluster.last()));
                before = now;
            }
            Err(error) => page.error = Some(said(&error)),
        }
    };
    let mut drawing = drawing();
    ratatui::restore();
    *drawing = false;
    ended
}

fn said(error: &Error) -> String {
    error.to_string().replace('\n', " ")
}

fn does(key: KeyEvent) -> Does {
    let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => Does::Nothing,
        KeyCode::Char('c') if with_control => Does::Ends,
        KeyCode::Char('q') | KeyCode::Esc => Does::Ends,
        KeyCode::Char('n') => Does::Sorts(Order::Name),
        KeyCode::Char('m') => Does::Sorts(Order::Memory),
        KeyCode::Char('d') => Does::Sorts(Order::Dirty),
        KeyCode::Char('f') => Does::Sorts(Order::Faults),
        KeyCode::Char('p') => Does::Sorts(Order::P99),
        KeyCode::Down => Does::Moves(1),
        KeyCode::Up => Does::Moves(-1),
        KeyCode::PageDown => Does::Moves(20),
        KeyCode::PageUp => Does::Moves(-20),
        _ => Does::Nothing,
    }
}

impl Page {
    fn new(reading: HostReading) -> Self {
        Self {
            reading,
            faults: VecDeque::new(),
            order: Order::Faults,
            chosen: TableState::default(),
            error: None,
        }
    }

    fn shows(&mut self, reading: HostReading) {
        self.faults.push_front(reading.faults.per_second as u64);
        self.faults.truncate(PAST);
        self.reading = reading;
        self.error = None;
    }

    /// Waits for keys until then, or until one changes something. True when it is to end.
    fn wait(&mut self, until: Instant) -> std::io::Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                return Ok(false);
            }
            match event::read()? {
                Event::Key(key) => match does(key) {
                    Does::Nothing => {}
                    Does::Ends => return Ok(true),
                    Does::Sorts(order) => {
                        self.order = order;
                        return Ok(false);
                    }
                    Does::Moves(by) => {
                        let last = self.reading.objects.len().saturating_sub(1) as i32;
                        let at = self.chosen.selected().map_or(-1, |at| at as i32);
                        self.chosen.select(Some((at + by).clamp(0, last) as usize));
                        return Ok(false);
                    }
                },
                Event::Resize(..) => return Ok(false),
                _ => {}
            }
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let lines = summary(&self.reading);
        let pagers = self.reading.pagers.len() as u16 + 2;
        let cluster = self.reading.cluster.as_ref();
        let of_cluster = cluster.map_or(0, |all| (all.hosts.len() + all.objects.len()) as u16 + 4);
        let of_cluster = of_cluster.min(frame.area().height / 2);
        let [head, gauge, about, past, objects, hosts, below] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(lines.len() as u16 + 1),
            Constraint::Length(3),
            Constraint::Min(4),
            Constraint::Length(of_cluster),
            Constraint::Length(pagers),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        frame.render_widget(memory(&self.reading), gauge);
        frame.render_widget(Paragraph::new(about_lines(&lines)), about);
        let faults = Sparkline::default().data(&self.faults);
        let [label, past] =
            Layout::horizontal([Constraint::Length(14), Constraint::Min(1)]).areas(past);
        frame.render_widget(Paragraph::new("faults/s,\nlast first"), label);
        frame.render_widget(faults.style(Color::Cyan), past);
        self.draw_objects(frame, objects);
        if let Some(cluster) = &self.reading.cluster {
            draw_cluster(cluster, frame, hosts);
        }
        frame.render_widget(pager_table(&self.reading), below);
    }

    fn head(&self) -> Paragraph<'_> {
        let reading = &self.reading;
        let title = format!(
            "farpage up, process {}, objects: {}   ",
            reading.pid, reading.objects_all
        );
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let rest = match &self.error {
            Some(error) => Span::styled(error.clone(), Style::new().fg(Color::Red)),
            None => Span::styled(
                "sort: n name, m memory, d dirty, f faults, p p99   q ends",
                Style::new().add_modifier(Modifier::DIM),
            ),
        };
        Paragraph::new(Line::from(vec![Span::styled(title, bold), rest]))
    }

    fn draw_objects(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let mut rows: Vec<&Row> = self.reading.objects.iter().collect();
        sort(&mut rows, self.order);
        let head = [
            (Some(Order::Name), "OBJECT"),
            (None, "SIZE"),
            (Some(Order::Memory), "MEMORY"),
            (Some(Order::Dirty), "DIRTY"),
            (None, "WIRED"),
            (Some(Order::Faults), "FAULTS/S"),
            (None, "P50"),
            (Some(Order::P99), "P99"),
            (None, "MAPPED BY"),
        ];
        let head = head.map(|(order, name)| match order == Some(self.order) {
            true => format!("{name}*"),
            false => name.to_owned(),
        });
        let widths = [14, 9, 9, 9, 9, 9, 8, 8].map(Constraint::Length);
        let widths = widths.into_iter().chain([Constraint::Min(9)]);
        let table = Table::new(rows.into_iter().map(|row| Cells::new(cells(row))), widths);
        let table = table
            .header(Cells::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_stateful_widget(table, area, &mut self.chosen);
    }
}

/// What hosts have in common, and what they send to one another a second.
fn draw_cluster(cluster: &ClusterReading, frame: &mut Frame<'_>, area: Rect) {
    let head = Style::new().add_modifier(Modifier::REVERSED);
    let (objects, hosts) = (cluster.objects.len() as u16, cluster.hosts.len() as u16);
    let [above, below] =
        Layout::vertical([Constraint::Max(objects + 2), Constraint::Min(hosts + 1)]).areas(area);
    let rows = cluster.objects.iter();
    let rows = rows.map(|one| Cells::new(hosts::object_cells(cluster, one)));
    let widths = [14, 9, 9, 9, 10].map(Constraint::Length);
    let table = Table::new(rows, widths.into_iter().chain([Constraint::Min(9)]));
    frame.render_widget(
        table.header(Cells::new(hosts::OBJECT_HEAD).style(head)),
        above,
    );
    let rows = hosts::host_cells(cluster).into_iter().map(Cells::new);
    let widths = [14, 9].map(Constraint::Length).into_iter();
    let flows = cluster.hosts.iter().take(hosts::SIDE_BY_SIDE);
    let table = Table::new(rows, widths.chain(flows.map(|_| Constraint::Length(15))));
    let names = Cells::new(hosts::host_head(cluster));
    frame.render_widget(table.header(names.style(head)), below);
}

fn sort(rows: &mut [&Row], order: Order) {
    let ns = |us: Option<f64>| us.map_or(0, |us| (us * 1e3) as u64);
    match order {
        Order::Name => rows.sort_by(|one, other| one.object.name.cmp(&other.object.name)),
        Order::Memory => rows.sort_by_key(|row| Reverse(row.object.resident_bytes)),
        Order::Dirty => rows.sort_by_key(|row| Reverse(row.object.dirty_bytes)),
        Order::Faults => rows.sort_by_key(|row| Reverse(row.faulted.per_second as u64)),
        Order::P99 => rows.sort_by_key(|row| Reverse(ns(row.faulted.p99_us))),
    }
}

fn memory(reading: &HostReading) -> LineGauge<'static> {
    let used = reading.resident_bytes + reading.compressed_bytes;
    let part = used as f64 / reading.ram_bytes.max(1) as f64;
    let colour = match reading.no_room_ns {
        Some(_) => Color::Red,
        None => Color::Blue,
    };
    LineGauge::default()
        .ratio(part.clamp(0.0, 1.0))
        .label(format!("{:3.0}%", part * 100.0))
        .filled_style(colour)
        .unfilled_style(Color::DarkGray)
}

fn about_lines(lines: &[String]) -> Vec<Line<'static>> {
    let line = |line: &String| match line.starts_with("NO ROOM") {
        true => Line::styled(line.clone(), Color::Red),
        false => Line::raw(line.clone()),
    };
    lines.iter().map(line).collect()
}

fn pager_table(reading: &HostReading) -> Table<'static> {
    let rows = reading.pagers.iter().map(|row| {
        let [per_second, p50, p99] = speed(&row.answers);
        let cells = Cells::new([
            row.pager.name.clone(),
            human_count(row.pager.objects),
            human_count(row.pager.open),
            per_second,
            p50,
            p99,
            row.health.clone(),
        ]);
        match row.health == "well" {
            true => cells,
            false => cells.style(Color::Red),
        }
    });
    let head = [
        "PAGER", "OBJECTS", "OPEN", "CALLS/S", "P50", "P99", "HEALTH",
    ];
    let widths = [14, 9, 9, 9, 8, 8].map(Constraint::Length);
    Table::new(rows, widths.into_iter().chain([Constraint::Min(9)]))
        .header(Cells::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
}

#[cfg(test)]
mod tests {
    use super::super::list::name;
    use super::*;
    use farpage_daemon::testing::figures;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(page: &mut Page, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn page() -> Page {
        let mut page = Page::new(HostReading::new(None, &figures(1)));
        page.shows(HostReading::new(Some(&figures(1)), &figures(3)));
        page
    }

    #[test]
    fn the_page_shows_objects_pagers_and_memory() {
        let mut page = page();
        let shown = drawn(&mut page, 110, 20);
        for part in [
            "farpage up, process 70, objects: 2",
            " 68% ",
            "paging file   2.00 GiB of 4.00 GiB in /var/tmp",
            "FAULTS/S*",
            "71 72 (2 times)",
            "paging space",
            "well",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        page.error = Some("it is gone".into());
        page.reading.no_room_ns = Some(1);
        let shown = drawn(&mut page, 110, 20);
        assert!(
            shown.contains("it is gone") && shown.contains("NO ROOM"),
            "{shown}"
        );
    }

    #[test]
    fn any_size_of_terminal_can_be_drawn_on() {
        for (columns, lines) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
            drawn(&mut page(), columns, lines);
            drawn(&mut of_cluster(), columns, lines);
        }
    }

    fn of_cluster() -> Page {
        use farpage_daemon::testing::cluster_figures as figures;
        let mut page = page();
        page.reading.cluster = Some(ClusterReading::new(Some(&figures(1)), &figures(3)));
        page
    }

    #[test]
    fn hosts_of_a_cluster_are_shown_with_what_they_own_and_send() {
        let shown = drawn(&mut of_cluster(), 110, 30);
        for part in [
            "OF THE CLUSTER",
            "a 25%, b 50%",
            "TO b",
            "a (this)",
            "200, 800 KiB",
            "paging space",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        assert!(!drawn(&mut page(), 110, 30).contains("OF THE CLUSTER"));
    }

    #[test]
    fn keys_sort_move_and_end() {
        let key = |code| does(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(key(KeyCode::Char('m')), Does::Sorts(Order::Memory));
        assert_eq!(
            (key(KeyCode::Char('q')), key(KeyCode::Char('c'))),
            (Does::Ends, Does::Nothing)
        );
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!((does(end), key(KeyCode::Up)), (Does::Ends, Does::Moves(-1)));
        let reading = page().reading;
        let names = |order| {
            let mut rows: Vec<&Row> = reading.objects.iter().collect();
            sort(&mut rows, order);
            rows.iter().map(|row| name(&row.object)).collect::<Vec<_>>()
        };
        assert_eq!(names(Order::Faults), ["grid", "-"]);
        assert_eq!(names(Order::Name), ["-", "grid"]);
    }
}
