//! How a module's two halves are made: one makes an offer, the other answers.

use farbus_model::Payload;
use farbus_model::module::{Class, Manifest, Module, Role};

use crate::cost::ModuleCost;
use crate::refusal::Refusal;
use crate::settings::Settings;

/// A source of random bytes.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]);

/// The circumstances of a half.
#[derive(Clone, Debug)]
pub struct Place {
    /// The end at which it runs.
    pub role: Role,
    /// The class of its device.
    pub class: Class,
    /// The head of a completion that reports a failure.
    pub failed: Payload,
}

/// A kind of module.
pub trait Maker: Send + Sync {
    /// The module's description.
    fn manifest(&self) -> &'static Manifest;

    /// What a half costs with these settings.
    fn cost(&self, settings: &Settings) -> ModuleCost;

    /// Begins the importer's half, before the other end has answered.
    ///
    /// # Errors
    /// [`Refusal`]: the settings do not permit it.
    fn begin(&self, settings: &Settings, place: &Place, random: Fill<'_>) -> Result<Box<dyn Begun>, Refusal>;

    /// Makes the exporter's half and its answer to the importer's opening.
    ///
    /// # Errors
    /// [`Refusal`]: the two halves do not match.
    fn answer(
        &self,
        settings: &Settings,
        place: &Place,
        opening: &[u8],
        random: Fill<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), Refusal>;
}

/// An importer's half that waits for the answer.
pub trait Begun: Send {
    /// Its opening, the first message to the other half.
    fn opening(&self) -> &[u8];

    /// Makes the half, once the other end has answered; called again if the device is opened again.
    ///
    /// # Errors
    /// [`Refusal`]: the two halves do not match.
    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, Refusal>;
}

/// A kind of module whose halves need no opening and no answer.
pub struct Simple {
    /// The module's description.
    pub manifest: &'static Manifest,
    /// What a half costs with these settings.
    pub cost: fn(&Settings) -> ModuleCost,
    /// Makes a half.
    pub make: fn(&Settings, &Place) -> Box<dyn Module>,
}

struct SimpleBegun {
    make: fn(&Settings, &Place) -> Box<dyn Module>,
    settings: Settings,
    place: Place,
}

impl Maker for Simple {
    fn manifest(&self) -> &'static Manifest {
        self.manifest
    }

    fn cost(&self, settings: &Settings) -> ModuleCost {
        (self.cost)(settings)
    }

    fn begin(&self, settings: &Settings, place: &Place, _random: Fill<'_>) -> Result<Box<dyn Begun>, Refusal> {
        Ok(Box::new(SimpleBegun { make: self.make, settings: settings.clone(), place: place.clone() }))
    }

    fn answer(
        &self,
        settings: &Settings,
        place: &Place,
        _opening: &[u8],
        _random: Fill<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), Refusal> {
        Ok(((self.make)(settings, place), Vec::new()))
    }
}

impl Begun for SimpleBegun {
    fn opening(&self) -> &[u8] {
        &[]
    }

    fn finish(&self, _answer: &[u8]) -> Result<Box<dyn Module>, Refusal> {
        Ok((self.make)(&self.settings, &self.place))
    }
}
