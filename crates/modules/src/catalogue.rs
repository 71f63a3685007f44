//! The catalogue of modules.

use std::sync::Arc;

use farbus_model::module::Manifest;

use crate::maker::Maker;
use crate::refusal::{Mismatch, Refusal};
use crate::{
    buffer, bundle, corrupt, cut, delay, drop, jitter, lz4, null, pause, pointer, rate, record, replay, seal, stale,
    zstd,
};

/// Modules by their names.
#[derive(Clone)]
pub struct Catalogue {
    makers: Vec<Arc<dyn Maker>>,
}

impl Catalogue {
    /// The modules that ship with farbus.
    pub fn builtin() -> Self {
        let makers: Vec<Arc<dyn Maker>> = vec![
            Arc::new(lz4::LZ4),
            Arc::new(zstd::ZSTD),
            Arc::new(seal::SEAL),
            Arc::new(rate::RATE),
            Arc::new(bundle::BUNDLE),
            Arc::new(buffer::BUFFER),
            Arc::new(pause::PAUSE),
            Arc::new(pointer::POINTER),
            Arc::new(stale::STALE),
            Arc::new(record::RECORD),
            Arc::new(replay::REPLAY),
            Arc::new(delay::DELAY),
            Arc::new(jitter::JITTER),
            Arc::new(drop::DROP),
            Arc::new(corrupt::CORRUPT),
            Arc::new(cut::CUT),
            Arc::new(null::NULL),
        ];
        Self { makers }
    }

    /// Adds a module. If the name is known already, the new module replaces the old one.
    pub fn add(&mut self, maker: Arc<dyn Maker>) {
        self.makers.retain(|known| known.manifest().name != maker.manifest().name);
        self.makers.push(maker);
    }

    /// The manifests of all modules.
    pub fn manifests(&self) -> impl Iterator<Item = &'static Manifest> {
        self.makers.iter().map(|maker| maker.manifest())
    }

    /// All modules.
    pub fn makers(&self) -> &[Arc<dyn Maker>] {
        &self.makers
    }

    /// The module of this name.
    ///
    /// # Errors
    /// [`Refusal`]: there is none; it names those that there are.
    pub fn find(&self, name: &str) -> Result<&Arc<dyn Maker>, Refusal> {
        let known = || self.manifests().map(|manifest| manifest.name.to_owned()).collect();
        let found = self.makers.iter().find(|maker| maker.manifest().name == name);
        found.ok_or_else(|| Refusal::new(name, Mismatch::Unknown { known: known() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_a_name_a_line_and_a_manual_that_shows_how_it_is_asked_for() {
        let catalogue = Catalogue::builtin();
        let mut names: Vec<&str> = catalogue.manifests().map(|manifest| manifest.name).collect();
        for manifest in catalogue.manifests() {
            let Manifest { name, summary, manual, parameters, .. } = manifest;
            assert!(summary.len() <= 60 && !summary.is_empty(), "{name}: '{summary}' fits a list's line");
            assert!(manual.starts_with(&format!("# {name}\n")), "{name}: {manual:.40}");
            assert!(manual.contains(&format!("--module {name}")), "{name}: its manual has an example");
            for parameter in *parameters {
                assert!(manual.contains(&format!("`{}`", parameter.name)), "{name}: '{}' is explained", parameter.name);
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), catalogue.makers().len());
        assert!(catalogue.find("zip").err().unwrap().to_string().contains("there are lz4, zstd, seal"));
    }
}
