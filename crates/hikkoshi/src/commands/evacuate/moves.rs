//! Executes a plan: starts moves, divides the bandwidth among them, tries again or elsewhere what
//! has failed, and plans again when a destination fails.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hikkoshi_control::ControlFolder;
use hikkoshi_engine::Mode;
use hikkoshi_evacuation::{Evacuation, Plan, Refusal};
use hikkoshi_status::{EvacuatedGuest, EvacuationStage};

use super::child::{Failure, MoveEnd, MoveProcess};
use super::interrupts::Interrupts;
use super::journal::{EvacuationJournal, MoveFiles, now_unix_ms};
use super::planning::Planner;
use super::settle::{cannot_note, not_started, resume_words, stage_after};
use crate::output::evacuate::refusal_text;
use crate::output::exit::Exit;
use crate::output::streams;

/// How often moves are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Before a guest is tried again: the destination may still be ending what the last attempt has
/// left.
const PAUSE: Duration = Duration::from_secs(2);

/// How often a guest is tried.
const ATTEMPTS: u32 = 4;

/// How often a destination refuses a guest that it would have taken, until that is believed.
const REFUSALS: u32 = 3;

/// After so many moves to it that have failed on the way, a destination gets no more guests.
const STRIKES: u32 = 2;

/// Planned, and not begun.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    guest: usize,
    host: usize,
    mode: Mode,
}

#[derive(Debug)]
struct Running {
    guest: usize,
    host: usize,
    process: MoveProcess,
    files: MoveFiles,
    /// The limit that it has.
    limit: Option<u64>,
    /// It is an interrupted move that is resumed.
    is_resumed: bool,
}

/// An evacuation that is under way.
#[derive(Debug)]
pub(super) struct Execution<'a, 'b> {
    planner: &'a mut Planner<'b>,
    journal: &'a mut EvacuationJournal,
    control: ControlFolder,
    waiting: Vec<Waiting>,
    at_once: usize,
    running: Vec<Running>,
    /// Guests that are to be planned again.
    again: Vec<usize>,
    /// When a guest may be tried again.
    not_before: BTreeMap<usize, Instant>,
    refusals: BTreeMap<(usize, usize), u32>,
    strikes: BTreeMap<usize, u32>,
    cancelled: bool,
}

impl<'a, 'b> Execution<'a, 'b> {
    /// With the guests of the planner, all of which were planned.
    pub(super) fn new(
        planner: &'a mut Planner<'b>,
        journal: &'a mut EvacuationJournal,
        planned: &(Evacuation, Plan),
    ) -> Result<Self, Exit> {
        let run = crate::journal::absolute(&planner.args.journals.path());
        let guests: Vec<usize> = (0..planner.guests.len()).collect();
        let mut execution = Self {
            control: ControlFolder::in_run_folder(&run),
            again: Vec::new(),
            not_before: BTreeMap::new(),
            planner,
            journal,
            waiting: Vec::new(),
            at_once: 1,
            running: Vec::new(),
            refusals: BTreeMap::new(),
            strikes: BTreeMap::new(),
            cancelled: false,
        };
        execution.follow(&guests, planned)?;
        Ok(execution)
    }

    /// Moves the guests. What has become of them is in the journal.
    ///
    /// # Errors
    /// The journal cannot be written, or no process be started. Moves that run go on.
    pub(super) fn run(mut self, interrupts: &Interrupts) -> Result<(), Exit> {
        loop {
            if interrupts.take() {
                if self.cancelled {
                    streams::notice(
                        "the moves that are under way are left to finish by themselves; the same \
                         command again waits for them",
                    );
                    return Ok(());
                }
                self.cancel()?;
            }
            self.reap()?;
            if !self.again.is_empty() {
                self.plan()?;
            }
            self.start()?;
            if self.running.is_empty() && self.waiting.is_empty() && self.again.is_empty() {
                return Ok(());
            }
            self.divide();
            sleep(TICK);
        }
    }

    fn name(&self, guest: usize) -> &str {
        &self.planner.guests[guest].guest.name
    }

    /// Guests that are handed over are finished; the others stay.
    fn cancel(&mut self) -> Result<(), Exit> {
        self.cancelled = true;
        streams::notice(
            "cancelled: guests that are handed over are moved to the end, the others stay; a \
             second Ctrl-C leaves them",
        );
        self.running.iter().for_each(|it| it.process.cancel());
        let waiting = std::mem::take(&mut self.waiting);
        let again = std::mem::take(&mut self.again);
        for guest in waiting.iter().map(|it| it.guest).chain(again) {
            let message = "the evacuation was cancelled before its move began".to_owned();
            self.note_stays(guest, message)?;
        }
        Ok(())
    }

    /// Plans for all guests that are not under way.
    fn plan(&mut self) -> Result<(), Exit> {
        let mut guests = std::mem::take(&mut self.again);
        guests.extend(self.waiting.drain(..).map(|it| it.guest));
        guests.sort_unstable();
        let planned = self.planner.plan(&guests);
        self.follow(&guests, &planned)
    }

