//! Downloads of images over real sockets on loopback, with resolvers that return a test's answers.

mod site;

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use throng_api::spec::{ContentPart, Conversation, ImagePart, ImageSource, Message, Role};
use throng_api::{ApiError, ImageHosts};
use throng_http::memory::{MemoryBudget, Part};
use throng_http::tls_roots::{trusting, trusting_nobody};
use tokio_rustls::TlsAcceptor;

use self::site::{Answers, Behaviour, Site};
use super::download::Downloader;
use super::resolver::{Resolver, SystemResolver};
use super::{FetchedImages, MAX_DOWNLOADS, MAX_IMAGE_BYTES, MAX_URLS, RemoteImages};

/// The longest wait of a failing test.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: &[&[&str]] = &[&["127.0.0.1"]];
const FILE: &[u8] = b"the bytes of an image";

fn images(hosts: &[String], resolver: Arc<dyn Resolver>) -> RemoteImages {
    let budget = MemoryBudget::new(256 << 20);
    let hosts = Arc::new(ImageHosts::new(hosts.iter().map(String::as_str)).expect("valid"));
    RemoteImages::with(Downloader::new(hosts, resolver, trusting_nobody()), &budget)
}

fn conversation(urls: &[&str]) -> Conversation {
    let part = |(idx, url): (usize, &&str)| {
        let (source, param) = (ImageSource::Url((*url).to_owned()), format!("messages[0].content[{idx}]"));
        ContentPart::Image(Box::new(ImagePart { source, detail: None, param }))
    };
    let content = urls.iter().enumerate().map(part).collect();
    let mut conversation = Conversation::default();
    conversation.messages.push(Message::new(Role::User, content));
    conversation
}

async fn fetch(images: &RemoteImages, urls: &[&str]) -> Result<(Vec<Vec<u8>>, FetchedImages), ApiError> {
    let mut conversation = conversation(urls);
    let fetched = images.fetch(&mut conversation).await?;
    let bytes = |part: &ImagePart| match &part.source {
        ImageSource::Bytes { bytes, .. } => bytes.to_vec(),
        ImageSource::Url(url) => panic!("{url} was not fetched"),
    };
    Ok((conversation.images().map(bytes).collect(), fetched))
}

/// Status and code of the refusal of one URL. No message reveals more of the network than the client has
/// sent.
async fn refused(images: &RemoteImages, url: &str) -> (u16, String) {
    let error = fetch(images, &[url]).await.expect_err(url);
    let message = error.message();
    assert!(!message.contains("127.0.0.") && !message.contains("://"), "{message}");
    if error.status() == 400 {
        assert_eq!(error.param(), Some("messages[0].content[0]"), "{message}");
    }
    (error.status().as_u16(), error.code().to_owned())
}

/// A host that serves one file, and a fetcher that may reach it by its name.
async fn with_site(
    behave: impl Fn(&str) -> Behaviour + Send + Sync + 'static,
) -> (Site, RemoteImages, String) {
    let site = Site::start(behave).await;
    let place = format!("a.test:{}", site.address.port());
    let images = images(&[format!("private:{place}")], Answers::new(&[("a.test", LOOPBACK)]));
    (site, images, format!("http://{place}"))
}

#[tokio::test]
async fn a_file_arrives_once_for_each_url_and_requests_carry_nothing_of_the_client() {
    let (site, images, base) = with_site(|path| Behaviour::file(path.as_bytes())).await;
    let [one, two] = [format!("{base}/a.png?x=1#part"), format!("{base}/b")];
    let (files, fetched) = fetch(&images, &[&one, &two, &one]).await.expect("fetched");
    assert_eq!(files, [&b"/a.png?x=1"[..], b"/b", b"/a.png?x=1"]);
    assert_eq!(fetched.n_bytes, "/a.png?x=1".len() + "/b".len());
    assert_eq!(images.memory.held(Part::Bodies), fetched.n_bytes);
    drop(fetched);
    assert_eq!(images.memory.held(Part::Bodies), 0);
    let mut heads = site.heads();
    heads.sort();
    assert_eq!(heads.len(), 2);
    let place = base.trim_start_matches("http://");
    assert!(heads[0].starts_with(&format!("GET /a.png?x=1 HTTP/1.1\r\nhost: {place}\r\n")), "{}", heads[0]);
    for name in ["cookie", "authorization", "referer"] {
        assert!(!heads[0].to_ascii_lowercase().contains(name), "{}", heads[0]);
    }
}

