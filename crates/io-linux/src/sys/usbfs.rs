//! usbfs: the kernel's interface to real USB devices, `/dev/bus/usb/BBB/DDD`. Its calls lend the kernel memory and take
//! it back.
//!
//! A transfer is *lent* to the kernel ([`UsbfsDevice::submit`]) and *reaped* from it later ([`UsbfsDevice::reap`]); in
//! between, the kernel may be told to cancel it ([`UsbfsDevice::discard`]), which makes it reapable at once. A transfer
//! is named by its slot, a small number that the caller chooses. The calls that wait for the device
//! ([`UsbfsCallHandle`]) hold its lock in the kernel, and every other call on the descriptor waits for them, except
//! `poll` (`usbdev_do_ioctl`,
//! `usbdev_poll`).
//!
//! **What the kernel does with lent memory**: it reads OUT data while it takes the transfer, never later, and writes
//! results only while it is being reaped (`drivers/usb/core/devio.c`: `proc_do_submiturb`, `processcompl`). So OUT data
//! need not be kept, and IN buffers are owned here until then.
//!
//! The layout of the structures is `include/uapi/linux/usbdevice_fs.h`; a test checks the resulting call numbers.
#![allow(unsafe_code, reason = "a device is driven by ioctls on memory that the kernel remembers")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use farbus_model::limits::BORROWED_BYTES_MAX;
use farbus_model::{TransferType, UrbFlags, UrbStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl, opcode};

use super::errno;
use super::lease::{FilledUsbfsBuffer, UsbfsBuffer, UsbfsBufferPool};

/// Most isochronous packets in one transfer (`proc_do_submiturb`, "arbitrary limit").
pub const ISO_PACKETS_MAX: usize = 128;

/// The shortest transfer for which mapped memory is used: a page is copied in less time than a descriptor's lock takes.
const LEASE_BYTES_MIN: usize = 16 << 10;
/// The longest: more would need a larger piece of contiguous memory than a kernel has after some days.
const LEASE_BYTES_MAX: usize = 1 << 20;
/// A bit of [`GET_CAPABILITIES`]: memory can be mapped.
const CAN_MAP: u32 = 0x20;

const SHORT_NOT_OK: c_uint = 0x01;
const ISO_ASAP: c_uint = 0x02;
const ZERO_PACKET: c_uint = 0x40;

/// `struct usbdevfs_urb`, without the packets behind it.
#[repr(C)]
struct RawUrb {
    kind: u8,
    endpoint: u8,
    status: c_int,
    flags: c_uint,
    buffer: *mut c_void,
    buffer_length: c_int,
    actual_length: c_int,
    start_frame: c_int,
    /// A union in C: for bulk transfers this is the stream's number.
    packets: c_int,
    error_count: c_int,
    signal: c_uint,
    context: *mut c_void,
}

/// One isochronous packet of a [`RawIsoUrb`] (`struct usbdevfs_iso_packet_desc`).
#[repr(C)]
#[derive(Clone, Copy)]
struct RawPacket {
    length: c_uint,
    actual: c_uint,
    /// Unsigned in C, but a negative error number all the same.
    status: c_int,
}

/// A transfer with room for packets. `head` is first: a pointer to one is a pointer to the other.
#[repr(C)]
struct RawIsoUrb {
    head: RawUrb,
    packets: [RawPacket; ISO_PACKETS_MAX],
}

/// The argument of [`SET_INTERFACE`] (`struct usbdevfs_setinterface`).
#[repr(C)]
struct RawSetInterface {
    interface: c_uint,
    alternate: c_uint,
}

/// The argument of [`DISCONNECT_CLAIM`] (`struct usbdevfs_disconnect_claim`).
#[repr(C)]
struct RawDisconnectClaim {
    interface: c_uint,
    flags: c_uint,
    driver: [c_char; 256],
}

/// `struct usbdevfs_streams`, without the endpoints behind it.
#[repr(C)]
struct RawStreams {
    streams: c_uint,
    endpoints: c_uint,
}

/// With room for as many endpoints as a device can have.
#[repr(C)]
struct RawEndpointStreams {
    head: RawStreams,
    addresses: [u8; ENDPOINTS_MAX],
}

/// The argument of [`IOCTL`]: a call on one interface's driver (`struct usbdevfs_ioctl`).
#[repr(C)]
struct RawIoctl {
    interface: c_int,
    code: c_int,
    data: *mut c_void,
}