    /// Makes this the plan for these guests.
    fn follow(&mut self, guests: &[usize], planned: &(Evacuation, Plan)) -> Result<(), Exit> {
        let (evacuation, plan) = planned;
        self.at_once = plan.at_once;
        self.waiting = plan
            .moves
            .iter()
            .map(|it| Waiting {
                guest: guests[it.guest],
                host: it.destination,
                mode: it.mode,
            })
            .collect();
        for refused in &plan.refused {
            let guest = guests[refused.guest];
            let message = self.refused(guest, &refused.why, evacuation);
            streams::notice(&format!("{}: stays: {message}", self.name(guest)));
            self.note_stays(guest, message)?;
        }
        Ok(())
    }

    /// Why there is no place for the guest; the last attempt says more, if there was one.
    fn refused(&self, guest: usize, why: &Refusal, evacuation: &Evacuation) -> String {
        let record = self.journal.guest(self.name(guest));
        let text = refusal_text(why, evacuation);
        match record.map(|record| (&record.stage, record.attempts)) {
            Some((EvacuationStage::Stays { message }, 1..)) => {
                format!("{message}; no other destination: {text}")
            }
            _ => text,
        }
    }

    /// Begins what may begin.
    fn start(&mut self) -> Result<(), Exit> {
        let now = Instant::now();
        let most_to = self.planner.args.at_once_to.unwrap_or(usize::MAX);
        let mut later = Vec::new();
        for it in std::mem::take(&mut self.waiting) {
            let there = self.running.iter().filter(|other| other.host == it.host);
            let is_early = self.not_before.get(&it.guest).is_some_and(|at| *at > now);
            if is_early || self.running.len() >= self.at_once || there.count() >= most_to {
                later.push(it);
                continue;
            }
            self.begin(it)?;
        }
        self.waiting = later;
        Ok(())
    }

    fn begin(&mut self, it: Waiting) -> Result<(), Exit> {
        self.planner.take(it.guest, it.host);
        let guest = self.planner.guests[it.guest].guest.clone();
        let address = self.planner.hosts[it.host].address.clone();
        let mut words =
            self.planner
                .args
                .migrate_words(&guest.words(), &guest.name, &address, it.mode);
        let to: Vec<_> = self
            .running
            .iter()
            .map(|other| other.host)
            .chain([it.host])
            .collect();
        let limit = self.limits(&to).pop().flatten();
        if let Some(limit) = limit {
            words.extend(["--bandwidth".into(), format!("{limit}B").into()]);
        }
        if self.planner.may_switch(it.guest, it.mode) {
            words.extend(["--when-stalled".into(), "switch".into()]);
        }
        let files = self.journal.files(&guest.name);
        let process =
            MoveProcess::start(&words, &files).map_err(|error| not_started(&guest.name, &error))?;
        let pid = Some(process.pid());
        self.running.push(Running {
            guest: it.guest,
            host: it.host,
            process,
            files,
            limit,
            is_resumed: false,
        });
        self.note(it.guest, |record| {
            record.stage = EvacuationStage::Moving;
            record.to = Some(address.to_string());
            record.attempts += 1;
            record.pid = pid;
            record.began_unix_ms = Some(now_unix_ms());
            record.ended_unix_ms = None;
        })?;
        streams::notice(&format!("{}: to {address} ({})", guest.name, it.mode));
        Ok(())
    }

    /// The limit of each of the moves to these hosts: none for one that can have all of its line.
    fn limits(&self, to: &[usize]) -> Vec<Option<u64>> {
        let evacuation = self.planner.evacuation(&[]);
        let shares = evacuation.shares(to);
        let of = |(share, &host): (f64, &usize)| {
            let destination = &evacuation.destinations[host];
            let is_limited = to.len() > 1
                || evacuation.source.bandwidth.is_some()
                || destination.limits.bandwidth.is_some();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            is_limited.then_some(share.max(1.0) as u64)
        };
        shares.into_iter().zip(to).map(of).collect()
    }

    /// Divides the bandwidth anew among the moves that have begun to send. Others keep the limit
    /// that they were started with, until they have; and so does one whose engine does not take
    /// another one now, which gets it later.
    fn divide(&mut self) {
        let control = &self.control;
        let sending = |it: &Running| it.process.is_controlled(control);
        let sending: Vec<bool> = self.running.iter().map(sending).collect();
        let each = self.running.iter().zip(&sending);
        let to: Vec<_> = each.filter(|it| *it.1).map(|it| it.0.host).collect();
        let limits = self.limits(&to);
        let each = self.running.iter_mut().zip(&sending);
        for ((it, _), limit) in each.filter(|it| *it.1).zip(limits) {
            if it.limit != limit && it.process.set_bandwidth(&self.control, limit) {
                it.limit = limit;
            }
        }
    }

