//! Encrypted connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evermap_server::cache::{Cache, StoreMode, StoreRequest};
use evermap_server::server::{ClientCertificates, Security, Tls, TlsSettings, TlsVersion};
use evermap_server::{Config, Listener, ModelCache, Server};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;

type Client = StreamOwned<ClientConnection, TcpStream>;

/// An authority that issues certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, in PEM format.
struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self) -> Issued {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["cache.test".into()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        roots
    }
}

/// The files of a server.
struct Files {
    dir: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Files { dir: tempfile::tempdir().unwrap(), authority: Authority::new() };
        files.install(&files.authority.issue());
        files.write("ca.pem", &files.authority.pem);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn install(&self, issued: &Issued) {
        self.write("cert.pem", &issued.certificate);
        self.write("key.pem", &issued.key);
    }

    fn settings(&self) -> TlsSettings {
        TlsSettings {
            certificates: self.path("cert.pem"),
            key: self.path("key.pem"),
            client_ca: None,
            client_certificates: ClientCertificates::Ignored,
            min_version: TlsVersion::V1_2,
            session_cache: false,
        }
    }

    /// Starts a server with one listener, whose connections are encrypted.
    fn serve(
        &self,
        adjust: impl FnOnce(&mut Config, &mut TlsSettings),
    ) -> (Server, Arc<ModelCache>) {
        let mut config = Config { threads: 2, ..Config::default() };
        let mut settings = self.settings();
        adjust(&mut config, &mut settings);
        config.tls = Some(Tls::load(settings).unwrap());
        let listener = listener(Security::Tls { clients: None });
        let cache = Arc::new(ModelCache::new(1_800_000_000));
        (Server::start_on(vec![listener], cache.clone(), config).unwrap(), cache)
    }

    fn client(&self, server: &Server) -> Client {
        connect(server, client_config(self.authority.roots(), None, &[&TLS13, &TLS12]))
    }
}

fn listener(security: Security) -> Listener {
    Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap().with_security(security)
}

fn client_config(
    roots: RootCertStore,
    identity: Option<&Issued>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes());
            builder.with_client_auth_cert(vec![certificate.unwrap()], key.unwrap()).unwrap()
        }
    }
}

fn connect(server: &Server, config: ClientConfig) -> Client {
    let socket = TcpStream::connect(server.local_addr()).unwrap();
    socket.set_nodelay(true).unwrap();
    let name = ServerName::try_from("cache.test").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
}

fn try_ask(stream: &mut impl ReadWrite, request: &[u8], reply: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut read = vec![0; reply.len()];
    stream.read_exact(&mut read)?;
    assert!(read == reply, "{}", read[..read.len().min(200)].escape_ascii());
    Ok(())
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[track_caller]
fn ask(stream: &mut impl ReadWrite, request: impl AsRef<[u8]>, reply: impl AsRef<[u8]>) {
    try_ask(stream, request.as_ref(), reply.as_ref()).unwrap();
}

fn stat(stream: &mut impl ReadWrite, command: &str, name: &str) -> String {
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut piece = [0; 4096];
        let len = stream.read(&mut piece).unwrap();
        text.extend_from_slice(&piece[..len]);
    }
    let (text, prefix) = (String::from_utf8(text).unwrap(), format!("STAT {name} "));
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// Returns `true` if the server ends the connection before it replies.
fn is_refused(mut client: Client) -> bool {
    match try_ask(&mut client, b"get a\r\n", b"END\r\n") {
        Ok(()) => false,
        // An alert, or the end of the connection.
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock);
            true
        }
    }
}

