//! A laboratory of real guests: starts QEMU with the test guest, reads its console, shapes links.
