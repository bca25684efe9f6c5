//! A browser to be driven: Chromium by ChromeDriver, in the few words of the WebDriver protocol that the page's tests need.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything that is waited for may take, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// WebDriver's name for a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window. Gone when it is dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser whose profile is in `folder`.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).map_err(text)?.port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("chromedriver cannot be started: {error}"))?;
        let mut browser = Self { driver, port, session: String::new() };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > PATIENCE {
                return Err("chromedriver does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        // Without a sandbox, which root may not have; and without what it does in the background.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            &profile,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": args } } } });
        let made = browser.post("/session", &wanted)?;
        browser.session = made["sessionId"].as_str().ok_or_else(|| format!("no session: {made}"))?.to_owned();
        Ok(browser)
    }

    pub(crate) fn go(&self, url: &str) -> Result<(), String> {
        self.command("url", &json!({ "url": url })).map(drop)
    }

    /// The size of the window.
    pub(crate) fn resize(&self, width: u32, height: u32) -> Result<(), String> {
        self.command("window/rect", &json!({ "width": width, "height": height })).map(drop)
    }

    /// Lets pages believe that people prefer dark ones.
    pub(crate) fn prefer(&self, scheme: &str) -> Result<(), String> {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let asked = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.command("goog/cdp/execute", &asked).map(drop)
    }

    /// What a function of JavaScript returns.
    pub(crate) fn run(&self, script: &str) -> Result<Value, String> {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression of JavaScript is true.
    pub(crate) fn until(&self, expression: &str) -> Result<(), String> {
        let began = Instant::now();
        loop {
            if self.run(&format!("return Boolean({expression})"))? == true {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let text = self.run("return document.body.innerText")?;
                return Err(format!(
                    "never true: {expression}; the page says:\n{}",
                    text.as_str().unwrap_or_default()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks, as a person would: what is covered or hidden cannot be clicked.
    pub(crate) fn click(&self, selector: &str) -> Result<(), String> {
        let element = self.find(selector)?;
        self.command(&format!("element/{element}/click"), &json!({})).map(drop)
    }

    /// Types into an element.
    pub(crate) fn write(&self, selector: &str, text: &str) -> Result<(), String> {
        let element = self.find(selector)?;
        self.command(&format!("element/{element}/value"), &json!({ "text": text })).map(drop)
    }

    /// Presses keys, for whatever has the focus.
    pub(crate) fn press(&self, keys: &str) -> Result<(), String> {
        let presses = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        });
        let presses: Vec<_> = presses.collect();
        let asked = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": presses }] });
        self.command("actions", &asked).map(drop)
    }

    fn find(&self, selector: &str) -> Result<String, String> {
        let found = self.command("element", &json!({ "using": "css selector", "value": selector }))?;
        let element = found[ELEMENT].as_str().ok_or_else(|| format!("{selector} is not there"))?;
        Ok(element.to_owned())
    }

    /// A picture of the window, as PNG in base64.
    pub(crate) fn screenshot(&self) -> Result<String, String> {
        let path = format!("/session/{}/screenshot", self.session);
        Ok(self.exchange("GET", &path, "")?.as_str().unwrap_or_default().to_owned())
    }

    fn command(&self, what: &str, body: &Value) -> Result<Value, String> {
        self.post(&format!("/session/{}/{what}", self.session), body)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.exchange("POST", path, &body.to_string())
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let text = |error: std::io::Error| format!("the browser does not answer: {error}");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(text)?;
        stream.set_read_timeout(Some(3 * PATIENCE)).map_err(text)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .map_err(text)?;
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).map_err(text)? > 2 {
            if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = said.trim().parse().map_err(|_| format!("nonsense: {line}"))?;
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).map_err(text)?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        match answer["value"]["error"].as_str() {
            Some(error) => {
                Err(format!("{error}: {}", answer["value"]["message"].as_str().unwrap_or_default()))
            }
            None => Ok(answer["value"].clone()),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.exchange("DELETE", &format!("/session/{}", self.session), "");
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
