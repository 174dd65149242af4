//! When a user opens streams, and to which ports.

use tidegate_control::random::Random;

/// Ports of the users' streams.
pub(super) const PORTS: [u16; 2] = [80, 443];

/// A kind of user. Source: TorPS' `models.py` and its recorded traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserModel {
    /// 376 streams a day in five sessions of 20 min (TorPS: `typical`).
    Typical,
    /// A stream every 10 min, day and night (TorPS: `simple=600`).
    Simple,
}

/// A session of TorPS' typical user: its start in seconds of the day, and its streams to port 80 and to port 443.
type Session = (u32, [u32; 2]);

/// Mail and chat at 9:00, documents at 12:00, a social network at 15:00, two searches from 18:00 on. The numbers of
/// streams are those of the traces in TorPS.
const TYPICAL: [Session; 5] = [
    (9 * 3600, [23, 17]),
    (12 * 3600, [1, 16]),
    (15 * 3600, [2, 41]),
    (18 * 3600, [67, 71]),
    (18 * 3600 + 1200, [67, 71]),
];

/// Seconds of a session.
const SESSION: f64 = 1200.0;
/// Seconds between two streams of the simple user.
const INTERVAL: u32 = 600;

/// A stream: the second of its day, and the index of its port in [`PORTS`].
pub(super) type Stream = (u32, usize);

impl UserModel {
    /// All kinds with their names.
    pub const ALL: [(&'static str, UserModel); 2] =
        [("typical", UserModel::Typical), ("simple", UserModel::Simple)];

    /// The streams of a day in order.
    ///
    /// A session begins with a stream; its other streams are at times drawn uniformly from 20 min.
    pub(super) fn day(self, random: &mut Random) -> Vec<Stream> {
        match self {
            UserModel::Simple => (0..86_400 / INTERVAL).map(|number| (number * INTERVAL, 0)).collect(),
            UserModel::Typical => {
                let mut streams = Vec::new();
                for (start, counts) in TYPICAL {
                    let mut session: Vec<Stream> = Vec::new();
                    for (port, count) in counts.into_iter().enumerate() {
                        session.extend((0..count).map(|_| (start + (SESSION * random.unit()) as u32, port)));
                    }
                    session.sort_unstable();
                    session[0].0 = start;
                    streams.extend(session);
                }
                streams
            }
        }
    }

    /// The mean of a quantity of each port, over the streams of a day.
    pub(super) fn mean_over_ports(self, of: &[f64]) -> f64 {
        let counts = match self {
            UserModel::Simple => [1, 0],
            UserModel::Typical => {
                TYPICAL.iter().fold([0, 0], |sum, (_, session)| [sum[0] + session[0], sum[1] + session[1]])
            }
        };
        let sum: f64 = counts.iter().zip(of).map(|(count, value)| f64::from(*count) * value).sum();
        sum / f64::from(counts.iter().sum::<u32>())
    }

    /// The user in a sentence.
    pub(crate) fn description(self) -> &'static str {
        match self {
            UserModel::Typical => {
                "376 streams a day to ports 80 and 443, in sessions of 20 min at 9:00, 12:00, 15:00, 18:00 and 18:20"
            }
            UserModel::Simple => "a stream to port 80 every 10 min",
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    #[test]
    fn a_week_of_the_typical_user_has_the_published_number_of_streams() {
        let mut random = Seed::root(1).random();
        let week: Vec<Stream> = (0..7).flat_map(|_| UserModel::Typical.day(&mut random)).collect();
        // Users Get Routed (CCS 2013), table of user models: 2,632 streams a week.
        assert_eq!(week.len(), 2632);
        let day = UserModel::Typical.day(&mut random);
        assert!(day.is_sorted() && day[0].0 == 9 * 3600 && day.iter().all(|(time, _)| *time < 86_400));
        assert_eq!(UserModel::Simple.day(&mut random).len(), 144);
    }
}
