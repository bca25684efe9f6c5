//! `check --history`: judges what real clients and servers wrote down (`lockwright::record` has the format).
//!
//! Of what clients wrote, a lock was surely held from `granted` to `releases`, if it was not lost. Holds of one boot of one host
//! have one clock, and are shown to the same checkers that watch the explorer: exclusion, and tokens that rise. Tokens of two
//! writers are never the same, on whatever host. If a server's record is there, everything that its clients were granted was
//! granted by it, and its own grants are judged by the order in which it made them.

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

    /// The lock, by all that its name consists of.
    fn lock(&self) -> String {
        format!("{} {} {}", self.space, self.kind, self.lock)
    }
}

/// What somebody holds, as far as the record has been read.
#[derive(Debug)]
struct Open {
    lock: String,
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
    client: PeerId,
    open: Vec<Open>,
}

/// A grant, by all that two records of it have in common.
type Grant = (String, bool, u64, u64, u64);

/// Everything that was read.
#[derive(Debug, Default)]
struct Judge {
    /// By boot, and whether servers saw it.
    histories: BTreeMap<(String, bool), History>,
    /// All of them, without times.
    tokens: History,
    clients: usize,
    by_clients: Vec<Grant>,
    by_servers: HashSet<Grant>,
    served: HashSet<String>,
    report: HistoryReport,
}

/// What `--json` prints.
#[derive(Debug, Default, Serialize)]
struct HistoryReport {
    records: usize,
    writers: usize,
    events: usize,
    grants: usize,
    lost: usize,
    violations: Vec<String>,
}

