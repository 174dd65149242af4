//! Input of a run of the overlay of parallel paths.

use std::fmt;

use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::units::{Span, Time};

/// The overlay, its users and what happens to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// n peers.
    pub peers: Vec<PeerPlan>,
    /// h: relays between source and destination.
    pub hops: usize,
    /// M: bytes of a packet, the same for all.
    pub packet: u32,
    /// One-way delays between peers.
    pub delays: Delays,
    /// Standard deviation of each passage of a link, as a share of its delay.
    pub jitter: f64,
    /// How often a source that has rate left sends a packet.
    pub attempt_every: Span,
    /// What changes, in any order.
    pub changes: Vec<(Time, Change)>,
    /// The run ends at this time.
    pub duration: Span,
    /// Results are summed up over intervals of this length.
    pub bin: Span,
    /// Pairs of sender and receiver; their rate is recorded at the end of each interval.
    pub watch: Option<(Peer, Peer)>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerPlan {
    /// R_l: bytes per second that it receives or forwards for others.
    pub limit: u32,
    /// Its traffic.
    pub traffic: Traffic,
    /// The peer it sends to; each packet to a random other member if none.
    pub to: Option<Peer>,
    /// Whether it is in the overlay from the start.
    pub member: bool,
    /// How it treats other peers' packets.
    pub conduct: Conduct,
}

/// Traffic of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// Nothing.
    Silent,
    /// As much as its controller allows, from this time on.
    Saturated {
        /// The first attempt.
        from: Time,
    },
    /// As much as its controller allows during exponentially distributed on-times.
    OnOff {
        /// Mean time of sending.
        on: Span,
        /// Mean time of silence; the first one begins the run.
        off: Span,
    },
}

/// How a relay behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conduct {
    /// As designed.
    Honest,
    /// Offers always the same rate, in bytes/s, whatever it carries; it refuses what is over its limit, or
    /// drops it in silence.
    Claims {
        /// The stamps that it writes.
        rate: f64,
        /// Whether it says that it drops.
        silent: bool,
    },
    /// Drops every packet and says nothing.
    DropsAll,
}

/// One-way delays.
#[derive(Clone, Debug, PartialEq)]
pub enum Delays {
    /// Peers lie uniformly in a square of `side` units, `per_unit` apart per unit. The positions are drawn
    /// from `layout`, not from the run's seed: the thesis uses the same in each run.
    Coordinates {
        /// Edge of the square in units.
        side: f64,
        /// Delay per unit.
        per_unit: Span,
        /// Chooses the positions.
        layout: u64,
    },
    /// The same between any two peers.
    Constant(Span),
}

/// Changes during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The peer forwards so many bytes per second from now on.
    Limit(Peer, u32),
    /// The peer enters the overlay.
    Join(Peer),
    /// The peer leaves the overlay: it sends no more and what is sent to it is lost.
    Leave(Peer),
}

/// Why a plan cannot be run.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanError {
    /// Hops outside what a path can have, or more than there are peers for.
    Hops {
        /// As given.
        hops: usize,
        /// As given.
        peers: usize,
    },
    /// More peers than can be numbered.
    Peers(usize),
    /// A zero where there must be none.
    Zero(&'static str),
    /// Jitter that is negative, not finite or so large that delays turn negative.
    Jitter(f64),
    /// Delays so large that a path takes longer than the manager of the perfect controller looks ahead.
    Delay(Span),
    /// A peer is its own destination.
    SendsToItself(Peer),
    /// A change, watch or destination names a peer that is not there.
    NoSuchPeer(Peer),
    /// A rate of [`Conduct::Claims`] that is not a positive number.
    Claims(f64),
    /// The perfect controller where no manager can be.
    Central,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Hops { hops, peers } => write!(
                f,
                "{hops} hops among {peers} peers: give 1 to {MAX_HOPS} hops and at least two peers more than hops"
            ),
            PlanError::Peers(peers) => write!(f, "{peers} peers are too many: give at most {MAX_PEERS}"),
            PlanError::Zero(what) => write!(f, "{what} must not be zero"),
            PlanError::Jitter(jitter) => write!(f, "jitter of {jitter} of the delay: give 0 to {MAX_JITTER}"),
            PlanError::Delay(delay) => write!(f, "a delay of {delay} per link: give at most {MAX_DELAY}"),
            PlanError::SendsToItself(peer) => write!(f, "peer {peer} sends to itself; name another"),
            PlanError::NoSuchPeer(peer) => write!(f, "there is no peer {peer}; peers are numbered from 0"),
            PlanError::Central => {
                f.write_str("the perfect controller knows everything: no real packet can carry that")
            }
            PlanError::Claims(rate) => write!(f, "a claim of {rate} bytes/s: give a positive number"),
        }
    }
}

