//! The switch of a cluster, and the cables of its nodes.

use crate::{LabError, Namespace};

const BRIDGE: &str = "br0";
const CARD: &str = "eth0";

/// Nodes on a switch.
#[derive(Debug)]
pub(super) struct Network {
    switch: Namespace,
    nodes: Vec<Namespace>,
}

impl Network {
    /// Joins a namespace of each node to a switch.
    pub(super) fn new(
        names: &[&'static str],
        addresses: &[&'static str],
    ) -> Result<Self, LabError> {
        let switch = Namespace::new("switch")?;
        switch.bridge(BRIDGE, "10.1.0.254/24")?;
        let mut nodes = Vec::new();
        for (name, address) in names.iter().zip(addresses) {
            let node = Namespace::new(name)?;
            node.join(CARD, &switch, name)?;
            switch.plug(name, BRIDGE)?;
            node.ip(&["address", "add", &format!("{address}/24"), "dev", CARD])?;
            nodes.push(node);
        }
        Ok(Self { switch, nodes })
    }

    /// The namespace of the node with this number.
    pub(super) fn namespace(&self, number: usize) -> &Namespace {
        &self.nodes[number]
    }

    pub(super) fn cut(&self, node: &str) -> Result<(), LabError> {
        self.switch.ip(&["link", "set", node, "down"]).map(drop)
    }

    pub(super) fn plug(&self, node: &str) -> Result<(), LabError> {
        self.switch.ip(&["link", "set", node, "up"]).map(drop)
    }
}
