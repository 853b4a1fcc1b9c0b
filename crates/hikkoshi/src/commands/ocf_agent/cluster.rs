//! What Pacemaker knows of the nodes, and what an agent notes there for the agent of another node.
//!
//! While a guest moves, two transient attributes name the other side: that of the source on the
//! destination's node, and that of the destination on the source's. Pacemaker removes a node's when
//! the node leaves the cluster. So each side finds out, even after that, who the other one was, and
//! whether it has been there all the time: one that is back after its fencing has nothing of the
//! guest.
//!
//! Without a cluster, or if it does not answer, a node is never taken for gone; and if it does not
//! answer, no guest is started.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use error_reporter::Report;

use crate::output::streams;

/// What `attrd_updater` exits with if there is no such attribute: 2.1.5 with `CRM_EX_CONFIG`;
/// `CRM_EX_NOSUCH` is Pacemaker's code for what there is not.
const NO_SUCH: [i32; 2] = [78, 105];

/// The cluster, as this node sees it.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    /// This node's name, if Pacemaker has called the agent.
    node: Option<String>,
}

/// A side of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }

    /// The attribute of the node on this side of the guest's move. Its value is the other node.
    fn attribute(self, guest: &str) -> String {
        match self {
            Self::Source => format!("hikkoshi-to-{guest}"),
            Self::Destination => format!("hikkoshi-from-{guest}"),
        }
    }
}

impl Cluster {
    /// The node's name as Pacemaker gives it to an action (`OCF_RESKEY_CRM_meta_on_node`).
    pub(super) fn new(node: Option<String>) -> Self {
        let node = node.filter(|node| !node.is_empty());
        Self { node }
    }

    /// Notes a move of `guest` from this node to another one.
    ///
    /// # Errors
    /// Pacemaker does not take the note.
    pub(super) fn note_move(&self, guest: &str, to: &str) -> Result<(), String> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        for (side, on, value) in [
            (Side::Destination, to, node.as_str()),
            (Side::Source, node, to),
        ] {
            let name = side.attribute(guest);
            run("attrd_updater", &["-n", &name, "-N", on, "-U", value])
                .map_err(|failed| format!("noting the move: {}", failed.why))?;
        }
        Ok(())
    }

    /// Removes this node's part of such a note.
    pub(super) fn forget_move(&self, guest: &str, side: Side) {
        if let Some(node) = &self.node {
            delete(&side.attribute(guest), node);
        }
    }

    /// The move to that node has failed, and the guest stays: removes both parts.
    pub(super) fn forget_failed_move(&self, guest: &str, to: &str) {
        if self.node.is_some() {
            delete(&Side::Destination.attribute(guest), to);
            self.forget_move(guest, Side::Source);
        }
    }

    /// Removes the note of a move from this node, if there is one: the guest is here, and is not
    /// moved.
    pub(super) fn forget_sent(&self, guest: &str) {
        if let Some(to) = self.peer(guest, Side::Source) {
            self.forget_failed_move(guest, &to);
        }
    }

    /// Removes the note of a move to this node, if its source is not at it.
    pub(super) fn forget_received(&self, guest: &str) {
        let Some(source) = self.peer(guest, Side::Destination) else {
            return;
        };
        let noted = attribute(&Side::Source.attribute(guest), &source);
        if noted.is_ok_and(|noted| noted != self.node) {
            self.forget_move(guest, Side::Destination);
        }
    }

    /// Another node to which a move of the guest was begun, and that has not been told that it is
    /// over. If the source is fenced then, Pacemaker does not know that the guest may run there.
    ///
    /// # Errors
    /// Pacemaker does not say it.
    pub(super) fn other_destination(&self, guest: &str) -> Result<Option<String>, String> {
        let Some(node) = &self.node else {
            return Ok(None);
        };
        let text = query(&["-A", "-n", &Side::Destination.attribute(guest)])?;
        let noted = text.lines().filter(|line| value(line, "value").is_some());
        Ok(noted
            .filter_map(|line| value(line, "host"))
            .find(|host| host != node))
    }

    /// Whether the destination of a move from here has left since it was noted.
    pub(super) fn destination_has_left(&self, guest: &str, node: &str) -> bool {
        self.has_left(node) || self.peer_is_gone(guest, Side::Source)
    }

    /// Whether a node is known not to be a member.
    fn has_left(&self, other: &str) -> bool {
        self.node.is_some() && members().is_some_and(|members| !members.contains(other))
    }

    /// Has Pacemaker look for the resource again, on all nodes. Returns whether it does.
    pub(super) fn refresh(&self, resource: &str) -> bool {
        if self.node.is_none() {
            return true;
        }
        let asked = run("crm_resource", &["--refresh", "--resource", resource]);
        if let Err(failed) = &asked {
            streams::notice(&format!("asking Pacemaker to look again: {}", failed.why));
        }
        asked.is_ok()
    }

    /// Whether Pacemaker's scheduler, by what the cluster is now, would move the resource to that
    /// node. None if nothing is decided here: without a cluster, or without quorum.
    ///
    /// # Errors
    /// It does not say it.
    pub(super) fn would_move(&self, resource: &str, to: &str) -> Result<Option<bool>, String> {
        if self.node.is_none() || !has_quorum() {
            return Ok(None);
        }
        let simulate = ["--live-check", "--run", "--output-as=xml"];
        let plan = run("crm_simulate", &simulate).map_err(|failed| failed.why)?;
        match plan.contains("</pacemaker-result>") {
            true => Ok(Some(plans_move(&plan, resource, to))),
            false => Err("crm_simulate: not the end of a plan in XML".to_owned()),
        }
    }

    /// The other node of the move of which this node is `side`, if it is noted.
    pub(super) fn peer(&self, guest: &str, side: Side) -> Option<String> {
        let noted = attribute(&side.attribute(guest), self.node.as_ref()?);
        noted.unwrap_or_default()
    }

    /// Whether the other node has left the cluster since the move began, which this node knows for
    /// certain: this node is in the part of the cluster that decides.
    pub(super) fn peer_is_gone(&self, guest: &str, side: Side) -> bool {
        let Some(node) = &self.node else {
            return false;
        };
        let Some(peer) = self.peer(guest, side) else {
            return false;
        };
        if !has_quorum() {
            return false;
        }
        if self.has_left(&peer) {
            return true;
        }
        // It is there, perhaps again.
        let noted = attribute(&side.other().attribute(guest), &peer);
        noted.is_ok_and(|noted| noted.as_ref() != Some(node))
    }
}

