//! Says why segments are missing, or hold sound only.

use std::fmt;

use super::Hls;
use super::leader::Fault;
use super::program::{Role, Stream};

/// A cause, shown to players.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Not one TS packet has arrived.
    Silence,
    /// The program association table is missing.
    NoAssociation,
    /// The association names this PID, where no map has arrived.
    NoMap(u16),
    /// The map names only streams of other types: type and PID.
    NoMedia(Vec<(u8, u16)>),
    /// The stream that should lead segments, picture or sound, does not begin one.
    NoEntry(&'static str, u16, Fault),
    /// Segments hold sound only, because the picture has this fault.
    SoundOnly(u16, Fault),
    /// Segments hold sound only, and these streams may be pictures.
    Unknown(Vec<(u8, u16)>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Silence => f.write_str("no TS packet has arrived; check the input of the server"),
            Problem::NoAssociation => {
                f.write_str("no program association table has arrived on PID 0; let the encoder repeat it")
            }
            Problem::NoMap(pid) => {
                write!(f, "no program map has arrived on PID {pid:#x}; let the encoder repeat it")
            }
            Problem::NoMedia(streams) => {
                f.write_str("the program map names neither picture nor sound of a known codec (")?;
                write_streams(f, streams)?;
                f.write_str("); use another codec")
            }
            Problem::NoEntry(what, pid, fault) => write!(f, "the {what} on PID {pid:#x} {fault}"),
            Problem::SoundOnly(pid, fault) => {
                write!(f, "segments hold sound only: the picture on PID {pid:#x} {fault}")
            }
            Problem::Unknown(streams) => {
                f.write_str("segments hold sound only: the program map names no picture of a known codec (")?;
                write_streams(f, streams)?;
                f.write_str("); use H.264, H.265 or MPEG-2")
            }
        }
    }
}

fn write_streams(f: &mut fmt::Formatter<'_>, streams: &[(u8, u16)]) -> fmt::Result {
    for (at, (kind, pid)) in streams.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(f, "{comma}type {kind:#04x} on PID {pid:#x}")?;
    }
    Ok(())
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Silent => "sends no frames; check the encoder",
            Fault::Scrambled => "is scrambled; descramble it before the server",
            Fault::Timeless => "has no time stamps; let the multiplexer add them",
            Fault::Keyless => "has sent no key frame yet; let the encoder send one every few seconds",
        })
    }
}

/// The streams of other types that may be media: their maps do not say what they are.
fn unknown(streams: &[Stream]) -> Vec<(u8, u16)> {
    let unknown = streams.iter().filter(|stream| stream.role == Role::Unknown);
    unknown.map(|stream| (stream.kind, stream.pid)).collect()
}

impl Hls {
    /// Why segments are missing or hold sound only; `None` if they are complete.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let (Some(program), Some(leader)) = (self.tables.program(), &self.leader) else {
            return Some(self.no_program());
        };
        let (pid, has_segments) = (leader.stream.pid, self.playlist.text().is_some());
        if leader.is_absent {
            // Its last frame is long ago.
            let fault = if leader.fault == Fault::Keyless { Fault::Silent } else { leader.fault };
            return Some(Problem::SoundOnly(pid, fault));
        }
        if !has_segments && self.open.is_none() {
            let what = if leader.is_picture() { "picture" } else { "sound" };
            return Some(Problem::NoEntry(what, pid, leader.fault));
        }
        let unknown = unknown(&program.streams);
        (!leader.is_picture() && !unknown.is_empty()).then_some(Problem::Unknown(unknown))
    }

    fn no_program(&self) -> Problem {
        match (self.tables.refused(), self.tables.first_map()) {
            (Some(refused), _) => {
                let streams = refused.iter().map(|stream| (stream.kind, stream.pid));
                Problem::NoMedia(streams.collect())
            }
            (None, Some(pid)) => Problem::NoMap(pid),
            (None, None) if self.has_heard => Problem::NoAssociation,
            (None, None) => Problem::Silence,
        }
    }
}