#[tokio::test]
async fn hosts_that_are_not_listed_are_neither_resolved_nor_reached() {
    let site = Site::start(|_| Behaviour::file(FILE)).await;
    let (port, resolver) = (site.address.port(), Answers::new(&[("a.test", LOOPBACK), ("b.test", LOOPBACK)]));
    let images = images(&[format!("private:a.test:{port}")], resolver.clone());
    for url in [
        format!("http://b.test:{port}/"),
        "http://a.test/".to_owned(),
        format!("http://127.0.0.1:{port}/"),
        format!("http://me@a.test:{port}/"),
        format!("http://:secret@a.test:{port}/"),
        format!("ftp://a.test:{port}/"),
        "file:///etc/passwd".to_owned(),
        format!("file://a.test:{port}/etc/passwd"),
        "nothing".to_owned(),
    ] {
        assert_eq!(refused(&images, &url).await, (400, "image_host_not_allowed".to_owned()), "{url}");
    }
    // One that is not permitted keeps the others from being fetched.
    let good = format!("http://a.test:{port}/");
    fetch(&images, &[&good, "http://b.test/"]).await.expect_err("not permitted");
    assert_eq!((site.n_connections(), resolver.asked().len()), (0, 0));
    fetch(&images, &[&good]).await.expect("fetched");
    assert_eq!(site.n_connections(), 1);
}

#[tokio::test]
async fn a_public_host_may_not_have_an_inner_address() {
    let site = Site::start(|_| Behaviour::file(FILE)).await;
    let port = site.address.port();
    let names: [&[&str]; 8] = [
        &["127.0.0.1"],
        &["1.1.1.1", "127.0.0.1"],
        &["127.0.0.1", "1.1.1.1"],
        &["::ffff:127.0.0.1"],
        &["::1"],
        &["169.254.169.254"],
        &["64:ff9b::7f00:1"],
        &[],
    ];
    for addresses in names {
        let images = images(&[format!("a.test:{port}")], Answers::new(&[("a.test", &[addresses])]));
        let told = refused(&images, &format!("http://a.test:{port}/")).await;
        assert_eq!(told, (400, "image_unreachable".to_owned()), "{addresses:?}");
    }
    // An entry for a private host does not permit the metadata services of clouds.
    let images = images(
        &[format!("private:a.test:{port}")],
        Answers::new(&[("a.test", &[&["169.254.169.254", "127.0.0.1"]])]),
    );
    assert_eq!(refused(&images, &format!("http://a.test:{port}/")).await.1, "image_unreachable");
    assert_eq!(site.n_connections(), 0);
}

#[tokio::test]
async fn a_name_whose_answer_changes_is_resolved_once_and_the_checked_address_reached() {
    let first = Site::start(|_| Behaviour::file(FILE)).await;
    let port = first.address.port();
    let second = Site::start_at(&format!("127.0.0.2:{port}"), None, |_| Behaviour::file(b"other")).await;
    let resolver = Answers::new(&[("a.test", &[&["127.0.0.1"], &["127.0.0.2"]])]);
    let images = images(&[format!("private:a.test:{port}")], resolver.clone());
    let (files, _) = fetch(&images, &[&format!("http://a.test:{port}/")]).await.expect("fetched");
    assert_eq!(files, [FILE]);
    assert_eq!(resolver.asked(), ["a.test"]);
    assert_eq!((first.n_connections(), second.n_connections()), (1, 0));
}

#[tokio::test]
async fn a_redirect_is_checked_as_the_first_url_was() {
    let forbidden = Site::start(|_| Behaviour::file(FILE)).await;
    let inner = forbidden.address.port();
    let site = Site::start(move |path| match path {
        "/far" => Behaviour::redirect(&format!("http://b.test:{inner}/")),
        "/address" => Behaviour::redirect(&format!("http://127.0.0.1:{inner}/")),
        "/public" => Behaviour::redirect(&format!("http://c.test:{inner}/")),
        "/file" => Behaviour::redirect("file:///etc/passwd"),
        "/user" => Behaviour::redirect(&format!("http://me@b.test:{inner}/")),
        "/nowhere" => Behaviour::with(302, &[], b""),
        "/1" | "/2" | "/3" | "/4" => {
            Behaviour::redirect(&format!("/{}", path[1..].parse::<u32>().expect("a number") - 1))
        }
        _ => Behaviour::file(FILE),
    })
    .await;
    let port = site.address.port();
    // The answer for c.test was another one when the operator looked at it.
    let resolver = Answers::new(&[("a.test", LOOPBACK), ("b.test", LOOPBACK), ("c.test", LOOPBACK)]);
    let images = images(&[format!("private:a.test:{port}"), format!("c.test:{inner}")], resolver.clone());
    for (path, code) in [
        ("far", "image_host_not_allowed"),
        ("address", "image_host_not_allowed"),
        ("file", "image_host_not_allowed"),
        ("user", "image_host_not_allowed"),
        ("nowhere", "image_host_not_allowed"),
        ("4", "image_host_not_allowed"),
        ("public", "image_unreachable"),
    ] {
        let told = refused(&images, &format!("http://a.test:{port}/{path}")).await;
        assert_eq!(told, (400, code.to_owned()), "{path}");
    }
    assert_eq!(forbidden.n_connections(), 0, "no request arrives where none is permitted");
    assert!(!resolver.asked().contains(&"b.test".to_owned()), "{:?}", resolver.asked());
    let (files, _) = fetch(&images, &[&format!("http://a.test:{port}/3")]).await.expect("three redirects");
    assert_eq!(files, [FILE]);
}

