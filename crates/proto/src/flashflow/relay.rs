//! The relay's role: agrees to measurements, admits their circuits and reports background every second.
//!
//! It ends a measurement in time whatever the others do. States: Idle, ParamsOk, Measuring, Idle.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tidegate_control::flashflow::Percent;
use tidegate_control::flashflow::quota::Quota;
use tidegate_control::machine::Machine;
use tidegate_control::text::read_hex_list;
use tidegate_control::units::{Span, Time};

use super::cell::Token;
use super::message::{Message, Params, Reason};
use crate::crypto::cert::Fingerprint;

/// Permissions of the relay's operator (proposal 316).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// `FFMeasurementsAllowed`.
    pub allowed: bool,
    /// `FFAllowedCoordinators`: certificate fingerprints; other coordinators are refused.
    #[serde(deserialize_with = "read_hex_list")]
    pub coordinators: Vec<Fingerprint>,
    /// `FFMeasurementPeriod`: two measurements per coordinator in any window of this length.
    #[serde(default = "default_period")]
    pub period: Span,
    /// `FFBackgroundTrafficPercent`.
    #[serde(rename = "background-percent", default = "default_background")]
    pub background: Percent,
    /// `FFMaxMeasurementDuration`: from the agreement to the end.
    #[serde(default = "default_max_duration")]
    pub max_duration: Span,
}

fn default_period() -> Span {
    Config::default().period
}

fn default_background() -> Percent {
    Config::default().background
}

fn default_max_duration() -> Span {
    Config::default().max_duration
}

impl Default for Config {
    fn default() -> Config {
        Config {
            allowed: false,
            coordinators: Vec::new(),
            period: Span::from_secs(86_400),
            background: Percent::new(25).expect("below 100"),
            max_duration: Span::from_secs(45),
        }
    }
}

/// An action that the driver must perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message on the coordinator's connection.
    Send(u64, Message),
    /// Close the coordinator's connection once that is written.
    Close(u64),
    /// Exempt connections from these addresses from limits until `Ended`.
    Expect(Vec<IpAddr>),
    /// Measurement traffic flows: limit background to this share.
    Started(Percent),
    /// Drop buffered echoes, close measurement connections, and lift the limit of background.
    Ended,
}

/// A relay that can be measured.
#[derive(Debug)]
pub struct Target {
    config: Config,
    quota: Quota<Fingerprint>,
    session: Option<Session>,
    /// Until when coordinators that agreed and then did not measure leave the relay to others.
    resting: BTreeMap<Fingerprint, Time>,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Session {
    coordinator: u64,
    fingerprint: Fingerprint,
    params: Params,
    ratio: Percent,
    deadline: Time,
    agreed: Time,
    measuring: Option<Measuring>,
}

#[derive(Debug)]
struct Measuring {
    since: Time,
    /// Number of seconds reported.
    reported: u16,
    sent: u64,
    received: u64,
}

impl Target {
    /// A relay without measurements.
    pub fn new(config: Config) -> Target {
        let quota = Quota::new(config.period);
        Target { config, quota, session: None, resting: BTreeMap::new(), outputs: VecDeque::new() }
    }

    /// Handles a message of a connection that proved the fingerprint.
    pub fn message(&mut self, now: Time, from: u64, fingerprint: &Fingerprint, message: &Message) {
        match message {
            Message::Params(params) => match self.agree(now, from, fingerprint, params) {
                Ok(()) => {
                    let addresses = params.measurers.iter().filter_map(|m| m.address).collect();
                    self.outputs.push_back(Output::Expect(addresses));
                    self.outputs.push_back(Output::Send(from, Message::ParamsOk));
                }
                Err(reason) => self.refuse(from, reason),
            },
            Message::Failed(_) if self.is_coordinator(from) => self.end(now),
            _ => {
                if self.is_coordinator(from) {
                    self.end(now);
                }
                self.refuse(from, Reason::Protocol);
            }
        }
    }

    fn agree(
        &mut self,
        now: Time,
        from: u64,
        fingerprint: &Fingerprint,
        params: &Params,
    ) -> Result<(), Reason> {
        if !self.config.allowed {
            return Err(Reason::Disabled);
        }
        if !self.config.coordinators.contains(fingerprint) {
            return Err(Reason::NotAllowed);
        }
        let rests = self.resting.get(fingerprint).is_some_and(|until| now < *until);
        if self.session.is_some() || rests {
            return Err(Reason::Busy);
        }
        if Span::from_secs(u64::from(params.seconds)) > self.config.max_duration {
            return Err(Reason::Duration);
        }
        // Checked last, so that refused requests do not use up the quota.
        self.quota.start(now, *fingerprint).map_err(|_| Reason::TooOften)?;
        let theirs = Percent::new(params.background).ok_or(Reason::Protocol)?;
        self.session = Some(Session {
            coordinator: from,
            fingerprint: *fingerprint,
            params: params.clone(),
            ratio: theirs.min(self.config.background),
            deadline: now + self.config.max_duration,
            agreed: now,
            measuring: None,
        });
        Ok(())
    }

