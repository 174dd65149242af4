//! Converts MPEG-TS to HLS segments (RFC 8216), sans-IO.
//!
//! A segment begins with the program's tables and a frame where decoding can begin. Its duration comes from time
//! stamps. Files: `program` chooses the program, `leader` is the stream where segments begin, `companions` are the
//! others, `entry` looks into frames, `timeline` reads time stamps, `playlist` keeps the window of segments,
//! `problem` says why segments are missing, `contents` lists the streams.

mod companions;
pub(crate) mod contents;
mod entry;
mod leader;
mod playlist;
mod problem;
mod program;
mod psi;
mod repeats;
mod timeline;

use bytes::{Bytes, BytesMut};
use mpeg2ts_reader::packet::Packet;
use tidegate_control::units::{Span, Time};
use tidegate_stream::framer::TS;

use companions::{Companions, Settled};
use entry::adts_parameters;
use leader::{Frame, Leader, Pending};
use playlist::Playlist;
use program::{Role, Tables};
use repeats::Repeats;
use timeline::{BACK, Clock, FORTH, HOLE, HZ, Start};

/// Shortest segment that a key frame ends, unless the stream changes there.
const SHORTEST: i64 = HZ * 9 / 10;
/// A picture is silent if the sound is ahead by more than this. Multiplexers keep them within a second.
const SILENT: i64 = HZ * 2;
/// After this silence of the picture, segments begin with sound.
const ABSENT: i64 = HZ * 12;
/// Maximum size of a segment, and of packets that wait until a frame's kind is known, bytes.
const MOST_BYTES: usize = 32 << 20;
const MOST_PENDING: usize = 1 << 18;
/// After this pause of the source, players get what there is.
///
/// The next frame may need earlier ones, so shorter pauses leave the segment open.
const IDLE: Span = Span::from_secs(12);
/// Shortest duration of a listed segment, seconds. A shorter rest before a discontinuity is dropped.
const LEAST: f64 = 0.01;

/// The HLS segments of one stream.
#[derive(Debug, Default)]
pub struct Hls {
    tables: Tables,
    repeats: Repeats,
    clock: Clock,
    leader: Option<Leader>,
    companions: Companions,
    open: Option<Open>,
    /// What is left of frames that a pause divided.
    rest: BytesMut,
    /// Whether the next segment does not continue the last one.
    discontinuity: bool,
    playlist: Playlist,
    /// When the last packet arrived.
    heard: Time,
    has_heard: bool,
    /// Parts for the follower, if there is one.
    parts: Option<Vec<Part>>,
}

/// What happens to a segment as it grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It begins. Decoding can begin here.
    Begin,
    /// It grows by these packets.
    Packets(Bytes),
    /// It ends.
    End,
}

/// A segment that grows.
#[derive(Debug)]
struct Open {
    shown: i64,
    bytes: BytesMut,
    discontinuity: bool,
    /// Whether it holds the beginning of a frame of sound.
    has_sound: bool,
    /// Bytes that followers know.
    reported: usize,
}

impl Hls {
    /// Adds whole TS packets as they are played.
    pub fn push(&mut self, now: Time, bytes: &[u8]) {
        self.heard = now;
        self.has_heard |= !bytes.is_empty();
        for bytes in bytes.chunks_exact(TS) {
            let Some(packet) = Packet::try_new(bytes) else { continue };
            let pid = u16::from(packet.pid());
            let of_tables = self.tables.are_on(pid);
            let is_held = of_tables || self.tables.program().is_some_and(|program| program.holds(pid));
            if !is_held || packet.transport_error_indicator() || self.repeats.repeats(&packet) {
                continue;
            }
            if !of_tables {
                self.media(now, pid, &packet);
            } else if self.tables.push(&packet) {
                self.change_program(now);
            }
        }
        self.report();
    }

    /// From now on, [`take_parts`](Self::take_parts) says how segments grow.
    #[cfg(any(test, feature = "moq"))]
    pub(crate) fn follow(&mut self) {
        self.parts = Some(Vec::new());
    }

