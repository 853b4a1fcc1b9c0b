//! The guests of this host: its QEMU processes, what the run folder says of guests that are awaited
//! or move, joined by process or by name.

use std::fs;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::Address;
use hikkoshi_linux::is_served;
use hikkoshi_qemu::{QemuIdentity, RunningQemu, running_qemus};
use hikkoshi_status::{HostGuest, HostGuestState};

use crate::commands::find_journal::may_exist;
use crate::commands::monitor;
use crate::journal::{self, DestinationEntry, JournalEntry, SourceEntry};
use crate::machines;

/// The folder of the daemon's receivers in the run folder, and the end of the name of a socket.
const RECEIVERS: &str = "receivers";
const SOCKET: &str = "sock";

/// All guests that are known, by name. What cannot be read is added to `problems`.
pub(super) fn guests(run: &Path, problems: &mut Vec<String>) -> Vec<HostGuest> {
    let qemus = running_qemus().unwrap_or_else(|error| {
        problems.push(format!("looking for QEMUs: {}", Report::new(&error)));
        Vec::new()
    });
    let mut found = Found::new(run, &qemus);
    // A receiver does not listen before its machine is started.
    for name in receivers(run).into_iter().chain(machines::marked(run)) {
        found.note(None, &name, HostGuestState::Awaited);
    }
    let mut journals = |error: &std::io::Error| {
        let what = format!(
            "{}: looking for journals: {}",
            run.display(),
            Report::new(error)
        );
        if !problems.contains(&what) {
            problems.push(what);
        }
    };
    match journal::search::<DestinationEntry>(run, None) {
        Ok(all) => all.readable.iter().for_each(|(_, entry)| {
            let state = match entry.engine.stage {
                DestinationStage::Receiving | DestinationStage::Ready => HostGuestState::Arriving,
                DestinationStage::Running if entry.engine.postcopy => HostGuestState::Arriving,
                DestinationStage::Running | DestinationStage::Complete => HostGuestState::Here,
                // It has never run here.
                DestinationStage::Declined => return,
            };
            let received = receiver_of(&entry.address);
            found.note_journal(entry.identity(), received.as_deref(), state);
        }),
        Err(error) => journals(&error),
    }
    match journal::search::<SourceEntry>(run, None) {
        Ok(all) => all.readable.iter().for_each(|(_, entry)| {
            if entry.engine.stage != SourceStage::Done {
                found.note_journal(entry.identity(), None, HostGuestState::Leaving);
            }
        }),
        Err(error) => journals(&error),
    }
    found.finish()
}

/// The guests whose receivers listen: those of `hikkoshi daemon`.
fn receivers(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join(RECEIVERS)).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let listening = paths.filter(|path| {
        path.extension().is_some_and(|end| end == SOCKET) && is_served(path).unwrap_or(true)
    });
    let names = listening.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    names.collect()
}

/// The guest of a daemon whose receiver listens at this address.
fn receiver_of(address: &Address) -> Option<String> {
    let Address::Unix(path) = address else {
        return None;
    };
    let folder = path.parent()?.file_name()?;
    let is_receiver = folder == RECEIVERS && path.extension()? == SOCKET;
    is_receiver.then(|| Some(path.file_stem()?.to_str()?.to_owned()))?
}

/// The guests that were found, with the processes that are known.
#[derive(Debug)]
struct Found<'a> {
    run: &'a Path,
    qemus: &'a [RunningQemu],
    guests: Vec<(Option<u32>, HostGuest)>,
}

impl<'a> Found<'a> {
    /// The QEMUs, under the names that their owners have given them.
    fn new(run: &'a Path, qemus: &'a [RunningQemu]) -> Self {
        let guest = |qemu: &RunningQemu| {
            let name = qemu.name.clone();
            let guest = HostGuest {
                name: name.unwrap_or_else(|| format!("process {}", qemu.pid)),
                state: HostGuestState::Here,
                memory_bytes: qemu.memory_bytes,
                resident_bytes: Some(qemu.resident_bytes),
            };
            (Some(qemu.pid), guest)
        };
        Self {
            run,
            qemus,
            guests: qemus.iter().map(guest).collect(),
        }
    }

