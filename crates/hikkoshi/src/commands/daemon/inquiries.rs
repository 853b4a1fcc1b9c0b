//! Hosts that ask about this one, with a certificate.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::{Front, Inquiry, MAX_ANSWER};
use hikkoshi_linux::{Priority, PriorityClass};
use hikkoshi_status::{GuestLimits, HostGuest, HostGuestState, HostStatus};

use super::admission::{Admission, Asker};
use super::places::{Place, Places};
use super::receiver_processes::ReceiverProcesses;
use crate::args::HostQuestion;
use crate::commands::{host_status, own_executable};

/// Inquiries at a time.
const MAX_INQUIRIES: usize = 8;

/// Askers at a time to which the reason of a refusal is sent. Others are disconnected.
const MAX_REFUSALS: usize = 64;

/// Inquiries at a time of one certificate.
const MAX_PER_CERTIFICATE: usize = 2;

/// Answers such hosts. Clones share the limits.
#[derive(Debug, Clone)]
pub(super) struct Inquiries {
    /// The file of `--admit`. It is read for each inquiry.
    file: PathBuf,
    children: ReceiverProcesses,
    per_certificate: usize,
    places: InquiryPlaces,
    refusals: Places,
    stop: CancelFlag,
}

/// Counts inquiries, in all and by the names of the certificates.
#[derive(Debug, Clone, Default)]
struct InquiryPlaces {
    all: Places,
    by_certificate: Arc<Mutex<HashMap<String, Places>>>,
}

impl InquiryPlaces {
    fn take(&self, certificate: &str) -> Option<[Place; 2]> {
        let places = self.by_certificate.lock();
        let mut places = places.unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, places| !places.are_free());
        let own = places.entry(certificate.to_owned()).or_default();
        let own = own.take(MAX_PER_CERTIFICATE)?;
        Some([own, self.all.take(MAX_INQUIRIES)?])
    }
}

impl Inquiries {
    /// Hosts that `file` names. `per_certificate`: how many guests a certificate may have.
    pub(super) fn new(
        file: &Path,
        per_certificate: usize,
        children: &ReceiverProcesses,
        stop: &CancelFlag,
    ) -> Self {
        Self {
            file: file.to_owned(),
            children: children.clone(),
            per_certificate,
            places: InquiryPlaces::default(),
            refusals: Places::default(),
            stop: stop.clone(),
        }
    }

    /// Answers an inquiry, on a thread of its own: looking at the host takes long, and the asker
    /// may not read the answer.
    pub(super) fn answer(&self, front: &Front, inquiry: Inquiry) {
        let (this, rejections) = (self.clone(), front.rejections());
        let Some(places) = self.places.take(&inquiry.certificate().names()) else {
            let why = "too many inquiries at a time, of all or of this certificate";
            front.log_rejection(inquiry.peer(), &why);
            return self.refuse(inquiry);
        };
        let spawned = thread::Builder::new()
            .name("dmn-inquiry".into())
            .spawn(move || {
                let _places = places;
                // No guest waits for it.
                Priority::ON.apply(PriorityClass::Background);
                let peer = inquiry.peer();
                let answer = this.decide(&inquiry);
                let answer = match &answer {
                    Ok(text) => Ok(text.as_str()),
                    Err(refusal) => {
                        rejections.log(peer, &refusal.log);
                        Err(refusal.answer)
                    }
                };
                if let Err(error) = inquiry.answer(answer, &this.stop) {
                    tracing::warn!(error = %Report::new(&error), %peer, "answering an inquiry");
                }
            });
        if let Err(error) = spawned {
            tracing::warn!(error = %Report::new(&error), "answering an inquiry");
        }
    }

