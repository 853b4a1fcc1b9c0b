//! Instruments: what the guest, its clients, the network and the host show during a migration.

mod accesses;
mod disk_latency;
mod disk_reads;
mod gaps;
mod guest_account;
mod host_cpu;
mod http_clients;
mod kvm_trace;
mod request_client;
mod time;
mod traffic;
mod vcpu_time;

pub(crate) use accesses::{Accesses, access_rates, accesses_between};
pub(crate) use disk_latency::{begin_disk_latency, disk_p99_ms};
pub(crate) use disk_reads::{DiskOutcome, drains, read_rate};
pub(crate) use gaps::{Gaps, MigrationTimeline};
pub(crate) use guest_account::{GuestAccount, GuestInterval};
pub(crate) use host_cpu::{CpuMeter, quietest, wait_until_idle};
pub(crate) use http_clients::{Demand, INTERVAL, Responses, Span, run_clients};
pub(crate) use kvm_trace::{KvmEvent, KvmEventKind, KvmTrace};
pub(crate) use request_client::{Requests, run_requests};
pub(crate) use time::seconds_between;
pub(crate) use traffic::{Sent, record_traffic, throughput, traffic_rates};
pub(crate) use vcpu_time::{vcpu_kernel_ticks, vcpu_time_ns};
