//! Migrations with TLS on every link, and links that are tampered with.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode};
use hikkoshi_handover::Outcome;
use hikkoshi_link::tls::{
    DestinationCredentials, Invitation, SourceCredentials, TlsClient, TlsServer,
};
use hikkoshi_link::{AcceptedLink, Address, HandshakeError, Listener, Remote, hello};
use hikkoshi_wire::{MigrationId, Role};

use crate::machine::Side;
use crate::run::{Done, Setup, open};
use crate::tampering::{Tamper, Tampering};

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

fn invitation(server: &TlsServer) -> Invitation {
    let address: Address = "127.0.0.1:1".parse().unwrap();
    let shown = server.invitation(address).unwrap().to_string();
    shown.parse().unwrap()
}

/// A destination that issues an invitation, and a client that was invited.
pub(crate) fn invited() -> (TlsClient, TlsServer) {
    let server = TlsServer::inviting().unwrap();
    (TlsClient::invited(&invitation(&server)).unwrap(), server)
}

#[test]
fn every_mode_and_several_links() {
    for mode in MODES {
        for links in [1, 3] {
            let mut setup = Setup::new(mode);
            setup.options.links = links;
            setup.tls = Some(invited());
            setup.run().moved(true);
        }
    }
}

#[test]
fn spinning_threads_speak_tls_as_well() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.options.poll = true;
    setup.receive_options.poll = true;
    setup.tls = Some(invited());
    setup.run().moved(true);
}

/// A migration with TLS on links that are tampered with. Each sends about as many bytes: it has at
/// most one round, also if it is delayed and estimates a low bandwidth.
fn tampered(mode: Mode, tampering: &Arc<Tampering>) -> Setup {
    let mut setup = Setup::new(mode);
    setup.options.max_downtime = Duration::from_secs(20);
    setup.tls = Some(invited());
    setup.bytes = Some(Arc::<Tampering>::clone(tampering));
    setup
}

/// A migration in which byte `at` is tampered with: the guest is intact, wherever it is.
fn migrate_tampered(mode: Mode, tamper: Tamper, at: u64) -> (Done, bool) {
    let tampering = Arc::new(Tampering::new(tamper, at));
    let mut setup = tampered(mode, &tampering);
    setup.stops = true;
    let done = setup.run();
    (done, tampering.tampered())
}

fn check_intact(done: Done, at: u64) {
    let seen = format!("byte {at}: {done:?}");
    let lacks_pages = done
        .destination
        .as_ref()
        .is_err_and(|error| error.outcome == Outcome::AtDestination);
    match done.machine.runs() {
        // It runs with the pages it has; the others are at the source.
        Some(Side::Destination) if lacks_pages => done.resumed(&seen),
        Some(side) => {
            // No page is missing where it runs.
            done.machine.work(300);
            done.machine.check(side);
            let told = done.source.as_ref().map_err(|error| error.outcome);
            match side {
                Side::Source => assert_eq!(told.err(), Some(Outcome::AtSource), "{seen}"),
                Side::Destination => assert_ne!(told.err(), Some(Outcome::AtSource), "{seen}"),
            }
        }
        None => {
            let error = done.source.as_ref().unwrap_err();
            assert_ne!(error.outcome, Outcome::AtSource, "{seen}");
            done.machine.undamaged();
        }
    }
}

/// Bytes that a migration sends on all links: the smallest of several measurements.
fn length(mode: Mode) -> u64 {
    let lengths = (0..3).map(|_| {
        let counting = Arc::new(Tampering::new(Tamper::Cut, u64::MAX));
        tampered(mode, &counting).run().moved(true);
        counting.carried()
    });
    lengths.min().unwrap()
}

/// All modes at once: most of the time they wait for a peer's timeout.
fn in_every_mode(test: impl Fn(Mode) + Copy + Send) {
    thread::scope(|scope| {
        for mode in MODES {
            scope.spawn(move || test(mode));
        }
    });
}

#[test]
fn a_cut_connection_is_not_an_orderly_end() {
    in_every_mode(|mode| {
        let length = length(mode);
        // In the handshakes, and then all over the migration: few of these positions are between
        // two records.
        for at in [0, 3, 700, 1500]
            .into_iter()
            .chain((1..12).map(|n| n * length / 12 + n))
        {
            let (done, tampered) = migrate_tampered(mode, Tamper::Cut, at);
            assert!(tampered || done.source.is_ok(), "{done:?}");
            check_intact(done, at);
        }
    });
}

#[test]
fn a_changed_byte_ends_the_link_and_changes_no_page() {
    in_every_mode(|mode| {
        let length = length(mode);
        let (mut changed, mut noticed) = (0, 0);
        for at in (0..10).map(|n| n * length / 10 + 900 * (n % 3) + n) {
            let (done, tampered) = migrate_tampered(mode, Tamper::Change, at);
            // No two migrations send exactly the same number of bytes.
            assert!(tampered || done.source.is_ok(), "byte {at}: {done:?}");
            changed += u32::from(tampered);
            noticed += u32::from(done.source.is_err() || done.destination.is_err());
            check_intact(done, at);
        }
        // Some changed bytes are never read: acknowledgements after the last page of their link.
        assert!(
            changed >= 6 && noticed >= 4,
            "{mode:?}: {changed}, {noticed}"
        );
    });
}

