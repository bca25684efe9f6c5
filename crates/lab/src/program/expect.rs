//! `lab run --expect FILE`: claims that held once, so that a change that costs one of them is noticed.
//!
//! A line of the file names an experiment and one of its claims. Experiments that did not run are not looked at. Simulations repeat
//! from their seeds, so a claim that is lost was lost by a change of code.

use anyhow::{Context as _, Result, bail};
use lockwright_lab::Claim;
use std::collections::BTreeSet;
use std::path::Path;

/// An experiment's id and a claim's.
type Name = (String, String);

/// What became of the claims that held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    /// They held, and do no more; or are not made any more.
    pub(crate) lost: Vec<Name>,
    /// They hold, and the file does not know of them.
    pub(crate) gained: Vec<Name>,
}

/// Reads the claims that are to hold.
pub(crate) fn read(path: &Path) -> Result<BTreeSet<Name>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(' ') {
            Some((experiment, claim)) if !claim.contains(' ') => {
                Ok((experiment.to_owned(), claim.to_owned()))
            }
            _ => bail!("{}: expected 'EXPERIMENT CLAIM', found '{line}'", path.display()),
        })
        .collect()
}

/// Holds what was found against `expected`.
pub(crate) fn compare<'a>(
    expected: &BTreeSet<Name>,
    done: impl IntoIterator<Item = (&'a str, &'a [Claim])>,
) -> Compared {
    let mut compared = Compared::default();
    for (experiment, claims) in done {
        let held: BTreeSet<Name> = claims
            .iter()
            .filter(|claim| claim.holds())
            .map(|claim| (experiment.to_owned(), claim.id.clone()))
            .collect();
        let asked: BTreeSet<Name> = expected.iter().filter(|(of, _)| of == experiment).cloned().collect();
        compared.lost.extend(asked.difference(&held).cloned());
        compared.gained.extend(held.difference(&asked).cloned());
    }
    compared
}

/// Writes `path` anew, with what was lost and gained.
pub(crate) fn bless(path: &Path, mut expected: BTreeSet<Name>, compared: &Compared) -> Result<()> {
    expected.retain(|name| !compared.lost.contains(name));
    expected.extend(compared.gained.iter().cloned());
    let lines = expected.iter().map(|(experiment, claim)| format!("{experiment} {claim}\n"));
    let head = "# Claims that hold. Read and written by `lockwright-lab lab run --expect`; quick and full runs differ.\n";
    std::fs::write(path, std::iter::once(head.to_owned()).chain(lines).collect::<String>())
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(experiment: &str, claim: &str) -> Name {
        (experiment.to_owned(), claim.to_owned())
    }

    #[test]
    fn a_claim_that_held_and_misses_is_lost_and_a_miss_of_old_is_not() {
        let expected = BTreeSet::from([name("a", "held"), name("a", "gone"), name("b", "not-run")]);
        let found = [
            Claim::new("held", 1.0, 2.0),
            Claim::new("missed-before", 1.0, 2.0),
            Claim::new("new", 1.0, 1.0),
        ];
        let compared = compare(&expected, [("a", &found[..])]);
        assert_eq!(compared.lost, [name("a", "gone"), name("a", "held")]);
        assert_eq!(compared.gained, [name("a", "new")]);
    }

    #[test]
    fn what_is_blessed_is_read_back() {
        let folder = std::env::temp_dir().join(format!("lockwright-expect-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("claims.txt");
        let old = BTreeSet::from([name("a", "lost"), name("b", "kept")]);
        let compared = Compared { lost: vec![name("a", "lost")], gained: vec![name("a", "gained")] };
        bless(&path, old, &compared).unwrap();
        assert_eq!(read(&path).unwrap(), BTreeSet::from([name("a", "gained"), name("b", "kept")]));
        std::fs::write(&path, "a claim too many\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("found 'a claim too many'"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
