//! The results that a run leaves for programs: one file per case, with its outcome and software versions.

use crate::{Result, RigError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The outcome of a case, and the software in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaseRecord {
    case: String,
    outcome: &'static str,
    note: String,
    /// The versions of the software.
    pub with: BTreeMap<String, String>,
}

const OUTCOMES: [&str; 3] = ["passed", "failed", "skipped"];

impl CaseRecord {
    /// A case that passed.
    pub fn passed(case: &str, note: &str, with: &BTreeMap<String, String>) -> Self {
        Self { case: case.into(), outcome: OUTCOMES[0], note: note.into(), with: with.clone() }
    }

    /// A case that failed.
    pub fn failed(case: &str) -> Self {
        Self { case: case.into(), outcome: OUTCOMES[1], note: String::new(), with: BTreeMap::new() }
    }

    /// A case that was skipped.
    pub fn skipped(case: &str) -> Self {
        Self { outcome: OUTCOMES[2], ..Self::failed(case) }
    }

    /// Whether the case passed.
    pub fn has_passed(&self) -> bool {
        self.outcome == OUTCOMES[0]
    }

    /// Writes the record, in place of an earlier one of the case.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let file = folder.join(format!("{}.json", self.case));
        let text = json!({ "case": self.case, "outcome": self.outcome, "note": self.note, "with": self.with });
        crate::image::kernel::write_whole(&file, format!("{text:#}\n").as_bytes())
    }

    fn read(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let with = value["with"].as_object()?.iter();
        Some(Self {
            case: value["case"].as_str()?.to_owned(),
            outcome: OUTCOMES.into_iter().find(|outcome| value["outcome"] == *outcome)?,
            note: value["note"].as_str()?.to_owned(),
            with: with
                .map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned())))
                .collect::<Option<_>>()?,
        })
    }
}

/// All records of a folder, by case.
///
/// # Errors
/// A file there that is not a record; a folder that does not exist has none.
pub fn read_all(folder: &Path) -> Result<BTreeMap<String, CaseRecord>> {
    let mut records = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(records) };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"))
    {
        let text = std::fs::read_to_string(&path).map_err(RigError::io(format!("read {}", path.display())))?;
        let record = CaseRecord::read(&text).ok_or(RigError::Format { path, rule: "not a record of the rig" })?;
        records.insert(record.case.clone(), record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_records_are_read_back() {
        let folder = std::env::temp_dir().join(format!("farbus-rig-records-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let with = BTreeMap::from([("Linux".to_owned(), "6.1".to_owned())]);
        let (good, bad) = (CaseRecord::passed("a", "2 \"quoted\"", &with), CaseRecord::failed("b"));
        CaseRecord::failed("a").write(&folder).unwrap();
        good.write(&folder).unwrap();
        bad.write(&folder).unwrap();
        CaseRecord::skipped("c").write(&folder).unwrap();
        let all = read_all(&folder).unwrap();
        assert_eq!(all["a"], good);
        assert!(good.has_passed() && !all["b"].has_passed() && !all["c"].has_passed());
        std::fs::write(folder.join("d.json"), "{}").unwrap();
        assert!(read_all(&folder).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read_all(&folder).unwrap(), BTreeMap::new());
    }
}