    /// Tells an asker that there are too many, on a thread of its own: it may not read that.
    fn refuse(&self, inquiry: Inquiry) {
        let Some(place) = self.refusals.take(MAX_REFUSALS) else {
            return;
        };
        let stop = self.stop.clone();
        let spawned = thread::Builder::new()
            .name("dmn-refusal".into())
            .spawn(move || {
                let _place = place;
                let peer = inquiry.peer();
                let why = "too many inquiries at a time: try again";
                if let Err(error) = inquiry.answer(Err(why), &stop) {
                    tracing::warn!(error = %Report::new(&error), %peer, "refusing an inquiry");
                }
            });
        if let Err(error) = spawned {
            tracing::warn!(error = %Report::new(&error), "refusing an inquiry");
        }
    }

    fn decide(&self, inquiry: &Inquiry) -> Result<String, Refusal> {
        let question = HostQuestion::by_name(inquiry.question()).ok_or_else(|| Refusal {
            log: format!("asks for '{}', which is not known", inquiry.question()),
            answer: "this hikkoshi does not know what is asked: it may be an earlier version",
        })?;
        let admission = Admission::read(&self.file).map_err(|log| Refusal {
            log,
            answer: "its file for certificates cannot be used; its log says why",
        })?;
        let certificate = inquiry.certificate();
        let asker = admission.asker(|name| certificate.is_for(name));
        let asker = asker.ok_or_else(|| Refusal {
            log: format!(
                "no line of {} (--admit) has a certificate for {}, which asks about this host",
                self.file.display(),
                certificate.names()
            ),
            answer: "this side's certificate may not ask about that host",
        })?;
        let status = self.status(question).map_err(|why| Refusal {
            log: format!("looking at this host: {why}"),
            answer: "its host could not be looked at; its log says why",
        })?;
        Ok(bounded(for_asker(status, &asker), MAX_ANSWER))
    }

    /// The status of this host. A process of its own looks: engines may be silent, and what is
    /// opened for that is closed when it ends.
    fn status(&self, question: HostQuestion) -> Result<HostStatus, String> {
        let mut command = own_executable::command_of(&self.children.program);
        command
            .args(host_status::words(question))
            .arg("--journal")
            .arg(&self.children.run);
        let mut status = host_status::by_command(command, &self.stop)?;
        let guests = self.children.guests().map_err(|refusal| refusal.why)?;
        status.limits = Some(GuestLimits {
            max_guests: self.children.max_guests(),
            guests: guests.len(),
            max_guests_per_certificate: self.per_certificate,
        });
        add_awaited(&mut status.guests, guests);
        Ok(status)
    }
}

/// Guests whose receiver does not listen yet, or was killed, are awaited as well.
fn add_awaited(known: &mut Vec<HostGuest>, guests: BTreeSet<String>) {
    for name in guests {
        if !known.iter().any(|guest| guest.name == name) {
            known.push(HostGuest {
                name,
                state: HostGuestState::Awaited,
                memory_bytes: None,
                resident_bytes: None,
            });
        }
    }
    known.sort_by(|a, b| a.name.cmp(&b.name));
}

/// What this asker may know.
fn for_asker(mut status: HostStatus, asker: &Asker<'_>) -> HostStatus {
    let before = status.guests.len();
    status.guests.retain(|guest| asker.may_see(&guest.name));
    status.other_guests += before - status.guests.len();
    status.migrations.retain(|migration| {
        let guest = migration["migration"]["guest"].as_str();
        guest.is_some_and(|guest| asker.may_see(guest))
    });
    if !asker.may_see_all() {
        // They may name other guests, and files.
        status.problems.clear();
    }
    status
}

