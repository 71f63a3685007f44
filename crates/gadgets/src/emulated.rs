//! The frame that turns a declared gadget into a device: chapter 9, halts, queues, pace.
//!
//! **Pace.** Bulk and control move as soon as both sides are ready. Interrupt and isochronous
//! endpoints move one packet each service interval, as they would on a bus: a recorder that reads
//! an isochronous microphone gets a second of sound a second (U8). Slots follow each other without
//! drift for as long as URBs are queued.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::descriptor::{self, ConfigurationSelection, kind};
use farbus_model::usb::{RequestKind, RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, DescriptorSet, Device, DeviceDefinition, EndpointDescriptor, EpAddr, Instant,
    IsoPacket, NamedCounters, OwnerCommand, OwnerCommandError, Payload, ReadinessSource, SetupPacket,
    TransferDirection, TransferType, Urb, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};

/// What a gadget does, endpoint by endpoint. The defaults cover everything that a gadget does not need.
pub trait GadgetFunction: Send {
    /// The host asks an IN endpoint for up to `room` bytes. Fewer end the transfer (short packet).
    fn send(&mut self, endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let _ = (endpoint, room, cx);
        InTransferAnswer::Nak
    }

    /// The host sends one transfer (isochronous: one packet) to an OUT endpoint. After [`OutTransferAnswer::Nak`] it is
    /// offered again when the function's state may have changed.
    fn receive(&mut self, endpoint: EpAddr, payload: &Payload, cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let _ = (endpoint, payload, cx);
        OutTransferAnswer::Stall
    }

    /// A class or vendor request, or a standard one to an interface that chapter 9 leaves to the
    /// class (such as the HID report descriptor). `data` is the OUT data stage.
    fn control(&mut self, setup: SetupPacket, data: &[u8], cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let _ = (setup, data, cx);
        ControlTransferAnswer::Stall
    }

    /// The host selected a configuration (0: none) or an alternate setting: endpoints start afresh.
    fn selected(&mut self, selection: &ConfigurationSelection, cx: &mut FunctionContext<'_>) {
        let _ = (selection, cx);
    }

    /// The host wants to clear this endpoint's halt. `false` keeps it halted.
    fn clear_halt(&mut self, endpoint: EpAddr, cx: &mut FunctionContext<'_>) -> bool {
        let _ = (endpoint, cx);
        true
    }

    /// The bus was reset: discard everything that the host has set.
    fn reset(&mut self, cx: &mut FunctionContext<'_>) {
        let _ = cx;
    }

    /// The host came late: an isochronous endpoint that it uses had nothing queued for this many service intervals.
    fn starved(&mut self, endpoint: EpAddr, intervals: u64, cx: &mut FunctionContext<'_>) {
        let _ = (endpoint, intervals, cx);
    }

    /// When [`GadgetFunction::handle_timeout`] wants to be called.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when the moment of [`GadgetFunction::poll_timeout`] has come.
    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        let _ = cx;
    }

    /// What the engine has to wait on besides, if the function depends on something outside the process
    /// ([`Device::readiness`]).
    fn readiness(&self) -> Option<&ReadinessSource> {
        None
    }

    /// Called when [`GadgetFunction::readiness`] became ready.
    fn handle_ready(&mut self, cx: &mut FunctionContext<'_>) {
        let _ = cx;
    }

    /// Called after the last submission of a turn ([`Device::end_turn`]). Returns whether the function can now do what
    /// it could not do before.
    fn end_turn(&mut self, cx: &mut FunctionContext<'_>) -> bool {
        let _ = cx;
        false
    }

    /// Whether what the function depends on is gone ([`Device::is_gone`]).
    fn is_gone(&self) -> bool {
        false
    }

    /// The commands that [`GadgetFunction::command`] knows, by the words its owner types.
    fn verbs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Carries out a command of the owner's.
    ///
    /// # Errors
    /// [`OwnerCommandError`] when it is unknown or refused.
    fn command(&mut self, command: &OwnerCommand, cx: &mut FunctionContext<'_>) -> Result<(), OwnerCommandError> {
        let _ = cx;
        Err(OwnerCommandError::unknown(command))
    }

    /// Its counters, readable while the device is in use.
    fn tally(&self) -> Option<NamedCounters> {
        None
    }

    /// What a replacement process needs to continue; called while no request waits. `None`: no other process can.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Continues from a saved state, with its endpoints selected already. `None` if it cannot; it is reset then.
    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let _ = state;
        None
    }

    /// A replacement process continues ([`Device::leave`]).
    fn leave(&mut self) {}
}

