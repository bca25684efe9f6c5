//! Whether a lock stays with its last user: what the server goes by, and what it has seen of each lock.
//!
//! A lock that the same client takes again and again, while nobody else has asked for it lately, stays with that client. Every recall was a
//! wrong guess, and doubles how often in a row the client has to take it before it stays again. A lock that comes back by
//! itself, because its tokens were used up or nobody used it, was a right one: that number is halved, and the next block of
//! tokens is larger.

use crate::directory::MAX_NAMES;
use std::time::Duration;

/// What a server goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Grants in a row to one client before the one that stays; and the most, after wrong guesses.
    pub(crate) after: u16,
    pub(crate) at_most_after: u16,
    /// Tokens that come with a grant that stays, at first and at most. Those that are not used are lost, so they are few at first.
    pub(crate) block: u64,
    pub(crate) at_most_block: u64,
    /// Grants that stay with one client at a time. At that bound a part of them is to come back.
    pub(crate) per_client: u32,
    /// With more names in use than this, nothing stays any more, and of what does a part is to come back.
    pub(crate) most_names: usize,
    /// How long nobody else must have asked for it.
    pub(crate) quiet: Duration,
    /// Whether the tokens of a block are given to nobody else; `false` is a mutant.
    pub(crate) reserves: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            after: 3,
            at_most_after: 1024,
            block: 64,
            at_most_block: 1 << 16,
            per_client: 4096,
            most_names: MAX_NAMES / 4 * 3,
            quiet: Duration::from_millis(10),
            reserves: true,
        }
    }
}

/// What is known of one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Affinity {
    /// The client that had it last, and how often in a row before.
    user: u32,
    streak: u16,
    /// What wrong guesses have added to [`Policy::after`], as a power of two; and right ones to the block, as a power of eight.
    wrong: u8,
    right: u8,
}

/// So many powers are more than any policy allows.
const MOST: u8 = 15;

impl Affinity {
    /// It is granted to `user`, who had to wait for it or not. Says whether it should stay.
    pub(crate) fn granted(&mut self, user: u32, waited: bool, policy: &Policy) -> bool {
        let again = self.user == user && !waited;
        self.streak = if again { self.streak.saturating_add(1) } else { 0 };
        self.user = user;
        let after = (policy.after << self.wrong.min(MOST)).max(policy.after).min(policy.at_most_after);
        self.streak >= after
    }

    /// Whether `user` had it last.
    pub(crate) const fn is_of(&self, user: u32) -> bool {
        self.user == user
    }

    /// Another client wants it.
    pub(crate) fn recalled(&mut self, policy: &Policy) {
        let grows = u32::from(policy.after) << self.wrong < u32::from(policy.at_most_after);
        self.wrong += u8::from(grows && self.wrong < MOST && policy.after > 0);
        (self.streak, self.right) = (0, 0);
    }

    /// It came back by itself.
    pub(crate) fn came_back(&mut self, policy: &Policy) {
        self.wrong = self.wrong.saturating_sub(1);
        let grows = policy.block << (3 * self.right.min(MOST)) < policy.at_most_block;
        self.right += u8::from(grows);
    }

    /// How many tokens come with the next grant that stays.
    pub(crate) fn block(&self, policy: &Policy) -> u64 {
        (policy.block << (3 * self.right.min(MOST))).min(policy.at_most_block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many grants in a row it stays with client 1.
    fn grants_until_it_stays(affinity: &mut Affinity, policy: &Policy) -> usize {
        (1..10_000).find(|_| affinity.granted(1, false, policy)).expect("at some time")
    }

    #[test]
    fn it_stays_with_a_client_that_takes_it_again_and_again_and_not_with_two_in_turns() {
        let (policy, mut lock) = (Policy::default(), Affinity::default());
        assert_eq!(grants_until_it_stays(&mut lock, &policy), 4);
        assert!((0..1000).all(|turn| !lock.granted(turn % 2 + 5, false, &policy)));
        assert!((0..1000).all(|_| !lock.granted(1, true, &policy)), "others want it too");
    }

    #[test]
    fn every_wrong_guess_makes_the_next_one_rarer_up_to_a_bound_and_right_ones_make_up_for_it() {
        let (policy, mut lock) = (Policy::default(), Affinity::default());
        let mut after = Vec::new();
        for _ in 0..12 {
            lock.recalled(&policy);
            after.push(grants_until_it_stays(&mut lock, &policy));
            lock.granted(2, false, &policy);
        }
        assert_eq!(after[..3], [7, 13, 25]);
        assert_eq!(after[11], usize::from(policy.at_most_after) + 1);
        (0..20).for_each(|_| lock.came_back(&policy));
        assert_eq!(grants_until_it_stays(&mut lock, &policy), 4);
    }

    #[test]
    fn blocks_of_tokens_grow_with_right_guesses_and_are_small_again_after_a_wrong_one() {
        let (policy, mut lock) = (Policy::default(), Affinity::default());
        let mut blocks = vec![lock.block(&policy)];
        for _ in 0..5 {
            lock.came_back(&policy);
            blocks.push(lock.block(&policy));
        }
        assert_eq!(blocks, [64, 512, 4096, 32_768, 65_536, 65_536]);
        lock.recalled(&policy);
        assert_eq!(lock.block(&policy), 64);
    }
}