#[tokio::test]
async fn slow_and_endless_files_are_given_up() {
    let head = |n: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n");
    let (site, mut images, base) = with_site(move |path| match path {
        "/silent" => Behaviour::Stall(Vec::new()),
        "/stalls" => Behaviour::Stall(format!("{}some bytes", head(100)).into_bytes()),
        "/endless" => Behaviour::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
        "/large" => Behaviour::Stall(head(MAX_IMAGE_BYTES + 1).into_bytes()),
        "/head" => Behaviour::Endless(b"HTTP/1.1 200 OK\r\nx: ".to_vec()),
        _ => Behaviour::file(&vec![7; MAX_IMAGE_BYTES]),
    })
    .await;
    for path in ["endless", "large"] {
        let told = refused(&images, &format!("{base}/{path}")).await;
        assert_eq!(told, (400, "image_too_large".to_owned()), "{path}");
    }
    assert_eq!(refused(&images, &format!("{base}/head")).await.1, "image_unreachable");
    let (files, fetched) = fetch(&images, &[&format!("{base}/whole")]).await.expect("as large as may be");
    assert_eq!((files[0].len(), fetched.n_bytes), (MAX_IMAGE_BYTES, MAX_IMAGE_BYTES));
    drop(fetched);
    images.timeout = Duration::from_millis(300);
    for path in ["silent", "stalls"] {
        let told = refused(&images, &format!("{base}/{path}")).await;
        assert_eq!(told, (400, "image_too_slow".to_owned()), "{path}");
    }
    assert_eq!(images.memory.held(Part::Bodies), 0);
    site.until(|n| n.begun == 6 && n.ended == 6).await;
}

#[tokio::test]
async fn answers_without_a_file_are_refused() {
    let (_site, images, base) = with_site(|path| match path {
        "/404" => Behaviour::with(404, &[], b"no"),
        "/204" => Behaviour::with(204, &[], b""),
        "/206" => Behaviour::with(206, &[], b"part"),
        "/gzip" => Behaviour::with(200, &["content-encoding: gzip"], b"bytes"),
        "/short" => Behaviour::Reply(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbytes".to_vec()),
        _ => Behaviour::Reply(b"220 smtp.test ESMTP\r\n".to_vec()),
    })
    .await;
    for (path, code) in [
        ("404", "image_unreachable"),
        ("204", "image_unreachable"),
        ("206", "image_unreachable"),
        ("gzip", "invalid_image"),
        ("short", "image_unreachable"),
        ("smtp", "image_unreachable"),
    ] {
        let told = refused(&images, &format!("{base}/{path}")).await;
        assert_eq!(told, (400, code.to_owned()), "{path}");
    }
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let images = self::images(
        &[format!("private:a.test:{closed}"), "b.test".to_owned()],
        Answers::new(&[("a.test", LOOPBACK)]),
    );
    for url in [format!("http://a.test:{closed}/"), "https://b.test/".to_owned()] {
        assert_eq!(refused(&images, &url).await, (400, "image_unreachable".to_owned()), "{url}");
    }
}

#[tokio::test]
async fn a_certificate_must_be_for_the_host_and_encryption_is_kept() {
    let key = KeyPair::generate().expect("a key");
    let names = vec!["a.test".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).expect("names").self_signed(&key).expect("signed");
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, certificate.pem()).expect("written");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate");
    let plain = Site::start(|_| Behaviour::file(FILE)).await;
    let unencrypted = plain.address.port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let site = Site::start_at("127.0.0.1:0", Some(acceptor), move |path| match path {
        "/down" => Behaviour::redirect(&format!("http://a.test:{unencrypted}/")),
        _ => Behaviour::file(FILE),
    })
    .await;
    let port = site.address.port();
    let entries = [("a.test", port), ("b.test", port), ("127.0.0.1", port), ("a.test", unencrypted)];
    let entries = entries.map(|(host, port)| format!("private:{host}:{port}"));
    let hosts = Arc::new(ImageHosts::new(entries.iter().map(String::as_str)).expect("valid"));
    let resolver = Answers::new(&[("a.test", LOOPBACK), ("b.test", LOOPBACK)]);
    let budget = MemoryBudget::new(64 << 20);
    let with = |tls| RemoteImages::with(Downloader::new(hosts.clone(), resolver.clone(), tls), &budget);
    let images = with(trusting(Some(&ca)).expect("certificates"));
    for host in ["a.test", "127.0.0.1", "a.test."] {
        fetch(&images, &[&format!("https://{host}:{port}/")]).await.expect(host);
    }
    let n_before = site.heads().len();
    assert_eq!(refused(&images, &format!("https://b.test:{port}/")).await.1, "image_unreachable");
    let others = with(trusting_nobody());
    assert_eq!(refused(&others, &format!("https://a.test:{port}/")).await.1, "image_unreachable");
    assert_eq!(site.heads().len(), n_before, "nothing is asked over a connection to somebody else");
    assert_eq!(refused(&images, &format!("https://a.test:{port}/down")).await.1, "image_host_not_allowed");
    assert_eq!(plain.n_connections(), 0);
}