/// What a function may use during a call.
#[derive(Debug)]
pub struct FunctionContext<'a> {
    /// The time of this call, by the clock of the thread that serves the device.
    pub now: Instant,
    /// Buffers for IN data.
    pub pool: &'a mut BufferPool,
    halts: &'a mut u32,
}

impl FunctionContext<'_> {
    /// Halts `endpoint`: it answers STALL until the host clears the halt (and the function permits that).
    pub fn halt(&mut self, endpoint: EpAddr) {
        *self.halts |= 1 << endpoint.index();
    }

    /// Clears a halt without a request of the host.
    pub fn unhalt(&mut self, endpoint: EpAddr) {
        *self.halts &= !(1 << endpoint.index());
    }
}

/// A function's answer to a request for data.
#[derive(Debug)]
pub enum InTransferAnswer {
    /// These bytes, at most as many as there is space for.
    Data(Payload),
    /// No data now.
    Nak,
    /// The endpoint halts.
    Stall,
}

/// A function's answer to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutTransferAnswer {
    /// All bytes were taken.
    Accepted,
    /// The function has no room for the bytes at present; it is offered them again later.
    Nak,
    /// The endpoint halts.
    Stall,
}

/// A function's answer to a control request.
#[derive(Debug)]
pub enum ControlTransferAnswer {
    /// The function carried out a request without an IN data stage.
    Ack,
    /// IN: these bytes (cut to what the host asked for).
    Data(Payload),
    /// The function does not carry out this request; the host sees a STALL of endpoint 0.
    Stall,
}

/// A device made of a definition and a function.
#[derive(Debug)]
pub struct EmulatedDevice<F> {
    descriptors: DescriptorSet,
    speed: UsbSpeed,
    function: F,
    selection: ConfigurationSelection,
    pipes: [EndpointQueue; 32],
    /// Bit n: the endpoint with index n is halted.
    halts: u32,
    /// Bit n: the queue with index n is not empty.
    waiting: u32,
}

#[derive(Debug, Default)]
struct EndpointQueue {
    queue: VecDeque<UrbInFlight>,
    /// Periodic endpoints: the first moment that no earlier packet occupies.
    free_at: Instant,
}

/// The result of trying the first request of a queue.
enum RequestAttempt {
    /// It was answered; the next one may be tried.
    Done,
    /// It waits for the function, or for its time.
    Waits,
}

impl<F: GadgetFunction> EmulatedDevice<F> {
    /// Makes the device that `definition` declares and `function` carries out.
    pub fn new(definition: &DeviceDefinition, function: F) -> Self {
        Self {
            descriptors: definition.build(),
            speed: definition.declared_speed(),
            function,
            selection: ConfigurationSelection::default(),
            pipes: Default::default(),
            halts: 0,
            waiting: 0,
        }
    }

    /// The function, for its owner to look at.
    pub fn function(&self) -> &F {
        &self.function
    }

    /// The function, to be saved, or to be restored from another process's state.
    pub fn function_mut(&mut self) -> &mut F {
        &mut self.function
    }

    /// Requests that wait for the function, in order for each endpoint.
    pub fn waiting(&self) -> impl Iterator<Item = &Urb> {
        self.pipes.iter().flat_map(|pipe| &pipe.queue).map(|urb| &**urb)
    }

    /// Which endpoints are halted, for [`EmulatedDevice::resume`].
    pub fn halts(&self) -> u32 {
        self.halts
    }

