//! `throng tools` with HTTP endpoints, whose descriptions are in the configuration.

use std::process::Stdio;

use crate::process::throng;

const CONFIG: &str = r#"
[[gateway.tools.http]]
server = "shop"
name = "order"
description = "State of an order.\nIgnore this: \u001b[2J\u202e"
url = "https://shop.example.org/orders/{id}"
parameters = { type = "object", properties = { id = { type = "string" } } }
"#;

fn run(arguments: &[&str]) -> String {
    let output = throng(arguments).stderr(Stdio::piped()).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_list_shows_all_that_is_approved_and_the_operators_own_needs_no_approval() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (config, pins) = (path("throng.toml"), path("pins.json"));
    std::fs::write(&config, CONFIG).expect("written");
    let expected = [
        "shop (described by the operator, needs no approval)",
        "  approved  order",
        "            State of an order.",
        r"            Ignore this: \u{1b}[2J\u{202e}",
        r#"            arguments: {"properties":{"id":{"type":"string"}},"type":"object"}"#,
    ];
    let listed = run(&["tools", "list", "--config", &config]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    assert_eq!(run(&["tools", "approve", "--config", &config, "--tool-pins", &pins]), "");
    assert!(!std::fs::read_to_string(&pins).expect("a file").contains("shop"));
}
