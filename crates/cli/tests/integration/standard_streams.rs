//! No state of standard output and standard error stops the server: it answers requests and health checks,
//! and shuts down gracefully.
#![cfg(unix)]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::process::{Server, end, read_until, throng};

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Checks that the server finishes a running stream after SIGTERM and ends with status 0.
fn assert_serves_and_drains(mut server: Server) {
    server.assert_serves();
    let body = r#"{"model": "throng-starter", "prompt": "Hi", "stream": true, "max_tokens": 64, "ignore_eos": true}"#;
    let mut stream = server.begin("POST", "/v1/completions", body);
    read_until(&mut stream, "data: {");
    server.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(server.end().code(), Some(0));
}

fn debugging(command: &mut Command) -> &mut Command {
    command.env("THRONG_LOG", "debug")
}

#[test]
fn a_full_disk_under_standard_error() {
    assert_serves_and_drains(Server::start(&[], |c| {
        debugging(c).stdout(Stdio::null()).stderr(full());
    }));
}

/// The metrics report how many lines were lost, where the log itself cannot.
#[test]
fn lost_lines_are_counted() {
    let mut server = Server::start(&[], |c| {
        debugging(c).stdout(Stdio::null()).stderr(full());
    });
    server.assert_serves();
    let metrics = server.ask("GET", "/metrics", "");
    let count = metrics.lines().find_map(|line| line.strip_prefix("throng_log_lines_dropped_total "));
    assert!(count.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
}

#[test]
fn a_full_disk_under_standard_output() {
    assert_serves_and_drains(Server::start(&[], |c| {
        debugging(c).stdout(full()).stderr(full());
    }));
}

#[test]
fn streams_that_are_closed_from_the_start() {
    let close = "exec \"$0\" \"$@\" >&- 2>&- <&-";
    assert_serves_and_drains(Server::start(&[], |c| {
        let mut shell = Command::new("sh");
        shell.args(["-c", close]).arg(c.get_program()).args(c.get_args());
        debugging(&mut shell);
        *c = shell;
    }));
}

#[test]
fn a_reader_that_has_closed_the_pipe() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    assert_serves_and_drains(Server::start(&[], |c| {
        debugging(c).stdout(writer.try_clone().unwrap()).stderr(writer);
    }));
}

/// Like `throng serve 2>&1 | head -1`.
#[test]
fn a_reader_that_closes_the_pipe_after_the_first_line() {
    let (reader, writer) = pipe().unwrap();
    let server = Server::start(&[], |c| {
        debugging(c).stdout(writer.try_clone().unwrap()).stderr(writer);
    });
    let mut line = String::new();
    BufReader::with_capacity(1, reader).read_line(&mut line).unwrap();
    assert!(!line.is_empty());
    assert_serves_and_drains(server);
}

/// Like a log collector that hangs: the pipe is full before the server writes its first line.
#[test]
fn a_reader_that_does_not_read() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    loop {
        match ours.write(&[b'.'; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    ours.set_nonblocking(false).unwrap();
    let stuck = || Stdio::from(OwnedFd::from(ours.try_clone().unwrap()));
    assert_serves_and_drains(Server::start(&[], |c| {
        debugging(c).stdout(stuck()).stderr(stuck());
    }));
    drop(theirs);
}

#[test]
fn a_non_blocking_descriptor_loses_no_lines() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut server = Server::start(&[], |c| {
        debugging(c).stdout(Stdio::null()).stderr(Stdio::from(OwnedFd::from(ours)));
    });
    server.assert_serves();
    server.signal("TERM");
    read_until(&mut BufReader::new(theirs), "running streams may finish");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_result_written_to_a_closed_pipe_is_not_an_error() {
    for arguments in [&["inspect", "--tensors"][..], &["generate", "--prompt", "Hi"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let ended = throng(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = ended.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let mut command = throng(&["inspect"]);
    let ended = command.stdout(full()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(told.starts_with("error: cannot write to standard output: "), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn an_error_that_cannot_be_printed_still_sets_the_exit_status() {
    let mut process = throng(&["inspect", "/nowhere"]).stdout(full()).stderr(full()).spawn().unwrap();
    assert_eq!(end(&mut process).code(), Some(1));
    let mut process = throng(&["serve", "--port", "none"]).stdout(full()).stderr(full()).spawn().unwrap();
    assert_eq!(end(&mut process).code(), Some(2));
}
