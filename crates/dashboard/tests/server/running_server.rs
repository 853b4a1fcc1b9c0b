//! A server on a free port, with a status folder of its own.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use hikkoshi_dashboard::{Limits, Listen, Options, Server};
use hikkoshi_linux::CancelFlag;
use hikkoshi_status::StatusFolder;

use crate::client::{Client, Response};

pub(crate) struct RunningServer {
    pub(crate) folder: StatusFolder,
    pub(crate) address: SocketAddr,
    cancel: CancelFlag,
    thread: Option<JoinHandle<()>>,
    run: Arc<tempfile::TempDir>,
}

pub(crate) fn options() -> Options {
    Options {
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        allow_remote: false,
        allowed_hosts: vec!["monitor.example".parse().unwrap()],
        limits: Limits::default(),
        reasons: vec!["moved"],
    }
}

impl RunningServer {
    pub(crate) fn start() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let run = tempfile::tempdir().unwrap();
        Self::of(&Arc::new(run), limits, None)
    }

    /// A server that shows other hosts, of which it reads `hosts`.
    pub(crate) fn with_hosts(hosts: impl Read + Send + 'static) -> Self {
        let run = tempfile::tempdir().unwrap();
        Self::of(&Arc::new(run), Limits::default(), Some(Box::new(hosts)))
    }

    /// Another server for the same run folder.
    pub(crate) fn restart(self) -> Self {
        let run = Arc::clone(&self.run);
        drop(self);
        Self::of(&run, Limits::default(), None)
    }

    fn of(
        run: &Arc<tempfile::TempDir>,
        limits: Limits,
        hosts: Option<Box<dyn Read + Send>>,
    ) -> Self {
        let folder = StatusFolder::in_run_folder(run.path());
        let server = Server::bind(Options {
            limits,
            ..options()
        })
        .unwrap();
        let url = server.url();
        let address = url
            .strip_prefix("http://")
            .unwrap()
            .strip_suffix('/')
            .unwrap();
        let address = address.parse().unwrap();
        let cancel = CancelFlag::new();
        let (watched, cancelled) = (folder.clone(), cancel.clone());
        let thread = thread::spawn(move || server.run(watched, hosts, &cancelled).unwrap());
        Self {
            folder,
            address,
            cancel,
            thread: Some(thread),
            run: Arc::clone(run),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        Client::connect(self.address).request("GET", path, "")
    }

    /// Asks for a path until the answer is as wanted.
    pub(crate) fn get_until(&self, path: &str, wanted: impl Fn(&Response) -> bool) -> Response {
        loop {
            let response = self.get(path);
            if wanted(&response) {
                return response;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.cancel.cancel();
        let ended = self.thread.take().unwrap().join();
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}
