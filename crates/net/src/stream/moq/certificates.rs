//! The certificates of an edge: each is replaced before it expires, by one that was announced before.

use std::io;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_control::units::Span;

use super::edge::{Lifetimes, Renewal};
use crate::identity::fingerprint;

/// Clocks differ: a certificate is valid from a bit earlier on.
const EARLIER: Duration = Duration::from_secs(3600);

/// A certificate of this machine and its key.
pub(super) struct Certificate {
    pub der: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    /// Its SHA-256.
    pub hash: [u8; 32],
    /// When it was made, seconds since 1970.
    made: u64,
}

impl Certificate {
    /// Makes a certificate that expires `valid` after `now`.
    pub(super) fn make(now: u64, valid: Span) -> io::Result<Certificate> {
        let wrong = |error: rcgen::Error| io::Error::other(error.to_string());
        let names = ["localhost", "127.0.0.1", "::1"].map(String::from).to_vec();
        let mut parameters = CertificateParams::new(names).map_err(wrong)?;
        let begins = date_time_ymd(1970, 1, 1) + Duration::from_secs(now);
        (parameters.not_before, parameters.not_after) =
            (begins - EARLIER, begins + Duration::from_nanos(valid.0));
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = parameters.self_signed(&key).map_err(wrong)?;
        let der = certificate.der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(Certificate { hash: fingerprint(&der), der, key, made: now })
    }
}

/// The certificate in use and its successor.
pub(super) struct Certificates {
    lifetimes: Lifetimes,
    /// When the certificate in use was made, seconds since 1970.
    made: u64,
    next: Option<Certificate>,
}

impl Certificates {
    /// The certificates of an edge that begins with this one.
    pub(super) fn new(first: &Certificate, lifetimes: Lifetimes) -> Certificates {
        Certificates { lifetimes, made: first.made, next: None }
    }

    /// What is due at a time in seconds since 1970, and the certificate to use from now on, if it changes.
    ///
    /// # Errors
    /// If a certificate cannot be made.
    pub(super) fn step(&mut self, now: u64) -> io::Result<Option<(Renewal, Option<Certificate>)>> {
        let seconds = |age: Span| age.0 / 1_000_000_000;
        let Lifetimes { expires, announced, replaced } = self.lifetimes;
        match self.next.take() {
            None if now >= self.made + seconds(announced) => {
                let next = Certificate::make(now, expires)?;
                // After a long sleep of the machine, the replacement is overdue.
                let from = now.max(self.made + seconds(replaced));
                let renewal = Renewal::Announced { certificate: next.hash, from };
                self.next = Some(next);
                Ok(Some((renewal, None)))
            }
            Some(next) if now >= self.made + seconds(replaced) => {
                self.made = next.made;
                Ok(Some((Renewal::Replaced { certificate: next.hash }, Some(next))))
            }
            next => {
                self.next = next;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;
    const START: u64 = 1_800_000_000;

    #[test]
    fn each_certificate_is_announced_four_days_before_it_is_used() {
        let lifetimes = Lifetimes::default();
        let first = Certificate::make(START, lifetimes.expires).unwrap();
        let mut certificates = Certificates::new(&first, lifetimes);
        let (mut used, mut announced, mut replaced) = (first.hash, None, 0);
        for hour in 0..60 * 24 {
            let now = START + hour * 3600;
            match certificates.step(now).unwrap() {
                None => {}
                Some((Renewal::Announced { certificate, from }, None)) => {
                    assert_eq!(announced.replace((certificate, from)), None, "one successor at a time");
                    assert_eq!(from, now + 4 * DAY);
                }
                Some((Renewal::Replaced { certificate }, Some(next))) => {
                    assert_eq!((certificate, now), announced.take().unwrap());
                    assert_eq!(next.hash, certificate);
                    used = certificate;
                    replaced += 1;
                }
                Some(_) => panic!("a certificate goes with its replacement"),
            }
            assert!(now < certificates.made + 13 * DAY, "the certificate in use has not expired");
        }
        assert_eq!(replaced, 9, "every six days after ten");
        assert_ne!(used, first.hash);
    }

    #[test]
    fn a_machine_that_slept_too_long_gets_a_valid_certificate_at_once() {
        let first = Certificate::make(START, Lifetimes::default().expires).unwrap();
        let mut certificates = Certificates::new(&first, Lifetimes::default());
        let now = START + 30 * DAY;
        let (renewal, _) = certificates.step(now).unwrap().unwrap();
        assert!(matches!(renewal, Renewal::Announced { from, .. } if from == now), "{renewal:?}");
        assert!(certificates.step(now).unwrap().unwrap().1.is_some());
        assert!(certificates.step(now).unwrap().is_none() && certificates.made == now);
    }
}
