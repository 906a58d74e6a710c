//! [`draw`]: the picture of a [`Model`], in 40 columns and 8 lines at least.

use super::model::{CommRow, Model, Row as PolicyRow};
use crate::cli::number;
use crate::observe::status::Status;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
/// Lines of the table of communicators, at most, while the policies want more.
const COMM_LINES: u16 = 8;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let rows = model.rows();
    let comms = model.communicators();
    let area = frame.area();
    let mut notes = notes(model);
    notes.truncate(usize::from(area.height / 4));
    let wanted = (comms.len() + 1).min(usize::from(COMM_LINES.min(area.height / 3))) as u16;
    let [title, policies, gap, communicators, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(wanted),
        Constraint::Length(notes.len() as u16),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(headline(model)).style(TITLE), title);
    if model.is_empty() {
        frame.render_widget(Paragraph::new("No job of this user has policies now."), policies);
        return;
    }
    draw_policies(frame, policies, &rows, model.scrolled());
    frame.render_widget(Paragraph::new(""), gap);
    draw_communicators(frame, communicators, &comms);
    frame.render_widget(Paragraph::new(notes), foot);
}

fn headline(model: &Model) -> String {
    let processes = model.statuses().count();
    let noun = if processes == 1 { "process" } else { "processes" };
    let sort = model.sorted_by().name();
    format!("ringfence top  {processes} {noun}  by {sort}  (c f p u n: sort, j k: scroll, q: quit)")
}

/// A column: heading, width, and from how many columns of the terminal on it is shown.
type Column = (&'static str, Constraint, u16);

const POLICY_COLUMNS: [Column; 9] = [
    ("    PID", Constraint::Length(7), 0),
    ("POLICY", Constraint::Fill(1), 0),
    ("HOOK", Constraint::Length(11), 78),
    ("CALLS/S", Constraint::Length(7), 0),
    ("  CALLS", Constraint::Length(7), 96),
    ("FAULTS", Constraint::Length(6), 0),
    ("P50 ns", Constraint::Length(6), 78),
    ("P99 ns", Constraint::Length(6), 0),
    ("FUEL/CALL", Constraint::Length(9), 78),
];

const COMM_COLUMNS: [Column; 8] = [
    ("    PID", Constraint::Length(7), 0),
    ("COMMUNICATOR", Constraint::Fill(1), 0),
    ("INTERFACE", Constraint::Length(9), 78),
    ("RANKS", Constraint::Length(5), 0),
    ("NODES", Constraint::Length(5), 78),
    (" PLAN", Constraint::Length(5), 0),
    ("TAKES PLANS", Constraint::Length(11), 78),
    ("FAULTS", Constraint::Length(6), 0),
];

/// Draws a table with the columns that there is room for.
fn draw_table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let shown = |i: &usize| area.width >= columns[*i].2;
    let kept: Vec<usize> = (0..N).filter(shown).collect();
    let heading = Row::new(kept.iter().map(|i| columns[*i].0)).style(HEADING);
    let lines = rows.map(|row| Row::new(kept.iter().map(|i| row[*i].clone()).collect::<Vec<_>>()));
    let widths = kept.iter().map(|i| columns[*i].1);
    frame.render_widget(Table::new(lines, widths).header(heading), area);
}

fn draw_policies(frame: &mut Frame<'_>, area: Rect, rows: &[PolicyRow], scroll: usize) {
    let number = |n: Option<f64>, width: usize| {
        let text = n.map_or_else(|| "-".into(), short);
        format!("{text:>width$}")
    };
    let lines = rows.iter().skip(scroll).map(|r| {
        let fuel = |fuel: u64| format!("{}/{}", short(fuel as f64), short(r.fuel_limit as f64));
        [
            format!("{:>7}", r.pid),
            r.policy.clone(),
            r.hook.clone(),
            number(r.calls_per_second, 7),
            number(Some(r.calls as f64), 7),
            number(Some(r.faults as f64), 6),
            number(r.p50_ns.map(|ns| ns as f64), 6),
            number(r.p99_ns.map(|ns| ns as f64), 6),
            format!("{:>9}", r.fuel.map_or_else(|| "-".into(), fuel)),
        ]
    });
    draw_table(frame, area, &POLICY_COLUMNS, lines);
}

