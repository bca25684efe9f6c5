//! `check --history`: judges what real clients and servers wrote down (`lockwright::record` has the format).
//!
//! Of what clients wrote, a lock was surely held from `granted` to `releases`, if it was not lost. Holds of one boot of one host
//! have one clock, and are shown to the same checkers that watch the explorer: exclusion, and tokens that rise. Tokens of two
//! writers are never the same, on whatever host. If a server's record is there, everything that its clients were granted was
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
type Grant = (String, bool, u64, u64, u64);

/// Everything that was read.
#[derive(Debug, Default)]
struct Judge {
    /// By boot, and whether servers saw it.
    histories: BTreeMap<(String, bool), History>,
    /// All of them, without times.
    tokens: History,
    chains: usize,
    by_clients: Vec<Grant>,
    by_servers: HashSet<Grant>,
    served: HashSet<String>,
    /// Locks that stayed with a client, and the tokens of its own grants: from, and up to but not.
    retained: Vec<(String, bool, u64, u64)>,
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
                writer.open.push(Open { client, lock, claim, token, from: line.at, to: None });
            }
            "retained" => {
                self.retained.push((lock, line.mode == "shared", line.start, line.end));
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
        writer.open.push(Open { client, lock, claim, token, from: line.at, to: None });
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
        let Open { client, lock, claim, token, from, to } = open;
        let times = (from, to.filter(|_| !unknown));
        let history = self.histories.entry((writer.boot.clone(), writer.served)).or_default();
        history.add_hold(client, &lock, claim, token, times);
        if !writer.served {
            self.tokens.add_hold(client, &lock, claim, token, (from, None));
        }
    }

    /// Everything that must not be.
    fn violations(&self) -> Vec<Violation> {
        let mut found: Vec<_> = self.histories.values().filter_map(|history| history.check().err()).collect();
        found.extend(self.tokens.check().err());
        let is_served = |lock: &str| self.served.iter().any(|space| lock.starts_with(&format!("{space} ")));
        let missing = |token: u64| self.gaps.iter().any(|(from, to)| *from < token && token < *to);
        let own = |(lock, shared, .., token): &Grant| {
            let mut blocks = self.retained.iter();
            blocks.any(|(of, mode, from, to)| of == lock && mode == shared && (*from..*to).contains(token))
        };
        let unknown = |grant: &&Grant| {
            is_served(&grant.0) && !self.by_servers.contains(*grant) && !missing(grant.4) && !own(grant)
        };
        found.extend(self.by_clients.iter().find(unknown).map(|(lock, .., token)| {
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

    fn seen_by(client: &str, line: &str) -> String {
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
    fn grants_of_a_lock_that_stayed_with_a_client_have_the_tokens_that_came_with_it() {
        let stays = r#""kind":"keyed","mode":"exclusive","start":8,"end":10,"token":7"#;
        let stays = line(2, "retained", "exclusive", 7)
            .replace(r#""kind":"keyed","mode":"exclusive","token":7"#, stays);
        let granted = [line(1, "granted", "exclusive", 7), stays, line(30, "released", "exclusive", 7)];
        let server = record("server", "9 h s", &granted.map(|line| seen_by("1 h p #1", &line)));
        let server = server + "{\"ended\":1}\n";
        let client =
            |last| record("client", "1 h p", &[held(3, 4, 7), held(5, 8, 9), held(9, 12, last)].concat());
        assert_eq!(judged(&[server.clone(), record("client", "1 h p", &held(3, 4, 9))]), [""; 0]);
        let found = judged(&[server, client(10)]);
        assert!(found[0].contains("token 10, and no server granted that"), "{found:?}");
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
            record("server", "9 h lockwright", &lines.map(|line| seen_by("1 h p", &line)))
        };
        assert_eq!(judged(&[client.clone(), server(7)]), [""; 0]);
        assert!(judged(&[client, server(8)])[0].contains("no server granted"));
    }

    #[test]
    fn two_clients_of_one_process_and_one_file_exclude_each_other() {
        let both = [&held(1, 6, 7)[..1], &held(3, 8, 8), &held(1, 9, 7)[1..]].concat();
        let found = judged(&[record("client", "1 h p", &both)]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
        let upgrades = [line(1, "granted", "shared", 7), line(5, "upgraded", "exclusive", 9)];
        assert_eq!(judged(&[record("client", "1 h p", &[&upgrades, &held(0, 9, 9)[1..]].concat())]), [""; 0]);
    }

    #[test]
    fn an_upgrade_is_of_what_is_held_and_not_of_what_is_being_given_back() {
        let lines = [
            line(1, "granted", "shared", 6),
            line(2, "releases", "shared", 6),
            line(3, "granted", "shared", 7),
            line(5, "upgraded", "exclusive", 8),
            // The answer to the first came late.
            line(6, "released", "shared", 6),
        ];
        let lines = [&lines[..], &held(0, 8, 8)[1..]].concat();
        assert_eq!(judged(&[record("client", "1 h p", &lines)]), [""; 0]);
        let found = judged(&[record("client", "1 h p", &lines), record("client", "2 h p", &held(4, 7, 9))]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    }

    #[test]
    fn processes_that_share_a_file_are_told_apart_by_their_lines() {
        let [one, other] = ["1 h p", "2 h p"].map(|who| record("client", who, &[]));
        let lines = [
            seen_by("1 h p", &line(1, "granted", "shared", 7)),
            seen_by("2 h p", &line(2, "granted", "shared", 7)),
            seen_by("1 h p", &line(3, "upgraded", "exclusive", 9)),
            seen_by("2 h p", &line(4, "releases", "shared", 7)),
            seen_by("2 h p", &line(5, "released", "shared", 7)),
            seen_by("1 h p", &line(6, "releases", "exclusive", 9)),
            seen_by("1 h p", &line(7, "released", "exclusive", 9)),
        ];
        let found = judged(&[one + &other + &lines.join("\n") + "\n"]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    }

    #[test]
    fn a_part_is_of_the_grant_with_its_token_and_not_of_one_that_is_being_given_back() {
        let range = |at, event, start: u64, end: u64, token| {
            let units = format!(r#""kind":"ranges","start":{start},"end":{end},"#);
            line(at, event, "exclusive", token).replace(r#""kind":"keyed","#, &units)
        };
        let lines = [
            range(1, "granted", 0, 10, 7),
            range(2, "releases", 0, 10, 7),
            range(3, "granted", 2, 8, 8),
            range(4, "gives", 4, 6, 8),
            // The answer to the first came late.
            range(7, "released", 0, 10, 7),
        ];
        let other =
            [range(5, "granted", 4, 6, 9), range(8, "releases", 4, 6, 9), range(9, "released", 4, 6, 9)];
        let one = record("client", "1 h p", &lines);
        assert_eq!(judged(&[one.clone(), record("client", "2 h p", &other)]), [""; 0]);
        let kept =
            [range(5, "granted", 3, 4, 9), range(8, "releases", 3, 4, 9), range(9, "released", 3, 4, 9)];
        let given_back = [range(10, "releases", 2, 4, 8), range(11, "released", 2, 4, 8)];
        let one = record("client", "1 h p", &[&lines[..], &given_back].concat());
        let found = judged(&[one, record("client", "2 h p", &kept)]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    }

    /// A server's record of these tokens, granted one after the other.
    fn granted_by_server(tokens: &[u64], end: &str) -> String {
        let grants = tokens.iter().flat_map(|token| {
            let at = token * 10;
            [line(at, "granted", "exclusive", *token), line(at + 9, "released", "exclusive", *token)]
        });
        let lines: Vec<_> = grants.map(|line| seen_by("1 h p", &line)).collect();
        record("server", "9 h lockwright", &lines) + end
    }

    #[test]
    fn a_server_that_was_killed_may_not_have_written_its_last_grants() {
        let client = |token: u64| record("client", "1 h p", &held(token * 10 + 1, token * 10 + 2, token));
        let (ends, killed) = (granted_by_server(&[7, 8], "{\"ended\":1}\n"), granted_by_server(&[7, 8], ""));
        assert!(judged(&[ends, client(9)])[0].contains("no server granted"));
        assert_eq!(judged(&[killed.clone(), client(9)]), [""; 0]);
        assert!(judged(&[killed.clone(), client(6)])[0].contains("no server granted"));
        // Started again, it goes on above all tokens of before.
        let again = killed + &granted_by_server(&[20, 22], "{\"ended\":1}\n");
        assert_eq!(judged(&[again.clone(), client(9)]), [""; 0]);
        assert!(judged(&[again, client(21)])[0].contains("no server granted"));
    }

    #[test]
    fn a_server_that_grants_twice_at_once_is_found_by_its_own_record() {
        let lines = [(1, "granted", 7), (2, "granted", 8), (3, "released", 7), (4, "released", 8)];
        let lines =
            lines.map(|(at, event, token)| seen_by(&token.to_string(), &line(at, event, "exclusive", token)));
        let found = judged(&[record("server", "9 h lockwright", &lines)]);
        assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
        // Lost counts as given back: the server has said so, and granted it to another.
        let lines = [(1, "granted", 7), (2, "lost", 7), (3, "granted", 8), (4, "released", 8)];
        let lines =
            lines.map(|(at, event, token)| seen_by(&token.to_string(), &line(at, event, "exclusive", token)));
        assert_eq!(judged(&[record("server", "9 h lockwright", &lines)]), [""; 0]);
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
