//! Test vectors of tor 0.4.8 (`src/test/test_congestion_control.c`, `test_congestion_control_vegas_cwnd`).

use super::*;

/// Microseconds of sending and of the SENDME, cells in flight; expected smoothed RTT, least RTT and window. Then whether the
/// local queue is blocked; expected slow start, fullness and blocking.
type Step = ([u64; 6], [bool; 4]);

const EVERY_EXIT: &[Step] = &[
    ([100000, 200000, 124, 100000, 100000, 155], [false, true, false, false]),
    ([200000, 300000, 155, 100000, 100000, 186], [false, true, true, false]),
    ([350000, 500000, 186, 133333, 100000, 217], [false, true, true, false]),
    ([500000, 550000, 217, 77777, 77777, 248], [false, true, true, false]),
    ([600000, 700000, 248, 92592, 77777, 279], [false, true, true, false]),
    ([700000, 750000, 279, 64197, 64197, 310], [false, true, false, false]),
    ([750000, 875000, 310, 104732, 64197, 341], [false, true, true, false]),
    ([875000, 900000, 341, 51577, 51577, 372], [false, true, true, false]),
    ([900000, 950000, 279, 50525, 50525, 403], [false, true, true, false]),
    ([950000, 1000000, 279, 50175, 50175, 434], [false, true, true, false]),
    ([1000000, 1050000, 279, 50058, 50058, 465], [false, true, true, false]),
    ([1050000, 1100000, 279, 50019, 50019, 496], [false, true, true, false]),
    ([1100000, 1150000, 279, 50006, 50006, 527], [false, true, true, false]),
    ([1150000, 1200000, 279, 50002, 50002, 558], [false, true, true, false]),
    ([1200000, 1250000, 550, 50000, 50000, 589], [false, true, true, false]),
    ([1250000, 1300000, 550, 50000, 50000, 620], [false, true, false, false]),
    ([1300000, 1350000, 550, 50000, 50000, 635], [false, true, true, false]),
    ([1350000, 1400000, 550, 50000, 50000, 650], [false, true, true, false]),
    ([1400000, 1450000, 150, 50000, 50000, 650], [false, true, false, false]),
    ([1450000, 1500000, 150, 50000, 50000, 650], [false, true, false, false]),
    ([1500000, 1550000, 550, 50000, 50000, 664], [false, true, true, false]),
    ([1500000, 1600000, 550, 83333, 50000, 584], [false, false, true, false]),
    ([1600000, 1650000, 550, 61111, 50000, 585], [false, false, true, false]),
    ([1650000, 1700000, 550, 53703, 50000, 586], [false, false, true, false]),
    ([1700000, 1750000, 100, 51234, 50000, 586], [false, false, false, false]),
    ([1750000, 1900000, 100, 117078, 50000, 559], [false, false, false, false]),
    ([1900000, 2000000, 100, 105692, 50000, 558], [false, false, false, false]),
    ([2000000, 2075000, 500, 85230, 50000, 558], [false, false, true, false]),
    ([2075000, 2125000, 500, 61743, 50000, 557], [true, false, true, true]),
    ([2125000, 2150000, 500, 37247, 37247, 558], [false, false, true, false]),
    ([2150000, 2350000, 500, 145749, 37247, 451], [false, false, true, false]),
];
const BLOCKED: &[Step] = &[
    ([100000, 200000, 124, 100000, 100000, 155], [false, true, false, false]),
    ([200000, 300000, 155, 100000, 100000, 186], [false, true, true, false]),
    ([350000, 500000, 186, 133333, 100000, 217], [false, true, true, false]),
    ([500000, 550000, 217, 77777, 77777, 403], [true, false, true, true]),
    ([600000, 700000, 248, 92592, 77777, 404], [false, false, true, false]),
    ([700000, 750000, 404, 64197, 64197, 403], [true, false, false, true]),
    ([750000, 875000, 403, 104732, 64197, 404], [false, false, true, false]),
];
const UPLOAD_1: &[Step] = &[
    ([18258527, 19002938, 83, 744411, 744411, 155], [false, true, false, false]),
    ([18258580, 19254257, 52, 911921, 744411, 186], [false, true, true, false]),
    ([20003224, 20645298, 164, 732023, 732023, 217], [false, true, true, false]),
    ([20003367, 21021444, 133, 922725, 732023, 248], [false, true, true, false]),
    ([20003845, 21265508, 102, 1148683, 732023, 279], [false, true, true, false]),
    ([20003975, 21429157, 71, 1333015, 732023, 310], [false, true, false, false]),
    ([20004309, 21707677, 40, 1579917, 732023, 310], [false, true, false, false]),
];
const UPLOAD_2: &[Step] = &[
    ([358297091, 358854163, 83, 557072, 557072, 155], [false, true, false, false]),
    ([358297649, 359123845, 52, 736488, 557072, 186], [false, true, true, false]),
    ([359492879, 359995330, 186, 580463, 557072, 217], [false, true, true, false]),
    ([359493043, 360489243, 217, 857621, 557072, 248], [false, true, true, false]),
    ([359493232, 360489673, 248, 950167, 557072, 279], [false, true, true, false]),
    ([359493795, 360489971, 279, 980839, 557072, 310], [false, true, false, false]),
    ([359493918, 360490248, 310, 991166, 557072, 341], [false, true, true, false]),
    ([359494029, 360716465, 341, 1145346, 557072, 372], [false, true, true, false]),
    ([359996888, 360948867, 372, 1016434, 557072, 403], [false, true, true, false]),
    ([359996979, 360949330, 403, 973712, 557072, 434], [false, true, true, false]),
    ([360489528, 361113615, 434, 740628, 557072, 465], [false, true, true, false]),
    ([360489656, 361281604, 465, 774841, 557072, 496], [false, true, true, false]),
    ([360489837, 361500461, 496, 932029, 557072, 482], [false, false, true, false]),
    ([360489963, 361500631, 482, 984455, 557072, 482], [false, false, true, false]),
    ([360490117, 361842481, 482, 1229727, 557072, 481], [false, false, true, false]),
];

