//! userfaultfd: obtaining one inside another process, reading faults, installing pages.
