//! Listens, and serves connections.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hikkoshi_linux::CancelFlag;
use hikkoshi_status::StatusFolder;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::allowed_hosts::AllowedHost;
use super::large::AT_ONCE;
use super::limits::Limits;
use super::listen::{AsyncListener, Listen, Listener, Stream};
use super::routes::Routes;
use super::write_timeout::WriteTimeout;
use crate::follow::{self, FolderWatch, Migrations};

/// The longest head of a request, in bytes; also how much of a response is collected for one write.
const BUFFER: usize = 16 << 10;

/// The most headers of a request.
const HEADERS: usize = 64;

/// How often the flag is read that ends the server.
const CANCEL: Duration = Duration::from_millis(100);

/// How the server runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address.
    pub listen: Listen,
    /// Whether the address may be reached from other hosts.
    pub allow_remote: bool,
    /// Further names that `Host` may have.
    pub allowed_hosts: Vec<AllowedHost>,
    /// What clients can use.
    pub limits: Limits,
    /// Reasons of ends (`docs/json.md`) that are counted from the beginning.
    pub reasons: Vec<&'static str>,
}

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Other hosts could reach it.
    #[error(
        "listening on {address}: other hosts can reach this address, and the dashboard does not \
         encrypt and asks for no password (listen on unix:PATH or 127.0.0.1, and use a tunnel (ssh \
         -L {port}:127.0.0.1:{port} HOST) or a reverse proxy; with --allow-remote it listens there)",
        port = address.port()
    )]
    Remote {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be used.
    #[error("listening on {address} (choose another one with --listen; port 0 is a free port)")]
    Listen {
        /// The address.
        address: Listen,
        /// The reason.
        #[source]
        cause: io::Error,
    },
}

/// The server cannot run.
#[derive(Debug, thiserror::Error)]
#[error("starting the dashboard's {part}")]
pub struct RunError {
    part: &'static str,
    #[source]
    cause: io::Error,
}

impl RunError {
    fn starting(part: &'static str) -> impl Fn(io::Error) -> Self {
        move |cause| Self { part, cause }
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: Listen,
    options: Options,
}

impl Server {
    /// Listens. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// If other hosts can reach the address and that is not allowed, or it cannot be used.
    pub fn bind(options: Options) -> Result<Self, BindError> {
        if let Listen::Tcp(address) = options.listen
            && !address.ip().to_canonical().is_loopback()
            && !options.allow_remote
        {
            return Err(BindError::Remote { address });
        }
        let bound = Listener::bind(&options.listen);
        let (listener, address) = bound.map_err(|cause| BindError::Listen {
            address: options.listen.clone(),
            cause,
        })?;
        Ok(Self {
            listener,
            address,
            options,
        })
    }

    /// The address of the page: `http://127.0.0.1:8080/`, or `unix:/run/page.sock`.
    pub fn url(&self) -> String {
        match &self.address {
            Listen::Tcp(address) => format!("http://{address}/"),
            unix @ Listen::Unix(_) => unix.to_string(),
        }
    }

    /// Serves what is in the status folder, until `cancel` is set. `hosts`: what `hikkoshi status
    /// --host --watch --json` prints about other hosts, which are shown, too.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(
        self,
        folder: StatusFolder,
        hosts: Option<Box<dyn Read + Send>>,
        cancel: &CancelFlag,
    ) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(AT_ONCE)
            .thread_name("dash-large")
            .build()
            .map_err(RunError::starting("server"))?;
        let migrations = Migrations::new(&self.options.reasons);
        let watch = FolderWatch::start(folder, migrations.clone());
        let _watch = watch.map_err(RunError::starting("thread that watches the status folder"))?;
        if let Some(hosts) = hosts {
            let followed = follow::hosts::follow(hosts, migrations.clone());
            followed.map_err(RunError::starting("thread that reads of other hosts"))?;
        }
        let routes = Arc::new(Routes {
            migrations,
            allowed_hosts: self.options.allowed_hosts,
            limits: self.options.limits,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        });
        runtime.block_on(async {
            let listener = self.listener.into_async();
            let listener = listener.map_err(RunError::starting("server"))?;
            // Ends with the runtime, as all connections do.
            tokio::spawn(accept(listener, routes));
            cancelled(cancel).await;
            Ok(())
        })
    }
}

async fn cancelled(cancel: &CancelFlag) {
    while !cancel.is_cancelled() {
        tokio::time::sleep(CANCEL).await;
    }
}

async fn accept(listener: AsyncListener, routes: Arc<Routes>) {
    let slots = Arc::new(Semaphore::new(routes.limits.connections));
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let (stream, local) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or the client has gone already.
                tracing::debug!(%error, "accepting a connection");
                tokio::time::sleep(CANCEL).await;
                continue;
            }
        };
        let connection = serve(stream, local, Arc::clone(&routes));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
            drop(slot);
        });
    }
}

/// Serves one connection.
fn serve(
    stream: Box<dyn Stream>,
    local: Option<IpAddr>,
    routes: Arc<Routes>,
) -> impl Future<Output = hyper::Result<()>> {
    let limits = routes.limits;
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.write));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(HEADERS)
        .max_buf_size(BUFFER);
    http.serve_connection(
        stream,
        service_fn(move |request| {
            let answer = routes.answer(&request, local);
            async move { Ok::<_, Infallible>(answer.await) }
        }),
    )
}
