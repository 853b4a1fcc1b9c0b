//! The agent's metadata (`meta-data`), in OCF's XML.

use std::fmt::Write as _;

use super::parameters::PARAMETERS;

/// The actions, with the timeout in seconds that is advised for each, and more attributes.
pub(super) const ACTIONS: &[(&str, u32, &str)] = &[
    ("start", 90, ""),
    ("stop", 600, ""),
    ("monitor", 30, " interval=\"10s\" depth=\"0\""),
    ("monitor", 60, " interval=\"60s\" depth=\"10\""),
    ("migrate_to", 600, ""),
    ("migrate_from", 90, ""),
    ("validate-all", 30, ""),
    ("meta-data", 5, ""),
];

/// The whole document.
pub(super) fn document() -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\"?>\n\
         <!DOCTYPE resource-agent SYSTEM \"ra-api-1.dtd\">\n\
         <resource-agent name=\"guest\" version=\"1.0\">\n\
         <version>1.1</version>\n\
         <longdesc lang=\"en\">\n\
         A QEMU guest, from a template or a libvirt domain, that hikkoshi moves between nodes. A move \
         that is handed over but not finished is neither stopped nor started elsewhere, but \
         finished. docs/pacemaker.md of hikkoshi says how to configure it.\n\
         </longdesc>\n\
         <shortdesc lang=\"en\">A guest that hikkoshi moves between nodes</shortdesc>\n\
         <parameters>\n",
    );
    for parameter in PARAMETERS {
        let unique = u8::from(parameter.name == "name");
        let default = match parameter.default {
            "" => String::new(),
            default => format!(" default=\"{}\"", escaped(default)),
        };
        let _ = write!(
            text,
            "<parameter name=\"{}\" unique=\"{unique}\" required=\"0\">\n\
             <longdesc lang=\"en\">{}</longdesc>\n\
             <shortdesc lang=\"en\">{}</shortdesc>\n\
             <content type=\"{}\"{default}/>\n\
             </parameter>\n",
            parameter.name,
            escaped(parameter.long),
            escaped(parameter.short),
            parameter.kind,
        );
    }
    text.push_str("</parameters>\n<actions>\n");
    for (name, timeout, more) in ACTIONS {
        let _ = writeln!(
            text,
            "<action name=\"{name}\" timeout=\"{timeout}s\"{more}/>"
        );
    }
    text.push_str("</actions>\n</resource-agent>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parameters_and_actions_are_there() {
        let document = document();
        for parameter in PARAMETERS {
            assert!(document.contains(&format!("<parameter name=\"{}\"", parameter.name)));
        }
        for action in ["migrate_to", "migrate_from", "validate-all", "meta-data"] {
            assert!(document.contains(&format!("<action name=\"{action}\"")));
        }
        assert!(!document.contains("\"\"\""));
    }
}