    /// A guest of this name, whose QEMU has this number if that is known, is in this state. The
    /// machine of a daemon has its name there, whatever its QEMU is called.
    fn note(&mut self, pid: Option<u32>, name: &str, state: HostGuestState) {
        let machine = || {
            let socket = machines::socket(self.run, name);
            let mut own = self.qemus.iter().filter(|qemu| qemu.names(&socket));
            own.next().map(|qemu| qemu.pid)
        };
        let pid = pid.or_else(machine);
        let by_pid = |(other, _): &(Option<u32>, HostGuest)| pid.is_some() && *other == pid;
        let by_name = |(other, guest): &(Option<u32>, HostGuest)| {
            guest.name == name && (pid.is_none() || other.is_none())
        };
        let at = self.guests.iter().position(by_pid);
        let at = at.or_else(|| self.guests.iter().position(by_name));
        match at.and_then(|at| self.guests.get_mut(at)) {
            Some((_, guest)) => {
                name.clone_into(&mut guest.name);
                guest.state = state;
            }
            None => {
                let guest = HostGuest {
                    name: name.to_owned(),
                    state,
                    memory_bytes: None,
                    resident_bytes: None,
                };
                self.guests.push((pid, guest));
            }
        }
    }

    /// A guest with a journal, which a daemon calls `received` if it receives it.
    fn note_journal(
        &mut self,
        identity: &QemuIdentity,
        received: Option<&str>,
        state: HostGuestState,
    ) {
        // If it cannot be found out whether its QEMU exists, it may.
        if may_exist(identity).unwrap_or(true) {
            let own = monitor::guest_name(identity);
            self.note(Some(identity.pid), received.unwrap_or(&own), state);
        }
    }

    fn finish(self) -> Vec<HostGuest> {
        let mut guests: Vec<_> = self.guests.into_iter().map(|(_, guest)| guest).collect();
        guests.sort_by(|a, b| a.name.cmp(&b.name));
        guests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn guests_that_are_awaited_have_a_receiver_that_listens() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(receivers(run.path()), [""; 0]);
        let folder = run.path().join(RECEIVERS);
        fs::create_dir(&folder).unwrap();
        let _listening = UnixListener::bind(folder.join("web.sock")).unwrap();
        drop(UnixListener::bind(folder.join("killed.sock")).unwrap());
        fs::write(folder.join("web.json"), "{}").unwrap();
        assert_eq!(receivers(run.path()), ["web"]);
        let machines = run.path().join("machines");
        fs::create_dir(&machines).unwrap();
        for name in ["started.waiting", "web.waiting", "web.log"] {
            fs::write(machines.join(name), "").unwrap();
        }
        let mut problems = Vec::new();
        let all = guests(run.path(), &mut problems);
        for name in ["started", "web"] {
            let own: Vec<_> = all.iter().filter(|guest| guest.name == name).collect();
            let is_awaited = matches!(own[..], [one] if one.state == HostGuestState::Awaited);
            assert!(is_awaited, "{all:?}");
        }
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn a_guest_is_listed_once() {
        let run = Path::new("/run/hikkoshi");
        let mut found = Found::new(run, &[]);
        found.note(Some(7), "own", HostGuestState::Here);
        found.note(Some(7), "web", HostGuestState::Arriving);
        found.note(None, "db", HostGuestState::Awaited);
        found.note(Some(8), "db", HostGuestState::Arriving);
        // Another one of the same name.
        found.note(Some(9), "web", HostGuestState::Leaving);
        let all = found.finish();
        let all: Vec<_> = all
            .iter()
            .map(|guest| (&*guest.name, guest.state))
            .collect();
        assert_eq!(
            all,
            [
                ("db", HostGuestState::Arriving),
                ("web", HostGuestState::Arriving),
                ("web", HostGuestState::Leaving)
            ]
        );
    }

    #[test]
    fn a_receiver_of_a_daemon_has_the_name_of_its_socket() {
        let of = |text: &str| receiver_of(&text.parse().unwrap());
        let web = Some("web".to_owned());
        assert_eq!(of("unix:/run/hikkoshi/receivers/web.sock"), web);
        for other in ["unix:/run/web.sock", "unix:/run/receivers/web", "h:1"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
