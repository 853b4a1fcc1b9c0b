//! Plans with what the hosts have answered, and plans again when one of them fails.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hikkoshi_engine::{CancelFlag, Mode, SourceOptions};
use hikkoshi_estimate::{Line, Span};
use hikkoshi_evacuation::{Destination, Evacuation, Limits, Plan, plan};

use super::hosts::{Host, try_out};
use super::inspect::Inspected;
use crate::args::Evacuate;
use crate::output::streams;

/// The memory of a host that cannot say it: it refuses a guest that it cannot have.
const UNKNOWN_MEMORY: u64 = 1 << 60;

/// A rate, in bytes a second, until the lines are known: where guests go does not depend on it.
const ANY_RATE: u64 = 125_000_000;

fn own_processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors).unwrap_or(u32::MAX)
}

/// How long a destination may take to end what it has started to be asked.
const SETTLED: Duration = Duration::from_millis(1500);

/// What a move takes beside that and its data, s: it attaches to the guest, and ends.
const ATTACH: f64 = 0.3;

/// How long a move prepares of which the destination's part was measured.
fn prepare(there: Duration) -> Span {
    let there = there.as_secs_f64();
    Span {
        low: there,
        likely: there + ATTACH,
        high: 2.0 * there + 3.0 * ATTACH,
    }
}

/// What plans are made of.
#[derive(Debug)]
pub(super) struct Planner<'a> {
    pub(super) args: &'a Evacuate,
    pub(super) guests: Vec<Inspected>,
    pub(super) hosts: Vec<Host>,
    /// The options of the moves.
    pub(super) options: SourceOptions,
    pub(super) allow_cpu_mismatch: bool,
    /// Whether `--when-stalled` is among the options of the moves.
    pub(super) says_when_stalled: bool,
    /// When a host was last asked for a guest.
    pub(super) asked: Option<Instant>,
    /// Memory of the hosts that guests have taken which were moved there, by their numbers.
    pub(super) taken: BTreeMap<usize, u64>,
}

impl Planner<'_> {
    /// The evacuation of these guests, by their numbers.
    pub(super) fn evacuation(&self, guests: &[usize]) -> Evacuation {
        let chosen: Vec<_> = guests
            .iter()
            .map(|&at| self.guests[at].measured.clone())
            .collect();
        let destinations: Vec<_> = (0..self.hosts.len())
            .map(|number| self.destination(number, &chosen))
            .collect();
        let rates = destinations.iter().map(|it| it.line.rate.likely);
        let limit = |it: Option<crate::args::Bandwidth>| it.and_then(|given| given.limit);
        Evacuation {
            source: Limits {
                at_once: self.args.at_once,
                bandwidth: limit(self.args.bandwidth),
            },
            source_rate: rates.fold(1.0, f64::max),
            processors: own_processors(),
            mode: self.args.mode.fixed(),
            options: self.options.clone(),
            guests: chosen,
            destinations,
        }
    }

    fn destination(&self, number: usize, guests: &[hikkoshi_evacuation::Guest]) -> Destination {
        let host = &self.hosts[number];
        let refuses = guests.iter().filter_map(|guest| {
            let why = host.refusal(&guest.name)?;
            Some((guest.name.clone(), why))
        });
        let measured = self.hosts.iter().find_map(|host| host.line);
        let room = host.room.as_ref();
        let taken = self.taken.get(&number).copied().unwrap_or(0);
        Destination {
            name: host.name(),
            free_memory: room
                .map_or(UNKNOWN_MEMORY, |room| room.free_memory)
                .saturating_sub(taken),
            processors: room.map_or(u32::MAX, |room| room.processors),
            features: room.and_then(|room| room.features.clone()),
            refuses: refuses.collect(),
            // One to which no guest was planned is taken for one like the others.
            line: host
                .line
                .or(measured)
                .unwrap_or_else(|| self.given_line(ANY_RATE)),
            limits: Limits {
                at_once: self.args.at_once_to,
                bandwidth: self.args.bandwidth_to.and_then(|given| given.limit),
            },
        }
    }

    /// A line that was not measured.
    pub(super) fn given_line(&self, rate: u64) -> Line {
        let any = self.guests.first().map(|it| &it.measured.measured);
        match any {
            Some(guest) => Line::given(rate, None, guest, self.options.links),
            None => Line {
                rate: Span::exactly(crate::output::units::float(rate)),
                round_trip: Span::ZERO,
                open_link: Span::ZERO,
            },
        }
    }

    /// Plans for all guests, and asks each destination for each guest that would go there whether
    /// it takes it; if one does not, plans again. Measures the lines, unless the rate was given.
    pub(super) fn rehearse(&mut self, cancel: &CancelFlag) {
        let all: Vec<usize> = (0..self.guests.len()).collect();
        if let Some(rate) = self.args.line {
            let line = self.given_line(rate);
            for host in &mut self.hosts {
                host.line = Some(line);
            }
        }
        loop {
            let planned = plan(&self.evacuation(&all));
            let mut asked = false;
            for it in &planned.moves {
                if cancel.is_cancelled() {
                    return;
                }
                asked |= self.try_out(it.guest, it.destination, it.mode, cancel);
            }
            if !asked {
                return;
            }
        }
    }

    /// Whether the host was asked now.
    fn try_out(&mut self, guest: usize, host: usize, mode: Mode, cancel: &CancelFlag) -> bool {
        let inspected = &self.guests[guest];
        let host = &mut self.hosts[host];
        let name = &inspected.guest.name;
        if !host.is_open(name) {
            return false;
        }
        let (links, measures) = (self.options.links, self.args.line.is_none());
        let allow = self.allow_cpu_mismatch;
        let prepared = try_out(host, inspected, mode, allow, links, measures, cancel);
        self.asked = Some(Instant::now());
        let refusal = host.refusal(name);
        if let Some(why) = refusal {
            streams::notice(&format!("{name}: not to {}: {why}", host.address));
        }
        if let Some(prepared) = prepared {
            self.guests[guest].measured.prepare = prepare(prepared);
        }
        true
    }

    /// Waits until the destinations have ended what they had started to be asked.
    pub(super) fn settle(&self) {
        if let Some(asked) = self.asked {
            std::thread::sleep(SETTLED.saturating_sub(asked.elapsed()));
        }
    }

    /// The plan for these guests, by their numbers; those in it are numbers in the list.
    pub(super) fn plan(&self, guests: &[usize]) -> (Evacuation, Plan) {
        let evacuation = self.evacuation(guests);
        let plan = plan(&evacuation);
        (evacuation, plan)
    }

    /// Whether a pre-copy of this guest that does not converge may end in post-copy: it was chosen
    /// by what the guest wrote while it was measured, as by `migrate --mode auto`.
    pub(super) fn may_switch(&self, guest: usize, mode: Mode) -> bool {
        let can = self.guests[guest].measured.modes.contains(&Mode::Hybrid);
        mode == Mode::Precopy && self.args.mode.fixed().is_none() && can && !self.says_when_stalled
    }

    /// The guest was moved, or is being moved, to the host.
    pub(super) fn take(&mut self, guest: usize, host: usize) {
        *self.taken.entry(host).or_default() += self.guests[guest].measured.needs();
    }

    /// It was not.
    pub(super) fn give_back(&mut self, guest: usize, host: usize) {
        let needs = self.guests[guest].measured.needs();
        let taken = self.taken.entry(host).or_default();
        *taken = taken.saturating_sub(needs);
    }
}
