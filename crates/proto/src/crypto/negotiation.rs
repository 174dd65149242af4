//! The agreement of a client and a relay in ntor-v3: extensions of the client's message and of the relay's answer
//! (tor-spec, "Circuit extension negotiation"; proposals 324 and 346).

/// Types of extensions: congestion control in the request and in the answer, and the request for subprotocols.
const ASK_CONGESTION_CONTROL: u8 = 1;
const GRANT_CONGESTION_CONTROL: u8 = 2;
const SUBPROTOCOLS: u8 = 3;
/// The version of the subprotocol `Relay` that is Counter Galois Onion.
pub const CGO_VERSION: u8 = 6;
/// The request for it. 2 stands for `Relay`.
const CGO: [u8; 2] = [2, CGO_VERSION];
/// Cells that a SENDME acknowledges, as the relay announces it. Stock clients refuse one that differs from their consensus'
/// by more than 1.
pub const SENDME_INCREMENT: u8 = 31;

/// The requests of a client to a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Congestion control instead of fixed windows.
    pub congestion_control: bool,
    /// Layers of Counter Galois Onion. They need congestion control.
    pub cgo: bool,
}

/// Splits a list of extensions into types and contents.
fn extensions(message: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let (&count, mut rest) = message.split_first()?;
    let mut extensions = Vec::new();
    for _ in 0..count {
        let (&[kind, length], bytes) = rest.split_first_chunk::<2>()?;
        let (content, next) = bytes.split_at_checked(usize::from(length))?;
        extensions.push((kind, content));
        rest = next;
    }
    Some(extensions)
}

/// The first extension of a type: later ones are ignored.
fn first<'a>(extensions: &[(u8, &'a [u8])], kind: u8) -> Option<&'a [u8]> {
    extensions.iter().find(|(other, _)| *other == kind).map(|(_, content)| *content)
}

impl Wishes {
    /// The client's message.
    pub(crate) fn write(self) -> Vec<u8> {
        let mut message = vec![u8::from(self.congestion_control) + u8::from(self.cgo)];
        if self.congestion_control {
            message.extend([ASK_CONGESTION_CONTROL, 0]);
        }
        if self.cgo {
            message.extend([SUBPROTOCOLS, 2]);
            message.extend(CGO);
        }
        message
    }

    /// Parses a client's message. `None` if it is malformed or asks for a subprotocol that is not negotiated here: the
    /// handshake must fail then.
    pub(crate) fn read(message: &[u8]) -> Option<Wishes> {
        let extensions = extensions(message)?;
        let congestion_control = first(&extensions, ASK_CONGESTION_CONTROL).is_some();
        // An empty list asks for nothing; any subprotocol besides this one is refused.
        let cgo = match first(&extensions, SUBPROTOCOLS) {
            None | Some([]) => false,
            Some(requested) if requested == CGO => true,
            Some(_) => return None,
        };
        // Message format 1 has no stream SENDMEs, which fixed windows need.
        (congestion_control || !cgo).then_some(Wishes { congestion_control, cgo })
    }

    /// The relay's answer, which grants everything.
    pub(crate) fn grant(self) -> Vec<u8> {
        if self.congestion_control { vec![1, GRANT_CONGESTION_CONTROL, 1, SENDME_INCREMENT] } else { vec![0] }
    }

    /// Client: what the relay granted. `None` if the answer is malformed, or refuses congestion control for Counter
    /// Galois Onion. Relays do not answer the request for subprotocols: they grant it or fail.
    pub(crate) fn granted(self, answer: &[u8]) -> Option<Wishes> {
        let granted = first(&extensions(answer)?, GRANT_CONGESTION_CONTROL);
        let congestion_control = self.congestion_control && granted == Some(&[SENDME_INCREMENT]);
        (congestion_control || !self.cgo).then_some(Wishes { congestion_control, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wishes = Wishes { congestion_control: true, cgo: true };
    const CONTROL: Wishes = Wishes { congestion_control: true, cgo: false };

    #[test]
    fn wishes_are_read_as_written() {
        assert_eq!(CONTROL.write(), [1, 1, 0]);
        assert_eq!(ALL.write(), [2, 1, 0, 3, 2, 2, 6]);
        for wishes in [Wishes::default(), CONTROL, ALL] {
            assert_eq!(Wishes::read(&wishes.write()), Some(wishes));
            assert_eq!(wishes.granted(&wishes.grant()), Some(wishes));
        }
        // Unknown extensions and repeated ones are ignored.
        assert_eq!(Wishes::read(&[3, 9, 1, 7, 1, 0, 1, 0]), Some(CONTROL));
        assert_eq!(Wishes::read(&[2, 1, 0, 3, 0]), Some(CONTROL), "an empty list of subprotocols");
    }

    #[test]
    fn what_is_not_supported_fails() {
        for message in [
            &[][..],
            &[1],
            &[1, 1],
            &[1, 1, 1],
            // Counter Galois Onion without congestion control.
            &[1, 3, 2, 2, 6],
            // Another version, another protocol, half a request, an unsorted and a repeated list.
            &[2, 1, 0, 3, 2, 2, 5],
            &[2, 1, 0, 3, 2, 1, 6],
            &[2, 1, 0, 3, 1, 2],
            &[2, 1, 0, 3, 4, 2, 6, 2, 5],
            &[2, 1, 0, 3, 4, 2, 6, 2, 6],
            &[2, 1, 0, 3, 4, 2, 5, 2, 6],
        ] {
            assert_eq!(Wishes::read(message), None, "{message:?}");
        }
        assert_eq!(ALL.granted(&[0]), None);
        assert_eq!(ALL.granted(&[1, 2, 1, 30]), None, "another increment");
        assert_eq!(CONTROL.granted(&[0]), Some(Wishes::default()));
        assert_eq!(CONTROL.granted(&[]), None);
        assert_eq!(Wishes::default().granted(&[1, 2, 1, 31]), Some(Wishes::default()));
    }
}
