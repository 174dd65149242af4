//! TorFlow's and sbws' own test vectors and rules.

use super::super::speeds::{Speeds, speeds};
use super::super::{Balance, Round};
use super::{Sbws, TorFlow, evidence, near};

#[test]
fn filtered_speeds_are_those_of_sbws_tests() {
    // sbws, tests/unit/lib/test_scaling.py, `test_bw_filt`.
    let vectors: [(&[f64], f64); 5] = [
        (
            &[
                96700.00922329757,
                70311.63051659254,
                45531.743347556374,
                38913.97025485627,
                55656.332364676025,
            ],
            83506.0,
        ),
        (&[1.0, 0.0], 0.0),
        (&[1.0, 2.0, 3.0], 2.0),
        (&[10.0, 0.0], 10.0),
        (&[0.0, 10.0, 20.0], 15.0),
    ];
    for (probes, filtered) in vectors {
        assert_eq!(speeds(probes).map(|speeds| speeds.filtered), Some(filtered), "{probes:?}");
    }
    assert_eq!(speeds(&[]), None);
    assert_eq!(speeds(&[1.6, 1.6]), Some(Speeds { stream: 2.0, filtered: 2.0 }));
}

#[test]
fn sbws_weighs_the_relay_of_its_own_test() {
    // sbws, tests/unit/lib/test_v3bwfile.py, `test_torflow_scale` and its results.txt: five downloads, a burst limit of
    // 123,456 B/s below the consensus' 600,000: 120 kB/s in two digits.
    let one = evidence(Round {
        weights: vec![600_000.0],
        reports: vec![123_456.0],
        probes: vec![vec![96700.0, 70311.6, 45531.7, 38914.0, 55656.3]],
        ..Round::default()
    });
    near(&Sbws::default().weigh(&one), &[120_000.0]);
}

#[test]
fn sbws_rounds_as_its_own_tests() {
    // The same file, `test_round_sig_dig` with two digits, in kB/s.
    for (kilobytes, rounded) in
        [(11.0, 11.0), (839.0, 840.0), (5789.0, 5800.0), (24103.0, 24000.0), (14.9, 15.0), (0.4, 1.0)]
    {
        let one = evidence(Round {
            reports: vec![kilobytes * 1000.0],
            weights: vec![0.0],
            probes: vec![vec![5e5]],
            ..Round::default()
        });
        near(&Sbws::default().weigh(&one), &[rounded * 1000.0]);
    }
}

#[test]
fn torflow_corrects_the_report_by_the_larger_ratio() {
    // `aggregate.py`, `Node.get_pid_bw` with K_p = 1 and T_i = T_d = 0: report + report * error, where the error is that of
    // the stream or the filtered speed, whichever ratio is larger. Streams 2e5, 2e5, 8e5 (mean 4e5), filtered 3e5, 2e5, 8e5
    // (mean 433,333).
    let three = evidence(Round {
        weights: vec![1e6; 3],
        reports: vec![1e6, 2e6, 4e6],
        probes: vec![vec![1e5, 3e5], vec![2e5], vec![8e5]],
        ..Round::default()
    });
    let uncapped = TorFlow { cap: 1.0, ..TorFlow::default() };
    near(&uncapped.weigh(&three), &[3.0 / 13.0 * 3e6, 1e6, 8e6]);
}
