//! The userfaultfd at the destination, while pages are missing.

use std::sync::Arc;

use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_linux::{HostAddr, HostRange, Process, StopEventFd};
use hikkoshi_memory::{GuestRam, RamWriter};
use hikkoshi_pages::{PAGE_BYTES, Page, PageRange};
use hikkoshi_qemu::{QemuDestination, QemuSource};
use hikkoshi_userfault::{
    EventBuffer, Ready, RegisterMode, Userfault, UserfaultEvent, close_remote,
};

use crate::support::{Qemu, eventually, monitor, says, with_each};

use super::{destination, load, save, source};

/// The first page and the place of each block.
fn places(ram: &GuestRam, addresses: &[u64]) -> Vec<(Page, HostRange)> {
    let blocks = ram.layout().blocks().zip(addresses);
    blocks
        .map(|((_, pages), &at)| (pages.start(), HostRange::new(HostAddr(at), pages.bytes())))
        .collect()
}

/// Installs a page with the source's content.
fn copy_page(ram: &GuestRam, page: Page, userfault: &Userfault, places: &[(Page, HostRange)]) {
    let mut content = vec![0; 4096];
    ram.read(PageRange::one(page), &mut content).unwrap();
    let (first, block) = places.iter().rfind(|(first, _)| *first <= page).unwrap();
    let offset = PageRange::new(*first, page).bytes();
    let at = HostAddr(block.addr.0 + offset);
    userfault.copy(at, &content).unwrap();
}

#[test]
fn missing_pages_fault_during_and_after_loading() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let mut source = from.source();
        let mut destination = to.destination();
        destination.prepare().unwrap();
        let state = save(&mut source);
        let (userfault, addresses) = destination.take_userfault().unwrap();
        // What is here already would not fault.
        let writer = RamWriter::open(destination.ram()).unwrap();
        writer.drop_all().unwrap();
        let ram = source.ram();
        let places = places(&ram, &addresses);
        for place in &places {
            userfault.register(place.1, RegisterMode::MISSING).unwrap();
        }
        let stop = StopEventFd::new().unwrap();
        let served = std::thread::scope(|scope| {
            let (userfault, places, ram, stop) = (&userfault, &places, &ram, &stop);
            let server = scope.spawn(move || {
                let mut served = 0;
                let mut buffer = EventBuffer::with_capacity(16);
                while let Ready::Events = userfault.wait(stop, None).unwrap() {
                    userfault.read(&mut buffer).unwrap();
                    while let Some(event) = buffer.pop() {
                        let UserfaultEvent::Fault(fault) = event else {
                            continue;
                        };
                        let (first, block) = places
                            .iter()
                            .find(|(_, block)| {
                                (block.addr.0..block.addr.0 + block.len).contains(&fault.addr.0)
                            })
                            .unwrap();
                        let offset = (fault.addr.0 - block.addr.0) / PAGE_BYTES;
                        copy_page(ram, first.saturating_add(offset), userfault, places);
                        served += 1;
                    }
                }
                served
            });
            load(&mut destination, state);
            destination.resume(true, &CancelFlag::new()).unwrap();
            eventually("a page that the guest needs", || {
                to.descriptors("userfaultfd") == 1 && userfault_count(&to) > 0
            });
            // The rest.
            for page in ram.layout().all().iter() {
                copy_page(ram, page, userfault, places);
            }
            stop.stop();
            server.join().unwrap()
        });
        assert!(served > 0);
        for (_, place) in places {
            userfault.unregister(place).unwrap();
        }
        drop(userfault);
        destination.release().unwrap();
        drop(destination);
        assert_eq!(to.descriptors("userfaultfd"), 0);
        assert_eq!(to.state(), "running");
    });
}

/// Allocated pages of the RAM file.
fn userfault_count(qemu: &Qemu) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(&qemu.ram.0).unwrap().blocks() / 8
}

#[test]
fn an_unreleased_userfaultfd_stays_once_pages_may_be_missing() {
    with_each(|program| {
        let from = source(program, "-S");
        let mut guest = from.source();
        let state = save(&mut guest);
        guest.resume().unwrap();
        // Nothing loaded yet: closed.
        let to = destination(program, "");
        let mut destination = to.destination();
        destination.take_userfault().unwrap();
        assert_eq!(to.descriptors("userfaultfd"), 1);
        drop(destination);
        assert_eq!(to.descriptors("userfaultfd"), 0);
        // Loaded: stays open, whether dropped or abandoned.
        for abandon in [true, false] {
            let to = self::destination(program, "");
            let mut destination = to.destination();
            destination.prepare().unwrap();
            destination.take_userfault().unwrap();
            destination.load_device_state(state.clone()).unwrap();
            if abandon {
                destination.abandon_userfault();
            }
            drop(destination);
            assert_eq!(to.descriptors("userfaultfd"), 1);
            let error = QemuDestination::attach(&to.qmp()).unwrap_err();
            says(&error, &["-incoming defer"]);
            let error = QemuSource::attach(&to.qmp()).unwrap_err();
            says(&error, &["pages may be missing"]);
        }
    });
}

/// An engine that finds the userfaultfd closed must not continue: missing pages read as
/// zeros.
#[test]
fn a_closed_userfaultfd_is_noticed() {
    with_each(|program| {
        let from = source(program, "-S");
        let mut guest = from.source();
        let state = save(&mut guest);
        guest.resume().unwrap();
        let to = destination(program, "");
        let mut destination = to.destination();
        destination.prepare().unwrap();
        destination.take_userfault().unwrap();
        destination.load_device_state(state).unwrap();
        let reattach_info = destination.reattach_info().get();
        destination.abandon_userfault();
        drop(destination);
        let again =
            QemuDestination::reattach(&reattach_info, monitor(&reattach_info.identity), |_| None)
                .unwrap()
                .unwrap();
        again.check_userfault().unwrap();
        drop(again);
        let process = Arc::new(Process::open(to.pid()).unwrap());
        close_remote(&process, reattach_info.userfault.unwrap()).unwrap();
        let mut again =
            QemuDestination::reattach(&reattach_info, monitor(&reattach_info.identity), |_| None)
                .unwrap()
                .unwrap();
        says(
            &again.check_userfault().unwrap_err(),
            &["cannot be trusted"],
        );
        assert!(again.take_userfault().is_err());
        assert_eq!(to.descriptors("userfaultfd"), 0, "it took no other one");
    });
}
