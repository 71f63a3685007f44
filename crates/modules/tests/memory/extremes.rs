//! Everything that a peer may name: each module that ships, with each parameter at its ends.

use farbus_modules::ModuleCatalogue;
use farbus_modules::module::{ModuleManifest, ModuleParameter, ParameterFormat};

/// Every way to ask for each module that an exporter allows without its owner's word, as `--module` takes it: up to
/// three parameters at each combination of their ends; more of them all at their first, and all at their last.
pub fn all_asked() -> Vec<String> {
    ModuleCatalogue::builtin().manifests().flat_map(requested).collect()
}

fn requested(manifest: &'static ModuleManifest) -> Vec<String> {
    let parameters: Vec<&ModuleParameter> = manifest.parameters.iter().filter(|parameter| !parameter.is_own).collect();
    let mut all = vec![Vec::new()];
    if parameters.len() > 3 {
        let side = |last: bool| {
            let end = |parameter: &&ModuleParameter| {
                let values = values(parameter);
                if last { values[values.len() - 1].clone() } else { values[0].clone() }
            };
            parameters.iter().map(end).collect::<Vec<String>>()
        };
        all = vec![side(false), side(true)];
    } else {
        for parameter in parameters {
            let with = |before: &Vec<String>| {
                values(parameter).into_iter().map(|value| [&before[..], &[value]].concat()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
    }
    let word = |values: Vec<String>| match values.is_empty() {
        true => manifest.name.to_owned(),
        false => format!("{}:{}", manifest.name, values.join(",")),
    };
    all.into_iter().map(word).collect()
}

/// The ends of a parameter, as settings.
fn values(parameter: &ModuleParameter) -> Vec<String> {
    let values = match parameter.form {
        // A seed chooses among equals.
        ParameterFormat::Number(min, _) if parameter.name == "seed" => vec![min.to_string()],
        ParameterFormat::Number(min, max) => vec![min.to_string(), max.to_string()],
        ParameterFormat::SpanUpTo(max) => vec!["0us".to_owned(), format!("{}us", max.as_micros())],
        ParameterFormat::Text(max) => vec![String::new(), "x".repeat(max)],
        ParameterFormat::OneOf(words) => words.iter().map(|word| (*word).to_owned()).collect(),
        ParameterFormat::File(_) | ParameterFormat::NewFile => {
            panic!("{}: a file is its own host's to name", parameter.name)
        }
    };
    values.into_iter().map(|value| format!("{}={value}", parameter.name)).collect()
}
