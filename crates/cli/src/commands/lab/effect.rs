//! The effect of a change: medians of both sides, and their ratio with its interval.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};
use tidegate_lab::number::{format_change, format_number};
use tidegate_lab::statistics::{Estimate, median};

use super::load::ClientLoad;
use super::schedule::METRICS;

/// Compared quantities, in the order of [`METRICS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Connect,
    Small,
    Bulk,
}

impl Quantity {
    pub const ALL: [Quantity; 3] = [Quantity::Connect, Quantity::Small, Quantity::Bulk];

    fn name(self) -> &'static str {
        match self {
            Quantity::Connect => "connect, s",
            Quantity::Small => "50 KiB, last byte, s",
            Quantity::Bulk => "bulk per client, kB/s",
        }
    }

    fn key(self) -> &'static str {
        METRICS[self as usize]
    }

    /// A client's values.
    fn of(self, load: &ClientLoad) -> Vec<f64> {
        match self {
            Quantity::Connect => load.downloads.iter().map(|download| download.connect).collect(),
            Quantity::Small => load.downloads.iter().map(|download| download.last_byte).collect(),
            Quantity::Bulk => vec![load.bulk / 1e3],
        }
    }
}

/// Medians that the simulator predicts for one round, in the order of [`METRICS`].
pub type Predicted = [f64; METRICS.len()];

/// Measurements and predictions of one side, by round.
#[derive(Default)]
pub struct SideResult {
    pub rounds: Vec<Vec<ClientLoad>>,
    pub predicted: Vec<Predicted>,
    /// Lateness of packets, in seconds: the largest 99th percentile of a round.
    pub late: f64,
    pub warnings: Vec<String>,
}

impl SideResult {
    /// Number of small downloads that failed.
    fn failed(&self) -> u32 {
        self.rounds.iter().flatten().map(|client| client.failed).sum()
    }

    fn values(&self, quantity: Quantity) -> Vec<f64> {
        self.rounds.iter().flatten().flat_map(|client| quantity.of(client)).collect()
    }

    /// A median for each independent unit: each round, or each client of the only round.
    fn units(&self, quantity: Quantity) -> Vec<Option<f64>> {
        match &self.rounds[..] {
            [only] => only.iter().map(|client| median(quantity.of(client))).collect(),
            rounds => {
                let pooled = |round: &Vec<ClientLoad>| {
                    median(round.iter().flat_map(|client| quantity.of(client)).collect())
                };
                rounds.iter().map(pooled).collect()
            }
        }
    }

    /// The median of the rounds' predictions.
    fn prediction(&self, quantity: Quantity) -> Option<f64> {
        median(self.predicted.iter().map(|round| round[quantity as usize]).collect())
    }
}

/// A relative change: -0.25 is a quarter less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub value: f64,
    /// The 95 % interval, if there are two pairs or more.
    pub interval: Option<[f64; 2]>,
    /// Number of pairs.
    pub n: usize,
}

impl Change {
    /// The geometric mean of the ratios of pairs, less 1, with its 95 % interval by Student's t over their logarithms.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Change> {
        let logarithms = pairs.into_iter().map(|(before, after)| (after / before).ln());
        let logarithms: Vec<f64> = logarithms.filter(|ratio| ratio.is_finite()).collect();
        let Estimate { n, mean, ci95 } = Estimate::of(&logarithms);
        let interval = ci95.map(|half| [mean - half, mean + half].map(|edge| edge.exp() - 1.0));
        (n > 0).then(|| Change { value: mean.exp() - 1.0, interval, n })
    }

    fn text(self) -> String {
        format_change(self.value, self.interval)
    }

    fn json(self) -> Value {
        json!({ "change": self.value, "ci95": self.interval, "pairs": self.n })
    }
}

/// The measured change of a quantity.
pub fn measured(before: &SideResult, after: &SideResult, quantity: Quantity) -> Option<Change> {
    let pairs = before.units(quantity).into_iter().zip(after.units(quantity));
    Change::of(pairs.filter_map(|(before, after)| Some((before?, after?))))
}

/// The predicted change of a quantity; each round is a pair.
pub fn predicted(before: &SideResult, after: &SideResult, quantity: Quantity) -> Option<Change> {
    let of = |side: &SideResult| -> Vec<f64> {
        side.predicted.iter().map(|round| round[quantity as usize]).collect()
    };
    Change::of(of(before).into_iter().zip(of(after)))
}

/// The table of one or two sides.
pub fn table(names: &[&str], sides: &[SideResult]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let is_predicted = sides.iter().any(|side| !side.predicted.is_empty());
    let mut header = vec!["median of".to_owned()];
    for name in names {
        header.push(format!("{name} (n)"));
        if is_predicted {
            header.push(format!("{name}, simulated"));
        }
    }
    if sides.len() == 2 {
        header.push("change [95 %]".into());
        if is_predicted {
            header.push("simulated".into());
        }
    }
    table.set_header(header);
    let right = |text: Option<String>| {
        Cell::new(text.unwrap_or_else(|| "-".into())).set_alignment(CellAlignment::Right)
    };
    for quantity in Quantity::ALL {
        let mut row = vec![Cell::new(quantity.name())];
        for side in sides {
            let values = side.values(quantity);
            let n = values.len();
            row.push(right(median(values).map(|median| format!("{} ({n})", format_number(median)))));
            if is_predicted {
                row.push(right(side.prediction(quantity).map(format_number)));
            }
        }
        if let [before, after] = sides {
            row.push(right(measured(before, after, quantity).map(Change::text)));
            if is_predicted {
                row.push(right(predicted(before, after, quantity).map(Change::text)));
            }
        }
        table.add_row(row);
    }
    table.to_string()
}