    fn refuse(&mut self, to: u64, reason: Reason) {
        self.outputs.push_back(Output::Send(to, Message::Failed(reason)));
        self.outputs.push_back(Output::Close(to));
    }

    fn is_coordinator(&self, connection: u64) -> bool {
        self.session.as_ref().is_some_and(|session| session.coordinator == connection)
    }

    /// Whether a peer with that fingerprint may open a circuit of the measurement.
    pub fn admits(&self, fingerprint: &Fingerprint, token: &Token) -> bool {
        self.session.as_ref().is_some_and(|session| {
            bool::from(session.params.token.ct_eq(token))
                && session.params.measurers.iter().any(|m| m.fingerprint == *fingerprint)
        })
    }

    /// A measurer of the measurement was told another onion key than the relay's: the measurement ends before its load.
    pub fn wrong_key(&mut self, now: Time) {
        if let Some(Session { coordinator, measuring: None, .. }) = self.session {
            self.end(now);
            self.refuse(coordinator, Reason::WrongKey);
        }
    }

    /// Echo cells arrived; the first ones begin the measurement.
    ///
    /// Returns false without a measurement: the connection must be closed.
    pub fn echo(&mut self, now: Time) -> bool {
        let Some(session) = &mut self.session else { return false };
        if session.measuring.is_none() {
            session.measuring = Some(Measuring { since: now, reported: 0, sent: 0, received: 0 });
            self.outputs.push_back(Output::Started(session.ratio));
        }
        true
    }

    /// Counts background bytes.
    pub fn background(&mut self, sent: u64, received: u64) {
        if let Some(Session { measuring: Some(measuring), .. }) = &mut self.session {
            measuring.sent += sent;
            measuring.received += received;
        }
    }

    /// The coordinator's connection is gone: the measurement ends.
    pub fn lost(&mut self, now: Time, connection: u64) {
        if self.is_coordinator(connection) {
            self.end(now);
        }
    }

    /// Whether a measurement is agreed or running.
    pub fn is_busy(&self) -> bool {
        self.session.is_some()
    }

    /// Length of the agreed measurement.
    pub fn seconds(&self) -> Option<u16> {
        self.session.as_ref().map(|session| session.params.seconds)
    }

    fn end(&mut self, now: Time) {
        if let Some(session) = self.session.take() {
            // The relay was not loaded, so the coordinator may try again. First each other coordinator gets as much time
            // as it held the relay: it could otherwise agree for ever and keep them out.
            if session.measuring.is_none() {
                self.quota.cancel(&session.fingerprint);
                let others = self.config.coordinators.len() as u64 - 1;
                self.resting.insert(session.fingerprint, now + (now.since(session.agreed)) * others);
            }
            self.outputs.push_back(Output::Ended);
        }
    }
}

impl Machine for Target {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        let session = self.session.as_ref()?;
        let second = session.measuring.as_ref().map(|measuring| measuring.next_report());
        Some(second.map_or(session.deadline, |second| second.min(session.deadline)))
    }

    fn timeout(&mut self, now: Time) {
        while let Some(session) = &mut self.session {
            let (coordinator, seconds) = (session.coordinator, session.params.seconds);
            if now >= session.deadline {
                self.end(now);
                self.refuse(coordinator, Reason::Timeout);
                return;
            }
            let Some(measuring) = &mut session.measuring else { return };
            if now < measuring.next_report() {
                return;
            }
            measuring.reported += 1;
            let second = measuring.reported;
            let [sent, received] = [&mut measuring.sent, &mut measuring.received]
                .map(|bytes| u32::try_from(std::mem::take(bytes)).unwrap_or(u32::MAX));
            self.outputs.push_back(Output::Send(coordinator, Message::Background { second, sent, received }));
            if second == seconds {
                self.end(now);
                self.outputs.push_back(Output::Close(coordinator));
                return;
            }
        }
    }
}

