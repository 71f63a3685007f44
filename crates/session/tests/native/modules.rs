//! Modules that change nothing that can be seen above them, in any order.

use std::sync::Arc;

use farbus_modules::{Allowance, Asked, Catalogue, Recipe};
use farbus_session::native::{Allowed, Through};

use crate::random::Random;

const HARMLESS: [&str; 7] = [
    "null",
    "lz4:min=1",
    "zstd:min=1",
    "zstd",
    "seal:key-file=k",
    "delay:time=300us,jitter=500us",
    "rate:bytes-per-s=500000000",
];

/// Both ends of an attachment's modules.
pub struct Modules {
    pub through: Through,
    pub allowed: Arc<Allowed>,
}

impl Modules {
    /// One to four of them.
    pub fn any(random: &mut Random) -> Self {
        let asked: Vec<&str> = (0..=random.below(4)).map(|_| random.pick(&HARMLESS)).collect();
        Self::new(&asked, 7)
    }

    /// These; the exporter's key is made of `key`, the importer's of sevens.
    pub fn new(asked: &[&str], key: u8) -> Self {
        let catalogue = Catalogue::builtin();
        let asked: Vec<Asked> = asked.iter().map(|text| text.parse().unwrap()).collect();
        let recipe = Recipe::new(&catalogue, &asked, &mut |_| Ok(vec![7; 32])).unwrap();
        let mut allowance = Allowance::usual(&catalogue);
        allowance.allow(&catalogue, &"seal:key-file=k".parse().unwrap(), &mut |_| Ok(vec![key; 32])).unwrap();
        let mut salts = Random::new(1);
        let through = Through { recipe, random: Box::new(move |bytes| bytes.fill_with(|| salts.next() as u8)) };
        let allowed = Allowed { modules: allowance, random: Box::new(|bytes| bytes.fill(3)) };
        Self { through, allowed: Arc::new(allowed) }
    }
}