#[test]
fn requests_and_replies_of_all_sizes() {
    let files = Files::new();
    let (server, _) = files.serve(|config, _| config.item_size_max = 32 << 20);
    for version in [&TLS12, &TLS13] {
        let config = client_config(files.authority.roots(), None, &[version]);
        let mut client = connect(&server, config);
        ask(&mut client, "get a\r\n", "END\r\n");
        for len in [0, 1, 16_383, 16_384, 65_536, 1 << 20, 20 << 20] {
            let value: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
            let set = [format!("set a 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
            ask(&mut client, set, "STORED\r\n");
            let header = format!("VALUE a 0 {len}\r\n");
            let reply = [header.as_bytes(), &value, b"\r\nEND\r\n"].concat();
            ask(&mut client, "get a\r\n", reply);
        }
        for byte in b"delete a\r\nget a\r\n" {
            client.write_all(&[*byte]).unwrap();
        }
        ask(&mut client, "", "DELETED\r\nEND\r\n");
        assert_eq!(client.conn.protocol_version(), Some(version.version));
    }
    assert_eq!(stat(&mut files.client(&server), "stats settings", "ssl_enabled"), "yes");
}

#[test]
fn a_pipeline_of_ten_thousand_requests() {
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    let mut client = files.client(&server);
    ask(&mut client, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.write_all(&b"get a\r\nget b\r\n".repeat(5000)).unwrap();
    ask(&mut client, "", b"VALUE a 0 1\r\nx\r\nEND\r\nEND\r\n".repeat(5000));
}

/// The server must stop serving a client that does not read, and only it.
#[test]
fn a_client_that_does_not_read_its_replies_is_not_served() {
    const GETS: usize = 1000;
    let files = Files::new();
    let (server, _) = files.serve(|config, _| config.threads = 1);
    let mut other = files.client(&server);
    let value = "v".repeat(100_000);
    ask(&mut other, format!("set a 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    let mut slow = files.client(&server);
    slow.write_all(&b"get a\r\n".repeat(GETS)).unwrap();
    let mut gets = stat(&mut other, "stats", "cmd_get");
    loop {
        for _ in 0..100 {
            ask(&mut other, "version\r\n", format!("VERSION {}\r\n", Config::default().version));
        }
        let now = stat(&mut other, "stats", "cmd_get");
        if now == gets {
            break;
        }
        gets = now;
    }
    let hits: usize = stat(&mut other, "stats", "get_hits").parse().unwrap();
    assert!(hits < GETS / 2, "{hits}");
    // What was encrypted counts, beside what was not.
    let unsent: usize = stat(&mut other, "stats", "evermap_unsent_bytes").parse().unwrap();
    assert!((1..1 << 20).contains(&unsent), "{unsent}");
    let reply = format!("VALUE a 0 100000\r\n{value}\r\nEND\r\n");
    for _ in 0..GETS {
        ask(&mut slow, "", &reply);
    }
    assert_eq!(stat(&mut other, "stats", "get_hits"), GETS.to_string());
    assert_eq!(stat(&mut other, "stats", "evermap_unsent_bytes"), "0");
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_replies() {
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    for with_notice in [true, false] {
        let mut client = files.client(&server);
        ask(&mut client, "get b\r\n", "END\r\n");
        client.write_all(b"set a 0 0 1\r\nx\r\nget a\r\nget a").unwrap();
        if with_notice {
            client.conn.send_close_notify();
        }
        client.flush().unwrap();
        client.sock.shutdown(Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        // The server may end without a notice, because the client has.
        let _ = client.read_to_end(&mut replies);
        assert_eq!(replies.escape_ascii().to_string(), r"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    }
    while server.connections() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_stop_sends_the_replies_and_ends_the_connections_properly() {
    let files = Files::new();
    let (server, cache) = files.serve(|config, _| config.threads = 1);
    cache.store(b"a", &[b'v'; 1 << 20], &StoreRequest::new(StoreMode::Set)).unwrap();
    let mut idle = files.client(&server);
    ask(&mut idle, "get b\r\n", "END\r\n");
    let mut reading = files.client(&server);
    reading.write_all(&b"get a\r\n".repeat(100)).unwrap();
    ask(&mut reading, "", "V");
    server.stop();
    // Without the notice of the end this would be an error.
    assert_eq!(idle.read_to_end(&mut Vec::new()).unwrap(), 0);
    let mut replies = b"V".to_vec();
    reading.read_to_end(&mut replies).unwrap();
    let reply = [b"VALUE a 0 1048576\r\n", &[b'v'; 1 << 20][..], b"\r\nEND\r\n"].concat();
    assert!(replies.chunks(reply.len()).all(|chunk| chunk == reply), "replies are complete");
    server.join();
}

/// Bytes that are not TLS end the connection, and only it.
#[test]
fn bytes_that_are_not_tls_are_refused() {
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    let mut kinds: Vec<Vec<u8>> = vec![
        b"get a\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0x80; 24],
        vec![0; 100_000],
        vec![0xff; 100_000],
        // A record that is longer than any may be, and one that is not a handshake.
        [&[22, 3, 1, 0xff, 0xff][..], &[0; 70_000]].concat(),
        [&[23, 3, 3, 0, 100][..], &[7; 100]].concat(),
        // A message of 16 MB in many records.
        [&[22, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x4000 - 4]].concat().repeat(20),
    ];
    // Pseudorandom bytes.
    let mut state = 1u64;
    for _ in 0..50 {
        let bytes = (0..300).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        kinds.push(bytes.collect());
    }
    let total = kinds.len();
    for bytes in kinds {
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut replies = Vec::new();
        let _ = stream.read_to_end(&mut replies);
        // An alert, if anything.
        assert!(replies.len() < 10, "{}", replies.escape_ascii());
    }
    let mut client = files.client(&server);
    ask(&mut client, "get a\r\n", "END\r\n");
    let errors: usize = stat(&mut client, "stats", "ssl_handshake_errors").parse().unwrap();
    // A few of the random ones end in the middle of what may be a record.
    assert!(errors >= total / 2, "{errors} of {total}");
    while server.connections() > 1 {
        std::thread::yield_now();
    }
}

/// A client that takes too long is disconnected, even if it sends a byte from time to time.
#[test]
fn a_handshake_has_a_time_limit() {
    let files = Files::new();
    let limit = Duration::from_millis(400);
    let (server, _) = files.serve(|config, _| config.idle_timeout = Some(limit));
    let mut silent = TcpStream::connect(server.local_addr()).unwrap();
    let mut slow = TcpStream::connect(server.local_addr()).unwrap();
    let began = Instant::now();
    // The beginning of a record of 500 bytes.
    slow.write_all(&[22, 3, 1, 1, 0xf4, 1, 0, 1, 0xf0]).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    loop {
        match slow.read(&mut [0; 16]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        // It may be closed meanwhile.
        let _ = slow.write(&[0]);
    }
    assert!(began.elapsed() >= limit / 2);
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    assert_eq!(stat(&mut files.client(&server), "stats", "idle_kicks"), "2");
}

/// Returns the certificate of the server, as a client sees it.
fn certificate(client: &mut Client) -> CertificateDer<'static> {
    ask(client, "get a\r\n", "END\r\n");
    client.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

#[test]
fn certificates_are_loaded_again_without_dropping_connections() {
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    let mut before = files.client(&server);
    let first = certificate(&mut before);

    files.install(&files.authority.issue());
    assert_eq!(certificate(&mut files.client(&server)), first, "not loaded yet");
    server.refresh_certificates().unwrap();
    let second = certificate(&mut files.client(&server));
    assert_ne!(second, first);
    ask(&mut before, "get a\r\n", "END\r\n");

    let refused = |expected: &str| {
        let error = server.refresh_certificates().unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(certificate(&mut files.client(&server)), second, "the old one is kept");
    };
    files.write("cert.pem", "nonsense");
    refused("cert.pem: there is no certificate");
    files.write("cert.pem", &files.authority.issue().certificate);
    refused("key.pem");
    files.install(&files.authority.issue());
    files.write("key.pem", "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n");
    refused("key.pem: cannot be read as PEM");
    std::fs::remove_file(files.path("key.pem")).unwrap();
    refused("key.pem: No such file");

    files.install(&files.authority.issue());
    server.refresh_certificates().unwrap();
    assert_ne!(certificate(&mut files.client(&server)), second);
    ask(&mut before, "get a\r\n", "END\r\n");
}

#[test]
fn certificates_are_loaded_again_under_traffic() {
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (files, server, finished) = (&files, &server, &finished);
            scope.spawn(move || {
                let mut staying = files.client(server);
                while !finished.load(Relaxed) {
                    let mut client = files.client(server);
                    let key = format!("key-{number}");
                    ask(&mut client, format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
                    let reply = format!("VALUE {key} 0 1\r\nx\r\nEND\r\n");
                    ask(&mut staying, format!("get {key}\r\n"), reply);
                }
            });
        }
        for _ in 0..20 {
            files.install(&files.authority.issue());
            server.refresh_certificates().unwrap();
        }
        finished.store(true, Relaxed);
    });
}

#[test]
fn clients_present_the_certificates_that_are_asked_for() {
    let files = Files::new();
    let (own, other) = (files.authority.issue(), Authority::new().issue());
    for (asked, without, unknown) in [
        (ClientCertificates::Ignored, true, true),
        (ClientCertificates::Requested, true, false),
        (ClientCertificates::Required, false, false),
    ] {
        let (server, _) = files.serve(|_, settings| {
            settings.client_ca = Some(files.path("ca.pem"));
            settings.client_certificates = asked;
        });
        for version in [&TLS12, &TLS13] {
            let served = |identity| {
                let config = client_config(files.authority.roots(), identity, &[version]);
                !is_refused(connect(&server, config))
            };
            assert!(served(Some(&own)), "{asked:?}");
            assert_eq!(served(None), without, "{asked:?}");
            assert_eq!(served(Some(&other)), unknown, "{asked:?}");
        }
    }
}

/// As memcached does, the server starts: no certificate can be verified.
#[test]
fn without_an_authority_every_certificate_is_refused() {
    let files = Files::new();
    let own = files.authority.issue();
    for (asked, without, reason) in [
        (ClientCertificates::Requested, true, "unknown_issuer"),
        (ClientCertificates::Required, false, "no_certificate"),
    ] {
        let mut settings = files.settings();
        settings.client_certificates = asked;
        let config = Config { tls: Some(Tls::load(settings).unwrap()), ..Config::default() };
        let listeners = [Security::Tls { clients: None }, Security::Plain].map(listener).into();
        let server = Server::start_on(listeners, Arc::new(ModelCache::new(0)), config).unwrap();
        for version in [&TLS12, &TLS13] {
            let served = |identity| {
                let config = client_config(files.authority.roots(), identity, &[version]);
                !is_refused(connect(&server, config))
            };
            assert!(!served(Some(&own)), "{asked:?}");
            assert_eq!(served(None), without, "{asked:?}");
        }
        let plain = server.addresses()[1].tcp().unwrap();
        let mut plain = TcpStream::connect(plain).unwrap();
        let failure = stat(&mut plain, "stats", "evermap_tls_last_failure");
        assert_eq!(failure, reason);
    }
}

/// Returns the text of a file that does not change.
macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("fixtures/", $name))
    };
}

#[test]
fn a_key_is_what_its_structure_says() {
    let files = Files::new();
    let issued = files.authority.issue();
    let relabeled = |label: &str| issued.key.replace("PRIVATE KEY", label);
    // As `openssl ecparam -genkey` writes it.
    let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n\
                      -----END EC PARAMETERS-----\n";
    for key in [
        issued.key.clone(),
        relabeled("RSA PRIVATE KEY"),
        relabeled("EC PRIVATE KEY"),
        relabeled("ANY PRIVATE KEY").replace('\n', "\r\n"),
        format!("{parameters}{}", relabeled("EC PRIVATE KEY")),
        format!("{}{}", issued.certificate, issued.key),
    ] {
        files.install(&Issued { certificate: issued.certificate.clone(), key });
        let (server, _) = files.serve(|_, _| {});
        ask(&mut files.client(&server), "get a\r\n", "END\r\n");
    }
    // SEC 1 under the label of PKCS #8, and a certificate that only clients judge.
    let key = fixture!("version-1.key").replace("EC PRIVATE KEY", "PRIVATE KEY");
    files.install(&Issued { certificate: fixture!("version-1.pem").into(), key });
    Tls::load(files.settings()).unwrap();
}

#[test]
fn keys_that_cannot_be_used_are_named_with_those_that_can() {
    let files = Files::new();
    let supported = "supported are certificates of X.509 version 3, and keys of RSA with 2048 to \
                     8192 bits, ECDSA over P-256 or P-384, and Ed25519";
    let load = |certificate: &str, key: &str| {
        files.install(&Issued { certificate: certificate.into(), key: key.into() });
        Tls::load(files.settings()).unwrap_err().to_string()
    };
    for (certificate, key) in [
        (fixture!("p-521.pem"), fixture!("p-521.key")),
        (fixture!("rsa-1024.pem"), fixture!("rsa-1024.key")),
    ] {
        let error = load(certificate, key);
        assert!(error.contains("key.pem: ") && error.contains(supported), "{error}");
        // As an authority, it could verify nobody.
        files.install(&files.authority.issue());
        files.write("other-ca.pem", certificate);
        let settings = TlsSettings {
            client_ca: Some(files.path("other-ca.pem")),
            client_certificates: ClientCertificates::Required,
            ..files.settings()
        };
        let error = Tls::load(settings.clone()).unwrap_err().to_string();
        assert!(error.contains("other-ca.pem: ") && error.contains(supported), "{error}");
        // Unless there is another one.
        files.write("other-ca.pem", &format!("{certificate}{}", files.authority.pem));
        Tls::load(settings).unwrap();
    }
    for key in [fixture!("encrypted-pkcs8.key"), fixture!("encrypted-sec1.key")] {
        let error = load(&files.authority.pem, key);
        assert!(error.contains("is encrypted: decrypt it"), "{error}");
    }
    let error = load(
        &files.authority.pem,
        "-----BEGIN PRIVATE KEY-----\nAAAA\n\
                     -----END PRIVATE KEY-----\n",
    );
    assert!(error.contains("none of PKCS #8, PKCS #1 and SEC 1"), "{error}");
    let error = load(&files.authority.pem, "nothing");
    assert!(error.contains("there is no private key in PEM format"), "{error}");
    let other = files.authority.issue();
    let error = load(&files.authority.pem, &other.key);
    assert!(error.contains("cert.pem with the key "), "{error}");
}

#[test]
fn the_reason_why_a_certificate_is_refused_is_in_the_statistics() {
    let files = Files::new();
    files.write("ca.pem", fixture!("authority.pem"));
    let (server, _) = files.serve(|_, settings| {
        settings.client_ca = Some(files.path("ca.pem"));
        settings.client_certificates = ClientCertificates::Requested;
    });
    let mut watching = files.client(&server);
    assert_eq!(stat(&mut watching, "stats", "evermap_tls_last_failure"), "none");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(fixture!("version-1.pem").as_bytes());
    let key = PrivateKeyDer::from_pem_slice(fixture!("version-1.key").as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let identity = rustls::sign::CertifiedKey::new(vec![certificate.unwrap()], key);
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(files.authority.roots())
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(identity)));
    assert!(is_refused(connect(&server, config)));
    let reason = stat(&mut watching, "stats", "evermap_tls_last_failure");
    assert_eq!(reason, "old_certificate_version");
    let stranger = Authority::new().issue();
    let config = client_config(files.authority.roots(), Some(&stranger), &[&TLS12]);
    assert!(is_refused(connect(&server, config)));
    assert_eq!(stat(&mut watching, "stats", "evermap_tls_last_failure"), "unknown_issuer");
}

#[test]
fn old_versions_are_refused() {
    let files = Files::new();
    let (server, _) = files.serve(|_, settings| settings.min_version = TlsVersion::V1_3);
    let with = |version| connect(&server, client_config(files.authority.roots(), None, &[version]));
    assert!(is_refused(with(&TLS12)));
    assert!(!is_refused(with(&TLS13)));
}

#[test]
fn sessions_are_resumed_only_if_that_is_enabled() {
    let files = Files::new();
    for enabled in [false, true] {
        let (server, _) = files.serve(|_, settings| settings.session_cache = enabled);
        for version in [&TLS12, &TLS13] {
            let config = client_config(files.authority.roots(), None, &[version]);
            let kinds: Vec<_> = (0..3)
                .map(|_| {
                    let mut client = connect(&server, config.clone());
                    ask(&mut client, "get a\r\n", "END\r\n");
                    client.conn.handshake_kind()
                })
                .collect();
            let resumed = Some(rustls::HandshakeKind::Resumed);
            assert_eq!(kinds.contains(&resumed), enabled, "{version:?}: {kinds:?}");
        }
    }
}

/// Each listener decides for itself.
#[test]
fn listeners_with_and_without_tls() {
    let files = Files::new();
    let mut settings = files.settings();
    settings.client_ca = Some(files.path("ca.pem"));
    settings.client_certificates = ClientCertificates::Required;
    let config = Config { tls: Some(Tls::load(settings).unwrap()), ..Config::default() };
    let basic = Security::Tls { clients: Some(ClientCertificates::Ignored) };
    let listeners = [Security::Plain, Security::Tls { clients: None }, basic].map(listener);
    let ports = listeners.each_ref().map(|listener| listener.address().tcp().unwrap());
    let cache = Arc::new(ModelCache::new(0));
    let _server = Server::start_on(listeners.into(), cache, config).unwrap();
    let connect = |address, identity| {
        let config = client_config(files.authority.roots(), identity, &[&TLS13]);
        let name = ServerName::try_from("cache.test").unwrap();
        let socket = TcpStream::connect(address).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
    };
    let own = files.authority.issue();
    ask(&mut TcpStream::connect(ports[0]).unwrap(), "get a\r\n", "END\r\n");
    assert!(is_refused(connect(ports[1], None)));
    assert!(!is_refused(connect(ports[1], Some(&own))));
    assert!(!is_refused(connect(ports[2], None)));
}

#[test]
fn too_many_connections_are_closed_without_a_message() {
    let files = Files::new();
    let (server, _) = files.serve(|config, _| config.max_connections = 1);
    let mut client = files.client(&server);
    ask(&mut client, "get a\r\n", "END\r\n");
    let mut replies = Vec::new();
    let _ = TcpStream::connect(server.local_addr()).unwrap().read_to_end(&mut replies);
    assert_eq!(replies, b"");
    assert_eq!(stat(&mut client, "stats", "rejected_connections"), "1");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let files = Files::new();
    let load = |adjust: &dyn Fn(&mut TlsSettings)| {
        let mut settings = files.settings();
        adjust(&mut settings);
        Tls::load(settings).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(load(&|_| {}), Ok(()));
    let error = load(&|settings| settings.client_ca = Some(files.path("key.pem")));
    assert!(error.unwrap_err().contains("key.pem: there is no certificate"));
    let error = load(&|settings| settings.certificates = files.path("missing.pem"));
    assert!(error.unwrap_err().contains("missing.pem"));

    let start = |security, tls| {
        let config = Config { tls, ..Config::default() };
        let cache = Arc::new(ModelCache::new(0));
        Server::start_on(vec![listener(security)], cache, config)
            .err()
            .expect("refused")
            .to_string()
    };
    assert!(start(Security::Tls { clients: None }, None).contains("certificate"));
    let plain = Server::start(
        Arc::new(ModelCache::new(0)),
        Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() },
    );
    assert!(plain.unwrap().refresh_certificates().unwrap_err().contains("no listener uses TLS"));
}

#[test]
fn a_watcher_receives_log_lines_encrypted() {
    const STORES: usize = 1_000;
    let files = Files::new();
    let (server, _) = files.serve(|_, _| {});
    let mut watcher = files.client(&server);
    ask(&mut watcher, "watch mutations\r\n", "OK\r\n");
    let mut client = files.client(&server);
    // The buffers have space for all lines.
    for i in 0..STORES {
        ask(&mut client, format!("set key{i} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    for i in 0..STORES {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            watcher.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let line = String::from_utf8(line).unwrap();
        assert!(line.contains(&format!(" type=item_store key=key{i} status=stored ")), "{line}");
    }
    drop(watcher);
    while server.hub().stats().watchers > 0 {
        std::thread::yield_now();
    }
}