// The directions are those of the header's macros: what it calls a read is one that the kernel reads.
const SET_INTERFACE: Opcode = opcode::read::<RawSetInterface>(b'U', 4);
const SET_CONFIGURATION: Opcode = opcode::read::<c_uint>(b'U', 5);
const SUBMIT_URB: Opcode = opcode::read::<RawUrb>(b'U', 10);
const DISCARD_URB: Opcode = opcode::none(b'U', 11);
const REAP_URB_NO_DELAY: Opcode = opcode::write::<*mut c_void>(b'U', 13);
const CLAIM_INTERFACE: Opcode = opcode::read::<c_uint>(b'U', 15);
const RELEASE_INTERFACE: Opcode = opcode::read::<c_uint>(b'U', 16);
const IOCTL: Opcode = opcode::read_write::<RawIoctl>(b'U', 18);
const RESET: Opcode = opcode::none(b'U', 20);
const CLEAR_HALT: Opcode = opcode::read::<c_uint>(b'U', 21);
const CONNECT: Opcode = opcode::none(b'U', 23);
const GET_CAPABILITIES: Opcode = opcode::read::<u32>(b'U', 26);
const ALLOC_STREAMS: Opcode = opcode::read::<RawStreams>(b'U', 28);
const FREE_STREAMS: Opcode = opcode::read::<RawStreams>(b'U', 29);
const DISCONNECT_CLAIM: Opcode = opcode::read::<RawDisconnectClaim>(b'U', 27);

/// The most endpoints that one call may give streams (`USB_MAXENDPOINTS`).
const ENDPOINTS_MAX: usize = 30;
/// [`DISCONNECT_CLAIM`] detaches any driver, but not another program that uses usbfs.
const EXCEPT_DRIVER: c_uint = 2;

/// An open device.
pub struct UsbfsDevice {
    fd: Arc<OwnedFd>,
    slots: Vec<UsbfsSlot>,
    leases: UsbfsBufferPool,
    /// Whether the kernel lends memory; asked when first needed.
    lends: Option<bool>,
}

#[derive(Default)]
struct UsbfsSlot {
    urb: Option<UrbMemory>,
    is_lent: bool,
    /// Where IN data goes, and a control transfer's setup packet and data; it is kept while it is lent.
    buffer: Vec<u8>,
    /// The kernel's own memory, used instead of the buffer.
    lease: Option<UsbfsBuffer>,
}

/// A transfer to lend.
#[derive(Debug)]
pub struct UsbfsTransfer<'a> {
    /// What kind of endpoint it goes to.
    pub kind: TransferType,
    /// The endpoint's address byte.
    pub endpoint: u8,
    /// Options; only those that apply to `kind` and direction may be set.
    pub flags: UrbFlags,
    /// What to send, or where to receive.
    pub data: UsbfsPayload<'a>,
    /// Isochronous: each packet's length, at most [`ISO_PACKETS_MAX`]. Their data lies end to end.
    pub packets: &'a [u32],
    /// Isochronous without [`UrbFlags::iso_asap`]: the frame to start in.
    pub start_frame: u32,
    /// Bulk: the stream, from 1, at an endpoint that has some; see [`UsbfsCallHandle::alloc_streams`].
    pub stream: u16,
}

/// What a transfer moves.
#[derive(Debug)]
pub enum UsbfsPayload<'a> {
    /// Bytes to send; those of a control transfer begin with its setup packet.
    Out(&'a [u8]),
    /// Room to fill, returned by [`UsbfsDevice::reap`]. For a control transfer it begins with the setup packet, and is
    /// filled after that.
    In(Vec<u8>),
    /// Room for so many bytes in the kernel's own memory; not for control transfers. See [`UsbfsDevice::lease`].
    Into(UsbfsBuffer, usize),
}

/// A transfer that came back.
#[derive(Debug)]
pub struct ReapedUrb {
    /// The slot that the caller chose.
    pub slot: usize,
    /// How it ended; a cancelled transfer is [`UrbStatus::Cancelled`], whatever cancelled it.
    pub status: UrbStatus,
    /// Bytes moved, without the setup packet.
    pub actual: u32,
    /// The buffer of [`UsbfsPayload::In`], at its full length; empty for others.
    pub buffer: Vec<u8>,
    /// The memory of [`UsbfsPayload::Into`].
    pub filled: Option<FilledUsbfsBuffer>,
}

