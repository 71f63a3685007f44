//! A device that is to take another's place while that one is in use (requirement N12).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::device::Device;

/// The device that takes the place, and who is told what becomes of it.
#[derive(Clone)]
pub struct Twin(Arc<Inside>);

struct Inside {
    device: Mutex<Option<Box<dyn Device>>>,
    tell: Box<dyn Fn(Exchange) + Send + Sync>,
}

/// What became of an exchange.
pub enum Exchange {
    /// The twin is the device.
    Done {
        /// The device that it was: its owner's again.
        left: Box<dyn Device>,
        /// What was done.
        report: ExchangeReport,
    },
    /// The device is what it was.
    Failed {
        /// The twin, if it was taken already: its owner's again.
        twin: Option<Box<dyn Device>>,
        /// A sentence for a person.
        why: String,
    },
}

/// What an exchange took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Requests that told the twin what its forerunner had been told.
    pub replayed: usize,
    /// Requests that waited for data, taken back from the one and asked of the other.
    pub asked_again: usize,
    /// Requests that came meanwhile and waited.
    pub held: usize,
    /// For how long requests were held: the quiet time.
    pub quiet: Duration,
}

impl Twin {
    /// `device` is to take a place; `tell` is called once, by the thread that has the device.
    pub fn new(device: Box<dyn Device>, tell: impl Fn(Exchange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inside { device: Mutex::new(Some(device)), tell: Box::new(tell) }))
    }

    /// The device, for whoever puts it in its place: once.
    pub fn take(&self) -> Option<Box<dyn Device>> {
        self.0.device.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// This became of it.
    pub fn tell(&self, exchange: Exchange) {
        (self.0.tell)(exchange);
    }
}

impl PartialEq for Twin {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Twin {}

impl fmt::Debug for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Twin")
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exchange::Done { report, .. } => f.debug_tuple("Done").field(report).finish(),
            Exchange::Failed { why, .. } => f.debug_tuple("Failed").field(why).finish(),
        }
    }
}
