//! What `top` shows and what its keys do: a state machine without I/O. Keys, pictures and listings go in; lines of text and the
//! grant that is to be broken come out.

use super::picture::{HEAD, Picture, Sort};
use crate::ls;
use lockwright::LockName;
use lockwright::inspect::{Entry, EntryState, Heat, Kind};

/// A key, as the terminal sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Char(char),
}

/// What is to be done because of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Who holds and waits for the selected lock is to be looked up.
    List,
    Break(Grant),
    Quit,
}

/// A grant that can be broken, and how it is called in the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) name: LockName,
    pub(super) token: u64,
    holder: String,
}

/// A lock in a picture.
type Selected = (LockName, Kind);

/// See the module.
#[derive(Debug)]
pub(super) struct Screen {
    space: String,
    pub(super) sort: Sort,
    colours: bool,
    picture: Option<Picture>,
    selected: Option<Selected>,
    /// Who holds and who waits for the selected lock, and which of them is selected.
    opened: Option<(Vec<Entry>, usize)>,
    question: Option<Grant>,
    said: Option<String>,
}

const HELP: &str = "enter holders and waiters  w g h m n sort  b break  q quit";

impl Screen {
    pub(super) fn new(space: &str, sort: Sort, colours: bool) -> Self {
        Self {
            space: space.to_owned(),
            sort,
            colours,
            picture: None,
            selected: None,
            opened: None,
            question: None,
            said: None,
        }
    }

    /// The lock whose holders and waiters are shown.
    pub(super) fn opened(&self) -> Option<&LockName> {
        self.opened.as_ref().and(self.selected.as_ref()).map(|(name, _)| name)
    }

    /// A new picture. What was selected stays selected, wherever it is now.
    pub(super) fn set_picture(&mut self, picture: Picture) {
        let is_there = |chosen: &Selected| picture.rows.iter().any(|row| selected(&row.heat) == *chosen);
        if !self.selected.as_ref().is_some_and(is_there) && self.opened.is_none() {
            self.selected = picture.rows.first().map(|row| selected(&row.heat));
        }
        self.picture = Some(picture);
    }

    /// Who holds and who waits for the opened lock: `entries` are those of the whole space.
    pub(super) fn set_entries(&mut self, entries: Vec<Entry>) {
        let Some((name, kind)) = &self.selected else { return };
        if let Some((opened, at)) = &mut self.opened {
            *opened = entries;
            opened.retain(|entry| entry.name == *name && entry.kind() == *kind);
            opened.sort_by_key(|entry| (entry.state == EntryState::Waiting, std::cmp::Reverse(entry.age)));
            *at = (*at).min(opened.len().saturating_sub(1));
        }
    }

    /// Something that the user is told until the next key.
    pub(super) fn say(&mut self, said: String) {
        self.said = Some(said);
    }

    pub(super) fn press(&mut self, key: Key) -> Action {
        self.said = None;
        if let Some(grant) = self.question.take() {
            return if key == Key::Char('y') { Action::Break(grant) } else { Action::Nothing };
        }
        match key {
            Key::Up | Key::Char('k') => self.step(false),
            Key::Down | Key::Char('j') => self.step(true),
            Key::Enter if self.selected.is_some() => {
                self.opened = Some((Vec::new(), 0));
                return Action::List;
            }
            Key::Escape if self.opened.is_some() => self.opened = None,
            Key::Char('b') => return self.ask(),
            Key::Char('q') => return Action::Quit,
            Key::Char(letter) => match letter {
                'w' => self.sort = Sort::Waiting,
                'g' => self.sort = Sort::Grants,
                'h' => self.sort = Sort::Held,
                'm' => self.sort = Sort::Wait,
                'n' => self.sort = Sort::Name,
                _ => {}
            },
            Key::Enter | Key::Escape => {}
        }
        if let Some(picture) = self.picture.take() {
            self.picture = Some(picture.sorted(self.sort, usize::MAX));
        }
        Action::Nothing
    }

    fn step(&mut self, down: bool) {
        let step = |at: usize, count: usize| match count {
            0 => 0,
            _ if down => (at + 1).min(count - 1),
            _ => at.saturating_sub(1),
        };
        if let Some((entries, at)) = &mut self.opened {
            *at = step(*at, entries.len());
            return;
        }
        let Some(picture) = &self.picture else { return };
        let at = picture.rows.iter().position(|row| Some(selected(&row.heat)) == self.selected);
        let next = at.map_or(0, |at| step(at, picture.rows.len()));
        self.selected = picture.rows.get(next).map(|row| selected(&row.heat));
    }

