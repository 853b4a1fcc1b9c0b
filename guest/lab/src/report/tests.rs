//! Lines as the test guests write them.

use super::*;

const VERIFY: &str = "verify: ok t=2.001 span_ms=1000 pages=17416 checks=524866 generation=99 bad=0 slow=3 mean_us=0.260 max_us=2050.708 slow_mean_us=937.068 slow_max_us=2050.708 hist=0:524480,1:383,8:3";

#[test]
fn a_report_is_parsed() {
    let GuestReport::Verify(verify) = GuestReport::parse(VERIFY) else {
        panic!("not parsed");
    };
    assert!(verify.ok);
    assert_eq!((verify.pages, verify.generation), (17416, 99));
    assert_eq!(verify.latency.slow, 3);
    assert_eq!(verify.latency.histogram.count(), verify.latency.accesses);
    assert_eq!(verify.latency.histogram.below_us(0.99), Some(1));
    assert_eq!(verify.latency.histogram.below_us(1.0), Some(256));
    assert_eq!(
        GuestReport::parse("verdict: BAD pages=7 bad=2 disk_pages=0"),
        GuestReport::Verdict(Verdict {
            ok: false,
            pages: 7,
            bad: 2,
            disk_pages: 0
        })
    );
}

#[test]
fn a_truncated_line_is_not_parsed() {
    for cut in 0..VERIFY.rfind("hist").unwrap() {
        assert_eq!(
            GuestReport::parse(&VERIFY[..cut]),
            GuestReport::Other,
            "{cut}"
        );
    }
    assert_eq!(
        GuestReport::parse("[    1.0] reboot: Power down"),
        GuestReport::Other
    );
    assert_eq!(
        GuestReport::parse("verdict: maybe pages=1 bad=0"),
        GuestReport::Other
    );
}

#[test]
fn a_fine_histogram_is_parsed() {
    let GuestReport::Slow(slow) =
        GuestReport::parse("slow: ok count=100 sum_us=9000 fine=40:98,80:2")
    else {
        panic!("not parsed");
    };
    assert_eq!((slow.count, slow.fine.count()), (100, 100));
    assert_eq!(
        slow.fine.below_us(0.5),
        Some(36.0),
        "from 32 to below 36 µs"
    );
    assert_eq!(slow.fine.below_us(0.99), Some(1152.0));
    let none = GuestReport::parse("slow: ok count=0 sum_us=0 fine=-");
    assert_eq!(none, GuestReport::Slow(Slow::default()));
    assert_eq!(
        GuestReport::parse("slow: ok count=1 sum_us=2"),
        GuestReport::Other
    );
}

#[test]
fn clocks_are_parsed() {
    let clocks = Clocks {
        ticks: 12,
        ns: 5,
        kvm_clock: true,
    };
    assert_eq!(
        GuestReport::parse("clocks: ok ticks=12 ns=5 kvm_clock=1"),
        GuestReport::Clocks(clocks)
    );
    assert_eq!(
        GuestReport::parse("clocks: ok ticks=12 ns=5"),
        GuestReport::Other
    );
}

#[test]
fn totals_are_parsed() {
    let line = "totals: ok async_pf=on not_present=9 ready=8 broadcasts=1 unmatched=0 \
                synchronous=3 refaults=2 waiting=7 ran_ms=1.000";
    let totals = Totals {
        async_faults: true,
        not_present: 9,
        ready: 8,
        broadcasts: 1,
        unmatched: 0,
        synchronous: 3,
        refaults: 2,
        waiting: 7,
    };
    assert_eq!(GuestReport::parse(line), GuestReport::Totals(totals));
    let off = line.replace("=on", "=off").replace("=7", "=0");
    let GuestReport::Totals(totals) = GuestReport::parse(&off) else {
        panic!("not parsed: {off}");
    };
    assert_eq!((totals.async_faults, totals.waiting), (false, 0));
    assert_eq!(
        GuestReport::parse("totals: ok async_pf=on"),
        GuestReport::Other
    );
}

