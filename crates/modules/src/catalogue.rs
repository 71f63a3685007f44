//! The catalogue of modules.

use std::sync::Arc;

use farbus_model::module::ModuleManifest;

use crate::maker::ModuleMaker;
use crate::refusal::{ModuleMismatch, ModuleRefusal};
use crate::{
    buffer, bundle, corrupt, cut, delay, drop, jitter, lz4, null, pause, pointer, rate, record, replay, seal, stale,
    zstd,
};

/// Modules by their names.
#[derive(Clone)]
pub struct ModuleCatalogue {
    makers: Vec<Arc<dyn ModuleMaker>>,
}

impl ModuleCatalogue {
    /// The modules that ship with farbus.
    pub fn builtin() -> Self {
        let makers: Vec<Arc<dyn ModuleMaker>> = vec![
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
    pub fn add(&mut self, maker: Arc<dyn ModuleMaker>) {
        self.makers.retain(|known| known.manifest().name != maker.manifest().name);
        self.makers.push(maker);
    }

    /// The manifests of all modules.
    pub fn manifests(&self) -> impl Iterator<Item = &'static ModuleManifest> {
        self.makers.iter().map(|maker| maker.manifest())
    }

    /// The makers of all modules, in the order in which they were added. No two have the same name.
    pub fn makers(&self) -> &[Arc<dyn ModuleMaker>] {
        &self.makers
    }

    /// The module of this name.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: there is none; it names those that there are.
    pub fn find(&self, name: &str) -> Result<&Arc<dyn ModuleMaker>, ModuleRefusal> {
        let known = || self.manifests().map(|manifest| manifest.name.to_owned()).collect();
        let found = self.makers.iter().find(|maker| maker.manifest().name == name);
        found.ok_or_else(|| ModuleRefusal::new(name, ModuleMismatch::Unknown { known: known() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_a_name_a_line_and_a_manual_that_shows_how_it_is_asked_for() {
        let catalogue = ModuleCatalogue::builtin();
        let mut names: Vec<&str> = catalogue.manifests().map(|manifest| manifest.name).collect();
        for manifest in catalogue.manifests() {
            let ModuleManifest { name, summary, manual, parameters, .. } = manifest;
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
