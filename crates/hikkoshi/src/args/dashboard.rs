//! `hikkoshi dashboard`.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_dashboard::{AllowedHost, Listen};

use super::headings::{CONNECTION, SECURITY};
use super::hosts::HostArgs;

#[derive(Debug, Clone, Args)]
pub(crate) struct Dashboard {
    /// Address to listen on: IP:PORT, localhost:PORT (port 0: a free one) or unix:PATH
    ///
    /// All users of this host can connect to a port; to a unix socket only the user who runs the
    /// dashboard can. The address of the page is printed to standard output.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:8077",
        help_heading = CONNECTION
    )]
    pub listen: Listen,

    /// Directory that `migrate` and `receive` were given with --journal
    ///
    /// The migrations are in its subdirectory "status".
    /// [default: /run/hikkoshi; for users other than root, $XDG_RUNTIME_DIR/hikkoshi]
    #[arg(verbatim_doc_comment, long, value_name = "DIR", help_heading = CONNECTION)]
    pub journal: Option<PathBuf>,

    #[command(flatten)]
    pub others: HostArgs,

    /// Listen on an address that other hosts can reach
    ///
    /// Nothing is encrypted, and there is no password: all who can connect can see the migrations
    /// of this user. A tunnel (ssh -L) or a reverse proxy is better.
    #[arg(verbatim_doc_comment, long, help_heading = SECURITY)]
    pub allow_remote: bool,

    /// Another name of this server that browsers may use, such as monitor.example
    ///
    /// Requests to other names than localhost and the address that is listened on are refused,
    /// because a page of another site could have made them (DNS rebinding). Can be given several
    /// times.
    #[arg(verbatim_doc_comment, long, value_name = "NAME", help_heading = SECURITY)]
    pub allow_host: Vec<AllowedHost>,
}