#[test]
fn accounts_are_parsed() {
    let line = "faults: ok t=1.009 span_ms=505 not_present=3 ready=2 broadcasts=0 unmatched=0 \
                synchronous=4 refaults=1 waiting=1 wait_mean_us=10.500 wait_max_us=20.000 \
                wait_hist=4:1,5:1";
    let GuestReport::Faults(faults) = GuestReport::parse(line) else {
        panic!("not parsed");
    };
    assert_eq!((faults.not_present, faults.waits.count()), (3, 2));
    assert_eq!((faults.synchronous, faults.refaults), (4, 1));
    let line = "fault: ok token=4096 not_present=1 other=2 ready=3 resumed=4";
    let fault = Fault {
        token: 4096,
        not_present: 1,
        other: 2,
        ready: 3,
        resumed: 4,
    };
    assert_eq!(GuestReport::parse(line), GuestReport::Fault(fault));
    assert_eq!(
        GuestReport::parse("noted: ok faults=7"),
        GuestReport::Noted(7)
    );
    let line = "processors: ok t=1.009 span_ms=505 ran_ms=1.500,2.000 idle_ms=3.000,4.000 \
                stalled_ms=0.000,0.000 kvm_ms=0.500,0.600 scheduler_ms=0.100,0.200 switches=7";
    let GuestReport::Processors(processors) = GuestReport::parse(line) else {
        panic!("not parsed");
    };
    assert_eq!(processors.ran, [1.5, 2.0]);
    assert_eq!(processors.in_kvm, [0.5, 0.6]);
    assert_eq!(processors.scheduler, [0.1, 0.2]);
    let bad = line.replace("2.000", "-");
    assert_eq!(GuestReport::parse(&bad), GuestReport::Other);
    let line = "task: ok number=1 processor=0 accesses=9 ran_ms=1.000 queued_ms=2.000 \
                waited_ms=3.000 faults=4 synchronous=0 refaults=0 wait_mean_us=0.000";
    let GuestReport::Task(task) = GuestReport::parse(line) else {
        panic!("not parsed");
    };
    assert_eq!((task.number, task.accesses, task.faults), (1, 9, 4));
}

#[test]
fn devices_are_parsed() {
    let line = "devices: ok cpus=2 memory_kib=4 random=- tpm_random=0a pcr=ff tablet=7,-8 \
                echoed=5 drawn=-";
    let devices = Devices {
        cpus: 2,
        memory_kib: 4,
        random: None,
        tpm_random: Some("0a".to_owned()),
        pcr: Some("ff".to_owned()),
        tablet: Some([7, -8]),
        echoed: Some(5),
        drawn: None,
    };
    assert_eq!(GuestReport::parse(line), GuestReport::Devices(devices));
    let cut = line.rfind(" drawn").unwrap();
    assert_eq!(GuestReport::parse(&line[..cut]), GuestReport::Other);
}

#[test]
fn freed_memory_is_parsed() {
    assert_eq!(
        GuestReport::parse("freed: ok pages=9"),
        GuestReport::Freed(9)
    );
    let used = Used { pages: 9, bad: 2 };
    let line = "used: BAD pages=9 bad=2";
    assert_eq!(GuestReport::parse(line), GuestReport::Used(used));
    assert_eq!(GuestReport::parse("used: BAD pages=9"), GuestReport::Other);
}

#[test]
fn a_disk_report_is_parsed() {
    let line = "disk: ok t=1.003 span_ms=1003 bad=0 reads=41 writes=2 read_kib=5248 written_kib=256 files=1 passes=3";
    let GuestReport::Disk(work) = GuestReport::parse(line) else {
        panic!("not parsed");
    };
    assert_eq!((work.reads, work.written_kib, work.passes), (41, 256, 3));
    assert_eq!(GuestReport::parse(&line[..90]), GuestReport::Other);
}

#[test]
fn intervals_add_up() {
    let GuestReport::Verify(one) = GuestReport::parse(VERIFY) else {
        panic!("not parsed");
    };
    let mut sum = Latency::default();
    sum.add(&one.latency);
    assert_eq!(sum.histogram, one.latency.histogram);
    sum.add(&one.latency);
    assert_eq!((sum.accesses, sum.slow), (1_049_732, 6));
    assert!((sum.slow_mean_us - 937.068).abs() < 1e-6);
    assert_eq!(sum.histogram.count(), sum.accesses);
}
