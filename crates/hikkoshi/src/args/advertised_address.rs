//! `--advertise`.

use clap::Args;
use hikkoshi_link::Address;

use super::headings::CONNECTION;

/// How sources reach a host that does not see the address that it is reached at.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AdvertisedAddress {
    /// Address to put into the invitation instead of the one listened on
    #[arg(long, value_name = "ADDR", help_heading = CONNECTION)]
    pub advertise: Option<Address>,
}
