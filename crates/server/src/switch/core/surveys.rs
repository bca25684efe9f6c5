//! Listings: only clients know who holds and waits, so all of them are asked.

use super::{Answer, Core, SURVEY, Survey};
use std::collections::BTreeSet;
use std::time::Instant;

impl Core {
    pub(super) fn list(&mut self, asker: u32, id: u64, space: &[u8]) {
        let machines = self.sessions.iter().filter(|(_, session)| session.mid.is_some());
        let missing: BTreeSet<u32> = machines.map(|(number, _)| *number).collect();
        self.last_survey += 1;
        let survey = self.last_survey;
        for session in missing.clone() {
            self.tell(session, &Answer::Survey { id: survey, space: space.to_vec() });
        }
        let (bytes, began) = (Vec::new(), Instant::now());
        self.surveys.insert(survey, Survey { asker, id, missing, bytes, began });
        self.answer_survey(survey, false);
    }

    pub(super) fn listed(&mut self, session: u32, survey: u64, bytes: &[u8]) {
        if let Some(gathered) = self.surveys.get_mut(&survey)
            && gathered.missing.remove(&session)
        {
            if gathered.bytes.len() + bytes.len() <= lockwright::wire::listing::MOST {
                gathered.bytes.extend_from_slice(bytes);
            }
            self.answer_survey(survey, false);
        }
    }

    pub(super) fn answer_survey(&mut self, survey: u64, late: bool) {
        if self.surveys.get(&survey).is_some_and(|survey| late || survey.missing.is_empty())
            && let Some(Survey { asker, id, bytes, .. }) = self.surveys.remove(&survey)
        {
            self.tell(asker, &Answer::Bytes { id, bytes });
        }
    }

    /// Answers listings that have waited long enough for clients that do not answer.
    pub(in crate::switch) fn answer_late_surveys(&mut self) {
        let late = self.surveys.iter().filter(|(_, survey)| survey.began.elapsed() >= SURVEY);
        for survey in late.map(|(survey, _)| *survey).collect::<Vec<_>>() {
            self.answer_survey(survey, true);
        }
    }
}
