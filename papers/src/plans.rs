//! What `farbus plan … --json` printed, as rows beside the 2023 paper's.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::result::{ItemResult, ItemRow};

/// Table 2: `c`, and the bound of a round trip in microseconds.
const TABLE_2: [(u64, u64); 5] = [(1, 4000), (2, 4500), (4, 5500), (8, 7500), (16, 11500)];
/// Table 5, cameras: percent of the bus, Mb/s.
const CAMERAS: [(&str, f64, u64); 4] = [("i1", 45.4, 2162), ("i2", 22.7, 1081), ("i3", 11.4, 541), ("i4", 5.7, 270)];
/// Table 5, a bulk endpoint in each scenario.
const BULK: [(f64, u64); 3] = [(0.71, 33), (4.27, 197), (11.38, 520)];

fn endpoint<'a>(plan: &'a Value, name: &str) -> Result<&'a Value> {
    let all = plan["endpoints"].as_array().context("the plan has no endpoints")?;
    all.iter().find(|endpoint| endpoint["name"] == name).with_context(|| format!("no endpoint {name}"))
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("the plan says no {key}"))
}

fn is_admitted(endpoint: &Value) -> bool {
    endpoint["is_admitted"] == true
}

pub fn table_2(plans: &[Value]) -> Result<ItemResult> {
    let mut rows = Vec::new();
    for (at, (plan, (intervals, bound))) in plans.iter().zip(TABLE_2).enumerate() {
        let name = format!("scenario {}", at + 1);
        let seen = number(endpoint(plan, "b1")?, "intervals")?;
        rows.push(ItemRow::of(format!("{name}: endpoint latency c"), seen, "microframes", intervals));
        rows.push(ItemRow::of(format!("{name}: round trip"), number(plan, "end_to_end_ns")? / 1e3, "us", bound));
    }
    Ok(rows.into())
}

pub fn table_3(plans: &[Value]) -> Result<ItemResult> {
    let row = |(at, plan): (usize, &Value)| {
        let rest = number(plan, "end_to_end_ns")? / 1e3 - 500.0 * number(endpoint(plan, "b1")?, "intervals")?;
        Ok(ItemRow::of(format!("scenario {}: round trip without 500 c", at + 1), rest, "us", 3500))
    };
    Ok(plans.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?.into())
}

pub fn table_5(plans: &[Value]) -> Result<ItemResult> {
    let mut rows = Vec::new();
    let mut both = |name: String, endpoint: &Value, share: f64, rate: u64| -> Result<()> {
        let percent = number(endpoint, "share_ppm")? / 1e4;
        rows.push(ItemRow::of(format!("{name}: share of the bus"), percent, "%", share));
        rows.push(ItemRow::of(format!("{name}: throughput"), number(endpoint, "bits_per_s")? / 1e6, "Mb/s", rate));
        Ok(())
    };
    for (name, share, rate) in CAMERAS {
        both(name.to_owned(), endpoint(&plans[0], name)?, share, rate)?;
    }
    for (at, (plan, (share, rate))) in plans.iter().zip(BULK).enumerate() {
        both(format!("scenario {}, each bulk endpoint", at + 1), endpoint(plan, "b1")?, share, rate)?;
    }
    Ok(rows.into())
}

pub fn table_7(plans: &[Value]) -> Result<ItemResult> {
    let plan = &plans[0];
    Ok(vec![
        ItemRow::of("period of the receiver", number(plan, "period_ns")? / 1e6, "ms", 14),
        ItemRow::of("budget of the receiver", number(plan, "budget_ns")? / 1e6, "ms", 2),
    ]
    .into())
}

/// Debug links and bridges of a topology.
fn links(plan: &Value) -> Result<(usize, u64)> {
    let links = plan["links"].as_array().context("the plan has no links")?.len();
    let bridges = plan["bridges"].as_u64().context("the plan has no bridges")?;
    Ok((links - bridges as usize, bridges))
}

pub fn figure_4(plans: &[Value]) -> Result<ItemResult> {
    let (debug, bridges) = links(&plans[0])?;
    Ok(vec![ItemRow::of("debug links", debug as f64, "", 8), ItemRow::of("bridges", bridges as f64, "", 4)].into())
}

pub fn figure_5(plans: &[Value]) -> Result<ItemResult> {
    let mut rows = Vec::new();
    for (plan, (name, paper)) in plans.iter().zip([("(a)", 2), ("(b)", 3), ("(c)", 4)]) {
        let (debug, bridges) = links(plan)?;
        rows.push(ItemRow::of(format!("{name} debug links"), debug as f64, "", paper));
        rows.push(ItemRow::of(format!("{name} bridges"), bridges as f64, "", 0));
    }
    Ok(rows.into())
}

pub fn algorithm_1(plans: &[Value]) -> Result<ItemResult> {
    let paper = ["all 4", "all 4", "2, i1 and i4"];
    let mut rows = Vec::new();
    for (at, (plan, paper)) in plans.iter().zip(paper).enumerate() {
        let count = |names: &[&str]| -> Result<usize> {
            names.iter().map(|name| Ok(usize::from(is_admitted(endpoint(plan, name)?)))).sum()
        };
        let (cameras, bulk) = (count(&["i1", "i2", "i3", "i4"])?, count(&["b1", "b2", "b3", "b4"])?);
        let name = format!("scenario {}", at + 1);
        rows.push(ItemRow::of(format!("{name}: cameras admitted"), cameras as f64, "of 4", paper));
        rows.push(ItemRow::of(format!("{name}: bulk endpoints admitted"), bulk as f64, "of 4", "all 4"));
    }
    Ok(rows.into())
}

pub fn algorithm_2(plans: &[Value]) -> Result<ItemResult> {
    let row = |(at, plan): (usize, &Value)| {
        let reserved = number(plan, "reservation_max_ps")? / 1e6;
        Ok(ItemRow::of(format!("scenario {}: t_A at most", at + 1), reserved, "us", "39.875"))
    };
    Ok(plans.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?.into())
}

pub fn algorithm_3(plans: &[Value]) -> Result<ItemResult> {
    let mut rows = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        for (name, ..) in CAMERAS {
            let camera = endpoint(plan, name)?;
            let what = format!("scenario {}, {name}: first microframe", at + 1);
            let row = match camera["place"]["start"].as_f64() {
                Some(start) => ItemRow::of(what, start, "", "").with_detail(format!("each {}", camera["period"])),
                None => ItemRow::of(what, f64::NAN, "", "").with_detail("it has no place"),
            };
            rows.push(row);
        }
    }
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_the_plans_values_and_a_plan_without_them_is_an_error() {
        let plan = json!({"end_to_end_ns": 4_000_000, "endpoints": [{"name": "b1", "intervals": 1}]});
        let plans = vec![plan; 5];
        let rows = table_2(&plans).expect("rows").rows;
        assert_eq!((rows.len(), rows[0].samples[0], rows[1].samples[0]), (10, 1.0, 4000.0));
        assert_eq!(table_3(&plans).expect("rows").rows[4].samples[0], 3500.0);
        assert!(table_2(&[json!({})]).is_err() && figure_4(&[json!({"links": []})]).is_err());
        let cube = json!({"links": [1, 2, 3], "bridges": 1});
        assert_eq!(figure_4(&[cube]).expect("rows").rows[0].samples[0], 2.0);
    }
}
