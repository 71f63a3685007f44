//! Whether the peer at the other end of a link lives, although nothing needs to be sent.
//!
//! TCP's acknowledgements and keepalive come from the next machine that ends the connection. Behind an `ssh -L`, a
//! container's port proxy or a VPN in user space they say nothing of the peer. Its protocol does: every peer answers a
//! ping, of every version.
//!
//! The owner of a link calls [`PeerSilence::handle_tick`] every [`SILENCE_TICK`], with the bytes that have arrived so
//! far. Requests cost nothing for it: no clock is read and no ping sent while bytes arrive. Of two idle ends one pings
//! every second or third tick, and its ping answers for it at the other. Such a session wakes each end once in two to
//! three seconds, which is what it costs a host with thousands of them.
//!
//! | consecutive ticks without a byte | what happens |
//! |---|---|
//! | 1 | a ping is sent |
//! | [`QUIET_TICKS_MAX`] | the link counts as lost, 12 to 16 s after the last byte |
//!
//! The ping waits behind what was sent before it, perhaps in the buffers of a slow path, where TCP's acknowledgements
//! do not say how far it has come. So each 512 KiB that the peer has not acknowledged allow another tick: no path of
//! 1 Mbit/s or more is taken for a silent one.

use std::time::Duration;

use super::Lane;

/// How often the owner of a link looks whether its peer is silent.
pub const SILENCE_TICK: Duration = Duration::from_secs(4);
/// After this many consecutive ticks without a byte the link counts as lost. A ping has then had 8 s: longer than a
/// machine that swaps, or a medium that an exporter's thread waits for, usually takes.
pub const QUIET_TICKS_MAX: u32 = 3;
/// More ticks for a peer whose thread may wait for a medium: a flush of a slow card takes minutes.
pub const BUSY_TICKS: u32 = 30;
/// Unacknowledged bytes that allow another tick: 1 Mbit/s.
const BYTES_OF_TICK: usize = 512 << 10;
/// The number of the pings.
const SILENCE_PING: u64 = 0;

/// For how long the peer of one link has been silent.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerSilence {
    received_bytes: u64,
    quiet_ticks: u32,
}

impl PeerSilence {
    /// Another [`SILENCE_TICK`] has passed, or more if this thread did not run: then the peer's bytes may wait unread,
    /// and it counts as one. `received_bytes` is how many bytes have arrived on `lane`; `is_busy` says that the peer
    /// has a request during which it may not hear. Returns whether the link counts as lost.
    pub fn handle_tick(&mut self, lane: &mut Lane, received_bytes: u64, is_busy: bool) -> bool {
        if self.received_bytes != received_bytes {
            *self = Self { received_bytes, quiet_ticks: 0 };
            return false;
        }
        self.quiet_ticks += 1;
        if self.quiet_ticks == 1 {
            lane.ping(SILENCE_PING);
        }
        let on_its_way = (lane.unacknowledged_bytes() / BYTES_OF_TICK) as u32;
        let busy_ticks = if is_busy { BUSY_TICKS } else { 0 };
        self.quiet_ticks >= QUIET_TICKS_MAX + on_its_way + busy_ticks
    }
}
