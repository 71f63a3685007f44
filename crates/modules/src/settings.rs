//! A module's settings: `name:key=value,key=value`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::module::{ModuleManifest, ModuleParameter, ParameterFormat};

use crate::files::{ModuleFileSink, ModuleFiles};
use crate::refusal::{ModuleMismatch, ModuleRefusal};

/// A module as a person writes it. Its settings are not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSpec {
    /// The module's name.
    pub name: String,
    /// The settings, in the order in which they were written.
    pub parameters: Vec<(String, String)>,
}

impl FromStr for ModuleSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() {
            return Err("a module has a name: zstd, seal:key-file=PATH".to_owned());
        }
        Ok(Self { name: name.to_owned(), parameters: pairs(parameters)? })
    }
}

impl fmt::Display for ModuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

/// Parses `key=value,key=value`. Empty parts are left out; a part without `=` is an error.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is no NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    text.split(',').filter(|word| !word.is_empty()).map(pair).collect()
}

#[derive(Clone)]
enum ParameterValue {
    Number(u64),
    Span(Duration),
    Text(String),
    File(Arc<Vec<u8>>),
    NewFile(Option<Arc<dyn ModuleFileSink>>),
}

/// A module's checked settings.
#[derive(Clone, Default)]
pub struct ModuleSettings {
    values: BTreeMap<&'static str, ParameterValue>,
    travelling: String,
}

impl ModuleSettings {
    /// Checks `asked` against the module's manifest, and reads its files.
    ///
    /// # Errors
    /// [`ModuleRefusal`]: an unknown or missing parameter, or an invalid value.
    pub fn of(
        manifest: &ModuleManifest,
        spec: &ModuleSpec,
        files: &mut dyn ModuleFiles,
    ) -> Result<Self, ModuleRefusal> {
        Self::understand(manifest, &spec.parameters, files, |_| true)
    }

    /// Joins the other end's settings (`name=value`, separated by commas) with those of this host, which
    /// [`ModuleSettings::own`] made.
    ///
    /// # Errors
    /// [`ModuleRefusal`].
    pub fn joined(manifest: &ModuleManifest, travelled: &str, own: &ModuleSettings) -> Result<Self, ModuleRefusal> {
        let wrong = |what| ModuleRefusal::new(manifest.name, ModuleMismatch::Parameter(what));
        let pairs = pairs(travelled).map_err(wrong)?;
        let mut no_file = |_: &str| Err("a file is its own host's to name".to_owned());
        let mut settings = Self::understand(manifest, &pairs, &mut no_file, |parameter| !parameter.is_own)?;
        settings.values.extend(own.values.iter().map(|(name, value)| (*name, value.clone())));
        Ok(settings)
    }

    /// Checks the settings that each host gives to its own half, and no others.
    ///
    /// # Errors
    /// [`ModuleRefusal`].
    pub fn own(
        manifest: &ModuleManifest,
        spec: &ModuleSpec,
        files: &mut dyn ModuleFiles,
    ) -> Result<Self, ModuleRefusal> {
        Self::understand(manifest, &spec.parameters, files, |parameter| parameter.is_own)
    }

