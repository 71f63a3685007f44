//! The schemas of what processes say of themselves, which the page passes on.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;

use super::super::pipe::host_pipes;
use crate::common::process_status::ProcessStatus;
use crate::daemon::device_status::{DaemonStatus, FailedDevice, KeptDevice};
use crate::devices::bus_status::BusStatus;
use crate::devices::status::DeviceStatus;
use crate::importer::session::latency_history::Seconds;

/// Adds them, as the page asks for.
pub fn describe(generator: &mut SchemaGenerator) {
    generator.subschema_for::<Process>();
    generator.subschema_for::<Seconds>();
}

/// A process, as `farbus status --json` has it.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Process {
    #[serde(flatten)]
    status: ProcessStatus<Device>,
    /// The buses of which it has reserved time, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    buses: Vec<BusStatus>,
    #[serde(flatten)]
    of_daemon: Option<DaemonStatus>,
}

/// A device of a process, as `farbus status --json` has it.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Device {
    /// A device that is shared.
    Shared(SharedDevice),
    /// A device that is attached, or a medium that `farbus nbd` serves.
    Attached(KeptDevice),
    /// A pipe with a reservation that this host runs (`farbus pipe`).
    Pipe(host_pipes::Status),
    /// A device that a daemon cannot share.
    Failed(FailedDevice),
}

/// A device that is shared.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct SharedDevice {
    #[serde(flatten)]
    status: DeviceStatus,
    /// What commands call it, if another process shares a device of its name, too: the page adds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    called: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::described;

    #[test]
    fn every_schema_that_is_named_is_there_once_under_a_name_of_its_own() {
        let document = described(describe);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let mut count = 0;
        for rest in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name}");
            count += 1;
        }
        assert!(count > 100, "{count}");
        for name in schemas.keys() {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphabetic()), "another type has the name of {name}");
        }
        let earlier = [
            "Device",
            "Process",
            "Status",
            "Failure",
            "Offer",
            "Devices",
            "Hosts",
            "LabDevices",
            "Latency",
            "Audit",
            "Action",
            "Actions",
            "Operation",
            "Entered",
            "Operations",
            "Wrong",
            "Description",
        ];
        for name in earlier {
            assert!(schemas.contains_key(name), "{name}");
        }
        for closed in ["Failure", "Offer", "Operation", "Wrong", "WrongParameter"] {
            assert_eq!(schemas[closed]["additionalProperties"], false, "{closed}");
        }
        assert!(!text.contains("super::") && !text.contains("[`"), "a link of a docstring");
    }

    #[test]
    fn what_is_absent_rather_than_null_is_neither_required_nor_null() {
        let document = described(describe);
        let shared = &document["components"]["schemas"]["SharedDevice"];
        assert_eq!(shared["properties"]["user"]["type"], "string");
        assert_eq!(shared["properties"]["lease"]["$ref"], "#/components/schemas/LeaseStatus");
        let required: Vec<&str> =
            shared["required"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
        assert!(required.contains(&"bus_id") && !required.contains(&"user"), "{required:?}");
        let labels = &shared["properties"]["labels"];
        assert_eq!(labels["additionalProperties"]["type"], "string", "{labels}");
        assert!(shared["properties"]["user"]["description"].is_string());
    }
}
