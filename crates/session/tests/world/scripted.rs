//! A device that does only what the test tells it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::kind;
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceDefinition, EpAddr, Instant, Payload,
    SetupPacket, TransferDirection, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};

/// The behaviour of a device where it has a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manners {
    /// A cancelled request completes only when the test says so, as with usbfs and remote devices.
    pub cancels_late: bool,
    /// Control requests also complete only when the test says so.
    pub answers_control_late: bool,
}

/// The device: bulk 1, interrupt 2, isochronous 3 in both directions, and bulk 4 where interface 1 is in setting 1.
#[derive(Debug)]
pub struct Scripted {
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    manners: Manners,
    queues: BTreeMap<EpAddr, VecDeque<UrbInFlight>>,
    /// Cancelled requests that were not given back yet.
    withdrawn: Vec<UrbId>,
    /// Whether it was unplugged.
    is_gone: bool,
    /// Whether it drops every request.
    pub is_broken: bool,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Number of requests that it got.
    pub taken: usize,
    /// Number of requests that it gave back.
    pub given: usize,
}

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A control request was carried out.
    Control(SetupPacket),
    /// It was reset.
    Reset,
}

impl Scripted {
    pub fn new(manners: Manners) -> Self {
        Self {
            descriptors: descriptors().clone(),
            selection: ConfigurationSelection::default(),
            manners,
            queues: BTreeMap::new(),
            withdrawn: Vec::new(),
            is_gone: false,
            is_broken: false,
            events: Vec::new(),
            taken: 0,
            given: 0,
        }
    }

    /// Completes the first request of `endpoint` successfully; `false` if there is none.
    pub fn complete(&mut self, endpoint: EpAddr, done: &mut CompletionQueue) -> bool {
        let Some(urb) = self.take_first(endpoint) else { return false };
        if endpoint.is_control() {
            self.control(urb, done);
        } else if !urb.iso.is_empty() {
            let packets = urb.iso.iter().map(|packet| farbus_model::IsoPacket { actual: packet.length, ..*packet });
            let packets: Vec<_> = packets.collect();
            let bytes = packets.iter().map(|packet| packet.actual as usize).sum();
            let data = if urb.direction == TransferDirection::In { vec![urb.id.0 as u8; bytes] } else { Vec::new() };
            done.push(urb.done_iso(packets, data.into()));
        } else if urb.direction == TransferDirection::In {
            let data = vec![urb.id.0 as u8; urb.length as usize];
            done.push(urb.answer(data.into()));
        } else {
            done.push(urb.accept());
        }
        true
    }

    /// Ends the first request of `endpoint` with `status`; `false` if there is none.
    pub fn fail(&mut self, endpoint: EpAddr, status: UrbStatus, done: &mut CompletionQueue) -> bool {
        let urb = self.take_first(endpoint);
        urb.map(|urb| done.push(urb.fail(status))).is_some()
    }

    /// Gives the first cancelled request back as cancelled; `false` if there is none.
    pub fn let_go(&mut self, done: &mut CompletionQueue) -> bool {
        if self.withdrawn.is_empty() {
            return false;
        }
        let id = self.withdrawn.remove(0);
        self.give_cancelled(id, done);
        true
    }

    /// Unplugs it: every request ends as [`UrbStatus::Gone`].
    pub fn unplug(&mut self, done: &mut CompletionQueue) {
        self.is_gone = true;
        self.withdraw_all(UrbStatus::Gone, done);
    }

    /// Number of requests that it holds.
    pub fn holds(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Bytes that it may still send, possibly all at once.
    pub fn room(&self) -> usize {
        let held = self.queues.values().flatten().filter(|urb| urb.direction == TransferDirection::In);
        held.map(|urb| urb.length as usize).sum()
    }

    /// Number of requests that it holds on `endpoint`.
    pub fn waiting(&self, endpoint: EpAddr) -> usize {
        self.queues.get(&endpoint).map_or(0, VecDeque::len)
    }

    /// Takes the control requests and resets since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn take_first(&mut self, endpoint: EpAddr) -> Option<UrbInFlight> {
        let urb = self.queues.get_mut(&endpoint)?.pop_front()?;
        self.withdrawn.retain(|&id| id != urb.id);
        self.given += 1;
        Some(urb)
    }

