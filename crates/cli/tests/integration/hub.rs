//! Downloads from a hub that a small server on loopback imitates, over real sockets.
#![cfg(feature = "hub")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use throng_hub::{HubError, HubSettings, locate};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The imitated hub's files, and the requests it received.
#[derive(Default)]
struct Shelf {
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
    /// Interrupts the next transfer of this file after this many bytes.
    break_off: Option<(String, usize)>,
    /// Ignores ranges and sends whole files.
    ignores_ranges: bool,
    /// Path, range and authorization of each request.
    asked: Vec<(String, String, String)>,
}

struct Hub {
    address: String,
    shelf: Arc<Mutex<Shelf>>,
}

impl Hub {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        let shelf = Arc::new(Mutex::new(Shelf { commit: COMMIT.into(), files, ..Shelf::default() }));
        let served = shelf.clone();
        // Ends with the test process; each connection has its own thread, since clients keep connections open.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let served = served.clone();
                thread::spawn(move || serve(stream.unwrap(), &served));
            }
        });
        Self { address, shelf }
    }

    fn settings(&self, home: &Path) -> HubSettings {
        settings(&[("HF_ENDPOINT", &self.address), ("HF_HOME", home.to_str().unwrap())])
    }

    fn asked(&self) -> Vec<(String, String, String)> {
        std::mem::take(&mut self.shelf.lock().unwrap().asked)
    }
}

fn settings(variables: &[(&str, &str)]) -> HubSettings {
    let read = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
    HubSettings { progress: false, ..HubSettings::from_env(read) }
}

fn serve(stream: TcpStream, shelf: &Mutex<Shelf>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let path = head[0].split(' ').nth(1).unwrap().to_owned();
        let header = |name: &str| {
            let of_name = |line: &&String| line.to_lowercase().starts_with(&format!("{name}:"));
            head.iter().find(of_name).map(|line| line[name.len() + 1..].trim().to_owned()).unwrap_or_default()
        };
        let (range, authorization) = (header("range"), header("authorization"));
        let mut shelf = shelf.lock().unwrap();
        shelf.asked.push((path.clone(), range.clone(), authorization));
        if !answer(&stream, &mut shelf, &path, &range) {
            return;
        }
    }
}

