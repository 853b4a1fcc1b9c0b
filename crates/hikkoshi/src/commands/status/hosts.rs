//! `hikkoshi status --host`: several hosts, each asked by ssh or by a certificate.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::Address;
use hikkoshi_link::tls::TlsClient;
use hikkoshi_status::HostStatus;

use super::{is_meant, terminal};
use crate::args::{HostArgs, HostQuestion, MigrationStatus, Security, Words, daemon_address};
use crate::commands::shell_words::joined;
use crate::commands::{host_status, signals};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::status::{SeenHost, SeenMigration, host_json, hosts_table};
use crate::output::streams;
use crate::security;

/// How long after an answer a host is asked again.
const PERIOD: Duration = Duration::from_secs(5);

/// How often to check for a signal.
const TICK: Duration = Duration::from_millis(100);

/// The most hosts: each is asked by a thread.
const MAX_HOSTS: usize = 128;

/// What a host answers, or why it does not.
type Answer = Result<HostStatus, String>;

/// How a host is asked.
enum Way {
    Certificate(Address, Box<TlsClient>),
    Ssh,
}

/// A host to ask.
struct Asked<'a> {
    at: &'a str,
    way: Way,
}

pub(super) fn run(args: &MigrationStatus) -> Result<ExitStatus, Exit> {
    let asked = hosts(&args.others)?;
    let cancel = signals::cancel_on_signals()?;
    let question = match args.all || args.migration.guest.is_some() {
        true => HostQuestion::All,
        false => HostQuestion::Running,
    };
    thread::scope(|scope| {
        let (sender, answers) = mpsc::channel();
        for (index, host) in asked.iter().enumerate() {
            let (sender, cancel) = (sender.clone(), &cancel);
            let repeats = args.watch;
            let asks = move || {
                loop {
                    let answer = ask(host, &args.others, question, cancel);
                    if sender.send((index, answer)).is_err() || !repeats || !wait(cancel) {
                        break;
                    }
                }
            };
            let thread = thread::Builder::new().name("status-host".into());
            thread.spawn_scoped(scope, asks).map_err(|error| {
                cancel.cancel();
                let what = format!(
                    "starting a thread that asks a host: {}",
                    Report::new(&error)
                );
                Exit::new(ExitStatus::Failed, Reason::System, what)
            })?;
        }
        drop(sender);
        let status = show(args, &asked, &answers, &cancel);
        // The threads end.
        cancel.cancel();
        Ok(status)
    })
}

/// Waits for the next time to ask. Returns whether there is one.
fn wait(cancel: &CancelFlag) -> bool {
    let next = Instant::now() + PERIOD;
    while Instant::now() < next && !cancel.is_cancelled() {
        thread::sleep(TICK);
    }
    !cancel.is_cancelled()
}

/// Shows the answers. If they are watched, as JSON or on a terminal, each is shown as it comes: a
/// host that is silent delays no other one. Otherwise they are shown when all are there.
fn show(
    args: &MigrationStatus,
    asked: &[Asked<'_>],
    answers: &Receiver<(usize, Answer)>,
    cancel: &CancelFlag,
) -> ExitStatus {
    let guest = args.migration.guest.as_deref();
    let is_meant = |seen: &SeenMigration| guest.is_none_or(|guest| is_meant(seen, guest));
    let mut hosts = vec![None; asked.len()];
    // Those that have answered since the last lines.
    let mut answered = BTreeSet::new();
    let mut is_first = true;
    for (index, answer) in answers {
        if cancel.is_cancelled() {
            return ExitStatus::Done;
        }
        hosts[index] = Some(SeenHost::new(asked[index].at, answer));
        answered.insert(index);
        let seen: Vec<SeenHost> = hosts.iter().flatten().cloned().collect();
        let are_complete = seen.len() == hosts.len();
        let new = match (args.json, args.watch) {
            (false, _) => &[],
            (true, true) => hosts[index].as_slice(),
            // In the order in which they were named.
            (true, false) if are_complete => &seen[..],
            (true, false) => &[],
        };
        let texts = new.iter().map(|host| host_json(host, is_meant));
        if streams::try_to_stdout(&texts.collect::<String>()).is_err() {
            // Nobody reads it any more.
            return ExitStatus::Done;
        }
        let size = terminal::size();
        let lines = || {
            let columns = size.map(|size| size.columns);
            hosts_table(&seen, is_meant, guest.is_some(), columns)
        };
        match size.filter(|_| args.watch) {
            _ if args.json => {}
            Some(size) => {
                streams::draw_on_stdout(&lines(), size.columns, size.rows, is_first);
                is_first = false;
            }
            None if answered.len() == hosts.len() => {
                if streams::try_lines_to_stdout(&lines()).is_err() {
                    return ExitStatus::Done;
                }
                answered.clear();
            }
            None => {}
        }
        let migrations = seen.iter().flat_map(|host| &host.migrations);
        let meant: Vec<&SeenMigration> = migrations.filter(|seen| is_meant(seen)).collect();
        let has_ended = guest.is_some() && !meant.iter().any(|seen| seen.is_running());
        if are_complete && (!args.watch || has_ended) {
            return if meant.iter().any(|seen| seen.unfinished.is_some()) {
                ExitStatus::Unfinished
            } else if seen.iter().any(|host| host.answer.is_err()) {
                ExitStatus::Failed
            } else {
                ExitStatus::Done
            };
        }
    }
    ExitStatus::Done
}

/// Whether other hosts are named, which can be asked: by their addresses, with these certificates.
///
/// # Errors
/// If they cannot be asked in this way.
pub(crate) fn are_hosts_named(args: &HostArgs) -> Result<bool, Exit> {
    if args.hosts.is_empty() && args.certificates.tls_ca.is_some() {
        let what = "--tls-ca needs --host HOST: this host's migrations are read without it";
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
    }
    Ok(!hosts(args)?.is_empty())
}

/// The hosts that are named, each once.
fn hosts(args: &HostArgs) -> Result<Vec<Asked<'_>>, Exit> {
    let usage = |what: String| Exit::new(ExitStatus::Usage, Reason::Usage, what);
    let mut asked: Vec<Asked<'_>> = Vec::new();
    for at in &args.hosts {
        if asked.iter().any(|other| other.at == at) {
            continue;
        }
        let way = match &args.certificates.tls_ca {
            Some(_) => {
                let address = daemon_address(at).map_err(usage)?;
                let security = Security {
                    certificates: args.certificates.clone(),
                    ..Security::default()
                };
                let client = security::certified(&address, &security)?;
                Way::Certificate(address, Box::new(client))
            }
            None => Way::Ssh,
        };
        asked.push(Asked { at, way });
    }
    match asked.len() > MAX_HOSTS {
        true => Err(usage(format!("more than {MAX_HOSTS} hosts (--host)"))),
        false => Ok(asked),
    }
}