impl Measuring {
    fn next_report(&self) -> Time {
        self.since + Span::from_secs(u64::from(self.reported) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flashflow::message::MeasurerId;

    const COORDINATOR: Fingerprint = [1; 32];
    const MEASURER: Fingerprint = [2; 32];

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    fn params() -> Params {
        let measurers = vec![MeasurerId { fingerprint: MEASURER, address: None }];
        Params { token: [7; 16], seconds: 3, background: 10, measurers }
    }

    fn target() -> Target {
        Target::new(Config { allowed: true, coordinators: vec![COORDINATOR], ..Config::default() })
    }

    fn drain(target: &mut Target) -> Vec<Output> {
        std::iter::from_fn(|| target.poll()).collect()
    }

    fn refusal(target: &mut Target, now: Time, who: &Fingerprint, params: Params) -> Reason {
        target.message(now, 5, who, &Message::Params(params));
        match drain(target).as_slice() {
            [Output::Send(5, Message::Failed(reason)), Output::Close(5)] => *reason,
            other => panic!("no refusal: {other:?}"),
        }
    }

    #[test]
    fn a_measurement_runs_from_agreement_to_the_last_second() {
        let mut t = target();
        assert!(!t.admits(&MEASURER, &[7; 16]));
        t.message(at(0), 5, &COORDINATOR, &Message::Params(params()));
        assert_eq!(drain(&mut t), [Output::Expect(vec![]), Output::Send(5, Message::ParamsOk)]);
        assert!(t.admits(&MEASURER, &[7; 16]));
        assert!(!t.admits(&MEASURER, &[8; 16]), "another token");
        assert!(!t.admits(&COORDINATOR, &[7; 16]), "another fingerprint");
        t.background(99, 99);
        assert!(t.echo(at(10)));
        // The coordinator's 10 % is below the relay's 25 %.
        assert_eq!(drain(&mut t), [Output::Started(Percent::new(10).unwrap())]);
        t.background(40, 50);
        assert_eq!(t.next_timeout(), Some(at(11)));
        t.timeout(at(11));
        t.timeout(at(13));
        let background =
            |second, sent, received| Output::Send(5, Message::Background { second, sent, received });
        assert_eq!(
            drain(&mut t),
            [
                background(1, 40, 50),
                background(2, 0, 0),
                background(3, 0, 0),
                Output::Ended,
                Output::Close(5)
            ]
        );
        assert!(!t.echo(at(13)), "echoes after the end are not answered");
        assert_eq!(t.next_timeout(), None);
    }

    #[test]
    fn refusals_say_why() {
        let mut off = Target::new(Config::default());
        assert_eq!(refusal(&mut off, at(0), &COORDINATOR, params()), Reason::Disabled);
        let mut t = target();
        assert_eq!(refusal(&mut t, at(0), &[9; 32], params()), Reason::NotAllowed);
        let long = Params { seconds: 46, ..params() };
        assert_eq!(refusal(&mut t, at(0), &COORDINATOR, long), Reason::Duration);
        // Refusals do not count towards the quota. After two measurements the third is refused.
        for start in [1, 100] {
            t.message(at(start), 4, &COORDINATOR, &Message::Params(params()));
            assert_eq!(drain(&mut t).len(), 2);
            assert_eq!(refusal(&mut t, at(start), &COORDINATOR, params()), Reason::Busy);
            t.echo(at(start));
            drain(&mut t);
            t.lost(at(start), 4);
            assert_eq!(drain(&mut t), [Output::Ended]);
        }
        assert_eq!(refusal(&mut t, at(200), &COORDINATOR, params()), Reason::TooOften);
        // A measurement that ends before the load does not count either.
        let mut u = target();
        for start in 0..5 {
            u.message(at(start), 4, &COORDINATOR, &Message::Params(params()));
            assert_eq!(drain(&mut u)[1], Output::Send(4, Message::ParamsOk));
            u.lost(at(start), 4);
            drain(&mut u);
        }
        t.message(at(86_401), 4, &COORDINATOR, &Message::Params(params()));
        assert_eq!(drain(&mut t)[1], Output::Send(4, Message::ParamsOk));
    }

    /// A coordinator agrees whenever it may, and never measures. Another one tries every ten seconds.
    #[test]
    fn a_coordinator_that_never_measures_does_not_keep_others_out() {
        const OTHER: Fingerprint = [8; 32];
        let coordinators = vec![COORDINATOR, OTHER];
        let mut t = Target::new(Config { allowed: true, coordinators, ..Config::default() });
        let mut measured = 0;
        for second in 0..600 {
            t.timeout(at(second));
            t.message(at(second), second, &COORDINATOR, &Message::Params(params()));
            if second % 10 == 0 {
                t.message(at(second), 1000 + second, &OTHER, &Message::Params(params()));
            }
            if t.session.as_ref().is_some_and(|session| session.fingerprint == OTHER) {
                measured += u32::from(t.session.as_ref().is_some_and(|session| session.measuring.is_none()));
                t.echo(at(second));
            }
            drain(&mut t);
        }
        assert_eq!(measured, 2, "as often as it may in a day");
    }

    #[test]
    fn it_ends_on_silence_and_on_messages_out_of_turn() {
        let mut t = target();
        t.message(at(0), 5, &COORDINATOR, &Message::Params(params()));
        drain(&mut t);
        assert_eq!(t.next_timeout(), Some(at(45)));
        t.timeout(at(45));
        let failed = Output::Send(5, Message::Failed(Reason::Timeout));
        assert_eq!(drain(&mut t), [Output::Ended, failed, Output::Close(5)]);

        t.message(at(50), 6, &COORDINATOR, &Message::Params(params()));
        drain(&mut t);
        // A message of another peer does not end the measurement.
        t.message(at(50), 8, &[3; 32], &Message::Go);
        assert_eq!(drain(&mut t).len(), 2);
        assert!(t.is_busy());
        t.message(at(50), 6, &COORDINATOR, &Message::Go);
        assert_eq!(drain(&mut t)[0], Output::Ended);
        assert!(!t.is_busy());
    }
}
