//! The encoding of trajectories in cells.
//!
//! A cell carries a sequence of trajectories, all of circuits that pass between the two relays. The
//! plain encoding, the paper's, takes 19 bytes and a double per step. The other is `compact`. A relay reads both.

use super::compact;
use super::trajectory::{About, Malformed, Trajectory};
use tidegate_control::units::{Span, Time};

const HEADER: usize = 19;

/// Bytes of one trajectory in the plain encoding.
pub const fn plain_bytes(steps: usize) -> usize {
    HEADER + 8 * steps
}

/// Appends a trajectory in the plain encoding: about (1 byte), circuit id (4), time of the solve in ns (8),
/// step in µs (4), number of values (2), the values as doubles; all big-endian.
pub fn write(trajectory: &Trajectory<'_>, out: &mut Vec<u8>) {
    let about = About::ALL.iter().position(|about| *about == trajectory.about).expect("all are listed");
    out.push(about as u8);
    out.extend_from_slice(&trajectory.circ.to_be_bytes());
    out.extend_from_slice(&trajectory.solved.0.to_be_bytes());
    let micros = u32::try_from(trajectory.step.0 / 1_000).unwrap_or(u32::MAX);
    out.extend_from_slice(&micros.to_be_bytes());
    out.extend_from_slice(&(trajectory.values.len() as u16).to_be_bytes());
    for value in trajectory.values {
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Reads the trajectories of a cell that arrived at `now`, in order; `values` is working memory.
///
/// A cell without a trajectory is malformed: no relay sends one. The compact encoding counts in steps of the agreed length `step`. Trajectories before a malformed part are passed to
/// `each` before the error returns.
pub fn read(
    mut bytes: &[u8],
    (now, step): (Time, Span),
    values: &mut Vec<f64>,
    mut each: impl FnMut(&Trajectory<'_>),
) -> Result<(), Malformed> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
        let (head, tail) = bytes.split_first_chunk().ok_or(Malformed)?;
        *bytes = tail;
        Ok(*head)
    }
    if compact::is_compact(bytes) {
        return compact::read(bytes, (now, step), values, each);
    }
    loop {
        let [about] = take(&mut bytes)?;
        let about = *About::ALL.get(usize::from(about)).ok_or(Malformed)?;
        let circ = u32::from_be_bytes(take(&mut bytes)?);
        let solved = Time(u64::from_be_bytes(take(&mut bytes)?));
        let step = Span::from_micros(u32::from_be_bytes(take(&mut bytes)?).into());
        let count = usize::from(u16::from_be_bytes(take(&mut bytes)?));
        let (body, rest) = bytes.split_at_checked(8 * count).ok_or(Malformed)?;
        bytes = rest;
        values.clear();
        let (doubles, _) = body.as_chunks();
        values.extend(doubles.iter().map(|double| f64::from_be_bytes(*double)));
        each(&Trajectory { circ, about, solved, step, values });
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_values_are_read_back() {
        let step = Span::from_millis(40);
        let sent = [
            Trajectory { circ: 7, about: About::Intake, solved: Time(123), step, values: &[1.5, f64::MAX] },
            Trajectory { circ: u32::MAX, about: About::Virtual, solved: Time(u64::MAX), step, values: &[] },
            Trajectory { circ: 1, about: About::Queue, solved: Time::ZERO, step, values: &[0.0; 60] },
        ];
        let mut bytes = Vec::new();
        for trajectory in &sent {
            write(trajectory, &mut bytes);
        }
        assert_eq!(bytes.len(), plain_bytes(2) + plain_bytes(0) + plain_bytes(60));
        assert_eq!(plain_bytes(10), 99, "specified size");
        let mut seen = 0;
        let mut values = Vec::new();
        read(&bytes, (Time::ZERO, step), &mut values, |heard| {
            assert_eq!(*heard, sent[seen]);
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, 3);
        assert_eq!(read(&bytes[..bytes.len() - 1], (Time::ZERO, step), &mut values, |_| {}), Err(Malformed));
        assert_eq!(read(&[], (Time::ZERO, step), &mut values, |_| {}), Err(Malformed));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut values = Vec::new();
            let mut count = 0;
            let agreed = (Time(1 << 40), Span::from_millis(40));
            let _ = read(&bytes, agreed, &mut values, |heard| count += heard.values.len());
            prop_assert!(count <= 4 * bytes.len());
        }
    }
}
