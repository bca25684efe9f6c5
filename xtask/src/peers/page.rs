//! A comparison as text, as Markdown, as a picture and as a page. No library draws: bars are rectangles.

use super::Comparison;
use serde_json::Value;
use std::fmt::Write;

/// Where it comes from, in one paragraph.
fn origin(comparison: &Comparison) -> String {
    let Comparison { commit, date, machine, quick, left_out, .. } = comparison;
    let quick = if *quick { " A quick run: its figures say little." } else { "" };
    let left_out =
        if left_out.is_empty() { String::new() } else { format!(" Left out: {}.", left_out.join("; ")) };
    let notes: String = comparison
        .with("note")
        .map(|line| format!(" {}: {}.", text_of(line, "noted"), text_of(line, "note")))
        .collect();
    format!(
        "Measured by `cargo xtask peers` at commit {commit} on {date}, {machine}. Medians of rounds in which all took turns, with \
         the least and the most; servers and clients share all cores, on the loopback, nothing pinned.{notes}{quick}{left_out}"
    )
}

fn scaled(figure: &Value) -> String {
    match figure.as_f64().unwrap_or(f64::NAN) {
        rate @ 1e6.. => format!("{:.2} M", rate / 1e6),
        rate @ 1e3.. => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

fn text_of<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or("")
}

fn verdict(goal: &Value) -> String {
    let (word, ratio) =
        (if goal["holds"] == true { "ok" } else { "MISS" }, goal["ratio"].as_f64().unwrap_or(0.0));
    let reason = goal["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{word}: {ratio:.2} times the rate, {}{reason}", text_of(goal, "bound"))
}

/// For the terminal: figures and goals.
pub(super) fn text(comparison: &Comparison) -> String {
    let mut out = String::new();
    for workload in comparison.names("workload") {
        let _ = writeln!(out, "{workload}");
        for peer in comparison.names("peer") {
            if let Some(line) = comparison.figure(workload, peer) {
                let [middle, least, most] =
                    ["cycles_per_second", "least", "most"].map(|field| scaled(&line[field]));
                let _ = writeln!(out, "  {peer:28} {middle:>9}/s  ({least} to {most})");
            }
        }
    }
    for goal in comparison.with("goal") {
        let _ = writeln!(out, "{}: {}", text_of(goal, "goal"), verdict(goal));
    }
    for goal in comparison.with("untried") {
        let _ = writeln!(out, "{}: not tried ({})", text_of(goal, "untried"), text_of(goal, "why"));
    }
    out
}

/// `docs/comparison.md`.
pub(super) fn markdown(comparison: &Comparison) -> String {
    let mut out = format!(
        "# Beside other locks\n\nGenerated; do not edit. {}\n\nCycles (lock and unlock) per second. `retain=off`: every lock is asked for.\n",
        origin(comparison)
    );
    let workloads = comparison.names("workload");
    let _ = writeln!(out, "\n| workload, clients | {} |", comparison.names("peer").join(" | "));
    let _ = writeln!(out, "|---|{}", "---|".repeat(comparison.names("peer").len()));
    for workload in &workloads {
        let cells = comparison.names("peer").into_iter().map(|peer| {
            let Some(line) = comparison.figure(workload, peer) else { return "–".to_owned() };
            let [middle, least, most] =
                ["cycles_per_second", "least", "most"].map(|field| scaled(&line[field]));
            format!("{middle} ({least} to {most})")
        });
        let _ = writeln!(out, "| {workload} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    out.push_str("\n## Goals\n\n| what | |\n|---|---|\n");
    for goal in comparison.with("goal") {
        let _ = writeln!(out, "| {} | {} |", text_of(goal, "goal"), verdict(goal));
    }
    for goal in comparison.with("untried") {
        let _ = writeln!(out, "| {} | not tried: {} |", text_of(goal, "untried"), text_of(goal, "why"));
    }
    out.push_str("\n## When a holder is killed or paused\n\n");
    out.push_str("| | killed with SIGKILL: the next has the lock after | paused for longer than its lease: its late write |\n|---|---|---|\n");
    for fault in comparison.with("fault") {
        let cells = ["peer", "killed", "paused"].map(|field| text_of(fault, field));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

const ROW: usize = 18;
const LEFT: f64 = 230.0;
const WIDTH: f64 = 520.0;

/// One group of bars per workload, on a scale of powers of ten.
pub(super) fn svg(comparison: &Comparison) -> String {
    let (mut bars, mut y) = (String::new(), 24);
    let rates = comparison.with("workload").filter_map(|line| line["cycles_per_second"].as_f64());
    let most = rates.fold(10.0, f64::max).log10();
    for workload in comparison.names("workload") {
        let _ = writeln!(bars, r#"<text x="8" y="{y}" font-weight="bold">{workload}</text>"#);
        y += ROW;
        for peer in comparison.names("peer") {
            let Some(line) = comparison.figure(workload, peer) else { continue };
            let width = line["cycles_per_second"].as_f64().unwrap_or(1.0).max(1.0).log10() / most * WIDTH;
            let (colour, base) = (if peer.starts_with("lockwright") { "#1f6f8b" } else { "#b0a990" }, y - 12);
            let (label, shown) = (LEFT + width + 6.0, scaled(&line["cycles_per_second"]));
            let _ = writeln!(bars, r#"<text x="16" y="{y}">{peer}</text>"#);
            let _ = writeln!(
                bars,
                r#"<rect x="{LEFT}" y="{base}" width="{width:.1}" height="13" fill="{colour}"/>"#
            );
            let _ = writeln!(bars, r#"<text x="{label:.1}" y="{y}">{shown}</text>"#);
            y += ROW;
        }
        y += ROW / 2;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {y}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Cycles per second, measured, logarithmic</title>\n{bars}</svg>\n"
    )
}

/// One page with everything.
pub(super) fn html(comparison: &Comparison) -> String {
    let mut goals = String::new();
    for goal in comparison.with("goal") {
        let _ = writeln!(goals, "<tr><td>{}</td><td>{}</td></tr>", text_of(goal, "goal"), verdict(goal));
    }
    for goal in comparison.with("untried") {
        let (what, why) = (text_of(goal, "untried"), text_of(goal, "why"));
        let _ = writeln!(goals, "<tr><td>{what}</td><td>not tried: {why}</td></tr>");
    }
    let mut faults = String::new();
    for fault in comparison.with("fault") {
        let [peer, killed, paused] = ["peer", "killed", "paused"].map(|field| text_of(fault, field));
        let _ = writeln!(faults, "<tr><td>{peer}</td><td>{killed}</td><td>{paused}</td></tr>");
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Lockwright beside other locks</title>\n\
         <style>body{{font-family:sans-serif;max-width:60em;margin:2em auto}}td,th{{padding:.2em .8em;text-align:left}}</style></head>\n\
         <body><h1>Beside other locks</h1>\n<p>{}</p>\n{}\n<h2>Goals</h2><table>{goals}</table>\n\
         <h2>When a holder is killed or paused</h2>\n\
         <table><tr><th></th><th>killed: free after</th><th>paused: its late write</th></tr>{faults}</table></body></html>\n",
        origin(comparison),
        svg(comparison)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_peer_was_not_asked_is_a_dash_and_a_missed_goal_says_miss() {
        let figure = |workload: &str, peer: &str| json!({ "workload": workload, "peer": peer, "cycles_per_second": 2e6, "least": 900.0, "most": 3e6 });
        let goal = json!({ "goal": "faster", "ratio": 1.5, "bound": "at least 2 times", "holds": false, "reason": null });
        let note = json!({ "noted": "etcd", "note": "by its gateway" });
        let untried = json!({ "untried": "much faster", "why": "a full run tries it" });
        let comparison = Comparison {
            lines: vec![figure("own name, 1", "redis"), figure("ranges, 8", "fcntl"), goal, note, untried],
            left_out: vec!["etcd: etcd is not installed".to_owned()],
            quick: false,
            commit: "abc".to_owned(),
            date: "today".to_owned(),
            machine: "2 cores".to_owned(),
        };
        let page = markdown(&comparison);
        assert!(page.contains("| own name, 1 | 2.00 M (900 to 3.00 M) | – |"), "{page}");
        assert!(page.contains("MISS: 1.50 times") && page.contains("Left out: etcd"), "{page}");
        assert!(
            page.contains("at commit abc on today, 2 cores") && page.contains(" etcd: by its gateway."),
            "{page}"
        );
        assert!(page.contains("| much faster | not tried: a full run tries it |"), "{page}");
        let html = html(&comparison);
        assert!(svg(&comparison).matches("<rect").count() == 2 && html.contains("</html>"));
        assert!(html.contains("<td>not tried: a full run tries it</td>"), "{html}");
        let origin = comparison.origin_line();
        assert_eq!((&origin["commit"], &origin["machine"]), (&json!("abc"), &json!("2 cores")));
    }
}