    fn understand(
        manifest: &ModuleManifest,
        pairs: &[(String, String)],
        files: &mut dyn ModuleFiles,
        is_meant: impl Fn(&ModuleParameter) -> bool,
    ) -> Result<Self, ModuleRefusal> {
        let wrong = |what| ModuleRefusal::new(manifest.name, ModuleMismatch::Parameter(what));
        let meant = || manifest.parameters.iter().filter(|parameter| is_meant(parameter));
        let mut settings = Self::default();
        for (name, text) in pairs {
            let Some(parameter) = meant().find(|parameter| parameter.name == name) else {
                let known: Vec<&str> = meant().map(|parameter| parameter.name).collect();
                let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
                return Err(wrong(format!("it is not told '{name}' there, but {known}")));
            };
            let value = parameter.form.read(text, files).map_err(|what| wrong(format!("{name}={text}: {what}")))?;
            if settings.values.insert(parameter.name, value).is_some() {
                return Err(wrong(format!("'{name}' is said twice")));
            }
            if !parameter.is_own {
                let comma = if settings.travelling.is_empty() { "" } else { "," };
                settings.travelling += &format!("{comma}{name}={text}");
            }
        }
        for parameter in meant() {
            if !settings.values.contains_key(parameter.name) {
                let Some(default) = parameter.default else {
                    return Err(wrong(format!("it has to be told {0}: {1}:{0}=…", parameter.name, manifest.name)));
                };
                let value = parameter.form.read(default, files).map_err(&wrong)?;
                settings.values.insert(parameter.name, value);
            }
        }
        Ok(settings)
    }

    /// The settings that the other half gets as well.
    pub fn travelling(&self) -> &str {
        &self.travelling
    }

    /// A number.
    ///
    /// # Panics
    /// Here and below: if the manifest has no such parameter, a bug of farbus.
    pub fn number(&self, name: &str) -> u64 {
        match self.values.get(name) {
            Some(ParameterValue::Number(number)) => *number,
            _ => panic!("the manifest has a number '{name}'"),
        }
    }

    /// A setting that is a duration.
    pub fn span(&self, name: &str) -> Duration {
        match self.values.get(name) {
            Some(ParameterValue::Span(span)) => *span,
            _ => panic!("the manifest has a span '{name}'"),
        }
    }

    /// A setting that is a text or a word.
    pub fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some(ParameterValue::Text(text)) => text,
            _ => panic!("the manifest has a text '{name}'"),
        }
    }

    /// Whether a setting has this value, one of the manifest's words.
    pub fn is(&self, name: &str, word: &str) -> bool {
        self.text(name) == word
    }

    /// The file to write to, if the setting is given.
    pub fn sink(&self, name: &str) -> Option<Arc<dyn ModuleFileSink>> {
        match self.values.get(name) {
            Some(ParameterValue::NewFile(sink)) => sink.clone(),
            _ => panic!("the manifest has a new file '{name}'"),
        }
    }

    /// The content of a file; empty if the setting names none.
    pub fn file(&self, name: &str) -> &[u8] {
        match self.values.get(name) {
            Some(ParameterValue::File(bytes)) => bytes,
            _ => panic!("the manifest has a file '{name}'"),
        }
    }
}

impl fmt::Debug for ModuleSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content of files is secret.
        f.debug_struct("ModuleSettings").field("travelling", &self.travelling).finish_non_exhaustive()
    }
}

trait ParameterParser {
    fn read(&self, text: &str, files: &mut dyn ModuleFiles) -> Result<ParameterValue, String>;
}

impl ParameterParser for ParameterFormat {
    fn read(&self, text: &str, files: &mut dyn ModuleFiles) -> Result<ParameterValue, String> {
        match *self {
            ParameterFormat::Number(min, max) => {
                let number = text.parse().ok().filter(|number| (min..=max).contains(number));
                number.map(ParameterValue::Number).ok_or_else(|| format!("it is a number from {min} to {max}"))
            }
            ParameterFormat::SpanUpTo(max) => {
                let span = span(text).filter(|span| *span <= max);
                span.map(ParameterValue::Span).ok_or_else(|| format!("it is {self}"))
            }
            ParameterFormat::Text(max) if text.len() <= max => Ok(ParameterValue::Text(text.to_owned())),
            ParameterFormat::Text(_) => Err(format!("it is {self}")),
            ParameterFormat::OneOf(words) => match words.contains(&text) {
                true => Ok(ParameterValue::Text(text.to_owned())),
                false => Err(format!("it is {self}")),
            },
            ParameterFormat::File(_) | ParameterFormat::NewFile if text.is_empty() => Ok(match self {
                ParameterFormat::NewFile => ParameterValue::NewFile(None),
                _ => ParameterValue::File(Arc::default()),
            }),
            ParameterFormat::File(bytes_max) => {
                files.read(text, bytes_max).map(|bytes| ParameterValue::File(Arc::new(bytes)))
            }
            ParameterFormat::NewFile => files.create(text).map(|sink| ParameterValue::NewFile(Some(sink))),
        }
    }
}

