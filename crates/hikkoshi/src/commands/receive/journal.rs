//! Keeps a destination's journal up to date.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_handover::{DestinationRecord, DestinationStage, Journal};
use hikkoshi_link::Address;
use hikkoshi_link::tls::TlsServer;
use hikkoshi_qemu::SharedReattachInfo;

use crate::args::ReceiveOptions;
use crate::journal::{DestinationEntry, JournalFile};
use crate::machines::WaitingMark;

/// What all journals of a destination say of how it listens.
#[derive(Debug, Clone)]
pub(super) struct ListeningTerms {
    pub address: Address,
    pub plaintext: bool,
    pub options: ReceiveOptions,
    pub tls: Option<TlsServer>,
}

/// Writes the journal when the engine reports a change.
#[derive(Debug)]
pub(super) struct DestinationJournal {
    file: JournalFile,
    terms: ListeningTerms,
    qemu: SharedReattachInfo,
    mark: Option<Arc<WaitingMark>>,
}

impl DestinationJournal {
    /// For a destination that listens on these terms. `mark` is that of a machine that was started
    /// for the guest.
    pub(super) fn new(
        file: JournalFile,
        terms: ListeningTerms,
        qemu: SharedReattachInfo,
        mark: Option<Arc<WaitingMark>>,
    ) -> Self {
        Self {
            file,
            terms,
            qemu,
            mark,
        }
    }

    pub(super) fn file(&self) -> &JournalFile {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Journal<DestinationRecord> for DestinationJournal {
    fn record(&self, record: &DestinationRecord) -> io::Result<()> {
        self.write(record)?;
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        // After the journal: a machine with neither would be left behind. A marked machine can be
        // ended although it has a journal, which then says that the guest has not run here.
        mark.follow(record.stage).inspect_err(|_| {
            // The mark was removed before every later stage.
            if record.stage == DestinationStage::Ready {
                self.file.remove();
            }
        })
    }

    fn close(&self) {
        self.file.remove();
    }
}

impl DestinationJournal {
    fn write(&self, record: &DestinationRecord) -> io::Result<()> {
        // Read each time: they name the source once one has connected.
        let terms = self.terms.clone();
        let tls = terms.tls.as_ref();
        let security = tls.map(TlsServer::credentials).transpose();
        self.file.write(&DestinationEntry {
            address: terms.address,
            plaintext: terms.plaintext,
            options: terms.options,
            security: security.map_err(io::Error::other)?,
            engine: record.clone(),
            qemu: self.qemu.get(),
        })
    }
}
