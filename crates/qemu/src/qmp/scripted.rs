//! A QEMU for tests, whose answers are a function's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
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
    let qemu = serve(&path, major, move |request| {
        vec![answered(request, answer(command(request)))]
    });
    let client = Client::connect(&path, Duration::from_secs(20)).unwrap();
    let commands = std::thread::spawn(move || {
        let requests = qemu.join().unwrap();
        let commands = requests.iter().map(|request| command(request).to_owned());
        commands.collect()
    });
    (client, commands)
}

/// Serves one session at `path`, as a QEMU of this major version that sends what `answer` says
/// after each request. The thread ends with the session, and returns the requests.
pub(crate) fn serve(
    path: &Path,
    major: u32,
    mut answer: impl FnMut(&Value) -> Vec<Value> + Send + 'static,
) -> JoinHandle<Vec<Value>> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = json!({ "QMP": { "version": { "qemu":
            { "major": major, "minor": 0, "micro": 0 } }, "capabilities": [] } });
        let _ = writeln!(stream, "{greeting}");
        let mut requests = Vec::new();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            let answers = match command(&request) {
                "qmp_capabilities" => vec![answered(&request, Ok(json!({})))],
                _ => {
                    let answers = answer(&request);
                    requests.push(request);
                    answers
                }
            };
            for answer in answers {
                let _ = writeln!(stream, "{answer}");
            }
        }
        requests
    })
}

/// The name of the command.
pub(crate) fn command(request: &Value) -> &str {
    request["execute"].as_str().unwrap()
}

/// QEMU's answer, or its reason to refuse.
pub(crate) fn answered(request: &Value, result: Result<Value, &'static str>) -> Value {
    let id = &request["id"];
    match result {
        Ok(value) => json!({ "return": value, "id": id }),
        Err(why) => json!({ "error": { "class": "GenericError", "desc": why }, "id": id }),
    }
}
