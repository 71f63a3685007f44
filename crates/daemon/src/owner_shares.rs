//! What the owner's commands `farbus share` and `farbus unshare` ask of the daemon.

use farbus_control::share::{ListeningPlace, ShareReport, UnshareReport};
use farbus_io_net::local::control_socket::Answer;
use farbus_io_net::local::passed_files::PassedFiles;
use serde_json::json;

use super::supervisor::Supervisor;

impl Supervisor {
    /// Shares a device whose files were passed along. The answer says how it is listed, and where this process listens.
    /// `is_again`: the command passed a device in this port before.
    pub(super) fn share_for_owner(
        &self,
        (what, is_again): (&str, bool),
        name: Option<String>,
        is_kept: bool,
        files: &PassedFiles,
    ) -> Answer {
        // A reload must not offer anything meanwhile.
        let has = self.has();
        if self.is_handed_over() {
            return Answer::Unknown;
        }
        // What has just been unplugged has its name no longer.
        self.requested.forget_unplugged();
        if let Some(name) = name.as_ref().filter(|name| has.shares.contains_key(*name) || has.unshared.contains(*name))
        {
            let next = "choose another: name=NAME";
            return Answer::Refused(format!("'{name}' is the name of a device in the configuration\n  {next}"));
        }
        let records = match self.requested.share((what, is_again), name, is_kept, files.take_all()) {
            Ok(records) => records,
            Err(why) => return Answer::Refused(why),
        };
        let listening_place = |listens: &super::supervisor::DaemonListener| ListeningPlace {
            at: listens.location.as_host(),
            is_secure: listens.is_secure,
        };
        Answer::Ok(json!(ShareReport {
            pid: std::process::id(),
            devices: records.iter().map(|record| self.share.shared_now(record)).collect(),
            listening: has.listeners.iter().map(listening_place).collect(),
            ..ShareReport::default()
        }))
    }

    /// Stops sharing a device that a command asked for, or, until the next reload, one of the configuration. A device
    /// in use is refused unless `force` is set.
    pub(super) fn unshare(&self, device: &str, force: bool) -> Answer {
        let mut has = self.has();
        if self.is_handed_over() {
            return Answer::Unknown;
        }
        self.requested.forget_unplugged();
        let status = self.share.status();
        let found = status.iter().find(|status| status.name == device || status.bus_id == device);
        let listed = found.map_or(device, |status| &status.name);
        let of_config = has.shares.iter().find(|(name, offered)| {
            let is_listed = offered.result.iter().flatten().any(|name| name == listed);
            is_listed || (*name == listed && offered.result.is_err())
        });
        let of_config = of_config.map(|(name, offered)| (name.clone(), offered.result.clone().unwrap_or_default()));
        let (entry, names) = match (self.requested.names_with(listed), of_config) {
            (Some(names), _) => (None, names),
            (None, Some((name, names))) => (Some(name), names),
            (None, None) if found.is_none() => return Answer::Unknown,
            (None, None) => {
                return Answer::Refused(format!(
                    "'{listed}' is a real device, which the configuration shares\n  take it out of {} and type: farbus daemon reload",
                    self.config_path.display()
                ));
            }
        };
        if let Some(link) =
            entry.as_ref().filter(|entry| self.joining().shares().iter().any(|link| link.name == **entry))
        {
            return Answer::Refused(format!("'{link}' is the end of a link between hosts\n  farbus topology down"));
        }
        let user = status.iter().filter(|status| names.contains(&status.name)).find_map(|status| status.user.as_ref());
        if let Some(user) = user.filter(|_| !force) {
            return Answer::Refused(format!(
                "{user} uses '{listed}'\n  there: farbus detach {listed}\n  or here: farbus unshare {listed} --force"
            ));
        }
        match &entry {
            None => self.requested.remove(listed),
            Some(entry) => {
                for name in &names {
                    if let Err(error) = self.share.remove(name) {
                        tracing::warn!(name, %error, "was not there to be removed");
                    }
                }
                has.shares.remove(entry);
                has.unshared.insert(entry.clone());
            }
        }
        Answer::Ok(json!(UnshareReport { until_reload: entry.is_some(), unshared: names }))
    }
}
