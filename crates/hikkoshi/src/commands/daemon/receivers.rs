//! The folder of the receivers: for each guest the unix socket at which its `receive` listens, and
//! a link to it by the fingerprint of its key.
//!
//! All that a daemon needs to pass on a connection is in this folder. So a daemon that is restarted
//! finds the receivers of the one before, and a receiver that is resumed listens where it did.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use hikkoshi_link::tls::Route;
use hikkoshi_linux::{Others, check_rights};

/// The end of the name of a socket.
const SOCKET: &str = "sock";

/// The end of the name of a result.
const RESULT: &str = "json";

/// The beginning of the name of a link.
const KEY: &str = "key-";

/// The folder.
#[derive(Debug, Clone)]
pub(super) struct Receivers(PathBuf);

impl Receivers {
    /// Makes the folder in the run folder, if necessary. Only this user can enter it.
    pub(super) fn open(run: &Path) -> io::Result<Self> {
        let folder = run.join("receivers");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        check_rights(&fs::metadata(&folder)?, Others::HaveNoRights).map_err(|rights| {
            io::Error::other(format!("the folder {}: {rights}", folder.display()))
        })?;
        // Receivers note the paths of their sockets. A later daemon may be given another path to
        // the same folder.
        Ok(Self(folder.canonicalize()?))
    }