    /// Continues as the device that another process saved, whose function was restored already: with this selection,
    /// these halted endpoints, and these waiting requests.
    ///
    /// # Errors
    /// Why no device can have been in this state; the device is unchanged.
    pub fn resume(
        &mut self,
        selection: ConfigurationSelection,
        halts: u32,
        waiting: Vec<Urb>,
    ) -> Result<(), &'static str> {
        let mut pipes: [EndpointQueue; 32] = Default::default();
        for urb in &waiting {
            let endpoint = selection.endpoint(urb.endpoint).ok_or("a request waits at an endpoint that is there")?;
            let is_whole = urb.direction == TransferDirection::In || urb.payload.len() == urb.length as usize;
            if !matches!(endpoint.kind, TransferType::Bulk | TransferType::Interrupt)
                || urb.endpoint.direction() != urb.direction
                || !urb.iso.is_empty()
                || !is_whole
            {
                return Err("a request that waits is one of its endpoint");
            }
        }
        self.waiting = 0;
        for urb in waiting {
            let index = urb.endpoint.index();
            pipes[index].queue.push_back(urb.launch());
            self.waiting |= 1 << index;
        }
        (self.selection, self.halts, self.pipes) = (selection, halts, pipes);
        Ok(())
    }

    fn with_function<T>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut F, &ConfigurationSelection, &mut FunctionContext<'_>) -> T,
    ) -> T {
        let mut cx = FunctionContext { now, pool: &mut done.pool, halts: &mut self.halts };
        act(&mut self.function, &self.selection, &mut cx)
    }

    fn is_halted(&self, endpoint: EpAddr) -> bool {
        self.halts & 1 << endpoint.index() != 0
    }

    /// Serves every queue until no request moves: one endpoint's progress may be what another waits for.
    fn serve(&mut self, now: Instant, done: &mut CompletionQueue) {
        loop {
            let mut moved = false;
            let mut left = self.waiting;
            while left != 0 {
                let index = left.trailing_zeros() as usize;
                left &= left - 1;
                moved |= self.serve_pipe(index, now, done);
            }
            if !moved || self.waiting == 0 {
                return;
            }
        }
    }

    /// Serves every queue, or ends all requests if what the function depends on is gone.
    fn serve_or_end(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.function.is_gone() {
            self.withdraw_all(UrbStatus::Gone, done);
        } else {
            self.serve(now, done);
        }
    }

    /// Serves one queue; returns whether any request was answered.
    fn serve_pipe(&mut self, index: usize, now: Instant, done: &mut CompletionQueue) -> bool {
        let mut moved = false;
        while let Some(urb) = self.pipes[index].queue.pop_front() {
            match self.step(urb, now, done) {
                RequestAttempt::Done => moved = true,
                RequestAttempt::Waits => break,
            }
        }
        self.note_waiting(index);
        moved
    }

    /// Tells the function that nothing was queued there for this long.
    fn note_idle(&mut self, address: EpAddr, idle: Duration, now: Instant, done: &mut CompletionQueue) {
        let Some(endpoint) = self.selection.endpoint(address) else { return };
        let intervals = idle.as_nanos().div_ceil(endpoint.service_interval(self.speed).as_nanos().max(1));
        let intervals = u64::try_from(intervals).unwrap_or(u64::MAX);
        self.with_function(now, done, |f, _, cx| f.starved(address, intervals, cx));
    }

    fn note_waiting(&mut self, index: usize) {
        let bit = 1 << index;
        if self.pipes[index].queue.is_empty() { self.waiting &= !bit } else { self.waiting |= bit }
    }

    /// Tries the first request of its queue; puts it back if it has to wait.
    fn step(&mut self, urb: UrbInFlight, now: Instant, done: &mut CompletionQueue) -> RequestAttempt {
        let address = urb.endpoint;
        if self.is_halted(address) {
            done.push(urb.fail(UrbStatus::Stall));
            return RequestAttempt::Done;
        }
        let Some(endpoint) = self.selection.endpoint(address).copied() else {
            done.push(urb.fail(UrbStatus::Invalid));
            return RequestAttempt::Done;
        };
        match endpoint.kind {
            TransferType::Isochronous => self.step_isochronous(urb, &endpoint, now, done),
            TransferType::Interrupt if now < self.pipes[address.index()].free_at => self.wait(urb),
            _ => self.step_data(urb, &endpoint, now, done),
        }
    }

    fn wait(&mut self, urb: UrbInFlight) -> RequestAttempt {
        self.pipes[urb.endpoint.index()].queue.push_front(urb);
        RequestAttempt::Waits
    }

    /// Puts the request back to wait for the function: there is no moment to wake up at.
    fn wait_for_function(&mut self, urb: UrbInFlight) -> RequestAttempt {
        self.pipes[urb.endpoint.index()].free_at = Instant::ZERO;
        self.wait(urb)
    }

    /// A bulk or interrupt transfer.
    fn step_data(
        &mut self,
        urb: UrbInFlight,
        endpoint: &EndpointDescriptor,
        now: Instant,
        done: &mut CompletionQueue,
    ) -> RequestAttempt {
        let (address, room) = (urb.endpoint, urb.length as usize);
        let answer = match urb.direction {
            TransferDirection::In => match self.with_function(now, done, |f, _, cx| f.send(address, room, cx)) {
                InTransferAnswer::Data(payload) => urb.answer(payload),
                InTransferAnswer::Nak => return self.wait_for_function(urb),
                InTransferAnswer::Stall => self.halt(urb),
            },
            TransferDirection::Out => {
                match self.with_function(now, done, |f, _, cx| f.receive(address, &urb.payload, cx)) {
                    OutTransferAnswer::Accepted => urb.accept(),
                    OutTransferAnswer::Nak => return self.wait_for_function(urb),
                    OutTransferAnswer::Stall => self.halt(urb),
                }
            }
        };
        if endpoint.kind == TransferType::Interrupt {
            let packets = answer.actual.div_ceil(endpoint.interval_bytes_max().max(1)).max(1);
            self.pipes[address.index()].free_at = now + endpoint.service_interval(self.speed) * packets;
        }
        done.push(answer);
        RequestAttempt::Done
    }

    fn halt(&mut self, urb: UrbInFlight) -> farbus_model::UrbCompletion {
        self.halts |= 1 << urb.endpoint.index();
        urb.fail(UrbStatus::Stall)
    }

    /// An isochronous transfer: answered when its last packet's interval has passed.
    fn step_isochronous(
        &mut self,
        urb: UrbInFlight,
        endpoint: &EndpointDescriptor,
        now: Instant,
        done: &mut CompletionQueue,
    ) -> RequestAttempt {
        let pipe = &mut self.pipes[urb.endpoint.index()];
        let span = endpoint.service_interval(self.speed) * urb.iso.len() as u32;
        if now < pipe.free_at + span {
            return self.wait(urb);
        }
        let start = pipe.free_at;
        pipe.free_at = start + span;
        let mut done_urb = self.move_packets(urb, now, done);
        done_urb.start_frame = frame_number(start, self.speed);
        done.push(done_urb);
        RequestAttempt::Done
    }

    fn move_packets(
        &mut self,
        urb: UrbInFlight,
        now: Instant,
        done: &mut CompletionQueue,
    ) -> farbus_model::UrbCompletion {
        let address = urb.endpoint;
        let mut packets = urb.iso.clone();
        match urb.direction {
            TransferDirection::In => {
                let mut data = done.pool.take(urb.length as usize);
                let mut at = 0;
                for packet in &mut packets {
                    let room = packet.length as usize;
                    let sent = self.with_function(now, done, |f, _, cx| f.send(address, room, cx));
                    let InTransferAnswer::Data(payload) = sent else { continue };
                    let moved = payload.copy_to(&mut data[at..at + room]);
                    packet.actual = moved as u32;
                    at += moved;
                    done.pool.recycle(payload);
                }
                data.truncate(at);
                urb.done_iso(packets, data.into())
            }
            TransferDirection::Out => {
                let all = urb.payload.clone();
                for packet in &mut packets {
                    let payload = packet_of(&all, packet);
                    let received = self.with_function(now, done, |f, _, cx| f.receive(address, &payload, cx));
                    if received == OutTransferAnswer::Accepted {
                        packet.actual = packet.length;
                    }
                }
                urb.done_iso(packets, Payload::Empty)
            }
        }
    }

    /// The due moment of the first request of a periodic queue.
    fn due(&self, index: usize) -> Option<Instant> {
        let pipe = &self.pipes[index];
        let urb = pipe.queue.front()?;
        let endpoint = self.selection.endpoint(urb.endpoint)?;
        match endpoint.kind {
            TransferType::Isochronous => {
                Some(pipe.free_at + endpoint.service_interval(self.speed) * urb.iso.len() as u32)
            }
            TransferType::Interrupt if pipe.free_at > Instant::ZERO => Some(pipe.free_at),
            _ => None,
        }
    }

    fn withdraw_all(&mut self, status: UrbStatus, done: &mut CompletionQueue) {
        for index in 0..self.pipes.len() {
            self.withdraw(index, status, done);
        }
    }

    fn withdraw(&mut self, index: usize, status: UrbStatus, done: &mut CompletionQueue) {
        for urb in self.pipes[index].queue.drain(..) {
            done.push(urb.fail(status));
        }
        self.note_waiting(index);
    }

    /// Control requests are answered at once.
    fn submit_control(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        let setup = urb.setup;
        let data = urb.take_payload();
        let answer = match setup.kind() {
            RequestKind::Standard => self.standard_request(now, setup, done),
            _ => None,
        };
        let answer = answer
            .unwrap_or_else(|| self.with_function(now, done, |f, _, cx| f.control(setup, &data.contiguous(), cx)));
        let finished = match (answer, urb.direction) {
            (ControlTransferAnswer::Ack, TransferDirection::Out) => urb.accept(),
            (ControlTransferAnswer::Ack, TransferDirection::In) => urb.answer(Payload::Empty),
            (ControlTransferAnswer::Data(mut payload), TransferDirection::In) => {
                payload.truncate(urb.length as usize);
                urb.answer(payload)
            }
            // An IN request without a data stage travels as OUT (USB 2.0 §9.3.1).
            (ControlTransferAnswer::Data(_), TransferDirection::Out) if urb.length == 0 => urb.accept(),
            (ControlTransferAnswer::Data(_), TransferDirection::Out) | (ControlTransferAnswer::Stall, _) => {
                urb.fail(UrbStatus::Stall)
            }
        };
        done.push(finished);
    }

    /// Chapter 9 (USB 2.0 §9.4). `None` leaves the request to the function.
    fn standard_request(
        &mut self,
        now: Instant,
        setup: SetupPacket,
        done: &mut CompletionQueue,
    ) -> Option<ControlTransferAnswer> {
        let endpoint = descriptor::endpoint_of_index(setup.index);
        Some(match (setup.request, setup.recipient()) {
            (request::GET_DESCRIPTOR, RequestRecipient::Device) => self.get_descriptor(setup),
            (request::GET_CONFIGURATION, RequestRecipient::Device) => bytes(&[self.selection.configuration()]),
            (request::SET_CONFIGURATION, RequestRecipient::Device) => {
                self.set_configuration(now, setup.value as u8, done)
            }
            // The host controller assigns addresses, not the gadget: nothing to do.
            (request::SET_ADDRESS, RequestRecipient::Device) => ControlTransferAnswer::Ack,
            (request::SET_SEL | request::SET_ISOCH_DELAY, RequestRecipient::Device) => ControlTransferAnswer::Ack,
            // Self-powered, no remote wake-up.
            (request::GET_STATUS, RequestRecipient::Device) => bytes(&[1, 0]),
            (request::SET_FEATURE | request::CLEAR_FEATURE, RequestRecipient::Device) => match setup.value {
                request::DEVICE_REMOTE_WAKEUP => ControlTransferAnswer::Ack,
                _ => ControlTransferAnswer::Stall,
            },
            (request::GET_STATUS, RequestRecipient::Interface) if self.has_interface(setup.index) => bytes(&[0, 0]),
            (request::GET_INTERFACE, RequestRecipient::Interface) if self.has_interface(setup.index) => {
                bytes(&[self.selection.alternate(setup.index as u8)])
            }
            (request::SET_INTERFACE, RequestRecipient::Interface) => self.set_interface(now, setup, done),
            (request::GET_STATUS, RequestRecipient::Endpoint) if self.has_endpoint(endpoint) => {
                bytes(&[u8::from(self.is_halted(endpoint)), 0])
            }
            (request::CLEAR_FEATURE, RequestRecipient::Endpoint) if setup.value == request::ENDPOINT_HALT => {
                self.clear_halt(now, endpoint, done)
            }
            (request::SET_FEATURE, RequestRecipient::Endpoint) if setup.value == request::ENDPOINT_HALT => {
                self.set_halt(endpoint, done)
            }
            // What a class defines under a standard code: HID's report descriptor.
            (request::GET_DESCRIPTOR | request::SET_DESCRIPTOR, RequestRecipient::Interface) => return None,
            _ => ControlTransferAnswer::Stall,
        })
    }

    fn has_interface(&self, index: u16) -> bool {
        let active = self.descriptors.configuration(self.selection.configuration());
        active.is_some_and(|c| c.interfaces().any(|i| u16::from(i.interface) == index))
    }

    fn has_endpoint(&self, endpoint: EpAddr) -> bool {
        endpoint.is_control() || self.selection.endpoint(endpoint).is_some()
    }

    fn get_descriptor(&self, setup: SetupPacket) -> ControlTransferAnswer {
        let [index, kind] = setup.value.to_le_bytes();
        let all = &self.descriptors;
        match kind {
            kind::DEVICE => bytes(&all.device.to_bytes()),
            kind::CONFIGURATION => match all.configurations.get(usize::from(index)) {
                Some(configuration) => bytes(&configuration.bytes),
                None => ControlTransferAnswer::Stall,
            },
            kind::STRING if index == 0 => {
                let [low, high] = descriptor::LANGUAGE_EN_US.to_le_bytes();
                bytes(&[4, kind::STRING, low, high])
            }
            kind::STRING => match all.string(index) {
                Some(text) => bytes(&descriptor::string_to_bytes(text)),
                None => ControlTransferAnswer::Stall,
            },
            kind::BOS if !all.bos.is_empty() => bytes(&all.bos),
            kind::DEVICE_QUALIFIER => match all.qualifier() {
                Some(qualifier) => bytes(&qualifier),
                // A device of one speed (USB 2.0 §9.6.2).
                None => ControlTransferAnswer::Stall,
            },
            kind::OTHER_SPEED if index == 0 && !all.other_speed.is_empty() => bytes(&all.other_speed),
            _ => ControlTransferAnswer::Stall,
        }
    }

    fn set_configuration(&mut self, now: Instant, value: u8, done: &mut CompletionQueue) -> ControlTransferAnswer {
        if !self.selection.select_configuration(&self.descriptors, value) {
            return ControlTransferAnswer::Stall;
        }
        self.withdraw_all(UrbStatus::Shutdown, done);
        self.halts = 0;
        self.restart_pace(now);
        self.with_function(now, done, |f, selection, cx| f.selected(selection, cx));
        ControlTransferAnswer::Ack
    }

    fn set_interface(&mut self, now: Instant, setup: SetupPacket, done: &mut CompletionQueue) -> ControlTransferAnswer {
        let (interface, alternate) = (setup.index as u8, setup.value as u8);
        let before = self.interface_endpoints(interface);
        if !self.selection.select_interface(&self.descriptors, interface, alternate) {
            return ControlTransferAnswer::Stall;
        }
        // The interface's endpoints start afresh (USB 2.0 §9.1.1.5), whichever setting they were in.
        for endpoint in before.into_iter().chain(self.interface_endpoints(interface)) {
            self.withdraw(endpoint.index(), UrbStatus::Shutdown, done);
            self.halts &= !(1 << endpoint.index());
            self.pipes[endpoint.index()].free_at = now;
        }
        self.with_function(now, done, |f, selection, cx| f.selected(selection, cx));
        ControlTransferAnswer::Ack
    }

    fn interface_endpoints(&self, interface: u8) -> Vec<EpAddr> {
        let active = self.descriptors.configuration(self.selection.configuration());
        let setting = active.and_then(|c| c.setting(interface, self.selection.alternate(interface)));
        setting.map_or_else(Vec::new, |s| s.endpoints.iter().map(|e| e.address).collect())
    }

    fn clear_halt(&mut self, now: Instant, endpoint: EpAddr, done: &mut CompletionQueue) -> ControlTransferAnswer {
        if !self.has_endpoint(endpoint) {
            return ControlTransferAnswer::Stall;
        }
        if self.with_function(now, done, |f, _, cx| f.clear_halt(endpoint, cx)) {
            self.halts &= !(1 << endpoint.index());
        }
        ControlTransferAnswer::Ack
    }

    fn set_halt(&mut self, endpoint: EpAddr, done: &mut CompletionQueue) -> ControlTransferAnswer {
        if endpoint.is_control() || !self.has_endpoint(endpoint) {
            return ControlTransferAnswer::Stall;
        }
        self.halts |= 1 << endpoint.index();
        self.withdraw(endpoint.index(), UrbStatus::Stall, done);
        ControlTransferAnswer::Ack
    }

    fn restart_pace(&mut self, now: Instant) {
        for pipe in &mut self.pipes {
            pipe.free_at = now;
        }
    }
}

