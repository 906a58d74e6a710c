//! `ringfence top`: a live table of what the policies of this user's jobs do. [`model`] turns status files into rates, [`view`] draws them.

mod model;
mod view;

use super::{Exit, Out, process};
use anyhow::{Context, ensure};
use model::{Model, Sort};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two looks at the status files, which change once a second.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `ringfence top`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this process.
    #[arg(long, value_name = "PID")]
    pid: Option<process::Pid>,
    /// What the policies are sorted by; the keys c, f, p, u and n change it.
    #[arg(long, value_enum, default_value_t = Sort::Calls)]
    sort: Sort,
    /// Look for two seconds, print one picture as plain text, and end.
    #[arg(long)]
    once: bool,
    /// Columns and lines of that picture.
    #[arg(long, value_name = "COLSxLINES", default_value = "80x24", requires = "once", value_parser = size)]
    size: (u16, u16),
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let parts = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    parts
        .filter(|(w, h)| (40..=500).contains(w) && (8..=500).contains(h))
        .ok_or_else(|| "must be COLSxLINES, 40x8 to 500x500".to_owned())
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut model = Model::new(args.sort);
    if args.once {
        return once(args, &mut model, out);
    }
    ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal; `ringfence top --once` prints one picture"
    );
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let result = live(args, &mut model, &mut terminal);
    ratatui::restore();
    result.map(|()| Exit::Ok)
}

fn look(args: &Args, model: &mut Model) -> anyhow::Result<()> {
    model.update(process::find(args.pid)?.into_iter().map(|p| p.status).collect());
    Ok(())
}

fn live(args: &Args, model: &mut Model, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
    loop {
        look(args, model)?;
        let next = Instant::now() + LOOK;
        loop {
            terminal.draw(|frame| view::draw(frame, model))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && pressed(model, key.code, key.modifiers)
            {
                return Ok(());
            }
        }
    }
}

/// Does what a key asks for; true if it asks to end.
fn pressed(model: &mut Model, key: KeyCode, with: KeyModifiers) -> bool {
    match key {
        KeyCode::Char('c') if with.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('j') | KeyCode::Down => model.scroll(1),
        KeyCode::Char('k') | KeyCode::Up => model.scroll(-1),
        KeyCode::Char(c) => {
            if let Some(sort) = Sort::of_key(c) {
                model.sort_by(sort);
            }
        }
        _ => {}
    }
    false
}

fn once(args: &Args, model: &mut Model, out: Out<'_>) -> anyhow::Result<Exit> {
    look(args, model)?;
    for _ in 0..4 {
        std::thread::sleep(LOOK);
        look(args, model)?;
    }
    let mut terminal = Terminal::new(TestBackend::new(args.size.0, args.size.1))?;
    terminal.draw(|frame| view::draw(frame, model))?;
    write!(out, "{}", view::text_of(terminal.backend().buffer()))?;
    Ok(if model.is_empty() { Exit::Refused } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_columns_and_lines() {
        assert_eq!(size("80x24"), Ok((80, 24)));
        for text in ["", "80", "80x", "x24", "39x24", "80x7", "501x24", "80x24x1", "-80x24"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_sort_scroll_and_end() {
        let mut model = Model::new(Sort::Calls);
        let none = KeyModifiers::NONE;
        assert!(pressed(&mut model, KeyCode::Char('q'), none) && pressed(&mut model, KeyCode::Esc, none));
        assert!(pressed(&mut model, KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!pressed(&mut model, KeyCode::Char('p'), none) && !pressed(&mut model, KeyCode::Up, none));
        assert_eq!(model.sorted_by(), Sort::Slow);
    }
}
