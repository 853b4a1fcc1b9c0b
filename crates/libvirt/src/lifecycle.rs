//! What libvirt reports of a domain: its end, devices that were plugged, and what QEMU reports of
//! its guest.
//!
//! That the guest was resumed or reset is taken from QEMU's events, which libvirt passes on: they
//! have the time at which it happened. libvirt's own events come some time after that, and do not
//! say when.
#![allow(unsafe_code)] // calls libvirt's C library

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use virt::domain::Domain;
use virt::sys;

use crate::connection::Connection;

/// An event of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DomainEvent {
    /// Its guest was resumed at that time.
    Resumed(SystemTime),
    /// Its guest was reset at that time.
    Reset(SystemTime),
    /// It has ended.
    Stopped(Stopped),
    /// A device was plugged, or unplugged. Its name.
    Device(String),
}

/// Why a domain has ended (`virDomainEventStoppedDetailType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Its guest was shut down, or QEMU has ended normally.
    ShutDown,
    /// A client has let libvirt end it.
    Destroyed,
    /// QEMU has crashed, or was killed.
    Crashed,
    /// A client has let libvirt migrate it.
    Migrated,
    /// A client has let libvirt save it.
    Saved,
    /// Anything else, by libvirt's number.
    Other(c_int),
}

impl Stopped {
    fn of_detail(detail: c_int) -> Self {
        match u32::try_from(detail) {
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN) => Self::ShutDown,
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED_DESTROYED) => Self::Destroyed,
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED_CRASHED | sys::VIR_DOMAIN_EVENT_STOPPED_FAILED) => {
                Self::Crashed
            }
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED_MIGRATED) => Self::Migrated,
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED_SAVED) => Self::Saved,
            _ => Self::Other(detail),
        }
    }
}

/// Passes on a domain's events until it is dropped.
#[derive(Debug)]
pub(crate) struct LifecycleEvents {
    connection: Connection,
    callbacks: Vec<c_int>,
    /// That of QEMU's events.
    monitor: Option<c_int>,
}

impl LifecycleEvents {
    /// Sends the events to `events`. If it is full, they are dropped.
    ///
    /// # Errors
    ///
    /// libvirt's message.
    pub(crate) fn subscribe(
        connection: &Connection,
        domain: &Domain,
        events: &SyncSender<DomainEvent>,
    ) -> Result<Self, String> {
        let mut subscribed = Self {
            connection: connection.clone(),
            callbacks: Vec::new(),
            monitor: None,
        };
        for (kind, callback) in [
            (sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle as *const ()),
            (sys::VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, device as *const ()),
            (sys::VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, device as *const ()),
        ] {
            subscribed.register(domain, kind, callback, events.clone())?;
        }
        subscribed.register_monitor(domain, events.clone())?;
        Ok(subscribed)
    }

    fn register_monitor(
        &mut self,
        domain: &Domain,
        events: SyncSender<DomainEvent>,
    ) -> Result<(), String> {
        let events = Box::into_raw(Box::new(events));
        // SAFETY: both objects are valid as long as their wrappers, and libvirt keeps references of
        // its own. No event name means all events. `events` is valid until `free_events` is called,
        // which libvirt does once, after the last call of the callback.
        let callback = unsafe {
            sys::virConnectDomainQemuMonitorEventRegister(
                self.connection.as_ptr(),
                domain.as_ptr(),
                ptr::null(),
                Some(monitor_event),
                events.cast(),
                Some(free_events),
                0,
            )
        };
        if callback < 0 {
            // SAFETY: nothing was registered, so libvirt has not kept the pointer.
            drop(unsafe { Box::from_raw(events) });
            return Err(virt::error::Error::last_error().message().to_owned());
        }
        self.monitor = Some(callback);
        Ok(())
    }

