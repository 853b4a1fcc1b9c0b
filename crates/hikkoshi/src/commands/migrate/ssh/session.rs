//! The process of ssh, and what it prints.

use std::io::{self, BufReader, Read};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Observer};

use super::line_limit::LineLimit;
use crate::commands::bounded_lines::next_line;
use crate::commands::receive_answer::Answer;
use crate::output::exit::ExitStatus;

/// How often to check whether something has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a `receive` may take to end when the migration is over: it removes its journal, and
/// ends a domain that is not needed.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a `receive` may take to end if there is something to resume, and it may go on.
const UNFINISHED_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the last messages may take after the end of the process. Another process, such as a
/// shared connection of ssh (`ControlPersist`), may keep the pipe open.
const MESSAGES_TIMEOUT: Duration = Duration::from_secs(1);

/// A session in which `receive` runs at the destination. Dropping it ends the session.
#[derive(Debug)]
pub(super) struct SshSession {
    host: String,
    child: Child,
    /// `receive` waits for a source as long as it is open.
    input: Option<ChildStdin>,
    messages: Option<JoinHandle<()>>,
    observer: Arc<dyn Observer>,
}

/// Why there is no `receive` at the destination.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotStarted {
    /// ssh cannot be run.
    #[error("running '{program}' (install it, or name another program with --rsh)")]
    Program {
        program: String,
        #[source]
        cause: io::Error,
    },
    /// It has ended without an answer.
    #[error("it has ended without an invitation ({0}){hint}", hint = hint(*.0))]
    Ended(process::ExitStatus),
    /// What it prints cannot be read.
    #[error("reading what it prints")]
    Output(#[source] io::Error),
    /// It has closed its output, and does not end.
    #[error("it has closed its standard output without an invitation")]
    Closed,
    /// A signal.
    #[error("cancelled while 'hikkoshi receive' was started at the destination")]
    Cancelled,
}

/// What to check.
fn hint(status: process::ExitStatus) -> &'static str {
    match status.code() {
        Some(255) => ": ssh could not connect or log in, its message is above",
        Some(127) => {
            ": the shell there does not find hikkoshi. Install it there, or name it with \
             --remote-hikkoshi"
        }
        Some(126) => ": the shell there cannot execute hikkoshi (--remote-hikkoshi)",
        _ => ": its message is above",
    }
}