impl Judge {
    fn read(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        let mut writers: BTreeMap<String, Writer> = BTreeMap::new();
        let mut head: Option<Head> = None;
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
                head = Some(next);
                continue;
            }
            let Some(head) = &head else { bail!("{}: this is no record: it has no first line", place()) };
            let line: Line = serde_json::from_value(value).with_context(place)?;
            self.report.events += 1;
            let served = head.by == "server";
            let name = line.client.as_deref().unwrap_or(&head.process).to_owned();
            let key = format!("{}{name}", head.boot);
            let mut writer = writers.remove(&key).unwrap_or_else(|| {
                self.clients += 1;
                let client = PeerId::client(self.clients - 1);
                Writer { boot: head.boot.clone(), served, client, open: Vec::new() }
            });
            self.event(&mut writer, &line);
            writers.insert(key, writer);
        }
        for mut writer in writers.into_values() {
            self.report.writers += 1;
            for open in std::mem::take(&mut writer.open) {
                // What came of it nobody wrote down.
                self.close(&writer, open, true);
            }
        }
        Ok(())
    }

    fn event(&mut self, writer: &mut Writer, line: &Line) {
        let (lock, claim, token) = (line.lock(), line.claim(), line.token.unwrap_or_default());
        match &*line.event {
            "granted" => {
                self.report.grants += 1;
                self.grant(writer, line);
                writer.open.push(Open { lock, claim, token, from: line.at, to: None });
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
                    self.close(writer, open, lost);
                }
            }
            "upgraded" => {
                let shared = Claim { mode: Mode::Shared, ..claim };
                if let Some(mut open) = writer.take(&lock, &shared, None) {
                    open.to = Some(line.at);
                    self.close(writer, open, false);
                }
                self.grant(writer, line);
                writer.open.push(Open { lock, claim, token, from: line.at, to: None });
            }
            "downgrades" => {
                let alone = Claim { mode: Mode::Exclusive, ..claim };
                if let Some(mut open) = writer.take(&lock, &alone, Some(token)) {
                    open.to = Some(line.at);
                    self.close(writer, open, false);
                }
                writer.open.push(Open { lock, claim, token, from: line.at, to: None });
            }
            "downgraded" => {
                if let Some(open) = writer.find(&lock, &claim, None) {
                    open.token = open.token.max(token);
                }
            }
            "gives" => {
                let around = writer.open.iter().position(|open| {
                    open.lock == lock && open.claim.start <= claim.start && claim.end <= open.claim.end
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

    fn grant(&mut self, writer: &Writer, line: &Line) {
        let shared = line.mode == "shared";
        let grant = (line.lock(), shared, line.start, line.end, line.token.unwrap_or_default());
        if writer.served {
            self.served.insert(line.space.clone());
            self.by_servers.insert(grant);
        } else {
            self.by_clients.push(grant);
        }
    }

    fn close(&mut self, writer: &Writer, open: Open, unknown: bool) {
        let Open { lock, claim, token, from, to } = open;
        let times = (from, to.filter(|_| !unknown));
        let history = self.histories.entry((writer.boot.clone(), writer.served)).or_default();
        history.add_hold(writer.client, &lock, claim, token, times);
        if !writer.served {
            self.tokens.add_hold(writer.client, &lock, claim, token, (from, None));
        }
    }

    /// Everything that must not be.
    fn violations(&self) -> Vec<Violation> {
        let mut found: Vec<_> = self.histories.values().filter_map(|history| history.check().err()).collect();
        found.extend(self.tokens.check().err());
        let is_served = |lock: &str| self.served.iter().any(|space| lock.starts_with(&format!("{space} ")));
        let unknown = |grant: &&Grant| is_served(&grant.0) && !self.by_servers.contains(*grant);
        found.extend(self.by_clients.iter().find(unknown).map(|(lock, .., token)| {
            let what = format!("a client was granted {lock} with token {token}, and no server granted that");
            Violation::new(Checker::Exclusion, what)
        }));
        found
    }
}

impl Writer {
    fn position(&self, lock: &str, claim: &Claim, token: Option<u64>) -> Option<usize> {
        self.open.iter().position(|open| {
            open.lock == lock && open.claim == *claim && token.is_none_or(|token| token == open.token)
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
        let HistoryReport { records, writers, events, grants, lost, violations } = report;
        for violation in violations {
            writeln!(out, "VIOLATION  {violation}")?;
        }
        writeln!(
            out,
            "history: records={records} writers={writers} events={events} grants={grants} lost={lost} violations={}",
            violations.len()
        )?;
    }
    Ok(Outcome::clean_if(report.violations.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(by: &str, process: &str, lines: &[String]) -> String {
        let head = format!(r#"{{"record":1,"by":"{by}","boot":"b","process":"{process}"}}"#);
        std::iter::once(head).chain(lines.iter().cloned()).map(|line| line + "\n").collect()
    }

    fn line(at: u64, event: &str, mode: &str, token: u64) -> String {
        let held = if event == "released" { r#","held":true"# } else { "" };
        format!(
            r#"{{"at":{at},"event":"{event}","space":"served/s","lock":"a","kind":"keyed","mode":"{mode}","token":{token}{held}}}"#
        )
    }

    fn seen_by_server(client: &str, line: &str) -> String {
        line.replacen("\"space\"", &format!("\"client\":\"{client}\",\"space\""), 1)
    }

    /// What is found in these records.
    fn judged(records: &[String]) -> Vec<String> {
        let folder = std::env::temp_dir();
        let mut judge = Judge::default();
        for (number, text) in records.iter().enumerate() {
            let name = format!("lockwright-history-{}-{number}-{:p}", std::process::id(), text.as_ptr());
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            judge.read(&path).unwrap();
            std::fs::remove_file(path).unwrap();
        }
        judge.violations().iter().map(Violation::to_string).collect()
    }

    fn held(from: u64, to: u64, token: u64) -> Vec<String> {
        [(from, "granted"), (to, "releases"), (to + 1, "released")]
            .map(|(at, event)| line(at, event, "exclusive", token))
            .to_vec()
    }

    #[test]
    fn holds_one_after_the_other_are_clean_and_two_at_once_are_not() {
        let [one, other] =
            [(held(1, 4, 7), "1 h p"), (held(5, 8, 8), "2 h p")].map(|(l, who)| record("client", who, &l));
        assert_eq!(judged(&[one.clone(), other]), [""; 0]);
        let found = judged(&[one, record("client", "2 h p", &held(3, 8, 8))]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    }

    #[test]
    fn a_token_that_falls_or_comes_twice_is_found_also_of_a_lost_lock() {
        let one = record("client", "1 h p", &held(1, 4, 7));
        let found = judged(&[one.clone(), record("client", "2 h p", &held(5, 8, 6))]);
        assert!(found[0].starts_with("token order"), "{found:?}");
        let lost = [line(5, "granted", "exclusive", 7), line(9, "lost", "exclusive", 7)];
        let found = judged(&[one, record("client", "2 h p", &lost)]);
        assert!(found[0].contains("two writers"), "{found:?}");
    }

    #[test]
    fn a_lost_lock_may_be_held_by_another_before_its_client_knows() {
        let lost = [line(1, "granted", "exclusive", 7), line(9, "lost", "exclusive", 7)];
        let records = [record("client", "1 h p", &lost), record("client", "2 h p", &held(5, 8, 8))];
        assert_eq!(judged(&records), [""; 0]);
    }

    #[test]
    fn an_upgrade_beside_another_reader_is_found() {
        let upgrades = [line(1, "granted", "shared", 7), line(5, "upgraded", "exclusive", 9)];
        let upgrades = record("client", "1 h p", &[&upgrades[..], &held(0, 9, 9)[1..]].concat());
        let reader = |to| {
            let lines = [(2, "granted"), (to, "releases"), (to + 1, "released")];
            record("client", "2 h p", &lines.map(|(at, event)| line(at, event, "shared", 8)))
        };
        assert_eq!(judged(&[upgrades.clone(), reader(3)]), [""; 0]);
        assert!(judged(&[upgrades, reader(7)])[0].starts_with("mutual exclusion"));
    }

    #[test]
    fn what_a_client_was_granted_its_server_must_have_granted() {
        let client = record("client", "1 h p", &held(2, 4, 7));
        let server = |token| {
            let lines = [line(1, "granted", "exclusive", token), line(5, "released", "exclusive", token)];
            record("server", "9 h lockwright", &lines.map(|line| seen_by_server("1 h p", &line)))
        };
        assert_eq!(judged(&[client.clone(), server(7)]), [""; 0]);
        assert!(judged(&[client, server(8)])[0].contains("no server granted"));
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_count_and_another_file_is_refused() {
        let mut cut = record("client", "1 h p", &held(1, 4, 7));
        cut.push_str("{\"at\":9,\"eve");
        assert_eq!(judged(&[cut]), [""; 0]);
        let path = std::env::temp_dir().join(format!("lockwright-no-history-{}", std::process::id()));
        std::fs::write(&path, "{\"a\":1}\n").unwrap();
        let refused = Judge::default().read(&path).unwrap_err().to_string();
        std::fs::remove_file(path).unwrap();
        assert!(refused.contains("no record"), "{refused}");
    }
}
