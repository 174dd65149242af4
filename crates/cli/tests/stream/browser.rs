//! Chromium without a window, spoken to over a pipe (DevTools protocol).

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_control::units::Span;
use tidegate_net::clock;

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    asked: u64,
    session: Value,
}

impl Browser {
    /// `None` without Chromium.
    pub fn open(url: &str, profile: &Path) -> Option<Browser> {
        Command::new("chromium").arg("--version").stderr(Stdio::null()).output().ok()?;
        // It reads commands from descriptor 3 and answers on 4.
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --remote-debugging-pipe \
                     --disable-background-networking --disable-component-update --disable-sync --mute-audio \
                     --autoplay-policy=no-user-gesture-required";
        let script =
            format!("exec chromium {flags} --user-data-dir='{}' 3<&0 4>&1 >/dev/null", profile.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut browser = Browser { child, to, from, asked: 0, session: Value::Null };
        let target = browser.ask("Target.createTarget", json!({ "url": url }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.ask("Target.attachToTarget", attach)["sessionId"].clone();
        Some(browser)
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut question = json!({ "id": self.asked, "method": method, "params": parameters });
        if self.session != Value::Null {
            question["sessionId"] = self.session.clone();
        }
        write!(self.to, "{question}\0").unwrap();
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).unwrap();
            let text = answer.strip_suffix(b"\0").expect("the browser is there");
            let mut answer: Value = serde_json::from_slice(text).unwrap();
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// The value of an expression on the page.
    pub fn read(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.ask("Runtime.evaluate", asked)["result"]["value"].take()
    }

    /// Waits until an expression is a number above that, for at most two minutes: the browser starts slowly beside other
    /// tests.
    pub fn until_above(&mut self, expression: &str, least: f64) -> f64 {
        let since = clock::now();
        loop {
            let value = self.read(expression).as_f64().unwrap_or(f64::NEG_INFINITY);
            if value > least {
                return value;
            }
            let page = self.read("document.body.innerText");
            assert!(clock::now().since(since) < Span::from_secs(120), "{expression} is {value}: {page}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until the page is as wide as a screen of that width, so that nothing sticks out. The picture is named `name`.
    pub fn fit(&mut self, width: u32, name: &str) {
        self.resize(width, name);
        let fits =
            format!("innerWidth == {width} && document.documentElement.scrollWidth <= {width} ? 1 : 0");
        self.until_above(&fits, 0.0);
    }

    /// The page as on a screen of that width. The picture, in base64, goes to the folder that TIDEGATE_PICTURES names.
    pub fn resize(&mut self, width: u32, name: &str) {
        let (height, mobile) = (if width < 500 { 844 } else { 900 }, width < 500);
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
        let Some(folder) = std::env::var_os("TIDEGATE_PICTURES") else { return };
        let shot = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.ask("Page.captureScreenshot", shot);
        std::fs::write(Path::new(&folder).join(name), picture["data"].as_str().unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