impl SshSession {
    /// Runs `command`, and waits for the answer of the `receive` that it starts.
    pub(super) fn start(
        mut command: Command,
        host: &str,
        cancel: &CancelFlag,
        observer: Arc<dyn Observer>,
    ) -> Result<(Self, Answer), NotStarted> {
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|cause| NotStarted::Program {
            program: command.get_program().display().to_string(),
            cause,
        })?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on, dropping it ends the process.
        let mut session = Self {
            host: host.to_owned(),
            child,
            input,
            messages: None,
            observer,
        };
        let (sender, answers) = channel();
        if let (Some(output), Some(errors)) = (output, errors) {
            let mut lines = session.shown_lines();
            let spawned = thread::Builder::new()
                .name("ssh-output".into())
                .spawn(move || read_output(output, &sender, |line| lines.show(line)));
            spawned.map_err(NotStarted::Output)?;
            let lines = session.shown_lines();
            let spawned = thread::Builder::new()
                .name("ssh-messages".into())
                .spawn(move || read_messages(errors, lines));
            session.messages = Some(spawned.map_err(NotStarted::Output)?);
        }
        let answer = session.wait_for_answer(&answers, cancel)?;
        Ok((session, answer))
    }

    /// What shows lines of the destination.
    fn shown_lines(&self) -> ShownLines {
        ShownLines {
            host: self.host.clone(),
            observer: Arc::clone(&self.observer),
            limit: LineLimit::default(),
        }
    }

    fn wait_for_answer(
        &mut self,
        answers: &Receiver<io::Result<Answer>>,
        cancel: &CancelFlag,
    ) -> Result<Answer, NotStarted> {
        loop {
            match answers.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return answer.map_err(NotStarted::Output),
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    return Err(NotStarted::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.wait(END_TIMEOUT);
                    self.wait_for_messages();
                    return Err(ended.map_or(NotStarted::Closed, NotStarted::Ended));
                }
            }
        }
    }

    /// The migration has ended with `status`: ends the session, and shows the last messages. A
    /// `receive` that has a guest does not end by this.
    pub(super) fn finish(mut self, status: ExitStatus) {
        let had_ended = self.wait(Duration::ZERO);
        drop(self.input.take());
        let timeout = match status {
            ExitStatus::Unfinished => UNFINISHED_TIMEOUT,
            _ => END_TIMEOUT,
        };
        match self.wait(timeout) {
            None => self.observer.notice(&format!(
                "'hikkoshi receive' continues on {}; its messages are not shown any more",
                self.host
            )),
            Some(ended) if had_ended.is_some() && ended.code().is_none_or(|code| code == 255) => {
                self.observer.notice(&format!(
                    "the session with {} had ended before ({ended}): later messages of 'hikkoshi \
                     receive' there were not shown",
                    self.host
                ));
            }
            Some(_) => {}
        }
        self.wait_for_messages();
    }

    /// How the process has ended; `None`: not within this time.
    fn wait(&mut self, timeout: Duration) -> Option<process::ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Waits until the messages of a process that has ended are shown.
    fn wait_for_messages(&mut self) {
        let deadline = Instant::now() + MESSAGES_TIMEOUT;
        while let Some(messages) = &self.messages
            && !messages.is_finished()
            && Instant::now() < deadline
        {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for SshSession {
    fn drop(&mut self) {
        // It may have ended. What it runs at the destination is independent by now, or notices the
        // end of its input.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends the answer, or the sender's end if there is none. Then reads on until the end, so that
/// `receive` can write its result; this side prints its own.
fn read_output(output: impl Read, answers: &Sender<io::Result<Answer>>, show: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let answer = Answer::read(&mut output, show).transpose();
    let Some(answer) = answer else { return };
    // The receiver is gone if this was cancelled.
    let _ = answers.send(answer);
    let _ = io::copy(&mut output, &mut io::sink());
}

fn read_messages(errors: impl Read, mut lines: ShownLines) {
    let mut errors = BufReader::new(errors);
    loop {
        match next_line(&mut errors) {
            Ok(Some(line)) => lines.show(&line),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(error = %Report::new(&error), "reading the messages of ssh");
                break;
            }
        }
    }
    lines.end();
}

/// Shows lines of the destination, as many as the limit allows.
struct ShownLines {
    host: String,
    observer: Arc<dyn Observer>,
    limit: LineLimit,
}

impl ShownLines {
    fn show(&mut self, line: &str) {
        let line = line.strip_prefix("hikkoshi: ").unwrap_or(line);
        if line.is_empty() {
            return;
        }
        if let Some(left_out) = self.limit.allow(Instant::now()) {
            self.report(left_out);
            self.observer.notice(&format!("{}: {line}", self.host));
        }
    }

    /// There are no more.
    fn end(mut self) {
        let left_out = self.limit.left_out();
        self.report(left_out);
    }

    fn report(&self, left_out: u64) {
        if left_out > 0 {
            let host = &self.host;
            self.observer.notice(&format!(
                "{host}: {left_out} lines are not shown here: there were too many at a time"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_engine::report::Live;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Notices(Mutex<Vec<String>>);

    impl Observer for Notices {
        fn begin(&self, _: &Arc<Live>) {}
        fn notice(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }

    fn start(script: &str) -> (Result<(SshSession, Answer), NotStarted>, Arc<Notices>) {
        start_with(script, &CancelFlag::new())
    }

    fn start_with(
        script: &str,
        cancel: &CancelFlag,
    ) -> (Result<(SshSession, Answer), NotStarted>, Arc<Notices>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let notices = Arc::new(Notices::default());
        let observer: Arc<dyn Observer> = Arc::<Notices>::clone(&notices);
        (SshSession::start(command, "h", cancel, observer), notices)
    }

    fn text(notices: &Notices) -> Vec<String> {
        notices.0.lock().unwrap().clone()
    }

    #[test]
    fn the_answer_is_read_and_messages_are_shown() {
        let script =
            "echo hikkoshi: waiting >&2; echo hikkoshi1:x; cat; echo done >&2; echo result";
        let (started, notices) = start(script);
        let (session, answer) = started.unwrap();
        assert_eq!(answer, Answer::Invitation("hikkoshi1:x".to_owned()));
        // The end of the input ends it.
        session.finish(ExitStatus::Moved);
        assert_eq!(text(&notices), ["h: waiting", "h: done"]);
    }

    #[test]
    fn a_session_that_ends_is_reported_with_its_last_message() {
        for (code, part) in [(255, "log in"), (127, "--remote-hikkoshi"), (2, "above")] {
            let (started, notices) = start(&format!("echo why >&2; exit {code}"));
            let error = started.unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains(&code.to_string()),
                "{error}"
            );
            assert_eq!(text(&notices), ["h: why"]);
        }
    }

    #[test]
    fn waiting_for_the_answer_can_be_cancelled() {
        let cancel = CancelFlag::new();
        cancel.cancel();
        let (started, _) = start_with("exec sleep 1000", &cancel);
        assert!(matches!(started, Err(NotStarted::Cancelled)));
    }

    #[test]
    fn a_receive_that_continues_is_left() {
        let (started, notices) = start("echo hikkoshi1:x; exec sleep 1000");
        let (session, _) = started.unwrap();
        session.finish(ExitStatus::Unfinished);
        let text = text(&notices).join("\n");
        assert!(text.contains("continues on h"), "{text}");
    }

    /// What the destination prints without end is read, and a part of it is shown.
    #[test]
    fn endless_messages_are_limited() {
        let script = "echo hikkoshi1:x; yes flood | head -n 100000 >&2; echo last >&2";
        let (started, notices) = start(script);
        let (mut session, _) = started.unwrap();
        assert!(session.wait(Duration::from_secs(120)).unwrap().success());
        while !session.messages.as_ref().unwrap().is_finished() {
            thread::sleep(POLL_INTERVAL);
        }
        let text = text(&notices);
        let shown = text
            .iter()
            .filter(|line| *line == "h: flood" || *line == "h: last");
        let shown = shown.count();
        let left_out = text.iter().filter_map(|line| {
            let rest = line.strip_prefix("h: ")?;
            let (number, _) = rest.split_once(" lines are not shown here")?;
            number.parse::<usize>().ok()
        });
        assert_eq!(shown + left_out.sum::<usize>(), 100_001);
        assert!((256..50_000).contains(&shown), "{shown}");
    }

    #[test]
    fn a_missing_program_is_reported() {
        let observer: Arc<dyn Observer> = Arc::new(Notices::default());
        let command = Command::new("/nowhere/ssh");
        let started = SshSession::start(command, "h", &CancelFlag::new(), observer);
        let error = started.unwrap_err().to_string();
        assert!(
            error.contains("/nowhere/ssh") && error.contains("--rsh"),
            "{error}"
        );
    }
}
