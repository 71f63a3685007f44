//! Reservations in words: as a command line or configuration asks for them, and as `farbus status` shows them.

use std::str::FromStr;

use farbus_control::reservation::ReservationStatus;
use farbus_session::reserve::ledger::ListedReservation;
use farbus_session::reserve::{
    CLAIMS_MAX, EndpointBandwidth, ReservationCriticality, ReservationReport, ReservationState, ReservationTerms,
    ScarceResource, ThreadTime,
};

/// A reservation request of a command line or configuration:
/// `bytes=1024,period=8,criticality=low,latency=5ms,endpoint=0x83`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRequest(pub ReservationTerms);

impl FromStr for ReservationRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reservation = ReservationTerms::default();
        let (mut bytes, mut period, mut endpoint) = (None, None, 0);
        for word in text.split(',') {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || parsed(value).ok_or_else(|| format!("'{word}': {key}= has a number behind it"));
            match key {
                "bytes" => bytes = Some(number()?),
                "period" => period = Some(number()?),
                "endpoint" => {
                    endpoint = u8::try_from(number()?).map_err(|_| format!("'{word}': endpoints have a byte"))?
                }
                "criticality" => {
                    reservation.criticality = match value {
                        "high" => ReservationCriticality::High,
                        "low" => ReservationCriticality::Low,
                        _ => return Err(format!("'{word}': criticality is high or low")),
                    }
                }
                "latency" => {
                    reservation.latency_ns =
                        span_ns(value).ok_or_else(|| format!("'{word}': a latency is such as 5ms or 250us"))?;
                }
                _ => {
                    return Err(format!(
                        "a reservation has no '{word}': there are bytes=, period= (in microframes, in frames at full speed), \
                         endpoint=, criticality=high|low and latency="
                    ));
                }
            }
        }
        let (Some(bytes), Some(period)) = (bytes, period) else {
            return Err(format!("'{text}': a reservation says how much and how often, such as bytes=1024,period=8"));
        };
        reservation.claims.push(EndpointBandwidth { endpoint, bytes, period });
        Ok(Self(reservation))
    }
}

fn parsed(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

fn span_ns(value: &str) -> Option<u64> {
    let units = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (digits, unit) = units.iter().find_map(|&(name, ns)| Some((value.strip_suffix(name)?, ns)))?;
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|&ns| ns > 0)
}

/// Combines several requests for one device: each for another endpoint, all equally critical.
///
/// # Errors
/// A sentence for a person.
pub fn together(requests: &[ReservationRequest]) -> Result<Option<ReservationTerms>, String> {
    let Some((ReservationRequest(first), rest)) = requests.split_first() else { return Ok(None) };
    let mut all = first.clone();
    for ReservationRequest(reservation) in rest {
        if reservation.criticality != all.criticality {
            return Err("what is reserved for one device is all of one criticality".to_owned());
        }
        all.latency_ns = match (all.latency_ns, reservation.latency_ns) {
            (0, latency) | (latency, 0) => latency,
            (one, other) => one.min(other),
        };
        all.claims.extend_from_slice(&reservation.claims);
    }
    let mut endpoints: Vec<u8> = all.claims.iter().map(|claim| claim.endpoint).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    if endpoints.len() < all.claims.len() || (all.claims.len() > 1 && endpoints[0] == 0) {
        return Err("several reservations for one device say endpoint=, each another".to_owned());
    }
    match all.claims.len() > CLAIMS_MAX {
        true => Err(format!("a device has {CLAIMS_MAX} reservations at most")),
        false => Ok(Some(all)),
    }
}

