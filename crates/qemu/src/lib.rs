//! The QEMU adapter: QMP, attaching to the process, its RAM blocks, its device state.
