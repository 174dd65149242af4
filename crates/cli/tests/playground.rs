//! The playground in a browser: it simulates what the tool does.

use crate::stream::browser;

use crate::skipped;
use std::fs;
use std::path::Path;
use std::process::Command;

use browser::Browser;
use serde_json::Value;

/// Moves both sliders, as a hand does.
const DRAG: &str = "for (const [id, value] of [['load', 6], ['delay', 120]]) { \
                    const slider = document.getElementById(id); slider.value = value; \
                    slider.dispatchEvent(new Event('input')); }";

/// The latest question that was answered: one at the beginning, one after each change.
const ANSWERS: &str = "Number(document.documentElement.dataset.answers || 0)";

/// What `tidegate run` says of the page's scenario is what the page says.
fn compare(browser: &mut Browser, folder: &Path) {
    let scenario = browser.read("document.getElementById('scenario').textContent");
    let file = folder.join("scenario.toml");
    fs::write(&file, scenario.as_str().expect("a text")).expect("a file");
    let out = folder.join("out");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("run")
        .args([&file, Path::new("--json"), Path::new("--force"), Path::new("--out"), &out])
        .output()
        .expect("the tool");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let systems = document["systems"].as_object().expect("systems");
    let digest = &systems.values().next().expect("one")["digest"];
    assert_eq!(*digest, browser.read("document.documentElement.dataset.digest"));
}

#[test]
fn the_page_and_the_tool_simulate_alike() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/playground.html");
    let Ok(about) = fs::metadata(&page) else {
        return skipped::skipped("the playground in a browser", "make playground");
    };
    assert!(about.len() < 3_000_000, "the page has {} bytes", about.len());
    let folder = std::env::temp_dir().join(format!("tidegate-playground-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let url = format!("file://{}", page.canonicalize().expect("it is there").display());
    let Some(mut browser) = Browser::open(&url, &folder.join("profile")) else {
        return skipped::skipped("the playground in a browser", "chromium");
    };
    browser.until_above(ANSWERS, 0.0);
    browser.resize(1280, "playground-1280.png");
    browser.until_above("Number(document.getElementById('state').textContent.split(' ')[0])", 0.5);
    browser.read(DRAG);
    browser.until_above(ANSWERS, 2.0);
    let text = browser.read("document.getElementById('scenario').textContent");
    assert!(
        text.as_str().is_some_and(|text| text.contains("circuit6") && text.contains("\"119 ms\"")),
        "{text}"
    );
    compare(&mut browser, &folder);
    browser.read(
        "const network = document.getElementById('network'); network.value = 'ten relays'; \
         network.dispatchEvent(new Event('change'))",
    );
    browser.resize(390, "playground-390.png");
    browser.until_above(ANSWERS, 3.0);
    compare(&mut browser, &folder);
    assert_eq!(browser.read("document.documentElement.scrollWidth"), 390, "nothing is cut off on a phone");
    drop(browser);
    let _ = fs::remove_dir_all(&folder);
}
