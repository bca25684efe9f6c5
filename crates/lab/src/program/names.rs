//! Picking things by name, and saying which names are close when there is no such thing.

/// The error for a name that nothing has: `there is no WHAT called NAME; close: A, B`.
pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    let mut close: Vec<(usize, &str)> = known
        .iter()
        .map(|known| (distance(name, known), *known))
        .filter(|(distance, known)| *distance <= 3 || known.contains(name) || name.contains(*known))
        .collect();
    close.sort();
    let (lead, names) = match close.is_empty() {
        true => ("there are", known),
        false => ("close", close.into_iter().map(|(_, name)| name).take(5).collect()),
    };
    anyhow::anyhow!("there is no {what} called {name:?}; {lead}: {}", names.join(", "))
}

/// Letters to insert, drop or change to get from one name to the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_the_close_names_and_nonsense_gets_all() {
        let known = ["cas", "cas-backoff", "mcs", "shiftlock"];
        let say = |name| unknown("protocol", name, known.into_iter()).to_string();
        assert_eq!(say("shiftlok"), "there is no protocol called \"shiftlok\"; close: shiftlock");
        assert_eq!(say("backoff"), "there is no protocol called \"backoff\"; close: cas-backoff");
        assert!(say("wait-free-utopia").ends_with("there are: cas, cas-backoff, mcs, shiftlock"));
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("mcs", "mcs"), 0);
        assert_eq!(distance("msc", "mcs"), 2);
        assert_eq!(distance("", "cas"), 3);
    }
}
