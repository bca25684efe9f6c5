//! `top` on a terminal: keys, pictures and signals come as events, and every event draws the screen anew.

use super::Args;
use super::picture::{Counts, Picture};
use super::screen::{Action, Key, Screen};
use anyhow::{Context, Result};
use lockwright::inspect::Inspector;
use lockwright_term::Outcome;
use nix::sys::signal::{SigSet, Signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Read, Write, stdin, stdout};
use std::sync::mpsc::{Sender, channel};

enum Event {
    Picture(Result<Picture>),
    Key(Key),
    End,
}

pub(super) fn show(args: &Args, inspector: Inspector, out: &mut impl Write) -> Result<Outcome> {
    // Before any thread is started: they all inherit the mask. A signal ends it in order, with the terminal as it was.
    let mut signals = SigSet::from(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGHUP);
    signals.thread_block().context("cannot block signals")?;
    let (tell, told) = channel();
    let space = args.space.space.clone();
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(&space, args.sort, colours);
    let _raw = Raw::enter()?;
    let end = tell.clone();
    spawn(move || {
        let _ = signals.wait();
        let _ = end.send(Event::End);
    })?;
    let keys = tell.clone();
    spawn(move || read_keys(&keys))?;
    // Listings and breaks have a connection of their own, so that no key waits for an interval.
    let Some(own) = args.space.look()? else { return Ok(Outcome::Clean) };
    let interval = args.interval;
    spawn(move || {
        while tell.send(Event::Picture(Picture::take(&inspector, Counts::of(&space), interval))).is_ok() {}
    })?;
    loop {
        draw(&screen, out)?;
        let action = match told.recv().context("its threads ended")? {
            Event::End => Action::Quit,
            Event::Key(key) => screen.press(key),
            Event::Picture(picture) => {
                screen.set_picture(picture?.sorted(screen.sort, args.locks));
                if screen.opened().is_some() { Action::List } else { Action::Nothing }
            }
        };
        match action {
            Action::Nothing => {}
            Action::Quit => return Ok(Outcome::Clean),
            Action::List => screen.set_entries(own.entries()?),
            Action::Break(grant) => {
                let said = match own.break_grant(grant.name.as_bytes(), grant.token) {
                    Ok(()) => format!("broke {}, token {}", grant.name, grant.token),
                    Err(error) => error.to_string(),
                };
                screen.set_entries(own.entries()?);
                screen.say(said);
            }
        }
    }
}

fn draw(screen: &Screen, out: &mut impl Write) -> Result<()> {
    let size = tcgetwinsize(stdout()).map(|size| (size.ws_col.into(), size.ws_row.into()));
    let (width, height) = size.ok().filter(|size| *size != (0, 0)).unwrap_or((80, 24));
    write!(out, "\x1b[H")?;
    for (index, line) in screen.draw(width, height).iter().enumerate() {
        write!(out, "{}{line}\x1b[K", if index == 0 { "" } else { "\r\n" })?;
    }
    write!(out, "\x1b[J")?;
    Ok(out.flush()?)
}

/// The terminal without lines and echo, on a screen of its own; as it was when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(stdin()).context("cannot ask the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Flush, &raw).context("cannot set the terminal")?;
        print!("\x1b[?1049h\x1b[?25l");
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        print!("\x1b[?25h\x1b[?1049l");
        let _ = stdout().flush();
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Reads keys until the terminal is gone.
fn read_keys(tell: &Sender<Event>) {
    let mut bytes = [0; 64];
    while let Ok(count @ 1..) = stdin().read(&mut bytes) {
        for event in events(&bytes[..count]) {
            if tell.send(event).is_err() {
                return;
            }
        }
    }
    let _ = tell.send(Event::End);
}

/// The keys in what a terminal has sent at once. An escape with nothing behind it is the key.
fn events(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (event, rest) = match (first, rest) {
            (0x1b, [b'[' | b'O', b'A', rest @ ..]) => (Some(Event::Key(Key::Up)), rest),
            (0x1b, [b'[' | b'O', b'B', rest @ ..]) => (Some(Event::Key(Key::Down)), rest),
            // Another key that begins with an escape: not ours.
            (0x1b, [_, ..]) => (None, &[][..]),
            (0x1b, []) => (Some(Event::Key(Key::Escape)), rest),
            (b'\r' | b'\n', _) => (Some(Event::Key(Key::Enter)), rest),
            // ^C, ^D
            (3 | 4, _) => (Some(Event::End), rest),
            (byte, _) => (Some(Event::Key(Key::Char(char::from(*byte)))), rest),
        };
        events.extend(event);
        bytes = rest;
    }
    events
}

fn spawn(act: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().spawn(act).map(drop).context("cannot start a thread")
}
