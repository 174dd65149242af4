//! Converts MPEG-TS to HLS segments (RFC 8216), sans-IO.
//!
//! A segment begins with the program's tables and a frame where decoding can begin. Its duration comes from time
//! stamps. Files: `program` chooses the program and the stream that leads, `entry` looks into frames, `timeline` reads
//! time stamps, `playlist` keeps the window of segments.

mod entry;
mod playlist;
mod program;
mod psi;
mod timeline;

use bytes::{Bytes, BytesMut};
use mpeg2ts_reader::packet::Packet;
use tidegate_control::units::{Span, Time};
use tidegate_stream::framer::TS;

use entry::{Codec, Scanner, adts_parameters};
use playlist::Playlist;
use program::{Role, Stream, Tables};
use timeline::{HZ, Timeline};

/// Shortest segment that a key frame ends, unless the stream changes there.
const SHORTEST: i64 = HZ * 9 / 10;
/// A segment begins with any frame if no key frame came within this time.
const WITHOUT_ENTRY: i64 = HZ * 12;
/// Maximum size of a segment, and of packets that wait until a frame's kind is known, bytes.
const MOST_BYTES: usize = 16 << 20;
const MOST_PENDING: usize = 1 << 18;
/// After this pause of the source, players get what there is.
const IDLE: Span = Span::from_secs(5);
/// Shortest duration of a listed segment, seconds. A shorter rest before a discontinuity is dropped.
const LEAST: f64 = 0.01;

/// The HLS segments of one stream.
#[derive(Debug, Default)]
pub struct Hls {
    tables: Tables,
    leader: Option<Leader>,
    open: Option<Open>,
    /// Whether the next segment does not continue the last one.
    discontinuity: bool,
    playlist: Playlist,
    /// When the last packet arrived.
    heard: Time,
}

/// The stream that decides where segments begin.
#[derive(Debug)]
struct Leader {
    stream: Stream,
    /// The audio stream besides a picture, for changes of its format.
    sound: Option<u16>,
    timeline: Timeline,
    /// The frame at the end of the stream, until its kind is known.
    pending: Option<Pending>,
    /// When the search for a key frame began.
    waits_since: Option<i64>,
    /// Whether a segment ended at a pause, so that the next frame begins one whatever its kind.
    resumes: bool,
    /// Parameters of picture and sound.
    parameters: [Vec<u8>; 2],
    /// Whether the format changed since the last segment began.
    changed: bool,
}

/// A frame of unknown kind, with all packets since its beginning.
#[derive(Debug)]
struct Pending {
    shown: i64,
    decoded: i64,
    scanner: Scanner,
    packets: BytesMut,
    /// End of the frames before.
    end: i64,
}

/// A segment that grows.
#[derive(Debug)]
struct Open {
    shown: i64,
    bytes: BytesMut,
    discontinuity: bool,
}

impl Hls {
    /// Adds whole TS packets as they are played.
    pub fn push(&mut self, now: Time, bytes: &[u8]) {
        self.heard = now;
        for bytes in bytes.chunks_exact(TS) {
            let Some(packet) = Packet::try_new(bytes) else { continue };
            let pid = u16::from(packet.pid());
            if packet.transport_error_indicator() {
                continue;
            }
            if self.tables.are_on(pid) {
                if self.tables.push(&packet) {
                    self.change_program(now);
                }
            } else if self.tables.program().is_some_and(|program| program.holds(pid)) {
                self.media(now, pid, &packet);
            }
        }
    }

    /// Ends the segment if the source has paused for long. The driver calls this now and then.
    pub fn idle(&mut self, now: Time) {
        if now.since(self.heard) < IDLE || self.open.is_none() {
            return;
        }
        if let Some(leader) = &mut self.leader
            && let Some(pending) = leader.pending.take()
        {
            let entry = pending.scanner.end();
            self.decided(now, pending, entry);
        }
        self.close(now, None);
        if let Some(leader) = &mut self.leader {
            leader.resumes = true;
        }
    }

