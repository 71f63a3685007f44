//! The modules that attachments go through: what the importer asked for, what that costs, and what is agreed on.
//!
//! What the modules of an attachment need is taken from the importer's memory before they are made, and counted until
//! the attachment ends ([`farbus_modules::cost`]).

use std::mem;

use farbus_model::Instant;
use farbus_model::budget::{BudgetShortage, OFFERS_BYTES_MAX, SESSION_BYTES};
use farbus_model::module::ModuleRole;
use farbus_modules::{ModuleMismatch, ModuleRefusal, PipelineCost};
use farbus_wire::native::ReceivedFrame;
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest};
use farbus_wire::native::modules::decode_offers;

use super::module_request::{AgreedModules, ModuleRequest, offer_bytes};
use super::session::{ATTACHMENTS_MAX, ExporterSession, ServedExport};
use crate::ProtocolViolation;
use crate::native::pipe::{SavedPipe, context_of};
use crate::native::piped_served::PipedServed;
use crate::native::services::AllowedModules;
use crate::snapshot::SavedPart;

fn refused(message: String) -> AttachmentEndNotice {
    AttachmentEndNotice { cause: AttachmentEndCause::Module, message }
}

impl ExporterSession {
    /// Memory of what was asked for, and of the modules themselves, bytes.
    pub(super) fn module_bytes(&self) -> usize {
        self.offers.values().map(|request| request.offers_bytes() + request.bytes).sum()
    }

    pub(super) fn hear_offers(&mut self, number: u16, arrived: &ReceivedFrame) -> Result<(), ProtocolViolation> {
        let offers = decode_offers(&arrived.body.contiguous())?;
        let is_used = number == 0 || self.is_attached(number) || self.handovers.successors.contains_key(&number);
        if is_used || self.offers.len() >= ATTACHMENTS_MAX || self.offers.contains_key(&number) {
            return Err(ProtocolViolation::new(
                "attachment",
                number.into(),
                "modules are for a device that is opened next",
            ));
        }
        let kept: usize = self.offers.values().map(ModuleRequest::offers_bytes).sum();
        let bytes = kept + offers.iter().map(offer_bytes).sum::<usize>();
        if bytes > OFFERS_BYTES_MAX {
            return Err(ProtocolViolation::new(
                "modules",
                bytes as u64,
                "the modules of a session's devices take 64 KiB at most",
            ));
        }
        self.offers.insert(number, offers.into());
        Ok(())
    }

    /// The modules for this attachment, if the importer asked for any. Their memory is the attachment's from now on.
    pub(super) fn agree(
        &mut self,
        number: u16,
        open: &OpenRequest,
    ) -> Result<Option<AgreedModules>, AttachmentEndNotice> {
        let Some(cost) = self.module_cost(number, open)? else { return Ok(None) };
        let checked = cost.check_processor().and_then(|()| self.take_memory(number, &cost));
        checked.map_err(|refusal| refused(refusal.to_string()))?;
        self.make_modules(number, open)
    }

    /// As [`ExporterSession::agree`], for modules that another process had. They are counted, and continue even if the
    /// importer is beyond its limit.
    fn agree_again(&mut self, number: u16, open: &OpenRequest) -> Result<Option<AgreedModules>, AttachmentEndNotice> {
        let cost = self.module_cost(number, open)?;
        if let Some((request, cost)) = self.offers.get_mut(&number).zip(cost) {
            request.bytes = cost.bytes;
            self.may_hold(0);
        }
        self.make_modules(number, open)
    }

    fn module_cost(&self, number: u16, open: &OpenRequest) -> Result<Option<PipelineCost>, AttachmentEndNotice> {
        let Some(request) = self.offers.get(&number) else { return Ok(None) };
        let Some(AllowedModules { modules, .. }) = self.modules.as_deref() else {
            return Err(refused("nothing goes through modules here".to_owned()));
        };
        if open.mode == AttachmentMode::Observe {
            return Err(refused("what is only looked at goes through no modules".to_owned()));
        }
        let cost = modules.cost(&request.offers, &context_of(ModuleRole::Exporter, open.class));
        cost.map(Some).map_err(|refusal| refused(refusal.to_string()))
    }

    fn take_memory(&mut self, number: u16, cost: &PipelineCost) -> Result<(), ModuleRefusal> {
        let Some(request) = self.offers.get_mut(&number) else { return Ok(()) };
        let before = mem::replace(&mut request.bytes, cost.bytes);
        let all = self.held_bytes().max(SESSION_BYTES);
        self.backlog.allowance.cover_for_device(all).map_err(|BudgetShortage { left_bytes, limit_bytes }| {
            self.offers.get_mut(&number).into_iter().for_each(|request| request.bytes = before);
            let (modules, needed_bytes) = (cost.halves, cost.bytes);
            ModuleRefusal::new(&cost.largest, ModuleMismatch::Memory { modules, needed_bytes, left_bytes, limit_bytes })
        })
    }

    fn make_modules(&self, number: u16, open: &OpenRequest) -> Result<Option<AgreedModules>, AttachmentEndNotice> {
        let (Some(request), Some(AllowedModules { modules, random })) =
            (self.offers.get(&number), self.modules.as_deref())
        else {
            return Ok(None);
        };
        let context = context_of(ModuleRole::Exporter, open.class);
        let agreed = modules.answer(&request.offers, &context, &mut |bytes| random(bytes));
        agreed.map(Some).map_err(|refusal| refused(refusal.to_string()))
    }

    /// Ends the attachments whose modules hold back more than their credit, if the importer's memory does not cover
    /// that: it asks for more although it has not received what it asked for.
    pub(super) fn end_what_holds_too_much(&mut self, now: Instant) {
        let is_beyond = |served: &dyn ServedExport| served.asked_bytes() > served.answers_bytes_max();
        let behind_modules = self.attachments.iter().filter(|(number, _)| self.offers.contains_key(*number));
        let beyond = behind_modules.filter(|(_, attached)| is_beyond(&*attached.served));
        let beyond: Vec<u16> = beyond.map(|(&number, _)| number).collect();
        for number in beyond {
            if !self.may_hold(0) {
                let message = "its modules hold back more than its credit, and this host has no memory left here for that: \
                               it has to take the answers that it asked for";
                self.close(
                    now,
                    number,
                    &AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: message.to_owned() },
                );
            }
        }
    }

    /// The device behind the modules of the snapshot.
    pub(super) fn behind_modules(
        &mut self,
        number: u16,
        open: &OpenRequest,
        modules: &SavedPart,
        served: Box<dyn ServedExport>,
    ) -> Result<Box<dyn ServedExport>, (Box<dyn ServedExport>, ProtocolViolation)> {
        if modules.is_empty() {
            return Ok(served);
        }
        let mut read = || {
            let wrong = |rule| ProtocolViolation::new("modules", number.into(), rule);
            let mut from = modules.reader();
            let saved = SavedPipe::restore(&mut from)?;
            from.end("modules")?;
            // The pipeline is made as for a new attachment; then the saved states replace what the halves had agreed
            // on.
            let agreed = self.agree_again(number, open).map_err(|_| wrong("they are allowed here"))?;
            let (mut pipeline, _) = agreed.ok_or(wrong("they were asked for"))?;
            let is_restored = pipeline.restore(saved.states());
            is_restored.then_some((pipeline, saved)).ok_or(wrong("they can have stood so"))
        };
        match read() {
            Ok((pipeline, saved)) => Ok(Box::new(PipedServed::resumed(number, served, pipeline, saved))),
            Err(reject) => Err((served, reject)),
        }
    }
}
