//! A device that is nothing but its descriptors.

use std::collections::BTreeMap;

use farbus_host::enumerate::{DescriptorPart, EnumerationErrorReason};
use farbus_host::{DescriptorEnumerator, EnumerationError, HostPort, HostPortError, IdSource, limits, run};
use farbus_model::descriptor::{kind, string_to_bytes};
use farbus_model::{
    DescriptorRepairs, DescriptorSet, Instant, SetupPacket, Urb, UrbCompletion, UrbId, UrbStatus, UsbSpeed,
};

/// A device that is nothing but answers to GET_DESCRIPTOR, by wValue and wIndex.
pub struct Answers {
    pub answers: BTreeMap<(u16, u16), Answer>,
    pub speed: UsbSpeed,
    pub packets: Vec<SetupPacket>,
    waiting: Vec<Urb>,
    cancelled: Vec<UrbId>,
    pub now: Instant,
}

#[derive(Clone)]
pub enum Answer {
    /// These bytes, as many as were asked for.
    Bytes(Vec<u8>),
    Ends(UrbStatus),
    Silence,
}

impl Answers {
    pub fn of(descriptors: &DescriptorSet, speed: UsbSpeed) -> Self {
        let mut answers = BTreeMap::new();
        let mut add = |kind: u8, index: u8, language: u16, bytes: &[u8]| {
            answers.insert((value(kind, index), language), Answer::Bytes(bytes.to_vec()));
        };
        add(kind::DEVICE, 0, 0, &descriptors.device.to_bytes());
        for (index, configuration) in descriptors.configurations.iter().enumerate() {
            add(kind::CONFIGURATION, index as u8, 0, &configuration.bytes);
        }
        add(kind::STRING, 0, 0, &[4, kind::STRING, 0x09, 0x04]);
        for (&index, text) in &descriptors.strings {
            add(kind::STRING, index, 0x0409, &string_to_bytes(text));
        }
        if !descriptors.bos.is_empty() {
            add(kind::BOS, 0, 0, &descriptors.bos);
        }
        Self { answers, speed, packets: Vec::new(), waiting: Vec::new(), cancelled: Vec::new(), now: Instant::ZERO }
    }

    pub fn change(mut self, kind: u8, index: u8, answer: Answer) -> Self {
        let key = self.answers.keys().copied().find(|(v, _)| *v == value(kind, index));
        self.answers.insert(key.unwrap_or((value(kind, index), 0)), answer);
        self
    }

    pub fn edit(mut self, kind: u8, index: u8, edit: impl Fn(&mut Vec<u8>)) -> Self {
        for ((v, _), answer) in &mut self.answers {
            if let (true, Answer::Bytes(bytes)) = (*v == value(kind, index), answer) {
                edit(bytes);
            }
        }
        self
    }

    pub fn enumerate(&mut self) -> Result<DescriptorSet, EnumerationError> {
        self.enumerate_with_repairs().0
    }

    /// The descriptors, and what was repaired in them.
    pub fn enumerate_with_repairs(&mut self) -> (Result<DescriptorSet, EnumerationError>, DescriptorRepairs) {
        let mut driver = DescriptorEnumerator::new(self.now, IdSource::new(), self.speed);
        let result = run(&mut driver, self).expect("the port works");
        assert!(self.packets.len() <= limits::ENUMERATION_TRANSFERS_MAX);
        (result, driver.repairs().clone())
    }

    pub fn error(mut self) -> (DescriptorPart, EnumerationErrorReason) {
        let error = self.enumerate().expect_err("this device is wrong");
        (error.piece, error.reason)
    }
}

/// A request's wValue for this descriptor.
pub fn value(kind: u8, index: u8) -> u16 {
    u16::from(kind) << 8 | u16::from(index)
}

impl HostPort for Answers {
    fn submit(&mut self, urb: Urb) {
        self.packets.push(urb.setup);
        self.waiting.push(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.cancelled.push(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        if let Some(id) = self.cancelled.pop() {
            let at = self.waiting.iter().position(|urb| urb.id == id).expect("it is in flight");
            return Ok(Some(self.waiting.remove(at).launch().fail(UrbStatus::Cancelled)));
        }
        let setup = self.waiting.first().expect("something is in flight").setup;
        let answer = match self.answers.get(&(setup.value, setup.index)) {
            Some(Answer::Silence) => {
                self.now = until.expect("nothing waits for ever");
                return Ok(None);
            }
            other => other.cloned(),
        };
        let urb = self.waiting.remove(0).launch();
        Ok(Some(match answer {
            Some(Answer::Bytes(mut bytes)) => {
                bytes.truncate(setup.length.into());
                urb.answer(bytes.into())
            }
            Some(Answer::Ends(status)) => urb.fail(status),
            _ => urb.fail(UrbStatus::Stall),
        }))
    }

    fn now(&self) -> Instant {
        self.now
    }
}
