//! The guest that is received, and how: options of `receive`, and of the processes that `daemon`
//! and `migrate --ssh` start.

use std::num::{NonZeroU16, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use hikkoshi_engine::DestinationOptions;
use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_qemu::Overcommit;

use super::allow_device::AllowDevice;
use super::headings::{CONNECTION, MIGRATION, TUNING};
use super::incoming_domain::IncomingDomain;
use super::latency_options::LatencyOptions;
use super::links::LinkArgs;
use super::resolved::ReceiveOptions;
use super::{bytes, durations};

/// What receives the guest, and with which options.
#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("destination")
        .args(["qmp", "connect", "template", "resume"])
        .required(true).multiple(true)
))]
pub(crate) struct IncomingGuest {
    /// QMP socket of the QEMU process
    #[arg(
        long,
        value_name = "PATH",
        display_order = 0,
        help_heading = CONNECTION
    )]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub domain: IncomingDomain,

    /// Start the destination's QEMU with the command line in FILE
    ///
    /// The file has the words of one command, which may be on several lines; ' and " group words.
    /// {name} is the guest's name, {qmp} the path of the QMP socket. `-incoming defer` is added,
    /// and `-qmp` if there is no {qmp}. QEMU is ended if the guest stays at the source.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        conflicts_with_all = ["qmp", "connect", "resume"],
        help_heading = CONNECTION
    )]
    pub template: Option<PathBuf>,

    /// End if no source has connected within this time, such as 60s
    ///
    /// The exit status is 1 then. By default, wait until a source connects. If the invitation was
    /// written to a pipe, waiting also ends when no process reads from the pipe any more.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DURATION",
        value_parser = durations::parse,
        conflicts_with = "resume",
        help_heading = CONNECTION
    )]
    pub wait_for: Option<Duration>,

    /// Receive the guest even if it may not fit into this host's free memory
    ///
    /// Free memory counts swap space and the limits of QEMU's memory cgroup. If memory runs out
    /// before the handover, the guest stays at the source; after it, the guest waits for memory, or
    /// the kernel ends its QEMU, and the guest is lost.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with = "resume",
        help_heading = MIGRATION
    )]
    pub allow_overcommit: bool,

    #[command(flatten)]
    pub devices: AllowDevice,

    #[command(flatten)]
    pub link: LinkArgs,

    /// Threads that handle the guest's page faults
    ///
    /// [default: depends on the guest's vCPUs and on this host's CPUs]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FAULT_THREADS)),
        help_heading = TUNING
    )]
    pub fault_threads: Option<u16>,

    /// Rebuild transparent huge pages after the migration, at most at RATE
    ///
    /// A second, with the units of --bandwidth; none: as fast as possible; default 1G.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1G",
        value_parser = parse_collapse,
        help_heading = TUNING
    )]
    pub collapse: Option<u64>,

    #[command(flatten)]
    pub latency: LatencyOptions,
}

/// The name of a guest whose machine is started from a template.
#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("machine_of_template").args(["template", "resume"]).multiple(true)
))]
pub(crate) struct TemplateName {
    /// Name of the guest of --template [default: guest]
    ///
    /// With --resume: the guest whose machine was started from a template by this name.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        requires = "machine_of_template",
        conflicts_with = "qmp",
        value_parser = super::guest_name::parse,
        help_heading = CONNECTION
    )]
    pub name: Option<String>,
}

/// Parses a rate, or `none`: no limit.
fn parse_collapse(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(u64::MAX),
        rate => bytes::parse(rate).map_err(|error| format!("{error}; or none, for no limit")),
    }
}

impl IncomingGuest {
    /// Whether the host may have too little free memory.
    pub(crate) fn overcommit(&self) -> Overcommit {
        match self.allow_overcommit {
            true => Overcommit::Allow,
            false => Overcommit::Refuse,
        }
    }

    /// The options of a migration that begins now.
    pub(crate) fn options(&self) -> ReceiveOptions {
        self.options_over(&ReceiveOptions::default())
    }

    /// These options, and where one was not given, that of `earlier`.
    pub(crate) fn options_over(&self, earlier: &ReceiveOptions) -> ReceiveOptions {
        let threads = self.fault_threads.and_then(NonZeroU16::new);
        let collapse = self.collapse.and_then(NonZeroU64::new);
        ReceiveOptions {
            link: self.link.over(&earlier.link),
            fault_threads: threads.or(earlier.fault_threads),
            collapse_bytes_per_s: collapse.or(earlier.collapse_bytes_per_s),
        }
    }

    /// The engine's options: `resolved`, and those that are for this run only.
    pub(crate) fn engine_options(&self, resolved: &ReceiveOptions) -> DestinationOptions {
        DestinationOptions {
            poll: self.latency.poll,
            priority: self.latency.priority(),
            ..resolved.engine_options()
        }
    }
}
