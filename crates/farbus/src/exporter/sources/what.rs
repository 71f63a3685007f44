//! Devices that can be shared, parsed from the words of `farbus share`: `disk:backup.img,ro`, `zero,speed=super`,
//! `usb:1-1.4`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use farbus_gadgets::zero::SourcePattern;
use farbus_gadgets::{bridge, can};
use farbus_io_linux::usb::UsbDeviceSelector;
use farbus_model::UsbSpeed;

use super::block::BlockSpec;
use super::stream::StreamSpec;
use crate::devices::follow::{FollowPolicy, FollowWord};

/// A device to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A disk, made from a file or block device.
    Disk {
        /// Its medium, and how it is offered.
        spec: BlockSpec,
        /// Bytes of a sector.
        sector_bytes: u32,
        /// Its default name.
        kind: &'static str,
    },
    /// A source and sink of data.
    Zero {
        /// The USB speed that the gadget reports.
        speed: UsbSpeed,
        /// What it sends.
        fill: SourcePattern,
        /// Whether it checks what it is sent.
        verify: bool,
    },
    /// A keyboard that types what it is told.
    Keyboard,
    /// A device with new firmware to receive (USB DFU).
    Dfu,
    /// A device in Android's boot loader.
    Fastboot,
    /// A debug probe.
    CmsisDap,
    /// A serial port.
    Serial {
        /// The USB speed that the gadget reports.
        speed: UsbSpeed,
    },
    /// A sound card.
    Audio {
        /// The USB speed that the gadget reports.
        speed: UsbSpeed,
    },
    /// A CAN adapter.
    Can(can::CanSettings),
    /// Two ends of a cable between hosts.
    Bridge(bridge::BridgeSettings),
    /// A stream of frames.
    Stream(StreamSpec),
    /// USB devices that are plugged in, now or later.
    Usb(UsbSpec),
}

/// Real devices to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbSpec {
    /// Which plugged-in devices are shared.
    pub selector: UsbDeviceSelector,
    /// Which other devices in its port are followed.
    pub follow: FollowPolicy,
}

impl FromStr for UsbSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(",follow=");
        let selector = words.next().unwrap_or_default().parse()?;
        let follow = words.map(str::parse).collect::<Result<Vec<FollowWord>, _>>()?;
        Self { selector, follow: FollowPolicy::default() }.following(&follow.into_iter().collect())
    }
}

impl fmt::Display for UsbSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.selector.fmt(f)?;
        self.follow.words().try_for_each(|word| write!(f, ",follow={word}"))
    }
}

impl UsbSpec {
    /// This selection, which also follows these other devices in its port.
    ///
    /// # Errors
    /// It does not name a port.
    pub fn following(self, follow: &FollowPolicy) -> Result<Self, String> {
        if follow.is_nothing() || matches!(self.selector, UsbDeviceSelector::BusId(_)) {
            return Ok(Self { follow: self.follow.and(follow), ..self });
        }
        let next = "share it by its bus id (usb:1-1.4): see 'farbus share --list'";
        Err(format!("{} names no port, and what is followed is another device in a port\n  {next}", self.selector))
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "disk" => return disk_from("disk", "block:", rest),
            "block" => return disk_from("block", "block:", rest),
            "memory" => return disk_from("memory", "memory:", rest),
            _ => {}
        }
        if kind == "stream" {
            return rest.parse().map(DeviceSpec::Stream);
        }
        if kind == "usb" {
            return rest.parse().map(DeviceSpec::Usb);
        }
        let mut words = text.split(',');
        match words.next() {
            Some("can") => text["can".len()..].trim_start_matches(',').parse().map(DeviceSpec::Can),
            Some("bridge") => text["bridge".len()..].trim_start_matches(',').parse().map(DeviceSpec::Bridge),
            Some("zero") => zero_from(words),
            Some(kind @ "keyboard") => without_options(kind, DeviceSpec::Keyboard, words),
            Some(kind @ "dfu") => without_options(kind, DeviceSpec::Dfu, words),
            Some(kind @ "fastboot") => without_options(kind, DeviceSpec::Fastboot, words),
            Some(kind @ "cmsis-dap") => without_options(kind, DeviceSpec::CmsisDap, words),
            Some("audio") => Ok(DeviceSpec::Audio { speed: speed_from("audio", UsbSpeed::Full, words)? }),
            Some("serial") => Ok(DeviceSpec::Serial { speed: speed_from("serial", UsbSpeed::High, words)? }),
            _ => Err(format!(
                "'{text}' is not a device: try disk:PATH, zero, keyboard, serial, can, bridge, audio, dfu, fastboot, cmsis-dap, stream:pattern or usb:BUSID"
            )),
        }
    }
}

