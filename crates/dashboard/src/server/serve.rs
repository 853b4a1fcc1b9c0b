//! Listens, and serves connections.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hikkoshi_linux::CancelFlag;
use hikkoshi_status::StatusFolder;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::allowed_hosts::AllowedHost;
use super::limits::Limits;
use super::routes::Routes;
use super::write_timeout::WriteTimeout;
use crate::follow::{Migrations, Watch};

/// The longest head of a request, in bytes; also how much of a response is collected for one write.
const BUFFER: usize = 16 << 10;

/// The most headers of a request.
const HEADERS: usize = 64;

/// How often the flag is read that ends the server.
const CANCEL: Duration = Duration::from_millis(100);

/// How the server runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address. Port 0: a free one.
    pub listen: SocketAddr,
    /// Whether the address may be reached from other hosts.
    pub allow_remote: bool,
    /// Further names that `Host` may have.
    pub allowed_hosts: Vec<AllowedHost>,
    /// What clients can use.
    pub limits: Limits,
}

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Other hosts could reach it.
    #[error(
        "listening on {address}: other hosts can reach this address, and the dashboard does not \
         encrypt and asks for no password (listen on 127.0.0.1, and use a tunnel (ssh -L \
         {port}:127.0.0.1:{port} HOST) or a reverse proxy; with --allow-remote it listens there)",
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
        address: SocketAddr,
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
    fn of(part: &'static str) -> impl Fn(io::Error) -> Self {
        move |cause| Self { part, cause }
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Server {
    /// Listens. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// If other hosts can reach the address and that is not allowed, or it cannot be used.
    pub fn bind(options: Options) -> Result<Self, BindError> {
        let address = options.listen;
        if !address.ip().to_canonical().is_loopback() && !options.allow_remote {
            return Err(BindError::Remote { address });
        }
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|cause| BindError::Listen { address, cause })?;
        Ok(Self {
            listener,
            address,
            options,
        })
    }

    /// The address of the page: `http://127.0.0.1:8080/`.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Serves what is in the status folder, until `cancel` is set.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(self, folder: StatusFolder, cancel: &CancelFlag) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(RunError::of("server"))?;
        let migrations = Migrations::default();
        let watch = Watch::start(folder, migrations.clone());
        let _watch = watch.map_err(RunError::of("thread that watches the status folder"))?;
        let routes = Arc::new(Routes {
            migrations,
            allowed_hosts: self.options.allowed_hosts,
            limits: self.options.limits,
        });
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener);
            let listener = listener.map_err(RunError::of("server"))?;
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

async fn accept(listener: tokio::net::TcpListener, routes: Arc<Routes>) {
    let slots = Arc::new(Semaphore::new(routes.limits.connections));
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, or the client has gone already.
                tracing::debug!(%error, "accepting a connection");
                tokio::time::sleep(CANCEL).await;
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else {
            continue;
        };
        let connection = serve(stream, local.ip().to_canonical(), Arc::clone(&routes));
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
    stream: TcpStream,
    local: IpAddr,
    routes: Arc<Routes>,
) -> impl Future<Output = hyper::Result<()>> {
    let _ = stream.set_nodelay(true);
    let limits = routes.limits;
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.write));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(HEADERS)
        .max_buf_size(BUFFER);
    http.serve_connection(
        stream,
        service_fn(move |request| ready(Ok::<_, Infallible>(routes.answer(&request, local)))),
    )
}