    /// Returns the parts since the last call. The packets of a segment's parts are its bytes.
    pub(crate) fn take_parts(&mut self) -> Vec<Part> {
        self.parts.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Tells followers how much the open segment has grown.
    fn report(&mut self) {
        let (Some(parts), Some(open)) = (&mut self.parts, &mut self.open) else { return };
        if open.reported < open.bytes.len() {
            parts.push(Part::Packets(Bytes::copy_from_slice(&open.bytes[open.reported..])));
            open.reported = open.bytes.len();
        }
    }

    /// Ends the segment if the source has paused for long. The driver calls this now and then.
    pub fn idle(&mut self, now: Time) {
        if now.since(self.heard) < IDLE || self.open.is_none() {
            return;
        }
        self.decide_pending(now);
        self.close(now, None);
        if let Some(leader) = &mut self.leader {
            leader.resumes = true;
        }
    }

    /// Lists the last segment and ends the playlist. More packets begin the playlist again.
    pub fn end(&mut self, now: Time) {
        self.decide_pending(now);
        self.end_timeline(now);
        self.playlist.end();
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
        self.repeats.clear();
        let program = self.tables.program();
        let leader = program.and_then(|program| program.leader());
        let sound = program.and_then(|program| program.audio()).map(|audio| audio.pid);
        let sound = sound.filter(|pid| leader.is_some_and(|leader| leader.pid != *pid));
        if let (Some(known), Some(stream)) = (&mut self.leader, leader)
            && known.stream == stream
        {
            // Other streams changed: the segment goes on to the next key frame.
            (known.changed, self.companions.sound) = (true, sound);
            return;
        }
        self.end_timeline(now);
        self.companions = Companions::new(sound);
        self.leader = leader.map(Leader::new);
    }

    /// Ends the segment because what follows does not continue it.
    fn end_timeline(&mut self, now: Time) {
        if let Some(leader) = &mut self.leader
            && let (Some(pending), Some(open)) = (leader.pending.take(), &mut self.open)
        {
            open.bytes.extend_from_slice(&pending.packets);
        }
        self.close(now, None);
        self.discontinuity = true;
        self.clock = Clock::default();
        self.rest.clear();
        self.companions.restart();
        if let Some(leader) = &mut self.leader {
            (leader.waits_since, leader.resumes) = (None, false);
            leader.track = timeline::Track::default();
        }
    }

    fn media(&mut self, now: Time, pid: u16, packet: &Packet<'_>) {
        let Some(leader) = &mut self.leader else { return };
        let leads = pid == leader.stream.pid;
        if leads {
            leader.changed |= packet.adaptation_field().is_some_and(|field| field.discontinuity_indicator());
        }
        let start = timeline::start(packet);
        if leads {
            leader.diagnose(packet, start.is_some());
        }
        match start {
            Some(start) if leads => return self.frame(now, packet, &start),
            Some(start) => self.companion(now, pid, &start),
            None if leads => leader.track.grow(packet.payload().map_or(0, <[u8]>::len)),
            None => {}
        }
        if self.companions.keep(pid, packet.buffer()) {
            if self.companions.is_full() {
                self.release_held();
            }
            return;
        }
        self.append(now, leads, packet);
    }

    /// Adds a packet that begins no frame of the leading stream.
    fn append(&mut self, now: Time, leads: bool, packet: &Packet<'_>) {
        let Some(leader) = &mut self.leader else { return };
        let Some(pending) = &mut leader.pending else {
            if let Some(open) = &mut self.open {
                open.bytes.extend_from_slice(packet.buffer());
                if open.bytes.len() > 2 * MOST_BYTES {
                    // A frame without an end.
                    self.end_timeline(now);
                }
            } else if leader.resumes && self.rest.len() < MOST_PENDING {
                self.rest.extend_from_slice(packet.buffer());
            }
            return;
        };
        pending.packets.extend_from_slice(packet.buffer());
        let known = match packet.payload() {
            Some(payload) if leads => pending.scanner.feed(payload),
            _ => None,
        };
        if known.is_some() || pending.packets.len() > MOST_PENDING {
            let entry = known.unwrap_or(pending.scanner.end());
            let pending = leader.pending.take().expect("it is there");
            self.decided(now, pending, entry);
        }
    }

    /// A frame of the leading stream begins.
    fn frame(&mut self, now: Time, packet: &Packet<'_>, start: &Start<'_>) {
        self.decide_pending(now);
        if self.jumps(self.clock.time(start.decoded)) {
            self.end_timeline(now);
        }
        let decoded = self.clock.time(start.decoded);
        let shown = decoded + start.presented - start.decoded;
        let end = self.ends_at().unwrap_or(shown);
        let Some(leader) = &mut self.leader else { return };
        let hole = if self.companions.sound().is_none() { HOLE.max(leader.track.unusual()) } else { HOLE };
        let apart = leader.track.goes_back(shown) || shown - end > hole;
        leader.track.advance(shown, decoded);
        leader.track.grow(start.content.len());
        leader.changed |= self.companions.compare(decoded);
        self.clock.advance(decoded);
        let settled = if apart { Settled::Waits } else { self.companions.settle(decoded) };
        match settled {
            Settled::Waits => {}
            Settled::Back(held) => self.extend(&held),
            Settled::Apart => leader.changed = true,
        }
        let Some(leader) = &mut self.leader else { return };
        if (leader.stream.role == Role::Audio { adts: true })
            && let Some(parameters) = adts_parameters(start.content)
        {
            leader.changed |= leader.note(1, parameters);
        }
        let (scanner, entry) = leader.scanner(packet, start);
        let packets = BytesMut::from(packet.buffer());
        let pending = Pending { frame: Frame { shown, decoded, end, apart }, scanner, packets };
        match entry {
            Some(entry) => self.decided(now, pending, entry),
            None => leader.pending = Some(pending),
        }
    }

    /// Whether a frame of the leading stream begins another time line.
    fn jumps(&self, decoded: i64) -> bool {
        let Some(last) = self.leader.as_ref().and_then(|leader| leader.track.last) else { return false };
        // A picture may stand still while the sound goes on.
        let sound = self.companions.sound().and_then(|sound| sound.last);
        let sound = sound.map(|sound| self.companions.shared(sound));
        decoded - last < -BACK || decoded - sound.map_or(last, |sound| sound.max(last)) > FORTH
    }

    /// A frame of another stream begins.
    fn companion(&mut self, now: Time, pid: u16, start: &Start<'_>) {
        let mut time = self.clock.time(start.presented);
        let Some(leader) = &self.leader else { return };
        let (last, sounds) = (leader.track.last, self.companions.sound == Some(pid));
        if self.companions.jumps(pid, time, last) {
            let heard = self.companions.sound_end();
            match last.filter(|_| heard.is_none_or(|heard| !self.is_silent(heard))) {
                Some(last) => return self.companions.hold(pid, last),
                None if sounds => self.end_timeline(now),
                None => {}
            }
            time = self.clock.time(start.presented);
        }
        let end = self.ends_at();
        let begins = self.companions.sound().is_none();
        self.companions.advance(pid, time);
        if !sounds {
            return;
        }
        if let (Some(last), true) = (last, begins) {
            self.companions.begin_sound(time, last);
        }
        self.hear(start);
        let time = self.companions.shared(time);
        self.lead_by_sound(now, Frame { shown: time, decoded: time, end: end.unwrap_or(time), apart: false });
    }

    /// Notes the format of the sound besides a picture.
    fn hear(&mut self, start: &Start<'_>) {
        let Some(leader) = &mut self.leader else { return };
        let changed = adts_parameters(start.content).is_some_and(|parameters| leader.note(1, parameters));
        match &mut self.open {
            // The sound of this segment is of the new format from its beginning on.
            Some(open) if leader.pending.is_none() && !open.has_sound => {
                (open.discontinuity, open.has_sound) = (open.discontinuity | changed, true);
            }
            _ => leader.changed |= changed,
        }
    }

    /// Whether the picture is silent while the sound is at this time.
    fn is_silent(&self, time: i64) -> bool {
        self.silence(time).is_some_and(|silence| silence > SILENT)
    }

    /// How long there has been no picture.
    fn silence(&self, time: i64) -> Option<i64> {
        let leader = self.leader.as_ref()?;
        if leader.is_absent && self.companions.sound().is_some() {
            return Some(i64::MAX);
        }
        leader.end().or(leader.waits_since).map(|end| time - end)
    }

    /// Ends and begins segments at the sound while the picture is missing.
    fn lead_by_sound(&mut self, now: Time, frame: Frame) {
        let Some(silence) = self.silence(frame.shown) else {
            if let Some(leader) = &mut self.leader {
                leader.waits_since = Some(frame.shown);
            }
            return self.clock.advance(frame.decoded);
        };
        if silence <= SILENT {
            return;
        }
        self.decide_pending(now);
        self.clock.advance(frame.decoded);
        let Some(leader) = &mut self.leader else { return };
        let entry = silence > ABSENT;
        if entry && !leader.is_absent {
            (leader.is_absent, leader.changed) = (true, true);
        }
        if entry || self.open.is_some() {
            self.cut(now, frame, entry, 0);
        }
    }

    fn decide_pending(&mut self, now: Time) {
        if let Some(pending) = self.leader.as_mut().and_then(|leader| leader.pending.take()) {
            let entry = pending.scanner.end();
            self.decided(now, pending, entry);
        }
    }

    /// The kind of a frame is known: a segment may begin with it.
    fn decided(&mut self, now: Time, pending: Pending, entry: bool) {
        let Some(leader) = &mut self.leader else { return };
        if entry && !pending.scanner.parameters.is_empty() {
            leader.changed |= leader.note(0, pending.scanner.parameters);
        }
        if entry {
            leader.changed |= std::mem::take(&mut leader.is_absent);
        }
        let begins_timeline = self.cut(now, pending.frame, entry, pending.packets.len());
        self.extend(&pending.packets);
        if begins_timeline {
            self.release_held();
        }
    }

    /// Begins a segment with a frame, if it should. Returns whether it is the first one of a time line.
    fn cut(&mut self, now: Time, frame: Frame, entry: bool, bytes: usize) -> bool {
        let Some(leader) = &mut self.leader else { return false };
        let Some(open) = &self.open else {
            let begins = entry || leader.has_waited(frame.decoded);
            return begins && self.begin(now, frame, false);
        };
        let most = (self.playlist.longest_segment(leader.patience()) * HZ as f64) as i64;
        let age = frame.shown - open.shown;
        let whole = frame.shown.max(frame.end) + leader.track.frame() - open.shown;
        let due = entry && (age >= SHORTEST || frame.apart || leader.changed);
        let full = whole > most || open.bytes.len() + bytes > MOST_BYTES;
        (due || full) && self.begin(now, frame, frame.apart && (entry || age > most))
    }

    /// Begins a segment with a frame. Returns whether it does not continue the last one.
    fn begin(&mut self, now: Time, frame: Frame, apart: bool) -> bool {
        let Some(leader) = &mut self.leader else { return false };
        self.discontinuity |= apart | std::mem::take(&mut leader.changed);
        (leader.waits_since, leader.resumes) = (None, false);
        if apart {
            leader.track.restart(frame.shown);
        }
        self.close(now, Some(if apart { frame.end } else { frame.shown }));
        let discontinuity = std::mem::take(&mut self.discontinuity);
        let mut bytes = BytesMut::from(&self.tables.packets()[..]);
        bytes.unsplit(std::mem::take(&mut self.rest));
        self.open = Some(Open { shown: frame.shown, bytes, discontinuity, has_sound: false, reported: 0 });
        if let Some(parts) = &mut self.parts {
            parts.push(Part::Begin);
        }
        discontinuity
    }

    fn extend(&mut self, packets: &[u8]) {
        if let Some(open) = &mut self.open {
            open.bytes.extend_from_slice(packets);
        }
    }

    fn release_held(&mut self) {
        let held = self.companions.release();
        self.extend(&held);
    }

    /// When the last frame ends.
    fn ends_at(&self) -> Option<i64> {
        let picture = self.leader.as_ref().and_then(Leader::end);
        let sound = self.companions.sound_end();
        match (picture, sound) {
            (Some(picture), Some(sound)) if sound - picture <= SILENT => Some(picture),
            (picture, sound) => sound.or(picture),
        }
    }

    /// Lists the open segment, which ends at a time, or with its last frame.
    fn close(&mut self, now: Time, end: Option<i64>) {
        self.report();
        let Some(open) = self.open.take() else { return };
        if let Some(parts) = &mut self.parts {
            parts.push(Part::End);
        }
        let seconds = end.or_else(|| self.ends_at()).map_or(0.0, |end| (end - open.shown) as f64 / HZ as f64);
        if seconds < LEAST {
            self.discontinuity |= open.discontinuity;
            return;
        }
        let patience = self.leader.as_ref().map(Leader::patience).unwrap_or_default();
        let seconds = seconds.min(self.playlist.longest_segment(patience));
        self.playlist.push(now, seconds, open.discontinuity, open.bytes.freeze());
    }
}

#[cfg(test)]
mod tests;
