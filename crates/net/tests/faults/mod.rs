//! Protocol violations in links, circuits and streams, sent to a relay of stock tor and to ours: the answers must be
//! equal. Runs where tor is installed.

pub mod neighbour;
mod table;

use crate::a_relay;
use crate::skipped;
use crate::stock_relay;
use std::path::Path;

use neighbour::Relay;
use table::{CIRCUIT_FAULTS, LINK_FAULTS, tell_circuit, tell_link};
use tidegate_net::identity::unhex;
use tidegate_net::live::relay::{Announce, RelayConfig};
use tidegate_net::private_tor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

/// A directory's 404 answer in one cell.
async fn directory(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        spawn_local(async move {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await;
        });
    }
}

/// A relay of this project.
async fn ours() -> Relay {
    let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = behind.local_addr().unwrap();
    spawn_local(directory(behind));
    let change = |settings: &mut RelayConfig| {
        settings.nickname = "ours".into();
        settings.exit = a_relay::open_exit(Some(authority));
        settings.announce = Announce::Tor(vec![authority]);
    };
    a_relay::start(change).await.router.into()
}

#[test]
#[ignore = "slow: make test-all"]
fn faults_are_answered_as_stock_tor_does() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("faults are answered as stock tor does", "tor");
    }
    let (network, stock, directory) = stock_relay::network("faults");
    let stock = Relay { address: stock.address(), fingerprint: unhex(&stock.fingerprint).unwrap() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let differ = runtime.block_on(LocalSet::new().run_until(async {
        let ours = ours().await;
        let mut differ = Vec::new();
        for fault in LINK_FAULTS {
            let answers = [tell_link(stock, fault).await, tell_link(ours, fault).await];
            eprintln!("{fault}: {answers:?}");
            differ.extend((answers[0] != answers[1]).then_some((fault, answers)));
        }
        for fault in CIRCUIT_FAULTS {
            let answers = [tell_circuit(stock, fault).await, tell_circuit(ours, fault).await];
            eprintln!("{fault}: {answers:?}");
            differ.extend((answers[0] != answers[1]).then_some((fault, answers)));
        }
        differ
    }));
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(differ.is_empty(), "stock tor's answer, and ours: {differ:#?}");
}
