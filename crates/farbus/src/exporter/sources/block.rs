//! Block devices, parsed from the words in which people name them.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use farbus_model::BlockDevice;
use farbus_session::block::{BlockExport, ChangeStorage, MediumView, MemoryMedium, SparseMemory};
use farbus_session::native::control::AttachmentMode;

use crate::broker::SystemAccess;
use crate::devices::identities::naming::DeviceNaming;
use crate::devices::identities::{DeviceIdentity, ExpectedImage};

/// The largest disk that is tested.
const SIZE_MAX: u64 = 16 << 40;
/// Default memory for the changes of a scratch view, bytes.
const SCRATCH_BYTES: u64 = 256 << 20;

/// A block device as people name it: `block:PATH[,ro][,offset=BYTES][,size=BYTES][,scratch[=BYTES|=/PATH]][,force]` or
/// `memory:SIZE[,ro]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSpec {
    medium: BlockMediumSpec,
    is_read_only: bool,
    offset: u64,
    size: Option<u64>,
    /// Where each user's own changes go, if the device is a scratch view.
    scratch: Option<BlockMediumSpec>,
    /// Whether its images are opened also while something else on this machine uses them.
    is_forced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BlockMediumSpec {
    /// A file or block device.
    Path(PathBuf),
    /// This many bytes of this process's memory.
    Memory(u64),
}

impl BlockMediumSpec {
    /// The medium with an absolute path, which is valid in every working directory.
    fn absolute(&self) -> Self {
        match self {
            BlockMediumSpec::Path(path) => {
                BlockMediumSpec::Path(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
            }
            BlockMediumSpec::Memory(size) => BlockMediumSpec::Memory(*size),
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            BlockMediumSpec::Path(path) => Some(path),
            BlockMediumSpec::Memory(_) => None,
        }
    }
}

impl fmt::Display for BlockMediumSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockMediumSpec::Path(path) => write!(f, "block:{}", path.display()),
            BlockMediumSpec::Memory(size) => write!(f, "memory:{size}"),
        }
    }
}

/// A block device that was opened.
pub struct OpenedBlockExport {
    /// The block device, which carries out requests; its size and block size are known.
    pub device: Box<dyn BlockDevice>,
    /// Whether writing zeros is faster than writing data.
    pub zeroes_fast: bool,
    /// The export that it was opened from, whose medium may be exchanged.
    pub export: Arc<BlockExport>,
}

impl BlockSpec {
    /// The default name of the device.
    pub fn name(&self) -> String {
        match &self.medium {
            BlockMediumSpec::Path(path) => {
                path.file_name().map_or_else(|| "block".into(), |name| name.to_string_lossy().into())
            }
            BlockMediumSpec::Memory(_) => "memory".into(),
        }
    }

    /// The files and block devices to open, and whether each is opened read-only.
    pub fn images(&self) -> impl Iterator<Item = (&Path, bool)> {
        let medium = self.medium.path().map(|path| (path, self.opens_read_only()));
        let scratch = self.scratch.as_ref().and_then(BlockMediumSpec::path).map(|path| (path, false));
        medium.into_iter().chain(scratch)
    }

    /// How many bytes at the end of an image are no whole sector of a USB disk with sectors of `sector_bytes` bytes.
    /// 0 if the size cannot be found out: opening the image reports why.
    pub fn bytes_beyond_sectors(&self, sector_bytes: u32) -> u64 {
        let whole = match &self.medium {
            BlockMediumSpec::Memory(size) => Some(*size),
            BlockMediumSpec::Path(path) => {
                std::fs::metadata(path).ok().filter(Metadata::is_file).map(|file| file.len())
            }
        };
        let size = self.size.or(whole.map(|whole| whole.saturating_sub(self.offset))).unwrap_or_default();
        size % u64::from(sector_bytes)
    }

    /// Whether the medium is opened read-only, so that several processes may open it.
    fn opens_read_only(&self) -> bool {
        self.is_read_only || self.scratch.is_some()
    }

    /// Whether its images are opened also while something else on this machine uses them.
    pub fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// This disk, whose images are opened even while something else on this machine uses them.
    #[must_use]
    pub fn forced(self) -> Self {
        Self { is_forced: true, ..self }
    }

    /// The text from which the serial number of the USB disk is derived.
    pub fn identity(&self) -> String {
        let is_whole = self.offset == 0 && self.size.is_none();
        match &self.medium {
            BlockMediumSpec::Path(path) if is_whole => path.display().to_string(),
            BlockMediumSpec::Path(_) | BlockMediumSpec::Memory(_) => {
                Self { is_forced: false, ..self.clone() }.to_string()
            }
        }
    }

    /// The options, as text: which part of the medium, and how it is used. Empty if all of it may be read and written.
    pub fn view(&self) -> String {
        // How it is opened makes no other device of it.
        let words = Self { is_forced: false, ..self.clone() }.to_string();
        words[self.medium.to_string().len()..].trim_start_matches(',').to_owned()
    }

