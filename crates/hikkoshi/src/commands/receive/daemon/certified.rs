//! Sources that ask for an invitation, with a certificate.

use std::path::{Path, PathBuf};
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::{Front, InvitationRequest};

use super::admission::Admission;
use super::children::Children;
use super::places::Places;
use super::request::Request;
use crate::args::parse_guest_name;
use crate::output::streams;

/// Requests at a time that have been admitted.
const MAX_REQUESTS: usize = 16;

/// Answers such sources.
#[derive(Debug)]
pub(super) struct Certified {
    /// The file of `--admit`. It is read for each request.
    file: PathBuf,
    children: Children,
    places: Places,
    stop: CancelFlag,
}

impl Certified {
    /// Sources that `file` admits. A file that cannot be used is reported: it may be mended.
    pub(super) fn new(file: &Path, children: &Children, stop: &CancelFlag) -> Self {
        if let Err(why) = Admission::read(file) {
            streams::notice(&format!(
                "no source is admitted by a certificate until this is mended: {why}"
            ));
        }
        Self {
            file: file.to_owned(),
            children: children.clone(),
            places: Places::default(),
            stop: stop.clone(),
        }
    }

    /// Answers a request. Starts a receiver on a thread of its own, if the source is admitted.
    pub(super) fn answer(&self, front: &Front, request: InvitationRequest) {
        let admitted = match self.decide(&request) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                front.log_rejection(request.peer(), &refusal.log);
                return self.send(request, Err(&refusal.answer));
            }
        };
        let Some(place) = self.places.take(MAX_REQUESTS) else {
            return self.send(request, Err("too many requests at a time: try again"));
        };
        streams::notice(&format!(
            "guest {}: asked for by {}, whose certificate is for {}",
            request.name(),
            request.peer(),
            request.certificate().names()
        ));
        let (children, stop) = (self.children.clone(), self.stop.clone());
        let spawned = thread::Builder::new()
            .name("dmn-request".into())
            .spawn(move || {
                let _place = place;
                let invited = request
                    .kept_connection()
                    .map_err(|error| format!("using its connection: {}", Report::new(&error)))
                    .and_then(|source| children.invite(&admitted, source));
                match invited {
                    Ok((_, invitation)) => send(request, Ok(&invitation), &stop),
                    Err(why) => send(request, Err(&why), &stop),
                }
            });
        if let Err(error) = spawned {
            tracing::warn!(error = %Report::new(&error), "answering a source");
        }
    }

    /// What receives the guest.
    fn decide(&self, request: &InvitationRequest) -> Result<Request, Refusal> {
        let name = parse_guest_name(request.name()).map_err(|why| Refusal {
            log: format!("the name of the guest: {why}"),
            answer: why,
        })?;
        let unusable = |why: String| Refusal {
            log: format!("guest {name}: {why}"),
            answer: "its file for certificates cannot be used; its log says why".to_owned(),
        };
        let admission = Admission::read(&self.file).map_err(unusable)?;
        let certificate = request.certificate();
        let found = admission.request(|name| certificate.is_for(name), &name);
        let found = found.ok_or_else(|| Refusal {
            log: format!(
                "no line of {} (--admit) admits the guest {name} by a certificate for {}",
                self.file.display(),
                certificate.names()
            ),
            answer: format!("this side's certificate may not send a guest of the name {name}"),
        })?;
        found.map_err(unusable)
    }

    fn send(&self, request: InvitationRequest, answer: Result<&str, &str>) {
        send(request, answer, &self.stop);
    }
}

/// Why a source is not admitted.
struct Refusal {
    /// For this side's operator.
    log: String,
    /// For the source.
    answer: String,
}

fn send(request: InvitationRequest, answer: Result<&str, &str>, stop: &CancelFlag) {
    let peer = request.peer();
    if let Err(error) = request.answer(answer, stop) {
        tracing::warn!(error = %Report::new(&error), %peer, "answering a source");
    }
}