/// All results as JSON, with every measured value.
pub fn document(names: &[&str], sides: &[SideResult]) -> Value {
    let mut document = json!({});
    for (name, side) in names.iter().zip(sides) {
        let of = |quantity: Quantity| {
            let values = side.values(quantity);
            let n = values.len();
            json!({ "median": median(values.clone()), "n": n, "values": values, "simulated": side.prediction(quantity) })
        };
        document[name] =
            Quantity::ALL.iter().map(|quantity| (quantity.key().to_owned(), of(*quantity))).collect();
        document[name]["failed"] = side.failed().into();
        document[name]["late_p99_s"] = side.late.into();
        document[name]["warnings"] = json!(side.warnings);
    }
    if let [before, after] = sides {
        for quantity in Quantity::ALL {
            let key = quantity.key();
            document["effect"][key] = json!(measured(before, after, quantity).map(Change::json));
            if !before.predicted.is_empty() {
                document["simulated_effect"][key] =
                    json!(predicted(before, after, quantity).map(Change::json));
            }
        }
    }
    document
}

/// Remarks below the table: pairs, failures, lateness.
pub fn remarks(names: &[&str], sides: &[SideResult], delay_s: f64) -> Vec<String> {
    let mut remarks = Vec::new();
    if let [before, _] = sides {
        let pairs = match before.rounds.len() {
            1 => "the clients of one round, which share relays; --rounds gives independent pairs".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        remarks.push(format!("Changes are geometric means over pairs: {pairs}."));
    }
    for (name, side) in names.iter().zip(sides) {
        if side.failed() > 0 {
            remarks.push(format!("{name}: {} small downloads failed.", side.failed()));
            remarks.extend(side.warnings.iter().map(|line| format!("{name}: tor says {line}")));
        }
        if side.late > 0.05 * delay_s {
            remarks.push(format!(
                "{name}: packets were late by {:.1} ms (99th percentile), over 5 % of the delay; run it on an idle machine.",
                1e3 * side.late
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::super::load::Download;
    use super::*;

    fn client(times: &[f64]) -> ClientLoad {
        let download = |time: &f64| Download { connect: time / 2.0, last_byte: *time };
        ClientLoad { downloads: times.iter().map(download).collect(), failed: 0, bulk: 1000.0 * times[0] }
    }

    fn side(rounds: Vec<Vec<ClientLoad>>) -> SideResult {
        SideResult { rounds, ..SideResult::default() }
    }

    #[test]
    fn changes_are_geometric_means_of_pairs() {
        let change = Change::of([(1.0, 0.5), (2.0, 1.0), (4.0, 2.0)]).unwrap();
        assert!((change.value + 0.5).abs() < 1e-12 && change.n == 3, "{change:?}");
        assert!(change.interval.unwrap().iter().all(|edge| (edge + 0.5).abs() < 1e-9));
        // Half and double cancel, and two pairs leave the sign open.
        let open = Change::of([(1.0, 0.5), (1.0, 2.0)]).unwrap();
        assert!(
            open.value.abs() < 1e-12 && open.interval.unwrap()[0] < 0.0 && open.interval.unwrap()[1] > 0.0
        );
        assert_eq!(Change::of([(1.0, 2.0)]).unwrap().interval, None);
        assert_eq!(Change::of([(0.0, 2.0)]), None);
    }

    #[test]
    fn pairs_are_clients_of_one_round_or_rounds() {
        let before = side(vec![vec![client(&[1.0, 2.0, 3.0]), client(&[4.0])]]);
        let after = side(vec![vec![client(&[1.0, 1.0, 9.0]), client(&[2.0])]]);
        let change = measured(&before, &after, Quantity::Small).unwrap();
        assert!(change.n == 2 && (change.value + 0.5).abs() < 1e-12, "{change:?}");
        let [before, after] = [before, after].map(|side| {
            let round = side.rounds[0].clone();
            SideResult { rounds: vec![round.clone(), round.clone(), round], ..side }
        });
        // Medians of the pooled downloads: 2.5 and 1.5.
        let change = measured(&before, &after, Quantity::Connect).unwrap();
        assert!(change.n == 3 && (change.value + 0.4).abs() < 1e-12, "{change:?}");
        // A client without a download leaves its pair out.
        let empty = side(vec![vec![ClientLoad::default(), client(&[2.0])]]);
        assert_eq!(measured(&empty, &empty, Quantity::Small).unwrap().n, 1);
    }

    #[test]
    fn the_table_shows_n_medians_and_changes() {
        let mut sides = [
            side(vec![vec![client(&[1.0, 2.0]), client(&[4.0])]]),
            side(vec![vec![client(&[1.0]), client(&[2.0])]]),
        ];
        let shown = table(&["baseline", "changed"], &sides);
        assert!(shown.contains("2 (3)") && shown.contains("50 KiB"), "{shown}");
        assert!(!shown.contains("simulated"), "{shown}");
        sides[0].predicted.push([1.0, 2.0, 100.0]);
        sides[1].predicted.push([0.5, 1.0, 110.0]);
        let shown = table(&["baseline", "changed"], &sides);
        assert!(shown.contains("-50 %") && shown.contains("+10 %"), "{shown}");
        let document = document(&["baseline", "changed"], &sides);
        assert_eq!(document["baseline"]["ttlb_50kib_s"]["n"], 3);
        assert_eq!(document["simulated_effect"]["connect_s"]["pairs"], 1);
    }
}
