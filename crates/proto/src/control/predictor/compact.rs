//! The compact encoding of trajectories: quantised straight pieces, sent only if the neighbour needs them.
//!
//! A cell begins with a mark (1 byte: the high bit, and a seven-bit checksum of the agreed step) and the time of
//! the solve (2 bytes: 1/256 steps, modulo 256 steps). Each trajectory after that is
//!
//! - a head: the quantity (2 bits), whether it is of the same circuit as the previous one (1), and the
//!   *quantum*, a power of two of cells (queues) or cells per step (rates), offset by 16 (5);
//! - the circuit id unless it is the same; its highest bit (the side that created the circuit) moves to the lowest place;
//! - the first value in quanta, and pieces: each covers 1 to 4 more steps and adds a number of quanta in each.
//!   A bit says whether another piece follows. After the last piece the value stays.
//!
//! Numbers are in base 128, lowest first, and the high bit of a byte announces another one; signed steps are
//! zigzag-coded. A cell does not refer to earlier cells, so a lost or late one does not spoil later ones.

use super::exchange::align;
use tidegate_control::units::{Span, Time};

use super::trajectory::{About, Malformed, Trajectory};

/// The first byte of a cell of this encoding has this bit.
const MARK: u8 = 0x80;
const SAME_CIRCUIT: u8 = 0x04;
const QUANTUM_OFFSET: i32 = 16;
/// The most steps in a piece.
const LONGEST: u64 = 4;
/// The most quanta in a value.
const MOST: f64 = (1 << 24) as f64;
/// A message is fresh for this many steps; see [`FRESH_ROOM`].
const JUST_NOW: f64 = 1.5;
/// Allowed error of a fresh message in quanta: plans flicker by a cell per step.
const FRESH_ROOM: f64 = 4.0;
/// Time stamps count in this fraction of a step.
const TICKS: u64 = 256;

/// One cell, or one cell per step, in the unit of a trajectory.
fn cell(about: About, step: Span) -> f64 {
    if about == About::Queue { 1.0 } else { 1.0 / step.as_secs_f64() }
}

fn mark(step: Span) -> u8 {
    let micros = step.0 / 1_000;
    MARK | (0..5).fold(0, |sum, part| sum ^ (micros >> (7 * part)) as u8 & !MARK)
}

fn ticks(time: Time, step: Span) -> u64 {
    time.0 / (step.0 / TICKS).max(1)
}

fn number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Result<u8, Malformed> {
    let (first, rest) = bytes.split_first().ok_or(Malformed)?;
    *bytes = rest;
    Ok(*first)
}