    fn give_cancelled(&mut self, id: UrbId, done: &mut CompletionQueue) {
        for queue in self.queues.values_mut() {
            if let Some(at) = queue.iter().position(|urb| urb.id == id) {
                let urb = queue.remove(at).expect("found just now");
                self.given += 1;
                done.push(urb.fail(UrbStatus::Cancelled));
            }
        }
    }

    fn control(&mut self, urb: UrbInFlight, done: &mut CompletionQueue) {
        let setup = urb.setup;
        self.events.push(Event::Control(setup));
        let (value, index) = (setup.value as u8, setup.index as u8);
        let is_known = if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
            let control = self.queues.remove(&EpAddr::CONTROL);
            self.withdraw_all(UrbStatus::Shutdown, done);
            self.queues.extend(control.map(|queue| (EpAddr::CONTROL, queue)));
            self.selection.select_configuration(&self.descriptors, value)
        } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
            self.selection.select_interface(&self.descriptors, index, value)
        } else {
            true
        };
        let is_descriptor = setup.is_standard(request::GET_DESCRIPTOR, RequestRecipient::Device);
        done.push(match urb.direction {
            _ if !is_known => urb.fail(UrbStatus::Stall),
            TransferDirection::Out => urb.accept(),
            TransferDirection::In if is_descriptor && setup.value == u16::from(kind::DEVICE) << 8 => {
                let mut data: Payload = self.descriptors.device.to_bytes().as_slice().into();
                data.truncate(urb.length as usize);
                urb.answer(data)
            }
            TransferDirection::In => {
                let zeros = vec![0; urb.length as usize];
                urb.answer(zeros.into())
            }
        });
    }

    fn withdraw_all(&mut self, status: UrbStatus, done: &mut CompletionQueue) {
        self.withdrawn.clear();
        for urb in std::mem::take(&mut self.queues).into_values().flatten() {
            self.given += 1;
            done.push(urb.fail(status));
        }
    }
}

/// Built once, because small worlds are begun some hundred thousand times.
fn descriptors() -> &'static DescriptorSet {
    static ONCE: OnceLock<DescriptorSet> = OnceLock::new();
    let interval = Duration::from_micros(125);
    ONCE.get_or_init(|| {
        DeviceDefinition::new(0x1209, 0x0001)
            .names("farbus", "scripted", "")
            .interface(
                InterfaceDefinition::vendor()
                    .bulk_pair(1)
                    .interrupt(2, TransferDirection::In, 64, interval)
                    .interrupt(2, TransferDirection::Out, 64, interval)
                    .isochronous(3, TransferDirection::In, 1024, interval)
                    .isochronous(3, TransferDirection::Out, 1024, interval),
            )
            .interface(InterfaceDefinition::vendor())
            .interface(InterfaceDefinition::vendor().alternate_of_previous().bulk_pair(4))
            .build()
    })
}

impl Device for Scripted {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        UsbSpeed::High
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn submit(&mut self, _now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.is_broken {
            return drop(urb);
        }
        self.taken += 1;
        if urb.endpoint.is_control() && !self.manners.answers_control_late {
            self.given += 1;
            self.control(urb, done);
        } else {
            urb.own_payload();
            self.queues.entry(urb.endpoint).or_default().push_back(urb);
        }
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        if !self.manners.cancels_late {
            self.give_cancelled(id, done);
        } else if self.queues.values().flatten().any(|urb| urb.id == id) && !self.withdrawn.contains(&id) {
            self.withdrawn.push(id);
        }
    }

    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.events.push(Event::Reset);
        self.withdraw_all(UrbStatus::Shutdown, done);
        self.selection.clear();
    }
}
