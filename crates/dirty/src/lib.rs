//! The DirtyLog trait and its trackers.
