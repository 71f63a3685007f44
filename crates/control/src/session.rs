//! The figures of a session: its links, what passed through, and how long requests took.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A session's links, as `farbus status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct LinksStatus {
    /// How many links are up.
    pub up: usize,
    /// One entry for each lane that has a link or waits for one.
    pub each: Vec<LinkStatus>,
    /// Segments of TCP links have this many bytes at most, because larger packets did not pass. Absent without that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_bytes_max: Option<u16>,
}

/// The link of one lane.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct LinkStatus {
    /// The number of the lane; the first is 0.
    pub lane: u16,
    /// Whether the lane has a link.
    pub is_up: bool,
    /// For how long it has had one, or none, seconds.
    pub since_s: f64,
    /// The other end of the link, or of the last one, `HOST:PORT`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Bytes received on this lane, including former links.
    pub bytes_in: u64,
    /// Bytes sent on this lane, including former links.
    pub bytes_out: u64,
    /// How often the lane's link was replaced by another, since the session is in this process.
    #[serde(default)]
    pub replaced: u64,
    /// The round trip as measured by TCP or QUIC, milliseconds. Absent while there is no link, and for a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Readings {
    /// Requests that the device answered.
    pub urbs: u64,
    /// Bytes from the device.
    pub bytes_in: u64,
    /// Bytes to the device.
    pub bytes_out: u64,
    /// Requests cancelled by the client.
    pub unlinked: u64,
    /// Requests refused for lack of credit.
    pub no_credit: u64,
    /// Port resets seen.
    pub resets: u64,
    /// Requests that a device dropped.
    pub lost: u64,
    /// System calls that received.
    pub receive_calls: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that waited.
    pub wait_calls: u64,
}

/// The durations of the stages of the latest timed requests. Their sum is what the session saw; the front end (FUSE,
/// NBD, a kernel) adds its own time.
#[derive(Default, Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "LatencyStatus"))]
#[serde(default)]
pub struct Latency {
    /// How many requests were timed.
    pub samples: usize,
    /// A number that is greater after each further second in which a request was timed and which is over: then the
    /// question `latency` tells more. 0: there was none.
    pub second: u64,
    /// From the moment the session was asked until it answered.
    pub all_us: Spread,
    /// Both directions over the network, including both ends' operating systems.
    pub network_us: Spread,
    /// In the exporter's end of the session: arriving, waiting for other requests, waiting for the link.
    pub bus_us: Spread,
    /// In the device.
    pub back_end_us: Spread,
}

/// The distribution of many durations, in microseconds.
#[derive(Default, Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Spread {
    /// The median: half of them were not longer.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p50: f64,
    /// 90th percentile: nine of ten were not longer.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p90: f64,
    /// 99th percentile: 99 of 100 were not longer.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p99: f64,
}

/// How long the stages of an attachment's requests took lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Latency"))]
#[serde(default)]
pub struct Seconds {
    /// The last 180 seconds of an attachment's session, the oldest first. A second without a timed request is left out.
    pub seconds: Vec<Second>,
}

/// The stages of a second's requests; microseconds.
#[derive(Default, Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Second {
    /// Its number, counted from the first timed request of the session, which is in second 0.
    pub number: u64,
    /// How long ago it ended, whole seconds.
    pub ago_s: u64,
    /// How many requests were timed in it: one in 64, and one each second.
    pub timed: u32,
    /// From the moment the session was asked until it answered.
    pub all_us: Percentiles,
    /// Both directions over the network.
    pub network_us: Percentiles,
    /// In the exporter's end of the session.
    pub bus_us: Percentiles,
    /// In the device.
    pub back_end_us: Percentiles,
}

/// Percentiles of one stage in one second, in microseconds, each at most 1/16 too great.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Percentiles {
    /// The median: half of the requests took no longer.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p50: f32,
    /// 99th percentile: 99 of 100 requests took no longer.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p99: f32,
    /// 99.9th percentile; of fewer than a thousand requests the longest.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub p999: f32,
}
