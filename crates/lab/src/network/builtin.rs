//! The built-in model of Tor, for scenarios without data files: relays and countries from statistics.
//!
//! The tables hold quantiles and shares computed from the public consensuses of 2011-07-16 20:00 UTC (2,647 relays)
//! and 2024-05-17 17:00 UTC (7,195 relays; consensus weights in kB/s) and from tor's geoip file. Countries of relays
//! are those of 2024. Clients' countries follow the share of Tor's users by country in May 2024, from Tor Metrics
//! through tornettools' `userinfo` of that month.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::Span;
use tidegate_data::consensus::{Consensus, Flags, Flavour, Identity, RouterStatus};
use tidegate_data::country::Country;

/// The network of a year: number of relays, and per class its flags, share of relays and weights at [`QUANTILES`].
struct Model {
    relays: u64,
    classes: [(&'static [&'static str], f64, [f64; 8]); 4],
}

/// The years with a model, oldest first.
pub(crate) const YEARS: [u16; 2] = [2011, 2024];

/// In 2011 a few fast relays carried nearly all traffic.
const OF_2011: Model = Model {
    relays: 2_647,
    classes: [
        (&[], 0.378, [1.0, 5.0, 13.0, 32.0, 87.0, 607.0, 19_000.0, 70_000.0]),
        (&["Guard"], 0.211, [7.0, 58.0, 99.0, 428.0, 2_280.0, 14_900.0, 46_100.0, 93_500.0]),
        (&["Exit"], 0.306, [1.0, 5.0, 11.0, 29.0, 84.0, 327.0, 16_600.0, 46_500.0]),
        (&["Exit", "Guard"], 0.105, [8.0, 51.0, 106.0, 440.0, 3_830.0, 25_900.0, 85_900.0, 102_000.0]),
    ],
};

const OF_2024: Model = Model {
    relays: 7_195,
    classes: [
        (&[], 0.313, [1.0, 20.0, 280.0, 1_300.0, 8_400.0, 22_000.0, 67_000.0, 200_000.0]),
        (&["Guard"], 0.379, [20.0, 3_300.0, 6_000.0, 12_000.0, 24_000.0, 40_000.0, 74_000.0, 190_000.0]),
        (&["Exit"], 0.146, [1.0, 680.0, 1_900.0, 8_300.0, 11_000.0, 15_000.0, 31_000.0, 87_000.0]),
        (
            &["Exit", "Guard"],
            0.162,
            [1_300.0, 2_700.0, 4_900.0, 8_900.0, 13_000.0, 19_000.0, 39_000.0, 95_000.0],
        ),
    ],
};

const QUANTILES: [f64; 8] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

/// Countries of relays, in parts per thousand; the remainder is distributed proportionally.
const RELAY_COUNTRIES: [(&str, f64); 12] = [
    ("de", 238.0),
    ("us", 196.0),
    ("nl", 106.0),
    ("fr", 46.0),
    ("pl", 46.0),
    ("fi", 33.0),
    ("ca", 28.0),
    ("at", 26.0),
    ("gb", 24.0),
    ("se", 24.0),
    ("ch", 21.0),
    ("lu", 19.0),
];

/// Countries of clients, in parts per thousand; the remainder is distributed proportionally.
const CLIENT_COUNTRIES: [(&str, f64); 14] = [
    ("us", 179.0),
    ("de", 127.0),
    ("fi", 61.0),
    ("in", 42.0),
    ("nl", 35.0),
    ("es", 35.0),
    ("id", 30.0),
    ("fr", 29.0),
    ("gb", 28.0),
    ("ca", 23.0),
    ("br", 20.0),
    ("it", 17.0),
    ("ru", 15.0),
    ("ir", 14.0),
];