/// Parses the words of a block device (`scheme` and `text`) and the `sector=` of a USB disk.
fn disk_from(kind: &'static str, scheme: &str, text: &str) -> Result<DeviceSpec, String> {
    let mut sector_bytes = 512;
    let mut words = Vec::new();
    for word in text.split(',') {
        match word.split_once('=') {
            Some(("sector", bytes)) => {
                let parsed = bytes.parse().ok().filter(|bytes| [512, 1024, 2048, 4096].contains(bytes));
                sector_bytes = parsed.ok_or(format!("a sector has 512, 1024, 2048 or 4096 bytes, not '{bytes}'"))?;
            }
            _ => words.push(word),
        }
    }
    if words.first().is_none_or(|path| path.is_empty()) {
        let example = if kind == "memory" { "a size: memory:1G" } else { "a path: disk:PATH[,ro]" };
        return Err(format!("{kind} needs {example}"));
    }
    let spec: BlockSpec = format!("{scheme}{}", words.join(",")).parse()?;
    Ok(DeviceSpec::Disk { spec, sector_bytes, kind })
}

fn zero_from<'a>(words: impl Iterator<Item = &'a str>) -> Result<DeviceSpec, String> {
    let (mut speed, mut fill, mut verify) = (UsbSpeed::High, SourcePattern::Zeros, false);
    for word in words {
        match word {
            "speed=full" => speed = UsbSpeed::Full,
            "speed=high" => speed = UsbSpeed::High,
            "speed=super" => speed = UsbSpeed::Super,
            "fill=zeros" => fill = SourcePattern::Zeros,
            "fill=mod63" => fill = SourcePattern::Mod63,
            "verify" => verify = true,
            _ => return Err(format!("zero has no option '{word}': there are speed=, fill= and verify")),
        }
    }
    Ok(DeviceSpec::Zero { speed, fill, verify })
}

/// Checks that a device without options has none.
fn without_options<'a>(
    kind: &str,
    what: DeviceSpec,
    mut words: impl Iterator<Item = &'a str>,
) -> Result<DeviceSpec, String> {
    match words.next() {
        None => Ok(what),
        Some(word) => Err(format!("{kind} has no option '{word}'")),
    }
}

/// Parses the options of a device that has only a speed.
fn speed_from<'a>(what: &str, usual: UsbSpeed, words: impl Iterator<Item = &'a str>) -> Result<UsbSpeed, String> {
    let mut speed = usual;
    for word in words {
        match word {
            "speed=full" => speed = UsbSpeed::Full,
            "speed=high" => speed = UsbSpeed::High,
            _ => return Err(format!("{what} has no option '{word}': there are speed=full and speed=high")),
        }
    }
    Ok(speed)
}

impl DeviceSpec {
    /// The selector, if it means real devices.
    pub fn usb(&self) -> Option<&UsbDeviceSelector> {
        match self {
            DeviceSpec::Usb(spec) => Some(&spec.selector),
            _ => None,
        }
    }

    /// Which other devices in its port are followed.
    pub fn follow(&self) -> FollowPolicy {
        match self {
            DeviceSpec::Usb(spec) => spec.follow.clone(),
            _ => FollowPolicy::default(),
        }
    }