/// The status of a report that an importer received.
pub fn reservation_told(report: &ReservationReport) -> ReservationStatus {
    let state = match report.state {
        ReservationState::Admitted => "admitted",
        ReservationState::Suspended => "suspended",
        ReservationState::Refused => "refused",
    };
    let criticality = if report.criticality == ReservationCriticality::High { "high" } else { "low" };
    let (lack, missing) = in_words(report.lack, report.missing).unzip();
    ReservationStatus {
        state: state.to_owned(),
        criticality: criticality.to_owned(),
        lack,
        missing,
        bus: None,
        bus_ppm: report.bus_ppm,
        path_bits_per_s: report.path_bits_per_s,
        bound_us: (report.state == ReservationState::Admitted).then_some(report.bound_ns.div_ceil(1000)),
        processor: None,
        thread: report.thread.map(|thread| match thread {
            ThreadTime::Ordinary => "ordinary".to_owned(),
            ThreadTime::Reserved => "reserved".to_owned(),
        }),
    }
}

/// The status of a line of the ledger.
pub(crate) fn reservation_status(line: &ListedReservation<'_>) -> ReservationStatus {
    let status = reservation_told(&line.report);
    let bus = Some(line.bus.to_owned()).filter(|bus| !bus.is_empty());
    ReservationStatus { bus, processor: line.processor.map(|(processor, _)| processor), ..status }
}

/// What is short, in one word, and how much of it is missing, with its unit. `None`: nothing.
pub fn in_words(lack: ScarceResource, missing: u64) -> Option<(String, String)> {
    let (lack, missing) = match lack {
        ScarceResource::None => return None,
        ScarceResource::Bus => {
            ("bus", format!("{}.{:03} us of an interval", missing / 1_000_000, missing % 1_000_000 / 1000))
        }
        ScarceResource::Processor => ("processor", format!("{missing} billionths")),
        ScarceResource::Rate => ("path", format!("{missing} bit/s")),
        ScarceResource::Delay => ("delay", format!("{} us", missing.div_ceil(1000))),
        ScarceResource::Endpoint => ("endpoint", format!("{missing:#04x}")),
        ScarceResource::Period => ("period", format!("period={missing}")),
        ScarceResource::Budget => ("budget", format!("{missing} bytes")),
        ScarceResource::Kind => ("kind", "a device with one user".to_owned()),
        ScarceResource::Permission => ("permission", "high criticality".to_owned()),
    };
    Some((lack.to_owned(), missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_request_parses_as_its_help_says() {
        let ReservationRequest(read) = "bytes=1024,period=8,criticality=low,latency=5ms,endpoint=0x83".parse().unwrap();
        let claims = vec![EndpointBandwidth { endpoint: 0x83, bytes: 1024, period: 8 }];
        assert_eq!(
            read,
            ReservationTerms {
                criticality: ReservationCriticality::Low,
                latency_ns: 5_000_000,
                claims,
                ..ReservationTerms::default()
            }
        );
        let ReservationRequest(short) = "bytes=64,period=1".parse().unwrap();
        assert_eq!(
            (short.criticality, short.latency_ns, short.claims[0].endpoint),
            (ReservationCriticality::High, 0, 0)
        );
        for wrong in ["", "bytes=64", "period=8", "bytes=x,period=8", "bytes=1,period=1,criticality=some", "rate=5"] {
            assert!(wrong.parse::<ReservationRequest>().is_err(), "{wrong}");
        }
        assert!("bytes=1,period=1,latency=5".parse::<ReservationRequest>().unwrap_err().contains("5ms"));
    }

    #[test]
    fn several_requests_need_different_endpoints() {
        let request = |text: &str| text.parse::<ReservationRequest>().unwrap();
        let both =
            [request("bytes=64,period=8,endpoint=0x82,latency=9ms"), request("bytes=1024,period=1,endpoint=0x83")];
        let all = together(&both).unwrap().unwrap();
        assert_eq!((all.claims.len(), all.latency_ns), (2, 9_000_000));
        assert_eq!(together(&[]), Ok(None));
        assert!(together(&[both[0].clone(), both[0].clone()]).is_err());
        assert!(together(&[both[0].clone(), request("bytes=64,period=8")]).is_err());
        assert!(together(&[both[0].clone(), request("bytes=64,period=8,endpoint=1,criticality=low")]).is_err());
    }
}
