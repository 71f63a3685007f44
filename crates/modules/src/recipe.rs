//! How two ends agree on a pipeline: the importer offers its halves, and the exporter answers with the other halves, or
//! says which one does not match.

use std::fmt;
use std::sync::Arc;

use farbus_model::module::{ModuleOffer, ModuleRole, PAIRS_MAX};

use crate::catalogue::ModuleCatalogue;
use crate::cost::{PIPELINE_BYTES, PipelineCost};
use crate::files::ModuleFiles;
use crate::maker::{ModuleContext, ModuleMaker, PendingModule, RandomSource};
use crate::pipeline::ModulePipeline;
use crate::refusal::{ModuleMismatch, ModuleRefusal};
use crate::settings::{ModuleSettings, ModuleSpec};

/// The modules of an importer's attachment, beginning at the device's user.
#[derive(Clone, Default)]
pub struct PipelineRecipe {
    steps: Vec<(Arc<dyn ModuleMaker>, ModuleSettings)>,
}

impl fmt::Debug for PipelineRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl PipelineRecipe {
    /// Makes a recipe of these modules, and reads the files they name.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: which module is impossible, and why.
    pub fn new(
        catalogue: &ModuleCatalogue,
        specs: &[ModuleSpec],
        files: &mut dyn ModuleFiles,
    ) -> Result<Self, ModuleRefusal> {
        if let Some(one) = specs.get(PAIRS_MAX) {
            return Err(ModuleRefusal::new(&one.name, ModuleMismatch::TooMany { max: PAIRS_MAX }));
        }
        let mut steps = Vec::new();
        for spec in specs {
            let maker = catalogue.find(&spec.name)?;
            let settings = ModuleSettings::of(maker.manifest(), spec, files)?;
            steps.push((Arc::clone(maker), settings));
        }
        Ok(Self { steps })
    }

    /// The modules' names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|(maker, _)| maker.manifest().name)
    }

    /// Whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether all modules can continue in another process.
    pub fn is_movable(&self) -> bool {
        self.steps.iter().all(|(maker, _)| maker.manifest().effects.is_movable)
    }

    /// Restores the importer's halves from saved states ([`ModulePipeline::save`]); `None` if that is impossible.
    pub fn restore(
        &self,
        context: &ModuleContext,
        states: &[Vec<u8>],
        random: RandomSource<'_>,
    ) -> Option<ModulePipeline> {
        let mut halves = Vec::new();
        for (maker, settings) in &self.steps {
            // Made as if the other half answered again; what the two had agreed on is in the state.
            let begun = maker.begin(settings, context, random).ok()?;
            let there = ModuleContext { role: ModuleRole::Exporter, ..context.clone() };
            let (_, answer) = maker.answer(settings, &there, begun.opening(), random).ok()?;
            halves.push((maker.manifest().name.to_owned(), begun.finish(&answer).ok()?));
        }
        let mut pipeline = ModulePipeline::new(halves);
        pipeline.restore(states).then_some(pipeline)
    }

    /// Begins the importer's halves for a device.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: a module does not serve such a device.
    pub fn begin(&self, context: &ModuleContext, random: RandomSource<'_>) -> Result<PendingPipeline, ModuleRefusal> {
        let mut halves = Vec::new();
        for (maker, settings) in &self.steps {
            serves(&**maker, context)?;
            halves.push((offer_of(&**maker, settings), maker.begin(settings, context, random)?));
        }
        let halves = halves.into_iter().map(|(offer, begun)| {
            let opening = begun.opening().to_vec();
            (ModuleOffer { opening, ..offer }, begun)
        });
        Ok(PendingPipeline { halves: halves.collect() })
    }
}

fn serves(maker: &dyn ModuleMaker, context: &ModuleContext) -> Result<(), ModuleRefusal> {
    let manifest = maker.manifest();
    match manifest.classes.contains(&context.class) {
        true => Ok(()),
        false => Err(ModuleRefusal::new(manifest.name, ModuleMismatch::Class(context.class.as_str()))),
    }
}

fn offer_of(maker: &dyn ModuleMaker, settings: &ModuleSettings) -> ModuleOffer {
    let manifest = maker.manifest();
    let parameters = settings.travelling().to_owned();
    ModuleOffer { name: manifest.name.to_owned(), version: manifest.version, parameters, opening: Vec::new() }
}

/// An importer's halves that wait for their answers.
pub struct PendingPipeline {
    halves: Vec<(ModuleOffer, Box<dyn PendingModule>)>,
}

impl PendingPipeline {
    /// The offers to the exporter.
    pub fn offers(&self) -> impl Iterator<Item = &ModuleOffer> {
        self.halves.iter().map(|(offer, _)| offer)
    }

    /// Makes the pipeline, once the exporter has answered; called again if the device is opened again.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: the answers do not match.
    pub fn finish(&self, answers: &[Vec<u8>]) -> Result<ModulePipeline, ModuleRefusal> {
        let mut halves = Vec::new();
        for (index, (ModuleOffer { name, .. }, begun)) in self.halves.iter().enumerate() {
            let missing =
                || ModuleRefusal::new(name, ModuleMismatch::Halves("its other half did not answer".to_owned()));
            let answer = answers.get(index).filter(|_| answers.len() == self.halves.len()).ok_or_else(missing)?;
            halves.push((name.clone(), begun.finish(answer)?));
        }
        Ok(ModulePipeline::new(halves))
    }
}

