//! The exporter that is tested, and the device that the kit uses.

use std::time::Duration;

use farbus_model::descriptor::{DeviceDescriptor, UsbConfiguration};
use farbus_model::{Instant, SetupPacket};
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice, OpenReply};
use farbus_wire::native::usb::UsbDescription;
use farbus_wire::native::{ExporterWelcome, HelloOptions, ImporterHello, LanePosition, SessionId, WelcomeOutcome};

use super::asking::{UsbTransferRequest, answer};
use super::talk::{SessionConversation, usb};
use super::wire::SessionFrameLink;
use crate::check::CheckStop;
use crate::conversation::{ExchangeError, UsbipConversation};
use crate::facts::DescriptorFacts;
use crate::settings::ConformanceSettings;
use crate::transport::PeerNetwork;

/// Between two tries of a device that is still in use.
const RETRY: Duration = Duration::from_millis(20);
/// How long an exporter keeps the device of an importer that closed its link (protocol.md, *Closed and lost links*).
pub(super) const KEPT: Duration = Duration::from_secs(4);
/// The grace period that the kit asks for, in ms.
const GRACE_MS: u32 = 20_000;
/// What comes before a link's end at most, bytes.
const LAST_BYTES_MAX: usize = 64 << 20;
/// The attachment that checks with one device use.
pub(super) const FIRST: u16 = 1;

/// An open device.
pub(super) struct SessionTestDevice {
    pub opened: OpenReply,
    pub facts: DescriptorFacts,
}

/// The exporter, and how to reach it.
pub(super) struct SessionSubject<'a> {
    network: &'a mut dyn PeerNetwork,
    pub patience: Duration,
    pub quiet: Duration,
    device_name: Option<String>,
    /// Devices of the list.
    listed: Option<Vec<String>>,
    incarnation: u64,
}

impl<'a> SessionSubject<'a> {
    pub fn new(network: &'a mut dyn PeerNetwork, settings: &ConformanceSettings) -> Self {
        let ConformanceSettings { bus_id, patience, quiet, .. } = settings.clone();
        let incarnation = 0x636f_6e66_6f72_6d00;
        Self { network, patience, quiet, device_name: bus_id, listed: None, incarnation }
    }

    /// A link on which nothing was said.
    pub fn dial(&mut self) -> Result<SessionFrameLink, CheckStop> {
        let link = self.network.dial().map_err(|lost| CheckStop::Fail(format!("no new connection: {lost}")))?;
        Ok(SessionFrameLink::new(link, self.patience))
    }

    pub fn now(&self) -> Instant {
        self.network.now()
    }

    pub fn pause(&mut self, span: Duration) {
        self.network.pause(span);
    }

    /// The hello of a new session.
    pub fn hello(&mut self, options: HelloOptions) -> ImporterHello {
        self.incarnation += 1;
        let position = LanePosition { link: 1, incarnation: self.incarnation, ..LanePosition::default() };
        ImporterHello::new(position, options)
    }

    /// What the kit asks for in a hello unless a check wants something else.
    pub fn options() -> HelloOptions {
        HelloOptions { grace_ms: Some(GRACE_MS), ..HelloOptions::default() }
    }

    /// Sends a hello's bytes on a new link and reads the welcome.
    pub fn greet(&mut self, hello: &[u8]) -> Result<(SessionFrameLink, ExporterWelcome), CheckStop> {
        let mut wire = self.dial()?;
        wire.send(hello)?;
        let welcome = wire.welcome()?;
        Ok((wire, welcome))
    }

    /// A new session.
    pub fn begin(&mut self) -> Result<SessionConversation, CheckStop> {
        let options = Self::options();
        self.begin_with(options)
    }

    /// A new session with these options.
    pub fn begin_with(&mut self, options: HelloOptions) -> Result<SessionConversation, CheckStop> {
        let hello = self.hello(options);
        let (wire, welcome) = self.greet(&hello.encode())?;
        self.begun(&hello, wire, &welcome)
    }