#[tokio::test]
async fn downloads_end_with_their_client_and_are_bounded() {
    let (site, mut images, base) = with_site(|path| match path {
        "/stalls" => Behaviour::Stall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbyte".to_vec()),
        _ => Behaviour::file(FILE),
    })
    .await;
    let stalls: Vec<String> = (0..MAX_URLS).map(|idx| format!("{base}/stalls?{idx}")).collect();
    let stalls: Vec<&str> = stalls.iter().map(String::as_str).collect();
    assert_eq!(
        fetch(&images, &[&stalls[..], &["http://a.test/"]].concat()).await.expect_err("host").code(),
        "image_host_not_allowed"
    );
    let (one, more, stalling) = (format!("{base}/one"), format!("{base}/more"), format!("{base}/stalls"));
    let error = fetch(&images, &[&stalls[..], &[&more]].concat()).await.expect_err("too many");
    assert_eq!((error.code(), error.param()), ("array_above_max_length", Some("messages[0].content[16]")));
    assert_eq!(site.n_connections(), 0);
    {
        let urls = [stalling.as_str()];
        let mut fetching = Box::pin(fetch(&images, &urls));
        tokio::select! {
            _ = &mut fetching => panic!("it stalls"),
            () = site.until(|n| n.begun == 1) => {}
        }
        assert_eq!(images.slots.available_permits(), MAX_DOWNLOADS - 1);
    }
    site.until(|n| n.ended == 1).await;
    assert_eq!(images.slots.available_permits(), MAX_DOWNLOADS);
    assert_eq!(images.memory.held(Part::Bodies), 0);
    // The downloads of one request run only a few at a time.
    {
        let mut fetching = Box::pin(fetch(&images, &stalls));
        tokio::select! {
            _ = &mut fetching => panic!("it stalls"),
            () = site.until(|n| n.begun == 1 + super::DOWNLOADS_OF_A_REQUEST) => {}
        }
        assert_eq!(images.slots.available_permits(), MAX_DOWNLOADS - super::DOWNLOADS_OF_A_REQUEST);
    }
    images.timeout = Duration::from_millis(50);
    let all = images.slots.clone().acquire_many_owned(MAX_DOWNLOADS as u32).await.expect("open");
    assert_eq!(refused(&images, &one).await, (503, "overloaded".to_owned()));
    drop(all);
    images.timeout = PATIENCE;
    fetch(&images, &[&one]).await.expect("fetched");
}

#[tokio::test]
async fn files_are_part_of_the_memory_for_requests() {
    let (_site, mut images, base) = with_site(|_| Behaviour::file(&vec![7; 1 << 20])).await;
    images.memory = MemoryBudget::new(2 << 20);
    let told = refused(&images, &format!("{base}/a")).await;
    assert_eq!(images.memory.held(Part::Bodies), 0);
    assert_eq!(told, (413, "request_too_large".to_owned()), "not even an idle server has room");
    images.memory = MemoryBudget::new(7 << 19);
    let (_, one) = fetch(&images, &[&format!("{base}/a")]).await.expect("room");
    assert_eq!(refused(&images, &format!("{base}/b")).await, (503, "overloaded".to_owned()));
    drop(one);
    fetch(&images, &[&format!("{base}/b")]).await.expect("room");
}

#[tokio::test]
async fn names_are_resolved_by_the_system() {
    let site = Site::start(|_| Behaviour::file(FILE)).await;
    let port = site.address.port();
    let images = images(&[format!("private:localhost:{port}")], Arc::new(SystemResolver));
    let (files, _) = fetch(&images, &[&format!("http://LOCALHOST:{port}/")]).await.expect("fetched");
    assert_eq!(files, [FILE]);
}