/// How one isochronous packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketResult {
    /// Bytes that were moved in this packet; at most the packet's length.
    pub actual: u32,
    /// How it ended.
    pub status: UrbStatus,
}

/// The result of [`UsbfsDevice::reap`].
#[derive(Debug)]
pub enum ReapOutcome {
    /// A transfer that has ended.
    Done(ReapedUrb),
    /// No transfer has ended since the last call; transfers may still be under way.
    Nothing,
    /// Nothing, and nothing will come: the device is gone.
    Gone,
}

impl fmt::Debug for UsbfsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsbfsDevice").field("fd", &self.fd).field("slots", &self.slots.len()).finish()
    }
}

impl UsbfsDevice {
    /// Opens a device's node.
    ///
    /// # Errors
    /// The system's error, for example `PermissionDenied` or `NotFound`.
    pub fn open(node: &Path) -> io::Result<Self> {
        Ok(Self::over(rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Wraps a device's node that another process opened for reading and writing.
    pub fn over(node: OwnedFd) -> Self {
        Self { fd: Arc::new(node), slots: Vec::new(), leases: UsbfsBufferPool::default(), lends: None }
    }

    /// The descriptor: writable when there is something to reap, hung up when the device is gone.
    pub fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The kernel's memory for a transfer of at most `bytes` from the device, which saves a copy and an allocation.
    /// `None` if the kernel lends none or has lent enough, or a copy costs less.
    pub fn lease(&mut self, bytes: usize) -> Option<UsbfsBuffer> {
        if !(LEASE_BYTES_MIN..=LEASE_BYTES_MAX).contains(&bytes) {
            return None;
        }
        if !*self.lends.get_or_insert_with(|| capabilities(&self.fd).is_ok_and(|all| all & CAN_MAP != 0)) {
            return None;
        }
        self.leases.take(Some(self.fd.as_fd()), bytes, BORROWED_BYTES_MAX).unwrap_or_else(|error| {
            tracing::debug!(%error, "the kernel lends no more memory: data is copied");
            // Do not ask for each transfer; the next user of the device asks again.
            self.lends = Some(false);
            None
        })
    }

    /// Returns lent memory that is not in use.
    pub fn give_back_leases(&mut self) {
        self.leases.give_back();
        self.lends = None;
    }

    /// Submits a transfer under the name `slot`.
    ///
    /// # Errors
    /// Why the kernel refuses it; nothing is lent then.
    ///
    /// # Panics
    /// If `slot` is in use, or there are more packets than a transfer takes: a bug of the caller.
    pub fn submit(&mut self, slot: usize, transfer: UsbfsTransfer<'_>) -> Result<(), UrbStatus> {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, UsbfsSlot::default);
        }
        let usbfs_slot = &mut self.slots[slot];
        assert!(!usbfs_slot.is_lent, "a slot is lent once");
        let wants_packets = !transfer.packets.is_empty();
        let mut memory = usbfs_slot.urb.take();
        if memory.as_ref().is_none_or(|memory| wants_packets && !memory.has_packets) {
            memory = Some(UrbMemory::new(wants_packets));
        }
        let memory = usbfs_slot.urb.insert(memory.expect("made just now if it was not there"));
        let (buffer, length) = match transfer.data {
            UsbfsPayload::Out(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
            UsbfsPayload::In(room) => {
                usbfs_slot.buffer = room;
                (usbfs_slot.buffer.as_mut_ptr(), usbfs_slot.buffer.len())
            }
            UsbfsPayload::Into(lease, bytes) => {
                assert!(bytes <= lease.bytes(), "a lease has room for its transfer");
                (usbfs_slot.lease.insert(lease).address(), bytes)
            }
        };
        let Ok(length) = c_int::try_from(length) else { return Err(UrbStatus::Invalid) };
        memory.fill(
            RawUrb {
                kind: match transfer.kind {
                    TransferType::Isochronous => 0,
                    TransferType::Interrupt => 1,
                    TransferType::Control => 2,
                    TransferType::Bulk => 3,
                },
                endpoint: transfer.endpoint,
                status: 0,
                flags: raw_flags(transfer.flags),
                buffer: buffer.cast(),
                buffer_length: length,
                actual_length: 0,
                start_frame: transfer.start_frame.cast_signed(),
                packets: match transfer.kind {
                    TransferType::Bulk => transfer.stream.into(),
                    _ => transfer.packets.len() as c_int,
                },
                error_count: 0,
                signal: 0,
                context: ptr::without_provenance_mut(slot),
            },
            transfer.packets,
        );
        // SAFETY: the structure belongs to the kernel and lives, unmoved, until it was reaped or the descriptor closed
        // (`UrbMemory` is dropped with its slot, after `fd`). `buffer` is read now, or belongs to the slot until then;
        // lent memory is the kernel's own, which identifies it by address and length and refuses any other.
        let result = unsafe { ioctl(&self.fd, PointerIoctl::<SUBMIT_URB> { address: memory.at.as_ptr().cast() }) };
        match result {
            Ok(()) => {
                usbfs_slot.is_lent = true;
                Ok(())
            }
            Err(errno) => {
                (usbfs_slot.buffer, usbfs_slot.lease) = (Vec::new(), None);
                Err(errno::of_call(errno))
            }
        }
    }

    /// Cancels a transfer and waits until the kernel has done so: it can then be reaped, with its real result if it had
    /// ended before. Does nothing to a transfer that has ended.
    pub fn discard(&mut self, slot: usize) {
        let Some(memory) = self.slots.get(slot).filter(|slot| slot.is_lent).and_then(|slot| slot.urb.as_ref()) else {
            return;
        };
        // SAFETY: the address only identifies the transfer; nothing is read or written through it.
        let result = unsafe { ioctl(&self.fd, PointerIoctl::<DISCARD_URB> { address: memory.at.as_ptr().cast() }) };
        // EINVAL: it has ended. ENODEV: the device is gone.
        debug_assert!(matches!(result, Ok(()) | Err(Errno::INVAL | Errno::NODEV)), "{result:?}");
    }

    /// Takes back one transfer that has ended, oldest first; stores the results of its packets in `packets`.
    pub fn reap(&mut self, packets: &mut Vec<PacketResult>) -> ReapOutcome {
        packets.clear();
        let address = loop {
            // SAFETY: the call writes one pointer, and results into transfers that are lent, which live in their slots.
            match unsafe { ioctl(&self.fd, Getter::<REAP_URB_NO_DELAY, *mut RawUrb>::new()) } {
                Ok(address) => break address,
                Err(Errno::INTR) => {}
                Err(Errno::NODEV) => return ReapOutcome::Gone,
                Err(Errno::AGAIN) => return ReapOutcome::Nothing,
                // EFAULT is impossible, our memory is mapped; any other error means that the device is gone.
                Err(errno) => {
                    tracing::error!(%errno, "the kernel does not give transfers back");
                    return ReapOutcome::Gone;
                }
            }
        };
        let lent = |slot: &UsbfsSlot| slot.is_lent && slot.urb.as_ref().is_some_and(|urb| urb.at.as_ptr() == address);
        // SAFETY: only this object submits on this descriptor, so the address is of one of its slots; checked right
        // below.
        let named = unsafe { (*address).context }.addr();
        let Some(slot) = Some(named).filter(|&named| self.slots.get(named).is_some_and(lent)) else {
            unreachable!("the kernel gives back what was lent to it");
        };
        let usbfs_slot = &mut self.slots[slot];
        usbfs_slot.is_lent = false;
        let memory = usbfs_slot.urb.as_ref().expect("a lent slot has its transfer");
        let head = memory.head();
        if head.kind == 0 {
            packets.extend(memory.packets(head.packets as usize).iter().map(|packet| PacketResult {
                actual: packet.actual.min(packet.length),
                status: status_of(packet.status),
            }));
        }
        ReapOutcome::Done(ReapedUrb {
            slot,
            status: status_of(head.status),
            actual: u32::try_from(head.actual_length).unwrap_or_default(),
            buffer: std::mem::take(&mut usbfs_slot.buffer),
            // The kernel has returned the transfer: its controller writes no more.
            filled: usbfs_slot.lease.take().map(UsbfsBuffer::filled),
        })
    }

    /// Waits until there is something to reap or the device is gone, for `time_max` at most.
    pub fn wait(&self, time_max: Duration) {
        let timeout = Timespec { tv_sec: time_max.as_secs().cast_signed(), tv_nsec: time_max.subsec_nanos().into() };
        // A failed or interrupted wait is only a short one: the caller checks the clock.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)], Some(&timeout));
    }

    /// Whether the device is still there.
    pub fn is_connected(&self) -> bool {
        capabilities(&self.fd) != Err(Errno::NODEV)
    }

    /// The calls that wait for the device, for use on another thread.
    pub fn calls(&self) -> UsbfsCallHandle {
        UsbfsCallHandle(Arc::clone(&self.fd))
    }
}

/// The calls on an open device that wait for it. The descriptor stays open during a call.
#[derive(Clone, Debug)]
pub struct UsbfsCallHandle(Arc<OwnedFd>);

impl UsbfsCallHandle {
    /// Claims an interface and detaches its driver; it may be claimed already.
    ///
    /// # Errors
    /// `ResourceBusy` if another program has it through usbfs.
    pub fn claim(&self, interface: u8) -> io::Result<()> {
        let mut driver = [0; 256];
        for (to, from) in driver.iter_mut().zip(b"usbfs") {
            *to = *from as c_char;
        }
        let claim = RawDisconnectClaim { interface: interface.into(), flags: EXCEPT_DRIVER, driver };
        // SAFETY: the kernel reads the structure and keeps nothing of it.
        match unsafe { ioctl(&self.0, Setter::<DISCONNECT_CLAIM, _>::new(claim)) } {
            // usbfs has it, for this process or another; this call tells which. SAFETY: the kernel reads one word.
            Err(Errno::BUSY) => {
                Ok(unsafe { ioctl(&self.0, Setter::<CLAIM_INTERFACE, c_uint>::new(interface.into())) }?)
            }
            claimed => Ok(claimed?),
        }
    }

    /// Releases an interface. The kernel cancels its transfers and selects setting 0.
    ///
    /// # Errors
    /// The system's error; an interface that is not claimed is an error.
    pub fn release(&self, interface: u8) -> io::Result<()> {
        // SAFETY: the kernel reads one word.
        Ok(unsafe { ioctl(&self.0, Setter::<RELEASE_INTERFACE, c_uint>::new(interface.into())) }?)
    }

    /// Lets the kernel's drivers bind to a released interface.
    ///
    /// # Errors
    /// `ResourceBusy` if it has a driver.
    pub fn connect(&self, interface: u8) -> io::Result<()> {
        let inner = RawIoctl { interface: interface.into(), code: CONNECT as c_int, data: ptr::null_mut() };
        // SAFETY: the kernel reads the structure; CONNECT has no data.
        Ok(unsafe { ioctl(&self.0, Setter::<IOCTL, _>::new(inner)) }?)
    }

    /// SET_INTERFACE, waited for. The kernel cancels the interface's transfers before.
    ///
    /// # Errors
    /// How the request ended.
    pub fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), UrbStatus> {
        let set = RawSetInterface { interface: interface.into(), alternate: alternate.into() };
        // SAFETY: the kernel reads the structure.
        unsafe { ioctl(&self.0, Setter::<SET_INTERFACE, _>::new(set)) }.map_err(errno::of_call)
    }

    /// SET_CONFIGURATION, waited for. Fails while any program has claimed an interface.
    ///
    /// # Errors
    /// How the request ended.
    pub fn set_configuration(&self, value: u8) -> Result<(), UrbStatus> {
        // SAFETY: the kernel reads one word.
        unsafe { ioctl(&self.0, Setter::<SET_CONFIGURATION, c_uint>::new(value.into())) }.map_err(errno::of_call)
    }

    /// CLEAR_FEATURE(ENDPOINT_HALT), waited for; the controller's data toggle is cleared with it.
    ///
    /// # Errors
    /// How the request ended.
    pub fn clear_halt(&self, endpoint: u8) -> Result<(), UrbStatus> {
        // SAFETY: the kernel reads one word.
        unsafe { ioctl(&self.0, Setter::<CLEAR_HALT, c_uint>::new(endpoint.into())) }.map_err(errno::of_call)
    }

    /// Allocates streams for bulk endpoints of one claimed interface, the same number for each; returns how many, which
    /// may be fewer. Queued transfers must have ended. Another setting of the interface frees them.
    ///
    /// # Errors
    /// [`UrbStatus::Invalid`] if an endpoint or the controller supports none, or `count` is below 2.
    pub fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, UrbStatus> {
        let streams = streams_of(endpoints, count)?;
        // SAFETY: the kernel reads the structure, with as many endpoints as it says.
        let given = unsafe { ioctl(&self.0, StreamsIoctl::<ALLOC_STREAMS>(streams)) }.map_err(errno::of_call)?;
        u16::try_from(given).map_err(|_| UrbStatus::Other)
    }

    /// Frees the streams of these endpoints.
    ///
    /// # Errors
    /// [`UrbStatus::Invalid`] if they have none.
    pub fn free_streams(&self, endpoints: &[u8]) -> Result<(), UrbStatus> {
        let streams = streams_of(endpoints, 0)?;
        // SAFETY: as above.
        unsafe { ioctl(&self.0, StreamsIoctl::<FREE_STREAMS>(streams)) }.map_err(errno::of_call)?;
        Ok(())
    }

    /// Resets the port and restores address and configuration, waited for. An interface that is claimed meanwhile would
    /// lose its claim to the kernel's driver.
    ///
    /// # Errors
    /// [`UrbStatus::Gone`] if the device came back as a different one.
    pub fn reset(&self) -> Result<(), UrbStatus> {
        // SAFETY: the call has no argument.
        unsafe { ioctl(&self.0, NoArg::<RESET>::new()) }.map_err(errno::of_call)
    }
}

fn streams_of(endpoints: &[u8], count: u16) -> Result<RawEndpointStreams, UrbStatus> {
    let mut addresses = [0; ENDPOINTS_MAX];
    addresses.get_mut(..endpoints.len()).ok_or(UrbStatus::Invalid)?.copy_from_slice(endpoints);
    let head = RawStreams { streams: count.into(), endpoints: endpoints.len() as c_uint };
    Ok(RawEndpointStreams { head, addresses })
}

fn capabilities(fd: &OwnedFd) -> rustix::io::Result<u32> {
    // SAFETY: the call writes one 32-bit word.
    unsafe { ioctl(fd, Getter::<GET_CAPABILITIES, u32>::new()) }
}

fn raw_flags(flags: UrbFlags) -> c_uint {
    let bits = [(flags.short_not_ok, SHORT_NOT_OK), (flags.iso_asap, ISO_ASAP), (flags.zero_packet, ZERO_PACKET)];
    bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
}

fn status_of(raw: c_int) -> UrbStatus {
    match raw {
        0 => UrbStatus::Ok,
        number => errno::of_transfer(Errno::from_raw_os_error(-number)),
    }
}

/// The memory of one transfer, at an address that the kernel may keep.
struct UrbMemory {
    at: NonNull<RawUrb>,
    /// Whether it is a [`RawIsoUrb`].
    has_packets: bool,
}

// SAFETY: it owns what it points to, like a box, and nothing in it belongs to a particular thread.
unsafe impl Send for UrbMemory {}

impl UrbMemory {
    fn new(has_packets: bool) -> Self {
        let head = RawUrb {
            kind: 0,
            endpoint: 0,
            status: 0,
            flags: 0,
            buffer: ptr::null_mut(),
            buffer_length: 0,
            actual_length: 0,
            start_frame: 0,
            packets: 0,
            error_count: 0,
            signal: 0,
            context: ptr::null_mut(),
        };
        let at: *mut RawUrb = if has_packets {
            let packets = [RawPacket { length: 0, actual: 0, status: 0 }; ISO_PACKETS_MAX];
            Box::into_raw(Box::new(RawIsoUrb { head, packets })).cast()
        } else {
            Box::into_raw(Box::new(head))
        };
        Self { at: NonNull::new(at).expect("a box has an address"), has_packets }
    }

    fn fill(&mut self, head: RawUrb, lengths: &[u32]) {
        // SAFETY: only this object accesses it while it is not lent, and `fill` is called only then.
        unsafe { self.at.write(head) };
        if lengths.is_empty() {
            return;
        }
        assert!(self.has_packets && lengths.len() <= ISO_PACKETS_MAX, "packets have room");
        // SAFETY: as above, and it was created as a `RawIsoUrb`.
        let packets = unsafe { &mut (*self.at.as_ptr().cast::<RawIsoUrb>()).packets };
        for (packet, &length) in packets.iter_mut().zip(lengths) {
            *packet = RawPacket { length, actual: 0, status: 0 };
        }
    }

    fn head(&self) -> &RawUrb {
        // SAFETY: initialized at its creation, and the kernel writes only during a call that reaps, which borrows all
        // slots.
        unsafe { self.at.as_ref() }
    }

    fn packets(&self, count: usize) -> &[RawPacket] {
        assert!(self.has_packets, "only an isochronous transfer has packets");
        // SAFETY: as `head`, and it was created as a `RawIsoUrb`.
        let packets = unsafe { &(*self.at.as_ptr().cast::<RawIsoUrb>()).packets };
        &packets[..count.min(ISO_PACKETS_MAX)]
    }
}

impl Drop for UrbMemory {
    fn drop(&mut self) {
        // SAFETY: it came from a box of this very type. The kernel writes to it only during a reap, and only its owner
        // reaps.
        unsafe {
            if self.has_packets {
                drop(Box::from_raw(self.at.as_ptr().cast::<RawIsoUrb>()));
            } else {
                drop(Box::from_raw(self.at.as_ptr()));
            }
        }
    }
}

/// A call whose argument is an address that the kernel keeps.
struct PointerIoctl<const OPCODE: Opcode> {
    address: *mut c_void,
}

// SAFETY: the argument is the plain address; what it points to is not written during the call.
unsafe impl<const OPCODE: Opcode> Ioctl for PointerIoctl<OPCODE> {
    type Output = ();

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.address
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// A call that reads a structure and answers with a number.
struct StreamsIoctl<const OPCODE: Opcode>(RawEndpointStreams);

// SAFETY: the argument is the structure's address, which outlives the call; the kernel only reads it.
unsafe impl<const OPCODE: Opcode> Ioctl for StreamsIoctl<OPCODE> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers from the kernel's header on a 64-bit machine; each contains its structure's size.
    #[test]
    fn calls_have_the_kernels_numbers() {
        let numbers = [
            (SET_INTERFACE, 0x8008_5504),
            (SET_CONFIGURATION, 0x8004_5505),
            (SUBMIT_URB, 0x8038_550a),
            (DISCARD_URB, 0x550b),
            (REAP_URB_NO_DELAY, 0x4008_550d),
            (RELEASE_INTERFACE, 0x8004_5510),
            (IOCTL, 0xc010_5512),
            (RESET, 0x5514),
            (CLEAR_HALT, 0x8004_5515),
            (CONNECT, 0x5517),
            (GET_CAPABILITIES, 0x8004_551a),
            (CLAIM_INTERFACE, 0x8004_550f),
            (DISCONNECT_CLAIM, 0x8108_551b),
            (ALLOC_STREAMS, 0x8008_551c),
            (FREE_STREAMS, 0x8008_551d),
        ];
        for (ours, kernels) in numbers {
            assert_eq!(ours, kernels, "{ours:#x} is not {kernels:#x}");
        }
        assert_eq!(std::mem::offset_of!(RawIsoUrb, packets), 56);
        assert_eq!(std::mem::offset_of!(RawEndpointStreams, addresses), 8);
    }

    #[test]
    fn node_that_is_no_device_refuses_transfers_and_keeps_none() {
        let mut usbfs = UsbfsDevice::open(Path::new("/dev/null")).unwrap();
        let transfer = UsbfsTransfer {
            kind: TransferType::Isochronous,
            endpoint: 0x81,
            flags: UrbFlags { iso_asap: true, ..UrbFlags::default() },
            data: UsbfsPayload::In(vec![0; 16]),
            packets: &[8, 8],
            start_frame: 0,
            stream: 0,
        };
        assert_eq!(usbfs.submit(3, transfer), Err(UrbStatus::Other));
        assert!(!usbfs.slots[3].is_lent && usbfs.slots[3].buffer.is_empty());
        let memory = usbfs.slots[3].urb.as_ref().unwrap();
        assert_eq!((memory.head().packets, memory.head().flags, memory.packets(2)[1].length), (2, ISO_ASAP, 8));
        usbfs.discard(3);
        assert!(usbfs.lease(1 << 16).is_none() && usbfs.lends == Some(false), "what lends nothing is not mapped");
        let calls = usbfs.calls();
        assert!(calls.claim(0).is_err() && calls.reset().is_err() && calls.set_interface(0, 1).is_err());
        assert!(calls.alloc_streams(&[0x81], 16).is_err() && calls.free_streams(&[0x81]).is_err());
        assert_eq!(calls.alloc_streams(&[0; 31], 16), Err(UrbStatus::Invalid));
        assert!(UsbfsDevice::open(Path::new("/dev/bus/usb/none")).is_err());
    }
}