impl std::error::Error for PlanError {}

/// Round trips are kept per pair and source, so memory grows with the cube.
pub(crate) const MAX_PEERS: usize = 1000;
/// Four standard deviations still leave a delay positive.
const MAX_JITTER: f64 = 0.25;
/// Nine links stay below the manager's 16 seconds.
const MAX_DELAY: Span = Span::from_millis(1000);

impl Plan {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// The first [`PlanError`] found.
    pub fn check(&self) -> Result<(), PlanError> {
        let peers = self.peers.len();
        if peers > MAX_PEERS {
            return Err(PlanError::Peers(peers));
        }
        if self.hops == 0 || self.hops > MAX_HOPS || self.hops + 2 > peers {
            return Err(PlanError::Hops { hops: self.hops, peers });
        }
        for (value, what) in [
            (u64::from(self.packet), "the packet size"),
            (self.attempt_every.0, "the time between attempts"),
            (self.bin.0, "the interval of results"),
        ] {
            if value == 0 {
                return Err(PlanError::Zero(what));
            }
        }
        if !(0.0..=MAX_JITTER).contains(&self.jitter) {
            return Err(PlanError::Jitter(self.jitter));
        }
        let longest = match self.delays {
            Delays::Constant(delay) => delay,
            Delays::Coordinates { side, per_unit, .. } => {
                Span::from_secs_f64(side * std::f64::consts::SQRT_2 * per_unit.as_secs_f64())
            }
        };
        if longest > MAX_DELAY {
            return Err(PlanError::Delay(longest));
        }
        for peer in &self.peers {
            match peer.conduct {
                Conduct::Claims { rate, .. } if !(rate > 0.0 && rate.is_finite()) => {
                    return Err(PlanError::Claims(rate));
                }
                _ => {}
            }
        }
        let changed = self.changes.iter().map(|(_, change)| match change {
            Change::Limit(peer, _) | Change::Join(peer) | Change::Leave(peer) => *peer,
        });
        let watched = self.watch.into_iter().flat_map(|(a, b)| [a, b]);
        if let Some(own) = self.peers.iter().enumerate().position(|(i, peer)| peer.to == Some(i as Peer)) {
            return Err(PlanError::SendsToItself(own as Peer));
        }
        let named = self.peers.iter().filter_map(|peer| peer.to);
        match changed.chain(watched).chain(named).find(|peer| usize::from(*peer) >= peers) {
            Some(peer) => Err(PlanError::NoSuchPeer(peer)),
            None => Ok(()),
        }
    }

    /// The thesis' testbed (sections 7.1.3 and 7.3.1): saturated peers with 400000 B/s each, 1500-byte
    /// packets over three hops, coordinates in a square of 150 x 150 at 1 ms per unit, 10 % jitter.
    pub fn thesis(peers: usize, duration: Span) -> Plan {
        let peer = PeerPlan {
            limit: 400_000,
            traffic: Traffic::Saturated { from: Time::ZERO },
            to: None,
            member: true,
            conduct: Conduct::Honest,
        };
        Plan {
            peers: vec![peer; peers],
            hops: 3,
            packet: 1500,
            delays: Delays::Coordinates { side: 150.0, per_unit: Span::from_millis(1), layout: 1 },
            jitter: 0.1,
            attempt_every: Span::from_millis(5),
            changes: Vec::new(),
            duration,
            bin: Span::from_secs(1),
            watch: None,
        }
    }
}
