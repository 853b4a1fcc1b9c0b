//! Opens links to a destination.

use std::sync::Arc;
use std::time::Duration;

use hikkoshi_link::{HandshakeError, LinkReader, LinkWriter, Remote, Stream, hello, open, split};
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{Features, Limits, MigrationId, Role};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;

/// How long the destination may take to accept the guest or to drop stale pages:
/// it punches holes into its RAM files, at about 10 GiB/s.
pub(crate) const DISCARD_TIMEOUT: Duration = Duration::from_secs(120);

/// Opens the links of one migration.
pub(crate) struct Connector<'a> {
    pub(crate) shared: &'a MigrationContext,
    pub(crate) remote: &'a Remote,
    pub(crate) id: MigrationId,
}

/// The control link and its two ends.
pub(crate) type Control = (Arc<Stream>, LinkReader, LinkWriter);

/// A link and its two ends.
pub(crate) type Ends = (Arc<Stream>, (LinkReader, LinkWriter));

/// All links to a destination that has accepted the guest.
pub(crate) struct Connected {
    pub(crate) control: Control,
    pub(crate) links: PageLinks,
    /// The guest's layout with the destination's host page sizes.
    pub(crate) destination: RamLayout,
}

/// The links other than the control link.
pub(crate) struct PageLinks {
    pub(crate) background: Vec<Ends>,
    /// The optional features that all background links have.
    pub(crate) features: Features,
    pub(crate) urgent: Option<Ends>,
    /// For the frames that arrive for the guest.
    pub(crate) frames: Option<Ends>,
    /// For each disk that is copied.
    pub(crate) disks: Vec<Ends>,
}

impl Connector<'_> {
    /// Every link of a session is opened here.
    fn open_link(&self, role: Role) -> Result<(Ends, Features), SourceFailure> {
        self.shared.check()?;
        let connect = |cause| SourceFailure::Connect {
            address: self.remote.address.to_string(),
            cause,
        };
        let options = &self.shared.options;
        let hello = hello(role, self.id);
        let opened = open(self.remote, &hello, &self.shared.cancel);
        let (stream, agreed) = opened.or_else(|cause| {
            self.shared.check()?;
            Err(connect(cause))
        })?;
        let limits = Limits {
            pages: self.shared.ram.layout().pages(),
        };
        let split = |stream: Stream| {
            stream.set_stall_timeout(options.stall_timeout)?;
            let stream = Arc::new(stream);
            // Until *Commit*, cancelling ends every blocking call on a link.
            let ends = split(&stream, limits, &self.shared.cancel)?;
            Ok(((stream, ends), agreed.features))
        };
        split(stream).map_err(|error| connect(HandshakeError::Io(error)))
    }

    /// Opens the control link.
    pub(crate) fn control(&self) -> Result<Control, SourceFailure> {
        let ((stream, (reader, writer)), _) = self.open_link(Role::Control)?;
        Ok((stream, reader, writer))
    }

    /// Opens the other links: so many background links, the urgent link if
    /// `urgent`, the link for frames if `frames`, and links for so many disks.
    pub(crate) fn others(
        &self,
        links: u16,
        urgent: bool,
        frames: bool,
        disks: u16,
    ) -> Result<PageLinks, SourceFailure> {
        let open_link = |role| self.open_link(role).map(|(ends, _)| ends);
        let background = (0..links)
            .map(|index| self.open_link(Role::Background { index }))
            .collect::<Result<Vec<_>, _>>()?;
        let (background, features): (Vec<_>, Vec<_>) = background.into_iter().unzip();
        Ok(PageLinks {
            background,
            features: features
                .into_iter()
                .fold(Features::SUPPORTED, Features::common),
            urgent: urgent.then(|| open_link(Role::Urgent)).transpose()?,
            frames: frames.then(|| open_link(Role::Frames)).transpose()?,
            disks: (0..disks)
                .map(|index| open_link(Role::Disk { index }))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// `layout` with these host page sizes; `None` if they do not match its blocks.
pub(crate) fn with_host_pages(layout: &RamLayout, host_pages: &[u64]) -> Option<RamLayout> {
    if layout.blocks().len() != host_pages.len() {
        return None;
    }
    let blocks = layout.blocks().zip(host_pages).map(|((block, _), &size)| {
        let mut block = block.clone();
        block.host_page = size;
        block
    });
    RamLayout::new(blocks.collect()).ok()
}
