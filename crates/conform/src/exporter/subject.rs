//! The exporter that is tested, and what the kit knows of the device that it uses.

use std::time::Duration;

use farbus_model::descriptor::{DeviceDescriptor, EndpointDescriptor, UsbConfiguration, kind};
use farbus_model::{IsoPacket, SetupPacket, TransferDirection, TransferType};
use farbus_wire::usbip::message::{OpHeader, op};
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use crate::check::CheckStop;
use crate::conversation::{ExchangeError, SubmitRequest, UsbipConversation};
pub(super) use crate::facts::DescriptorFacts;
use crate::settings::ConformanceSettings;
use crate::transport::PeerNetwork;

/// Between two tries of a device that is still in use.
const RETRY: Duration = Duration::from_millis(20);
/// Bytes of a device descriptor that the kit asks for: exporters take 8 and 64 for the sign of a port reset.
const DESCRIPTOR_ROOM: u16 = 255;
/// Isochronous requests queued before one that is to be unlinked, and packets of each.
const ISO_DEPTH: usize = 8;
const ISO_PACKETS: u32 = 512;

/// The exporter, and how to reach it.
pub(super) struct ExporterSubject<'a> {
    network: &'a mut dyn PeerNetwork,
    pub patience: Duration,
    pub quiet: Duration,
    bus_id: Option<String>,
    facts: Option<DescriptorFacts>,
    has_imported: bool,
    /// How long a device in use is waited for.
    import_patience: Duration,
}

impl<'a> ExporterSubject<'a> {
    pub fn new(network: &'a mut dyn PeerNetwork, settings: &ConformanceSettings) -> Self {
        let ConformanceSettings { bus_id, patience, quiet, .. } = settings.clone();
        Self { network, patience, quiet, bus_id, facts: None, has_imported: false, import_patience: patience }
    }

    /// Opens a further connection to the exporter.
    pub fn dial(&mut self) -> Result<UsbipConversation, CheckStop> {
        let link = self.network.dial().map_err(|lost| CheckStop::Fail(format!("no new connection: {lost}")))?;
        Ok(UsbipConversation::new(link, self.patience))
    }

    /// The bus id of the device to use.
    pub fn bus_id(&mut self) -> Result<String, CheckStop> {
        if let Some(bus_id) = &self.bus_id {
            return Ok(bus_id.clone());
        }
        let skip = |trouble: ExchangeError| CheckStop::Skip(format!("no bus id is known: the list failed: {trouble}"));
        let records = self.dial()?.list().map_err(skip)?;
        let first = records.first().ok_or_else(|| CheckStop::not_applicable("the exporter offers no device"))?;
        self.bus_id = Some(first.bus_id.clone());
        Ok(first.bus_id.clone())
    }

    /// Whether the device could be imported once.
    pub fn has_imported(&self) -> bool {
        self.has_imported
    }

    /// A connection with the device. Waits while the device is still that of an earlier connection.
    pub fn import(&mut self) -> Result<UsbipConversation, CheckStop> {
        self.try_import().map_err(|why| CheckStop::Skip(format!("the device could not be imported: {why}")))
    }

    fn try_import(&mut self) -> Result<UsbipConversation, String> {
        let bus_id = self.bus_id().map_err(|stop| match stop {
            CheckStop::Fail(why) | CheckStop::NotApplicable(why) | CheckStop::Skip(why) => why,
        })?;
        let began = self.network.now();
        loop {
            let link = self.network.dial().map_err(|lost| lost.to_string())?;
            let mut talk = UsbipConversation::new(link, self.patience);
            match talk.import(&bus_id) {
                Ok(Ok(_)) => {
                    self.has_imported = true;
                    self.import_patience = self.patience;
                    return Ok(talk);
                }
                Err(trouble) => return Err(trouble.to_string()),
                Ok(Err(status)) if self.network.now().since(began) >= self.import_patience => {
                    // It was waited for once: the following checks need not.
                    self.import_patience = self.quiet;
                    return Err(format!("status {status}: {}", OpStatus::from_code(status)));
                }
                Ok(Err(_)) => {}
            }
            drop(talk);
            self.network.pause(RETRY);
        }
    }