/// Reads a number of at most 35 bits.
fn take_number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for part in 0..5 {
        let byte = take(bytes)?;
        value |= u64::from(byte & 0x7f) << (7 * part);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// A trajectory in this encoding, without head and circuit.
#[derive(Clone, Debug, Default)]
pub(super) struct PiecewiseLinear {
    quantum: i32,
    bytes: Vec<u8>,
}

impl PiecewiseLinear {
    /// The most bytes that [`write`](Self::write) appends.
    pub(super) fn most_bytes(&self) -> usize {
        3 + 6 + self.bytes.len()
    }

    /// The largest power of two of a cell that is at most `resolution` of the largest value, of `flow` (cells per
    /// step) and of one cell.
    pub(super) fn choose_quantum(
        &mut self,
        (about, step): (About, Span),
        (values, flow): (&[f64], f64),
        resolution: f64,
    ) {
        let largest = values.iter().fold(0.0, |most: f64, value| most.max(*value)) / cell(about, step);
        let largest = largest.max(flow);
        let least = (-QUANTUM_OFFSET, QUANTUM_OFFSET - 1);
        self.quantum = libm::ilogb(resolution * largest.max(1.0)).clamp(least.0, least.1);
    }

    /// The quantum in the unit of the values.
    pub(super) fn quantum(&self, (about, step): (About, Span)) -> f64 {
        cell(about, step) * libm::ldexp(1.0, self.quantum)
    }

    /// Whether the neighbour's version, `elapsed` steps old, is close enough to this trajectory.
    pub(super) fn is_known(
        &self,
        (about, step): (About, Span),
        values: &[f64],
        older: &[f64],
        elapsed: f64,
        theirs: &mut Vec<f64>,
    ) -> bool {
        theirs.clear();
        theirs.resize(values.len(), 0.0);
        align(older, elapsed, theirs);
        // A tiny value still differs from zero: zero leaves the circuit out of the neighbour's problem.
        let idle = |values: &[f64]| values.iter().all(|value| *value <= 0.0);
        if older.is_empty() || idle(values) && !idle(theirs) {
            return false;
        }
        let quantum = self.quantum((about, step));
        let room = if elapsed < JUST_NOW { FRESH_ROOM * quantum } else { quantum };
        values.iter().zip(theirs).all(|(value, theirs)| (value - *theirs).abs() <= room)
    }

    /// Finds straight pieces within a quantum of the values, and `theirs`, the values that the neighbour will decode.
    pub(super) fn fit(&mut self, (about, step): (About, Span), values: &[f64], theirs: &mut Vec<f64>) {
        let quantum = self.quantum((about, step));
        let at = |step: usize| (values[step] / quantum).clamp(0.0, MOST);
        self.bytes.clear();
        let mut numbers = vec![libm::round(at(0)) as u64];
        let (mut level, mut done) = (numbers[0] as i64, 1);
        let mut needed = 1;
        while done < values.len() {
            let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
            let (mut slope, mut length) = (0, 0);
            for long in 1..=LONGEST.min((values.len() - done) as u64) {
                let step = done + long as usize - 1;
                let rise = at(step) - level as f64;
                low = low.max(libm::ceil((rise - 1.0) / long as f64));
                high = high.min(libm::floor((rise + 1.0) / long as f64));
                if low > high {
                    break;
                }
                // A constant piece is cheapest, and its end needs no bytes at all.
                slope = if low <= 0.0 && high >= 0.0 { 0 } else { libm::round((low + high) / 2.0) as i64 };
                length = long;
            }
            level += slope * length as i64;
            done += length as usize;
            numbers.push(zigzag(slope) << 2 | (length - 1));
            if slope != 0 {
                needed = numbers.len();
            }
        }
        numbers.truncate(needed);
        for (at, value) in (1..).zip(&numbers) {
            number(value << 1 | u64::from(at < needed), &mut self.bytes);
        }
        let read = unfold(&mut &self.bytes[..], quantum, theirs);
        assert_eq!(read, Ok(()), "ours can be read");
    }

    /// Appends the trajectory to a cell; `same`: the previous one is of the same circuit.
    pub(super) fn write(&self, trajectory: &Trajectory<'_>, same: bool, out: &mut Vec<u8>) {
        let same = same && !out.is_empty();
        if out.is_empty() {
            out.push(mark(trajectory.step));
            out.extend_from_slice(&(ticks(trajectory.solved, trajectory.step) as u16).to_be_bytes());
        }
        let quantum = (self.quantum + QUANTUM_OFFSET) as u8;
        out.push(trajectory.about as u8 | if same { SAME_CIRCUIT } else { 0 } | quantum << 3);
        if !same {
            number(trajectory.circ.rotate_left(1).into(), out);
        }
        out.extend_from_slice(&self.bytes);
    }
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Decodes the values of pieces.
fn unfold(bytes: &mut &[u8], quantum: f64, values: &mut Vec<f64>) -> Result<(), Malformed> {
    values.clear();
    let first = take_number(bytes)?;
    let (mut level, mut more) = ((first >> 1) as i64, first & 1 != 0);
    values.push(level as f64 * quantum);
    while more {
        let piece = take_number(bytes)?;
        more = piece & 1 != 0;
        let slope = piece >> 3;
        let slope = (slope >> 1) as i64 ^ -((slope & 1) as i64);
        for _ in 0..=piece >> 1 & (LONGEST - 1) {
            level += slope;
            values.push(level.max(0) as f64 * quantum);
        }
    }
    Ok(())
}

/// Whether a cell is of this encoding.
pub(super) fn is_compact(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first & MARK != 0)
}

/// Reads the trajectories of a cell that arrived at `now`, like [`super::wire::read`].
pub(super) fn read(
    mut bytes: &[u8],
    (now, step): (Time, Span),
    values: &mut Vec<f64>,
    mut each: impl FnMut(&Trajectory<'_>),
) -> Result<(), Malformed> {
    if take(&mut bytes)? != mark(step) {
        return Err(Malformed);
    }
    let stamp = u16::from_be_bytes([take(&mut bytes)?, take(&mut bytes)?]);
    let since = stamp.wrapping_sub(ticks(now, step) as u16) as i16;
    let solved = ticks(now, step).saturating_add_signed(since.into());
    let solved = Time(solved.saturating_mul((step.0 / TICKS).max(1)));
    let mut circ = None;
    loop {
        let head = take(&mut bytes)?;
        let about = About::ALL[usize::from(head & 0x03)];
        if head & SAME_CIRCUIT == 0 {
            let id = u32::try_from(take_number(&mut bytes)?).map_err(|_| Malformed)?;
            circ = Some(id.rotate_right(1));
        }
        let quantum = cell(about, step) * libm::ldexp(1.0, i32::from(head >> 3) - QUANTUM_OFFSET);
        unfold(&mut bytes, quantum, values)?;
        each(&Trajectory { circ: circ.ok_or(Malformed)?, about, solved, step, values });
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Span = Span::from_millis(40);

    fn fitted(about: About, values: &[f64], resolution: f64) -> (PiecewiseLinear, Vec<f64>) {
        let (mut pieces, mut theirs) = (PiecewiseLinear::default(), Vec::new());
        pieces.choose_quantum((about, STEP), (values, 0.0), resolution);
        pieces.fit((about, STEP), values, &mut theirs);
        (pieces, theirs)
    }

    #[test]
    fn a_cell_names_the_circuit_kind_and_solve_time_of_trajectories() {
        let solved = Time(STEP.0 * 5 / 2);
        let sent = [
            (7, About::Output, vec![250.0; 10]),
            (7, About::Queue, vec![10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]),
            (1 << 31 | 7, About::Intake, vec![0.0; 10]),
        ];
        let (mut cell, mut last) = (Vec::new(), None);
        for (circ, about, values) in &sent {
            let (pieces, _) = fitted(*about, values, 1.0 / 16.0);
            let trajectory = Trajectory { circ: *circ, about: *about, solved, step: STEP, values };
            pieces.write(&trajectory, last == Some(*circ), &mut cell);
            last = Some(*circ);
        }
        // Header; head, circuit, value; head, value, three pieces; head, circuit, value.
        assert_eq!(cell.len(), 3 + 3 + 5 + 3, "{cell:?}");
        let mut seen = 0;
        let now = Time(solved.0 + STEP.0);
        read(&cell, (now, STEP), &mut Vec::new(), |trajectory| {
            let (circ, about, values) = &sent[seen];
            assert_eq!(
                (trajectory.circ, trajectory.about, trajectory.solved, trajectory.step),
                (*circ, *about, solved, STEP)
            );
            let longer = |step: usize| trajectory.values.get(step).or(trajectory.values.last()).unwrap();
            for (step, value) in values.iter().enumerate() {
                assert!((value - longer(step)).abs() <= 250.0 / 16.0, "{trajectory:?}");
            }
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, 3);
        let other = (now, Span::from_millis(20));
        assert_eq!(read(&cell, other, &mut Vec::new(), |_| {}), Err(Malformed), "steps must be agreed");
        for cut in 1..cell.len() {
            let mut count = 0;
            let _ = read(&cell[..cut], (now, STEP), &mut Vec::new(), |_| count += 1);
            assert!(count < 3, "the last one is cut");
        }
    }

    #[test]
    fn garbage_is_no_message() {
        let agreed = (Time(1 << 40), STEP);
        let read = |body: &[u8]| {
            let cell = [&[mark(STEP), 0, 0][..], body].concat();
            read(&cell, agreed, &mut Vec::new(), |_| {})
        };
        assert_eq!(read(&[]), Err(Malformed), "a header without a trajectory");
        assert_eq!(read(&[SAME_CIRCUIT, 0]), Err(Malformed), "there is none before");
        assert_eq!(read(&[0, 0xff, 0xff, 0xff, 0xff, 0x7f, 0]), Err(Malformed), "no circuit id is that long");
        assert_eq!(read(&[0, 1, 0x80]), Err(Malformed), "ends within a number");
        assert_eq!(read(&[0, 1, 1]), Err(Malformed), "a piece is announced");
    }

    fn kind() -> impl Strategy<Value = About> {
        (0..4usize).prop_map(|about| About::ALL[about])
    }

    proptest! {
        #[test]
        fn compact_values_are_read_with_a_small_error(
            about in kind(),
            values in proptest::collection::vec(prop_oneof![0.0..1e-3, 0.0..2000.0, Just(800.0)], 1..61),
            resolution in 1e-4..1.0f64,
        ) {
            let (pieces, theirs) = fitted(about, &values, resolution);
            let largest = values.iter().fold(cell(about, STEP), |most, value| value.max(most));
            let quantum = pieces.quantum((about, STEP));
            prop_assert!(quantum <= resolution * largest);
            for (step, value) in values.iter().enumerate() {
                let read = theirs.get(step).or(theirs.last()).unwrap();
                let off = (value - read).abs();
                prop_assert!(off <= quantum * (1.0 + 1e-9), "{step}: {value} {read}");
            }
            prop_assert!(theirs.len() <= values.len() && pieces.most_bytes() <= 9 + 3 * values.len());
            let mut known = Vec::new();
            prop_assert!(pieces.is_known((about, STEP), &values, &theirs, 0.0, &mut known));
        }

        #[test]
        fn no_bytes_bring_the_reader_down(
            marked in any::<bool>(),
            mut bytes in proptest::collection::vec(any::<u8>(), 1..600),
            now in any::<u64>(),
        ) {
            if marked {
                bytes[0] = mark(STEP);
            }
            let mut count = 0;
            let _ = read(&bytes, (Time(now), STEP), &mut Vec::new(), |trajectory| {
                assert!(trajectory.values.iter().all(|value| value.is_finite() && *value >= 0.0));
                count += trajectory.values.len();
            });
            prop_assert!(count <= 4 * bytes.len());
        }

        /// The time of a solve is the nearest that fits, whatever the clocks say.
        #[test]
        fn a_late_message_says_when_it_was_made(solved in 0u64..1 << 50, late in -100i64..100) {
            let (pieces, _) = fitted(About::Intake, &[1.0], 0.1);
            let solved = Time(solved);
            let now = Time(solved.0.saturating_add_signed(late * STEP.0 as i64));
            let mut cell = Vec::new();
            pieces.write(&Trajectory { circ: 1, about: About::Intake, solved, step: STEP, values: &[] }, false, &mut cell);
            let mut stamp = None;
            read(&cell, (now, STEP), &mut Vec::new(), |trajectory| stamp = Some(trajectory.solved)).unwrap();
            let off = solved.since(stamp.unwrap()).0;
            prop_assert!(off < STEP.0 / TICKS, "{off}");
        }
    }
}