/// The answer with at most `most` bytes: as many of the newest migrations as fit.
fn bounded(mut status: HostStatus, most: usize) -> String {
    let all = status.migrations.len();
    loop {
        // All keys are strings, so that this cannot fail.
        let text = serde_json::to_string(&status).unwrap_or_default();
        if text.len() <= most || status.migrations.is_empty() {
            return text;
        }
        let kept = status.migrations.len() / 2;
        let first = all == status.migrations.len();
        status.migrations.truncate(kept);
        let what = format!(
            "{} older migrations are left out: there are too many",
            all - kept
        );
        match status.problems.last_mut().filter(|_| !first) {
            Some(last) => *last = what,
            None => status.problems.push(what),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
struct Refusal {
    /// For this side's operator.
    log: String,
    /// For the asker.
    answer: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_status::{HOST_VERSION, HostFacts};
    use serde_json::{Value, json};

    fn guest(name: &str) -> HostGuest {
        HostGuest {
            name: name.to_owned(),
            state: HostGuestState::Here,
            memory_bytes: None,
            resident_bytes: None,
        }
    }

    fn migration(guest: &str) -> Value {
        json!({ "migration": { "guest": guest }, "more": "x".repeat(100) })
    }

    fn status() -> HostStatus {
        HostStatus {
            version: HOST_VERSION,
            host: HostFacts::read("0.1.0").unwrap(),
            guests: ["db", "web1", "web2"].map(guest).to_vec(),
            other_guests: 1,
            limits: None,
            migrations: ["db", "web1"].map(migration).to_vec(),
            problems: vec!["/run/hikkoshi/source-1-2.json: why".to_owned()],
        }
    }

    const RULES: &str = "
host1.example  web*  --template /t
ops.example    --inquire
";

    #[test]
    fn an_asker_is_told_of_the_guests_that_it_may_send() {
        let admission = Admission::parse(RULES).unwrap();
        let asker = |host: &str| admission.asker(|name| name == host);
        let seen = for_asker(status(), &asker("host1.example").unwrap());
        assert_eq!(seen.guests, ["web1", "web2"].map(guest));
        assert_eq!((seen.other_guests, seen.guest_count()), (2, 4));
        assert_eq!(seen.migrations, [migration("web1")]);
        assert!(seen.problems.is_empty());
        let all = status();
        let seen = for_asker(all.clone(), &asker("ops.example").unwrap());
        assert_eq!(seen, all);
        assert!(asker("host2.example").is_none());
        // What has no name of a guest is not shown.
        let mut other = status();
        other.migrations = vec![json!({}), json!([1])];
        let seen = for_asker(other, &asker("host1.example").unwrap());
        assert!(seen.migrations.is_empty());
    }

    #[test]
    fn an_answer_has_as_many_migrations_as_fit() {
        let mut status = status();
        status.problems.clear();
        let without = bounded(
            HostStatus {
                migrations: Vec::new(),
                ..status.clone()
            },
            0,
        )
        .len();
        status.migrations = vec![migration("web1"); 100];
        let most = without + 4000;
        let text = bounded(status, most);
        assert!(text.len() <= most, "{}", text.len());
        let read = HostStatus::parse(&text).unwrap();
        let kept = read.migrations.len();
        assert!((10..100).contains(&kept), "{kept}");
        let what = format!(
            "{} older migrations are left out: there are too many",
            100 - kept
        );
        assert_eq!(read.problems, [what]);
    }

    #[test]
    fn a_certificate_has_a_part_of_the_places() {
        let places = InquiryPlaces::default();
        let [first, second] = ["a"; 2].map(|name| places.take(name).unwrap());
        assert!(places.take("a").is_none());
        let others: Vec<_> = (2..MAX_INQUIRIES)
            .map(|number| places.take(&number.to_string()).unwrap())
            .collect();
        assert!(places.take("b").is_none());
        drop(second);
        drop(first);
        let _again = places.take("a").unwrap();
        drop(others);
        places.take("b").unwrap();
        assert_eq!(places.by_certificate.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_guest_whose_receiver_is_started_is_awaited() {
        let mut known = vec![guest("web")];
        add_awaited(&mut known, ["web", "db"].map(str::to_owned).into());
        let all: Vec<_> = known
            .iter()
            .map(|guest| (&*guest.name, guest.state))
            .collect();
        let expected = [
            ("db", HostGuestState::Awaited),
            ("web", HostGuestState::Here),
        ];
        assert_eq!(all, expected);
    }
}
