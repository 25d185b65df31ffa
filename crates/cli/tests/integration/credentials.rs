//! A service gets keys and certificates as systemd passes them, in files of the folder
//! `CREDENTIALS_DIRECTORY`.
#![cfg(unix)]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::process::{Server, end, throng};

fn start(folder: &Path) -> Server {
    let mut server = Server::start(&["--kv-cache-memory", "48MiB"], |command| {
        command.env("CREDENTIALS_DIRECTORY", folder).stdout(Stdio::null()).stderr(Stdio::null());
    });
    server.ready();
    server
}

/// The status of a request with a key.
fn status(server: &mut Server, key: Option<&str>, path: &str) -> String {
    let mut stream = server.connect();
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}\r\n");
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn keys_are_read_from_credentials() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("throng_api-keys"), "# of the applications\nfirst-key\n\n second-key \n")
        .unwrap();
    fs::write(folder.path().join("throng_admin-key"), "operator-key\n").unwrap();
    fs::write(folder.path().join("throng_README"), "not a credential").unwrap();
    let mut server = start(folder.path());
    for (key, expected) in
        [(None, "401"), (Some("first-key"), "200"), (Some("second-key"), "200"), (Some("of"), "401")]
    {
        assert_eq!(status(&mut server, key, "/v1/models"), expected, "{key:?}");
    }
    assert_eq!(status(&mut server, Some("operator-key"), "/metrics"), "200");
    assert_eq!(status(&mut server, Some("first-key"), "/metrics"), "403");
}

#[test]
fn wrong_credentials_end_the_process_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let told = |files: &[(&str, &str)]| {
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut command = throng(&["serve", "--port", "0"]);
        let mut process = command
            .env("CREDENTIALS_DIRECTORY", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(end(&mut process).code(), Some(2), "{files:?}");
        let mut told = String::new();
        process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        files.iter().for_each(|(name, _)| fs::remove_file(folder.path().join(name)).unwrap());
        told
    };
    assert!(told(&[("throng_certificate.pem", "x")]).contains("one is there and the other is not"));
    assert!(told(&[("throng_admin-key", "\n")]).contains("the credential admin-key"));
}
