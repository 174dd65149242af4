//! What roles tell their operators.

use super::roles::{Overlay, ask, greeter};

#[test]
fn a_client_says_why_requests_fail() {
    let mut overlay = Overlay::of_three("unnamed");
    let directory = overlay.listening().remove(0);
    let key: serde_json::Value = serde_json::from_str(&overlay.lines()[0]).unwrap();
    let role = ["client", "--socks", "127.0.0.1:0", "--directory", &directory, "--path", "a,nosuch,c"];
    let key = ["--allow-private-addresses", "--authority", key["authority"].as_str().unwrap()];
    overlay.start(&[&role[..], &key].concat(), "directory");
    let client = overlay.listening().pop().unwrap();
    assert_ne!(ask(&client, "localhost", greeter()).0, 0);
    let said = "\"cause\":\"the directory lists no relay named `nosuch`\",\"event\":\"request failed\"";
    for _ in 0..100 {
        if overlay.lines().iter().any(|line| line.contains(said) && line.contains("warn")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{:#?}", overlay.lines());
}
