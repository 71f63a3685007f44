//! How two ends agree on a pipeline: the importer offers its halves, the exporter answers with the others, or says
//! which does not fit.

use std::fmt;
use std::sync::Arc;

use farbus_model::module::{Offer, PAIRS_MAX, Role};

use crate::catalogue::Catalogue;
use crate::files::Files;
use crate::maker::{Begun, Fill, Maker, Place};
use crate::pipeline::Pipeline;
use crate::refusal::{Mismatch, Refusal};
use crate::settings::{Asked, Settings};

/// What an importer's device is to go through, the device's user first.
#[derive(Clone, Default)]
pub struct Recipe {
    steps: Vec<(Arc<dyn Maker>, Settings)>,
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Recipe {
    /// These modules, with what files they name read.
    ///
    /// # Errors
    /// [`Refusal`]: which of them cannot be, and why.
    pub fn new(catalogue: &Catalogue, asked: &[Asked], files: &mut dyn Files) -> Result<Self, Refusal> {
        if let Some(one) = asked.get(PAIRS_MAX) {
            return Err(Refusal::new(&one.name, Mismatch::TooMany { max: PAIRS_MAX }));
        }
        let mut steps = Vec::new();
        for asked in asked {
            let maker = catalogue.find(&asked.name)?;
            let settings = Settings::of(maker.manifest(), asked, files)?;
            steps.push((Arc::clone(maker), settings));
        }
        Ok(Self { steps })
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|(maker, _)| maker.manifest().name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether all of them can go on in another process.
    pub fn is_movable(&self) -> bool {
        self.steps.iter().all(|(maker, _)| maker.manifest().effects.is_movable)
    }

    /// The importer's halves as another process saved them ([`Pipeline::save`]); `None` if they cannot be.
    pub fn restore(&self, place: &Place, states: &[Vec<u8>], random: Fill<'_>) -> Option<Pipeline> {
        let mut halves = Vec::new();
        for (maker, settings) in &self.steps {
            // Made as if the other half had answered anew; what the two agreed on once is in the state.
            let begun = maker.begin(settings, place, random).ok()?;
            let there = Place { role: Role::Exporter, ..place.clone() };
            let (_, answer) = maker.answer(settings, &there, begun.opening(), random).ok()?;
            halves.push((maker.manifest().name.to_owned(), begun.finish(&answer).ok()?));
        }
        let mut pipeline = Pipeline::new(halves);
        pipeline.restore(states).then_some(pipeline)
    }

    /// Halves that wait for their answers, for a device of this place.
    ///
    /// # Errors
    /// [`Refusal`]: one of them does not serve such a device.
    pub fn begin(&self, place: &Place, random: Fill<'_>) -> Result<Beginning, Refusal> {
        let mut halves = Vec::new();
        for (maker, settings) in &self.steps {
            serves(&**maker, place)?;
            halves.push((offer_of(&**maker, settings), maker.begin(settings, place, random)?));
        }
        let halves = halves.into_iter().map(|(offer, begun)| {
            let opening = begun.opening().to_vec();
            (Offer { opening, ..offer }, begun)
        });
        Ok(Beginning { halves: halves.collect() })
    }
}

fn serves(maker: &dyn Maker, place: &Place) -> Result<(), Refusal> {
    let manifest = maker.manifest();
    match manifest.classes.contains(&place.class) {
        true => Ok(()),
        false => Err(Refusal::new(manifest.name, Mismatch::Class(place.class.as_str()))),
    }
}

fn offer_of(maker: &dyn Maker, settings: &Settings) -> Offer {
    let manifest = maker.manifest();
    let parameters = settings.travelling().to_owned();
    Offer { name: manifest.name.to_owned(), version: manifest.version, parameters, opening: Vec::new() }
}

/// An importer's halves that wait for their answers.
pub struct Beginning {
    halves: Vec<(Offer, Box<dyn Begun>)>,
}

impl Beginning {
    /// What the exporter is told.
    pub fn offers(&self) -> impl Iterator<Item = &Offer> {
        self.halves.iter().map(|(offer, _)| offer)
    }

    /// The pipeline, once the exporter has answered; again if the device is opened again.
    ///
    /// # Errors
    /// [`Refusal`]: the answers do not fit.
    pub fn finish(&self, answers: &[Vec<u8>]) -> Result<Pipeline, Refusal> {
        let mut halves = Vec::new();
        for (index, (Offer { name, .. }, begun)) in self.halves.iter().enumerate() {
            let missing = || Refusal::new(name, Mismatch::Halves("its other half did not answer".to_owned()));
            let answer = answers.get(index).filter(|_| answers.len() == self.halves.len()).ok_or_else(missing)?;
            halves.push((name.clone(), begun.finish(answer)?));
        }
        Ok(Pipeline::new(halves))
    }
}

/// What importers may ask for at an exporter.
#[derive(Clone, Default)]
pub struct Allowance {
    entries: Vec<(Arc<dyn Maker>, Settings)>,
    known: Vec<String>,
}

impl Allowance {
    /// All that need nothing of their own host: they run inside the process, see nothing but what passes, and cost only
    /// who asked.
    pub fn usual(catalogue: &Catalogue) -> Self {
        let entries = catalogue.makers().iter().filter_map(|maker| {
            let untold = Asked { name: maker.manifest().name.to_owned(), parameters: Vec::new() };
            let mut no_file = |_: &str| Err("nobody named a file".to_owned());
            let settings = Settings::own(maker.manifest(), &untold, &mut no_file).ok()?;
            Some((Arc::clone(maker), settings))
        });
        let known = catalogue.manifests().map(|manifest| manifest.name.to_owned()).collect();
        Self { entries: entries.collect(), known }
    }

    /// The same and this one, with what its host tells it.
    ///
    /// # Errors
    /// [`Refusal`]: there is none, or it needs to be told something else.
    pub fn allow(&mut self, catalogue: &Catalogue, asked: &Asked, files: &mut dyn Files) -> Result<(), Refusal> {
        let maker = catalogue.find(&asked.name)?;
        let settings = Settings::own(maker.manifest(), asked, files)?;
        self.entries.retain(|(known, _)| known.manifest().name != asked.name);
        self.entries.push((Arc::clone(maker), settings));
        Ok(())
    }

    /// The other halves of what an importer offers, and their answers.
    ///
    /// # Errors
    /// [`Refusal`]: which does not fit, and why.
    pub fn answer(
        &self,
        offers: &[Offer],
        place: &Place,
        random: Fill<'_>,
    ) -> Result<(Pipeline, Vec<Vec<u8>>), Refusal> {
        if let Some(one) = offers.get(PAIRS_MAX) {
            return Err(Refusal::new(&one.name, Mismatch::TooMany { max: PAIRS_MAX }));
        }
        let (mut halves, mut answers) = (Vec::new(), Vec::new());
        for offer in offers {
            let found = self.entries.iter().find(|(maker, _)| maker.manifest().name == offer.name);
            let (maker, own) = found.ok_or_else(|| match self.known.contains(&offer.name) {
                true => Refusal::new(&offer.name, Mismatch::NotAllowed),
                false => Refusal::new(&offer.name, Mismatch::Unknown { known: self.known.clone() }),
            })?;
            let here = maker.manifest().version;
            if here != offer.version {
                return Err(Refusal::new(&offer.name, Mismatch::Version { here, there: offer.version }));
            }
            serves(&**maker, place)?;
            let settings = Settings::joined(maker.manifest(), &offer.parameters, own)?;
            let (half, answer) = maker.answer(&settings, place, &offer.opening, random)?;
            halves.push((offer.name.clone(), half));
            answers.push(answer);
        }
        Ok((Pipeline::new(halves), answers))
    }
}
