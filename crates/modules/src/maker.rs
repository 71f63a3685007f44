//! How a module's two halves are made: one makes an offer, the other answers.

use farbus_model::Payload;
use farbus_model::module::{Module, ModuleDeviceClass, ModuleManifest, ModuleRole};

use crate::cost::ModuleCost;
use crate::refusal::ModuleRefusal;
use crate::settings::ModuleSettings;

/// A source of random bytes.
pub type RandomSource<'a> = &'a mut dyn FnMut(&mut [u8]);

/// The circumstances of a half.
#[derive(Clone, Debug)]
pub struct ModuleContext {
    /// The end at which it runs.
    pub role: ModuleRole,
    /// The class of its device.
    pub class: ModuleDeviceClass,
    /// The head of a completion that reports a failure.
    pub failed: Payload,
}

/// A kind of module.
pub trait ModuleMaker: Send + Sync {
    /// The module's description.
    fn manifest(&self) -> &'static ModuleManifest;

    /// What a half costs with these settings.
    fn cost(&self, settings: &ModuleSettings) -> ModuleCost;

    /// Begins the importer's half, before the other end has answered.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: the settings do not permit it.
    fn begin(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        random: RandomSource<'_>,
    ) -> Result<Box<dyn PendingModule>, ModuleRefusal>;

    /// Makes the exporter's half and its answer to the importer's opening.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: the two halves do not match.
    fn answer(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        opening: &[u8],
        random: RandomSource<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), ModuleRefusal>;
}

/// An importer's half that waits for the answer.
pub trait PendingModule: Send {
    /// Its opening, the first message to the other half.
    fn opening(&self) -> &[u8];

    /// Makes the half, once the other end has answered; called again if the device is opened again.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: the two halves do not match.
    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal>;
}

/// A kind of module whose halves need no opening and no answer.
pub struct SimpleMaker {
    /// The module's description.
    pub manifest: &'static ModuleManifest,
    /// What a half costs with these settings.
    pub cost: fn(&ModuleSettings) -> ModuleCost,
    /// Makes a half.
    pub make: fn(&ModuleSettings, &ModuleContext) -> Box<dyn Module>,
}

struct PendingSimpleModule {
    make: fn(&ModuleSettings, &ModuleContext) -> Box<dyn Module>,
    settings: ModuleSettings,
    context: ModuleContext,
}

impl ModuleMaker for SimpleMaker {
    fn manifest(&self) -> &'static ModuleManifest {
        self.manifest
    }

    fn cost(&self, settings: &ModuleSettings) -> ModuleCost {
        (self.cost)(settings)
    }

    fn begin(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        _random: RandomSource<'_>,
    ) -> Result<Box<dyn PendingModule>, ModuleRefusal> {
        Ok(Box::new(PendingSimpleModule { make: self.make, settings: settings.clone(), context: context.clone() }))
    }

    fn answer(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        _opening: &[u8],
        _random: RandomSource<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), ModuleRefusal> {
        Ok(((self.make)(settings, context), Vec::new()))
    }
}

impl PendingModule for PendingSimpleModule {
    fn opening(&self) -> &[u8] {
        &[]
    }

    fn finish(&self, _answer: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal> {
        Ok((self.make)(&self.settings, &self.context))
    }
}
