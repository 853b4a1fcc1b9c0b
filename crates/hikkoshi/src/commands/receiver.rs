//! `hikkoshi receiver`: receives one guest for the daemon that has started it.

use hikkoshi_engine::CancelFlag;

use crate::args::{Receive, Receiver};
use crate::commands::resume_command::before_search;
use crate::commands::{daemon, receive, session, signals};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::line_format;

pub(crate) fn run(args: &Receiver) -> Result<ExitStatus, Exit> {
    let cancel = prepare(args).map_err(before_search(&args.recovery))?;
    receive::receive_guest(&Receive::from(args.clone()), cancel)
}

fn prepare(args: &Receiver) -> Result<CancelFlag, Exit> {
    line_format::name_messages(&args.name);
    signals::note_withdrawal()?;
    if let Some(limit) = args.open_files {
        daemon::restore_open_files(limit)?;
    }
    session::detach();
    signals::cancel_except_on_hangup()
}
