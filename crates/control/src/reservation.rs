//! What is reserved for a device, and on a bus.

use std::borrow::Cow;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A reservation, as `farbus status` shows it.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct ReservationStatus {
    /// `admitted`, `suspended` or `refused`.
    pub state: String,
    /// `high` or `low`.
    pub criticality: String,
    /// What is missing, if it is not admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lack: Option<String>,
    /// How much of it is missing, with its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The bus of the device, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Share of the bus time that is reserved, millionths.
    pub bus_ppm: u32,
    /// Rate of the path that is reserved, bits a second.
    pub path_bits_per_s: u64,
    /// The longest time that data take from the bus to the importer, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_us: Option<u64>,
    /// The processor on which time is reserved, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
    /// Whether the exporter's thread that serves the device has its processor time from the kernel there: `reserved` or
    /// `ordinary`. An exporter of an earlier version does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

impl ReservationStatus {
    /// The status in one line, for people.
    pub fn in_a_line(&self) -> String {
        let mut words = vec![format!("reserved, {}, {}", self.criticality, self.state)];
        if let (Some(lack), Some(missing)) = (&self.lack, &self.missing) {
            words.push(format!("{lack}: {missing} missing"));
        }
        if let Some(us) = self.bound_us {
            words.push(format!("within {}.{:03} ms", us / 1000, us % 1000));
        }
        if self.path_bits_per_s > 0 {
            words.push(format!("{} kbit/s of the path", self.path_bits_per_s.div_ceil(1000)));
        }
        let of = self.bus.as_ref().map_or("the bus", String::as_str);
        if self.bus_ppm > 0 {
            words.push(format!("{}.{:02} % of {of}", self.bus_ppm / 10_000, self.bus_ppm % 10_000 / 100));
        }
        match self.thread.as_deref() {
            Some("ordinary") => words.push("its exporter's thread has no processor time of its own".to_owned()),
            Some(_) => words.push("with processor time there".to_owned()),
            None => {}
        }
        words.join(", ")
    }
}

/// A bus on which something is reserved.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct BusStatus {
    /// The bus, as `farbus status` calls it for a reservation.
    pub bus: String,
    /// `low`, `full`, `high` or `super`.
    pub speed: Cow<'static, str>,
    /// Length of a frame (low and full speed) or microframe, picoseconds.
    pub interval_ps: u64,
    /// After how many frames or microframes the schedule repeats.
    pub cycle: u32,
    /// What is kept of each for bulk and control, picoseconds.
    pub asynchronous_ps: u64,
    /// What can still be reserved of each, picoseconds; of the first 64.
    pub free_ps: Vec<u64>,
    /// The periodic endpoints, 64 at most.
    pub places: Vec<PlaceStatus>,
}

/// An endpoint's place in a schedule.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct PlaceStatus {
    /// The name of the device that reserved the place.
    pub device: String,
    /// The endpoint's address; absent for the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The first interval in which time is kept for it. Where in its period it is served is up to the USB controller.
    pub start: u32,
    /// The distance to the next, in intervals.
    pub every: u32,
    /// Packets for which time is kept.
    pub packets: u32,
    /// Bus time that is kept in each of these intervals, picoseconds.
    pub time_ps: u64,
}