    /// The options of a USB disk with this sector size. Another sector size makes another disk for its users.
    pub fn view_with(&self, sector_bytes: u32) -> String {
        let sectors = (sector_bytes != 512).then(|| format!("sector={sector_bytes}"));
        let words = [Some(self.view()), sectors].into_iter().flatten().filter(|words| !words.is_empty());
        words.collect::<Vec<_>>().join(",")
    }

    /// What is to be identified when it is opened; `None` if its identity does not last.
    pub(crate) fn expected(&self, sector_bytes: u32, naming: DeviceNaming<'_>) -> Option<ExpectedImage> {
        let path = self.medium.path().filter(|_| self.scratch.is_none())?.to_owned();
        let (read_only, view) = (self.opens_read_only(), self.view_with(sector_bytes));
        let (name, is_named) = (naming.text().to_owned(), !matches!(naming, DeviceNaming::Automatic(_)));
        Some(ExpectedImage { path, read_only, view, name, is_named })
    }

    /// The path of the medium, if it is a file or block device.
    pub fn medium_path(&self) -> Option<&Path> {
        self.medium.path()
    }

    /// Opens the media for all future users of the device.
    ///
    /// # Errors
    /// A sentence for a person: why a medium cannot be opened or used.
    pub fn export(&self, system: &SystemAccess) -> Result<BlockExport, String> {
        self.export_identified(system, &self.view()).map(|(export, _)| export)
    }

    /// Opens the media, and identifies the device: two views of one medium are two devices.
    ///
    /// # Errors
    /// A sentence for a person: why a medium cannot be opened or used.
    pub(crate) fn export_identified(
        &self,
        system: &SystemAccess,
        view: &str,
    ) -> Result<(BlockExport, DeviceIdentity), String> {
        // A disk in memory ends with this process, and a scratch view with its user, so neither has a lasting identity.
        let mut known = DeviceIdentity::fresh();
        let (medium, durability): (Arc<dyn farbus_model::BlockMedium>, _) = match &self.medium {
            BlockMediumSpec::Memory(size) => {
                let mut random = [0; 8];
                farbus_io_net::trust::fill_random(&mut random);
                (Arc::new(MemoryMedium::new(SparseMemory::new(*size, *size))), u64::from_le_bytes(random))
            }
            BlockMediumSpec::Path(path) => {
                let read_only = self.opens_read_only();
                let store = system.open_image(path, read_only, self.is_forced).map_err(|error| error.to_string())?;
                if self.scratch.is_none() {
                    known = system.identify_image(path, read_only, &store, view);
                }
                (Arc::new(store), known.durability())
            }
        };
        let changes = match &self.scratch {
            None => None,
            Some(BlockMediumSpec::Memory(bytes)) => Some(ChangeStorage::Memory(*bytes)),
            Some(BlockMediumSpec::Path(path)) => {
                let store = system.open_image(path, false, self.is_forced).map_err(|error| error.to_string())?;
                Some(ChangeStorage::Medium(Arc::new(store)))
            }
        };
        let view = MediumView { offset: self.offset, size_bytes: self.size, is_read_only: self.is_read_only, changes };
        let export = BlockExport::new(medium, view, durability).map_err(|what| format!("{self}: {what}"))?;
        export.is_at(self.medium.absolute().to_string());
        Ok((if matches!(self.medium, BlockMediumSpec::Memory(_)) { export.in_memory() } else { export }, known))
    }

    /// Opens the device for one user.
    ///
    /// # Errors
    /// As [`BlockSpec::export`].
    pub fn open(&self, system: &SystemAccess) -> Result<OpenedBlockExport, String> {
        let export = self.export(system)?;
        let device = export.open(export.mode(AttachmentMode::Exclusive))?;
        let zeroes_fast = export.zeroes_fast() || matches!(self.medium, BlockMediumSpec::Memory(_));
        Ok(OpenedBlockExport { device, zeroes_fast, export: Arc::new(export) })
    }
}

impl FromStr for BlockSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut words = rest.split(',');
        let first = words.next().unwrap_or_default();
        let medium = match kind {
            "block" if first.is_empty() => return Err("block needs a path: block:PATH[,ro]".into()),
            "block" => BlockMediumSpec::Path(first.into()),
            "memory" => BlockMediumSpec::Memory(bytes_from(first)?),
            _ => return Err(format!("'{text}' is not a block device: try block:PATH or memory:SIZE")),
        };
        let mut spec = Self { medium, is_read_only: false, offset: 0, size: None, scratch: None, is_forced: false };
        for word in words {
            match word.split_once('=') {
                None if word == "ro" => spec.is_read_only = true,
                None if word == "force" => spec.is_forced = true,
                None if word == "scratch" => spec.scratch = Some(BlockMediumSpec::Memory(SCRATCH_BYTES)),
                Some(("scratch", path)) if path.starts_with('/') => {
                    spec.scratch = Some(BlockMediumSpec::Path(path.into()))
                }
                Some(("scratch", bytes)) => spec.scratch = Some(BlockMediumSpec::Memory(bytes_from(bytes)?)),
                Some(("offset", bytes)) => spec.offset = bytes_from(bytes)?,
                Some(("size", bytes)) => spec.size = Some(bytes_from(bytes)?),
                _ => {
                    return Err(format!(
                        "{kind} has no option '{word}': there are ro, offset=BYTES, size=BYTES, scratch[=BYTES|=/PATH] and force"
                    ));
                }
            }
        }
        if spec.is_read_only && spec.scratch.is_some() {
            return Err("ro and scratch are two things: nothing is changed, or a copy of one's own is".into());
        }
        Ok(spec)
    }
}

