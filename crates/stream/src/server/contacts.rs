//! Contacts: which viewers know each other's addresses.

use super::outbox::Outbox;
use crate::Peer;
use crate::member::Members;
use crate::message::Message;

/// Maximum number of contacts of one viewer, without those that trees need.
const MET: usize = 32;

/// Sends two viewers each other's contact, unless they have it.
///
/// A viewer with too many contacts forgets the oldest that `is_needed` does not hold. Either peer may have left since
/// the introduction was decided; then nothing is sent to or about it.
pub(super) fn introduce(
    a: Peer,
    b: Peer,
    members: &mut Members,
    is_needed: impl Fn(Peer, Peer) -> bool,
    outbox: &mut Outbox,
) {
    for (peer, other) in [(a, b), (b, a)] {
        let Some(contact) = members.get(other).map(|member| member.contact) else { return };
        let Some(member) = members.get_mut(peer) else { return };
        if member.met.contains(&other) {
            continue;
        }
        member.met.push(other);
        let older = &member.met[..member.met.len() - 1];
        let excess = member.met.len() > MET;
        let forgotten = older.iter().copied().find(|old| excess && !is_needed(peer, *old));
        outbox.message(peer, Message::Meet(other, contact));
        if let Some(old) = forgotten {
            separate(peer, old, members, outbox);
        }
    }
}

/// Both peers forget each other's contact.
fn separate(a: Peer, b: Peer, members: &mut Members, outbox: &mut Outbox) {
    for (peer, other) in [(a, b), (b, a)] {
        forget(peer, other, members, outbox);
    }
}

/// `peer`, if it is still a member, forgets the contact of `other`.
pub(super) fn forget(peer: Peer, other: Peer, members: &mut Members, outbox: &mut Outbox) {
    if let Some(member) = members.get_mut(peer) {
        member.met.retain(|met| *met != other);
        outbox.message(peer, Message::Forget(other));
    }
}
