//! Keeps a destination's journal up to date.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_handover::{DestinationRecord, DestinationStage, Journal};
use hikkoshi_link::Address;
use hikkoshi_link::tls::TlsServer;
use hikkoshi_qemu::SharedReattachInfo;

use crate::args::ReceiveOptions;
use crate::journal::{DestinationEntry, JournalFile, absolute_address};
use crate::machines::WaitingMark;

/// Writes the journal when the engine reports a change.
#[derive(Debug)]
pub(super) struct DestinationJournal {
    file: JournalFile,
    address: Address,
    plaintext: bool,
    options: ReceiveOptions,
    tls: Option<TlsServer>,
    qemu: SharedReattachInfo,
    mark: Option<Arc<WaitingMark>>,
}

impl DestinationJournal {
    /// For a destination that listens on `address`. `mark` is that of a machine that was started
    /// for the guest.
    pub(super) fn new(
        file: JournalFile,
        address: &Address,
        plaintext: bool,
        options: ReceiveOptions,
        tls: Option<TlsServer>,
        qemu: SharedReattachInfo,
        mark: Option<Arc<WaitingMark>>,
    ) -> Self {
        Self {
            file,
            address: absolute_address(address),
            plaintext,
            options,
            tls,
            qemu,
            mark,
        }
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
        let tls = self.tls.as_ref();
        let security = tls.map(TlsServer::credentials).transpose();
        self.file.write(&DestinationEntry {
            address: self.address.clone(),
            plaintext: self.plaintext,
            options: self.options.clone(),
            security: security.map_err(io::Error::other)?,
            engine: record.clone(),
            qemu: self.qemu.get(),
        })
    }
}