fn draw_communicators(frame: &mut Frame<'_>, area: Rect, comms: &[CommRow]) {
    let room = usize::from(area.height.saturating_sub(1));
    let shown = if comms.len() > room { room.saturating_sub(1) } else { room };
    let mut lines: Vec<_> = comms.iter().take(shown).map(communicator).collect();
    if comms.len() > shown {
        let mut rest: [String; 8] = Default::default();
        rest[1] = format!("and {} more", comms.len() - shown);
        lines.push(rest);
    }
    draw_table(frame, area, &COMM_COLUMNS, lines.into_iter());
}

fn communicator(row: &CommRow) -> [String; 8] {
    let c = &row.comm;
    let name = if c.name.is_empty() { c.id.clone() } else { format!("{} {}", c.name, c.id) };
    [
        format!("{:>7}", row.pid),
        name,
        c.role.clone(),
        format!("{:>5}", c.ranks),
        format!("{:>5}", c.nodes),
        format!("{:>5}", c.generation),
        if c.switch == "next-call" { "next call".into() } else { "when made".to_owned() },
        format!("{:>6}", short(c.faults as f64)),
    ]
}

/// What else is to be told of each process, a line each: maps, reloads that failed.
fn notes(model: &Model) -> Vec<Line<'static>> {
    /// Processes that are noted.
    const MOST: usize = 4;
    model.statuses().take(MOST).flat_map(note).map(Line::from).collect()
}

fn note(s: &Status) -> Vec<String> {
    let dropped: u64 = s.maps.iter().map(|m| m.dropped).sum();
    let hash = s.plan.hash.get(..12).unwrap_or("none");
    let mut lines = vec![format!(
        "{} {}: plan {} sha256:{hash}, {}, {}B, {} records dropped",
        s.id(),
        s.command.escape_debug(),
        s.plan.generation,
        number::count(s.maps.len() as u64, "map"),
        number::bytes(s.map_bytes),
        short(dropped as f64)
    )];
    if let Some(why) = s.reloads.last.as_ref().and_then(|l| l.refused.as_ref()) {
        lines.push(format!("  refused: {}", why.escape_debug()));
    }
    lines
}

/// At most six characters: `999`, `12.3k`, `1.23M`.
fn short(n: f64) -> String {
    let (value, unit) = match n {
        n if n < 1e4 => return format!("{n:.0}"),
        n if n < 1e6 => (n / 1e3, "k"),
        n if n < 1e9 => (n / 1e6, "M"),
        n if n < 1e12 => (n / 1e9, "G"),
        n => (n / 1e12, "T"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{unit}")
}

/// The characters of a picture, line by line, without blanks at the ends.
pub(super) fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area();
    let line = |y: u16| {
        let cells = (area.left()..area.right()).filter_map(|x| buffer.cell((x, y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned() + "\n"
    };
    let text: String = (area.top()..area.bottom()).map(line).collect();
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::model::{Sort, tests::job};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn picture(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        text_of(terminal.backend().buffer())
    }

    fn two_jobs() -> Model {
        let mut model = Model::new(Sort::Calls);
        model.update(vec![job(4242, 1000, 0), job(51, 1000, 0)]);
        model.update(vec![job(4242, 2000, 1_234_560), job(51, 2000, 640)]);
        model
    }

    #[test]
    fn the_picture_fits_80_columns_and_24_lines() {
        let text = picture(&two_jobs(), 80, 24);
        let golden = include_str!("golden.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/top/golden.txt"), &text).unwrap();
        }
        assert_eq!(text, golden);
        assert!(text.lines().count() <= 24 && text.lines().all(|l| l.chars().count() <= 80));
    }

    #[test]
    fn small_and_empty_pictures_are_drawn() {
        assert!(picture(&two_jobs(), 40, 8).contains("POLICY"));
        assert!(picture(&Model::new(Sort::Calls), 80, 24).contains("No job of this user"));
    }

    #[test]
    fn numbers_have_at_most_six_characters() {
        for (n, want) in [
            (0.0, "0"),
            (41.4, "41"),
            (9999.0, "9999"),
            (10_000.0, "10.0k"),
            (123_456.0, "123k"),
            (999_999.0, "1000k"),
            (1_234_567.0, "1.23M"),
            (9_999_999.0, "10.0M"),
            (5e9, "5.00G"),
            (7e15, "7000T"),
        ] {
            assert_eq!(short(n), want);
            assert!(short(n).len() <= 6);
        }
    }
}
