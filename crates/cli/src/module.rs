//! `farbus module`: which modules there are, and their manuals.

use farbus::importer::client::FailureKind;
use farbus_io_net::local::asking::ask_owner;
use farbus_io_net::local::control_socket::Question;
use farbus_modules::ModuleCatalogue;
use farbus_modules::module::{ModuleManifest, ModuleParameter};
use serde_json::{Value, json};

use super::CommandFailure;
use super::output::{print_done, say};

/// Show the modules that devices can be used through.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A module is a pair: one half runs on the host that uses a device, the other on its exporter, and one undoes what the other does. Several are undone in reverse order.\n\n\
    Examples:\n  farbus module list\n  farbus module show seal\n  \
    farbus attach lab/disk --module zstd --module seal:key-file=seal.key\n  \
    farbus share disk:img --allow-module seal:key-file=seal.key"
)]
pub struct Args {
    #[command(subcommand)]
    verb: ModuleVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ModuleVerb {
    /// List the modules.
    #[command(after_help = "Examples:\n  farbus module list\n  farbus module list --json")]
    List {
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Show a module's manual.
    #[command(after_help = "Examples:\n  farbus module show zstd\n  farbus module show zstd --json")]
    Show {
        /// The module's name.
        name: String,
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Hold everything that passes, for a device attached here with --module pause.
    #[command(
        after_help = "Examples:\n  farbus attach lab/disk --via fuse --module pause\n  farbus module pause lab/disk\n  \
    farbus module resume lab/disk"
    )]
    Pause(DeviceArgs),
    /// Let what was held pass again.
    #[command(after_help = "Examples:\n  farbus module resume lab/disk")]
    Resume(DeviceArgs),
}

/// An attached device.
#[derive(Debug, clap::Args)]
struct DeviceArgs {
    /// Its name, or HOST[:PORT]/DEVICE as attached.
    device: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the output is JSON.
    pub fn is_for_programs(&self) -> bool {
        match self.verb {
            ModuleVerb::List { json } | ModuleVerb::Show { json, .. } => json,
            ModuleVerb::Pause(DeviceArgs { json, .. }) | ModuleVerb::Resume(DeviceArgs { json, .. }) => json,
        }
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let catalogue = ModuleCatalogue::builtin();
    match &args.verb {
        ModuleVerb::List { json: true } => {
            say(json!({ "modules": catalogue.manifests().map(in_json).collect::<Vec<_>>() }))
        }
        ModuleVerb::List { json: false } => {
            for ModuleManifest { name, summary, .. } in catalogue.manifests() {
                say(format!("{name:<9} {summary}"));
            }
            say("\n'farbus module show NAME' tells more");
        }
        ModuleVerb::Show { name, json } => {
            let maker = catalogue.find(name).map_err(|refusal| {
                CommandFailure::new(FailureKind::Gone, format!("{refusal}\n  'farbus module list' shows what they do"))
            })?;
            let manifest = maker.manifest();
            match json {
                true => say(in_json(manifest)),
                false => say(format!("{}\nCosts {}.", manifest.manual, manifest.cost)),
            }
        }
        ModuleVerb::Pause(args) => pause(args, true)?,
        ModuleVerb::Resume(args) => pause(args, false)?,
    }
    Ok(())
}

fn pause(DeviceArgs { device, json }: &DeviceArgs, is_paused: bool) -> Result<(), CommandFailure> {
    ask_owner(device, Question::Pause { device: device.to_owned(), is_paused })?;
    print_done(*json, if is_paused { "pause" } else { "resume" }, device)
}

fn in_json(manifest: &'static ModuleManifest) -> Value {
    let parameter = |parameter: &ModuleParameter| {
        json!({
            "name": parameter.name,
            "form": parameter.form.to_string(),
            "default": parameter.default,
            "what": parameter.what,
            "own": parameter.is_own,
        })
    };
    json!({
        "name": manifest.name,
        "version": manifest.version,
        "summary": manifest.summary,
        "classes": manifest.classes.iter().map(|class| class.as_str()).collect::<Vec<_>>(),
        "parameters": manifest.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "fault": manifest.effects.is_fault,
        "movable": manifest.effects.is_movable,
        "cost": manifest.cost,
        "manual": manifest.manual,
    })
}