/// The modules that an exporter lets importers use.
#[derive(Clone, Default)]
pub struct ModuleAllowance {
    entries: Vec<AllowedModule>,
    known: Vec<String>,
}

/// A module that importers may use.
#[derive(Clone)]
struct AllowedModule {
    maker: Arc<dyn ModuleMaker>,
    /// The settings of this host.
    own: ModuleSettings,
    /// The owner named it: the processor time that it takes is his to give.
    is_named: bool,
}

/// An offer that is understood: its module, and the settings of both hosts.
struct AcceptedModuleOffer<'a> {
    entry: &'a AllowedModule,
    settings: ModuleSettings,
}

impl ModuleAllowance {
    /// The modules that need nothing of the exporter's host: they run inside the process, see only what passes, and
    /// cost only the importer that asked for them.
    pub fn usual(catalogue: &ModuleCatalogue) -> Self {
        let entries = catalogue.makers().iter().filter_map(|maker| {
            let untold = ModuleSpec { name: maker.manifest().name.to_owned(), parameters: Vec::new() };
            let mut no_file = |_: &str| Err("nobody named a file".to_owned());
            let settings = ModuleSettings::own(maker.manifest(), &untold, &mut no_file).ok()?;
            Some(AllowedModule { maker: Arc::clone(maker), own: settings, is_named: false })
        });
        let known = catalogue.manifests().map(|manifest| manifest.name.to_owned()).collect();
        Self { entries: entries.collect(), known }
    }

    /// Also allows this module, with its settings, and whatever processor time it takes.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: there is no such module, or its settings are invalid.
    pub fn allow(
        &mut self,
        catalogue: &ModuleCatalogue,
        spec: &ModuleSpec,
        files: &mut dyn ModuleFiles,
    ) -> Result<(), ModuleRefusal> {
        let maker = catalogue.find(&spec.name)?;
        let own = ModuleSettings::own(maker.manifest(), spec, files)?;
        self.entries.retain(|known| known.maker.manifest().name != spec.name);
        self.entries.push(AllowedModule { maker: Arc::clone(maker), own, is_named: true });
        Ok(())
    }

    /// What the other halves of an importer's offers will cost. Nothing is made yet.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: which one does not match, and why.
    pub fn cost(&self, offers: &[ModuleOffer], context: &ModuleContext) -> Result<PipelineCost, ModuleRefusal> {
        let (mut bytes, mut processor_ns_per_byte) = (PIPELINE_BYTES, 0);
        let (mut largest, mut slowest) = ((0, ""), (0, ""));
        for AcceptedModuleOffer { entry, settings } in self.steps(offers, context)? {
            let name = entry.maker.manifest().name;
            let half = entry.maker.cost(&settings);
            bytes = bytes.saturating_add(half.state_bytes);
            largest = largest.max((half.state_bytes, name));
            if !entry.is_named {
                processor_ns_per_byte += u64::from(half.processor_ns_per_byte);
                slowest = slowest.max((half.processor_ns_per_byte, name));
            }
        }
        let (largest, slowest) = (largest.1.to_owned(), slowest.1.to_owned());
        Ok(PipelineCost { bytes, largest, halves: offers.len(), processor_ns_per_byte, slowest })
    }

    /// Makes the other halves of an importer's offers, and their answers. [`ModuleAllowance::cost`] said before what
    /// they cost.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: which one does not match, and why.
    pub fn answer(
        &self,
        offers: &[ModuleOffer],
        context: &ModuleContext,
        random: RandomSource<'_>,
    ) -> Result<(ModulePipeline, Vec<Vec<u8>>), ModuleRefusal> {
        let (mut halves, mut answers) = (Vec::new(), Vec::new());
        for (offer, AcceptedModuleOffer { entry, settings }) in offers.iter().zip(self.steps(offers, context)?) {
            let (half, answer) = entry.maker.answer(&settings, context, &offer.opening, random)?;
            halves.push((offer.name.clone(), half));
            answers.push(answer);
        }
        Ok((ModulePipeline::new(halves), answers))
    }

    fn steps(
        &self,
        offers: &[ModuleOffer],
        context: &ModuleContext,
    ) -> Result<Vec<AcceptedModuleOffer<'_>>, ModuleRefusal> {
        if let Some(one) = offers.get(PAIRS_MAX) {
            return Err(ModuleRefusal::new(&one.name, ModuleMismatch::TooMany { max: PAIRS_MAX }));
        }
        offers.iter().map(|offer| self.step(offer, context)).collect()
    }

    fn step(&self, offer: &ModuleOffer, context: &ModuleContext) -> Result<AcceptedModuleOffer<'_>, ModuleRefusal> {
        let found = self.entries.iter().find(|entry| entry.maker.manifest().name == offer.name);
        let entry = found.ok_or_else(|| match self.known.contains(&offer.name) {
            true => ModuleRefusal::new(&offer.name, ModuleMismatch::NotAllowed),
            false => ModuleRefusal::new(&offer.name, ModuleMismatch::UnknownToExporter { known: self.known.clone() }),
        })?;
        let here = entry.maker.manifest().version;
        if here != offer.version {
            return Err(ModuleRefusal::new(&offer.name, ModuleMismatch::Version { here, there: offer.version }));
        }
        serves(&*entry.maker, context)?;
        let settings = ModuleSettings::joined(entry.maker.manifest(), &offer.parameters, &entry.own)?;
        Ok(AcceptedModuleOffer { entry, settings })
    }
}