    /// The socket of this guest's receiver.
    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{SOCKET}"))
    }

    /// The file for the result of this guest's receiver.
    pub(super) fn result(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{RESULT}"))
    }

    /// Where connections with this route go.
    pub(super) fn by_route(&self, route: Route) -> PathBuf {
        self.0.join(format!("{KEY}{route}"))
    }

    /// Sends connections with this route to the receiver of the guest.
    pub(super) fn add_route(&self, route: Route, name: &str) -> io::Result<()> {
        symlink(format!("{name}.{SOCKET}"), self.by_route(route))
    }

    /// The guest whose receiver listens at this path, if it is in the folder.
    pub(super) fn guest_at(&self, socket: &Path) -> Option<String> {
        let inside = socket.parent().is_some_and(|folder| {
            folder == self.0 || folder.canonicalize().is_ok_and(|real| real == self.0)
        });
        let is_socket = socket.extension().is_some_and(|end| end == SOCKET);
        (inside && is_socket).then(|| Some(socket.file_stem()?.to_str()?.to_owned()))?
    }

    /// The guests that have a receiver, or had one that was killed.
    pub(super) fn guests(&self) -> io::Result<Vec<String>> {
        let mut guests = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            guests.extend(self.guest_at(&entry?.path()));
        }
        Ok(guests)
    }

    /// The links to the guest's receiver.
    pub(super) fn routes_of(&self, name: &str) -> io::Result<Vec<PathBuf>> {
        let all = self.routes()?.into_iter();
        let own = all.filter(|(_, guest)| guest == name);
        Ok(own.map(|(path, _)| path).collect())
    }

    /// Removes the result of the guest's last receiver.
    pub(super) fn remove_result(&self, name: &str) {
        remove(&self.result(name));
    }

    /// The links to receivers, with the names of their guests.
    pub(super) fn routes(&self) -> io::Result<Vec<(PathBuf, String)>> {
        let mut routes = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            // What is not a link is not a route.
            if let Ok(target) = fs::read_link(&path) {
                let guest = self.guest_at(&self.0.join(target));
                routes.extend(guest.map(|guest| (path, guest)));
            }
        }
        Ok(routes)
    }

    /// Removes the links to sockets that are not there, except those that `is_kept` says, with the
    /// guests to which they lead: their receivers may listen there again.
    pub(super) fn remove_stale_routes(
        &self,
        is_kept: impl Fn(&Path, &str) -> bool,
    ) -> io::Result<()> {
        for (path, guest) in self.routes()? {
            if !self.socket(&guest).exists() && !is_kept(&path, &guest) {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Removes the socket of a receiver that does not run, and the links to it.
    pub(super) fn remove(&self, name: &str) {
        remove(&self.socket(name));
        match self.routes_of(name) {
            Ok(own) => own.iter().for_each(|path| remove(path)),
            Err(error) => {
                tracing::warn!(%error, "removing the route to a receiver that has ended");
            }
        }
    }

    /// Removes the oldest results, if there are more than `kept`.
    pub(super) fn remove_old_results(&self, kept: usize) -> io::Result<()> {
        let mut results = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|end| end == RESULT) {
                results.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        results.sort_unstable();
        let old = results.len().saturating_sub(kept);
        results[..old].iter().for_each(|(_, path)| remove(path));
        Ok(())
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "removing a file of a receiver");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_link::tls::TlsServer;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_route_leads_to_its_receiver_until_that_ends() {
        let run = tempfile::tempdir().unwrap();
        let receivers = Receivers::open(run.path()).unwrap();
        let server = TlsServer::inviting().unwrap();
        let route = server.invitation("h:1".parse().unwrap()).unwrap().route();
        let listener = UnixListener::bind(receivers.socket("web.1")).unwrap();
        receivers.add_route(route, "web.1").unwrap();
        assert_eq!(receivers.guests().unwrap(), ["web.1"]);
        assert!(receivers.by_route(route).exists());
        // A daemon that is started again finds it.
        let again = Receivers::open(run.path()).unwrap();
        again.remove_stale_routes(|_, _| false).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(again.by_route(route)).is_ok());
        drop(listener);
        let is_there = || fs::symlink_metadata(receivers.by_route(route)).is_ok();
        fs::remove_file(receivers.socket("web.1")).unwrap();
        receivers
            .remove_stale_routes(|_, name| name == "web.1")
            .unwrap();
        receivers.remove("web.2");
        assert!(is_there());
        receivers.remove_stale_routes(|_, _| false).unwrap();
        assert!(!is_there());
        receivers.add_route(route, "web.1").unwrap();
        receivers.remove("web.1");
        assert!(!is_there());
        assert_eq!(receivers.guests().unwrap(), [""; 0]);
    }

    #[test]
    fn the_newest_results_are_kept() {
        let run = tempfile::tempdir().unwrap();
        let receivers = Receivers::open(run.path()).unwrap();
        for (age, name) in ["new", "old", "older"].into_iter().enumerate() {
            let file = fs::File::create(receivers.result(name)).unwrap();
            let age = std::time::Duration::from_secs(age as u64);
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
        }
        receivers.remove_old_results(1).unwrap();
        let left = ["new", "old", "older"].map(|name| receivers.result(name).exists());
        assert_eq!(left, [true, false, false]);
    }

    #[test]
    fn a_receiver_is_found_by_another_path_to_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let [by_link, by_real] = [&link, &real].map(|run| Receivers::open(run).unwrap());
        // As in a journal of a receiver that an earlier daemon has started.
        let socket = link.join("receivers/web.sock");
        for receivers in [&by_link, &by_real] {
            assert_eq!(receivers.guest_at(&socket).as_deref(), Some("web"));
            assert_eq!(
                receivers.guest_at(&by_link.socket("web")).as_deref(),
                Some("web")
            );
        }
        let elsewhere = folder.path().join("web.sock");
        assert_eq!(by_real.guest_at(&elsewhere), None);
    }

    #[test]
    fn other_paths_are_not_receivers() {
        let run = tempfile::tempdir().unwrap();
        let receivers = Receivers::open(run.path()).unwrap();
        for path in ["/elsewhere/a.sock", "receivers/a.json", "a.sock"] {
            assert_eq!(receivers.guest_at(&run.path().join(path)), None, "{path}");
        }
        assert_eq!(receivers.guest_at(&receivers.socket("a")).unwrap(), "a");
    }
}