    fn register(
        &mut self,
        domain: &Domain,
        kind: sys::virDomainEventID,
        callback: *const (),
        events: SyncSender<DomainEvent>,
    ) -> Result<(), String> {
        // SAFETY: a pointer to a function, which libvirt converts back to the type that belongs to
        // the kind of event: that of the functions below (`VIR_DOMAIN_EVENT_CALLBACK`).
        let callback: sys::virConnectDomainEventGenericCallback =
            Some(unsafe { mem::transmute::<*const (), GenericCallback>(callback) });
        let kind = c_int::try_from(kind).map_err(|error| error.to_string())?;
        let events = Box::into_raw(Box::new(events));
        // SAFETY: both objects are valid as long as their wrappers, and libvirt keeps references of
        // its own. `events` is valid until `free_events` is called, which libvirt does once, after
        // the last call of the callback.
        let callback = unsafe {
            sys::virConnectDomainEventRegisterAny(
                self.connection.as_ptr(),
                domain.as_ptr(),
                kind,
                callback,
                events.cast(),
                Some(free_events),
            )
        };
        if callback < 0 {
            // SAFETY: nothing was registered, so libvirt has not kept the pointer.
            drop(unsafe { Box::from_raw(events) });
            return Err(virt::error::Error::last_error().message().to_owned());
        }
        self.callbacks.push(callback);
        Ok(())
    }
}

impl Drop for LifecycleEvents {
    fn drop(&mut self) {
        for &callback in &self.callbacks {
            // SAFETY: the connection is valid as long as its wrapper, and the callback is
            // registered there. A failure means that the connection is broken: then there are no
            // events.
            unsafe { sys::virConnectDomainEventDeregisterAny(self.connection.as_ptr(), callback) };
        }
        if let Some(callback) = self.monitor {
            // SAFETY: as above.
            unsafe {
                sys::virConnectDomainQemuMonitorEventDeregister(self.connection.as_ptr(), callback);
            }
        }
    }
}

/// The type of callbacks for which libvirt has no better one.
type GenericCallback = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void);

/// `virConnectDomainEventCallback`.
unsafe extern "C" fn lifecycle(
    _: sys::virConnectPtr,
    _: sys::virDomainPtr,
    event: c_int,
    detail: c_int,
    events: *mut c_void,
) -> c_int {
    let event = match u32::try_from(event) {
        Ok(sys::VIR_DOMAIN_EVENT_STOPPED) => DomainEvent::Stopped(Stopped::of_detail(detail)),
        _ => return 0,
    };
    // SAFETY: the pointer that was registered.
    unsafe { send(events, event) };
    0
}

/// `virConnectDomainQemuMonitorEventCallback`: an event of QEMU, with its time.
unsafe extern "C" fn monitor_event(
    _: sys::virConnectPtr,
    _: sys::virDomainPtr,
    event: *const c_char,
    seconds: c_longlong,
    micros: c_uint,
    _: *const c_char,
    events: *mut c_void,
) {
    // SAFETY: libvirt passes a string that is valid during the call.
    let name = unsafe { CStr::from_ptr(event) }.to_bytes();
    let at = time(seconds, micros);
    let event = match name {
        b"RESUME" => DomainEvent::Resumed(at),
        b"RESET" => DomainEvent::Reset(at),
        _ => return,
    };
    // SAFETY: the pointer that was registered.
    unsafe { send(events, event) };
}

/// The time of an event. One before 1970 counts as 1970.
fn time(seconds: c_longlong, micros: c_uint) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let micros = Duration::from_micros(micros.into());
    UNIX_EPOCH
        .checked_add(seconds + micros)
        .unwrap_or(UNIX_EPOCH)
}

/// `virConnectDomainEventDeviceAddedCallback`, and the same for removed devices.
unsafe extern "C" fn device(
    _: sys::virConnectPtr,
    _: sys::virDomainPtr,
    alias: *const c_char,
    events: *mut c_void,
) {
    // SAFETY: libvirt passes a string that is valid during the call.
    let alias = unsafe { CStr::from_ptr(alias) }.to_string_lossy();
    // SAFETY: the pointer that was registered.
    unsafe { send(events, DomainEvent::Device(alias.into_owned())) };
}

/// # Safety
///
/// `events` is the pointer that was registered, and `free_events` was not called.
unsafe fn send(events: *mut c_void, event: DomainEvent) {
    // SAFETY: see above.
    let events = unsafe { &*events.cast::<SyncSender<DomainEvent>>() };
    if events.try_send(event).is_err() {
        tracing::debug!("an event of the domain was dropped");
    }
}

/// Called by libvirt when the callback is not used any more.
unsafe extern "C" fn free_events(events: *mut c_void) {
    // SAFETY: the pointer that was registered, made by `Box::into_raw`; libvirt calls this once.
    drop(unsafe { Box::from_raw(events.cast::<SyncSender<DomainEvent>>()) });
}
