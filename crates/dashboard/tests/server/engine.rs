//! An engine that records what a test says.

use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_account::State;
use hikkoshi_status::{
    End, Migration, Recorder, Recording, StatusEntry, StatusFolder, StatusRecord, StatusServer,
};

/// A thread that serves a status socket.
pub(crate) struct Engine {
    pub(crate) name: String,
    folder: StatusFolder,
    orders: Sender<Order>,
    thread: JoinHandle<Recording>,
}

enum Order {
    State(Box<State>),
    Notice(String),
    Store(Sender<()>),
    End(Box<End>),
}

impl Engine {
    pub(crate) fn start(folder: &StatusFolder, migration: Migration) -> Self {
        let recorder = Recorder::new(migration);
        let server = StatusServer::start(folder, &recorder).unwrap();
        let entries = folder.entries().unwrap();
        let end = format!("-{}-", recorder.recording().migration.pid);
        let is_own = |entry: &&StatusEntry| entry.name.contains(&end);
        let name = entries.iter().find(is_own).unwrap().name.clone();
        let (orders, received) = channel();
        let own_folder = folder.clone();
        Self {
            name,
            folder: folder.clone(),
            orders,
            thread: thread::spawn(move || serve(server, recorder, &received, &own_folder)),
        }
    }

    pub(crate) fn state(&self, state: State) {
        self.orders.send(Order::State(Box::new(state))).unwrap();
    }

    pub(crate) fn notice(&self, text: &str) {
        self.orders.send(Order::Notice(text.into())).unwrap();
    }

    /// Stores what it has recorded, as engines do now and then.
    pub(crate) fn store(&self) {
        let (sender, stored) = channel();
        self.orders.send(Order::Store(sender)).unwrap();
        stored.recv().unwrap();
    }

    /// Ends as engines do: the recording stays as a file.
    pub(crate) fn end(self, end: End) -> Recording {
        self.orders.send(Order::End(Box::new(end))).unwrap();
        self.thread.join().unwrap()
    }

    /// Leaves what a killed engine leaves: a socket that no process serves.
    pub(crate) fn kill(self) {
        drop(self.orders);
        self.thread.join().unwrap();
        let socket = self.folder.path().join(format!("{}.sock", self.name));
        drop(UnixListener::bind(socket).unwrap());
    }
}

fn serve(
    mut server: StatusServer,
    mut recorder: Recorder,
    orders: &Receiver<Order>,
    folder: &StatusFolder,
) -> Recording {
    loop {
        match orders.recv_timeout(Duration::from_millis(2)) {
            Ok(Order::State(state)) => {
                recorder.add((*state).clone());
                server.publish(&StatusRecord::State(state));
            }
            Ok(Order::Notice(text)) => {
                let notice = recorder.notice(1, &text);
                server.publish(&StatusRecord::Notice(notice));
            }
            Ok(Order::Store(stored)) => {
                folder.store(recorder.recording()).unwrap();
                stored.send(()).unwrap();
            }
            Ok(Order::End(end)) => {
                recorder.end((*end).clone());
                server.publish(&StatusRecord::End(*end));
                folder.store(recorder.recording()).unwrap();
                server.finish();
                break;
            }
            Err(RecvTimeoutError::Timeout) => server.accept(&recorder),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    recorder.recording().clone()
}
