//! The events of a domain's monitor, through libvirt's library.
#![allow(unsafe_code)] // calls libvirt's C library

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_void};
use std::ptr;
use std::sync::mpsc::SyncSender;

use virt::domain::Domain;
use virt::sys;

use super::qmp;
use crate::connection::Connection;

/// Passes on a domain's events until it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    connection: Connection,
    callback: c_int,
}

impl Subscription {
    /// Sends each event as a line to `lines`. If these are full, because the client does not read,
    /// the event is dropped.
    ///
    /// # Errors
    ///
    /// libvirt's message.
    pub(crate) fn new(
        connection: &Connection,
        domain: &Domain,
        lines: SyncSender<String>,
    ) -> Result<Self, String> {
        let lines = Box::into_raw(Box::new(lines));
        // SAFETY: both objects are valid as long as their wrappers, and libvirt keeps references of
        // its own. No event name means all events. `lines` is valid until `free_lines` is called,
        // which libvirt does once, after the last call of `send_event`.
        let callback = unsafe {
            sys::virConnectDomainQemuMonitorEventRegister(
                connection.as_ptr(),
                domain.as_ptr(),
                ptr::null(),
                Some(send_event),
                lines.cast(),
                Some(free_lines),
                0,
            )
        };
        if callback < 0 {
            // SAFETY: nothing was registered, so libvirt has not kept the pointer.
            drop(unsafe { Box::from_raw(lines) });
            return Err(virt::error::Error::last_error().message().to_owned());
        }
        Ok(Self {
            connection: connection.clone(),
            callback,
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // SAFETY: the connection is valid as long as its wrapper, and the callback is registered
        // there. A failure means that the connection is broken: then there are no events.
        unsafe {
            sys::virConnectDomainQemuMonitorEventDeregister(
                self.connection.as_ptr(),
                self.callback,
            );
        }
    }
}

/// Called by libvirt on the thread of [`crate::connection`] that runs its event loop.
unsafe extern "C" fn send_event(
    _: sys::virConnectPtr,
    _: sys::virDomainPtr,
    event: *const c_char,
    seconds: c_longlong,
    micros: c_uint,
    details: *const c_char,
    lines: *mut c_void,
) {
    // SAFETY: this is the pointer that was registered, which is valid until `free_lines`.
    let lines = unsafe { &*lines.cast::<SyncSender<String>>() };
    // SAFETY: libvirt passes a string that is valid during the call.
    let name = unsafe { CStr::from_ptr(event) }.to_string_lossy();
    let details = (!details.is_null()).then(|| {
        // SAFETY: as for the name; it was checked that there is one.
        unsafe { CStr::from_ptr(details) }.to_string_lossy()
    });
    let line = qmp::event(&name, seconds, micros, details.as_deref());
    if lines.try_send(line).is_err() {
        tracing::warn!(event = %name, "an event of the domain was dropped: the session does not read them");
    }
}

/// Called by libvirt when the callback is not used any more.
unsafe extern "C" fn free_lines(lines: *mut c_void) {
    // SAFETY: the pointer that was registered, made by `Box::into_raw`; libvirt calls this once.
    drop(unsafe { Box::from_raw(lines.cast::<SyncSender<String>>()) });
}
