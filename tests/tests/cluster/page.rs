//! The configuration of docs/pacemaker.md, as it is there.

use crate::laboratory::{Laboratory, Resource, block};
use hikkoshi_tests::LONG;

/// Both guests of the page start, and move in their modes.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_configuration_of_the_page_is_loaded() {
    let mut laboratory = Laboratory::nodes();
    for name in ["web", "db"] {
        let resource = Resource::new(name, 16);
        laboratory.add(name, resource.config, false);
    }
    laboratory.cluster.start().unwrap();
    let text = block("property stonith-enabled=true no-quorum-policy=stop migration-limit=2");
    let fencing = "primitive fencing stonith:fence_lab op monitor interval=10min\n";
    laboratory
        .cluster
        .configure(&format!("{fencing}{text}"))
        .unwrap();
    for name in ["web", "db"] {
        laboratory.guest(name).wait_run(1, LONG).unwrap();
        let from = laboratory.where_is(name);
        let to = if from == "n3" { "n1" } else { "n3" };
        laboratory.move_to(name, to);
        laboratory.wait_on(name, to);
    }
    laboratory.assert_all_whole(1);
    assert!(laboratory.cluster.power().fenced().is_empty());
}
