//! Measures hikkoshi beside QEMU's own migration.
