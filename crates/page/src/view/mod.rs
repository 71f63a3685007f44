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

use farbus_io_net::trust::PageScope;

use self::device::QUERY_BYTES_MAX;
pub use self::device::{DeviceDetails, DeviceLocator};
pub use self::devices::{DeviceListPage, DeviceListQuery};
pub use self::drawing::{DrawingPiece, LiveList, ViewDrawing};
pub use self::forms::ShareableDevice;
pub use self::latency::drawn as latency;
pub use self::live::{EVENT_BYTES_MAX as VIEW_EVENT_BYTES_MAX, ElementDigest, ViewDigest};
#[cfg(test)]
pub use self::text::encoded;
use self::text::value_in;
pub use self::text::{pairs_in, whole};
use crate::known::status::CombinedStatus;

/// A view of what the processes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageView {
    /// All devices, or those that match, a page of them.
    Devices(DeviceListQuery),
    /// One device, with all that is known of it.
    Device(DeviceLocator),
    /// What is reserved on the buses.
    Buses,
    /// The network of hosts.
    Network,
    /// Each host that is known.
    Hosts,
    /// The forms that share a device and attach one, for somebody who may do no more than this.
    New(PageScope),
}

impl PageView {
    /// The view at a path with a query; `None` if there is none.
    pub fn at(path: &str, query: Option<&str>) -> Option<Self> {
        let query = query.filter(|query| query.len() <= QUERY_BYTES_MAX).unwrap_or_default();
        match path {
            "/" => Some(Self::Devices(DeviceListQuery::of(query))),
            "/buses" => Some(Self::Buses),
            "/network" => Some(Self::Network),
            "/hosts" => Some(Self::Hosts),
            "/new" => Some(Self::New(PageScope::Own)),
            path => DeviceLocator::of(path, query).map(Self::Device),
        }
    }

    /// Sets what the reader may do; the view leaves out the forms of what it may not.
    #[must_use]
    pub fn for_scope(self, may: PageScope) -> Self {
        match self {
            Self::Device(which) => Self::Device(which.for_scope(may)),
            Self::Devices(wanted) => Self::Devices(wanted.for_scope(may)),
            Self::New(_) => Self::New(may),
            view => view,
        }
    }

    /// The view of all devices.
    pub fn devices() -> Self {
        Self::Devices(DeviceListQuery::of(""))
    }

    /// Which devices a query of the view of all devices means.
    pub fn wanted(query: Option<&str>) -> DeviceListQuery {
        DeviceListQuery::of(query.filter(|query| query.len() <= QUERY_BYTES_MAX).unwrap_or_default())
    }

    /// Whether it shows other hosts.
    pub fn has_others(&self) -> bool {
        matches!(self, Self::Devices(_) | Self::Network | Self::Hosts)
    }

    /// A number that changes with what the view of all devices shows, on any page of it.
    pub fn fingerprint(status: &CombinedStatus) -> u64 {
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
    pub fn draw(&self, status: &CombinedStatus) -> ViewDrawing {
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
    pub fn device(&self) -> Option<&DeviceLocator> {
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
    pub fn draw_with(&self, status: &CombinedStatus, details: Option<&DeviceDetails>) -> ViewDrawing {
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
