//! The commands of docs/evacuating.md, in their order.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Evacuation, run};
use hikkoshi_tests::hikkoshi;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const DOCUMENT: &str = include_str!("../../../../docs/evacuating.md");
const PROMPT: &str = "source# ";

/// The commands in the document, each as its words.
fn commands() -> Vec<Vec<String>> {
    let blocks = DOCUMENT.split("```\n").skip(1).step_by(2);
    let joined = blocks
        .map(|block| block.replace("\\\n", " "))
        .collect::<String>();
    let lines = joined
        .lines()
        .map(|line| line.strip_prefix(PROMPT).unwrap());
    let words = lines.map(|line| line.split_whitespace().map(str::to_owned));
    words.map(Iterator::collect).collect()
}

/// The machines of the source are those that it was started with, as a daemon there would have
/// them.
#[test]
#[ignore = "two guests and two hosts: make test-evacuate"]
fn the_document_is_executed() {
    let mut evacuation = Evacuation::start(&["db", "web"], 2);
    let machines = evacuation.run().join("machines");
    fs::create_dir_all(&machines).unwrap();
    for (name, guest) in &evacuation.guests {
        symlink(
            guest.source.qmp_path(),
            machines.join(format!("{name}.qmp")),
        )
        .unwrap();
    }
    let hosts = evacuation.addresses().join(",");
    let facts = evacuation.facts(&evacuation.addresses());
    let certificates = evacuation.authority.issue("source.example");
    let page = evacuation.env.folder().join("evacuation.html");
    let place = |word: &str| match word {
        "vmhost2,vmhost3" => hosts.clone(),
        "ca.crt" => certificates[1].clone(),
        "vmhost1.crt" => certificates[3].clone(),
        "vmhost1.key" => certificates[5].clone(),
        "evacuation.html" => page.display().to_string(),
        other => other.to_owned(),
    };
    let all = commands();
    let kinds: Vec<_> = all.iter().map(|words| (&*words[0], &*words[1])).collect();
    let (evacuate, report) = (("hikkoshi", "evacuate"), ("hikkoshi", "report"));
    assert_eq!(kinds, [evacuate, evacuate, report]);
    for (words, says) in all
        .iter()
        .zip(["met", "2 of 2 guests have moved", "the report is in"])
    {
        let mut command = Command::new(hikkoshi());
        command.args(words[1..].iter().map(|word| place(word)));
        command.arg("--journal").arg(evacuation.run());
        if words[1] == "evacuate" {
            command.arg("--host-facts").arg(&facts);
            command.args(["--line", "1Gbit", "--seconds", "0.5"]);
            command.arg("--json").arg(evacuation.result_path());
        }
        let exit = run(command, 0);
        assert!(exit.stdout.contains(says), "{words:?}: {exit:?}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<h1>Evacuation of 2 guests</h1>"));
    assert!(page.contains("2 guests have moved in "));
    evacuation.assert_no_journal();
    evacuation.assert_all_moved();
}
