//! The switch of the nodes' power, which the fence agent asks.

use super::Node;
use crate::LabError;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Turns nodes off and on, by `stonith:fence_lab`.
#[derive(Debug)]
pub struct PowerSwitch {
    path: PathBuf,
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    nodes: Arc<Vec<Node>>,
    fenced: Mutex<Vec<String>>,
    returns: AtomicBool,
    ended: AtomicBool,
}

impl PowerSwitch {
    /// Listens at that socket.
    pub(super) fn new(path: &Path, nodes: &Arc<Vec<Node>>) -> Result<Self, LabError> {
        let listener = UnixListener::bind(path).map_err(LabError::file("listening at", path))?;
        let state = Arc::new(State {
            nodes: Arc::clone(nodes),
            fenced: Mutex::default(),
            returns: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("power".to_owned())
            .spawn(move || serving.serve(&listener))
            .map_err(|source| LabError::Start {
                program: "the power switch".to_owned(),
                source,
            })?;
        Ok(Self {
            path: path.to_owned(),
            state,
            thread: Some(thread),
        })
    }

    /// The nodes that Pacemaker has fenced so far, in order.
    pub fn fenced(&self) -> Vec<String> {
        self.state.fenced().clone()
    }

    /// Whether a node starts again when Pacemaker has had it rebooted. Otherwise it stays off.
    pub fn set_returns(&self, returns: bool) {
        self.state.returns.store(returns, Ordering::Relaxed);
    }

    /// Starts no node any more.
    pub(super) fn end(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn fenced(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let state = Arc::clone(self);
            // An order takes long.
            let _ = std::thread::Builder::new()
                .name("power-order".to_owned())
                .spawn(move || {
                    let mut line = String::new();
                    let _ = BufReader::new(&stream).read_line(&mut line);
                    let _ = (&stream).write_all(state.answer(line.trim()).as_bytes());
                });
        }
    }

    /// Does an order, `ACTION NODE`. Answers the exit status, and a line for each thing to say.
    fn answer(&self, order: &str) -> String {
        let (action, name) = order.split_once(' ').unwrap_or((order, ""));
        let node = self.nodes.iter().find(|node| node.name() == name);
        match (action, node) {
            ("list", _) => {
                let names = self.nodes.iter().map(|node| format!("{},\n", node.name()));
                format!("0\n{}", names.collect::<String>())
            }
            ("monitor", _) => "0\n".to_owned(),
            // fence agents: 2 is off.
            ("status", Some(node)) => format!("{}\n", if node.is_on() { 0 } else { 2 }),
            ("off" | "reboot", Some(node)) => {
                node.power_off();
                self.fenced().push(name.to_owned());
                let returns = action == "reboot" && self.returns.load(Ordering::Relaxed);
                match returns.then(|| node.power_on()) {
                    Some(Err(error)) => format!("1\n{error}\n"),
                    _ => "0\n".to_owned(),
                }
            }
            ("on", Some(node)) => match node.power_on() {
                Ok(()) => "0\n".to_owned(),
                Err(error) => format!("1\n{error}\n"),
            },
            _ => format!("1\nunknown: {order}\n"),
        }
    }
}
