//! Which options of the source are replaced, left out, or pointed out at the destination.

use super::destination_line::DestinationLine;
use super::disks;
use super::exact::Exact;
use crate::process::options::{Opt, join, parts};

/// Options whose value names something of the host that two QEMUs cannot share.
const OWN: [&str; 13] = [
    "qmp",
    "qmp-pretty",
    "monitor",
    "mon",
    "serial",
    "parallel",
    "chardev",
    "vnc",
    "spice",
    "pidfile",
    "gdb",
    "D",
    "debugcon",
];

/// What in such a value names it. (`-serial null` names nothing.)
const NAMES: [&str; 13] = [
    "unix:",
    "path=",
    "tcp:",
    "telnet:",
    "port=",
    "file:",
    "pipe:",
    "udp:",
    "websocket:",
    ":",
    "/",
    "addr=",
    "pty",
];

impl DestinationLine {
    /// Adds the source's options as a destination needs them.
    pub(super) fn adapt(&mut self, options: Vec<Opt>, exact: &Exact) {
        let mut has_machine = false;
        let mut has_cpu = false;
        for mut option in options {
            if option.is("incoming") || option.is("S") || option.is("loadvm") {
                continue;
            }
            if option.is("preconfig") {
                // QEMU would wait for `x-exit-preconfig` and not for a guest.
                self.note(
                    "-preconfig: left out; what was configured by QMP before the machine was made \
                     (set-numa-node) has to be given by options (-numa)",
                );
                continue;
            }
            if option.is("machine") || option.is("M") {
                has_machine |= set_first(&mut option, "type", &exact.machine);
            }
            if option.is("cpu") {
                has_cpu = true;
                self.cpu(&mut option, &exact.cpu);
            }
            self.point_out(&option);
            self.options.push(option);
        }
        if !has_machine {
            self.options
                .insert(0, Opt::new("-machine", &*exact.machine));
        }
        if !has_cpu {
            self.options.push(Opt::new("-cpu", &*exact.cpu));
        }
        self.options.push(Opt::new("-incoming", "defer"));
    }

    fn cpu(&mut self, option: &mut Opt, exact: &str) {
        if matches!(exact, "host" | "max") {
            self.note(format!(
                "-cpu {exact}: gives other features on other hosts and in other versions of QEMU; \
                 'hikkoshi check --to INVITATION' compares them"
            ));
        }
        set_first(option, "model", exact);
    }

    /// What has to be adapted.
    pub(super) fn point_out(&mut self, option: &Opt) {
        let value = option.value();
        let words = format!("{} {value}", option.name);
        if value.contains("/dev/fdset/") || has_descriptor(option) {
            self.note(format!(
                "{words}: is a file descriptor that the program which started QEMU passed to it: \
                 pass another one, or name the file or interface instead"
            ));
        }
        if option.is("daemonize") {
            self.note("-daemonize: the command ends when QEMU is ready; nothing to adapt");
        }
        if OWN.iter().any(|name| option.is(name)) && NAMES.iter().any(|part| value.contains(part)) {
            self.note(format!(
                "{words}: if both QEMUs are on the same host, the destination needs another one"
            ));
        }
        let file = option.get("mem-path", false);
        let file = file.or_else(|| option.is("mem-path").then(|| value.to_owned()));
        if let Some(path) = file
            && !std::path::Path::new(&path).is_dir()
        {
            self.note(format!(
                "{words}: never the same file on the same host: it holds the running guest's \
                 memory, and the destination empties it. Give the destination a file of its own, \
                 on tmpfs or hugetlbfs unless the guest is moved by pre-copy"
            ));
        }
        if option.is("tpmdev") && value.contains("emulator") {
            self.note(format!(
                "{words}: start an swtpm for it at the destination before QEMU, with an empty state \
                 directory of its own (swtpm socket --tpm2 --tpmstate dir=DIR --ctrl \
                 type=unixio,path=SOCKET): the TPM's state moves with the guest, and two swtpms cannot \
                 use one directory"
            ));
        }
        if disks::is_temporary(option) {
            self.note(format!(
                "{}: what the guest has written to its disks is in temporary files of this process, \
                 which no destination can open: the guest cannot be moved",
                words.trim_end()
            ));
        }
        if option.is("readconfig") {
            self.note(format!(
                "{words}: devices and backends in that file are not known here: leave out those \
                 that were unplugged, and add those below that were plugged in later and that the \
                 file does not have"
            ));
        }
        let passes = ["accel=kvm:tcg", "kvm:tcg", "accel=kvm:"];
        if passes.iter().any(|list| value.contains(list)) {
            self.note(format!(
                "{words}: the destination has to use the same accelerator as the source; name it alone"
            ));
        }
    }
}

