//! `check --history`: judges what real clients and servers wrote down (`lockwright::record` has the format).
//!
//! Of what clients wrote, a lock was surely held from `granted` to `releases`, if it was not lost. Holds of one boot of one host
//! have one clock, and are shown to the same checkers that watch the explorer: exclusion, and tokens that rise. Tokens of two
//! writers are never the same, on whatever host. Of semaphores, no more permits were out at once than there are. If a server's record is there, everything that its clients were granted was
//! granted by it, and its own grants are judged by the order in which it made them. Where that record ends early (the server was
//! killed) or says that events are missing, the tokens in between contradict nothing.

use anyhow::{Context, Result, bail};
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_sim::check::history::History;
use lockwright_sim::check::{Checker, Violation};
use lockwright_term::Outcome;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The first line of a record, which is there again whenever its writer was started anew.
#[derive(Clone, Debug, Deserialize)]
struct Head {
    record: u64,
    by: String,
    boot: String,
    process: String,
    #[serde(default)]
    missed: u64,
}

/// Any other line.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    at: u64,
    event: String,
    client: Option<String>,
    space: String,
    lock: String,
    kind: String,
    mode: String,
    #[serde(default)]
    start: u64,
    #[serde(default = "end_of_all")]
    end: u64,
    token: Option<u64>,
    held: Option<bool>,
}

const fn end_of_all() -> u64 {
    u64::MAX
}

impl Line {
    fn claim(&self) -> Claim {
        let mode = if self.mode == "shared" { Mode::Shared } else { Mode::Exclusive };
        Claim { lock: 0, mode, start: self.start, end: self.end }
    }

    fn is_semaphore(&self) -> bool {
        self.kind == "semaphore"
    }

    /// The lock, by all that its name consists of.
    fn lock(&self) -> String {
        format!("{} {} {}", self.space, self.kind, self.lock)
    }
}

/// A grant that is held, as far as the record has been read.
#[derive(Debug)]
struct Open {
    /// Each grant counts as a client of its own: threads of one process exclude each other, too.
    client: PeerId,
    lock: String,
    is_semaphore: bool,
    claim: Claim,
    token: u64,
    from: u64,
    /// Since when it is being given back.
    to: Option<u64>,
}

/// One writer: a client, or a client as a server saw it.
#[derive(Debug)]
struct Writer {
    boot: String,
    /// Seen by a server, by its order.
    served: bool,
    open: Vec<Open>,
}

/// A grant, by all that two records of it have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Grant {
    /// By all that its name consists of.
    lock: String,
    shared: bool,
    units: (u64, u64),
    token: u64,
}

/// Everything that was read.
#[derive(Debug, Default)]
struct Judge {
    /// By boot, whether servers saw it, and whether it is of semaphores.
    histories: BTreeMap<(String, bool, bool), History>,
    /// All of them, without times.
    tokens: History,
    chains: usize,
    /// Each with its space.
    by_clients: Vec<(String, Grant)>,
    by_servers: HashSet<Grant>,
    served: HashSet<String>,
    /// By lock that stayed with a client, and whether shared, the tokens of its own grants: from, and up to but not.
    retained: BTreeMap<(String, bool), BTreeMap<u64, u64>>,
    /// Between which tokens servers may have granted what they did not write down.
    gaps: Vec<(u64, u64)>,
    report: HistoryReport,
}

/// What a server's record says of itself, as far as it has been read.
#[derive(Debug, Default)]
struct Run {
    /// The highest token that was granted.
    last: u64,
    /// Whether there may be others above it, which are not written down.
    unknown: bool,
    /// What was held when it was started anew, until it is claimed.
    before: Vec<Open>,
}

/// What `--json` prints.
#[derive(Debug, Default, Serialize)]
struct HistoryReport {
    records: usize,
    writers: usize,
    events: usize,
    grants: usize,
    lost: usize,
    /// Events that servers could not write.
    missed: u64,
    violations: Vec<String>,
}