fn ask(host: &Asked<'_>, args: &HostArgs, question: HostQuestion, cancel: &CancelFlag) -> Answer {
    match &host.way {
        Way::Certificate(address, client) => {
            let asked = host_status::by_certificate(address, client, question, cancel);
            asked.map_err(|error| Report::new(&error).to_string())
        }
        Way::Ssh => host_status::by_command(remote_command(host.at, args, question), cancel),
    }
}

/// The command of this host that prints the status of `host`.
fn remote_command(host: &str, args: &HostArgs, question: HostQuestion) -> Command {
    // Several hosts at a time cannot ask for passwords.
    let mut command = match &args.rsh {
        Some(rsh) => {
            let mut command = Command::new(&rsh.program);
            command.args(&rsh.arguments);
            command
        }
        None => {
            let mut command = Command::new("ssh");
            command.args(["-o", "BatchMode=yes"]);
            command
        }
    };
    let hikkoshi = args.remote_hikkoshi.clone();
    let hikkoshi = hikkoshi.unwrap_or_else(|| Words::one("hikkoshi"));
    let mut words: Vec<OsString> = vec![hikkoshi.program.into()];
    words.extend(hikkoshi.arguments.into_iter().map(Into::into));
    words.extend(host_status::words(question).map(Into::into));
    if let Some(folder) = &args.remote_journal {
        words.push(format!("--journal={folder}").into());
    }
    command.arg(host).arg(joined(words));
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command as Subcommand};
    use clap::Parser;

    fn status(words: &[&str]) -> Result<MigrationStatus, String> {
        let all = [&["hikkoshi", "status"], words].concat();
        match Args::try_parse_from(all).map(|args| args.command) {
            Ok(Subcommand::Status(args)) => Ok(args),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_program_of_the_other_host_is_started_by_ssh() {
        let line = |words: &[&str]| {
            let args = status(&[&["--host", "root@h"], words].concat()).unwrap();
            let command = remote_command("root@h", &args.others, HostQuestion::Running);
            let words = [command.get_program()]
                .into_iter()
                .chain(command.get_args());
            let words: Vec<_> = words
                .map(|word| word.to_str().unwrap().to_owned())
                .collect();
            words
        };
        let own = "hikkoshi host-status --migrations running";
        assert_eq!(line(&[]), ["ssh", "-o", "BatchMode=yes", "root@h", own]);
        let words = [
            "--rsh",
            "ssh -p 22",
            "--remote-hikkoshi",
            "sudo -n /opt/h",
            "--remote-journal=/a b",
        ];
        let own = "sudo -n /opt/h host-status --migrations running '--journal=/a b'";
        assert_eq!(line(&words), ["ssh", "-p", "22", "root@h", own]);
    }

    #[test]
    fn hosts_are_asked_in_one_way() {
        let named = status(&["--host", "a", "--host", "b", "--host", "a"]).unwrap();
        let asked = hosts(&named.others).unwrap();
        let names: Vec<_> = asked.iter().map(|host| host.at).collect();
        assert_eq!(names, ["a", "b"]);
        for words in [
            &["--host", "a", "--journal", "/j"][..],
            &["--rsh", "ssh"],
            &["--remote-hikkoshi", "h"],
            &["--host", "-oProxyCommand=x"],
            &["--host", "a", "--tls-ca", "c"],
        ] {
            assert!(status(words).is_err(), "{words:?}");
        }
        let tls = ["--tls-ca", "c", "--tls-cert", "c", "--tls-key", "k"];
        let both = [&tls[..], &["--host", "a", "--rsh", "ssh"]].concat();
        assert!(status(&both).unwrap_err().contains("--rsh"));
        // The files are read.
        let one = status(&[&tls[..], &["--host", "a"]].concat()).unwrap();
        assert!(hosts(&one.others).is_err());
    }
}
