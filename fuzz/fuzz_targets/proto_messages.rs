//! Messages in single cells from neighbours, coordinators and measurers; certificates; names of targets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_proto::crypto::{cert, names};
use tidegate_proto::flashflow::cell::{parse_create, parse_created};
use tidegate_proto::flashflow::message::Message;

fuzz_target!(|bytes: &[u8]| {
    let _ = cert::check_certs(bytes, None, 1_700_000_000);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = names::Target::parse(text, 0);
    }
    let mut cell = [0; 514];
    let length = bytes.len().min(cell.len());
    cell[..length].copy_from_slice(&bytes[..length]);
    let _ = (parse_create(&cell), parse_created(&cell, 1));
    if let Ok(message) = Message::from_cell(&cell) {
        let again = message.to_cell().expect("what was read can be written");
        assert_eq!(Message::from_cell(&again), Ok(message));
    }
});
