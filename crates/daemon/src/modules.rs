//! The modules of a daemon's configuration that need something of this host, a file or a program: they are read and
//! started before the daemon drops its rights, and kept for the attachments that name them.

use std::sync::Arc;

use farbus::frontend::AttachRequest;
use farbus::link::modules::{allowed, recipe};
use farbus_control::failure::CommandFailure;
use farbus_modules::{ModuleSpec, PipelineRecipe};
use farbus_session::native::AllowedModules;

use super::config::{DaemonConfig, needs_host};

/// Modules that are ready for use.
#[derive(Default)]
pub struct ReadyModules {
    /// For each attachment: its target, the modules as configured, and their recipe. A program serves one attachment at
    /// a time, so each attachment has its own.
    recipes: Vec<(String, Vec<ModuleSpec>, PipelineRecipe)>,
    /// The modules that importers may ask for: as configured, and ready.
    allowed: Option<(Vec<ModuleSpec>, Arc<AllowedModules>)>,
}

impl ReadyModules {
    /// Reads and starts the modules that this configuration names.
    ///
    /// # Errors
    /// [`CommandFailure`]: which module cannot be opened, and why.
    pub fn open(config: &DaemonConfig) -> Result<Self, CommandFailure> {
        let mut recipes = Vec::new();
        for attach in &config.attachments {
            if attach.modules.iter().any(needs_host) {
                let name = attach.target.to_string();
                let made = recipe(&attach.modules)
                    .map_err(|refusal| CommandFailure::local(format!("to attach {name}: {refusal}")))?;
                recipes.push((name, attach.modules.clone(), made));
            }
        }
        let words = &config.allow_modules;
        let made = allowed(words).map_err(|refusal| CommandFailure::local(format!("allow_modules: {refusal}")))?;
        Ok(Self { recipes, allowed: Some((words.clone(), made)) })
    }

    /// Checks that every module of this configuration is ready. A daemon that reads its file again has no rights to
    /// open more.
    ///
    /// # Errors
    /// [`CommandFailure`]: which module is not ready, and what to do.
    pub fn check(&self, config: &DaemonConfig) -> Result<(), CommandFailure> {
        let late = |module: &ModuleSpec, whose: &str| {
            let why = "it is read or started before the daemon gives its rights away";
            let next = "farbus daemon restart starts it";
            CommandFailure::local(format!("module '{module}' of {whose}: {why}\n  {next}"))
        };
        for attach in &config.attachments {
            if let Some(module) = attach.modules.iter().find(|module| needs_host(module))
                && self.known(attach).is_none()
            {
                return Err(late(module, &attach.target.to_string()));
            }
        }
        let is_ready = |module: &&ModuleSpec| match &self.allowed {
            Some((words, _)) => words.contains(module),
            None => false,
        };
        match config.allow_modules.iter().find(|module| needs_host(module) && !is_ready(module)) {
            Some(module) => Err(late(module, "allow_modules")),
            None => Ok(()),
        }
    }

    /// The recipe of an attachment.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn recipe(&self, attach: &AttachRequest) -> Result<PipelineRecipe, String> {
        match self.known(attach) {
            Some(made) => Ok(made.clone()),
            None => recipe(&attach.modules).map_err(|refusal| refusal.to_string()),
        }
    }

    /// The modules that importers may ask for.
    pub fn allowed(&self) -> Option<Arc<AllowedModules>> {
        self.allowed.as_ref().map(|(_, allowed)| Arc::clone(allowed))
    }

    fn known(&self, attach: &AttachRequest) -> Option<&PipelineRecipe> {
        let name = attach.target.to_string();
        let made = self.recipes.iter().find(|(whose, words, _)| (whose, words) == (&name, &attach.modules));
        made.map(|(_, _, made)| made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> DaemonConfig {
        DaemonConfig::parse(text).unwrap()
    }

    #[test]
    fn reload_can_use_only_modules_that_were_opened_at_the_start() {
        let key = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let sealed = format!("modules = [\"zstd\", \"seal:key-file={key}\"]");
        let of = |target: &str, modules: &str| config(&format!("[[attach]]\ntarget = \"{target}\"\n{modules}"));
        let began = of("a/b", &sealed);
        let modules = ReadyModules::open(&began).unwrap();
        modules.check(&began).unwrap();
        let names =
            |config: &DaemonConfig| modules.recipe(&config.attachments[0]).map(|made| made.names().collect::<Vec<_>>());
        assert_eq!(names(&began).unwrap(), ["zstd", "seal"]);
        // A module that needs nothing of this host can be named at any time.
        let plain = of("a/c", "modules = [\"lz4\"]");
        modules.check(&plain).unwrap();
        assert_eq!(names(&plain).unwrap(), ["lz4"]);
        for late in [of("a/c", &sealed), of("a/b", "modules = [\"./x.ring\"]"), config("allow_modules = [\"./x\"]\n")] {
            let why = modules.check(&late).unwrap_err().to_string();
            assert!(why.contains("farbus daemon restart"), "{why}");
        }
        let gone = of("a/b", "modules = [\"seal:key-file=/nonexistent/key\"]");
        let why = ReadyModules::open(&gone).err().unwrap().to_string();
        assert!(why.contains("to attach a:3240/b: module 'seal'") && why.contains("it cannot be read"), "{why}");
    }
}