    /// The device, which follows these other ones in its port, too.
    ///
    /// # Errors
    /// It is no real device, or does not name a port.
    pub fn following(self, follow: &FollowPolicy) -> Result<Self, String> {
        match self {
            DeviceSpec::Usb(spec) => spec.following(follow).map(DeviceSpec::Usb),
            other if follow.is_nothing() => Ok(other),
            _ => Err("only a real device becomes another one in its port (usb:1-1.4)".to_owned()),
        }
    }

    /// The disk images to open, and whether each is opened read-only.
    pub fn images(&self) -> impl Iterator<Item = (&Path, bool)> {
        let spec = match self {
            DeviceSpec::Disk { spec, .. } => Some(spec),
            _ => None,
        };
        spec.into_iter().flat_map(BlockSpec::images)
    }

    /// Whether its images are opened also while something else on this machine uses them.
    pub fn is_forced(&self) -> bool {
        matches!(self, DeviceSpec::Disk { spec, .. } if spec.is_forced())
    }

    /// The device, with its images opened also while something else on this machine uses them.
    #[must_use]
    pub fn forced(self) -> Self {
        match self {
            DeviceSpec::Disk { spec, sector_bytes, kind } => {
                DeviceSpec::Disk { spec: spec.forced(), sector_bytes, kind }
            }
            other => other,
        }
    }

    /// How many open files another process needs to share it: its images, the source of its frames, or the node of a
    /// real device.
    pub fn files_count(&self) -> usize {
        self.images().count() + self.frames().iter().len() + self.usb().iter().len()
    }

    /// Whether another process can share it with nothing but open files: its paths mean the same everywhere, and a real
    /// device is the one at a bus id.
    pub fn is_passable(&self) -> bool {
        let mut paths = self.images().map(|(path, _)| path).chain(self.frames());
        paths.all(Path::is_absolute)
            && self.usb().is_none_or(|selector| matches!(selector, UsbDeviceSelector::BusId(_)))
    }

    /// `words`, which describe this device and have no name, with an absolute path.
    ///
    /// # Errors
    /// The working directory is gone.
    pub fn absolute(&self, words: &str) -> std::io::Result<String> {
        let medium = match self {
            DeviceSpec::Disk { spec, .. } => spec.medium_path(),
            _ => self.frames(),
        };
        let (Some(path), Some((kind, rest))) = (medium, words.split_once(':')) else { return Ok(words.to_owned()) };
        let options = rest.find(',').map_or("", |at| &rest[at..]);
        Ok(format!("{kind}:{}{options}", std::path::absolute(path)?.display()))
    }

    /// The path that frames are read from, if there is one.
    pub fn frames(&self) -> Option<&Path> {
        match self {
            DeviceSpec::Stream(spec) => spec.path(),
            _ => None,
        }
    }

    /// The word that its default name begins with.
    pub fn kind(&self) -> &'static str {
        match self {
            DeviceSpec::Disk { kind, .. } => kind,
            DeviceSpec::Zero { .. } => "zero",
            DeviceSpec::Keyboard => "keyboard",
            DeviceSpec::Dfu => "dfu",
            DeviceSpec::Fastboot => "fastboot",
            DeviceSpec::CmsisDap => "cmsis-dap",
            DeviceSpec::Serial { .. } => "serial",
            DeviceSpec::Audio { .. } => "audio",
            DeviceSpec::Can(_) => "can",
            DeviceSpec::Bridge(_) => "bridge",
            DeviceSpec::Stream(_) => "stream",
            DeviceSpec::Usb(_) => "usb",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_with_absolute_paths_can_be_passed() {
        let absolute = |words: &str| words.parse::<DeviceSpec>().unwrap().absolute(words).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute("disk:a.img,ro,sector=4096"), format!("disk:{}/a.img,ro,sector=4096", here.display()));
        assert_eq!(absolute("block:/a.img,scratch=/b"), "block:/a.img,scratch=/b");
        assert_eq!(absolute("memory:1M,ro"), "memory:1M,ro");
        assert_eq!(absolute("stream:cam,frame=4"), format!("stream:{}/cam,frame=4", here.display()));
        assert_eq!(absolute("stream:pattern,rate=5"), "stream:pattern,rate=5");
        let is_passable = |words: &str| words.parse::<DeviceSpec>().unwrap().is_passable();
        let passable =
            ["disk:/a", "zero", "memory:1M", "stream:pattern", "bridge", "stream:/dev/v,frame=4096", "usb:1-1"];
        assert!(passable.into_iter().all(is_passable));
        assert!(!["disk:a", "usb:046d:c52b", "stream:cam,frame=4096"].into_iter().any(is_passable));
    }

