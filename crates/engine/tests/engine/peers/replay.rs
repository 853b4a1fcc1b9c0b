//! A recorded session, replayed to another migration's destination.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_engine::{DestinationOptions, Mode, SourceOptions, migrate, receive};
use hikkoshi_handover::SourceStage;
use hikkoshi_lab::relay::{Carries, Fate, Passing, Relay, RelayPolicy, Towards};
use hikkoshi_link::{Address, Listener, hello};
use hikkoshi_wire::{
    CHALLENGE_LEN, Frame, HELLO_LEN, MigrationId, Role, ToDestination, encode_control,
};

use crate::guests::{Script, TestDestination, TestSource};
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{migrate_control, receive_control, watchdog};

use super::{listen, machine};

/// The bytes that a source has sent, by connection.
type Session = Vec<Vec<u8>>;

/// Records what the source sends.
#[derive(Debug, Default)]
struct Recording(Mutex<Session>);

impl RelayPolicy for Recording {
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        if passing.towards == Towards::Destination {
            let (mut session, link) = (self.0.lock().unwrap(), passing.link as usize);
            let links = session.len().max(link);
            session.resize(links, Vec::new());
            session[link - 1].extend_from_slice(passing.bytes);
        }
        Fate::Pass
    }
}

fn path(listener: &Listener) -> PathBuf {
    let Address::Unix(path) = listener.address() else {
        panic!("a unix socket")
    };
    path.clone()
}

/// Migrates a guest to a destination that waits for it, through the path that `way` returns;
/// `prepare` gets the source's script.
fn moved(way: impl FnOnce(&Path) -> PathBuf, prepare: impl FnOnce(&Script, PathBuf)) {
    let layout = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    machine.work(100);
    let mut guest = TestDestination::new(&machine, 1000);
    let mut source = TestSource::new(&machine, true, 1000);
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let control = receive_control(&Arc::default());
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let options = DestinationOptions::default();
            receive(&mut guest, &listener, &options, &control)
        });
        let way = catch_unwind(AssertUnwindSafe(|| way(&path(&listener))));
        let address = Address::Unix(way.unwrap_or_else(|failed| {
            control.cancel.cancel();
            resume_unwind(failed)
        }));
        prepare(&source.script, path(&listener));
        let options = SourceOptions {
            mode: Mode::Hybrid,
            ..SourceOptions::default()
        };
        let control = migrate_control(&Arc::default());
        migrate(&mut source, &address.into(), &options, &control).unwrap();
        receiving.join().unwrap().unwrap();
    });
    assert_eq!(machine.runs(), Some(Side::Destination));
    machine.work(100);
    machine.check(Side::Destination);
}

/// The bytes that a source sends during a migration.
fn recorded() -> Session {
    let folder = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::default());
    let tap = folder.path().join("tap");
    let mut relay = None;
    moved(
        |to| {
            let [at, to] = [&tap, to].map(|path| format!("unix:{}", path.display()));
            let policy = Arc::<Recording>::clone(&recording);
            relay = Some(Relay::between(&at, &to, Carries::BYTES, policy).unwrap());
            tap.clone()
        },
        |_, _| (),
    );
    recording.0.lock().unwrap().clone()
}

/// Every connection of an old session is replayed byte by byte, *Commit* included, while another
/// guest migrates to the same listener: none is answered, and the other guest arrives intact.
#[test]
fn a_replayed_session_during_a_migration() {
    let _watchdog = watchdog();
    let session = recorded();
    assert!(session.len() >= 3, "{} links", session.len());
    assert!(session.iter().all(|link| link.len() >= HELLO_LEN));
    let replayed = Arc::new(Mutex::new(0));
    let count = Arc::clone(&replayed);
    moved(Path::to_owned, |script, listener_path| {
        for call in ["start_dirty_log", "pause", "save_device_state half-way"] {
            let (session, listener_path, count) =
                (session.clone(), listener_path.clone(), Arc::clone(&count));
            script.at(call, move || {
                for link in &session {
                    let mut stream = UnixStream::connect(&listener_path).unwrap();
                    // The connection may be closed before all of it was sent.
                    let _ = stream.write_all(link);
                    let mut answer = Vec::new();
                    let _ = stream.read_to_end(&mut answer);
                    assert_eq!(answer, [0; 0], "it was answered");
                    *count.lock().unwrap() += 1;
                }
                Ok(())
            });
        }
    });
    assert_eq!(*replayed.lock().unwrap(), 3 * session.len());
}

/// A session is replayed to a destination that waits for a guest: it rejects it, and accepts a
/// guest afterwards.
#[test]
fn a_replayed_session_at_a_waiting_destination() {
    let _watchdog = watchdog();
    let session = recorded();
    moved(
        |listener_path| {
            for link in &session {
                let mut stream = UnixStream::connect(listener_path).unwrap();
                let _ = stream.write_all(link);
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                // Only a greeting: nothing has begun.
                assert!(
                    answer.len() <= HELLO_LEN + CHALLENGE_LEN,
                    "{}",
                    answer.len()
                );
            }
            listener_path.to_owned()
        },
        |_, _| (),
    );
}

/// A source is greeted before a migration is under way, and answers the challenge while another
/// source's migration is: it belongs to another migration, and is rejected.
#[test]
fn a_late_answer_to_a_challenge() {
    let _watchdog = watchdog();
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::clone(&waiting);
    moved(
        |listener_path| {
            for id in 0..4 {
                let id = MigrationId::from_bytes([id; 16]);
                let mut stream = UnixStream::connect(listener_path).unwrap();
                stream
                    .write_all(&hello(Role::Control, id).encode())
                    .unwrap();
                let mut answer = [0; HELLO_LEN + CHALLENGE_LEN];
                stream.read_exact(&mut answer).unwrap();
                let challenge: [u8; CHALLENGE_LEN] = answer[HELLO_LEN..].try_into().unwrap();
                held.lock().unwrap().push((stream, challenge));
            }
            listener_path.to_owned()
        },
        |script, _| {
            for call in ["start_dirty_log", "pause", "save_device_state half-way"] {
                let waiting = Arc::clone(&waiting);
                script.at(call, move || {
                    let (mut stream, challenge) = waiting.lock().unwrap().pop().unwrap();
                    let stage = SourceStage::Committed.into();
                    let body = encode_control(&ToDestination::ResumeRequest { stage }).unwrap();
                    let len = u32::try_from(body.len()).unwrap();
                    let here = [&Frame::Control { len }.encode()[..], &body].concat();
                    // The connection may already be closed.
                    let _ = stream.write_all(&[&challenge[..], &here].concat());
                    let mut answer = Vec::new();
                    let _ = stream.read_to_end(&mut answer);
                    assert_eq!(answer, [0; 0], "it was answered");
                    Ok(())
                });
            }
        },
    );
    assert_eq!(
        waiting.lock().unwrap().len(),
        1,
        "one connection did not answer"
    );
}