#[test]
fn page_content_is_encrypted() {
    for tls in [false, true] {
        let reading = Arc::new(Tampering::new(Tamper::Cut, u64::MAX));
        let mut setup = Setup::new(Mode::Hybrid);
        setup.tls = tls.then(invited);
        setup.bytes = Some(reading.clone());
        let done = setup.run();
        let read = reading.readable(done.machine.memory(Side::Destination).layout().pages());
        assert_eq!(read == 0, tls, "{read} pages");
        done.moved(true);
    }
}

#[test]
fn a_source_without_the_invitation_keeps_its_guest() {
    let mut setup = Setup::new(Mode::Hybrid);
    let (_, server) = invited();
    let (stranger, _) = invited();
    setup.tls = Some((stranger, server));
    setup.stops = true;
    let error = setup.run().source.unwrap_err();
    assert_eq!(error.outcome, Outcome::AtSource);
    let text = Report::new(&error).to_string();
    assert!(
        text.contains("does not have the key of the invitation"),
        "{text}"
    );
}

/// A destination's listener, controlled by a test.
struct TestListener {
    listener: Listener,
    incoming: Receiver<AcceptedLink>,
    _folder: tempfile::TempDir,
}

impl TestListener {
    /// Accepts connections for `test`, protected by `server`.
    fn with<T>(server: Option<TlsServer>, test: impl FnOnce(&Self) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("listen"));
        let mut listener = Listener::bind(&address).unwrap();
        if let Some(server) = server {
            listener = listener.with_tls(server);
        }
        let (sender, incoming) = sync_channel(4);
        let tested_listener = Self {
            listener,
            incoming,
            _folder: folder,
        };
        let stop = CancelFlag::new();
        thread::scope(|scope| {
            let (listener, serving) = (&tested_listener.listener, &stop);
            scope.spawn(move || listener.serve(&sender, serving));
            let tested =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&tested_listener)));
            stop.cancel();
            tested.unwrap()
        })
    }

    fn connect(
        &self,
        client: Option<&TlsClient>,
        role: Role,
    ) -> Result<AcceptedLink, HandshakeError> {
        let remote = Remote {
            loopback_only: false,
            address: self.listener.address().clone(),
            tls: client.cloned(),
        };
        open(&remote, &hello(role, MigrationId::from_bytes([3; 16])))?;
        Ok(self.incoming.recv().unwrap())
    }
}

#[test]
fn tls_on_one_side_only_is_reported_with_advice() {
    let run = |client: Option<TlsClient>, server: Option<TlsServer>| {
        TestListener::with(server, |tested_listener| {
            let refused = tested_listener.connect(client.as_ref(), Role::Control);
            Report::new(refused.unwrap_err()).to_string()
        })
    };
    let (client, server) = invited();
    let text = run(None, Some(server));
    assert!(
        text.contains("--to") && text.contains("requires TLS"),
        "{text}"
    );
    let text = run(Some(client), None);
    assert!(text.contains("both sides must use TLS"), "{text}");
}

/// One migration has many connections, some of them after a restart of either side; an invitation
/// is valid for one migration.
#[test]
fn an_invitation_is_valid_for_all_links_of_one_migration() {
    let (client, server) = invited();
    let other = TlsClient::invited(&invitation(&server)).unwrap();
    let used = |refused: Result<AcceptedLink, HandshakeError>| {
        let text = Report::new(refused.unwrap_err()).to_string();
        assert!(text.contains("has been used already"), "{text}");
    };
    TestListener::with(Some(server.clone()), |tested_listener| {
        let control = tested_listener
            .connect(Some(&client), Role::Control)
            .unwrap();
        tested_listener.listener.accept_only_links_of(&control);
        tested_listener
            .connect(Some(&client), Role::Urgent)
            .unwrap();
        used(tested_listener.connect(Some(&other), Role::Control));
        used(tested_listener.connect(Some(&other), Role::Urgent));
        // That attempt failed: the next source can try.
        tested_listener.listener.set_migration(None);
        let control = tested_listener
            .connect(Some(&other), Role::Control)
            .unwrap();
        tested_listener.listener.accept_only_links_of(&control);
        used(tested_listener.connect(Some(&client), Role::Control));
    });
    // Both sides have ended, and kept their records.
    let record = serde_json::to_vec(&other.credentials().unwrap()).unwrap();
    let read: SourceCredentials = serde_json::from_slice(&record).unwrap();
    let other = read.client().unwrap();
    let record = serde_json::to_vec(&server.credentials().unwrap()).unwrap();
    let read: DestinationCredentials = serde_json::from_slice(&record).unwrap();
    TestListener::with(Some(read.server().unwrap()), |tested_listener| {
        used(tested_listener.connect(Some(&client), Role::Control));
        tested_listener
            .connect(Some(&other), Role::Control)
            .unwrap();
    });
}