/// Answers one request; `false` when the connection is to be closed.
fn answer(mut stream: &TcpStream, shelf: &mut Shelf, path: &str, range: &str) -> bool {
    let mut send = |status: &str, headers: &str, body: &[u8], n_sent: usize| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..n_sent])).is_ok()
            && n_sent == body.len()
    };
    if path.starts_with("/api/models/org/gated/") {
        return send("403 Forbidden", "", b"", 0);
    }
    if path == "/api/models/org/name/revision/main" || path == "/api/models/org/name/revision/v2" {
        let siblings: Vec<String> =
            shelf.files.keys().map(|name| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let body = format!(r#"{{"sha":"{}","siblings":[{}]}}"#, shelf.commit, siblings.join(","));
        return send("200 OK", "Content-Type: application/json\r\n", body.as_bytes(), body.len());
    }
    let file = path.strip_prefix(&format!("/org/name/resolve/{}/", shelf.commit));
    let Some((name, content)) = file.and_then(|file| shelf.files.get_key_value(file)) else {
        return send("404 Not Found", "", b"", 0);
    };
    // The entity tag depends on the content only, as on the hub.
    let etag = content
        .iter()
        .fold(content.len() as u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let common = format!("ETag: \"{etag:x}\"\r\nX-Repo-Commit: {}\r\n", shelf.commit);
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let first: usize = first.parse().unwrap();
    let end = last.parse::<usize>().map_or(content.len(), |last| last + 1).min(content.len());
    if first >= content.len() {
        return send("416 Range Not Satisfiable", "", b"", 0);
    }
    let is_probe = range == "bytes=0-0";
    let body = if shelf.ignores_ranges && !is_probe { &content[..] } else { &content[first..end] };
    let headers = format!("{common}Content-Range: bytes {first}-{}/{}\r\n", end - 1, content.len());
    let mut n_sent = body.len();
    if let Some((_, n)) = shelf.break_off.take_if(|(file, _)| file == name && !is_probe) {
        n_sent = n;
    }
    send("206 Partial Content", &headers, body, n_sent)
}

fn weights() -> Vec<u8> {
    (0..200_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

#[test]
fn all_shards_are_fetched_and_a_second_run_fetches_nothing() {
    let index = br#"{"weight_map":{"a":"s-1.safetensors","b":"s-2.safetensors"}}"#;
    let hub = Hub::start(&[
        ("README.md", b"#"),
        ("config.json", b"{\"x\":1}"),
        ("model.safetensors.index.json", index),
        ("other.safetensors", b"not needed"),
        ("s-1.safetensors", b"one"),
        ("s-2.safetensors", b"two"),
        ("tokenizer.json", b"{}"),
    ]);
    let home = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(home.path());
    settings.token = Some("secret".into());
    let folder = locate("org/name", &settings).unwrap();
    assert!(folder.starts_with(home.path().join("hub/models--org--name/snapshots").join(COMMIT)));
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected = [
        "config.json",
        "model.safetensors.index.json",
        "s-1.safetensors",
        "s-2.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(names, expected);
    assert_eq!(fs::read(folder.join("s-2.safetensors")).unwrap(), b"two");
    assert!(hub.asked().iter().all(|(_, _, authorization)| authorization == "Bearer secret"));

    assert_eq!(locate("org/name", &settings).unwrap(), folder);
    let asked: Vec<String> = hub.asked().into_iter().map(|(path, ..)| path).collect();
    assert_eq!(asked, ["/api/models/org/name/revision/main"]);

    // A new commit that changes one file: only that one is fetched, the others are linked.
    {
        let mut shelf = hub.shelf.lock().unwrap();
        shelf.commit = COMMIT.replace('0', "f");
        shelf.files.insert("config.json".into(), b"{\"x\":2}".to_vec());
    }
    let newer = locate("org/name", &settings).unwrap();
    assert_ne!(newer, folder);
    assert_eq!(fs::read(newer.join("config.json")).unwrap(), b"{\"x\":2}");
    assert_eq!(fs::read(newer.join("s-1.safetensors")).unwrap(), b"one");
    let fetched: Vec<_> = hub.asked().into_iter().filter(|(_, range, _)| range == "bytes=0-").collect();
    assert_eq!(fetched.len(), 1, "{fetched:?}");
}

#[test]
fn named_chat_templates_are_fetched_into_their_folder() {
    let template = "additional_chat_templates/tool_use.jinja";
    let hub = Hub::start(&[(template, b"{{ tools }}"), ("config.json", b"{}"), ("model.safetensors", b"w")]);
    let home = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(home.path());
    let folder = locate("org/name", &settings).unwrap();
    assert_eq!(fs::read(folder.join(template)).unwrap(), b"{{ tools }}");
    // From the cache alone, and in a commit that changes other files only.
    settings.offline = true;
    assert_eq!(locate("org/name", &settings).unwrap(), folder);
    settings.offline = false;
    hub.shelf.lock().unwrap().commit = COMMIT.replace('0', "f");
    let newer = locate("org/name", &settings).unwrap();
    assert_ne!(newer, folder);
    assert_eq!(fs::read(newer.join(template)).unwrap(), b"{{ tools }}");
}

/// Names of all files under a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            names.extend(names_in(&entry.path()).iter().map(|inner| format!("{name}/{inner}")));
        } else {
            names.push(name);
        }
    }
    names.sort();
    names
}

#[test]
fn an_encoder_comes_with_its_modules() {
    let modules =
        br#"[{"path":"","type":"T"},{"path":"1_Pooling","type":"P"},{"path":"2_Dense","type":"D"}]"#;
    let wanted: [(&str, &[u8]); 9] = [
        ("1_Pooling/config.json", b"{}"),
        ("2_Dense/config.json", b"{}"),
        ("2_Dense/model.safetensors", b"dense"),
        ("config.json", b"{}"),
        ("config_sentence_transformers.json", b"{}"),
        ("model.safetensors", b"weights"),
        ("modules.json", modules),
        ("sentence_bert_config.json", b"{}"),
        ("tokenizer.json", b"{}"),
    ];
    let others: [(&str, &[u8]); 3] =
        [("2_Dense/pytorch_model.bin", b"?"), ("3_Other/config.json", b"{}"), ("onnx/config.json", b"{}")];
    let hub = Hub::start(&[&wanted[..], &others[..]].concat());
    let home = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(home.path());
    let folder = locate("org/name", &settings).unwrap();
    assert_eq!(names_in(&folder), wanted.map(|(name, _)| name));
    settings.offline = true;
    assert_eq!(locate("org/name", &settings).unwrap(), folder);
}

#[test]
fn a_model_that_sees_comes_with_its_processor_and_a_gguf_with_its_encoder() {
    let hub = Hub::start(&[
        ("config.json", b"{}"),
        ("model.safetensors", b"weights"),
        ("preprocessor_config.json", b"{}"),
        ("video_preprocessor_config.json", b"{}"),
        ("m-Q4_0.gguf", b"gguf"),
        ("mmproj-m-F16.gguf", b"half"),
        ("mmproj-m-F32.gguf", b"full"),
    ]);
    let home = tempfile::tempdir().unwrap();
    let folder = locate("org/name", &hub.settings(home.path())).unwrap();
    assert_eq!(names_in(&folder), ["config.json", "model.safetensors", "preprocessor_config.json"]);
    let home = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(home.path());
    let model = locate("org/name:Q4_0", &settings).unwrap();
    assert!(model.ends_with("m-Q4_0.gguf"), "{}", model.display());
    assert_eq!(names_in(model.parent().unwrap()), ["m-Q4_0.gguf", "mmproj-m-F16.gguf"]);
    settings.offline = true;
    assert_eq!(locate("org/name:Q4_0", &settings).unwrap(), model);
}

#[test]
fn an_interrupted_transfer_is_resumed() {
    let hub = Hub::start(&[("model-Q8_0.gguf", &weights())]);
    let home = tempfile::tempdir().unwrap();
    hub.shelf.lock().unwrap().break_off = Some(("model-Q8_0.gguf".into(), 70_000));
    let path = locate("org/name", &hub.settings(home.path())).unwrap();
    assert_eq!(fs::read(&path).unwrap(), weights());
    let ranges: Vec<String> = hub.asked().into_iter().map(|(_, range, _)| range).collect();
    let resumed = ranges
        .iter()
        .filter_map(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
        .next_back()
        .unwrap();
    assert!(resumed.parse::<usize>().unwrap() > 0, "{ranges:?}");
}

#[test]
fn a_complete_partial_file_or_a_server_without_ranges_does_not_corrupt_the_file() {
    let hub = Hub::start(&[("model.gguf", &weights())]);
    let home = tempfile::tempdir().unwrap();
    let settings = hub.settings(home.path());
    // The state after a process was killed between the last byte and the renaming.
    let path = locate("org/name", &settings).unwrap();
    let blob = path.canonicalize().unwrap();
    fs::rename(&blob, blob.with_extension("part")).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(locate("org/name", &settings).unwrap()).unwrap(), weights());

    // Half of the file as a partial file, then the whole file from the server.
    fs::remove_file(&path).unwrap();
    fs::remove_file(&blob).unwrap();
    fs::write(blob.with_extension("part"), &weights()[..100_000]).unwrap();
    hub.shelf.lock().unwrap().ignores_ranges = true;
    let error = locate("org/name", &settings).unwrap_err();
    assert!(matches!(error, HubError::WrongSize { found: 300_000, expected: 200_000, .. }), "{error}");
    assert_eq!(fs::read(locate("org/name", &settings).unwrap()).unwrap(), weights());
}

#[test]
fn one_gguf_of_several_must_be_named() {
    let hub = Hub::start(&[("a.gguf", b"aa"), ("q4/b.gguf", b"bbb"), ("README.md", b"#")]);
    let home = tempfile::tempdir().unwrap();
    let settings = hub.settings(home.path());
    let error = locate("org/name", &settings).unwrap_err();
    assert!(
        matches!(&error, HubError::ChooseFile { files, .. } if *files == ["a.gguf", "q4/b.gguf"]),
        "{error}"
    );
    let path = locate("org/name:q4/b.gguf", &settings).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"bbb");
    assert!(path.ends_with("q4/b.gguf"));
    let error = locate("org/name:c.gguf", &settings).unwrap_err();
    assert!(error.to_string().contains("a.gguf"), "{error}");
    assert_eq!(fs::read(locate("org/name@v2:a.gguf", &settings).unwrap()).unwrap(), b"aa");
}

#[test]
fn errors_name_what_was_tried() {
    let hub = Hub::start(&[("a.gguf", b"aa")]);
    let home = tempfile::tempdir().unwrap();
    let settings = hub.settings(home.path());
    let error = locate("org/missing", &settings).unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
    let error = locate("org/gated", &settings).unwrap_err();
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    hub.shelf.lock().unwrap().files.insert("../../evil.gguf".into(), vec![1]);
    let error = locate("org/name:a.gguf", &settings).unwrap_err();
    assert!(matches!(error, HubError::UnsafeName { .. }), "{error}");
    assert!(!home.path().join("hub/models--org--name").exists());
}

#[test]
fn without_a_network_the_cache_is_used_or_the_error_explains() {
    let hub = Hub::start(&[("a.gguf", b"aa"), ("b.gguf", b"bb")]);
    let home = tempfile::tempdir().unwrap();
    let online = hub.settings(home.path());
    // A port without a listener: that of a closed one.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}");
    let away = settings(&[("HF_ENDPOINT", &closed), ("HF_HOME", home.path().to_str().unwrap())]);
    let offline = HubSettings { offline: true, ..online.clone() };

    let error = locate("org/name:a.gguf", &away).unwrap_err().to_string();
    for told in ["org/name", &closed, home.path().to_str().unwrap(), "throng serve /path/to/model"] {
        assert!(error.contains(told), "{error}");
    }
    let path = locate("org/name:a.gguf", &online).unwrap();
    assert_eq!(locate("org/name:a.gguf", &away).unwrap(), path);
    assert_eq!(locate("org/name:a.gguf", &offline).unwrap(), path);
    assert_eq!(locate(&format!("org/name@{COMMIT}:a.gguf"), &offline).unwrap(), path);
    hub.asked();
    let error = locate("org/name:b.gguf", &offline).unwrap_err();
    assert!(matches!(error, HubError::NoSuchFile { .. } | HubError::NotCached { .. }), "{error}");
    assert!(hub.asked().is_empty(), "offline asks nobody");
}

#[test]
fn a_format_names_the_file_and_the_cache_is_listed_and_cleared() {
    let hub = Hub::start(&[
        ("mmproj-Q4_K_M.gguf", b"an encoder"),
        ("n-Q4_K_M.gguf", b"four"),
        ("n-Q8_0-00001-of-00002.gguf", b"eight"),
        ("n-Q8_0-00002-of-00002.gguf", b"more"),
    ]);
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(arguments).env("HF_ENDPOINT", &hub.address).env("HF_HOME", home.path());
        let output = command.env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for model in ["org/name:Q4_K_M", "org/name:q4_k_m", "hf.co/org/name:Q4_K_M"] {
        let (status, out, told) = run(&["pull", model]);
        assert_eq!(status, Some(0), "{model}: {told}");
        assert!(out.trim().ends_with("/n-Q4_K_M.gguf"), "{model}: {out}");
        assert_eq!(fs::read(out.trim()).unwrap(), b"four");
    }
    let (_, out, _) = run(&["pull", "org/name@v2:Q8_0"]);
    let first = Path::new(out.trim());
    assert_eq!(fs::read(first).unwrap(), b"eight");
    assert_eq!(fs::read(first.with_file_name("n-Q8_0-00002-of-00002.gguf")).unwrap(), b"more");
    let (status, out, told) = run(&["pull", "org/name"]);
    assert!(status == Some(0) && out.trim().ends_with("/n-Q4_K_M.gguf"), "{told}");
    let encoder = Path::new(out.trim()).with_file_name("mmproj-Q4_K_M.gguf");
    assert!(encoder.exists(), "the encoder of images comes with the model");
    let (status, _, told) = run(&["pull", "org/name:Q5_0"]);
    assert!(status == Some(1) && told.contains("n-Q4_K_M.gguf") && !told.contains("mmproj"), "{told}");

    let (_, out, _) = run(&["models", "--json"]);
    assert!(out.contains("\"name\":\"org/name\"") && out.contains("\"partial\":false"), "{out}");
    let (_, out, _) = run(&["models", "ls"]);
    let row = out.lines().find(|line| line.contains("org/name")).unwrap();
    assert!(row.contains(" B ") && row.contains("models--org--name"), "{out}");
    let (status, _, told) = run(&["models", "remove", "org/name", "org/other"]);
    assert!(status == Some(1) && told.contains("org/other is not in the cache"), "{told}");
    let (_, out, _) = run(&["models"]);
    assert!(out.contains("org/name"), "nothing is removed beside an error: {out}");
    let (status, out, _) = run(&["models", "remove", "org/name", "--json"]);
    assert!(status == Some(0) && out.starts_with('{') && out.contains("\"name\":\"org/name\""), "{out}");
    assert!(!home.path().join("hub/models--org--name").exists());
}
