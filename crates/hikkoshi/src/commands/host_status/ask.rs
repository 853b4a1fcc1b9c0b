//! The status of another host: asked of its `hikkoshi daemon`, or of a hikkoshi that is started
//! there.

use std::process::Command;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::tls::TlsClient;
use hikkoshi_link::{Address, InquiryError, MAX_ANSWER, inquire};
use hikkoshi_status::HostStatus;

use crate::args::HostQuestion;
use crate::commands::bounded_output::bounded_output;

/// How long a hikkoshi that is started may take. It waits some seconds for silent engines.
const TIMEOUT: Duration = Duration::from_secs(25);

/// The longest status, in bytes.
const MAX_BYTES: u64 = MAX_ANSWER as u64;

/// Asks the `hikkoshi daemon` at `address` about its host. `client` has a certificate that a line
/// of the daemon's `--admit` names.
///
/// # Errors
/// Why there is no answer.
pub(crate) fn by_certificate(
    address: &Address,
    client: &TlsClient,
    question: HostQuestion,
    cancel: &CancelFlag,
) -> Result<HostStatus, InquiryError> {
    inquire(address, client, question.name(), parse, cancel)
}

/// Runs `command`, which prints the status of its host: `hikkoshi host-status`, or a program that
/// starts it on another host.
///
/// # Errors
/// Why there is no answer, in one line.
pub(crate) fn by_command(command: Command, cancel: &CancelFlag) -> Result<HostStatus, String> {
    let output = bounded_output(command, MAX_BYTES, TIMEOUT, cancel);
    let output = output.map_err(|error| Report::new(&error).to_string())?;
    if !output.status.success() {
        let said = output.stderr.lines().next_back().unwrap_or_default();
        let said = said.strip_prefix("hikkoshi: ").unwrap_or(said);
        let hint = match output.status.code() {
            Some(127) => "; the shell there does not find hikkoshi (--remote-hikkoshi)",
            _ => "",
        };
        return Err(match said {
            "" => format!("the command has failed ({}){hint}", output.status),
            said => format!("{said} ({}){hint}", output.status),
        });
    }
    let text = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    parse(text.trim())
}

fn parse(text: &str) -> Result<HostStatus, String> {
    HostStatus::parse(text).map_err(|error| Report::new(&error).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Result<HostStatus, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        by_command(command, &CancelFlag::new())
    }

    #[test]
    fn a_host_that_does_not_answer_has_a_reason() {
        let why = run("echo hikkoshi: first >&2; echo 'hikkoshi: why' >&2; exit 2").unwrap_err();
        assert!(why.starts_with("why (") && why.contains('2'), "{why}");
        let why = run("exit 127").unwrap_err();
        assert!(why.contains("--remote-hikkoshi"), "{why}");
        for output in ["", "welcome", "{}", "[1]"] {
            let why = run(&format!("echo '{output}'")).unwrap_err();
            assert!(why.contains("not the status of a host"), "{output}: {why}");
        }
        let why = run("echo '{\"version\":9}'").unwrap_err();
        assert!(why.contains("version 9"), "{why}");
    }
}