    /// Looks which moves have ended.
    fn reap(&mut self) -> Result<(), Exit> {
        let mut running = Vec::new();
        let mut ended = Vec::new();
        for mut it in std::mem::take(&mut self.running) {
            match it.process.ended(&it.files) {
                None => running.push(it),
                Some(end) => ended.push((it, end)),
            }
        }
        self.running = running;
        for (it, end) in ended {
            self.end(it, &end)?;
        }
        Ok(())
    }

    fn end(&mut self, it: Running, end: &MoveEnd) -> Result<(), Exit> {
        let name = self.name(it.guest).to_owned();
        let failure = match end {
            MoveEnd::Moved(moved) => {
                streams::notice(&format!("{name}: moved"));
                let vcpus = self.planner.guests[it.guest].measured.measured.vcpus;
                return self.note(it.guest, |record| {
                    record.total_ms = moved.total_ms;
                    record.downtime_ms = moved.downtime_ms;
                    record.felt_ms = moved.felt_ms(vcpus);
                    record.ended_unix_ms = Some(now_unix_ms());
                    record.stage = EvacuationStage::Moved;
                });
            }
            MoveEnd::Failed(failure) => failure,
        };
        let is_interrupted = failure.exit_status == 3 && failure.reason == "interrupted";
        if is_interrupted && !it.is_resumed {
            return self.resume(it, &name);
        }
        // There was nothing to resume: it was interrupted before the guest was handed over.
        let is_back = it.is_resumed && failure.exit_status == 2 && failure.reason == "no_journal";
        let stage = match is_back {
            true => EvacuationStage::Stays {
                message: "its move was interrupted".to_owned(),
            },
            false => stage_after(failure),
        };
        let stays = matches!(stage, EvacuationStage::Stays { .. });
        streams::notice(&format!("{name}: {}", failure.text()));
        if stays {
            self.planner.give_back(it.guest, it.host);
        }
        self.note(it.guest, |record| {
            record.stage = stage;
            record.ended_unix_ms = Some(now_unix_ms());
        })?;
        let attempts = self.journal.guest(&name).map_or(0, |it| it.attempts);
        if stays
            && !self.cancelled
            && attempts < ATTEMPTS
            && (is_back || self.is_to_be_tried_again(it.guest, it.host, failure))
        {
            self.not_before.insert(it.guest, Instant::now() + PAUSE);
            self.again.push(it.guest);
        }
        Ok(())
    }

    /// Resumes a move whose process was killed.
    fn resume(&mut self, it: Running, name: &str) -> Result<(), Exit> {
        let guest = self.planner.guests[it.guest].guest.clone();
        let words = resume_words(self.planner.args, &guest);
        let process =
            MoveProcess::start(&words, &it.files).map_err(|error| not_started(name, &error))?;
        streams::notice(&format!("{name}: its process was killed, and is resumed"));
        let (guest, pid) = (it.guest, Some(process.pid()));
        self.running.push(Running {
            process,
            is_resumed: true,
            ..it
        });
        self.note(guest, |record| record.pid = pid)
    }

    /// Whether that makes sense. The next plan knows what follows for the destination.
    fn is_to_be_tried_again(&mut self, guest: usize, host: usize, failure: &Failure) -> bool {
        let name = self.name(guest).to_owned();
        let there = &mut self.planner.hosts[host];
        match failure.reason.as_str() {
            "connect" => {
                there.failed = Some(failure.message.clone());
                true
            }
            // It has just been asked for this guest, and may still have the name.
            "remote" if there.takes.contains(&name) => {
                let refusals = self.refusals.entry((guest, host)).or_default();
                *refusals += 1;
                if *refusals >= REFUSALS {
                    there.takes.remove(&name);
                    there.refuses.insert(name, failure.message.clone());
                }
                true
            }
            "remote" | "refused" => {
                there.refuses.insert(name, failure.message.clone());
                true
            }
            "link" | "peer_failed" | "peer_cancelled" | "protocol" => {
                let strikes = self.strikes.entry(host).or_default();
                *strikes += 1;
                if *strikes >= STRIKES {
                    there.failed = Some(failure.message.clone());
                }
                true
            }
            _ => false,
        }
    }

    /// Changes what is known of the guest, and stores it.
    fn note(&mut self, guest: usize, change: impl FnOnce(&mut EvacuatedGuest)) -> Result<(), Exit> {
        let named = &self.planner.guests[guest].guest;
        let mut record = self.journal.guest(&named.name).cloned().unwrap_or_else(|| {
            let message = "its move has not begun".to_owned();
            EvacuatedGuest::new(named.at.clone(), EvacuationStage::Stays { message })
        });
        change(&mut record);
        self.journal
            .set(&named.name, record)
            .map_err(|error| cannot_note(&error))
    }

    /// The guest stays.
    fn note_stays(&mut self, guest: usize, message: String) -> Result<(), Exit> {
        self.note(guest, |record| {
            record.stage = EvacuationStage::Stays { message }
        })
    }
}
