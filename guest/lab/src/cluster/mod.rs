//! A cluster of three nodes with Corosync and Pacemaker, and its guests.
//!
//! A [`Cluster`] has nodes ([`Node`]) on a switch, in namespaces of their own
//! (`guest/lab/cluster/node.sh`), with Debian's Corosync and Pacemaker (`build/pacemaker`). A cable
//! can be cut ([`Cluster::cut`]), and a [`PowerSwitch`] turns nodes off and on: by Pacemaker, whose
//! fence agent `stonith:fence_lab` asks it, or by a test. [`Status`] is what Pacemaker says.
//!
//! A [`ClusterGuest`] is a guest that any node may start or receive: it collects all machines in
//! which it is, and knows when each of them ran.

mod guest;
mod network;
mod node;
mod power;
mod status;

pub use guest::{ClusterGuest, Machine, Ran};
pub use node::Node;
pub use power::PowerSwitch;
pub use status::{NodeStatus, ResourceStatus, Status};

use self::network::Network;
use crate::{Lab, LabError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const OCF_AGENT: &str = include_str!("../../../../packaging/ocf/guest");
const FENCE_AGENT: &str = include_str!("../../cluster/fence_lab");

/// How often what is waited for is looked at.
const POLL: Duration = Duration::from_millis(100);

/// Three nodes with Corosync and Pacemaker. On drop all of their processes are killed.
#[derive(Debug)]
pub struct Cluster {
    // Dropped first: it starts nodes.
    power: PowerSwitch,
    nodes: Arc<Vec<Node>>,
    network: Network,
    _lab: Lab,
}

impl Cluster {
    /// The names of the nodes.
    pub const NAMES: [&str; 3] = ["n1", "n2", "n3"];
    /// Their addresses.
    pub const ADDRESSES: [&str; 3] = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];

    /// Makes the nodes, without power: their files can be written ([`Node::etc`]). `program` is
    /// what is installed as hikkoshi.
    ///
    /// # Errors
    /// When something is not set up (`make pacemaker`), or the kernel does not allow it.
    pub fn prepare(lab: &Lab, program: &Path) -> Result<Self, LabError> {
        crate::artifacts::pacemaker()?;
        let write = |name: &str, text: &str| {
            let path = lab.folder().join(name);
            fs::write(&path, text).map_err(LabError::file("writing", path))
        };
        let local = Self::local(lab);
        fs::create_dir_all(&local).map_err(LabError::file("creating the folder", local))?;
        write("guest", OCF_AGENT)?;
        write("fence_lab", FENCE_AGENT)?;
        let network = Network::new(&Self::NAMES, &Self::ADDRESSES)?;
        let nodes = (0..Self::NAMES.len())
            .map(|number| {
                let (name, address) = (Self::NAMES[number], Self::ADDRESSES[number]);
                let node = Node::new(lab, name, address, network.namespace(number))?;
                node.install(program)?;
                node.write_configuration(&corosync_configuration(), FIRST_CIB)?;
                Ok(node)
            })
            .collect::<Result<Vec<_>, LabError>>()?;
        let nodes = Arc::new(nodes);
        Ok(Self {
            power: PowerSwitch::new(&lab.folder().join("power"), &nodes)?,
            nodes,
            network,
            _lab: lab.clone(),
        })
    }

    /// A folder that is another one on each node, and outlives its power.
    pub fn local(lab: &Lab) -> PathBuf {
        lab.folder().join("local")
    }

    /// Turns all nodes on, and waits until they are a cluster.
    ///
    /// # Errors
    /// When a node does not start, or the cluster has no quorum in time.
    pub fn start(&self) -> Result<(), LabError> {
        std::thread::scope(|scope| {
            let starting: Vec<_> = self
                .nodes
                .iter()
                .map(|node| scope.spawn(|| node.power_on()))
                .collect();
            starting.into_iter().try_for_each(|node| {
                node.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        self.wait(
            "all nodes to be online",
            Duration::from_secs(120),
            |status| status.with_quorum && status.online().len() == self.nodes.len(),
        )
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of that name.
    ///
    /// # Panics
    /// When there is none.
    pub fn node(&self, name: &str) -> &Node {
        let found = self.nodes.iter().find(|node| node.name() == name);
        found.unwrap_or_else(|| panic!("there is no node {name}"))
    }

    /// The switch of the nodes' power.
    pub fn power(&self) -> &PowerSwitch {
        &self.power
    }

    /// Cuts the cable of a node: it reaches no other node.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn cut(&self, node: &str) -> Result<(), LabError> {
        self.network.cut(node)
    }

    /// Plugs the cable of a node in again.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn plug(&self, node: &str) -> Result<(), LabError> {
        self.network.plug(node)
    }

    /// What Pacemaker says on a node that is on, of those the first one whose partition has quorum.
    ///
    /// # Errors
    /// When no node answers.
    pub fn status(&self) -> Result<Status, LabError> {
        let mut last = Err(LabError::Command {
            command: "crm_mon".to_owned(),
            status: "no node is on".to_owned(),
            stderr: String::new(),
        });
        for node in self.nodes.iter().filter(|node| node.is_on()) {
            match Status::of(node) {
                Ok(status) if status.with_quorum => return Ok(status),
                Ok(status) => last = Ok(status),
                Err(error) if last.is_err() => last = Err(error),
                Err(_) => {}
            }
        }
        last
    }

    /// A node on which Pacemaker has quorum, to ask or to order something.
    ///
    /// # Errors
    /// When there is none.
    pub fn any(&self) -> Result<&Node, LabError> {
        let mut on = self.nodes.iter().filter(|node| node.is_on());
        let found = on.find(|node| Status::of(node).is_ok_and(|status| status.with_quorum));
        found.ok_or_else(|| LabError::Command {
            command: "crm_mon".to_owned(),
            status: "no node has quorum".to_owned(),
            stderr: String::new(),
        })
    }

    /// Waits until Pacemaker says what is `wanted`.
    ///
    /// # Errors
    /// When it has not within `timeout`, with what the nodes say.
    pub fn wait(
        &self,
        what: &str,
        timeout: Duration,
        mut wanted: impl FnMut(&Status) -> bool,
    ) -> Result<(), LabError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Ok(status) = self.status()
                && wanted(&status)
            {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: what.to_owned(),
                    after: timeout,
                    seen: self.report(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Loads a configuration, in the words of `crm configure`.
    ///
    /// # Errors
    /// When crmsh refuses it, with its words.
    pub fn configure(&self, text: &str) -> Result<(), LabError> {
        let node = self.any()?;
        let path = node.etc().join("configuration");
        fs::write(&path, text).map_err(LabError::file("writing", &path))?;
        node.shell("crm --force configure load update /etc/hikkoshi/configuration")
            .map(drop)
    }

    /// What the nodes and their logs say, for messages.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for node in self.nodes.iter() {
            let said = match node.is_on() {
                true => node
                    .shell("timeout 10 crm_mon -1 -A -r -f 2>&1 || true; timeout 10 stonith_admin --history '*' 2>&1 || true")
                    .unwrap_or_else(|error| error.to_string()),
                false => "off".to_owned(),
            };
            text.push_str(&format!("--- {}\n{said}\n{}\n", node.name(), node.log()));
        }
        text.push_str(&format!("fenced: {:?}\n", self.power.fenced()));
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.power.end();
        for node in self.nodes.iter() {
            node.power_off();
        }
    }
}

/// Nodes are gone after a second of silence, as far as the machine is not busy.
fn corosync_configuration() -> String {
    let mut text = String::from(
        "totem {\n  version: 2\n  cluster_name: lab\n  transport: knet\n  token: 2000\n  \
         crypto_cipher: none\n  crypto_hash: none\n}\n\
         quorum {\n  provider: corosync_votequorum\n}\n\
         logging {\n  to_stderr: yes\n  to_syslog: no\n  timestamp: on\n}\nnodelist {\n",
    );
    for (number, name) in Cluster::NAMES.iter().enumerate() {
        let (id, address) = (number + 1, Cluster::ADDRESSES[number]);
        text.push_str(&format!(
            "  node {{\n    name: {name}\n    nodeid: {id}\n    ring0_addr: {address}\n  }}\n"
        ));
    }
    text.push_str("}\n");
    text
}

/// The first configuration: a cluster does not wait long for an older controller. Pacemaker takes
/// it only if it is of no later version of its format than its own.
const FIRST_CIB: &str = r#"<cib crm_feature_set="3.16.1" validate-with="pacemaker-3.7"
     admin_epoch="0" epoch="1" num_updates="0">
  <configuration>
    <crm_config>
      <cluster_property_set id="cib-bootstrap-options">
        <nvpair id="cib-bootstrap-options-dc-deadtime" name="dc-deadtime" value="1s"/>
        <nvpair id="cib-bootstrap-options-stonith-enabled" name="stonith-enabled" value="false"/>
      </cluster_property_set>
    </crm_config>
    <nodes/>
    <resources/>
    <constraints/>
  </configuration>
  <status/>
</cib>
"#;
