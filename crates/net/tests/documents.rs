//! Directory documents: a relay fetches each once, and serves it to all clients.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::live::relay::RelayConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_local};

use crate::a_relay;
use crate::faults::neighbour::{BEGIN_DIR, DATA, END, Link, RELAY, circuit_from, host, message};
use crate::one_hop::on_sockets;

const MICRODESCRIPTORS: [&str; 3] = ["onion-key\nid a\n", "onion-key\nid b\n", "onion-key\nid c\n"];

fn digest(text: &str) -> String {
    STANDARD_NO_PAD.encode(Sha256::digest(text))
}

/// Answers each request by its path, one for microdescriptors with those, and 404 for `/tor/none`, until the task ends. Returns its address and the requests so far.
async fn directory() -> (SocketAddr, Rc<RefCell<Vec<String>>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Rc::<RefCell<Vec<String>>>::default());
    let seen = requests.clone();
    let task = spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let head = if path.contains("none") { "404 Not found" } else { "200 OK" };
            let body = match path.strip_prefix("/tor/micro/d/") {
                Some(list) => {
                    MICRODESCRIPTORS.iter().filter(|text| list.contains(&digest(text))).copied().collect()
                }
                None => path.repeat(300),
            };
            seen.borrow_mut().push(path);
            let answer = format!("HTTP/1.0 {head}\r\nDate: now\r\n\r\n{body}");
            // A client that has gone does not need it.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, requests, task)
}

/// The answer to a request by a directory stream.
async fn ask(link: &mut Link, stream: u16, path: &str) -> String {
    link.say(RELAY, message(BEGIN_DIR, stream, &[])).await;
    link.say(RELAY, message(DATA, stream, format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()))
        .await;
    let mut answer = Vec::new();
    loop {
        let body = link.hear().await.expect("an answer");
        match body[0] {
            DATA => {
                let length = usize::from(u16::from_be_bytes([body[9], body[10]]));
                answer.extend_from_slice(&body[11..11 + length]);
            }
            END => return String::from_utf8(answer).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn a_document_is_fetched_once_and_served_to_all() {
    on_sockets(async {
        let (directory, requests, _) = directory().await;
        let change = |settings: &mut RelayConfig| settings.exit = a_relay::open_exit(Some(directory));
        let a_relay::Running { router, .. } = a_relay::start(change).await;
        let mut first = circuit_from(host(2), router.into()).await;
        let mut second = circuit_from(host(3), router.into()).await;
        let path = "/tor/keys/all";
        let answer = ask(&mut first, 1, path).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(head, format!("HTTP/1.0 200 OK\r\nContent-Length: {}", 300 * path.len()));
        assert_eq!(body, path.repeat(300));
        assert_eq!(ask(&mut second, 1, path).await, answer);
        assert_eq!(*requests.borrow(), [path]);

        // What is not there is asked for again, and other paths are forwarded.
        for (stream, path) in
            [(2, "/tor/keys/none"), (3, "/tor/keys/none"), (4, "/tor/none"), (5, "/tor/other")]
        {
            let answer = ask(&mut second, stream, path).await;
            assert!(answer.contains("\r\nDate: now\r\n") && answer.ends_with(&path.repeat(300)), "{answer}");
        }
        assert_eq!(requests.borrow().len(), 5);
    });
}

/// The next vote is unknown here, so an answer is current for a second.
#[test]
fn an_old_consensus_is_served_while_the_directory_is_down() {
    on_sockets(async {
        let (directory, requests, task) = directory().await;
        let change = |settings: &mut RelayConfig| settings.exit = a_relay::open_exit(Some(directory));
        let a_relay::Running { router, .. } = a_relay::start(change).await;
        let mut link = circuit_from(host(2), router.into()).await;
        let path = "/tor/status-vote/current/consensus-microdesc";
        let answer = ask(&mut link, 1, path).await;
        assert!(answer.ends_with(&path.repeat(300)));
        task.abort();
        clock::until(clock::now() + Span::from_millis(2_100)).await;
        assert_eq!(ask(&mut link, 2, path).await, answer);
        assert_eq!(*requests.borrow(), [path]);
        assert_eq!(ask(&mut link, 3, "/tor/status-vote/current/other").await, "", "there is none");
    });
}

/// The first directory is down.
#[test]
fn a_microdescriptor_is_fetched_once_for_all_lists() {
    on_sockets(async {
        let (directory, requests, task) = directory().await;
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let change = |settings: &mut RelayConfig| {
            settings.exit = a_relay::open_exit(Some(closed));
            settings.exit.directories.push(directory);
        };
        let a_relay::Running { router, .. } = a_relay::start(change).await;
        let mut link = circuit_from(host(2), router.into()).await;
        let path = |texts: &[&str]| {
            let digests: Vec<String> = texts.iter().map(|text| digest(text)).collect();
            format!("/tor/micro/d/{}", digests.join("-"))
        };
        let [a, b, c] = MICRODESCRIPTORS;
        let body = |answer: String| {
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
            let mut lines: Vec<&str> = body.lines().filter(|line| line.starts_with("id ")).collect();
            lines.sort_unstable();
            lines.join(" ")
        };
        assert_eq!(body(ask(&mut link, 1, &path(&[a, b])).await), "id a id b");
        assert_eq!(body(ask(&mut link, 2, &path(&[c, b])).await), "id b id c");
        assert_eq!(body(ask(&mut link, 3, &path(&[c, a])).await), "id a id c");
        assert_eq!(*requests.borrow(), [path(&[a, b]), path(&[c])].map(sorted));
        task.abort();
        let unknown = "onion-key\nid d\n";
        assert_eq!(body(ask(&mut link, 4, &path(&[a, b, c, unknown])).await), "id a id b id c");
        assert_eq!(ask(&mut link, 5, &path(&[unknown])).await, "", "there is none");
    });
}

/// The path with its digests in the order of their bytes.
fn sorted(path: String) -> String {
    let (start, list) = path.rsplit_once('/').unwrap();
    let mut digests: Vec<&str> = list.split('-').collect();
    digests.sort_by_key(|digest| STANDARD_NO_PAD.decode(digest).unwrap());
    format!("{start}/{}", digests.join("-"))
}
