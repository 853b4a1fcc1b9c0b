//! What a machine was doing when a wait for it timed out. It is printed with the error, because a
//! guest that stops once in a thousand runs cannot be asked later.

use super::Vm;
use serde_json::json;
use std::fmt::Write as _;
use std::fs;

impl Vm {
    /// The guest's processors as QEMU says, and QEMU's threads as the kernel says.
    pub(super) fn diagnosis(&self) -> String {
        format!("{}\n{}", self.processors(), self.threads())
    }

    /// The machine's status and, of each processor, the instruction pointer with its flags (`HLT=`)
    /// and the interrupt controller.
    fn processors(&self) -> String {
        let mut text = String::new();
        let mut commands = vec!["info status".to_owned(), "info registers -a".to_owned()];
        match self.qmp.execute("query-cpus-fast", json!({})) {
            Ok(cpus) => commands.extend((0..cpus.as_array().map_or(0, Vec::len)).map(|cpu| {
                // The command has no form for all processors.
                format!("info lapic {cpu}")
            })),
            // Each of the commands would wait as long.
            Err(error) => return error.to_string(),
        }
        for command in commands {
            let arguments = json!({ "command-line": command });
            let answer = match self.qmp.execute("human-monitor-command", arguments) {
                Ok(answer) => answer.as_str().unwrap_or_default().to_owned(),
                Err(error) => error.to_string(),
            };
            let wanted = |line: &&str| match command.as_str() {
                "info registers -a" => line.contains("CPU#") || line.contains("IP="),
                _ => !line.trim().is_empty(),
            };
            for line in answer.lines().filter(wanted) {
                let _ = writeln!(text, "  {}: {command}: {}", self.name, line.trim_end());
            }
        }
        text
    }

    /// Of each thread: its name, what it waits in, its system call, and its state and processor
    /// time (proc_pid_wchan(5), proc_pid_syscall(5), proc_pid_stat(5)).
    fn threads(&self) -> String {
        let mut text = String::new();
        let folder = format!("/proc/{}/task", self.pid);
        for thread in fs::read_dir(folder).into_iter().flatten().flatten() {
            let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let [wchan, syscall, stat] = ["wchan", "syscall", "stat"].map(read);
            let _ = writeln!(
                text,
                "  {}: thread: wchan {wchan}, system call {}, stat {}",
                self.name,
                syscall.trim(),
                stat.trim()
            );
        }
        text
    }
}
