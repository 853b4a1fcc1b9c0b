//! The allow-list: types that write the guest's memory only in tracked ways; see
//! `devices.rs`.

/// Whether this type is on the list. `model` is a type without its transport.
pub(super) fn is_known(model: &str) -> bool {
    DEVICES
        .iter()
        .chain([&BOARD, &OBJECTS])
        .any(|list| list.split_whitespace().any(|known| known == model))
}

/// Whether this type is a processor, or a part that boards have even with `-nodefaults`.
pub(super) fn is_of_the_board(kind: &str) -> bool {
    let mut parts = BOARD.split_whitespace().chain(BOARD_CONTROLLERS);
    kind.ends_with("-x86_64-cpu") || parts.any(|part| part == kind)
}

/// Parts of the boards, and KVM's. KVM writes through the process's page tables: by
/// copying to user addresses, or through mappings that it drops when the page is
/// write-protected (MMU notifiers). For the structures of a nested hypervisor see
/// `nested.rs`.
const BOARD: &str = "\
     ICH9-LPC ICH9-SMB PIIX3 PIIX4_PM acpi-ged acpi-ged-x86 apic cfi.pflash01 \
     cpu-cluster fw_cfg_io fw_cfg_mem gpex-pcihost gpex-root gpio_i2c hpet i2c-ddc \
     i2c-echo i440FX i440FX-pcihost i8042 i8042-mmio i8257 ioapic isa-i8259 \
     isa-pcspk isa-pit isabus-bridge mc146818rtc mch migration or-irq piix4-isa \
     port92 ps2-kbd ps2-mouse q35-pcihost smbus-eeprom split-irq vmmouse vmport \
     hyperv-synic hv-syndbg kvm-apic kvm-i8259 kvm-ioapic kvm-pit kvmclock kvmvapic \
     vmbus-bridge";

/// Controllers of the boards. Users add others of these types, too: they are in [`DEVICES`].
const BOARD_CONTROLLERS: [&str; 4] = ["ich9-ahci", "isa-fdc", "piix3-ide", "virtio-mmio"];

/// Devices that QEMU emulates with its own threads or, where it says so, the
/// kernel on the guest's own page tables.
const DEVICES: [&str; 11] = [
    // Bridges and IOMMUs.
    "AMDVI-PCI amd-iommu i82801b11-bridge intel-iommu ioh3420 pci-bridge \
     pci-bridge-seat pcie-pci-bridge pcie-root-port pxb pxb-host pxb-pcie \
     virtio-iommu virtio-mmio x3130-upstream xio3130-downstream",
    // Storage. Reads go through the block drivers of `block.rs`.
    "am53c974 dc390 emmc esp floppy generic-sdhci ich9-ahci ide-cd ide-cf ide-hd \
     fsl-esdhc-be fsl-esdhc-le imx-usdhc isa-fdc isa-ide lsi53c810 lsi53c895a megasas megasas-gen2 mptsas1068 \
     nvme nvme-ns nvme-subsys piix3-ide piix4-ide pvscsi s3c-sdhci scsi-cd scsi-hd \
     sd-card sd-card-spi sdhci-pci sysbus-ahci sysbus-esp ufs ufs-lu virtio-blk \
     virtio-scsi",
    // File systems. 9p does no direct I/O into guest memory.
    "virtio-9p",
    // Network cards. For their backends see `network.rs`.
    "e1000 e1000-82544gc e1000-82545em e1000e i82550 i82551 i82557a i82557b i82557c \
     i82558a i82558b i82559a i82559b i82559c i82559er i82562 i82801 igb igbvf \
     ne2k_isa ne2k_pci pcnet rocker rtl8139 tulip usb-net virtio-net vmxnet3",
    // vhost in the kernel copies to the owner's addresses.
    "vhost-vsock",
    // USB. Devices of the host use QEMU's buffers.
    "base-xhci ich9-usb-ehci1 ich9-usb-ehci2 ich9-usb-uhci1 ich9-usb-uhci2 \
     ich9-usb-uhci3 ich9-usb-uhci4 ich9-usb-uhci5 ich9-usb-uhci6 imx.usbphy \
     nec-usb-xhci pci-ohci piix3-usb-uhci piix4-usb-uhci qemu-xhci sysbus-ohci \
     sysbus-xhci usb-ehci canokey u2f-emulated u2f-passthru usb-audio usb-bot \
     usb-braille usb-ccid usb-host usb-hub usb-kbd usb-mouse usb-mtp usb-redir \
     usb-serial usb-storage usb-tablet usb-uas usb-wacom-tablet ccid-card-emulated \
     ccid-card-passthru",
    // Serial lines, input, identity.
    "ipoctal232 isa-debug-exit isa-debugcon isa-parallel isa-serial pci-serial \
     pci-serial-2x pci-serial-4x serial serial-mm tpci200 tpm-crb tpm-tis \
     virtconsole virtio-input-host virtio-keyboard virtio-mouse virtio-multitouch \
     virtio-serial virtio-tablet virtserialport",
    // Display: SPICE's and VNC's threads are QEMU's. (With the host's GPU: see
    // `devices.rs`.)
    "VGA ati-vga bochs-display cirrus-vga isa-cirrus-vga isa-vga qxl qxl-vga ramfb \
     secondary-vga virtio-gpu virtio-vga vmware-svga",
    // Sound.
    "AC97 ES1370 adlib cs4231a gus hda-duplex hda-micro hda-output ich9-intel-hda \
     intel-hda sb16 virtio-sound",
    // Memory modules: the RAM checks cover their backends.
    "nvdimm pc-dimm sp-mem virtio-balloon",
    // Others.
    "acpi-erst ctucan_pci edu guest-loader hyperv-testdev i6300esb ib700 \
     iommu-testdev ipmi-bmc-extern ipmi-bmc-sim isa-applesmc isa-ipmi-bt isa-ipmi-kcs kvaser_pci \
     loader mioe3680_pci pc-testdev pci-ipmi-bt pci-ipmi-kcs pci-testdev \
     pcm3680_pci pvpanic pvpanic-pci sga smbus-ipmi uefi-vars-sysbus uefi-vars-x64 \
     virtio-crypto virtio-rng virtio-rtc vmclock vmcoreinfo vmgenid",
];

/// Objects: these write to the guest's memory only through the devices that use
/// them, on QEMU's threads. (Confidential guests are refused by a check of the
/// machine.)
const OBJECTS: &str = "\
     acpi-generic-initiator acpi-generic-port authz-list authz-list-file authz-pam \
     authz-simple can-bus can-host-socketcan colo-compare cryptodev-backend \
     cryptodev-backend-builtin cryptodev-backend-lkcf dbus-display dbus-vmstate \
     filter-buffer filter-dump filter-mirror filter-redirector filter-replay \
     filter-rewriter input-barrier input-linux iommufd iothread main-loop \
     monitor-hmp monitor-qmp pr-manager-helper qtest rng-builtin rng-egd rng-random secret secret_keyring \
     sev-guest sev-snp-guest tdx-guest thread-context throttle-group \
     tls-cipher-suites tls-creds-anon tls-creds-psk tls-creds-x509";
