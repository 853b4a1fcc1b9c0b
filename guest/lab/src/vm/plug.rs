//! Hot-plugging at a machine that runs.

use super::Vm;
use crate::LabError;
use serde_json::json;

impl Vm {
    /// Plugs the DIMM of [`Ram::hot_dimm`](crate::Ram::hot_dimm), if there is one that is not
    /// plugged.
    ///
    /// # Errors
    /// When QEMU refuses it.
    pub fn plug_dimm(&self) -> Result<(), LabError> {
        let Some(object) = &self.ram.hot_dimm else {
            return Ok(());
        };
        self.qmp.execute("object-add", object.clone())?;
        let device = json!({ "driver": "pc-dimm", "id": "dimm-device", "memdev": "dimm" });
        self.qmp.execute("device_add", device).map(drop)
    }

    /// Plugs all processors that the machine has room for.
    ///
    /// # Errors
    /// When QEMU refuses one.
    pub fn plug_processors(&self) -> Result<(), LabError> {
        // Some machines do not even have the command.
        if self.hot_cpus == 0 {
            return Ok(());
        }
        let slots = self.qmp.execute("query-hotpluggable-cpus", json!({}))?;
        let free = slots.as_array().into_iter().flatten();
        // A slot in use names its processor. The highest number is listed first.
        for slot in free.filter(|slot| slot.get("qom-path").is_none()).rev() {
            let mut device = slot["props"].clone();
            device["driver"] = slot["type"].clone();
            device["id"] = json!(format!("cpu{}", slot["props"]["core-id"]));
            self.qmp.execute("device_add", device)?;
        }
        Ok(())
    }
}
