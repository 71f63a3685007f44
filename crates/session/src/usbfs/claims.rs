//! Which open of a node has which interface: what a kernel keeps as "bound to the driver usbfs".

use std::collections::BTreeMap;

use farbus_model::usb::{RequestKind, RequestRecipient};
use farbus_model::{ConfigurationSelection, DescriptorSet, EpAddr, SetupPacket};

use super::{OpenId, UsbfsError};

/// Interface numbers that can be claimed are below this: as many as an open has bits for (`struct usb_dev_state`).
const INTERFACES_MAX: u32 = 64;

/// The interfaces that are claimed.
#[derive(Debug, Default)]
pub(super) struct InterfaceClaims {
    by_interface: BTreeMap<u8, OpenId>,
}

/// An open that may want an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterfaceClaimant {
    pub open: OpenId,
    /// Interfaces that it may claim, a bit each; `None` before USBDEVFS_DROP_PRIVILEGES.
    pub allowed: Option<u64>,
}

/// The device that interfaces belong to, as it stands now.
#[derive(Clone, Copy)]
pub(super) struct InterfaceLayout<'a> {
    pub descriptors: &'a DescriptorSet,
    pub selection: &'a ConfigurationSelection,
}

impl InterfaceLayout<'_> {
    /// Whether the configuration has an interface of this number (`usb_ifnum_to_if`).
    pub fn has_interface(&self, interface: u32) -> bool {
        let active = self.descriptors.configuration(self.selection.configuration());
        active.is_some_and(|active| active.settings.iter().any(|setting| u32::from(setting.interface) == interface))
    }

    /// Whether a printer's interface has this number and setting.
    fn has_printer(&self, interface: u8, alternate: u8) -> bool {
        const PRINTER: u8 = 7;
        let active = self.descriptors.configuration(self.selection.configuration());
        let setting = active.and_then(|active| active.setting(interface, alternate));
        setting.is_some_and(|setting| setting.class[0] == PRINTER)
    }

    /// The interface with this endpoint, in whatever setting (`findintfep`).
    fn interface_of(&self, endpoint: EpAddr) -> Result<u8, UsbfsError> {
        let active = self.descriptors.configuration(self.selection.configuration()).ok_or(UsbfsError::Unconfigured)?;
        let has = |address| active.settings.iter().find(|s| s.endpoints.iter().any(|e| e.address == address));
        has(endpoint).map(|setting| setting.interface).ok_or(UsbfsError::NotFound)
    }
}

impl InterfaceClaims {
    /// Who has the interface.
    pub fn holder(&self, interface: u32) -> Option<OpenId> {
        u8::try_from(interface).ok().and_then(|interface| self.by_interface.get(&interface).copied())
    }

    /// Nobody has an interface any more.
    pub fn clear(&mut self) {
        self.by_interface.clear();
    }

    /// Whether any interface is claimed.
    pub fn is_empty(&self) -> bool {
        self.by_interface.is_empty()
    }

    /// Whether anybody but this open has an interface.
    pub fn others_hold(&self, open: OpenId) -> bool {
        self.by_interface.values().any(|&holder| holder != open)
    }

    /// Gives an interface to an open (`claimintf`).
    ///
    /// # Errors
    /// EINVAL: the number is too large; EACCES: it gave up the right; ENOENT: no such interface now; EBUSY: another has
    /// it.
    pub fn claim(
        &mut self,
        by: InterfaceClaimant,
        interface: u32,
        layout: InterfaceLayout<'_>,
    ) -> Result<(), UsbfsError> {
        let number = u8::try_from(interface).ok().filter(|_| interface < INTERFACES_MAX).ok_or(UsbfsError::Invalid)?;
        let InterfaceClaimant { open, allowed } = by;
        match self.by_interface.get(&number) {
            Some(&holder) if holder == open => Ok(()),
            _ if allowed.is_some_and(|allowed| allowed & 1 << number == 0) => Err(UsbfsError::RightDropped),
            _ if !layout.has_interface(interface) => Err(UsbfsError::NotFound),
            Some(_) => Err(UsbfsError::Busy),
            None => {
                self.by_interface.insert(number, open);
                Ok(())
            }
        }
    }

