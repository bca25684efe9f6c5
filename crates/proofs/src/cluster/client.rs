//! A client: its session with the owner of the shard, what it believes, and a user who locks and unlocks once.

use super::model::{DRIFT, LEASE, TICK, TTL};
use lockwright_cluster::{Belief, Rules};
use std::collections::VecDeque;
use std::time::Duration;

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    Probe { sent: Duration },
    Claim { before: u128, token: u64 },
    Claimed { before: u128 },
    Lock,
    Unlock,
}

/// What a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Certain { sent: Duration, left: Duration },
    Granted { token: u64 },
    Lost,
}

/// A client's session, and what is on its way in it.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) server: usize,
    pub(super) epoch: u64,
    pub(super) key: u128,
    pub(super) to_server: VecDeque<Ask>,
    pub(super) to_client: VecDeque<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Idle,
    Wanted,
    Granted {
        token: u64,
    },
    /// In which session.
    Held {
        token: u64,
        key: u128,
    },
    Claimed {
        token: u64,
        key: u128,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Runs,
    Asleep,
    Dead,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) life: Life,
    /// It was asleep, and has not heard of a server since: nothing but its token keeps it from doing harm.
    pub(super) unaware: bool,
    /// The token of what it was told that it had lost, though it was never asleep.
    pub(super) robbed: Option<u64>,
    /// The token of what a new owner has confirmed just now.
    pub(super) confirmed: Option<u64>,
    slept: bool,
    pub(super) clock: Duration,
    pub(super) belief: Belief,
    pub(super) session: Option<Session>,
    /// Epoch and key of the last session, and how many there were.
    pub(super) last: (u64, Option<u128>),
    pub(super) sessions: u128,
    pub(super) probing: bool,
    pub(super) stage: Stage,
    /// Of two things: lock, unlock.
    pub(super) done: u8,
    /// The token of a grant that its user has just seen.
    pub(super) news: Option<u64>,
    pub(super) number: usize,
    pub(super) rules: Rules,
}

impl Client {
    pub(super) fn new(number: usize, rules: Rules) -> Self {
        Self {
            life: Life::Runs,
            unaware: false,
            robbed: None,
            confirmed: None,
            slept: false,
            clock: Duration::ZERO,
            belief: Belief::default(),
            session: None,
            last: (0, None),
            sessions: 0,
            probing: false,
            stage: Stage::Idle,
            done: 0,
            news: None,
            number,
            rules,
        }
    }

    pub(super) fn say(&mut self, ask: Ask) {
        if let Some(session) = &mut self.session {
            session.to_server.push_back(ask);
        }
    }

