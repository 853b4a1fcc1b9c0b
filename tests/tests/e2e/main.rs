//! Real guests are moved between real QEMUs, and check their memory.
//!
//! All of these tests are one program: beside a long one, others run until none is left.

mod async_faults;
mod auxiliary_memory;
mod cancel;
mod check;
mod cli_output;
mod completion;
mod cpu_compatibility;
mod debian;
mod destination_line;
mod direct_io;
mod dirty_rate;
mod disk_file_memory;
mod fault_drills;
mod guest_clocks;
mod guest_network;
mod journals;
mod kvm;
mod kvm_clocks;
mod libvirt;
mod libvirt_domains;
mod libvirt_laboratory;
mod libvirt_recovery;
mod libvirt_two_daemons;
mod limits;
mod links_cut;
mod log_ranges;
mod matrix;
mod memory_layouts;
mod modes;
mod monitor_reads;
mod nano_server;
mod network_frames;
mod out_of_space;
mod paused_guests;
mod private_memory_recovery;
mod processes_killed;
mod qemu_versions;
mod recovery;
mod refusals;
mod security;
mod shutdown;
mod swapped_memory;
mod transparent_huge_pages;
mod urgent_pages;
