//! The role of a directory: relays post their entries, clients and relays get what it signs.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tidegate_control::units::Span;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::directory::Authority;
use crate::clock;
use crate::flashflow::link::within;

/// How long a request may take, and how long it may be.
const PATIENCE: Span = Span::from_secs(10);
const MOST: usize = 8192;
/// Requests at one time; more are closed at once.
const REQUESTS: usize = 256;

/// Serves until dropped; `hear` learns how many relays are listed. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(authority: Authority, listener: TcpListener, hear: impl Fn(usize) + 'static) {
    let (authority, hear) = (Rc::new(RefCell::new(authority)), Rc::new(hear));
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(REQUESTS));
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            clock::until(clock::now() + Span::from_millis(50)).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (authority, hear) = (authority.clone(), hear.clone());
        tokio::task::spawn_local(async move {
            // How a request ends concerns nobody else.
            let _ = within(PATIENCE, serve(tcp, &authority, &*hear)).await;
            drop(place);
        });
    }
}

async fn serve(mut tcp: TcpStream, authority: &RefCell<Authority>, hear: &dyn Fn(usize)) -> io::Result<()> {
    let (status, body) = match request(&mut tcp).await? {
        Some((line, body)) if line.starts_with("POST /relay ") => {
            let (before, now) = (authority.borrow().len(), clock::unix());
            let joined = authority.borrow_mut().join(now, &String::from_utf8_lossy(&body));
            if authority.borrow().len() != before {
                hear(authority.borrow().len());
            }
            match joined {
                Ok(said) => ("200 OK", said.to_owned()),
                Err(why) => ("403 Forbidden", why + "\n"),
            }
        }
        Some((line, _)) if line.starts_with("GET /directory ") => {
            ("200 OK", authority.borrow_mut().directory(clock::unix()))
        }
        Some(_) => ("404 Not Found", "there are GET /directory and POST /relay\n".to_owned()),
        None => ("400 Bad Request", "no request that is understood\n".to_owned()),
    };
    let head =
        format!("HTTP/1.0 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
    tcp.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    tcp.shutdown().await
}

/// A request's first line and its body; `None` if it is none.
async fn request(tcp: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 2048]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let Ok(head) = String::from_utf8(bytes[..end].to_vec()) else { return Ok(None) };
            let mut lines = head.lines();
            let first = lines.next().unwrap_or_default().to_owned();
            let length = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
                if name.eq_ignore_ascii_case("content-length") {
                    value.trim().parse::<usize>().ok()
                } else {
                    None
                }
            });
            let whole = end + 4 + length.unwrap_or(0).min(MOST);
            if bytes.len() >= whole {
                return Ok(Some((first, bytes[end + 4..whole].to_vec())));
            }
        }
        if bytes.len() > MOST {
            return Ok(None);
        }
        let count = tcp.read(&mut buffer).await?;
        if count == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
}