    /// A segment that is still stored.
    pub fn segment(&self, number: u64) -> Option<Bytes> {
        self.playlist.segment(number)
    }

    /// The playlist; `None` before the first segment is complete.
    pub fn playlist(&self) -> Option<String> {
        self.playlist.text()
    }

    /// The tables changed: a program began, or its streams are others.
    fn change_program(&mut self, now: Time) {
        let program = self.tables.program();
        let leader = program.and_then(|program| program.leader());
        let sound = program.and_then(|program| program.audio()).map(|audio| audio.pid);
        if let (Some(known), Some(stream)) = (&mut self.leader, leader)
            && known.stream == stream
        {
            // Other streams changed: the segment goes on to the next key frame.
            (known.changed, known.sound) = (true, sound);
            return;
        }
        self.end_timeline(now);
        self.leader = leader.map(|stream| Leader {
            stream,
            sound,
            timeline: Timeline::default(),
            pending: None,
            waits_since: None,
            resumes: false,
            parameters: Default::default(),
            changed: false,
        });
    }

    /// Ends the segment because what follows does not continue it.
    fn end_timeline(&mut self, now: Time) {
        if let Some(leader) = &mut self.leader {
            if let (Some(pending), Some(open)) = (leader.pending.take(), &mut self.open) {
                open.bytes.extend_from_slice(&pending.packets);
            }
            (leader.waits_since, leader.resumes) = (None, false);
        }
        self.close(now, None);
        self.discontinuity = true;
    }

    fn media(&mut self, now: Time, pid: u16, packet: &Packet<'_>) {
        let Some(leader) = &mut self.leader else { return };
        if leader.sound == Some(pid) && pid != leader.stream.pid {
            leader.hear(packet);
        }
        if pid == leader.stream.pid {
            if let Some(field) = packet.adaptation_field() {
                leader.changed |= field.discontinuity_indicator();
            }
            if let Some(start) = timeline::start(packet) {
                return self.frame(now, packet, &start);
            }
        }
        let Some(pending) = &mut leader.pending else {
            if let Some(open) = &mut self.open {
                open.bytes.extend_from_slice(packet.buffer());
                if open.bytes.len() > 2 * MOST_BYTES {
                    // A frame without an end.
                    self.end_timeline(now);
                }
            }
            return;
        };
        pending.packets.extend_from_slice(packet.buffer());
        let mut entry = None;
        if pid == leader.stream.pid
            && let Some(payload) = packet.payload()
        {
            entry = pending.scanner.feed(payload);
        }
        if pending.packets.len() > MOST_PENDING {
            entry = entry.or(Some(pending.scanner.end()));
        }
        if let Some(entry) = entry {
            let pending = leader.pending.take().expect("it is there");
            self.decided(now, pending, entry);
        }
    }

    /// A frame of the leading stream begins.
    fn frame(&mut self, now: Time, packet: &Packet<'_>, start: &timeline::Start<'_>) {
        let Some(leader) = &mut self.leader else { return };
        if let Some(pending) = leader.pending.take() {
            let entry = pending.scanner.end();
            self.decided(now, pending, entry);
        }
        let Some(leader) = &mut self.leader else { return };
        let mut end = leader.timeline.end();
        let (shown, decoded) = match leader.timeline.advance(start) {
            Some(times) => times,
            None => {
                self.end_timeline(now);
                let Some(leader) = &mut self.leader else { return };
                leader.timeline = Timeline::default();
                let times = leader.timeline.advance(start).expect("the first frame begins a time line");
                end = times.0;
                times
            }
        };
        let Some(leader) = &mut self.leader else { return };
        let flag = packet.adaptation_field().is_some_and(|field| field.random_access_indicator());
        let codec = match leader.stream.role {
            Role::Video(_) if packet.transport_scrambling_control().is_scrambled() => Codec::Other,
            Role::Video(codec) => codec,
            // Decoding can begin with any frame of sound.
            _ => Codec::Other,
        };
        let flag = flag || !matches!(leader.stream.role, Role::Video(_));
        if (leader.stream.role == Role::Audio { adts: true })
            && let Some(parameters) = adts_parameters(start.content)
        {
            leader.note(1, parameters);
        }
        let mut scanner = Scanner::new(codec, flag);
        let entry = scanner.feed(start.content);
        let packets = BytesMut::from(packet.buffer());
        let pending = Pending { shown, decoded, scanner, packets, end };
        match entry {
            Some(entry) => self.decided(now, pending, entry),
            None => leader.pending = Some(pending),
        }
    }