    /// The token of what it holds, as far as it knows.
    pub(super) const fn holds(&self) -> Option<u64> {
        match self.stage {
            Stage::Held { token, .. } | Stage::Claimed { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether it acts as if it held the lock: not by a grant that an operator has broken.
    pub(super) fn believes(&self, broken: Option<u64>) -> bool {
        let holds = self.holds().is_some_and(|token| Some(token) != broken);
        holds && self.life == Life::Runs && !self.unaware
    }

    /// Whether it should ask how long the server is certain.
    pub(super) fn cares_to_probe(&self) -> bool {
        let cares = matches!(self.stage, Stage::Granted { .. } | Stage::Held { .. });
        cares && self.session.is_some() && !self.probing && !self.belief.is_certain(self.clock)
    }

    pub(super) fn probe(&mut self) {
        self.probing = true;
        self.say(Ask::Probe { sent: self.clock });
    }

    /// A session with the owner of `epoch` begins: what is held is claimed if the owner is another.
    pub(super) fn begin(&mut self, server: usize, epoch: u64) -> u128 {
        self.sessions += 1;
        let key = self.number as u128 * 100 + self.sessions;
        let (last_epoch, before) = std::mem::replace(&mut self.last, (epoch, Some(key)));
        let (to_server, to_client) = (VecDeque::new(), VecDeque::new());
        self.session = Some(Session { server, epoch, key, to_server, to_client });
        self.belief.begin();
        self.probe();
        let is_new = epoch != last_epoch;
        match self.stage {
            Stage::Held { token, key } | Stage::Claimed { token, key } if is_new => {
                self.say(Ask::Claim { before: key, token });
                self.stage = Stage::Claimed { token, key };
            }
            Stage::Held { .. } | Stage::Claimed { .. } => self.lose(),
            Stage::Wanted | Stage::Granted { .. } => self.stage = Stage::Wanted,
            Stage::Idle => {}
        }
        if self.stage == Stage::Wanted {
            self.say(Ask::Lock);
        }
        if let Some(before) = before.filter(|_| is_new) {
            self.say(Ask::Claimed { before });
        }
        key
    }

    pub(super) fn leave(&mut self) {
        (self.session, self.probing) = (None, false);
        if let Stage::Granted { .. } = self.stage {
            self.stage = Stage::Wanted;
        }
    }

    /// The guard is dropped, and with it what was to be done under it.
    pub(super) fn lose(&mut self) {
        (self.stage, self.done) = (Stage::Idle, 2);
        self.say(Ask::Unlock);
    }

    pub(super) fn act(&mut self) {
        match self.stage {
            Stage::Idle => {
                self.stage = Stage::Wanted;
                self.say(Ask::Lock);
            }
            _ => self.lose(),
        }
    }

    /// The user sees what was granted, if it is to be believed.
    pub(super) fn look(&mut self) {
        let is_certain = self.belief.is_certain(self.clock) || self.rules.believes_all;
        if let (Stage::Granted { token }, Some(session), true) = (self.stage, &self.session, is_certain) {
            self.stage = Stage::Held { token, key: session.key };
            (self.done, self.news) = (1, Some(token));
        }
    }

    pub(super) fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Certain { sent, left } => {
                self.probing = false;
                // Without a margin, and what is rounded up for it.
                let (from, drift) =
                    if self.rules.no_margin { (sent + TICK, u32::MAX) } else { (sent, DRIFT) };
                self.belief.heard_within(from, left, drift);
                self.unaware &= matches!(self.stage, Stage::Claimed { .. });
            }
            Answer::Granted { token } => {
                let key = self.session.as_ref().expect("it was said in one").key;
                match self.stage {
                    Stage::Wanted => self.stage = Stage::Granted { token },
                    Stage::Claimed { .. } => {
                        (self.stage, self.unaware) = (Stage::Held { token, key }, false);
                        self.confirmed = Some(token);
                    }
                    _ => {}
                }
            }
            Answer::Lost => {
                if let Some(token) = self.holds() {
                    self.robbed = (!self.slept).then_some(token);
                    self.lose();
                }
                self.unaware = false;
            }
        }
    }

    /// Its machine is suspended.
    pub(super) const fn sleep(&mut self) {
        (self.life, self.slept) = (Life::Asleep, true);
    }

    /// Time has passed: what nobody has confirmed for longer than the lease is lost.
    pub(super) fn tick(&mut self) {
        if self.life != Life::Runs {
            return;
        }
        let is_over = self.belief.uncertain_for(self.clock) >= LEASE;
        if is_over && matches!(self.stage, Stage::Held { .. } | Stage::Claimed { .. }) {
            self.lose();
        }
    }

    /// As it looks when times are counted from now.
    pub(super) fn hash_into<H: std::hash::Hasher>(&self, state: &mut H) {
        use std::hash::Hash;
        let from = |time: Duration| self.clock.saturating_sub(time).min(TTL);
        (self.slept, self.robbed).hash(state);
        (self.life, self.unaware, self.last, self.sessions, self.probing, self.stage, self.done).hash(state);
        if self.done < 2 {
            self.belief.counted_from(self.clock, LEASE).hash(state);
        }
        if let Some(session) = &self.session {
            (session.server, session.epoch, session.key).hash(state);
            for ask in &session.to_server {
                match ask {
                    Ask::Probe { sent } => Ask::Probe { sent: from(*sent) }.hash(state),
                    ask => ask.hash(state),
                }
            }
            for answer in &session.to_client {
                match answer {
                    Answer::Certain { sent, left } => {
                        Answer::Certain { sent: from(*sent), left: *left }.hash(state);
                    }
                    answer => answer.hash(state),
                }
            }
        }
    }
}