/// The name of this node, for an action that Pacemaker has not called itself: `crm_resource
/// --force-start` does not say it.
pub(super) fn own_name() -> Option<String> {
    let name = output("crm_node", &["-n"])?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// The value of a node's attribute, if it has one.
///
/// # Errors
/// Pacemaker does not say it.
fn attribute(name: &str, node: &str) -> Result<Option<String>, String> {
    Ok(value(&query(&["-n", name, "-N", node])?, "value"))
}

/// What Pacemaker says of attributes: nothing if there is none.
fn query(arguments: &[&str]) -> Result<String, String> {
    match run("attrd_updater", &[&["-Q"], arguments].concat()) {
        Err(failed) if failed.code.is_some_and(|code| NO_SUCH.contains(&code)) => Ok(String::new()),
        Err(failed) => Err(format!("asking Pacemaker for attributes: {}", failed.why)),
        Ok(text) => Ok(text),
    }
}

/// Removes a node's attribute.
fn delete(name: &str, node: &str) {
    let _ = output("attrd_updater", &["-n", name, "-N", node, "-D"]);
}

/// The nodes of this node's part of the cluster.
fn members() -> Option<BTreeSet<String>> {
    let text = output("crm_node", &["-p"])?;
    Some(text.split_whitespace().map(str::to_owned).collect())
}

/// Whether a plan of `crm_simulate` has an element such as `<rsc_action action="migrate"
/// resource="web" source="n1" dest="n2"/>` for this resource, or an instance of it, and
/// destination.
fn plans_move(plan: &str, resource: &str, to: &str) -> bool {
    plan.split("<rsc_action").skip(1).any(|action| {
        let (action, _) = action.split_once('>').unwrap_or((action, ""));
        let says = |what| value(action, what).unwrap_or_default();
        says(" action") == "migrate"
            && says(" resource").split(':').next() == Some(resource)
            && says(" dest") == to
    })
}

/// What a line such as `name="x" host="n1" value="n2"` says of `what`.
fn value(text: &str, what: &str) -> Option<String> {
    let begin = format!("{what}=\"");
    let (_, rest) = text.split_once(&begin)?;
    let (value, _) = rest.split_once('"')?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// Whether this node's part of the cluster decides.
fn has_quorum() -> bool {
    output("crm_node", &["-q"]).is_some_and(|quorum| quorum.trim() == "1")
}

/// What a program of Pacemaker writes, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    run(program, arguments).ok()
}

/// A program of Pacemaker has failed.
#[derive(Debug)]
struct Failed {
    /// Its exit code, if it has run to its end.
    code: Option<i32>,
    /// For people.
    why: String,
}

/// Runs a program of Pacemaker. Returns what it writes.
fn run(program: &str, arguments: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| Failed {
        code: None,
        why: format!("{program}: {}", Report::new(&error)),
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(Failed {
            code: output.status.code(),
            why: format!(
                "{program}: {} ({})",
                text(&output.stderr).trim(),
                output.status
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_attributes_are_read() {
        let text = "name=\"hikkoshi-to-web\" host=\"n1\" value=\"n2\"\n";
        assert_eq!(value(text, "value").as_deref(), Some("n2"));
        assert_eq!(value(text, "host").as_deref(), Some("n1"));
        assert_eq!(value("name=\"x\" host=\"n1\" value=\"\"", "value"), None);
        assert_eq!(value("", "value"), None);
    }

    /// What 2.1.5 has written, without the nodes.
    const PLAN: &str = r#"<pacemaker-result api-version="2.25" request="crm_simulate -L --run">
  <actions>
    <rsc_action action="migrate" resource="web" source="n1" dest="n2"/>
    <rsc_action action="move" resource="db" source="n1" dest="n2"/>
    <rsc_action action="migrate" resource="app:0" source="n1" dest="n3"/>
  </actions>
  <status code="0" message="OK"/>
</pacemaker-result>
"#;

    #[test]
    fn a_planned_move_is_found() {
        assert!(plans_move(PLAN, "web", "n2"));
        assert!(plans_move(PLAN, "app", "n3"), "an instance of a clone");
        for (resource, to) in [("web", "n1"), ("web", "n3"), ("db", "n2"), ("we", "n2")] {
            assert!(!plans_move(PLAN, resource, to), "{resource} to {to}");
        }
        assert!(!plans_move("", "web", "n2"));
    }

    #[test]
    fn without_a_cluster_nobody_is_gone() {
        let cluster = Cluster::new(None);
        assert!(!cluster.peer_is_gone("web", Side::Source));
        assert!(!Cluster::new(Some(String::new())).peer_is_gone("web", Side::Destination));
    }
}
