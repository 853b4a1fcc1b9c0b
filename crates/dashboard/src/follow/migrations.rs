//! All migrations of the status folder, and who is informed about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use hikkoshi_account::Side;
use hikkoshi_status::{Continued, Evacuation, Recording, StatusRecord};

use super::events::{
    all_sent_event, evacuation_event, gone_event, host_event, lost_event, status_event,
};
use super::hosts::OtherHost;
use super::known::{Known, Whole};
use super::subscription::{Event, Queue, Subscription};

/// The most sockets that are followed at once: as many as `hikkoshi daemon` takes guests by
/// default. Each has a thread, and a recording of 2 MiB at most.
const MAX_FOLLOWED: usize = 64;

/// The most different reasons that ends are counted by, beside those that are known from the
/// beginning; others are counted together.
const MAX_OTHER_REASONS: usize = 64;

/// The reason of an engine that was killed.
const ENGINE_LOST: &str = "engine_lost";

/// What is said of an engine that was killed.
pub(super) const KILLED: &str = "its engine was killed, or its host was restarted. If the guest \
    was handed over, `hikkoshi migrate --resume` and `hikkoshi receive --resume` complete the \
    migration";

/// All migrations of the status folder. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Migrations(Arc<Mutex<State>>);

/// What is known.
#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Arc<str>, Known>,
    subscribers: Vec<Arc<Queue>>,
    ended: BTreeMap<(Side, String), u64>,
    /// The most entries of `ended`.
    most_ended: usize,
    /// The folder was listed.
    is_listed: bool,
    folder_problem: Option<String>,
    evacuation: Option<Evacuation>,
    /// In the order in which they have answered first.
    hosts: Vec<OtherHost>,
}

/// What is known, to look at.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// The migrations, by the names of their entries.
    pub(crate) entries: &'a BTreeMap<Arc<str>, Known>,
    /// Ends that were seen, by side and reason.
    pub(crate) ended: &'a BTreeMap<(Side, String), u64>,
    /// Subscribers.
    pub(crate) subscribers: usize,
    /// Whether the status folder can be read.
    pub(crate) folder_is_readable: bool,
    /// The evacuation of this host.
    pub(crate) evacuation: Option<&'a Evacuation>,
    /// Other hosts.
    pub(crate) hosts: &'a [OtherHost],
}