impl Judge {
    fn read(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        let mut writers: BTreeMap<String, Writer> = BTreeMap::new();
        let (mut head, mut run): (Option<Head>, _) = (None, Run::default());
        self.report.records += 1;
        // A last line without an end was being written when its writer was killed.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        for (number, line) in whole.lines().enumerate() {
            let place = || format!("{}:{}", path.display(), number + 1);
            let value: serde_json::Value = serde_json::from_str(line).with_context(place)?;
            if value.get("record").is_some() {
                let next: Head = serde_json::from_value(value).with_context(place)?;
                if next.record != 1 {
                    bail!("{}: this program knows version 1 of records, not {}", place(), next.record);
                }
                if next.by == "server" {
                    self.report.missed += next.missed;
                    run.unknown |= head.is_some();
                    run.before.extend(writers.values_mut().flat_map(|writer| writer.open.drain(..)));
                }
                head = Some(next);
                continue;
            }
            if value.get("ended").is_some() {
                (run.unknown, head) = (false, None);
                continue;
            }
            let Some(head) = &head else { bail!("{}: this is no record: it has no first line", place()) };
            let line: Line = serde_json::from_value(value).with_context(place)?;
            self.report.events += 1;
            let served = head.by == "server";
            let name = line.client.as_deref().unwrap_or(&head.process).to_owned();
            let key = format!("{}{name}", head.boot);
            let mut writer = writers.remove(&key).unwrap_or_else(|| Writer {
                boot: head.boot.clone(),
                served,
                open: Vec::new(),
            });
            if served {
                self.seen(&mut run, &line);
            }
            if let Some(held) = run.claimed(&line) {
                writer.open.push(held);
            } else {
                self.event(&mut writer, &line);
            }
            writers.insert(key, writer);
        }
        if run.unknown || head.is_some_and(|head| head.by == "server") {
            self.gaps.push((run.last, u64::MAX));
        }
        self.report.writers += writers.len();
        // No line says what came of these.
        for writer in writers.values_mut() {
            for open in std::mem::take(&mut writer.open) {
                self.close(writer, open, true);
            }
        }
        if let Some(writer) = writers.values().next() {
            run.before.into_iter().for_each(|open| self.close(writer, open, true));
        }
        Ok(())
    }

    /// A server wrote this down.
    fn seen(&mut self, run: &mut Run, line: &Line) {
        if !matches!(&*line.event, "granted" | "upgraded" | "downgraded") {
            return;
        }
        let token = line.token.unwrap_or_default();
        if std::mem::take(&mut run.unknown) {
            self.gaps.push((run.last, token));
        }
        run.last = run.last.max(token);
    }

    fn event(&mut self, writer: &mut Writer, line: &Line) {
        let (lock, claim, token) = (line.lock(), line.claim(), line.token.unwrap_or_default());
        match &*line.event {
            "granted" | "claimed" => {
                self.report.grants += usize::from(line.event == "granted");
                self.grant(writer, line);
                self.chains += 1;
                let client = PeerId::client(self.chains - 1);
                writer.open.push(Open {
                    client,
                    lock,
                    is_semaphore: line.is_semaphore(),
                    claim,
                    token,
                    from: line.at,
                    to: None,
                });
            }
            "retained" => {
                self.retained.entry((lock, line.mode == "shared")).or_default().insert(line.start, line.end);
            }
            "releases" => {
                if let Some(open) = writer.find(&lock, &claim, Some(token)) {
                    open.to.get_or_insert(line.at);
                }
            }
            "released" | "lost" => {
                let lost = line.event == "lost" || line.held == Some(false);
                self.report.lost += usize::from(lost);
                if let Some(mut open) = writer.take(&lock, &claim, Some(token)) {
                    // A server writes it down when it is over.
                    open.to.get_or_insert(line.at);
                    // Only the server knows when a lock was lost.
                    self.close(writer, open, lost && !writer.served);
                }
            }
            "upgraded" => {
                self.grant(writer, line);
                self.becomes(writer, line, Claim { mode: Mode::Shared, ..claim }, None);
            }
            "downgrades" => {
                self.becomes(writer, line, Claim { mode: Mode::Exclusive, ..claim }, Some(token));
            }
            "downgraded" => {
                if let Some(open) = writer.find(&lock, &claim, None) {
                    open.token = open.token.max(token);
                }
            }
            "gives" => {
                let around = writer.open.iter().position(|open| {
                    let is_it = open.lock == lock && open.token == token && open.to.is_none();
                    is_it && open.claim.start <= claim.start && claim.end <= open.claim.end
                });
                if let Some(at) = around {
                    let whole = writer.open.swap_remove(at);
                    let part = |start, end, to| Open {
                        lock: lock.clone(),
                        claim: Claim { start, end, ..whole.claim },
                        to,
                        ..whole
                    };
                    self.close(writer, part(claim.start, claim.end, Some(line.at)), false);
                    let (left, right) = (whole.claim.start..claim.start, claim.end..whole.claim.end);
                    let kept = [left, right].into_iter().filter(|kept| !kept.is_empty());
                    writer.open.extend(kept.map(|kept| part(kept.start, kept.end, None)));
                }
            }
            _ => {}
        }
    }

    /// What was held as `before` is held as the line says from now on.
    fn becomes(&mut self, writer: &mut Writer, line: &Line, before: Claim, token: Option<u64>) {
        let lock = line.lock();
        // Without a line of its grant, it is not known to be held.
        let Some(mut open) = writer.take(&lock, &before, token) else { return };
        let client = open.client;
        open.to = Some(line.at);
        self.close(writer, open, false);
        let (claim, token) = (line.claim(), line.token.unwrap_or_default());
        writer.open.push(Open {
            client,
            lock,
            is_semaphore: line.is_semaphore(),
            claim,
            token,
            from: line.at,
            to: None,
        });
    }

    fn grant(&mut self, writer: &Writer, line: &Line) {
        let (shared, units) = (line.mode == "shared", (line.start, line.end));
        let grant = Grant { lock: line.lock(), shared, units, token: line.token.unwrap_or_default() };
        if writer.served {
            self.served.insert(line.space.clone());
            self.by_servers.insert(grant);
        } else {
            self.by_clients.push((line.space.clone(), grant));
        }
    }

    fn close(&mut self, writer: &Writer, open: Open, unknown: bool) {
        let Open { client, lock, is_semaphore, claim, token, from, to } = open;
        let times = (from, to.filter(|_| !unknown));
        let key = (writer.boot.clone(), writer.served, is_semaphore);
        let new = if is_semaphore { History::of_semaphores } else { History::default };
        self.histories.entry(key).or_insert_with(new).add_hold(client, &lock, claim, token, times);
        // Permits of one semaphore have tokens of their own, which say nothing of one another.
        if !writer.served && !is_semaphore {
            self.tokens.add_hold(client, &lock, claim, token, (from, None));
        }
    }

    /// Everything that must not be.
    fn violations(&self) -> Vec<Violation> {
        let mut found: Vec<_> = self.histories.values().filter_map(|history| history.check().err()).collect();
        found.extend(self.tokens.check().err());
        let missing = |token: u64| self.gaps.iter().any(|(from, to)| *from < token && token < *to);
        let own = |grant: &Grant| {
            let blocks = self.retained.get(&(grant.lock.clone(), grant.shared));
            // Tokens rise: no block begins within another.
            let block = blocks.and_then(|blocks| blocks.range(..=grant.token).next_back());
            block.is_some_and(|(_, to)| grant.token < *to)
        };
        let unknown = |(space, grant): &&(String, Grant)| {
            let seen = self.by_servers.contains(grant) || missing(grant.token) || own(grant);
            self.served.contains(space) && !seen
        };
        found.extend(self.by_clients.iter().find(unknown).map(|(_, Grant { lock, token, .. })| {
            let what = format!("a client was granted {lock} with token {token}, and no server granted that");
            Violation::new(Checker::Exclusion, what)
        }));
        found
    }
}

