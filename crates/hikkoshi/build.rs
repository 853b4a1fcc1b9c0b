//! What `hikkoshi --version` prints: the version, and the revision of git that the program is
//! built from. `modified` means that its sources had changes that were not committed. A source
//! archive has no git, and the program built from it no revision.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let top = Path::new(&package).join("../..");
    let sources = sources(&top);
    let version = env!("CARGO_PKG_VERSION");
    let version = match revision(&top, &sources) {
        Some(revision) => format!("{version} ({revision})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=HIKKOSHI_VERSION={version}");
    // A change of anything else, such as a test, rebuilds nothing.
    println!("cargo::rerun-if-changed=build.rs");
    for path in sources.iter().chain(&records_of_git(&top)) {
        println!("cargo::rerun-if-changed={}", top.join(path).display());
    }
}

/// What the program is made of, from the top of the workspace.
fn sources(top: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(top.join("crates"));
    let crates = crates.into_iter().flatten().flatten();
    let mut folders: Vec<_> = crates
        .map(|folder| Path::new("crates").join(folder.file_name()))
        .chain(["guest/lab".into(), "guest/checked-pages".into()])
        .collect();
    folders.sort();
    let files = folders
        .iter()
        .flat_map(|folder| [folder.join("Cargo.toml"), folder.join("src")]);
    let all = files.chain(["Cargo.lock".into(), "Cargo.toml".into()]);
    // Cargo would rebuild for a file that is not there.
    all.filter(|path| top.join(path).exists()).collect()
}

/// The commit and its date, as `rustc --version` has them.
fn revision(top: &Path, sources: &[PathBuf]) -> Option<String> {
    let commit = ["log", "-1", "--abbrev=10", "--format=%h %cs"];
    let mut revision = git(top, &commit, &[])?;
    if !git(top, &["status", "--porcelain", "--"], sources)?.is_empty() {
        revision += ", modified";
    }
    Some(revision)
}

/// The files that git changes with each commit and checkout.
fn records_of_git(top: &Path) -> Vec<PathBuf> {
    let branch = git(top, &["symbolic-ref", "--quiet", "HEAD"], &[]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    let names = names.into_iter().chain(branch);
    names
        .filter_map(|name| git(top, &["rev-parse", "--git-path", &name], &[]))
        .map(PathBuf::from)
        .filter(|path| top.join(path).exists())
        .collect()
}

/// The output of a git command, if this is a tree of git, and git succeeds.
fn git(top: &Path, arguments: &[&str], paths: &[PathBuf]) -> Option<String> {
    // Not that of another project into which a source archive was unpacked.
    if !top.join(".git").exists() {
        return None;
    }
    // It takes no lock that another git would wait for.
    let output = Command::new("git")
        .arg("-C")
        .arg(top)
        .arg("--no-optional-locks")
        .args(arguments)
        .args(paths)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