impl Migrations {
    /// No migrations. Ends are counted from zero for each of these reasons, so that the first one
    /// is a change.
    pub(crate) fn new(reasons: &[&str]) -> Self {
        let sides = [Side::Source, Side::Destination].into_iter();
        let known = reasons.iter().copied().chain([ENGINE_LOST]);
        let ended: BTreeMap<_, _> = sides
            .flat_map(|side| {
                known
                    .clone()
                    .map(move |reason| ((side, reason.to_owned()), 0))
            })
            .collect();
        Self(Arc::new(Mutex::new(State {
            most_ended: ended.len() + MAX_OTHER_REASONS,
            ended,
            ..State::default()
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything. Nothing changes meanwhile.
    pub(crate) fn view<T>(&self, look: impl FnOnce(View<'_>) -> T) -> T {
        let mut state = self.lock();
        state.forget_closed();
        look(View {
            entries: &state.entries,
            ended: &state.ended,
            subscribers: state.subscribers.len(),
            folder_is_readable: state.folder_problem.is_none(),
            evacuation: state.evacuation.as_ref(),
            hosts: &state.hosts,
        })
    }

    /// The whole recording of an entry. `None`: there is none.
    pub(crate) fn whole(&self, name: &str) -> Option<Whole> {
        self.lock().entries.get(name)?.whole()
    }

    /// The whole recordings of the migration that an entry belongs to. `None`: there is none.
    pub(crate) fn whole_migration(&self, name: &str) -> Option<Vec<Whole>> {
        let state = self.lock();
        let id = &state.entries.get(name)?.short()?.migration.id;
        let known = state.entries.values();
        let same = known.filter(|it| it.short().is_some_and(|it| it.migration.id == *id));
        Some(same.filter_map(Known::whole).collect())
    }

    /// A subscriber: gets all recordings, without samples and frames, then all changes. `None`:
    /// there are `most` others.
    pub(crate) fn subscribe(&self, most: usize) -> Option<Subscription> {
        let mut state = self.lock();
        state.forget_closed();
        if state.subscribers.len() >= most {
            return None;
        }
        let mut events = Vec::new();
        for (name, known) in &state.entries {
            events.extend(known.event(name).map(Event::of_text));
            events.extend(known.lost().map(|text| lost_event(name, text)));
        }
        if state.evacuation.is_some() {
            events.push(evacuation_event(state.evacuation.as_ref()));
        }
        events.extend(state.hosts.iter().map(host_event));
        events.push(all_sent_event());
        let queue = Arc::new(Queue::default());
        queue.begin(events);
        state.subscribers.push(Arc::clone(&queue));
        Some(Subscription(queue))
    }

    /// The status folder can be read, or not.
    pub(super) fn set_folder_problem(&self, problem: Option<String>) {
        let mut state = self.lock();
        if state.folder_problem != problem {
            if let Some(problem) = &problem {
                tracing::warn!(%problem, "the migrations of this host cannot be listed");
            }
            state.folder_problem = problem;
        }
    }

    /// The evacuation of this host, as the folder has it.
    pub(super) fn set_evacuation(&self, evacuation: Option<Evacuation>) {
        let mut state = self.lock();
        if state.evacuation != evacuation {
            state.publish(&evacuation_event(evacuation.as_ref()));
            state.evacuation = evacuation;
        }
    }

    /// Another host has answered, or has not.
    pub(super) fn set_host(&self, host: OtherHost) {
        let mut state = self.lock();
        state.publish(&host_event(&host));
        let known = state.hosts.iter_mut().find(|it| it.asked == host.asked);
        match known {
            Some(known) => *known = host,
            None => {
                state.hosts.push(host);
                state.hosts.sort_by(|a, b| a.asked.cmp(&b.asked));
            }
        }
    }

    /// Nothing more is known about other hosts.
    pub(super) fn lose_hosts(&self, why: &str) {
        tracing::warn!(why, "the other hosts are not asked any more");
        let mut state = self.lock();
        let mut hosts = std::mem::take(&mut state.hosts);
        for host in &mut hosts {
            host.status = None;
            host.error = Some(why.to_owned());
            state.publish(&host_event(host));
        }
        state.hosts = hosts;
    }

    /// A socket is in the folder. Returns whether the caller must follow it, and report the end of
    /// that by [`not_followed`](Self::not_followed).
    pub(super) fn must_follow(&self, name: &str) -> bool {
        let mut state = self.lock();
        let followed = state.entries.values().filter(|known| known.is_followed);
        let is_full = followed.count() >= MAX_FOLLOWED;
        let known = state.known(name);
        let waits = known.retry.is_some_and(|retry| Instant::now() < retry);
        if is_full || waits || known.is_followed || known.is_final() {
            return false;
        }
        known.is_followed = true;
        true
    }

    /// A socket is not followed any more.
    pub(super) fn not_followed(&self, name: &str) {
        if let Some(known) = self.lock().entries.get_mut(name) {
            known.is_followed = false;
        }
    }

    /// A file that was written at this time is in the folder. Returns whether it is to be read.
    /// `has_socket`: its engine runs, or was killed.
    pub(super) fn must_read(&self, name: &str, written: SystemTime, has_socket: bool) -> bool {
        let mut state = self.lock();
        let known = state.known(name);
        // Its engine sends everything that it writes to the file.
        if has_socket && known.is_live() {
            return false;
        }
        let is_new = known.file.replace(written) != Some(written);
        is_new || (!has_socket && !known.is_over())
    }

    /// An engine has sent a record. Returns whether it is still of interest.
    pub(crate) fn apply(&self, name: &str, record: StatusRecord) -> bool {
        let mut state = self.lock();
        match record {
            _ if state.known(name).is_final() => return false,
            StatusRecord::Recording(recording) => {
                let (recording, continued) = state.joined(name, *recording);
                state.known(name).begin(recording, continued);
                state.publish_recording(name);
            }
            record => {
                let Some(record) = state.known(name).apply(record) else {
                    return false;
                };
                // Serialized once for all subscribers, and only if there are some.
                if !state.subscribers.is_empty() {
                    state.publish(&status_event(name, &record));
                }
            }
        }
        state.count_end(name);
        true
    }

    /// A file has this recording. Without an end, and without a socket (`has_socket`), its engine
    /// was killed.
    pub(super) fn read(&self, name: &str, recording: Recording, has_socket: bool) {
        let mut state = self.lock();
        let was_killed = recording.end.is_none() && !has_socket;
        if state.known(name).is_news(&recording) {
            let (recording, _) = state.joined(name, recording);
            state.known(name).read(name, recording);
            state.publish_recording(name);
        }
        if was_killed {
            return state.lose(name, KILLED, true);
        }
        if !state.is_listed {
            state.known(name).ended_before();
        }
        state.count_end(name);
    }

    /// Nothing more is known about a migration: its engine cannot be reached, or its file not be
    /// read. It may have more to say later.
    pub(crate) fn lose(&self, name: &str, text: &str) {
        self.lock().lose(name, text, false);
    }

    /// The engine of a migration was killed.
    pub(crate) fn lose_killed(&self, name: &str) {
        self.lock().lose(name, KILLED, true);
    }

    /// The folder has these entries. Others are forgotten.
    pub(crate) fn listed(&self, names: &BTreeSet<&str>) {
        let mut state = self.lock();
        state.is_listed = true;
        let entries = state.entries.iter_mut();
        let gone: Vec<_> = entries
            .filter_map(|(name, known)| {
                let is_present = names.contains(&**name);
                known.listed(is_present).then(|| Arc::clone(name))
            })
            .collect();
        for name in gone {
            state.entries.remove(&name);
            state.publish(&gone_event(&name));
        }
    }
}

impl State {
    fn known(&mut self, name: &str) -> &mut Known {
        let is_old = !self.is_listed;
        let entry = self.entries.entry(Arc::from(name));
        entry.or_insert_with(|| Known::new(is_old))
    }

    /// The recording of an entry, joined to that of the engine that it resumed, if that is known.
    fn joined(&self, name: &str, recording: Recording) -> (Recording, Option<Continued>) {
        let others = self.entries.iter().filter(|(other, _)| &***other != name);
        let earlier = others
            .filter_map(|(_, known)| Some((known.short()?, known)))
            .filter(|(short, _)| Continued::can_join(short, &recording))
            .max_by_key(|(short, _)| (short.engine_started_unix_ms(), short.engines.len()))
            .and_then(|(_, known)| known.whole()?.into_recording());
        match earlier {
            Some(earlier) => {
                let (recording, continued) = Continued::join(earlier, recording);
                (recording, Some(continued))
            }
            None => (recording, None),
        }
    }

    fn lose(&mut self, name: &str, text: &str, was_killed: bool) {
        if self.known(name).lose(text) {
            self.publish(&lost_event(name, text));
        }
        if was_killed && let Some(side) = self.known(name).count_loss() {
            self.count(side, ENGINE_LOST.to_owned());
        }
    }

    fn forget_closed(&mut self) {
        self.subscribers.retain(|queue| !queue.is_closed());
    }

    fn publish(&mut self, event: &Event) {
        self.subscribers.retain(|queue| {
            queue.push(event);
            !queue.is_closed()
        });
    }

    fn publish_recording(&mut self, name: &str) {
        if self.subscribers.is_empty() {
            return;
        }
        if let Some(text) = self.known(name).event(name) {
            self.publish(&Event::of_text(text));
        }
    }

    fn count_end(&mut self, name: &str) {
        if let Some((side, reason)) = self.known(name).count_end() {
            self.count(side, reason);
        }
    }

    fn count(&mut self, side: Side, reason: String) {
        let is_known = self.ended.contains_key(&(side, reason.clone()));
        let reason = match is_known || self.ended.len() < self.most_ended {
            true => reason,
            false => "other".to_owned(),
        };
        *self.ended.entry((side, reason)).or_default() += 1;
    }
}