impl fmt::Display for BlockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.medium.fmt(f)?;
        if self.is_read_only {
            f.write_str(",ro")?;
        }
        if self.offset > 0 {
            write!(f, ",offset={}", self.offset)?;
        }
        if let Some(size) = self.size {
            write!(f, ",size={size}")?;
        }
        match &self.scratch {
            Some(BlockMediumSpec::Memory(bytes)) => write!(f, ",scratch={bytes}")?,
            Some(BlockMediumSpec::Path(path)) => write!(f, ",scratch={}", path.display())?,
            None => {}
        }
        if self.is_forced { f.write_str(",force") } else { Ok(()) }
    }
}

/// Parses a size: `512`, `64K`, `10G`, `16T`, in powers of 1024, 16 TiB at most.
pub fn bytes_from(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.find(|c: char| !c.is_ascii_digit()) {
        None => (text, Some(0)),
        Some(at) => {
            let shift = match &text[at..] {
                "K" | "k" | "KiB" => Some(10),
                "M" | "MiB" => Some(20),
                "G" | "GiB" => Some(30),
                "T" | "TiB" => Some(40),
                _ => None,
            };
            (&text[..at], shift)
        }
    };
    let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    let bytes = bytes.filter(|bytes| *bytes <= SIZE_MAX);
    bytes.ok_or_else(|| format!("'{text}' is no number of bytes: try 512, 64K, 100M, 10G, or up to 16T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_spec_prints_as_an_equivalent_spec() {
        for (text, canonical) in [
            ("block:/x:y.img", "block:/x:y.img"),
            ("block:a,ro", "block:a,ro"),
            ("block:/dev/sdb,ro,offset=1M,size=10G", "block:/dev/sdb,ro,offset=1048576,size=10737418240"),
            ("block:a,size=64k,offset=1M", "block:a,offset=1048576,size=65536"),
            ("block:a,scratch", "block:a,scratch=268435456"),
            ("block:a,scratch=/b", "block:a,scratch=/b"),
            ("memory:16T", "memory:17592186044416"),
            ("memory:1G,ro", "memory:1073741824,ro"),
        ] {
            let spec: BlockSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), canonical);
            assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
            assert_eq!(spec.view(), canonical.split_once(',').map_or("", |(_, view)| view));
        }
        for wrong in [
            "block",
            "block:",
            "memory",
            "memory:",
            "memory:1X",
            "memory:17T",
            "memory:-1",
            "block:a,rw",
            "block:a,size=",
            "block:a,ro,scratch",
            "disk:a",
            "memory:99999999999999999999",
            "block:a,offset=K",
        ] {
            assert!(wrong.parse::<BlockSpec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn images_lists_every_file_with_its_access() {
        let images = |text: &str| {
            let spec: BlockSpec = text.parse().unwrap();
            spec.images().map(|(path, read_only)| (path.to_str().unwrap().to_owned(), read_only)).collect::<Vec<_>>()
        };
        assert_eq!(images("block:/a"), [("/a".into(), false)]);
        assert_eq!(images("block:/a,ro"), [("/a".into(), true)]);
        assert_eq!(images("block:/a,scratch=/b"), [("/a".into(), true), ("/b".into(), false)]);
        assert_eq!(images("memory:1M,scratch"), []);
    }

    #[test]
    fn range_beyond_the_medium_is_refused_with_the_medium_s_size() {
        let open = |text: &str| {
            text.parse::<BlockSpec>().unwrap().open(&SystemAccess::Own).map(|opened| *opened.device.info())
        };
        assert_eq!(open("memory:1M,offset=4096").unwrap().size_bytes, (1 << 20) - 4096);
        assert!(open("memory:1M,ro").unwrap().is_read_only);
        assert!(!open("memory:1M,scratch").unwrap().is_read_only);
        assert!(open("memory:1M,offset=512K,size=1M").unwrap_err().contains("1048576"));
        assert!(open("memory:1M,offset=1M").unwrap_err().contains("nothing of it is left"));
        assert!(open("block:/nowhere/disk").unwrap_err().contains("truncate -s 1G /nowhere/disk"));
    }
}
