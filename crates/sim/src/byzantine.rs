//! Lies of byzantine relays, sent in place of their controllers' trajectories.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::NEIGHBOUR_BYTES;
use tidegate_proto::control::predictor::{About, Trajectory, wire};

use crate::observe::Host;
use crate::plan::{Fault, FaultKind, Lie};

/// Copies of a message under [`Lie::TooMany`].
const MANY: u32 = 100;

/// The relays that are byzantine, and when.
#[derive(Debug, Default)]
pub(crate) struct Byzantine {
    rules: Vec<(Host, Lie, Time, Time)>,
    /// The first message of each connection under [`Lie::Replayed`].
    first: BTreeMap<(u32, u8), Vec<u8>>,
}

impl Byzantine {
    /// The faults that are lies.
    pub(crate) fn new(faults: &[Fault]) -> Byzantine {
        let rules = faults.iter().filter_map(|fault| match fault.kind {
            FaultKind::Byzantine { host, lie } => Some((Host(host), lie, fault.from, fault.until)),
            _ => None,
        });
        Byzantine { rules: rules.collect(), first: BTreeMap::new() }
    }

    /// Whether a relay lies at any time.
    pub(crate) fn lies(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The lie of a host at a time, if it lies.
    pub(crate) fn of(&self, host: Host, now: Time) -> Option<Lie> {
        let rule =
            self.rules.iter().find(|(liar, _, from, until)| *liar == host && (*from..*until).contains(&now));
        rule.map(|(_, lie, ..)| *lie)
    }

    /// The messages that come instead of the message `told` on a connection. Steps are `step` long.
    pub(crate) fn instead(
        &mut self,
        lie: Lie,
        (now, step): (Time, Span),
        connection: (u32, u8),
        told: Vec<u8>,
    ) -> Vec<Vec<u8>> {
        let values = |value: f64, length: usize| {
            forge(&told, (now, step), |told_of, out| {
                out.write(&Trajectory { values: &vec![value; length], ..*told_of });
            })
        };
        match lie {
            Lie::Greedy => forge(&told, (now, step), |told_of, out| {
                out.write(&Trajectory { values: &vec![f64::MAX; told_of.values.len()], ..*told_of });
            }),
            Lie::Denying => forge(&told, (now, step), |told_of, out| {
                let value = if told_of.about == About::Intake { 0.0 } else { f64::MAX };
                out.write(&Trajectory { values: &vec![value; told_of.values.len()], ..*told_of });
            }),
            Lie::NotNumbers => values(f64::NAN, 10),
            Lie::TooLong => values(1.0, 60),
            Lie::TooMany => forge(&told, (now, step), |told_of, out| {
                for copy in 0..MANY {
                    let solved = Time(told_of.solved.0.saturating_add(copy.into()));
                    out.write(&Trajectory { circ: told_of.circ.wrapping_add(copy), solved, ..*told_of });
                }
            }),
            Lie::Replayed => vec![self.first.entry(connection).or_insert(told).clone()],
            Lie::Garbage => {
                let garble = |byte: &u8| byte.wrapping_mul(167).wrapping_add(now.0 as u8);
                vec![told.iter().map(garble).collect()]
            }
            Lie::Absent => Vec::new(),
        }
    }
}

/// Trajectories on as many messages as they take.
#[derive(Default)]
struct Messages {
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Messages {
    fn write(&mut self, trajectory: &Trajectory<'_>) {
        if self.last.len() + wire::plain_bytes(trajectory.values.len()) > NEIGHBOUR_BYTES {
            self.full.push(std::mem::take(&mut self.last));
        }
        wire::write(trajectory, &mut self.last);
    }
}

/// What `lie` makes of each trajectory of a message.
fn forge(
    told: &[u8],
    agreed: (Time, Span),
    mut lie: impl FnMut(&Trajectory<'_>, &mut Messages),
) -> Vec<Vec<u8>> {
    let mut messages = Messages::default();
    let read = wire::read(told, agreed, &mut Vec::new(), |told_of| lie(told_of, &mut messages));
    debug_assert_eq!(read, Ok(()), "the relay's own message");
    messages.full.push(messages.last);
    messages.full
}
