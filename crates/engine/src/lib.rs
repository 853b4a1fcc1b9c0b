//! The migration engine: pre-copy, switchover, post-copy.