/// Bytes of the saved state before the function's own.
const HALTS_BYTES: usize = 4;

impl<F: GadgetFunction> Device for EmulatedDevice<F> {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        self.speed
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.function.is_gone() {
            done.push(urb.fail(UrbStatus::Gone));
        } else if urb.endpoint.is_control() {
            self.submit_control(now, urb, done);
        } else {
            let index = urb.endpoint.index();
            let pipe = &mut self.pipes[index];
            if !pipe.queue.is_empty() {
                urb.own_payload();
                pipe.queue.push_back(urb);
                return;
            }
            // A periodic endpoint that was idle begins a new schedule now.
            let isochronous = !urb.iso.is_empty();
            if isochronous && pipe.free_at < now {
                let idle = now - std::mem::replace(&mut pipe.free_at, now);
                self.note_idle(urb.endpoint, idle, now, done);
            }
            if let RequestAttempt::Waits = self.step(urb, now, done) {
                self.waiting |= 1 << index;
                let kept = self.pipes[index].queue.front_mut().expect("a request that waits is in its queue");
                kept.own_payload();
                return;
            }
        }
        if self.waiting != 0 {
            self.serve(now, done);
        }
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        for index in 0..self.pipes.len() {
            let queue = &mut self.pipes[index].queue;
            if let Some(at) = queue.iter().position(|urb| urb.id == id) {
                let urb = queue.remove(at).expect("its position was found just now");
                done.push(urb.fail(UrbStatus::Cancelled));
                self.note_waiting(index);
                return;
            }
        }
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.withdraw_all(UrbStatus::Shutdown, done);
        self.selection.clear();
        self.halts = 0;
        self.with_function(now, done, |f, _, cx| f.reset(cx));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let mut first = self.function.poll_timeout();
        let mut left = self.waiting;
        while left != 0 {
            let due = self.due(left.trailing_zeros() as usize);
            left &= left - 1;
            first = match (first, due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        first
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.function.poll_timeout().is_some_and(|at| at <= now) {
            self.with_function(now, done, |f, _, cx| f.handle_timeout(cx));
        }
        self.serve_or_end(now, done);
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue) {
        if self.with_function(now, done, |f, _, cx| f.end_turn(cx)) {
            self.serve_or_end(now, done);
        }
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.function.readiness()
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with_function(now, done, |f, _, cx| f.handle_ready(cx));
        self.serve_or_end(now, done);
    }

    fn is_gone(&self) -> bool {
        self.function.is_gone()
    }

    fn verbs(&self) -> &'static [&'static str] {
        self.function.verbs()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        let result = self.with_function(now, done, |f, _, cx| f.command(command, cx));
        self.serve(now, done);
        result
    }

