//! Finding places: first-fit (Algorithm 3), and a search if that fails.

use super::bins::{IntervalBins, IntervalSlot};
use super::request::{EndpointRequest, SchedulingMode};

/// A periodic endpoint and the ways to divide its budget, undivided first.
#[derive(Clone, Debug)]
pub(super) struct DivisibleEndpoint {
    pub(super) id: u32,
    pub(super) period: u32,
    /// With `start` 0; any start below `every` is valid.
    pub(super) slots: Vec<IntervalSlot>,
}

/// The result of a search.
pub(super) enum PlacementSearchOutcome {
    Places(Vec<(u32, IntervalSlot)>),
    /// `is_proven`: every possibility was tried.
    Nothing {
        is_proven: bool,
    },
}

impl DivisibleEndpoint {
    pub(super) fn of(request: &EndpointRequest, mode: SchedulingMode) -> Self {
        let (shape, period) = (&request.shape, request.period);
        let quantum_packets = shape.quantum_packets();
        let slots = match mode {
            SchedulingMode::Printed { .. } => {
                vec![IntervalSlot { start: 0, every: period, packets: quantum_packets, time_ps: shape.quantum_ps() }]
            }
            SchedulingMode::Spread => {
                let time_ps = shape.quantum_ps().div_ceil(u64::from(period));
                vec![IntervalSlot { start: 0, every: 1, packets: quantum_packets, time_ps }]
            }
            SchedulingMode::Controller => {
                let time_ps = u64::from(quantum_packets) * shape.wire_ps();
                vec![IntervalSlot { start: 0, every: 1, packets: quantum_packets, time_ps }]
            }
            SchedulingMode::Sound => divided(shape.packets(request.budget_bytes), shape.packet_ps(), period),
        };
        Self { id: request.id, period, slots }
    }
}

/// `packets` each `period` as a whole, in two halves, in four quarters and so on, as long as the parts get smaller.
fn divided(packets: u32, packet_ps: u64, period: u32) -> Vec<IntervalSlot> {
    let mut slots: Vec<IntervalSlot> = Vec::new();
    for halvings in 0..=period.ilog2() {
        let part = packets.div_ceil(1 << halvings);
        if slots.last().is_some_and(|last| last.packets == part) {
            break;
        }
        let time_ps = u64::from(part) * packet_ps;
        slots.push(IntervalSlot { start: 0, every: period >> halvings, packets: part, time_ps });
    }
    slots
}

/// The first place with enough free time; takes it.
pub(super) fn first_fit(item: &DivisibleEndpoint, bins: &mut IntervalBins) -> Option<IntervalSlot> {
    let mut candidates =
        item.slots.iter().flat_map(|slot| (0..slot.every).map(|start| IntervalSlot { start, ..*slot }));
    candidates.find(|slot| bins.take(slot))
}

/// The time that is missing at the best place.
pub(super) fn missing_ps(item: &DivisibleEndpoint, bins: &IntervalBins) -> u64 {
    let lacks = item.slots.iter().flat_map(|slot| {
        (0..slot.every).map(|start| slot.time_ps.saturating_sub(bins.least_free_ps(start, slot.every)))
    });
    lacks.min().unwrap_or(0)
}

/// Places for all of `items`, found by backtracking, within `work_max` visits of bins.
pub(super) fn search(items: &[DivisibleEndpoint], bins: &IntervalBins, work_max: u64) -> PlacementSearchOutcome {
    let mut items: Vec<_> = items.iter().collect();
    // Shortest period first: the pattern of free time then repeats with the current item's period.
    items.sort_by_key(|item| (item.period, std::cmp::Reverse(item.slots[0].time_ps), item.id));
    let is_divided = items.iter().any(|item| item.slots.len() > 1);
    let mut search = PlacementSearch { items, bins: bins.clone(), work_left: work_max, is_divided, slots: Vec::new() };
    match search.descend() {
        Some(true) => PlacementSearchOutcome::Places(search.slots),
        Some(false) => PlacementSearchOutcome::Nothing { is_proven: true },
        None => PlacementSearchOutcome::Nothing { is_proven: false },
    }
}

struct PlacementSearch<'a> {
    items: Vec<&'a DivisibleEndpoint>,
    bins: IntervalBins,
    work_left: u64,
    is_divided: bool,
    slots: Vec<(u32, IntervalSlot)>,
}

impl PlacementSearch<'_> {
    /// `None` when the work is used up. Recurses as deep as there are items.
    fn descend(&mut self) -> Option<bool> {
        let Some(&item) = self.items.get(self.slots.len()) else { return Some(true) };
        for slot in &item.slots {
            // Two starts with equal free time are equivalent for all following items, whose periods are multiples of
            // this one: exchanging the two classes of intervals changes nothing for them. This does not hold if one of
            // them may be divided further.
            let mut tried: Vec<u64> = Vec::new();
            for start in 0..slot.every {
                self.work_left = self.work_left.checked_sub(u64::from(self.bins.count() / slot.every))?;
                let free_ps = self.bins.least_free_ps(start, slot.every);
                if free_ps < slot.time_ps || tried.contains(&free_ps) {
                    continue;
                }
                if !self.is_divided {
                    tried.push(free_ps);
                }
                let interval_slot = IntervalSlot { start, ..*slot };
                self.bins.take(&interval_slot);
                self.slots.push((item.id, interval_slot));
                if self.descend()? {
                    return Some(true);
                }
                self.slots.pop();
                self.bins.give_back(&interval_slot);
            }
        }
        Some(false)
    }
}
