//! What is read of a host, and documents of other hosts.

use super::read::{huge_pages, load_averages, meminfo, processors};
use super::*;
use std::fs;

#[test]
fn this_host_has_memory_and_a_processor() {
    let facts = HostFacts::read("0.1.0").unwrap();
    let memory = facts.memory;
    assert!(memory.total_bytes >= memory.available_bytes && memory.available_bytes > 0);
    assert!(facts.processors.online > 0 && !facts.processors.flags.is_empty());
    assert!(!facts.name.is_empty() && facts.kernel.contains('.'));
    assert_eq!(facts.hikkoshi, "0.1.0");
}

#[test]
fn files_of_the_kernel_are_read() {
    let text = "MemTotal:       65536 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\nOther: 7\n";
    assert_eq!(meminfo(text, "MemTotal:"), Some(64 << 20));
    assert_eq!(meminfo(text, "MemAvailable:"), Some(1 << 20));
    assert_eq!(meminfo(text, "Other:"), None);
    assert_eq!(meminfo(text, "HugePages:"), None);

    let text = "processor\t: 0\nmodel name\t: AMD EPYC: 7\nflags\t\t: fpu vme avx2\n\n\
                processor\t: 1\nmodel name\t: AMD EPYC: 7\nflags\t\t: fpu vme\n";
    let found = processors(text);
    assert_eq!((found.online, &*found.model), (2, "AMD EPYC: 7"));
    assert_eq!(found.flags, ["fpu", "vme", "avx2"]);
    assert_eq!(processors(""), HostProcessors::default());

    assert_eq!(load_averages("0.52 1.5 2 1/345 6789\n"), [0.52, 1.5, 2.0]);
    assert_eq!(load_averages("NaN x"), [0.0; 3]);
}

#[test]
fn reserved_huge_pages_are_not_free() {
    let folder = tempfile::tempdir().unwrap();
    for (kib, values) in [(1_048_576, ["4", "4", "1"]), (2048, ["512", "100", "100"])] {
        let pool = folder.path().join(format!("hugepages-{kib}kB"));
        fs::create_dir(&pool).unwrap();
        let files = ["nr_hugepages", "free_hugepages", "resv_hugepages"];
        for (file, value) in files.into_iter().zip(values) {
            fs::write(pool.join(file), format!("{value}\n")).unwrap();
        }
    }
    fs::create_dir(folder.path().join("other")).unwrap();
    let pool = |page_bytes, total, free| HugePages {
        page_bytes,
        total,
        free,
    };
    let expected = [pool(2 << 20, 512, 0), pool(1 << 30, 4, 3)];
    assert_eq!(huge_pages(folder.path()), expected);
    assert_eq!(huge_pages(&folder.path().join("none")), []);
}

#[test]
fn what_guests_may_still_take_is_not_free() {
    let memory = HostMemory {
        total_bytes: 100,
        available_bytes: 60,
        promised_bytes: 20,
        cgroup_bytes: None,
    };
    assert_eq!(memory.free_bytes(), 40);
    let limited = |cgroup_bytes, promised_bytes| HostMemory {
        cgroup_bytes: Some(cgroup_bytes),
        promised_bytes,
        ..memory
    };
    assert_eq!(limited(30, 20).free_bytes(), 30);
    assert_eq!(limited(50, 90).free_bytes(), 0);
    let guest = |memory_bytes, resident_bytes| HostGuest {
        name: String::new(),
        state: HostGuestState::Here,
        memory_bytes,
        resident_bytes,
    };
    assert_eq!(guest(Some(10), Some(4)).promised_bytes(), 6);
    assert_eq!(guest(Some(10), None).promised_bytes(), 10);
    assert_eq!(guest(Some(10), Some(12)).promised_bytes(), 0);
    assert_eq!(guest(None, Some(4)).promised_bytes(), 0);
}

fn example() -> HostStatus {
    HostStatus {
        version: HOST_VERSION,
        host: HostFacts::read("0.1.0").unwrap(),
        guests: vec![HostGuest {
            name: "web".to_owned(),
            state: HostGuestState::Here,
            memory_bytes: Some(1 << 30),
            resident_bytes: None,
        }],
        other_guests: 2,
        limits: Some(GuestLimits {
            max_guests: 64,
            guests: 1,
            max_guests_per_certificate: 32,
        }),
        migrations: vec![serde_json::json!({ "name": "source-1-00" })],
        problems: vec!["why".to_owned()],
    }
}

#[test]
fn a_document_is_read_again() {
    let status = example();
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(HostStatus::parse(&text).unwrap(), status);
    assert_eq!(status.guest_count(), 3);
    // What a later version adds is ignored.
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["more"] = 1.into();
    value["guests"][0]["state"] = "elsewhere".into();
    let read = HostStatus::parse(&value.to_string()).unwrap();
    assert_eq!(read.guests[0].state, HostGuestState::Unknown);
}

/// Documents come from other hosts.
#[test]
fn what_is_no_document_is_refused() {
    let text = serde_json::to_string(&example()).unwrap();
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        assert!(HostStatus::parse(&text[..end]).is_err(), "{end}");
    }
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_str(&text).unwrap();
        change(&mut value);
        HostStatus::parse(&value.to_string())
    };
    let version = changed(&|value| value["version"] = 2.into()).unwrap_err();
    assert!(version.to_string().contains("version 2"), "{version}");
    for (name, other) in [
        ("version", Value::from("1")),
        ("host", Value::Null),
        ("guests", Value::from(1)),
        ("other_guests", Value::from(-1)),
        ("migrations", Value::from("x")),
    ] {
        assert!(changed(&|value| value[name] = other.clone()).is_err());
    }
    let many = vec![Value::Null; MAX_HOST_ENTRIES + 1];
    let many = changed(&|value| value["migrations"] = many.clone().into()).unwrap_err();
    assert!(matches!(many, HostStatusError::TooMany), "{many}");
    // Values inside each other without end.
    assert!(HostStatus::parse(&"[".repeat(1 << 20)).is_err());
    let deep = format!("{{\"version\":1,\"x\":{}", "[".repeat(1 << 20));
    assert!(HostStatus::parse(&deep).is_err());
}