fn span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let count: u64 = text[..unit].parse().ok()?;
    let count = Some(count).filter(|count| *count <= 1 << 40)?;
    match &text[unit..] {
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::DELAY;
    use crate::maker::ModuleMaker;
    use crate::seal::SEAL;

    fn read(path: &str) -> Result<Vec<u8>, String> {
        if path == "key" { Ok(vec![7; 32]) } else { Err("no such file".to_owned()) }
    }

    #[test]
    fn a_module_is_asked_for_in_one_word() {
        let spec: ModuleSpec = "delay:time=20ms,jitter=1ms".parse().unwrap();
        assert_eq!(spec.to_string(), "delay:time=20ms,jitter=1ms");
        let settings = ModuleSettings::of(DELAY.manifest(), &spec, &mut read).unwrap();
        assert_eq!((settings.span("time"), settings.number("seed")), (Duration::from_millis(20), 0));
        assert_eq!(settings.travelling(), "time=20ms,jitter=1ms");
        let there =
            ModuleSettings::joined(DELAY.manifest(), settings.travelling(), &ModuleSettings::default()).unwrap();
        assert_eq!((there.span("jitter"), there.span("time")), (settings.span("jitter"), settings.span("time")));
        assert_eq!("zstd".parse::<ModuleSpec>().map(|spec| spec.to_string()), Ok("zstd".to_owned()));
        assert!("".parse::<ModuleSpec>().is_err() && ":a=b".parse::<ModuleSpec>().is_err());
        assert_eq!("delay:fast".parse::<ModuleSpec>(), Err("'fast' is no NAME=VALUE".to_owned()));
    }

    #[test]
    fn invalid_setting_is_refused_with_what_would_be_valid() {
        let refused = |text: &str| {
            let spec: ModuleSpec = text.parse().unwrap();
            let maker: &dyn ModuleMaker = if spec.name == "delay" { &DELAY } else { &SEAL };
            ModuleSettings::of(maker.manifest(), &spec, &mut read).unwrap_err().to_string()
        };
        assert_eq!(refused("delay"), "module 'delay': it has to be told time: delay:time=…");
        assert_eq!(refused("delay:time=20"), "module 'delay': time=20: it is a span (us, ms, s) up to 10s");
        assert_eq!(refused("delay:speed=1"), "module 'delay': it is not told 'speed' there, but time, jitter, seed");
        assert_eq!(refused("delay:time=1s,time=2s"), "module 'delay': 'time' is said twice");
        assert_eq!(
            refused("delay:time=1s,seed=x"),
            "module 'delay': seed=x: it is a number from 0 to 18446744073709551615"
        );
        assert_eq!(refused("seal:key-file=none"), "module 'seal': key-file=none: no such file");
    }

    #[test]
    fn a_file_stays_with_its_host() {
        let spec = "seal:key-file=key".parse().unwrap();
        let settings = ModuleSettings::of(SEAL.manifest(), &spec, &mut read).unwrap();
        assert_eq!((settings.travelling(), settings.file("key-file")), ("", [7; 32].as_slice()));
        assert!(
            ModuleSettings::joined(SEAL.manifest(), "key-file=key", &settings).is_err(),
            "the other end names no file here"
        );
        let own = ModuleSettings::own(SEAL.manifest(), &spec, &mut read).unwrap();
        assert_eq!(ModuleSettings::joined(SEAL.manifest(), "", &own).unwrap().file("key-file"), [7; 32]);
        assert!(!format!("{own:?}").contains('7'), "nobody logs a key");
    }
}
