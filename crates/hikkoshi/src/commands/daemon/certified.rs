//! Sources that ask for an invitation, with a certificate.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::{Front, InvitationRequest};

use super::admission::Admission;
use super::certificate_limits::CertificateLimits;
use super::places::Places;
use super::receiver_processes::ReceiverProcesses;
use super::request::Request;
use crate::args::parse_guest_name;
use crate::output::streams;

/// Requests at a time.
const MAX_REQUESTS: usize = 16;

/// Sources at a time to which the reason of a refusal is sent. Others are disconnected.
const MAX_REFUSALS: usize = 64;

/// Answers such sources. Clones share the limits.
#[derive(Debug, Clone)]
pub(super) struct Certified {
    /// The file of `--admit`. It is read for each request.
    file: PathBuf,
    children: ReceiverProcesses,
    places: Places,
    refusals: Places,
    limits: CertificateLimits,
    stop: CancelFlag,
}

impl Certified {
    /// Sources that `file` admits, with at most `most` guests at a time for each certificate. A
    /// file that cannot be used is reported: it may be mended.
    pub(super) fn new(
        file: &Path,
        most: usize,
        children: &ReceiverProcesses,
        stop: &CancelFlag,
    ) -> Self {
        if let Err(why) = Admission::read(file) {
            streams::notice(&format!(
                "no source is admitted by a certificate until this is mended: {why}"
            ));
        }
        Self {
            file: file.to_owned(),
            children: children.clone(),
            places: Places::default(),
            refusals: Places::default(),
            limits: CertificateLimits::new(most),
            stop: stop.clone(),
        }
    }

    /// Answers a request, on a thread of its own: reading the file may take long, and the source
    /// may not read the answer. Starts a receiver if the source is admitted.
    pub(super) fn answer(&self, front: &Front, request: InvitationRequest) {
        let certificate = request.certificate().names();
        let journals = OnceCell::new();
        let counted = self.limits.begin(&certificate, request.name(), |name| {
            // Between two resumptions there is only a journal.
            let has_journal = || {
                let journals = journals.get_or_init(|| self.children.journals());
                let journals = journals.as_ref();
                journals.map_or(true, |journals| journals.journal_of(name).is_some())
            };
            self.children.is_receiving(name) || has_journal()
        });
        let counted = match counted {
            Ok(counted) => counted,
            Err(why) => {
                front.log_rejection(request.peer(), &format!("{certificate}: {why}"));
                return self.refuse(request, why);
            }
        };
        let Some(place) = self.places.take(MAX_REQUESTS) else {
            let why = "too many requests at a time: try again";
            return self.refuse(request, why.to_owned());
        };
        let (this, rejections) = (self.clone(), front.rejections());
        let spawned = thread::Builder::new()
            .name("dmn-request".into())
            .spawn(move || {
                let _place = place;
                let admitted = match this.decide(&request) {
                    Ok(admitted) => admitted,
                    Err(refusal) => {
                        rejections.log(request.peer(), &refusal.log);
                        return this.send(request, Err(&refusal.answer));
                    }
                };
                streams::notice(&format!(
                    "guest {}: asked for by {}, whose certificate is for {certificate}",
                    request.name(),
                    request.peer(),
                ));
                let invited = request
                    .kept_connection()
                    .map_err(|error| {
                        format!("using its connection: {}", Report::new(&error)).into()
                    })
                    .and_then(|source| this.children.invite(&admitted, Some(source)));
                match invited {
                    Ok((_, invitation)) => {
                        counted.keep();
                        this.send(request, Ok(&invitation));
                    }
                    Err(refusal) => {
                        let why = refusal.for_source(request.name());
                        this.send(request, Err(&why));
                    }
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

    /// Sends a source the reason why it gets no invitation, on a thread of its own: the source may
    /// not read it.
    fn refuse(&self, request: InvitationRequest, why: String) {
        let Some(place) = self.refusals.take(MAX_REFUSALS) else {
            return;
        };
        let this = self.clone();
        let spawned = thread::Builder::new()
            .name("dmn-refusal".into())
            .spawn(move || {
                let _place = place;
                this.send(request, Err(&why));
            });
        if let Err(error) = spawned {
            tracing::warn!(error = %Report::new(&error), "refusing a source");
        }
    }

    fn send(&self, request: InvitationRequest, answer: Result<&str, &str>) {
        let peer = request.peer();
        if let Err(error) = request.answer(answer, &self.stop) {
            tracing::warn!(error = %Report::new(&error), %peer, "answering a source");
        }
    }
}

/// Why a source is not admitted.
struct Refusal {
    /// For this side's operator.
    log: String,
    /// For the source.
    answer: String,
}
