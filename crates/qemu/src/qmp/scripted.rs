//! A QEMU for tests, whose answers are a function's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::Client;

/// Opens a session with a QEMU that answers each command as `answer` says, or refuses it. Its
/// thread ends with the session, and returns the commands.
pub(crate) fn session(
    answer: impl FnMut(&str) -> Result<Value, &'static str> + Send + 'static,
) -> (Client, JoinHandle<Vec<String>>) {
    session_of(10, answer)
}

/// Opens a session with a QEMU of this major version that answers each command as `answer` says.
pub(crate) fn session_of(
    major: u32,
    mut answer: impl FnMut(&str) -> Result<Value, &'static str> + Send + 'static,
) -> (Client, JoinHandle<Vec<String>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    let qemu = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = json!({ "QMP": { "version": { "qemu":
            { "major": major, "minor": 0, "micro": 0 } }, "capabilities": [] } });
        writeln!(stream, "{greeting}").unwrap();
        let mut commands = Vec::new();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let command = request["execute"].as_str().unwrap();
            let answered = match command {
                "qmp_capabilities" => Ok(json!({})),
                command => {
                    commands.push(command.to_owned());
                    answer(command)
                }
            };
            let id = &request["id"];
            let line = match answered {
                Ok(value) => json!({ "return": value, "id": id }),
                Err(why) => {
                    let error = json!({ "class": "GenericError", "desc": why });
                    json!({ "error": error, "id": id })
                }
            };
            writeln!(stream, "{line}").unwrap();
        }
        commands
    });
    (
        Client::connect(&path, Duration::from_secs(20)).unwrap(),
        qemu,
    )
}
