//! `hikkoshi dashboard`: shows the migrations of this host. It only reads.

use hikkoshi_dashboard::{Limits, Listen, Options, Server};
use hikkoshi_linux::sandbox_process;
use hikkoshi_status::StatusFolder;

use crate::args::{Dashboard, run_folder};
use crate::commands::signals;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

pub(crate) fn run(args: &Dashboard) -> Result<ExitStatus, Exit> {
    let cancel = signals::cancel_on_signals()?;
    let folder = StatusFolder::in_run_folder(&run_folder(args.journal.as_deref()));
    // The first engine would make it. Rights to a folder can only be kept if it is there.
    folder.create().map_err(|error| {
        Exit::caused(ExitStatus::Usage, Reason::System, &error).with(
            "run the dashboard as the user who runs `hikkoshi migrate` and `hikkoshi receive`; \
             --journal names another folder",
        )
    })?;
    let options = Options {
        listen: args.listen.clone(),
        allow_remote: args.allow_remote,
        allowed_hosts: args.allow_host.clone(),
        limits: Limits::default(),
        reasons: Reason::CODES.to_vec(),
    };
    let server = Server::bind(options)
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::CannotListen, &error))?;
    let url = server.url();
    if let Listen::Tcp(address) = args.listen
        && !address.ip().to_canonical().is_loopback()
    {
        streams::notice(
            "other hosts may be able to connect: nothing is encrypted, and there is no password",
        );
    }
    // Before there are other threads.
    let folder = sandbox_process(folder.path())
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::System, &error))?;
    streams::to_stdout(&format!("{url}\n"));
    server
        .run(StatusFolder::at(folder), &cancel)
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::System, &error))?;
    Ok(ExitStatus::Done)
}
