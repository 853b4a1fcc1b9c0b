//! Tests the comparison of two machines' devices, with real QEMUs.

use error_reporter::Report;
use hikkoshi_engine::{DestinationGuest, SourceGuest};
use hikkoshi_wire::{Machine, MachineMismatch};

use crate::support::{Program, Qemu, RamPath, options, usual, versions, with_each};

/// The machine of a QEMU with these options.
fn machine(program: &Program, incoming: bool, more: &str) -> Machine {
    let ram = RamPath::new();
    let mut all = usual(32, &ram);
    all.extend(options(more));
    if !incoming {
        let qemu = Qemu::start(program, ram, &all);
        return qemu.source().hardware().machine;
    }
    all.extend(options("-incoming defer"));
    let qemu = Qemu::start(program, ram, &all);
    qemu.destination().hardware().machine
}

fn mismatch(program: &Program, source: &str, destination: &str) -> (MachineMismatch, String) {
    let source = machine(program, false, source);
    let error = source
        .fits(&machine(program, true, destination))
        .unwrap_err();
    let text = Report::new(&error).to_string();
    eprintln!("   {text}");
    (error, text)
}

#[test]
fn another_device_in_a_slot() {
    with_each(|program| {
        for (source, destination, parts) in [
            (
                "-device virtio-rng-pci,addr=5,id=r",
                "-device virtio-balloon-pci,addr=5",
                [
                    "pcie.0/05.0",
                    "virtio-rng-pci (\"r\")",
                    "virtio-balloon-pci",
                ],
            ),
            (
                "-device virtio-rng-pci,addr=5,id=r",
                "-device virtio-rng-pci,addr=6",
                ["pcie.0/05.0", "virtio-rng-pci (\"r\")", "nothing"],
            ),
            // Behind a bridge whose buses no guest has numbered.
            (
                "-device pcie-root-port,id=rp,addr=7 -device virtio-rng-pci,bus=rp",
                "-device pcie-root-port,id=other,addr=7",
                ["pcie.0/07.0/00.0", "virtio-rng-pci", "nothing"],
            ),
            (
                "-device virtio-scsi-pci,id=s,addr=8 -blockdev null-co,node-name=n \
                 -device scsi-hd,drive=n,bus=s.0,scsi-id=3",
                "-device virtio-scsi-pci,id=s,addr=8 -blockdev null-co,node-name=n \
                 -device scsi-hd,drive=n,bus=s.0,scsi-id=4",
                ["pcie.0/08.0/0:3:0", "scsi-hd", "nothing"],
            ),
            (
                "-device qemu-xhci,addr=9 -device usb-tablet,port=2",
                "-device qemu-xhci,addr=9 -device usb-kbd,port=2",
                ["pcie.0/09.0/2", "usb-tablet", "usb-kbd"],
            ),
        ] {
            let (error, text) = mismatch(program, source, destination);
            assert!(matches!(error, MachineMismatch::Device { .. }));
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in: {text}");
            }
        }
        let (error, text) = mismatch(program, "-device vmgenid", "");
        assert!(matches!(error, MachineMismatch::Number { .. }));
        assert!(text.contains("vmgenid"), "{text}");
        let (error, text) = mismatch(
            program,
            "-device isa-debugcon,chardev=c -chardev null,id=c",
            "",
        );
        assert!(matches!(error, MachineMismatch::Number { .. }));
        assert!(text.contains("isa-debugcon"), "{text}");
    });
}

#[test]
fn a_rom_of_another_length() {
    with_each(|program| {
        let rom = RamPath::new();
        std::fs::write(&rom.0, vec![0; 3 << 20]).unwrap();
        let (error, text) = mismatch(
            program,
            "-device virtio-net-pci,addr=5",
            &format!("-device virtio-net-pci,addr=5,romfile={}", rom.as_str()),
        );
        assert!(matches!(error, MachineMismatch::Memory { .. }), "{error:?}");
        assert!(text.contains("virtio-net-pci.rom"), "{text}");
        let (error, _) = mismatch(
            program,
            "-device virtio-net-pci,addr=5",
            "-device virtio-net-pci,addr=5,romfile=",
        );
        assert!(
            matches!(error, MachineMismatch::NoMemory { .. }),
            "{error:?}"
        );
    });
}

/// Devices in another order on the command line, with and without names.
#[test]
fn the_order_of_the_options_does_not_matter() {
    with_each(|program| {
        let source = "-vga std -device virtio-rng-pci,addr=5,id=r -device qemu-xhci,addr=6,id=x \
                      -device usb-tablet,bus=x.0 -device ich9-ahci,addr=8,id=a \
                      -device pcie-root-port,id=rp,addr=9 -device virtio-balloon-pci,bus=rp \
                      -device vmgenid";
        let destination = "-device vmgenid -device pcie-root-port,id=other,addr=9 \
                           -device virtio-balloon-pci,bus=other,id=b -device ich9-ahci,addr=8 \
                           -device qemu-xhci,addr=6 -device usb-tablet \
                           -device virtio-rng-pci,addr=5 -device VGA,addr=1";
        let source = machine(program, false, source);
        assert!(source.devices.len() > 10, "{source:?}");
        assert_eq!(source.fits(&machine(program, true, destination)), Ok(()));
    });
}

/// In both directions between the versions, with the same machine type.
#[test]
fn between_versions() {
    let programs: Vec<_> = versions()
        .into_iter()
        .map(|(label, run)| Program { label, run })
        .collect();
    for kind in ["pc-q35-7.2", "pc-i440fx-7.2"] {
        let line = format!(
            "-machine {kind} -vga std -device virtio-net-pci -device virtio-scsi-pci,id=s \
             -blockdev null-co,node-name=n -device scsi-hd,drive=n,bus=s.0 -device e1000 \
             -device intel-hda -audiodev none,id=au -device hda-output,audiodev=au \
             -device virtio-serial -chardev null,id=c -device virtserialport,chardev=c \
             -device qemu-xhci -device usb-tablet -device virtio-gpu-pci -device vmgenid \
             -serial null -device i6300esb -device pvpanic"
        );
        for source in &programs {
            for destination in &programs {
                let source = machine(source, false, &line);
                assert_eq!(source.fits(&machine(destination, true, &line)), Ok(()));
            }
        }
    }
}