    /// The session that a welcome begins.
    pub fn begun(
        &mut self,
        hello: &ImporterHello,
        wire: SessionFrameLink,
        welcome: &ExporterWelcome,
    ) -> Result<SessionConversation, CheckStop> {
        if welcome.outcome != WelcomeOutcome::Begun {
            return Err(CheckStop::Fail(format!("no session begins: the outcome is {}", outcome(welcome.outcome))));
        }
        if welcome.position.session == SessionId::NONE {
            return Err(CheckStop::fail("the new session's name is zeros"));
        }
        let mut talk = SessionConversation::new(self.patience);
        talk.position = LanePosition { session: welcome.position.session, link: 0, received: 0, ..hello.position };
        talk.granted = welcome.options;
        talk.use_link(wire, welcome.position.received)?;
        Ok(talk)
    }

    /// Makes the next link of a session; returns the outcome.
    pub fn resume(&mut self, talk: &mut SessionConversation) -> Result<WelcomeOutcome, CheckStop> {
        let hello = talk.hello(Self::options());
        let (wire, welcome) = self.greet(&hello.encode())?;
        if welcome.outcome == WelcomeOutcome::Resumed {
            talk.use_link(wire, welcome.position.received)?;
        }
        Ok(welcome.outcome)
    }

    /// Makes the next link of a session, which has to go on.
    pub fn go_on(&mut self, talk: &mut SessionConversation) -> Result<(), CheckStop> {
        match self.resume(talk)? {
            WelcomeOutcome::Resumed => Ok(()),
            other => Err(CheckStop::Fail(format!("the session does not continue: the outcome is {}", outcome(other)))),
        }
    }

    /// Sends a hello that has to fail: the exporter refuses it, or ends the link.
    pub fn refuses_hello(&mut self, hello: &[u8], case: &str) -> Result<String, CheckStop> {
        let mut wire = self.dial()?;
        // It may end the link before it has all.
        let welcome = wire.send(hello).and_then(|()| wire.welcome());
        drop(wire);
        let seen = match welcome {
            Ok(welcome) if matches!(welcome.outcome, WelcomeOutcome::Begun | WelcomeOutcome::Resumed) => {
                return Err(CheckStop::Fail(format!("{case}: the outcome is {}", outcome(welcome.outcome))));
            }
            Ok(welcome) => format!("the outcome is {}", outcome(welcome.outcome)),
            Err(ExchangeError::Closed) => "it closed the link".to_owned(),
            Err(other) => return Err(CheckStop::Fail(format!("{case}: {other}"))),
        };
        self.serves_others()?;
        Ok(seen)
    }

    /// Sends bytes that break the protocol: the link has to end, another session has to go on, and the device of the
    /// session has to be free for others.
    pub fn breaks(&mut self, mut talk: SessionConversation, bytes: &[u8], case: &str) -> Result<String, CheckStop> {
        let mut beside = self.begin()?;
        beside.ping(1)?;
        let _ = talk.send_uncounted(bytes);
        let is_closed = talk.cut().is_none_or(|mut wire| wire.is_closed_within(self.patience, LAST_BYTES_MAX));
        beside.ping(2).map_err(|trouble| CheckStop::Fail(format!("another session of this importer: {trouble}")))?;
        beside.leave();
        if !is_closed {
            return Err(CheckStop::Fail(format!("{case}: the link did not end")));
        }
        Ok(format!("{case}: the link ended"))
    }

    /// The device to use.
    pub fn name(&mut self) -> Result<String, CheckStop> {
        match &self.device_name {
            Some(device_name) => Ok(device_name.clone()),
            None => self
                .names()?
                .into_iter()
                .next()
                .ok_or_else(|| CheckStop::not_applicable("the exporter lists no device: name one with --device")),
        }
    }

    /// The devices of the list, which a plain USB/IP client is shown on the same port.
    fn names(&mut self) -> Result<Vec<String>, CheckStop> {
        if let Some(listed) = &self.listed {
            return Ok(listed.clone());
        }
        let link = self.network.dial().map_err(|lost| CheckStop::Fail(format!("no new connection: {lost}")))?;
        let records = UsbipConversation::new(link, self.patience).list();
        let records =
            records.map_err(|trouble| CheckStop::Skip(format!("no device is known: the list failed: {trouble}")))?;
        let names: Vec<String> = records.into_iter().map(|record| record.bus_id).collect();
        self.listed = Some(names.clone());
        Ok(names)
    }

