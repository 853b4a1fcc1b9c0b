//! `hikkoshi receiver`, which `daemon` starts for each guest.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_link::Address;

use super::advertised_address::AdvertisedAddress;
use super::headings::{CONNECTION, OUTPUT};
use super::incoming_guest::{IncomingGuest, TemplateName};
use super::output_options::{OutputOptions, ProgressFormat, ResultOptions};
use super::receive::{Receive, StartedBy};
use super::recovery::{GiveUpOptions, RecoveryOptions};
use super::security::Security;

#[derive(Debug, Clone, Args)]
pub(crate) struct Receiver {
    /// Name of the guest
    #[arg(value_name = "NAME", value_parser = super::guest_name::parse)]
    pub name: String,

    /// The limit of open files that this process gets again: its daemon has raised its own
    #[arg(long, value_name = "N", help_heading = CONNECTION)]
    pub open_files: Option<u64>,

    /// Address to listen on: a socket at which the daemon passes on connections
    #[arg(
        long,
        value_name = "ADDR",
        required_unless_present = "resume",
        requires = "advertise",
        help_heading = CONNECTION
    )]
    pub listen: Option<Address>,

    #[command(flatten)]
    pub address: AdvertisedAddress,

    #[command(flatten)]
    pub guest: IncomingGuest,

    #[command(flatten)]
    pub recovery: RecoveryOptions,

    /// Write the result to FILE as one JSON object
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: PathBuf,

    #[command(flatten)]
    pub result: ResultOptions,
}

impl From<Receiver> for Receive {
    fn from(this: Receiver) -> Self {
        let name = this.guest.template.is_some().then(|| this.name.clone());
        Self {
            listen: this.listen,
            guest: this.guest,
            template: TemplateName { name },
            address: this.address,
            invite: true,
            security: Security::default(),
            recovery: this.recovery,
            give_up: GiveUpOptions::default(),
            output: OutputOptions {
                progress: ProgressFormat::None,
                json: Some(this.json),
                result: this.result,
            },
            started_by: StartedBy::Daemon(this.name),
        }
    }
}
