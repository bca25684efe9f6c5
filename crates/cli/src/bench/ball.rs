//! Two processes that hand a mutex back and forth, and note when. The holder keeps it for a moment, in which the other begins to
//! wait, and does not come back at once: so every unlock is a handover, and no process overtakes.

use anyhow::Result;
use lockwright::Mutex;
use nix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fmt::Write;
use std::hint::spin_loop;

/// For so long it is kept; a waiter spins for longer.
const KEEPS_NS: u64 = 1_000;
/// For so long nobody asks who has had it.
const PAUSES_NS: u64 = 300;

/// What a process notes of one turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    token: u64,
    asked: u64,
    got: u64,
    gave: u64,
}

/// The same clock for all processes of this machine.
fn now() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

fn spin_until(time: u64) -> Result<u64> {
    loop {
        let now = now()?;
        if now >= time {
            return Ok(now);
        }
        spin_loop();
    }
}

/// Takes and gives back the ball until it is enough; that is asked with the number of turns.
pub(super) fn play(ball: &Mutex, is_enough: impl Fn(usize) -> bool) -> Result<Vec<Turn>> {
    let mut turns = Vec::new();
    while !is_enough(turns.len()) {
        let asked = now()?;
        let guard = ball.lock().wait()?;
        let (got, token) = (now()?, guard.token());
        let gave = spin_until(got + KEEPS_NS)?;
        drop(guard);
        spin_until(gave + PAUSES_NS)?;
        turns.push(Turn { token, asked, got, gave });
    }
    Ok(turns)
}

/// Turns as a partner tells them.
pub(super) fn told(turns: &[Turn]) -> String {
    turns.iter().fold(String::new(), |mut text, Turn { token, asked, got, gave }| {
        let _ = writeln!(text, "{token} {asked} {got} {gave}");
        text
    })
}

/// And as they are heard.
pub(super) fn heard(text: &str) -> Vec<Turn> {
    let turn = |line: &str| {
        let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
        let mut next = || numbers.next();
        Some(Turn { token: next()?, asked: next()?, got: next()?, gave: next()? })
    };
    text.lines().filter_map(turn).collect()
}

/// How long it took from one's unlock until the other had it, who waited: every grant counts the token on by one.
pub(super) fn handovers(mine: &[Turn], theirs: &[Turn]) -> Vec<f64> {
    let from_to = |from: &[Turn], to: &[Turn]| -> Vec<f64> {
        let next: HashMap<_, _> = to.iter().map(|turn| (turn.token, *turn)).collect();
        let pairs = from.iter().filter_map(|turn| Some((turn.gave, next.get(&(turn.token + 1))?)));
        let waited = pairs.filter(|(gave, next)| next.asked < *gave);
        waited.map(|(gave, next)| next.got.saturating_sub(gave) as f64).collect()
    };
    [from_to(mine, theirs), from_to(theirs, mine)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handovers_are_those_of_consecutive_turns_with_a_waiter() {
        let turn = |token, asked, got, gave| Turn { token, asked, got, gave };
        // Token 3 follows 2 in the same hands; nobody waited for 5 when 4 was given back.
        let mine = [turn(1, 0, 10, 20), turn(4, 50, 74, 80)];
        let theirs = heard(&told(&[turn(2, 15, 31, 40), turn(3, 45, 46, 70), turn(5, 90, 91, 99)]));
        assert_eq!(handovers(&mine, &theirs), [11.0, 4.0]);
    }
}