    /// A connection with the device in its first configuration, and what is known of it.
    pub fn device(&mut self) -> Result<(UsbipConversation, DescriptorFacts), CheckStop> {
        let mut talk = self.import()?;
        let facts = match &self.facts {
            Some(facts) => facts.clone(),
            None => self.learn(&mut talk)?,
        };
        // The exporter may have configured it; hosts do so in any case.
        let set = SubmitRequest::control(SetupPacket::set_configuration(facts.configuration.value), &[]);
        match talk.ask(&set) {
            Ok(answer) if answer.errno == 0 => Ok((talk, facts)),
            Ok(answer) => Err(CheckStop::Skip(format!("SET_CONFIGURATION was refused with {}", answer.errno))),
            Err(trouble) => Err(CheckStop::Skip(format!("SET_CONFIGURATION failed: {trouble}"))),
        }
    }

    fn learn(&mut self, talk: &mut UsbipConversation) -> Result<DescriptorFacts, CheckStop> {
        let skip = |what: &str, why: String| CheckStop::Skip(format!("the {what} descriptor could not be read: {why}"));
        let read = |talk: &mut UsbipConversation, kind, length| {
            talk.ask(&SubmitRequest::control(SetupPacket::get_descriptor(kind, 0, 0, length), &[]))
                .map_err(|trouble| trouble.to_string())
        };
        let bytes = read(talk, kind::DEVICE, DESCRIPTOR_ROOM).map_err(|why| skip("device", why))?.data;
        let device = DeviceDescriptor::parse(&bytes).map_err(|error| skip("device", error.to_string()))?;
        let bytes = read(talk, kind::CONFIGURATION, u16::MAX).map_err(|why| skip("configuration", why))?.data;
        let parsed = UsbConfiguration::parse(&bytes).map_err(|error| skip("configuration", error.to_string()))?;
        let facts = DescriptorFacts { device, configuration: parsed };
        self.facts = Some(facts.clone());
        Ok(facts)
    }

    /// The device as the list shows it, once it is free.
    pub fn listed(&mut self) -> Result<DeviceRecord, CheckStop> {
        let bus_id = self.bus_id()?;
        let began = self.network.now();
        loop {
            let records = self.dial()?.list()?;
            if let Some(record) = records.into_iter().find(|record| record.bus_id == bus_id) {
                return Ok(record);
            }
            if self.network.now().since(began) >= self.patience {
                return Err(CheckStop::Fail(format!("the list has no {bus_id}")));
            }
            self.network.pause(RETRY);
        }
    }

    /// Fails unless a new client is answered.
    pub fn serves_others(&mut self) -> Result<(), CheckStop> {
        let request = OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes();
        let served = self.dial().and_then(|mut talk| Ok(talk.send(&request).and_then(|()| talk.op_header())?));
        served.map(drop).map_err(|stop| match stop {
            CheckStop::Fail(why) => CheckStop::Fail(format!("afterwards no client was served: {why}")),
            other => other,
        })
    }

    /// Fails unless the device can be imported and answers.
    pub fn serves_device(&mut self) -> Result<(), CheckStop> {
        let failed = |why: String| CheckStop::Fail(format!("afterwards the device could not be used: {why}"));
        let mut talk = self.try_import().map_err(failed)?;
        let answer = talk.ask(&device_descriptor()).map_err(|trouble| failed(trouble.to_string()))?;
        if answer.errno != 0 {
            return Err(failed(format!("GET_DESCRIPTOR ended with {}", answer.errno)));
        }
        Ok(())
    }

