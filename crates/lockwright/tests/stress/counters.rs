//! The counters: no update was lost, and none was made with an old token.

use super::logs;
use lockwright::fenced::FencedFile;
use std::collections::BTreeMap;
use std::path::Path;

/// Looks at every counter file. Whoever is killed between writing and noting leaves a gap, and nobody else does.
pub(crate) fn check(folder: &Path, kills: u64) {
    // By counter and number, the token it was written with.
    let mut noted: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
    for (_, log) in logs(folder) {
        for line in log.lines() {
            let mut words = line.split(' ').skip(1);
            if words.next() == Some("W") {
                let name = words.next().unwrap().to_owned();
                let mut number = || words.next().unwrap().parse::<u64>().unwrap();
                let (written, token) = (number(), number());
                let before = noted.entry(name.clone()).or_default().insert(written, token);
                assert_eq!(before, None, "{name}: {written} was written twice, and an update lost");
            }
        }
    }
    let mut gaps = 0;
    for (name, written) in noted {
        let last = FencedFile::open(folder.join(&name)).unwrap().read().unwrap();
        let last: u64 = String::from_utf8(last).unwrap().parse().unwrap();
        println!("{name}: {} updates noted of {last}", written.len());
        gaps += last - written.len() as u64;
        for (earlier, later) in written.iter().zip(written.iter().skip(1)) {
            assert!(earlier.1 <= later.1, "{name}: {later:?} came after {earlier:?}, with an older token");
        }
    }
    assert!(gaps <= kills, "{gaps} updates are missing after {kills} kills");
}
