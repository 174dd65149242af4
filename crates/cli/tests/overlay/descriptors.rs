//! Tests: relays without free file descriptors say so, and serve the streams that they have.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::roles::{Overlay, ask, greeter};

/// Sets the limit of open files of a process to the number of its open files, or lifts it.
fn limit(process: u32, is_tight: bool) {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
    let current = if is_tight { Some(open) } else { Some(1024) };
    let pid = Pid::from_raw(i32::try_from(process).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current, maximum: Some(1024) }).unwrap();
}

/// The port of a server that returns what it gets.
fn echo() -> u16 {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut tcp in server.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = tcp.read(&mut bytes) {
                    tcp.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
    port
}

/// A stream over a SOCKS port.
fn stream(socks: &str, port: u16) -> TcpStream {
    let mut tcp = TcpStream::connect(socks).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat();
    tcp.write_all(&request).unwrap();
    let mut answer = [0; 12];
    tcp.read_exact(&mut answer).unwrap();
    assert_eq!(answer[3], 0, "connected");
    tcp
}

#[test]
fn relays_without_free_descriptors_say_so_and_serve_their_streams() {
    let overlay = Overlay::of_three("descriptors");
    let listening = overlay.listening();
    let [client, relays] = [&listening[4..], &listening[1..4]];
    let (echo, hello) = (echo(), greeter());
    let mut open = stream(&client[0], echo);
    assert_eq!(ask(&client[0], "127.0.0.1", hello), (0, b"hello".to_vec()));
    let said = || overlay.lines().iter().filter(|line| line.contains("no free file descriptor")).count();
    assert_eq!(said(), 0);
    let processes: Vec<u32> = overlay.roles[1..4].iter().map(std::process::Child::id).collect();
    processes.iter().for_each(|process| limit(*process, true));
    // Each one is asked to accept, several times.
    let waiting: Vec<TcpStream> =
        relays.iter().flat_map(|at| (0..5).map(move |_| TcpStream::connect(at).unwrap())).collect();
    // The exit is asked to connect.
    let (reply, _) = ask(&client[0], "127.0.0.1", hello);
    assert_ne!(reply, 0, "no exit can connect");
    let mut same = [0; 5];
    open.write_all(b"still").unwrap();
    open.read_exact(&mut same).unwrap();
    assert_eq!(&same, b"still");
    overlay.until("three lines", |_| said() >= 3);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(said(), 3, "one line of each relay: {:#?}", overlay.lines());
    let line = overlay.lines().into_iter().find(|line| line.contains("no free file descriptor")).unwrap();
    assert!(line.contains("RLIMIT_NOFILE") && line.contains("prlimit --pid"), "{line}");
    drop(waiting);
    processes.iter().for_each(|process| limit(*process, false));
    assert_eq!(ask(&client[0], "127.0.0.1", hello), (0, b"hello".to_vec()));
}
