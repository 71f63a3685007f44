//! Finding places: first-fit (Algorithm 3), and a search if that fails.

use super::bins::{Bins, Slot};
use super::request::{Mode, Request};

/// A periodic endpoint and the ways to divide its budget, undivided first.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: u32,
    pub(super) period: u32,
    /// With `start` 0; any start below `every` is valid.
    pub(super) slots: Vec<Slot>,
}

/// The result of a search.
pub(super) enum Found {
    Places(Vec<(u32, Slot)>),
    /// `is_proven`: every possibility was tried.
    Nothing {
        is_proven: bool,
    },
}

impl Item {
    pub(super) fn of(request: &Request, mode: Mode) -> Self {
        let (shape, period) = (&request.shape, request.period);
        let quantum_packets = shape.quantum_packets();
        let slots = match mode {
            Mode::Printed { .. } => {
                vec![Slot { start: 0, every: period, packets: quantum_packets, time_ps: shape.quantum_ps() }]
            }
            Mode::Spread => {
                let time_ps = shape.quantum_ps().div_ceil(u64::from(period));
                vec![Slot { start: 0, every: 1, packets: quantum_packets, time_ps }]
            }
            Mode::Sound => divided(shape.packets(request.budget_bytes), shape.packet_ps(), period),
        };
        Self { id: request.id, period, slots }
    }
}

/// `packets` each `period` as a whole, in two halves, in four quarters and so on, as long as the parts get smaller.
fn divided(packets: u32, packet_ps: u64, period: u32) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for halvings in 0..=period.ilog2() {
        let part = packets.div_ceil(1 << halvings);
        if slots.last().is_some_and(|last| last.packets == part) {
            break;
        }
        let time_ps = u64::from(part) * packet_ps;
        slots.push(Slot { start: 0, every: period >> halvings, packets: part, time_ps });
    }
    slots
}

/// The first place with enough free time; takes it.
pub(super) fn first_fit(item: &Item, bins: &mut Bins) -> Option<Slot> {
    let mut places = item.slots.iter().flat_map(|slot| (0..slot.every).map(|start| Slot { start, ..*slot }));
    places.find(|place| bins.take(place))
}

/// The time that is missing at the best place.
pub(super) fn missing_ps(item: &Item, bins: &Bins) -> u64 {
    let lacks = item.slots.iter().flat_map(|slot| {
        (0..slot.every).map(|start| slot.time_ps.saturating_sub(bins.least_free_ps(start, slot.every)))
    });
    lacks.min().unwrap_or(0)
}

/// Places for all of `items`, found by backtracking, within `work_max` visits of bins.
pub(super) fn search(items: &[Item], bins: &Bins, work_max: u64) -> Found {
    let mut items: Vec<_> = items.iter().collect();
    // Shortest period first: the pattern of free time then repeats with the current item's period.
    items.sort_by_key(|item| (item.period, std::cmp::Reverse(item.slots[0].time_ps), item.id));
    let is_divided = items.iter().any(|item| item.slots.len() > 1);
    let mut search = Search { items, bins: bins.clone(), work_left: work_max, is_divided, places: Vec::new() };
    match search.descend() {
        Some(true) => Found::Places(search.places),
        Some(false) => Found::Nothing { is_proven: true },
        None => Found::Nothing { is_proven: false },
    }
}

struct Search<'a> {
    items: Vec<&'a Item>,
    bins: Bins,
    work_left: u64,
    is_divided: bool,
    places: Vec<(u32, Slot)>,
}

impl Search<'_> {
    /// `None` when the work is used up. Recurses as deep as there are items.
    fn descend(&mut self) -> Option<bool> {
        let Some(&item) = self.items.get(self.places.len()) else { return Some(true) };
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
                let place = Slot { start, ..*slot };
                self.bins.take(&place);
                self.places.push((item.id, place));
                if self.descend()? {
                    return Some(true);
                }
                self.places.pop();
                self.bins.give_back(&place);
            }
        }
        Some(false)
    }
}