    #[test]
    fn share_words_parse_as_their_help_says() {
        let read = |text: &str| text.parse::<DeviceSpec>();
        let disk =
            |spec: &str, sector_bytes, kind| DeviceSpec::Disk { spec: spec.parse().unwrap(), sector_bytes, kind };
        assert_eq!(read("disk:/x:y.img,ro,sector=4096"), Ok(disk("block:/x:y.img,ro", 4096, "disk")));
        assert_eq!(read("block:/x,scratch"), Ok(disk("block:/x,scratch", 512, "block")));
        assert_eq!(read("memory:1G"), Ok(disk("memory:1G", 512, "memory")));
        assert_eq!(read("keyboard"), Ok(DeviceSpec::Keyboard));
        assert_eq!(read("dfu"), Ok(DeviceSpec::Dfu));
        assert_eq!(read("fastboot"), Ok(DeviceSpec::Fastboot));
        assert_eq!(read("cmsis-dap"), Ok(DeviceSpec::CmsisDap));
        assert_eq!(read("serial"), Ok(DeviceSpec::Serial { speed: UsbSpeed::High }));
        assert_eq!(read("serial,speed=full"), Ok(DeviceSpec::Serial { speed: UsbSpeed::Full }));
        assert_eq!(read("audio"), Ok(DeviceSpec::Audio { speed: UsbSpeed::Full }));
        assert_eq!(read("audio,speed=high"), Ok(DeviceSpec::Audio { speed: UsbSpeed::High }));
        assert_eq!(read("bridge"), Ok(DeviceSpec::Bridge(bridge::BridgeSettings::default())));
        assert_eq!(read("can,traffic=paper"), Ok(DeviceSpec::Can(can::CanSettings::paper())));
        let zero = DeviceSpec::Zero { speed: UsbSpeed::Super, fill: SourcePattern::Mod63, verify: true };
        assert_eq!(read("zero,speed=super,fill=mod63,verify"), Ok(zero));
        let usb = |selector, words: &[FollowWord]| {
            DeviceSpec::Usb(UsbSpec { selector, follow: words.iter().copied().collect() })
        };
        assert_eq!(read("usb:046d:c52b"), Ok(usb(UsbDeviceSelector::Ids(0x46d, 0xc52b), &[])));
        let board = usb(UsbDeviceSelector::BusId("1-1".into()), &[FollowWord::Make(0x18d1, 0x9302), FollowWord::Port]);
        assert_eq!(read("usb:1-1,follow=18d1:9302,follow=port"), Ok(board));
        assert_eq!(read("usb:serial=a,b"), Ok(usb(UsbDeviceSelector::Serial("a,b".into()), &[])));
        for wrong in [
            "usb",
            "usb:",
            "usb:usb1",
            "usb:1-1,follow=1-2",
            "usb:046d:c52b,follow=port",
            "",
            "disk",
            "disk:",
            "disk:x,rw",
            "block:",
            "memory",
            "memory:x",
            "disk:x,sector=100",
            "zero,speed=ultra",
            "keyboard,de",
            "dfu,size=1",
            "fastboot,ro",
            "cmsis-dap,speed=full",
            "audio,speed=super",
            "bridge,tape",
            "stream:",
            "tape",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