    /// What an exporter does with bytes that break a rule: it refuses them or ends the connection, and serves others.
    pub fn refuses(&mut self, mut talk: UsbipConversation, case: &str) -> Result<String, CheckStop> {
        let is_closed = talk.is_closed_within(self.patience);
        drop(talk);
        self.serves_others()?;
        match is_closed {
            true => Ok(format!("{case}: it closed the connection")),
            false => Err(CheckStop::Fail(format!("{case}: it neither answered nor closed the connection"))),
        }
    }

    /// Sends a request that breaks a rule; the exporter may answer it with an error, or end the connection.
    pub fn refuses_request(
        &mut self,
        mut talk: UsbipConversation,
        number: u32,
        bytes: &[u8],
    ) -> Result<String, CheckStop> {
        let sent = talk.send(bytes);
        let ended = match sent.and_then(|()| talk.wait(number)) {
            Ok(answer) if answer.errno >= 0 => Err(CheckStop::Fail(format!("it was carried out: {}", answer.shown()))),
            Ok(answer) => Ok(format!("refused with {}", answer.errno)),
            Err(ExchangeError::Closed) => Ok("it closed the connection".to_owned()),
            Err(other) => Err(CheckStop::Fail(other.to_string())),
        };
        drop(talk);
        self.serves_device()?;
        ended
    }

    /// A request that stays unanswered on this device until it is unlinked; `None` if the device always has data.
    pub fn pend(&mut self, talk: &mut UsbipConversation, facts: &DescriptorFacts) -> Result<u32, CheckStop> {
        for ask in idle_asks(facts) {
            let mut last = talk.submit(&ask)?;
            let depth = if ask.is_iso { ISO_DEPTH } else { 1 };
            for _ in 1..depth {
                last = talk.submit(&ask)?;
            }
            if ask.is_iso {
                return Ok(last);
            }
            match talk.read(self.quiet) {
                Err(ExchangeError::Silence { have: 0, .. }) => return Ok(last),
                Ok(_) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err(CheckStop::not_applicable("the device answers every request at once: none stays under way to be unlinked"))
    }

    /// The request that [`ExporterSubject::pend`] tries first.
    pub fn pending_ask(&self, facts: &DescriptorFacts) -> Option<SubmitRequest> {
        idle_asks(facts).into_iter().next()
    }
}

/// Requests that an idle device may leave unanswered, the likeliest first.
fn idle_asks(facts: &DescriptorFacts) -> Vec<SubmitRequest> {
    let bulk_first = facts.disk().is_some();
    let kinds = if bulk_first {
        [TransferType::Bulk, TransferType::Interrupt]
    } else {
        [TransferType::Interrupt, TransferType::Bulk]
    };
    if facts.is_source_sink() {
        let endpoint = facts.endpoint(TransferType::Isochronous, TransferDirection::In);
        return endpoint.map(|endpoint| packets(endpoint, ISO_PACKETS, 0)).into_iter().collect();
    }
    let of = |kind| facts.endpoint(kind, TransferDirection::In);
    kinds
        .into_iter()
        .filter_map(of)
        .map(|e| SubmitRequest {
            interval: u32::from(e.interval),
            ..SubmitRequest::data_in(e.address, u32::from(e.packet_bytes_max))
        })
        .collect()
}

/// GET_DESCRIPTOR of the device descriptor, with more room than it needs.
pub(super) fn device_descriptor() -> SubmitRequest {
    SubmitRequest::control(SetupPacket::get_descriptor(kind::DEVICE, 0, 0, DESCRIPTOR_ROOM), &[])
}

/// An isochronous request of so many full packets with `gap` bytes between them.
pub(super) fn packets(endpoint: &EndpointDescriptor, count: u32, gap: u32) -> SubmitRequest {
    let length = endpoint.interval_bytes_max();
    let packet = |at| IsoPacket { offset: at * (length + gap), length, ..IsoPacket::default() };
    let iso_packets: Vec<IsoPacket> = (0..count).map(packet).collect();
    SubmitRequest::isochronous(
        endpoint.address,
        iso_packets,
        count * (length + gap),
        u32::from(endpoint.interval.max(1)),
    )
}
