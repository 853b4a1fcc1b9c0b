//! A spin lock for slow paths: the free list of chain cells, and RCU synchronization.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

use crate::atomic::{AtomicU8, Ordering, cpu_relax};

/// A spin lock. While it is held, no code blocks, faults or calls the hypervisor, unless the lock's
/// owner documents it.
pub(crate) struct SpinLock<T> {
    held: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, and there is one guard at a time.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            held: AtomicU8::new(0),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        while self
            .held
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            cpu_relax();
        }
        Guard { lock: self }
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

/// Exclusive access to the value; released on drop.
pub(crate) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[allow(unsafe_code)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, and it lives as long as the reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and it is borrowed mutably as long as the reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.held.store(0, Ordering::Release);
    }
}
