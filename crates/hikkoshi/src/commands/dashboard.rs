//! `hikkoshi dashboard`: shows the migrations of this host, and of others. It only reads.

use std::io::{self, Read};
use std::process::Stdio;

use hikkoshi_dashboard::{Limits, Listen, Options, Server};
use hikkoshi_linux::sandbox_process;
use hikkoshi_status::StatusFolder;

use crate::args::{Dashboard, HostArgs, run_folder};
use crate::commands::{own_executable, signals, status};
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
    let hosts = match status::are_hosts_named(&args.others)? {
        true => Some(ask_hosts(&args.others)?),
        false => None,
    };
    // Before there are other threads.
    let folder = sandbox_process(folder.path())
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::System, &error))?;
    streams::to_stdout(&format!("{url}\n"));
    server
        .run(StatusFolder::at(folder), hosts, &cancel)
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::System, &error))?;
    Ok(ExitStatus::Done)
}

/// Starts a process that asks other hosts, which this one may not do once it is sandboxed. That
/// process ends when nobody reads what it prints.
fn ask_hosts(args: &HostArgs) -> Result<Box<dyn Read + Send>, Exit> {
    let started = own_executable::command()
        .args(["status", "--watch", "--json"])
        .args(args.words())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let output = started.and_then(|child| {
        let output = child.stdout;
        output.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    });
    match output {
        Ok(output) => Ok(Box::new(output)),
        Err(error) => {
            let what = format!("starting the process that asks other hosts: {error}");
            Err(Exit::new(ExitStatus::Usage, Reason::System, what))
        }
    }
}
