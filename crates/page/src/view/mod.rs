//! What can be shown: each view draws a status as a document, and as parts of which only those that change are sent.

mod bus;
pub mod bus_drawing;
mod descriptors;
mod device;
mod devices;
mod drawing;
pub mod forms;
mod hosts;
mod latency;
mod live;
mod network;
mod operations;
mod picture;
mod rows;
mod text;

use farbus_io_net::trust::Scope;

use self::device::QUERY_BYTES_MAX;
pub use self::device::{Details, Which};
pub use self::devices::{Found, Wanted};
pub use self::drawing::{Drawing, List, Piece};
pub use self::forms::Shareable;
pub use self::latency::drawn as latency;
pub use self::live::{EVENT_BYTES_MAX as VIEW_EVENT_BYTES_MAX, Look, Shown};
#[cfg(test)]
pub use self::text::encoded;
use self::text::value_in;
pub use self::text::{pairs_in, whole};
use crate::known::status::Status;

/// A view of what the processes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// All devices, or those that match, a page of them.
    Devices(Wanted),
    /// One device, with all that is known of it.
    Device(Which),
    /// What is reserved on the buses.
    Buses,
    /// The network of hosts.
    Network,
    /// Each host that is known.
    Hosts,
    /// The forms that share a device and attach one, for somebody who may do no more than this.
    New(Scope),
}

impl View {
    /// The view at a path with a query; `None` if there is none.
    pub fn at(path: &str, query: Option<&str>) -> Option<Self> {
        let query = query.filter(|query| query.len() <= QUERY_BYTES_MAX).unwrap_or_default();
        match path {
            "/" => Some(Self::Devices(Wanted::of(query))),
            "/buses" => Some(Self::Buses),
            "/network" => Some(Self::Network),
            "/hosts" => Some(Self::Hosts),
            "/new" => Some(Self::New(Scope::Own)),
            path => Which::of(path, query).map(Self::Device),
        }
    }

    /// The same for somebody who may do no more than this.
    #[must_use]
    pub fn for_scope(self, may: Scope) -> Self {
        match self {
            Self::Device(which) => Self::Device(which.for_scope(may)),
            Self::Devices(wanted) => Self::Devices(wanted.for_scope(may)),
            Self::New(_) => Self::New(may),
            view => view,
        }
    }

    /// The view of all devices.
    pub fn devices() -> Self {
        Self::Devices(Wanted::of(""))
    }

    /// Which devices a query of the view of all devices means.
    pub fn wanted(query: Option<&str>) -> Wanted {
        Wanted::of(query.filter(|query| query.len() <= QUERY_BYTES_MAX).unwrap_or_default())
    }

    /// Whether it shows other hosts.
    pub fn has_others(&self) -> bool {
        matches!(self, Self::Devices(_) | Self::Network | Self::Hosts)
    }

    /// A number that changes with what the view of all devices shows, on any page of it.
    pub fn fingerprint(status: &Status) -> u64 {
        devices::fingerprint(status)
    }

    /// The path that leads to it from every other view; empty if there is none.
    pub fn path(&self) -> &'static str {
        match self {
            Self::Devices(_) => "/",
            Self::Device(_) => "",
            Self::Buses => "/buses",
            Self::Network => "/network",
            Self::Hosts => "/hosts",
            Self::New(_) => "/new",
        }
    }

    /// The view that a query of `/events` names, and what its client shows of it.
    pub fn followed(query: Option<&str>) -> Option<(Self, u64)> {
        let query = query.filter(|query| query.len() <= QUERY_BYTES_MAX)?;
        let address = value_in(query, "view")?;
        let (path, query_of_view) = address.split_once('?').unwrap_or((&address, ""));
        let shown = value_in(query, "version").and_then(|version| u64::from_str_radix(&version, 16).ok());
        Some((Self::at(path, Some(query_of_view))?, shown.unwrap_or_default()))
    }

    /// The parts of it that change.
    pub fn draw(&self, status: &Status) -> Drawing {
        match self {
            Self::Devices(wanted) => wanted.draw(status),
            Self::Device(which) => which.draw(status, None),
            Self::Buses => bus::draw(status),
            Self::Network => network::draw(status),
            Self::Hosts => hosts::draw(status),
            Self::New(may) => forms::new(status, None, *may),
        }
    }

    /// The device that it is about, if it is about one.
    pub fn device(&self) -> Option<&Which> {
        match self {
            Self::Device(which) => Some(which),
            _ => None,
        }
    }

    /// Whether there are plots over time in it.
    pub fn has_plots(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// The whole document.
    pub fn draw_with(&self, status: &Status, details: Option<&Details>) -> Drawing {
        match self {
            Self::Device(which) => which.draw(status, details),
            Self::New(may) => {
                let known = details.map(|details| (&details.hosts[..], &details.shareable[..]));
                forms::new(status, known, *may)
            }
            view => view.draw(status),
        }
    }
}
