//! What an importer asked for of modules, and what the exporter agreed to.

use farbus_model::module::ModuleOffer;
use farbus_modules::ModulePipeline;

/// The exporter's halves of the modules, and their answers to the importer's halves.
pub(super) type AgreedModules = (ModulePipeline, Vec<Vec<u8>>);

/// Modules that the importer asked for.
pub(super) struct ModuleRequest {
    pub offers: Vec<ModuleOffer>,
    /// Memory that the modules take, once they are agreed on.
    pub bytes: usize,
}

impl From<Vec<ModuleOffer>> for ModuleRequest {
    fn from(offers: Vec<ModuleOffer>) -> Self {
        Self { offers, bytes: 0 }
    }
}

impl ModuleRequest {
    /// Memory of the offers, bytes.
    pub fn offers_bytes(&self) -> usize {
        self.offers.iter().map(offer_bytes).sum()
    }
}

/// Memory of an offer, bytes.
pub(super) fn offer_bytes(offer: &ModuleOffer) -> usize {
    size_of::<ModuleOffer>() + offer.name.len() + offer.parameters.len() + offer.opening.len()
}