    /// The question whether the selected holder is to lose its lock. Where no holder is selected yet, they are shown first.
    fn ask(&mut self) -> Action {
        let Some((entries, at)) = &self.opened else { return self.press(Key::Enter) };
        let holder = entries.get(*at).filter(|entry| entry.state != EntryState::Waiting);
        self.question = holder.and_then(|entry| {
            let holder = format!("{} ({} on {})", plain(&entry.program), entry.pid, plain(&entry.host));
            Some(Grant { name: entry.name.clone(), token: entry.token?, holder })
        });
        if self.question.is_none() {
            self.say("select who holds it: those who wait have nothing to lose".to_owned());
        }
        Action::Nothing
    }

    /// The lines of a screen of `width` and `height` characters.
    pub(super) fn draw(&self, width: usize, height: usize) -> Vec<String> {
        let last = match (&self.question, &self.said) {
            (Some(Grant { name, token, holder }), _) => self.coloured(
                "1;31",
                &format!("take {name} from {holder}, token {token}? y, or any other key"),
                width,
            ),
            (None, Some(said)) => self.coloured("33", &plain(said), width),
            (None, None) if self.opened.is_some() => {
                self.coloured("2", "escape back to all locks  b break the selected holder  q quit", width)
            }
            (None, None) => self.coloured("2", HELP, width),
        };
        let mut lines = match &self.opened {
            Some((entries, at)) => self.list(entries, *at, width, height.saturating_sub(1)),
            None => self.table(width, height.saturating_sub(1)),
        };
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(last);
        lines
    }

    fn table(&self, width: usize, height: usize) -> Vec<String> {
        let Some(picture) = &self.picture else { return vec![format!("looking at {}", self.space)] };
        let count = picture.rows.len();
        let title = match count {
            0 => format!("nothing is held, waited for or granted in {}", self.space),
            _ => format!(
                "{}: {}, by {}",
                self.space,
                lockwright_term::units::counted(count as u64, "lock"),
                by(self.sort)
            ),
        };
        let mut lines = vec![self.coloured("1", &title, width)];
        if count == 0 {
            return lines;
        }
        let at = picture.rows.iter().position(|row| Some(selected(&row.heat)) == self.selected).unwrap_or(0);
        // The selected row is always to be seen.
        let room = height.saturating_sub(2).max(1);
        let first = (at + 1).saturating_sub(room);
        let shown = || picture.rows.iter().enumerate().skip(first).take(room);
        let mut cells = vec![HEAD.map(str::to_owned)];
        cells.extend(shown().map(|(_, row)| picture.cells(row)));
        let mut text = aligned(&cells).into_iter();
        lines.push(self.coloured("1", &text.next().unwrap_or_default(), width));
        for ((index, row), line) in shown().zip(text) {
            let colour = match row.heat.waiters {
                _ if index == at => "7",
                0 => "0",
                _ => "33",
            };
            lines.push(self.coloured(colour, &line, width));
        }
        lines
    }

    fn list(&self, entries: &[Entry], at: usize, width: usize, height: usize) -> Vec<String> {
        let name = self.opened().map(ToString::to_string).unwrap_or_default();
        let mut lines = vec![self.coloured("1", &format!("{name} in {}", self.space), width)];
        if entries.is_empty() {
            lines.push("nobody holds it or waits for it".to_owned());
            return lines;
        }
        let room = height.saturating_sub(2).max(1);
        let first = (at + 1).saturating_sub(room);
        let shown = || entries.iter().enumerate().skip(first).take(room);
        let mut cells = vec![ls::HEAD.map(str::to_owned)];
        cells.extend(shown().map(|(_, entry)| ls::to_row(entry).map(|cell| plain(&cell))));
        let mut text = aligned(&cells).into_iter();
        lines.push(self.coloured("1", &text.next().unwrap_or_default(), width));
        for ((index, entry), line) in shown().zip(text) {
            let colour = match entry.state {
                _ if index == at => "7",
                _ if !entry.alive => "31",
                EntryState::Waiting => "33",
                _ => "32",
            };
            lines.push(self.coloured(colour, &line, width));
        }
        lines
    }