/// Defaults of tor 0.4.8, which the vectors presume.
const TOR_0_4_8: VegasParameters = VegasParameters {
    sendme_increment: 31,
    initial: 124,
    minimum: 124,
    increment: 1,
    increment_rate: 31,
    slow_start_percent: 100,
    slow_start_cap: 600,
    slow_start_max: 5000,
    alpha: 186,
    beta: 248,
    gamma: 186,
    delta: 310,
    full_gap: 4,
    full_percent: 25,
    ewma_percent: 50,
    ewma_max: 10,
    ewma_slow_start: 2,
    rtt_reset_percent: 100,
};

#[test]
fn the_window_moves_as_in_tors_test_vectors() {
    for (name, steps) in
        [("every exit", EVERY_EXIT), ("blocked", BLOCKED), ("upload 1", UPLOAD_1), ("upload 2", UPLOAD_2)]
    {
        let mut vegas = Vegas::new(TOR_0_4_8);
        let at = |micros: u64| Time(micros * 1000);
        vegas.sent = steps.iter().map(|(numbers, _)| at(numbers[0])).collect();
        for (number, ([_, sendme, in_flight, smoothed, least, window], states)) in steps.iter().enumerate() {
            vegas.in_flight = *in_flight;
            vegas.acknowledged(at(*sendme), states[0]).expect("a SENDME is due");
            let ours = ([vegas.smoothed_rtt, vegas.least_rtt, vegas.window], vegas.slow_start, vegas.full);
            assert_eq!(ours, ([*smoothed, *least, *window], states[1], states[2]), "{name}, step {number}");
            assert_eq!(vegas.blocked, states[3], "{name}, step {number}");
        }
    }
}