    /// Takes an interface from its open (`releaseintf`).
    ///
    /// # Errors
    /// EINVAL: the open does not have it, or the number is too large; ENOENT: no such interface now.
    pub fn release(&mut self, open: OpenId, interface: u32, layout: InterfaceLayout<'_>) -> Result<u8, UsbfsError> {
        let number = u8::try_from(interface).ok().filter(|_| interface < INTERFACES_MAX).ok_or(UsbfsError::Invalid)?;
        if !layout.has_interface(interface) {
            return Err(UsbfsError::NotFound);
        }
        if self.holder(interface) != Some(open) {
            return Err(UsbfsError::Invalid);
        }
        self.by_interface.remove(&number);
        Ok(number)
    }

    /// Takes an interface from its holder, if it has one.
    pub fn detach(&mut self, interface: u32) {
        self.by_interface.retain(|&number, _| u32::from(number) != interface);
    }

    /// Takes all interfaces from an open, and returns them.
    pub fn release_all(&mut self, open: OpenId) -> Vec<u8> {
        self.by_interface.extract_if(.., |_, holder| *holder == open).map(|(interface, _)| interface).collect()
    }

    /// The open may use this interface: it has it, or gets it now (`checkintf`).
    ///
    /// # Errors
    /// As [`InterfaceClaims::claim`]; EHOSTUNREACH: the device is not configured.
    pub fn check_interface(
        &mut self,
        by: InterfaceClaimant,
        interface: u32,
        layout: InterfaceLayout<'_>,
    ) -> Result<(), UsbfsError> {
        if layout.selection.configuration() == 0 {
            return Err(UsbfsError::NotReady);
        }
        self.claim(by, interface, layout)
    }

    /// The open may use this endpoint, which need not be of the interface's setting. Returns the endpoint's interface.
    ///
    /// # Errors
    /// As [`InterfaceClaims::claim`]; ESRCH: the device is not configured; ENOENT: no such endpoint.
    pub fn check_endpoint(
        &mut self,
        by: InterfaceClaimant,
        endpoint: EpAddr,
        layout: InterfaceLayout<'_>,
    ) -> Result<u8, UsbfsError> {
        let interface = layout.interface_of(endpoint)?;
        self.check_interface(by, interface.into(), layout)?;
        Ok(interface)
    }

    /// The open may send this control request (`check_ctrlrecip`): one to an interface or an endpoint needs the claim,
    /// unless it is a vendor's, or asks a printer what it is (USB printer class 1.1 §4.2.1).
    ///
    /// # Errors
    /// As [`InterfaceClaims::check_endpoint`].
    pub fn check_control(
        &mut self,
        by: InterfaceClaimant,
        setup: SetupPacket,
        layout: InterfaceLayout<'_>,
    ) -> Result<(), UsbfsError> {
        const GET_DEVICE_ID: (u8, u8) = (0xa1, 0);
        let [interface, index] = setup.index.to_be_bytes();
        let asks_printer = (setup.request_type, setup.request) == GET_DEVICE_ID;
        if setup.kind() == RequestKind::Vendor || asks_printer && layout.has_printer(interface, index) {
            return Ok(());
        }
        match setup.recipient() {
            RequestRecipient::Interface => self.check_interface(by, index.into(), layout),
            RequestRecipient::Endpoint if index & 0x7f != 0 => {
                let endpoint =
                    |byte| if byte & 0x70 == 0 { Ok(EpAddr::from_byte(byte)) } else { Err(UsbfsError::Invalid) };
                // Some programs name the other direction.
                let interface = endpoint(index).and_then(|endpoint| layout.interface_of(endpoint));
                let interface = interface.or_else(|first| {
                    let other = endpoint(index ^ 0x80).and_then(|endpoint| layout.interface_of(endpoint));
                    other.map_err(|_| first)
                });
                self.check_interface(by, interface?.into(), layout)
            }
            _ => Ok(()),
        }
    }
}
