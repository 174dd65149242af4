//! Tests: a client alters the packets that it forwards. No other client plays them, and it becomes a leaf.

use serde_json::Value;

use super::media::{TS, feed, made};
use super::roles::{Scratch, client, server};
use super::{audience, await_output, check, misses_few, number};
use crate::skipped;

fn plays_true_beside_a_forger(stream: &[u8], what: &str) -> Result<(), String> {
    let scratch = Scratch::new(&format!("forger-{what}"));
    // The server carries the stream once. The others hang on clients, most on the one with the largest uplink.
    let mut server = server("1 Mbit/s", "2 Mbit/s", "");
    let forger = client(&server, "12 Mbit/s", &format!("--forge {what}"));
    forger.until("in", |status| status["phase"] == "in");
    let children = audience(&server, &scratch, 3, "3 Mbit/s", "");
    server.until("an interior forger", |status| number(&status["viewers"][1], "children") >= 4);
    let feeding = feed(server.input(), stream.to_vec(), 10);
    server.until("a leaf after a forgery", |status| {
        // On a busy machine, most children may leave the forger before they meet a forgery. Then the complaint of the
        // last one lowers the forger's budget to nothing, and no child is left for a second complaint. The simulator's
        // tests require a relegation.
        let barred = number(status, "relegated") > 0 || number(&status["viewers"][1], "budget") == 0;
        let edges: &Vec<Value> = status["edges"].as_array().unwrap();
        let leaf = !edges.is_empty() && edges.iter().all(|edge| edge[1] != 1);
        number(status, "forged") > 0 && barred && leaf
    });
    let input = feeding.join().unwrap();
    await_output(&scratch, stream, 0..3);
    let (mut dropped, mut missed) = (0, 0);
    for (n, child) in children.into_iter().enumerate() {
        let status = child.end();
        let output = std::fs::read(scratch.path(&format!("{n}.ts"))).unwrap();
        // It compares the output with the stream, byte for byte.
        missed += check(stream, &output, &status);
        dropped += number(&status, "forged");
    }
    assert!(dropped > 0, "{what}: nobody met a forgery");
    assert!(number(&server.status(), "forged") > 0);
    drop(input);
    if missed * 100 <= 3 * stream.len() / TS {
        Ok(())
    } else {
        Err(format!("{what}: {missed} packets missed"))
    }
}

#[test]
fn children_of_a_forger_play_what_the_server_sent_and_it_becomes_a_leaf() {
    let Some(stream) = made(10) else { return skipped::skipped("a forger among real media", "ffmpeg") };
    misses_few(|| plays_true_beside_a_forger(&stream, "packets"));
    misses_few(|| plays_true_beside_a_forger(&stream, "manifests"));
}
