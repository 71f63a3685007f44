//! How a module's two halves come into being: one asks, the other answers.

use farbus_model::Payload;
use farbus_model::module::{Class, Manifest, Module, Role};

use crate::refusal::Refusal;
use crate::settings::Settings;

/// Fills bytes with randomness.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Where a half stands.
#[derive(Clone, Debug)]
pub struct Place {
    /// At which end.
    pub role: Role,
    /// Of a device of which class.
    pub class: Class,
    /// The head of a completion that says: it failed.
    pub failed: Payload,
}

/// A kind of module.
pub trait Maker: Send + Sync {
    /// What it is.
    fn manifest(&self) -> &'static Manifest;

    /// The importer's half, before the other has answered.
    ///
    /// # Errors
    /// [`Refusal`]: it cannot be with these settings.
    fn begin(&self, settings: &Settings, place: &Place, random: Fill<'_>) -> Result<Box<dyn Begun>, Refusal>;

    /// The exporter's half, and its answer to the importer's first word.
    ///
    /// # Errors
    /// [`Refusal`]: the two do not fit.
    fn answer(
        &self,
        settings: &Settings,
        place: &Place,
        opening: &[u8],
        random: Fill<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), Refusal>;
}

/// An importer's half that waits for its answer.
pub trait Begun: Send {
    /// Its first word.
    fn opening(&self) -> &[u8];

    /// The half, once the other has answered; again if the device is opened again.
    ///
    /// # Errors
    /// [`Refusal`]: the two do not fit.
    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, Refusal>;
}

/// A kind of module whose halves have nothing to say to each other first.
pub struct Simple {
    /// What it is.
    pub manifest: &'static Manifest,
    /// A half of it.
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