    /// A line that fits, in a colour if there are some. Where there are none, what is selected is marked by `>`.
    fn coloured(&self, colour: &str, line: &str, width: usize) -> String {
        if self.colours {
            let fit: String = line.chars().take(width).collect();
            return if colour == "7" {
                format!("\x1b[7m{fit:width$}\x1b[m")
            } else {
                format!("\x1b[{colour}m{fit}\x1b[m")
            };
        }
        let mark = if colour == "7" { "> " } else { "  " };
        mark.chars().chain(line.chars()).take(width).collect()
    }
}

fn selected(heat: &Heat) -> Selected {
    (heat.name.clone(), heat.kind)
}

const fn by(sort: Sort) -> &'static str {
    match sort {
        Sort::Waiting => "who waits",
        Sort::Grants => "grants",
        Sort::Held => "who holds",
        Sort::Wait => "mean wait",
        Sort::Name => "name",
    }
}

/// What others wrote, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Rows with their columns aligned, a line each.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let mut text = Vec::new();
    // A vector takes every byte.
    let _ = lockwright_term::grid(&mut text, rows);
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn entry(text: &str, state: EntryState, token: u64) -> Entry {
        let mut entry = Entry::new(name(text), state);
        (entry.token, entry.pid, entry.alive) = ((state != EntryState::Waiting).then_some(token), 7, true);
        (entry.program, entry.age) = ("job\x1b[2J".to_owned(), Duration::from_secs(token));
        entry
    }

    fn screen(locks: &[&str]) -> Screen {
        let mut screen = Screen::new("shm:", Sort::Name, false);
        screen.set_picture(Picture::of(locks.iter().map(|text| Heat::none(name(text), Kind::Keyed))));
        screen
    }

    fn shown(screen: &Screen) -> String {
        screen.draw(100, 10).join("\n")
    }

    #[test]
    fn what_is_selected_stays_so_in_the_next_picture_and_under_another_order() {
        let mut screen = screen(&["a", "b", "c"]);
        assert!(shown(&screen).contains("> a"));
        screen.press(Key::Down);
        screen.press(Key::Char('g'));
        assert!(shown(&screen).contains("> b"));
        screen.set_picture(Picture::of(["c", "b"].map(|text| Heat::none(name(text), Kind::Keyed))));
        assert!(shown(&screen).contains("> b"));
        screen.set_picture(Picture::of(["c"].map(|text| Heat::none(name(text), Kind::Keyed))));
        assert!(shown(&screen).contains("> c"), "it is gone");
    }

    #[test]
    fn a_holder_is_broken_only_after_a_yes_and_a_waiter_never() {
        let mut screen = screen(&["a"]);
        assert_eq!(screen.press(Key::Char('b')), Action::List, "first it is shown who holds it");
        let held = entry("a", EntryState::Held, 5);
        screen.set_entries(vec![
            entry("a", EntryState::Waiting, 6),
            held,
            entry("other", EntryState::Held, 9),
        ]);
        assert!(!shown(&screen).contains("other"));
        screen.press(Key::Char('b'));
        assert!(shown(&screen).contains("take a from job"), "{}", shown(&screen));
        assert_eq!(screen.press(Key::Char('n')), Action::Nothing);
        assert_eq!(screen.press(Key::Char('y')), Action::Nothing, "the question is over");
        screen.press(Key::Char('b'));
        let Action::Break(grant) = screen.press(Key::Char('y')) else { panic!("it was a yes") };
        assert_eq!((grant.name, grant.token), (name("a"), 5));
        screen.press(Key::Down);
        screen.press(Key::Char('b'));
        assert_eq!(screen.press(Key::Char('y')), Action::Nothing);
        screen.press(Key::Escape);
        assert!(shown(&screen).contains("> a"));
        assert_eq!(screen.press(Key::Char('q')), Action::Quit);
    }

    #[test]
    fn what_programs_call_themselves_is_not_obeyed_by_the_terminal_and_nothing_is_wider_than_it() {
        let mut screen = screen(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
        screen.press(Key::Enter);
        screen.set_entries(vec![entry("a", EntryState::Held, 5)]);
        assert!(!shown(&screen).contains('\x1b'));
        screen.press(Key::Escape);
        for _ in 0..20 {
            screen.press(Key::Down);
        }
        for (width, height) in [(1, 1), (20, 4), (200, 50)] {
            let lines = screen.draw(width, height);
            assert_eq!(lines.len(), height);
            assert!(lines.iter().all(|line| line.chars().count() <= width));
        }
        assert!(screen.draw(20, 4).join("\n").contains("> j"), "the selected one is to be seen");
    }
}