impl Run {
    /// What this line claims, if it was granted in an earlier run and written down: it was held all the time.
    fn claimed(&mut self, line: &Line) -> Option<Open> {
        let (lock, claim) = (line.lock(), line.claim());
        let is_it = |open: &Open| open.lock == lock && open.claim == claim && Some(open.token) == line.token;
        let at = self.before.iter().position(is_it).filter(|_| line.event == "claimed")?;
        Some(self.before.swap_remove(at))
    }
}

impl Writer {
    /// What is held like that. Without a token: and is not being given back, of which the answer may come late.
    fn position(&self, lock: &str, claim: &Claim, token: Option<u64>) -> Option<usize> {
        self.open.iter().position(|open| {
            let is_it = token.map_or(open.to.is_none(), |token| token == open.token);
            is_it && open.lock == lock && open.claim == *claim
        })
    }

    fn find(&mut self, lock: &str, claim: &Claim, token: Option<u64>) -> Option<&mut Open> {
        let at = self.position(lock, claim, token)?;
        self.open.get_mut(at)
    }

    fn take(&mut self, lock: &str, claim: &Claim, token: Option<u64>) -> Option<Open> {
        self.position(lock, claim, token).map(|at| self.open.swap_remove(at))
    }
}

/// Judges these records together.
pub(super) fn run(paths: &[PathBuf], json: bool, out: &mut impl Write) -> Result<Outcome> {
    let mut judge = Judge::default();
    for path in paths {
        judge.read(path)?;
    }
    judge.report.violations = judge.violations().iter().map(Violation::to_string).collect();
    let report = &judge.report;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    } else {
        let HistoryReport { records, writers, events, grants, lost, missed, violations } = report;
        for violation in violations {
            writeln!(out, "VIOLATION  {violation}")?;
        }
        writeln!(
            out,
            "history: records={records} writers={writers} events={events} grants={grants} lost={lost} missed={missed} violations={}",
            violations.len()
        )?;
    }
    Ok(Outcome::clean_if(report.violations.is_empty()))
}

#[cfg(test)]
mod tests;
