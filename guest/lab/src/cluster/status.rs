//! What Pacemaker says of the cluster.

use super::Node;
use crate::{LabError, spawn};

/// What Pacemaker says on one node.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether this part of the cluster decides.
    pub with_quorum: bool,
    /// The nodes that it knows.
    pub nodes: Vec<NodeStatus>,
    /// The resources.
    pub resources: Vec<ResourceStatus>,
}

/// A node, as Pacemaker sees it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// It is a member, and may run resources.
    pub online: bool,
    /// It is to run no resources.
    pub standby: bool,
    /// It has to be fenced.
    pub unclean: bool,
    /// It is joining.
    pub pending: bool,
}

/// A resource, as Pacemaker sees it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// `Started`, `Stopped`, ….
    pub role: String,
    /// An action of it has failed.
    pub failed: bool,
    /// Pacemaker leaves it alone.
    pub blocked: bool,
    /// The action that is under way.
    pub pending: Option<String>,
    /// The nodes where it is active.
    pub nodes: Vec<String>,
}

impl ResourceStatus {
    /// Whether it is active on this node only, and nothing is wrong.
    pub fn runs_on(&self, node: &str) -> bool {
        self.role == "Started" && !self.failed && !self.blocked && self.nodes == [node]
    }
}

impl Status {
    /// Asks on that node.
    pub(super) fn of(node: &Node) -> Result<Self, LabError> {
        let text =
            spawn::run(
                node.command("timeout")
                    .args(["10", "crm_mon", "-r", "--output-as=xml"]),
            )?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut status = Self::default();
        let mut in_resource = false;
        for line in text.lines().map(str::trim) {
            let has = |name: &str| value(line, name).as_deref() == Some("true");
            let text = |name: &str| value(line, name).unwrap_or_default();
            if line.starts_with("<current_dc ") {
                status.with_quorum = has("with_quorum");
            } else if line.starts_with("<resource ") {
                in_resource = !line.ends_with("/>");
                status.resources.push(ResourceStatus {
                    name: text("id"),
                    role: text("role"),
                    failed: has("failed"),
                    blocked: has("blocked"),
                    pending: value(line, "pending"),
                    nodes: Vec::new(),
                });
            } else if line.starts_with("</resource>") {
                in_resource = false;
            } else if line.starts_with("<node ") && in_resource {
                if let Some(resource) = status.resources.last_mut() {
                    resource.nodes.push(text("name"));
                }
            } else if line.starts_with("<node ") && line.contains(" online=") {
                status.nodes.push(NodeStatus {
                    name: text("name"),
                    online: has("online"),
                    standby: has("standby"),
                    unclean: has("unclean"),
                    pending: has("pending"),
                });
            }
        }
        status
    }

    /// The names of the nodes that are online, in standby or not.
    pub fn online(&self) -> Vec<&str> {
        let online = self
            .nodes
            .iter()
            .filter(|node| node.online && !node.pending);
        online.map(|node| node.name.as_str()).collect()
    }

    /// The resource of that name; one that is not there is `Stopped`.
    pub fn resource(&self, name: &str) -> ResourceStatus {
        let found = self.resources.iter().find(|resource| resource.name == name);
        found.cloned().unwrap_or_default()
    }
}

/// The value of an attribute in a tag.
fn value(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"<pacemaker-result api-version="2.25" request="crm_mon --output-as=xml">
  <summary>
    <current_dc present="true" version="2.1.5-a3f44794f94" name="n1" id="1" with_quorum="true" mixed_version="false"/>
  </summary>
  <nodes>
    <node name="n1" id="1" online="true" standby="true" standby_onfail="false" maintenance="false" pending="false" unclean="false" is_dc="true" type="member"/>
    <node name="n2" id="2" online="false" standby="false" pending="false" unclean="true" type="member"/>
  </nodes>
  <resources>
    <resource id="web" resource_agent="ocf:hikkoshi:guest" role="Started" active="true" blocked="false" managed="true" failed="false" nodes_running_on="1" pending="Migrating">
      <node name="n1" id="1" cached="true"/>
    </resource>
    <resource id="db" resource_agent="ocf:hikkoshi:guest" role="Stopped" active="false" blocked="true" failed="true" nodes_running_on="0"/>
  </resources>
</pacemaker-result>
"#;

    #[test]
    fn nodes_and_resources_are_read() {
        let status = Status::parse(TEXT);
        assert!(status.with_quorum);
        assert_eq!(status.online(), ["n1"]);
        assert!(status.nodes[0].standby && status.nodes[1].unclean);
        assert!(status.resource("web").runs_on("n1"));
        assert_eq!(status.resource("web").pending.as_deref(), Some("Migrating"));
        let db = status.resource("db");
        assert!(db.failed && db.blocked && db.nodes.is_empty());
        assert_eq!(status.resource("x"), ResourceStatus::default());
    }
}
