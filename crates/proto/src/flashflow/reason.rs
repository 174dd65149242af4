//! Why measurements fail.

use std::fmt;

/// Why a measurement failed. The numbers go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The relay takes part in no measurements.
    Disabled = 1,
    /// The coordinator is not on the relay's list.
    NotAllowed = 2,
    /// The deployment measured this relay as often as it may.
    TooOften = 3,
    /// The relay does not accept the duration.
    Duration = 4,
    /// Another measurement is under way.
    Busy = 5,
    /// A measurer opened fewer than half of its circuits.
    Circuits = 6,
    /// The relay returned what it should not have.
    WrongEcho = 7,
    /// A phase took too long.
    Timeout = 8,
    /// A connection broke.
    Lost = 9,
    /// The operator stopped it.
    Stopped = 10,
    /// A message that makes no sense, or not now.
    Protocol = 11,
    /// Someone's seconds are shorter than the coordinator's.
    Clock = 12,
    /// Any other.
    Other = 255,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 13] = [
        Reason::Disabled,
        Reason::NotAllowed,
        Reason::TooOften,
        Reason::Duration,
        Reason::Busy,
        Reason::Circuits,
        Reason::WrongEcho,
        Reason::Timeout,
        Reason::Lost,
        Reason::Stopped,
        Reason::Protocol,
        Reason::Clock,
        Reason::Other,
    ];

    /// A word for logs, state files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Disabled => "disabled",
            Reason::NotAllowed => "not-allowed",
            Reason::TooOften => "too-often",
            Reason::Duration => "duration",
            Reason::Busy => "busy",
            Reason::Circuits => "circuits",
            Reason::WrongEcho => "wrong-echo",
            Reason::Timeout => "timeout",
            Reason::Lost => "lost",
            Reason::Stopped => "stopped",
            Reason::Protocol => "protocol",
            Reason::Clock => "clock",
            Reason::Other => "other",
        }
    }

    /// The reason of that name.
    pub fn from_name(name: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The reason with that number; those that are not known are [`Reason::Other`].
    pub fn from_code(code: u8) -> Reason {
        Reason::ALL.into_iter().find(|reason| *reason as u8 == code).unwrap_or(Reason::Other)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Disabled => "the relay takes part in no measurements",
            Reason::NotAllowed => "the coordinator is not on the relay's list",
            Reason::TooOften => "the relay was measured as often as it allows in its period",
            Reason::Duration => "the relay does not accept a measurement that long",
            Reason::Busy => "the relay is being measured by another coordinator",
            Reason::Circuits => "a measurer could not open half of its circuits",
            Reason::WrongEcho => "the relay returned a cell that it did not decrypt, or not in order",
            Reason::Timeout => "a phase of the measurement took too long",
            Reason::Lost => "a connection broke",
            Reason::Stopped => "the operator stopped it",
            Reason::Protocol => "a message made no sense",
            Reason::Clock => "reported seconds are shorter than the coordinator's",
            Reason::Other => "another reason",
        })
    }
}