    /// The kind of a frame is known: a segment may begin with it.
    fn decided(&mut self, now: Time, pending: Pending, entry: bool) {
        let Some(leader) = &mut self.leader else { return };
        if entry && !pending.scanner.parameters.is_empty() {
            leader.note(0, pending.scanner.parameters);
        }
        let Pending { shown, decoded, packets, end, .. } = pending;
        match &self.open {
            None => {
                let since = *leader.waits_since.get_or_insert(decoded);
                if entry || leader.resumes || decoded - since > WITHOUT_ENTRY {
                    self.begin(now, shown, None);
                }
            }
            Some(open) => {
                let most = (self.playlist.longest_segment() * HZ as f64) as i64;
                let age = shown - open.shown;
                let whole = shown.max(end) + leader.timeline.frame() - open.shown;
                if entry && (age >= SHORTEST || age <= 0 || leader.changed)
                    || whole > most
                    || open.bytes.len() + packets.len() > MOST_BYTES
                {
                    self.begin(now, shown, Some(end));
                }
            }
        }
        if let Some(open) = &mut self.open {
            open.bytes.extend_from_slice(&packets);
        }
    }

    /// Begins a segment with a frame. `end` is the end of the frames before it, if they are of the same time line.
    fn begin(&mut self, now: Time, shown: i64, end: Option<i64>) {
        let Some(leader) = &mut self.leader else { return };
        let changed = std::mem::take(&mut leader.changed);
        (leader.waits_since, leader.resumes) = (None, false);
        self.discontinuity |= changed;
        let most = (self.playlist.longest_segment() * HZ as f64) as i64;
        if let (Some(open), Some(end)) = (&self.open, end) {
            let age = shown - open.shown;
            // Time that goes back, and a hole that no segment can hold.
            let apart = age <= 0 || age > most && shown - end > HZ;
            self.discontinuity |= apart;
            self.close(now, Some(if apart { end } else { shown }));
        }
        let discontinuity = std::mem::take(&mut self.discontinuity);
        let bytes = BytesMut::from(&self.tables.packets()[..]);
        self.open = Some(Open { shown, bytes, discontinuity });
    }

    /// Lists the open segment, which ends at a time, or with its last frame.
    fn close(&mut self, now: Time, end: Option<i64>) {
        let Some(open) = self.open.take() else { return };
        let end = end.or_else(|| self.leader.as_ref().map(|leader| leader.timeline.end()));
        let seconds = end.map_or(0.0, |end| (end - open.shown) as f64 / HZ as f64);
        if seconds < LEAST {
            self.discontinuity |= open.discontinuity;
            return;
        }
        let seconds = seconds.min(self.playlist.longest_segment());
        self.playlist.push(now, seconds, open.discontinuity, open.bytes.freeze());
    }
}

impl Leader {
    /// Notes the format of the sound besides a picture.
    fn hear(&mut self, packet: &Packet<'_>) {
        if let Some(start) = timeline::start(packet)
            && let Some(parameters) = adts_parameters(start.content)
        {
            self.note(1, parameters);
        }
    }

    /// Notes the parameters of the picture (0) or the sound (1).
    fn note(&mut self, which: usize, parameters: Vec<u8>) {
        let known = &mut self.parameters[which];
        if *known != parameters {
            self.changed |= !known.is_empty();
            *known = parameters;
        }
    }
}
