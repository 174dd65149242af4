//! Tests: clients behind address translation forward to each other.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;

use super::number;
use super::roles::{Role, client};

/// Whether a client answers a stranger: QUIC answers versions that it does not know.
fn answers(address: &Value) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let head = [&[0xc0, 10, 10, 10, 10, 8][..], &[0; 8], &[8], &[7; 8]].concat();
    socket.send_to(&[&head[..], &[0; 1200]].concat(), address.as_str().unwrap()).unwrap();
    socket.recv_from(&mut [0; 2048]).is_ok()
}

#[test]
fn clients_behind_address_translation_forward_to_each_other() {
    // The server carries the stream once.
    let server = Role::start(
        "server --listen 127.0.0.1:0",
        &["--input", "pattern:1 Mbit/s", "--rate", "1 Mbit/s", "--uplink", "1500 kbit/s"],
    );
    let clients: Vec<Role> = (0..4)
        .map(|_| {
            let client = client(&server, "4 Mbit/s", "--translated");
            client.until("in", |status| status["phase"] == "in");
            client
        })
        .collect();
    let viewers = server.status()["viewers"].take();
    assert!((1..=4).all(|viewer| !answers(&viewers[viewer]["address"])), "strangers are let in");
    clients.iter().for_each(|client| client.until("playing", |status| number(status, "delivered") > 800));
    let status = server.status();
    let carried: u64 = (1..=4).map(|viewer| number(&status["viewers"][viewer], "children")).sum();
    assert!(carried >= 20, "{status}");
    // Without the bytes that open the way there are eleven. A busy machine may add one or two.
    assert!(number(&status, "complaints_upheld") < 5 && number(&status, "relegated") == 0, "{status}");
    for client in clients {
        let status = client.end();
        let (gaps, delivered) = (number(&status, "gaps"), number(&status, "delivered"));
        assert!(gaps * 100 <= delivered, "{status}");
    }
}