/// The consensus drawn from a year's tables, with a fixed seed. The year must be one of [`YEARS`].
pub(crate) fn consensus(year: u16) -> Consensus {
    let (model, valid_after) =
        if year == YEARS[0] { (OF_2011, 1_310_846_400) } else { (OF_2024, 1_715_965_200) };
    let seed = Seed::root(0).fork("built-in model of Tor");
    let relay = |number: u64| {
        let mut draws = seed.fork_index(number).random();
        let (flags, _, weights) = *choose(&model.classes, |class| class.1, &mut draws);
        let mut identity = [0u8; 20];
        identity[..8].copy_from_slice(&number.to_be_bytes());
        let names = flags.iter().copied().chain(["Fast", "Running", "Stable", "Valid"]);
        RouterStatus {
            nickname: format!("model{number}"),
            identity: Identity(identity),
            // Each relay has its own /16, so that none excludes another from a path.
            address: Ipv4Addr::from((number as u32 + 1) << 16 | 1),
            or_port: 9001,
            flags: Flags::from_names(names),
            version: None,
            bandwidth: quantile(&weights, draws.unit()).max(1.0) as u32,
            unmeasured: false,
            ports: None,
            microdescriptor: None,
        }
    };
    Consensus {
        flavour: Flavour::Microdesc,
        method: 34,
        valid_after,
        known_flags: Vec::new(),
        params: if year == YEARS[0] { BTreeMap::new() } else { parameters_of_2024() },
        relays: (0..model.relays).map(relay).collect(),
        bandwidth_weights: Default::default(),
    }
}

/// Parameters of traffic control in the consensus of 2024.
pub fn parameters_of_2024() -> BTreeMap<String, i32> {
    let parameters = [
        ("CircuitPriorityHalflifeMsec", 30_000),
        ("KISTSchedRunInterval", 3),
        ("cc_alg", 2),
        ("cc_cwnd_full_gap", 4),
        ("cc_cwnd_full_minpct", 25),
        ("cc_cwnd_inc", 1),
        ("cc_cwnd_inc_rate", 31),
        ("cc_cwnd_min", 124),
        ("cc_sscap_exit", 600),
        ("cc_vegas_alpha_exit", 186),
        ("cc_vegas_delta_exit", 310),
    ];
    parameters.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Interpolates linearly between the logarithms of the quantiles.
fn quantile(weights: &[f64; 8], q: f64) -> f64 {
    let upper = QUANTILES.iter().position(|known| q < *known).unwrap_or(QUANTILES.len() - 1).max(1);
    let share = (q - QUANTILES[upper - 1]) / (QUANTILES[upper] - QUANTILES[upper - 1]);
    let (low, high) = (libm::log(weights[upper - 1]), libm::log(weights[upper]));
    libm::exp(low + share * (high - low))
}

/// Draws an item by weight.
pub(super) fn choose<'a, T>(items: &'a [T], weight: impl Fn(&T) -> f64, draws: &mut Random) -> &'a T {
    let total: f64 = items.iter().map(&weight).sum();
    let mut left = draws.unit() * total;
    items
        .iter()
        .find(|item| {
            left -= weight(item);
            left < 0.0
        })
        .unwrap_or(&items[items.len() - 1])
}

/// Draws the country of a relay with an unknown one.
pub(super) fn relay_country(draws: &mut Random) -> Country {
    country(&RELAY_COUNTRIES, draws)
}

/// Draws a client's country.
pub(super) fn client_country(draws: &mut Random) -> Country {
    country(&CLIENT_COUNTRIES, draws)
}

fn country(shares: &[(&str, f64)], draws: &mut Random) -> Country {
    let (code, _) = choose(shares, |share| share.1, draws);
    Country::from_code(code).expect("the tables hold countries")
}

/// One-way delay between hosts of two countries without a latency file.
///
/// 2 ms of access at each end, plus light in fibre (200 km/ms) over 4/3 of the great circle between the centres.
pub(super) fn delay(from: Country, to: Country) -> Span {
    Span::from_secs_f64(0.004 + from.distance_km(to) / 150.0 * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_tables_quantiles() {
        let relays = consensus(2024).relays;
        let mut guards: Vec<f64> = relays
            .iter()
            .filter(|relay| relay.flags.guard() && !relay.flags.exit())
            .map(|relay| f64::from(relay.bandwidth))
            .collect();
        guards.sort_by(f64::total_cmp);
        assert!((guards.len() as f64 / relays.len() as f64 - 0.379).abs() < 0.02);
        let median = guards[guards.len() / 2];
        assert!((median / 12_000.0 - 1.0).abs() < 0.1, "{median}");
        let (de, us) = (Country::from_code("de").unwrap(), Country::from_code("us").unwrap());
        assert!((40..90).contains(&(delay(de, us).0 / 1_000_000)), "{}", delay(de, us));
    }
}
