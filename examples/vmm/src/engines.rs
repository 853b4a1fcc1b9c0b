//! Both engines, in two threads that are connected by a unix socket. On two hosts each would run
//! one of them.

use std::sync::Arc;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::report::Silent;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, MigrateControl, Mode, ReceiveControl, SourceControl,
    SourceOptions, migrate, receive,
};
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{Address, Listener};

use crate::Result;
use crate::destination::Destination;
use crate::source::Source;

/// Moves the guest of `source` into `destination`.
pub(crate) fn run_engines(
    source: &mut Source,
    destination: &mut Destination,
    mode: Mode,
) -> Result<Account> {
    let directory = tempfile::tempdir()?;
    let address = format!("unix:{}", directory.path().join("socket").display());
    let listener = Listener::bind(&address.parse::<Address>()?)?;
    let remote = listener.address().clone().into();
    let cancel = CancelFlag::new();
    let (migrated, received) = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let control = ReceiveControl {
                cancel: cancel.clone(),
                observer: Arc::new(Silent),
                journal: Arc::new(Unrecorded),
            };
            let options = DestinationOptions::default();
            receive(destination, &listener, &options, &control)
        });
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        let control = MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::new(Silent),
            journal: Arc::new(Unrecorded),
        };
        let migrated = migrate(source, &remote, &options, &control);
        if migrated.is_err() {
            // It may not have connected.
            cancel.cancel();
        }
        (migrated, receiving.join())
    });
    let received = received.map_err(|_| "the destination's thread panicked")?;
    match (migrated, received) {
        (Ok(account), Ok(_)) => Ok(account),
        (Err(source), Ok(_)) => Err(Report::new(source).to_string().into()),
        (Ok(_), Err(destination)) => Err(Report::new(destination).to_string().into()),
        (Err(source), Err(destination)) => Err(format!(
            "source: {}; destination: {}",
            Report::new(source),
            Report::new(destination)
        )
        .into()),
    }
}