/// Whether a descriptor's number is passed: `fd=3`, `fds=3:4`, `vhostfd=5`, `sockfd=6`.
fn has_descriptor(option: &Opt) -> bool {
    let keys = ["fd", "fds", "vhostfd", "vhostfds", "sockfd"];
    keys.iter().any(|key| option.get(key, false).is_some())
}

/// Replaces the first part of `a,b=c` (or `key=a,b=c`). `false` if it is another setting.
fn set_first(option: &mut Opt, key: &str, exact: &str) -> bool {
    let mut all = parts(option.value());
    let named = all.iter().position(|part| {
        part.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with('='))
    });
    if let Some(part) = named.and_then(|at| all.get_mut(at)) {
        *part = format!("{key}={exact}");
    } else {
        match all.first_mut() {
            Some(first) if !first.contains('=') && !first.is_empty() => exact.clone_into(first),
            _ => return false,
        }
    }
    option.value = Some(join(&all));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(line: &str) -> DestinationLine {
        let text = line.replace(' ', "\0") + "\0";
        let exact = Exact {
            machine: "pc-q35-7.2".to_owned(),
            cpu: "qemu64".to_owned(),
        };
        DestinationLine::adapted(text.as_bytes(), &exact)
    }

    fn words(line: &DestinationLine) -> String {
        let words: Vec<_> = line.options.iter().flat_map(Opt::words).collect();
        words.join(" ")
    }

    #[test]
    fn machine_and_processor_are_made_exact() {
        let exact = |line: &str| words(&adapted(&format!("qemu {line}")));
        assert_eq!(
            exact("-machine q35,usb=off -cpu qemu64,+x2apic -m 64"),
            "-machine pc-q35-7.2,usb=off -cpu qemu64,+x2apic -m 64 -incoming defer"
        );
        assert_eq!(
            exact("-M usb=off,type=q35"),
            "-M usb=off,type=pc-q35-7.2 -cpu qemu64 -incoming defer"
        );
        assert_eq!(
            exact("-machine memory-backend=ram"),
            "-machine pc-q35-7.2 -machine memory-backend=ram -cpu qemu64 -incoming defer"
        );
    }

    #[test]
    fn an_earlier_incoming_migration_and_a_paused_start_are_left_out() {
        let line = adapted("qemu -incoming tcp:0:4444 -S -preconfig -machine q35 -cpu max");
        assert_eq!(
            words(&line),
            "-machine pc-q35-7.2 -cpu qemu64 -incoming defer"
        );
    }

    #[test]
    fn what_cannot_be_shared_is_pointed_out() {
        for (option, part) in [
            ("-qmp unix:/run/q,server=on", "same host"),
            ("-vnc :1", "same host"),
            ("-pidfile /run/p", "same host"),
            ("-chardev socket,id=c,path=/run/c", "same host"),
            ("-netdev tap,id=n,fd=23", "descriptor"),
            ("-drive file=/dev/fdset/2", "descriptor"),
            (
                "-object memory-backend-file,id=r,mem-path=/nowhere/ram",
                "never the same file",
            ),
            ("-machine q35,accel=kvm:tcg", "same accelerator"),
            ("-snapshot", "-snapshot: what the guest has written"),
            ("-drive file=/a,snapshot=on", "cannot be moved"),
            ("-readconfig /etc/guest.cfg", "not known here"),
            ("-preconfig", "left out"),
            ("-tpmdev emulator,id=t,chardev=c", "start an swtpm"),
        ] {
            let notes = adapted(&format!("qemu {option}")).notes;
            assert!(
                notes.iter().any(|note| note.contains(part)),
                "{option}: {notes:?}"
            );
        }
        for option in ["-serial null", "-m 64", "-netdev user,id=n", "-vnc none"] {
            let notes = adapted(&format!("qemu {option}")).notes;
            assert!(notes.is_empty(), "{option}: {notes:?}");
        }
    }
}
