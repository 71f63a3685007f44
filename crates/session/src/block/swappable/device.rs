//! The device as its users see it: alone until a swap begins, and alone again once one was given up.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockLayer, CompletionQueue, Instant, PendingBlockRequests,
    ReadinessSource,
};
use farbus_wire::ProtocolViolation;
use farbus_wire::snapshot::FieldReader;

use super::exchanging::{DeviceSwapAction, SwapRequestTracker, check_destination};
use crate::block::swap::{SwapError, SwapOptions, SwapProgress};

/// A device that can be exchanged for another one while it is in use. Its size, its blocks and its limits stay as they
/// are.
#[derive(Debug)]
pub struct SwappableDevice<D> {
    /// Always there, but for the moment in which it becomes the other one.
    form: Option<SwappableForm<D>>,
}

#[derive(Debug)]
enum SwappableForm<D> {
    /// Requests and answers pass through. The second is how many requests the device holds.
    Alone(D, usize),
    /// Requests have numbers of our own, so that they can be given to two devices: from the first swap on, unless it is
    /// given up.
    Exchanging(Box<SwapRequestTracker<D>>),
}

impl<D: BlockDevice> SwappableDevice<D> {
    /// Passes requests to `device` as they are, until the first swap begins.
    pub fn new(device: D) -> Self {
        Self { form: Some(SwappableForm::Alone(device, 0)) }
    }

    /// Notes that the device holds so many requests of its users already: another process submitted them.
    #[must_use]
    pub fn holding(mut self, requests: usize) -> Self {
        if let SwappableForm::Alone(_, held) = self.form_mut() {
            *held = requests;
        }
        self
    }

    fn exchanged(device: SwapRequestTracker<D>) -> Self {
        Self { form: Some(SwappableForm::Exchanging(Box::new(device))) }
    }

    fn form(&self) -> &SwappableForm<D> {
        self.form.as_ref().expect("it has a form")
    }

    fn form_mut(&mut self) -> &mut SwappableForm<D> {
        self.form.as_mut().expect("it has a form")
    }

    fn exchanging(&mut self) -> Option<&mut SwapRequestTracker<D>> {
        match self.form_mut() {
            SwappableForm::Alone(..) => None,
            SwappableForm::Exchanging(both) => Some(both),
        }
    }

    /// Requests pass through again, once nothing is left of a swap that was given up.
    fn settle_form(&mut self) {
        let is_over =
            |form: &mut SwappableForm<D>| matches!(form, SwappableForm::Exchanging(both) if both.is_as_at_first());
        if let Some(SwappableForm::Exchanging(both)) = self.form.take_if(is_over) {
            let (device, held) = both.into_device();
            self.form = Some(SwappableForm::Alone(device, held));
        }
    }

    /// Ends the requests that have no answer, whose users have gone: the device is dropped next, and the one below ends
    /// its own.
    pub fn abandon(&mut self) {
        if let Some(both) = self.exchanging() {
            both.abandon();
        }
    }

    /// The device as it is now.
    pub fn current(&self) -> &D {
        match self.form() {
            SwappableForm::Alone(device, _) => device,
            SwappableForm::Exchanging(both) => both.current(),
        }
    }

    /// Begins to exchange the device for `destination`. While both are used, an engine waits on `readiness`, which
    /// covers both. The journal says already that a copy is begun.
    ///
    /// # Errors
    /// [`SwapError`], with the destination.
    pub fn begin(
        &mut self,
        now: Instant,
        destination: D,
        readiness: Option<ReadinessSource>,
        options: SwapOptions,
    ) -> Result<(), (SwapError, D)> {
        if let SwappableForm::Alone(device, _) = self.form()
            && let Err(error) = check_destination(device.info(), destination.info())
        {
            return Err((error, destination));
        }
        let mut both = match self.form.take().expect("it has a form") {
            SwappableForm::Alone(device, held) => Box::new(SwapRequestTracker::new(device, held)),
            SwappableForm::Exchanging(both) => both,
        };
        let begun = both.begin(now, destination, readiness, options);
        self.form = Some(SwappableForm::Exchanging(both));
        begun
    }

    /// Cancels the swap. Returns `false` if there is none, or if it is too late: the destination is the device.
    pub fn cancel(&mut self, now: Instant) -> bool {
        self.exchanging().is_some_and(|both| both.cancel(now))
    }

    /// How far the swap is; `None` if there is none.
    pub fn progress(&self, now: Instant) -> Option<SwapProgress> {
        match self.form() {
            SwappableForm::Alone(..) => None,
            SwappableForm::Exchanging(both) => both.progress(now),
        }
    }

    /// What its owner is to do next.
    pub fn poll_work(&mut self) -> Option<DeviceSwapAction<D>> {
        let work = self.exchanging()?.poll_work();
        self.settle_form();
        work
    }

    /// The journal was told what [`DeviceSwapAction::Note`] said, or it could not be.
    pub fn handle_noted(
        &mut self,
        now: Instant,
        result: Result<(), String>,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        if let Some(both) = self.exchanging() {
            both.handle_noted(now, result, done);
        }
    }

    /// A snapshot of the device after a swap, with its requests that the device below has and saves itself. `None`: it
    /// was not exchanged, a swap is under way, the device below cannot be saved, or a request waits here.
    pub fn save_away(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.exchanging()?.save_away(now)
    }

    /// Restores a device that was exchanged from a snapshot of [`SWAPPED_KIND`](super::SWAPPED_KIND). `device` restores
    /// the device below from its own bytes, for users of a device as described. Returns it with the requests that it
    /// has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore<E: From<ProtocolViolation>>(
        now: Instant,
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8], &BlockInfo) -> Result<D, E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        SwapRequestTracker::restore(now, from, device).map(|(device, pending)| (Self::exchanged(device), pending))
    }

    /// Restores a device from a snapshot of [`AWAY_KIND`](super::AWAY_KIND). `device` restores the device below from
    /// its own bytes, with the requests that it has. Returns it with those that it has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore_away<E: From<ProtocolViolation>>(
        now: Instant,
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8], &BlockInfo) -> Result<(D, PendingBlockRequests), E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        SwapRequestTracker::restore_away(now, from, device).map(|(device, pending)| (Self::exchanged(device), pending))
    }
}

impl<D: BlockDevice + 'static> BlockLayer for SwappableDevice<D> {
    type Inner = dyn BlockDevice;

    fn inner(&self) -> &Self::Inner {
        match self.form() {
            SwappableForm::Alone(device, _) => device,
            SwappableForm::Exchanging(both) => &**both,
        }
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        match self.form_mut() {
            SwappableForm::Alone(device, _) => device,
            SwappableForm::Exchanging(both) => &mut **both,
        }
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if let SwappableForm::Alone(_, held) = self.form_mut() {
            *held += 1;
        }
        self.with_inner(now, done, |inner, done| inner.submit(now, request, done));
    }

    fn with_inner<R>(
        &mut self,
        _: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut Self::Inner, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        match self.form_mut() {
            SwappableForm::Alone(device, held) => {
                let before = done.len();
                let result = act(device, done);
                *held -= done.len() - before;
                result
            }
            SwappableForm::Exchanging(both) => {
                let result = act(&mut **both, done);
                self.settle_form();
                result
            }
        }
    }
}
