//! Layers over a device: the inner device answers whatever a layer does not.
//!
//! A layer implements [`BlockLayer`] or [`DeviceLayer`], and thereby becomes a [`BlockDevice`] or a [`Device`]. Every
//! method of these traits passes the call on to the inner device by default, so a layer overrides only what it changes
//! and cannot lose a method by omission. A layer with state of its own overrides the methods about state
//! ([`BlockDevice::state`], [`BlockDevice::save`], [`Device::save`] …).
//!
//! A layer has each method twice, from its own trait and from the device's. A file that calls methods of a layer, or of
//! a boxed device, imports only one of the two traits, and names the other by its path.
//!
//! `crates/session/tests/layers.rs` runs one contract against all layers: each method reaches the inner device, unless
//! the test's table says that the layer answers it.

use crate::block_device::{BlockCompletion, BlockDevice, BlockInFlight, BlockInfo};
use crate::descriptor::{ConfigurationSelection, DescriptorSet};
use crate::device::{CompletionQueue, Device, OwnerCommand, OwnerCommandError, ReadinessSource};
use crate::tally::NamedCounters;
use crate::time::Instant;
use crate::urb::{UrbId, UrbInFlight};
use crate::usb::UsbSpeed;

/// A layer over a block device. Each method is the one of [`BlockDevice`] with the same name; by default it passes
/// through.
pub trait BlockLayer: Send {
    /// The device below.
    type Inner: BlockDevice + ?Sized;

    /// The device below.
    fn inner(&self) -> &Self::Inner;

    /// The device below.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Calls into the inner device. Every call that may bring answers goes through this method: a layer that wants to
    /// see the answers overrides it.
    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut Self::Inner, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        let _ = now;
        act(self.inner_mut(), done)
    }

    /// Passes the call to the inner device; see [`BlockDevice::info`].
    fn info(&self) -> &BlockInfo {
        self.inner().info()
    }

    /// Passes the request on by [`BlockLayer::with_inner`]; see [`BlockDevice::submit`].
    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.with_inner(now, done, |inner, done| inner.submit(now, request, done));
    }

    /// Passes the call to the inner device; see [`BlockDevice::poll_timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        self.inner().poll_timeout()
    }

    /// Passes the call on by [`BlockLayer::with_inner`]; see [`BlockDevice::handle_timeout`].
    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.with_inner(now, done, |inner, done| inner.handle_timeout(now, done));
    }

    /// Passes the call on by [`BlockLayer::with_inner`]; see [`BlockDevice::end_turn`].
    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.with_inner(now, done, |inner, done| inner.end_turn(now, done));
    }

    /// Passes the call to the inner device; see [`BlockDevice::readiness`].
    fn readiness(&self) -> Option<&ReadinessSource> {
        self.inner().readiness()
    }

    /// Passes the call on by [`BlockLayer::with_inner`]; see [`BlockDevice::handle_ready`].
    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.with_inner(now, done, |inner, done| inner.handle_ready(now, done));
    }

    /// Passes the call to the inner device; see [`BlockDevice::is_gone`].
    fn is_gone(&self) -> bool {
        self.inner().is_gone()
    }

    /// See [`BlockDevice::command`].
    ///
    /// # Errors
    /// [`OwnerCommandError`] when the device does not know the command or refuses it.
    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), OwnerCommandError> {
        self.with_inner(now, done, |inner, done| inner.command(now, command, done))
    }

    /// Passes the call to the inner device; see [`BlockDevice::epoch`].
    fn epoch(&self) -> Option<u64> {
        self.inner().epoch()
    }

    /// Passes the call to the inner device; see [`BlockDevice::is_ready`].
    fn is_ready(&self) -> bool {
        self.inner().is_ready()
    }

    /// Passes the call to the inner device; see [`BlockDevice::why_gone`].
    fn why_gone(&self) -> Option<String> {
        self.inner().why_gone()
    }

    /// Returns the inner device's state alone: a layer with state overrides this. See [`BlockDevice::state`].
    fn state(&self) -> Option<Vec<u8>> {
        self.inner().state()
    }

    /// Restores the inner device's state alone: a layer with state overrides this. See [`BlockDevice::go_on_from`].
    fn go_on_from(&mut self, state: &[u8]) -> bool {
        self.inner_mut().go_on_from(state)
    }

    /// Saves the inner device's state alone: a layer with state overrides this. See [`BlockDevice::save`].
    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.inner_mut().save(now)
    }

    /// Passes the call to the inner device; see [`BlockDevice::leave`].
    fn leave(&mut self) {
        self.inner_mut().leave();
    }
}

// A method added to the trait has to be forwarded here, too: clippy refuses the impl without it.
#[deny(clippy::missing_trait_methods)]
impl<L: BlockLayer> BlockDevice for L {
    fn info(&self) -> &BlockInfo {
        BlockLayer::info(self)
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        BlockLayer::submit(self, now, request, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        BlockLayer::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        BlockLayer::handle_timeout(self, now, done);
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        BlockLayer::end_turn(self, now, done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        BlockLayer::readiness(self)
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        BlockLayer::handle_ready(self, now, done);
    }

    fn is_gone(&self) -> bool {
        BlockLayer::is_gone(self)
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), OwnerCommandError> {
        BlockLayer::command(self, now, command, done)
    }

    fn epoch(&self) -> Option<u64> {
        BlockLayer::epoch(self)
    }

    fn is_ready(&self) -> bool {
        BlockLayer::is_ready(self)
    }

    fn why_gone(&self) -> Option<String> {
        BlockLayer::why_gone(self)
    }

    fn state(&self) -> Option<Vec<u8>> {
        BlockLayer::state(self)
    }

    fn go_on_from(&mut self, state: &[u8]) -> bool {
        BlockLayer::go_on_from(self, state)
    }

    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        BlockLayer::save(self, now)
    }

    fn leave(&mut self) {
        BlockLayer::leave(self);
    }
}

impl<T: BlockDevice + ?Sized> BlockLayer for Box<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        self
    }

    fn inner_mut(&mut self) -> &mut T {
        self
    }
}

