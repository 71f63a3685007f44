//! Everything that a peer may name: each module that ships, with each parameter at its ends.

use farbus_modules::Catalogue;
use farbus_modules::module::{Form, Manifest, Parameter};

/// Every way to ask for each module that an exporter allows without its owner's word, as `--module` takes it: up to
/// three parameters at each combination of their ends; more of them all at their first, and all at their last.
pub fn all_asked() -> Vec<String> {
    Catalogue::builtin().manifests().flat_map(asked).collect()
}

fn asked(manifest: &'static Manifest) -> Vec<String> {
    let parameters: Vec<&Parameter> = manifest.parameters.iter().filter(|parameter| !parameter.is_own).collect();
    let mut all = vec![Vec::new()];
    if parameters.len() > 3 {
        let side = |last: bool| {
            let end = |parameter: &&Parameter| {
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
fn values(parameter: &Parameter) -> Vec<String> {
    let values = match parameter.form {
        // A seed chooses among equals.
        Form::Number(min, _) if parameter.name == "seed" => vec![min.to_string()],
        Form::Number(min, max) => vec![min.to_string(), max.to_string()],
        Form::SpanUpTo(max) => vec!["0us".to_owned(), format!("{}us", max.as_micros())],
        Form::Text(max) => vec![String::new(), "x".repeat(max)],
        Form::OneOf(words) => words.iter().map(|word| (*word).to_owned()).collect(),
        Form::File(_) | Form::NewFile => panic!("{}: a file is its own host's to name", parameter.name),
    };
    values.into_iter().map(|value| format!("{}={value}", parameter.name)).collect()
}
