//! The modules of this process: those that an attachment's data passes through, and those that importers may ask for.

pub mod program;
mod recording;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use farbus_io_net::trust::fill_random;
use farbus_modules::{
    ModuleAllowance, ModuleCatalogue, ModuleFileSink, ModuleFiles, ModuleMaker, ModuleRefusal, ModuleSpec,
    PipelineRecipe,
};
use farbus_session::native::{AllowedModules, RequestedModules};

use crate::link::modules::program::ModuleProgram;
use crate::link::modules::recording::RecordingFile;

/// The built-in modules and the programs that `specs` names, which are started. Returns `specs` with each program's
/// path replaced by its module name.
fn catalogue_for(specs: &[ModuleSpec]) -> Result<(ModuleCatalogue, Vec<ModuleSpec>), ModuleRefusal> {
    let (mut catalogue, mut named) = (ModuleCatalogue::builtin(), Vec::new());
    for given in specs {
        let mut spec = given.clone();
        if ModuleProgram::is_meant(&spec) {
            let program = ModuleProgram::start(&spec.name)?;
            spec.name = program.manifest().name.to_owned();
            catalogue.add(Arc::new(program));
        }
        named.push(spec);
    }
    Ok((catalogue, named))
}

/// Makes the recipe that these words ask for. Reads the files that they name, so the process must still have its
/// rights.
///
/// # Errors
/// [`ModuleRefusal`]: which module cannot be made, and why.
pub fn recipe(specs: &[ModuleSpec]) -> Result<PipelineRecipe, ModuleRefusal> {
    let (catalogue, specs) = catalogue_for(specs)?;
    PipelineRecipe::new(&catalogue, &specs, &mut OwnFiles)
}

/// The modules that importers may ask for: all that need nothing of this host, and those of `also`.
///
/// # Errors
/// [`ModuleRefusal`]: there is no such module, or it does not know an option.
pub fn allowed(also: &[ModuleSpec]) -> Result<Arc<AllowedModules>, ModuleRefusal> {
    let mut modules = ModuleAllowance::usual(&ModuleCatalogue::builtin());
    let (catalogue, also) = catalogue_for(also)?;
    for spec in also {
        modules.allow(&catalogue, &spec, &mut OwnFiles)?;
    }
    Ok(Arc::new(AllowedModules { modules, random: Box::new(fill_random) }))
}

/// How an attachment's data passes through `recipe`; `None` if the recipe is empty.
pub fn through(recipe: &PipelineRecipe) -> Option<RequestedModules> {
    let is_wanted = !recipe.is_empty();
    is_wanted.then(|| RequestedModules { recipe: recipe.clone(), random: Box::new(fill_random) })
}

/// Reads and creates files of this host.
struct OwnFiles;

impl ModuleFiles for OwnFiles {
    fn read(&mut self, path: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let unread = |error| format!("it cannot be read: {error}");
        let file = File::open(path).map_err(unread)?;
        file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
        match bytes.len() > bytes_max {
            true => Err(format!("it has more than {} KiB", bytes_max >> 10)),
            false => Ok(bytes),
        }
    }

    fn create(&mut self, path: &str) -> Result<Arc<dyn ModuleFileSink>, String> {
        Ok(Arc::new(RecordingFile::create(Path::new(path))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_overlong_key_files_are_refused() {
        let key_file_spec = |path: &str| vec![format!("seal:key-file={path}").parse::<ModuleSpec>().unwrap()];
        let why = recipe(&key_file_spec("/nonexistent/key")).err().unwrap().to_string();
        assert!(why.starts_with("module 'seal': key-file=/nonexistent/key: it cannot be read"), "{why}");
        let why = recipe(&key_file_spec("/dev/zero")).err().unwrap().to_string();
        assert!(why.ends_with("it has more than 64 KiB"), "{why}");
        assert!(through(&PipelineRecipe::default()).is_none());
        assert!(through(&recipe(&["null".parse().unwrap()]).unwrap()).is_some());
        assert!(allowed(&["null".parse().unwrap()]).is_ok() && allowed(&["none".parse().unwrap()]).is_err());
    }
}
