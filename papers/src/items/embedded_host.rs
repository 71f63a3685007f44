//! Y. Hu, "Real Embedded USB Host Performance" (2008).

use anyhow::{Context, Result};
use serde_json::Value;

use crate::item::{ItemEvidence, ItemSource, PaperItem, part, value};
use crate::result::{ItemResult, ItemRow};

/// Table 1 of the paper: payload, and KB/s at most.
const TABLE_1: [(u64, u64); 7] = [(1, 107), (2, 200), (4, 352), (8, 568), (16, 816), (32, 1056), (64, 1216)];

pub const ITEMS: &[PaperItem] = &[
    PaperItem {
        paper: 2008,
        number: "Table 1",
        title: "Transfer rates of full-speed bulk",
        evidence: ItemEvidence::Computed,
        says: "107, 200, 352, 568, 816, 1056, 1216 KB/s for 1 to 64 bytes",
        why: "Nothing differs; at 4 bytes the paper's last column has 351, a misprint for the 352 of its second.",
        source: ItemSource::Command { runs: &["plan bandwidth --speed full --kind bulk"], read: table_1 },
    },
    PaperItem {
        paper: 2008,
        number: "Table 2",
        title: "Raw reading and writing, 20 MB in 4 KB requests",
        evidence: ItemEvidence::Measured,
        says: "EHCI 12684 and 8320 KB/s; OHCI 891 and 832; UHCI 639 and 611; ISP116x 352 and 334; ISP1362 621 and 493; \
               ISP176x 7425 and 3214",
        why: "The paper's stick is flash behind real controllers on a 300 MHz processor; ours is memory behind farbus's \
              own host, so what is timed is software and the network.",
        source: ItemSource::Benchmarks(&[part(
            "device",
            &[
                value("USB gadget in this process", "EHCI 12684 read, 8320 written"),
                value("USB disk by USB/IP, ", "EHCI 12684 read, 8320 written"),
                value("USB disk in a session, ", "EHCI 12684 read, 8320 written"),
                value("block device in a session, ", "EHCI 12684 read, 8320 written"),
            ],
            &[],
        )]),
    },
];

fn table_1(printed: &[Value]) -> Result<ItemResult> {
    let rows = printed[0]["tables"][0]["rows"].as_array().context("no rows of full-speed bulk")?;
    let row = |&(payload, paper): &(u64, u64)| {
        let row = rows.iter().find(|row| row["data_payload_bytes"] == payload).context("a payload is missing")?;
        let rate = row["bandwidth_bytes_per_s_max"].as_u64().context("no rate")?;
        Ok(ItemRow::of(format!("{payload} bytes of payload"), rate as f64 / 1e3, "KB/s", paper))
    };
    Ok(TABLE_1.iter().map(row).collect::<Result<Vec<_>>>()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_1_lacks_no_payload() {
        let printed = |payloads: &[u64]| {
            let rows = payloads.iter().map(|n| json!({"data_payload_bytes": n, "bandwidth_bytes_per_s_max": 107_000}));
            [json!({"tables": [{"rows": rows.collect::<Vec<_>>()}]})]
        };
        let all = table_1(&printed(&[1, 2, 4, 8, 16, 32, 64])).expect("all payloads");
        assert_eq!((all.rows.len(), all.rows[0].samples.clone()), (7, vec![107.0]));
        assert!(table_1(&printed(&[1, 2, 4])).is_err());
    }
}
