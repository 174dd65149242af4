//! Messages and datagrams of streams: writing and reading again gives the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_stream::message::Message;
use tidegate_stream::packet;

fuzz_target!(|bytes: &[u8]| {
    if let Some(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Some(message));
    }
    let _ = packet::decode(&bytes.to_vec().into());
    let _ = packet::share(bytes);
});
