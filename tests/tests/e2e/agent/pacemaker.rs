//! Scripts in place of Pacemaker's programs.

use hikkoshi_tests::write_script;
use std::fs;
use std::path::{Path, PathBuf};

/// What the programs of Pacemaker answer that the agent uses.
pub(super) struct Pacemaker {
    programs: PathBuf,
    /// The nodes that are members.
    members: PathBuf,
    /// A file for each node's attribute: `NODE.NAME`.
    attributes: PathBuf,
    /// What `crm_resource` was called with.
    refreshed: PathBuf,
}

impl Pacemaker {
    /// A cluster of these nodes, with its files in `folder`.
    pub(super) fn new(folder: &Path, members: &[&str]) -> Self {
        let file = |name| folder.join(name);
        let pacemaker = Self {
            programs: file("bin"),
            members: file("members"),
            attributes: file("attributes"),
            refreshed: file("refreshed"),
        };
        fs::create_dir(&pacemaker.programs).unwrap();
        fs::create_dir(&pacemaker.attributes).unwrap();
        fs::write(&pacemaker.members, members.join(" ")).unwrap();
        pacemaker.write_programs();
        pacemaker
    }

    /// The variable `PATH` with the scripts first.
    pub(super) fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap();
        format!("{}:{path}", self.programs.display())
    }

    /// How `crm_resource` was called so far, a line each.
    pub(super) fn refreshed(&self) -> String {
        fs::read_to_string(&self.refreshed).unwrap_or_default()
    }

    /// The node has left the cluster, which forgets its attributes.
    pub(super) fn remove(&self, node: &str) {
        let members = fs::read_to_string(&self.members).unwrap();
        let members = members.split(' ').filter(|other| *other != node);
        fs::write(&self.members, members.collect::<Vec<_>>().join(" ")).unwrap();
        for entry in fs::read_dir(&self.attributes).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name.to_str().unwrap().split('.').next() == Some(node) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }

    /// The programs of Pacemaker that the agent uses.
    fn write_programs(&self) {
        let programs = &self.programs;
        let members = self.members.display();
        let node =
            format!("#!/bin/sh\ncase $1 in -q) echo 1;; -p) cat {members};; *) exit 1;; esac");
        write_script(&programs.join("crm_node"), &node);
        let note = format!("#!/bin/sh\necho \"$@\" >>{}", self.refreshed.display());
        write_script(&programs.join("crm_resource"), &note);
        let attributes = self.attributes.display();
        let updater = format!(
            "#!/bin/sh\nvalue= query= delete=\n\
             while [ $# -gt 0 ]; do\n\
               case $1 in\n\
                 -n) name=$2; shift;; -N) node=$2; shift;; -U) value=$2; shift;;\n\
                 -Q) query=1;; -D) delete=1;; -A) node='*';;\n\
               esac\n\
               shift\n\
             done\n\
             file={attributes}/$node.$name\n\
             if [ \"$delete\" ]; then rm -f \"$file\"\n\
             elif [ \"$query\" ]; then\n\
               found=\n\
               for file in {attributes}/$node.$name; do\n\
                 [ -e \"$file\" ] || continue\n\
                 found=1; host=${{file##*/}}; host=${{host%%.*}}\n\
                 echo \"name=\\\"$name\\\" host=\\\"$host\\\" value=\\\"$(cat \"$file\")\\\"\"\n\
               done\n\
               [ \"$found\" ] || exit 78\n\
             else echo \"$value\" >\"$file\"; fi"
        );
        write_script(&programs.join("attrd_updater"), &updater);
    }
}
