//! The state of an end that the other end sees.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::lane::GadgetWaker;

/// The state of one end.
#[derive(Debug)]
pub struct BridgeEndState {
    bell: GadgetWaker,
    /// Its host has the network interface on.
    has_network: AtomicBool,
    /// Its host has the device configured.
    is_configured: AtomicBool,
    /// The longest block that its host takes.
    block_bytes_max: AtomicU32,
}

impl BridgeEndState {
    pub fn new(bell: GadgetWaker, block_bytes_max: u32) -> Self {
        Self {
            bell,
            has_network: AtomicBool::new(false),
            is_configured: AtomicBool::new(false),
            block_bytes_max: AtomicU32::new(block_bytes_max),
        }
    }

    pub fn bell(&self) -> &GadgetWaker {
        &self.bell
    }

    pub fn has_network(&self) -> bool {
        self.has_network.load(Ordering::SeqCst)
    }

    pub fn is_configured(&self) -> bool {
        self.is_configured.load(Ordering::SeqCst)
    }

    /// Sets both; returns whether either changed.
    pub fn set(&self, has_network: bool, is_configured: bool) -> bool {
        let before = self.has_network.swap(has_network, Ordering::SeqCst);
        let was_configured = self.is_configured.swap(is_configured, Ordering::SeqCst);
        (before, was_configured) != (has_network, is_configured)
    }

    pub fn block_bytes_max(&self) -> u32 {
        self.block_bytes_max.load(Ordering::Relaxed)
    }

    pub fn set_block_bytes_max(&self, bytes: u32) {
        self.block_bytes_max.store(bytes, Ordering::Relaxed);
    }
}