    fn tally(&self) -> Option<NamedCounters> {
        self.function.tally()
    }

    fn save(&self) -> Option<Vec<u8>> {
        let state = self.function.save().filter(|_| self.waiting == 0)?;
        Some([&self.halts.to_le_bytes()[..], &state].concat())
    }

    /// The pace of periodic endpoints begins again.
    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        let Some((halts, state)) = state.split_first_chunk::<HALTS_BYTES>() else { return false };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        self.selection = selection.clone();
        self.halts = 0;
        self.with_function(Instant::ZERO, &mut done, |f, selection, cx| f.selected(selection, cx));
        let is_restored = self.function.restore(state).is_some();
        if is_restored {
            self.halts = u32::from_le_bytes(*halts);
        } else {
            self.reset(Instant::ZERO, &mut done);
        }
        is_restored
    }

    fn leave(&mut self) {
        self.waiting = 0;
        self.pipes.iter_mut().flat_map(|pipe| pipe.queue.drain(..)).for_each(|urb| drop(urb.recall()));
        self.function.leave();
    }
}

fn bytes(data: &[u8]) -> ControlTransferAnswer {
    ControlTransferAnswer::Data(data.into())
}

fn packet_of(all: &Payload, packet: &IsoPacket) -> Payload {
    let mut rest = all.clone();
    rest.split_front(packet.offset as usize);
    rest.truncate(packet.length as usize);
    rest
}

/// The frame (full speed) or microframe (high speed and up) number of a moment, 31 bits as the wire carries it.
fn frame_number(at: Instant, speed: UsbSpeed) -> u32 {
    let unit = if speed.has_microframes() { Duration::from_micros(125) } else { Duration::from_millis(1) };
    (at.as_nanos() / unit.as_nanos() as u64) as u32 & 0x7fff_ffff
}