    /// A device beside the one that is used.
    pub fn other_name(&mut self) -> Result<String, CheckStop> {
        let first = self.name()?;
        let other = self.names()?.into_iter().find(|name| *name != first);
        other.ok_or_else(|| CheckStop::not_applicable("the exporter lists no second device"))
    }

    /// Opens a device. Waits while it is still that of an earlier session.
    pub fn open(
        &mut self,
        talk: &mut SessionConversation,
        attachment: u16,
        name: &str,
    ) -> Result<OpenReply, CheckStop> {
        let began = self.now();
        loop {
            match talk.open(attachment, &usb(name)) {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(end)) if end.cause == AttachmentEndCause::Class => {
                    return Err(CheckStop::not_applicable(format!("'{name}' is no USB device: {}", end.message)));
                }
                Ok(Err(end)) if self.now().since(began) >= self.patience + KEPT => {
                    return Err(CheckStop::Skip(format!("'{name}' was not opened: {}", shown(&end))));
                }
                Ok(Err(_)) => self.pause(RETRY),
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// A new session with the device open, in its first configuration.
    pub fn device(&mut self) -> Result<(SessionConversation, SessionTestDevice), CheckStop> {
        let options = Self::options();
        self.device_with(options)
    }

    /// A new session, begun with `options`, that has the device open in its first configuration.
    pub fn device_with(
        &mut self,
        options: HelloOptions,
    ) -> Result<(SessionConversation, SessionTestDevice), CheckStop> {
        let name = self.name()?;
        let mut talk = self.begin_with(options)?;
        let opened = self.open(&mut talk, FIRST, &name)?;
        let skip = |what: &str, why: String| CheckStop::Skip(format!("the {what} cannot be read: {why}"));
        let info = UsbDescription::decode(&opened.info).map_err(|reject| skip("description", reject.to_string()))?;
        let device =
            DeviceDescriptor::parse(&info.descriptor).map_err(|error| skip("device descriptor", error.to_string()))?;
        let first = info.configurations.first().ok_or_else(|| skip("configuration", "there is none".to_owned()))?;
        let configuration = UsbConfiguration::parse(first).map_err(|error| skip("configuration", error.to_string()))?;
        let facts = DescriptorFacts { device, configuration };
        // The exporter may have configured it; hosts do so in any case.
        let set = UsbTransferRequest::control(SetupPacket::set_configuration(facts.configuration.value), &[]);
        let done = answer(&mut talk, FIRST, SET_UP, &set)?;
        if done.status != 0 {
            return Err(CheckStop::Skip(format!("SET_CONFIGURATION ended with status {}", done.status)));
        }
        talk.inbox.clear();
        Ok((talk, SessionTestDevice { opened, facts }))
    }

    /// Fails unless a new session begins.
    pub fn serves_others(&mut self) -> Result<(), CheckStop> {
        let failed = |why: String| CheckStop::Fail(format!("afterwards no session began: {why}"));
        let mut talk = self.begin().map_err(|stop| failed(stop_text(stop)))?;
        talk.ping(3).map_err(|trouble| failed(trouble.to_string()))?;
        talk.leave();
        Ok(())
    }

    /// Fails unless the device can be opened in a new session.
    pub fn serves_device(&mut self) -> Result<(), CheckStop> {
        let (talk, _) = self.device().map_err(|stop| match stop {
            CheckStop::NotApplicable(_) => stop,
            other => CheckStop::Fail(format!("afterwards the device could not be used: {}", stop_text(other))),
        })?;
        talk.leave();
        Ok(())
    }
}

/// The tag of the kit's own requests.
const SET_UP: u16 = 0x1f00;

/// The sentence of a stop.
pub(super) fn stop_text(stop: CheckStop) -> String {
    match stop {
        CheckStop::Fail(why) | CheckStop::NotApplicable(why) | CheckStop::Skip(why) => why,
    }
}

/// An outcome with its number.
pub(super) fn outcome(of: WelcomeOutcome) -> String {
    format!("{} ({of:?})", of.code())
}

/// An end as a person reads it.
pub(super) fn shown(end: &AttachmentEndNotice) -> String {
    format!("cause {:?}, '{}'", end.cause, end.message)
}