/// A layer over a USB device. Each method is the one of [`Device`] with the same name; by default it passes through.
pub trait DeviceLayer: Send {
    /// The device below.
    type Inner: Device + ?Sized;

    /// The device below.
    fn inner(&self) -> &Self::Inner;

    /// The device below.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Calls into the inner device. Every call that may bring answers goes through this method: a layer that wants to
    /// see the answers overrides it.
    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut Self::Inner, &mut CompletionQueue) -> R,
    ) -> R {
        let _ = now;
        act(self.inner_mut(), done)
    }

    /// Passes the call to the inner device; see [`Device::descriptors`].
    fn descriptors(&self) -> &DescriptorSet {
        self.inner().descriptors()
    }

    /// Passes the call to the inner device; see [`Device::speed`].
    fn speed(&self) -> UsbSpeed {
        self.inner().speed()
    }

    /// Passes the call to the inner device; see [`Device::selection`].
    fn selection(&self) -> &ConfigurationSelection {
        self.inner().selection()
    }

    /// Passes the request on by [`DeviceLayer::with_inner`]; see [`Device::submit`].
    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.submit(now, urb, done));
    }

    /// Passes the call on by [`DeviceLayer::with_inner`]; see [`Device::cancel`].
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.cancel(now, id, done));
    }

    /// Passes the call on by [`DeviceLayer::with_inner`]; see [`Device::reset`].
    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.reset(now, done));
    }

    /// Passes the call to the inner device; see [`Device::poll_timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        self.inner().poll_timeout()
    }

    /// Passes the call on by [`DeviceLayer::with_inner`]; see [`Device::handle_timeout`].
    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.handle_timeout(now, done));
    }

    /// Passes the call on by [`DeviceLayer::with_inner`]; see [`Device::end_turn`].
    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.end_turn(now, done));
    }

    /// Passes the call to the inner device; see [`Device::readiness`].
    fn readiness(&self) -> Option<&ReadinessSource> {
        self.inner().readiness()
    }

    /// Passes the call on by [`DeviceLayer::with_inner`]; see [`Device::handle_ready`].
    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.with_inner(now, done, |inner, done| inner.handle_ready(now, done));
    }

    /// Passes the call to the inner device; see [`Device::is_gone`].
    fn is_gone(&self) -> bool {
        self.inner().is_gone()
    }

    /// Passes the call to the inner device; see [`Device::verbs`].
    fn verbs(&self) -> &'static [&'static str] {
        self.inner().verbs()
    }

    /// See [`Device::command`].
    ///
    /// # Errors
    /// [`OwnerCommandError`] when the device does not know the command or refuses it.
    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        self.with_inner(now, done, |inner, done| inner.command(now, command, done))
    }

    /// Passes the call to the inner device; see [`Device::tally`].
    fn tally(&self) -> Option<NamedCounters> {
        self.inner().tally()
    }

    /// Saves the inner device's state alone: a layer with state overrides this. See [`Device::save`].
    fn save(&self) -> Option<Vec<u8>> {
        self.inner().save()
    }

    /// Restores the inner device's state alone: a layer with state overrides this. See [`Device::restore`].
    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        self.inner_mut().restore(selection, state)
    }

    /// Passes the call to the inner device; see [`Device::leave`].
    fn leave(&mut self) {
        self.inner_mut().leave();
    }
}

// A method added to the trait has to be forwarded here, too: clippy refuses the impl without it.
#[deny(clippy::missing_trait_methods)]
impl<L: DeviceLayer> Device for L {
    fn descriptors(&self) -> &DescriptorSet {
        DeviceLayer::descriptors(self)
    }

    fn speed(&self) -> UsbSpeed {
        DeviceLayer::speed(self)
    }

    fn selection(&self) -> &ConfigurationSelection {
        DeviceLayer::selection(self)
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        DeviceLayer::submit(self, now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        DeviceLayer::cancel(self, now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        DeviceLayer::reset(self, now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        DeviceLayer::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        DeviceLayer::handle_timeout(self, now, done);
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue) {
        DeviceLayer::end_turn(self, now, done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        DeviceLayer::readiness(self)
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        DeviceLayer::handle_ready(self, now, done);
    }

    fn is_gone(&self) -> bool {
        DeviceLayer::is_gone(self)
    }

    fn verbs(&self) -> &'static [&'static str] {
        DeviceLayer::verbs(self)
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        DeviceLayer::command(self, now, command, done)
    }

    fn tally(&self) -> Option<NamedCounters> {
        DeviceLayer::tally(self)
    }

    fn save(&self) -> Option<Vec<u8>> {
        DeviceLayer::save(self)
    }

    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        DeviceLayer::restore(self, selection, state)
    }

    fn leave(&mut self) {
        DeviceLayer::leave(self);
    }
}

impl<T: Device + ?Sized> DeviceLayer for Box<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        self
    }

    fn inner_mut(&mut self) -> &mut T {
        self
    }
}
