//! The nano guest's server: lines, datagrams and files, by each accelerator.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_checked_pages::page::filling;
use hikkoshi_lab::{
    DatagramClient, FileClients, Files, GuestNetwork, GuestReport, Lab, Pace, QemuVersion, Ram, Vm,
    VmConfig, Workload,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);
const PORT: u16 = 7000;
/// Not a multiple of a page or of a frame.
const FILES: Files = Files {
    count: 50,
    bytes: 20_008,
};

fn config(network: &GuestNetwork) -> VmConfig {
    let workload = Workload::idle().with_server(PORT);
    let workload = workload.with_files(FILES.count, FILES.bytes);
    VmConfig::new()
        .nano()
        .cpus(2)
        .ram(Ram::shared(64))
        .workload(workload.option("every_ms", 100))
        .nic(network.nic())
        .namespace(network.source())
}

fn address(port: u16) -> SocketAddr {
    format!("{}:{port}", GuestNetwork::GUEST).parse().unwrap()
}

/// A connection to the guest, and what is read from it.
fn connect(network: &GuestNetwork, port: u16) -> (TcpStream, BufReader<TcpStream>) {
    let connect = || TcpStream::connect(address(port)).unwrap();
    let stream = network.client().run(connect).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let answers = BufReader::new(stream.try_clone().unwrap());
    (stream, answers)
}

fn answers_lines(network: &GuestNetwork) {
    let (mut stream, mut answers) = connect(network, PORT);
    // The longest line, and several at once.
    let lines = format!("{}\nsecond\nthird\n", "x".repeat(4095));
    stream.write_all(lines.as_bytes()).unwrap();
    let mut before = 0;
    for line in lines.lines() {
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let (time, text) = answer.trim_end().split_once(' ').unwrap();
        assert_eq!(text, line);
        let time: u64 = time.parse().unwrap();
        assert!(time >= before, "the guest's clock went back");
        before = time;
    }
    stream.write_all(&[b'x'; 4096]).unwrap();
    let mut rest = Vec::new();
    // Closed, in order or by a reset.
    let _ = answers.read_to_end(&mut rest);
    assert!(rest.is_empty(), "a line that is too long is answered");
}

fn answers_datagrams(network: &GuestNetwork) {
    let pace = Pace::OneAfterAnother(Duration::from_millis(1));
    let client = DatagramClient::start(network.client(), address(PORT), 1, pace).unwrap();
    assert!(client.wait_answers(50, LONG), "no answers");
    let datagrams = client.finish().unwrap();
    assert!(
        datagrams.lost.is_empty() && datagrams.repeated.is_empty(),
        "{datagrams:?}"
    );
}

fn serves_files(network: &GuestNetwork) {
    // One that leaves in the middle of an answer, and one that asks for what is not there.
    let (mut stream, _) = connect(network, 80);
    stream.write_all(b"GET /1 HTTP/1.1\r\n\r\n").unwrap();
    drop(stream);
    let (mut stream, mut answers) = connect(network, 80);
    stream.write_all(b"GET /50 HTTP/1.1\r\n\r\n").unwrap();
    let mut status = String::new();
    answers.read_line(&mut status).unwrap();
    assert_eq!(status, "HTTP/1.1 404 Not Found\r\n");
    // More than once as many connections as there are places.
    for _ in 0..2 {
        let clients = FileClients::start(network.client(), address(80), 120, FILES).unwrap();
        assert!(clients.wait_answers(240, LONG), "{clients:?}");
        clients.finish().unwrap();
    }
}

fn serves(accelerated: fn(VmConfig) -> VmConfig) {
    for (version, machine) in [
        (QemuVersion::V7_2, "pc-i440fx-7.2"),
        (QemuVersion::V10_0, "pc-q35-7.2"),
    ] {
        let (lab, network) = (Lab::new().unwrap(), GuestNetwork::new().unwrap());
        let config = config(&network).version(version).machine(machine);
        let vm = accelerated(config).start(&lab, "guest").unwrap();
        vm.wait_ready().unwrap();
        answers_lines(&network);
        answers_datagrams(&network);
        serves_files(&network);
        let serve = vm.wait_report("its counts", vm.console().len(), LONG, |report| {
            let GuestReport::Serve(serve) = report else {
                return None;
            };
            (serve.open == 0).then(|| serve.clone())
        });
        let serve = serve.unwrap();
        assert_eq!((serve.lines, serve.missing, serve.repeated), (3, 0, 0));
        assert!(serve.datagrams >= 50, "{serve:?}");
        let verdict = vm.sweep(LONG).unwrap();
        assert!(verdict.ok, "{verdict:?}");
        vm.send("stop").unwrap();
        assert!(vm.wait_exit(LONG).unwrap().success());
    }
}

#[test]
fn it_serves_emulated() {
    serves(|config| config);
}

#[test]
fn it_serves_under_kvm() {
    if !std::fs::exists("/dev/kvm").unwrap() {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "no test under KVM can run: there is no /dev/kvm");
        eprintln!("NOT TESTED: under KVM: there is no /dev/kvm");
        return;
    }
    serves(VmConfig::kvm);
}

/// Changes one byte of a file in the guest's memory.
fn damage(vm: &Vm, number: u64) {
    let path = &vm.ram_files()[0];
    let ram = std::fs::read(path).unwrap();
    let (word, _) = filling(number, FILES.bytes as u64);
    // The second word follows the number.
    let start: Vec<u8> = [number, word].map(u64::to_le_bytes).concat();
    let words = ram.chunks_exact(8).enumerate();
    let found = words
        .map(|(at, _)| at * 8)
        .filter(|&at| ram[at..].starts_with(&start));
    let found: Vec<usize> = found.collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let at = found[0] + 10_000;
    file.write_all_at(&[!ram[at]], at as u64).unwrap();
}

#[test]
fn a_damaged_file_is_found_by_the_guest_and_by_its_clients() {
    let (lab, network) = (Lab::new().unwrap(), GuestNetwork::new().unwrap());
    let vm = config(&network).start(&lab, "guest").unwrap();
    vm.wait_ready().unwrap();
    damage(&vm, 7);
    let verdict = vm.sweep(LONG).unwrap();
    assert_eq!((verdict.ok, verdict.bad), (false, 1));
    let clients = FileClients::start(network.client(), address(80), 4, FILES).unwrap();
    assert!(!clients.wait_answers(10_000, LONG), "{clients:?}");
    let error = clients.finish().unwrap_err().to_string();
    assert_eq!(error, "file 7: wrong content from word 1250 on");
}
