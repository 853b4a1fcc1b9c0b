//! `hikkoshi ssh-session`, which `migrate --ssh` starts at the destination.

use clap::Args;
use hikkoshi_link::Address;

use super::advertised_address::AdvertisedAddress;
use super::headings::CONNECTION;
use super::incoming_guest::{IncomingGuest, TemplateName};
use super::output_options::{OutputOptions, ProgressFormat, ResultOptions};
use super::receive::{Receive, StartedBy};
use super::recovery::{GiveUpOptions, RecoveryOptions};
use super::security::Security;

#[derive(Debug, Clone, Args)]
pub(crate) struct SshSession {
    /// Address to listen on [default: the one that ssh has connected to, with a free port]
    #[arg(long, value_name = "ADDR", help_heading = CONNECTION)]
    pub listen: Option<Address>,

    /// SSH_CONNECTION of the session, from the shell that has started this: sudo may remove it
    #[arg(long, value_name = "TEXT", help_heading = CONNECTION)]
    pub ssh_connection: Option<String>,

    #[command(flatten)]
    pub guest: IncomingGuest,

    #[command(flatten)]
    pub template: TemplateName,

    #[command(flatten)]
    pub address: AdvertisedAddress,

    #[command(flatten)]
    pub recovery: RecoveryOptions,

    #[command(flatten)]
    pub result: ResultOptions,
}

impl SshSession {
    /// What is received, at this address.
    pub(crate) fn receive(&self, listen: Option<Address>) -> Receive {
        let this = self.clone();
        Receive {
            listen,
            guest: this.guest,
            template: this.template,
            address: this.address,
            invite: true,
            security: Security::default(),
            recovery: this.recovery,
            give_up: GiveUpOptions::default(),
            output: OutputOptions {
                progress: ProgressFormat::None,
                json: None,
                result: this.result,
            },
            started_by: StartedBy::Source,
        }
    }
}
