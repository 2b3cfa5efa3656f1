//! Files on a server that does what it should, and on one that does not.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farpage_source::remote::{HttpSource, Options, open};
use farpage_source::{Reach, Retry, Source, SourceError};
use farpage_testkit::server::{Answer, Server, Speed};
use tempfile::TempDir;

const SIZE: usize = 300_000;
const SECRET: &str = "Sesame";

struct Site {
    folder: TempDir,
    server: Server,
    bytes: Vec<u8>,
}

/// A server of one file, `/a.bin`.
fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..SIZE as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    fs::write(folder.path().join("a.bin"), &bytes).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    Site {
        folder,
        server,
        bytes,
    }
}

impl Site {
    fn open(&self) -> HttpSource {
        HttpSource::open(&self.server.url("/a.bin"), &quick()).unwrap()
    }

    fn refused(&self) -> SourceError {
        let opened = HttpSource::open(&self.server.url("/a.bin"), &quick());
        opened.err().expect("refused")
    }

    /// What a read of an open file comes to when it is answered with `answer`.
    fn read_with(&self, answer: Answer) -> SourceError {
        let source = self.open();
        self.server.once("/a.bin", answer);
        source.read_at(1000, &mut [0; 5000]).unwrap_err()
    }
}

#[test]
fn what_is_kept_of_two_queries_is_told_apart() {
    let site = site();
    let open = |query: &str| HttpSource::open(&site.server.url(query), &quick()).unwrap();
    let (one, other) = (open("/a.bin?file=a"), open("/a.bin?file=b"));
    assert_eq!((one.name(), one.version()), (other.name(), other.version()));
    assert!(one.name().ends_with("/a.bin?..."), "{}", one.name());
    assert_ne!(one.identity(), other.identity());
    assert_eq!(site.open().identity(), site.open().name());
}

/// Gives up before the test seems to hang.
fn quick() -> Options {
    Options {
        silence_timeout: Duration::from_secs(120),
        retry: Retry {
            deadline: Duration::from_secs(120),
        },
        ..Options::default()
    }
}

/// Does not wait for what will not come. What does come has its time on a busy machine, too.
fn impatient() -> Options {
    Options {
        silence_timeout: Duration::from_secs(15),
        retry: Retry {
            deadline: Duration::ZERO,
        },
        ..Options::default()
    }
}

fn status(code: u16, headers: &[(&str, &str)]) -> Answer {
    let headers = headers.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    Answer::Status(code, headers.collect())
}

#[test]
fn a_far_file_reads_as_the_near_one() {
    let site = site();
    let source = site.open();
    assert_eq!(source.size(), SIZE as u64);
    assert_eq!(source.reach(), Reach::Far);
    assert!(source.version().is_some_and(|v| v.starts_with('"')));
    assert_eq!(source.name(), site.server.url("/a.bin"));
    for (start, bytes) in [(0, 1), (0, SIZE), (SIZE - 1, 1), (4095, 8193), (7, 0)] {
        let mut read = vec![0; bytes];
        source.read_at(start as u64, &mut read).unwrap();
        assert!(read == site.bytes[start..start + bytes], "{start} {bytes}");
    }
    assert_eq!(site.server.connections(), 1, "the connection is kept");
}

#[test]
fn reads_at_the_same_time_get_each_their_own_bytes_over_kept_connections() {
    let site = site();
    let source = site.open();
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < 2000 {
                    let random = next
                        .load(Ordering::Relaxed)
                        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let start = (random >> 32) as usize % (SIZE - 9000);
                    let mut read = vec![0; 1 + (random as usize & 0x1FFF)];
                    source.read_at(start as u64, &mut read).unwrap();
                    assert!(read == site.bytes[start..start + read.len()], "at {start}");
                }
            });
        }
    });
    let connections = site.server.connections();
    assert!(connections <= 33, "{connections} connections of 32 threads");
}

#[test]
fn beyond_the_end_there_is_nothing_and_nobody_is_asked() {
    let site = site();
    let source = site.open();
    let asked = site.server.requests();
    for start in [SIZE as u64 - 1, SIZE as u64, u64::MAX] {
        let error = source.read_at(start, &mut [0; 2]).unwrap_err();
        assert!(matches!(error, SourceError::Short { end, .. } if end == SIZE as u64));
    }
    assert_eq!(site.server.requests(), asked);
}

#[test]
fn an_empty_file_opens() {
    let site = site();
    fs::write(site.folder.path().join("empty"), b"").unwrap();
    let source = open(&site.server.url("/empty"), &quick()).unwrap();
    assert_eq!(source.size(), 0);
    source.read_at(0, &mut []).unwrap();
    site.server.always("/empty", Answer::Whole);
    assert_eq!(
        open(&site.server.url("/empty"), &quick()).unwrap().size(),
        0
    );
}

#[test]
fn a_replaced_file_has_changed() {
    let site = site();
    let source = site.open();
    let was = source.version().unwrap();
    let new = site.folder.path().join("new");
    fs::write(&new, vec![1; SIZE]).unwrap();
    fs::rename(&new, site.folder.path().join("a.bin")).unwrap();
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    let SourceError::Changed { was: told, is, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(told, was);
    assert_ne!(is, was);
}

#[test]
fn another_tag_is_a_change_even_when_the_server_ignores_conditions() {
    let site = site();
    let error = site.read_with(Answer::Tagged("\"other\"".into()));
    assert!(
        matches!(&error, SourceError::Changed { is, .. } if is == "\"other\""),
        "{error}"
    );
    let error = site.read_with(Answer::Tagged(String::new()));
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn a_weak_tag_is_compared_and_not_sent_as_a_condition() {
    let site = site();
    site.server
        .always("/a.bin", Answer::Tagged("W/\"weak\"".into()));
    let source = site.open();
    source.read_at(0, &mut [0; 10]).unwrap();
    assert!(
        site.server
            .log()
            .iter()
            .all(|r| r.header("if-match").is_none())
    );
    site.server
        .always("/a.bin", Answer::Tagged("W/\"other\"".into()));
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn without_a_tag_another_size_is_a_change() {
    let site = site();
    site.server.always("/a.bin", Answer::Tagged(String::new()));
    let source = site.open();
    assert_eq!(source.version(), None);
    source.read_at(0, &mut [0; 10]).unwrap();
    fs::write(site.folder.path().join("a.bin"), vec![1; SIZE + 1]).unwrap();
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn wrong_ranges_are_refused_and_never_taken_for_the_right_ones() {
    let site = site();
    for (answer, told) in [
        (Answer::Shorter(1), "bytes 1000 to 5999"),
        (Answer::Later(1), "bytes 1001 to 6001"),
        (Answer::FalseHead(4096), "bytes 5096 to 10096"),
        (Answer::Whole, "all of the file"),
        (Answer::ChunkedLonger(1), "more bytes"),
        (status(206, &[]), "without saying which"),
    ] {
        let error = site.read_with(answer.clone());
        let SourceError::WrongRange { answer: text, .. } = &error else {
            panic!("{answer:?}: {error}");
        };
        assert!(text.contains(told), "{answer:?}: {error}");
        assert!(!error.is_transient());
    }
}

#[test]
fn a_body_in_chunks_is_read() {
    let site = site();
    site.server.always("/a.bin", Answer::Chunked);
    let source = site.open();
    let mut read = vec![0; 50_000];
    for _ in 0..2 {
        source.read_at(3, &mut read).unwrap();
        assert!(read == site.bytes[3..50_003]);
    }
    assert_eq!(site.server.connections(), 1, "the connection is kept");
}

#[test]
fn a_connection_that_breaks_is_worth_another_try() {
    let site = site();
    for bytes in [0, 1, 4999] {
        let error = site.read_with(Answer::DropAfter(bytes));
        assert!(error.is_transient(), "{error}");
        assert!(
            error.to_string().contains(&format!("{bytes} of 5000")),
            "{error}"
        );
    }
    let source = site.open();
    site.server.once("/a.bin", Answer::DropAfter(100));
    let mut read = vec![0; 5000];
    let again = Retry {
        deadline: Duration::from_secs(120),
    };
    again.run(|| source.read_at(9, &mut read)).unwrap();
    assert!(read == site.bytes[9..5009]);
}

#[test]
fn a_connection_that_the_server_closed_is_replaced() {
    let site = site();
    site.server.always("/a.bin", Answer::Close);
    let source = site.open();
    let mut read = vec![0; 5000];
    let again = Retry {
        deadline: Duration::from_secs(120),
    };
    for start in 0..20 {
        again
            .run(|| source.read_at(start as u64, &mut read))
            .unwrap();
        assert!(read == site.bytes[start..start + 5000]);
    }
}

#[test]
fn a_silent_server_is_not_waited_for_longer_than_allowed() {
    let site = site();
    let source = open(&site.server.url("/a.bin"), &impatient()).unwrap();
    site.server.once("/a.bin", Answer::Silence);
    // The server is silent until the connection ends.
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("15s"),
        "{error}"
    );
}

#[test]
fn a_server_that_is_gone_is_unreachable() {
    let Site { server, folder, .. } = site();
    let url = server.url("/a.bin");
    let source = HttpSource::open(&url, &quick()).unwrap();
    drop(server);
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    let mut options = quick();
    options.retry.deadline = Duration::from_secs(1);
    let error = HttpSource::open(&url, &options).err().expect("refused");
    assert!(
        matches!(error, SourceError::TimedOut { seconds: 1, .. }),
        "{error}"
    );
    drop(folder);
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let site = site();
    for code in [429, 500, 502, 503, 504] {
        let error = site.read_with(status(code, &[("Retry-After", "7")]));
        assert!(error.is_transient(), "{error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)), "{error}");
    }
    let error = site.read_with(status(503, &[("Retry-After", "soon")]));
    assert_eq!((error.is_transient(), error.retry_after()), (true, None));
}

#[test]
fn opening_is_tried_again_until_the_server_is_ready() {
    let site = site();
    site.server.rule("/a.bin", 0..2, status(503, &[]));
    assert_eq!(site.open().size(), SIZE as u64);
    assert_eq!(site.server.requests(), 3);
}

#[test]
fn refusals_say_what_they_are() {
    let site = site();
    let opened = open(&site.server.url("/none"), &quick());
    assert!(matches!(opened.err(), Some(SourceError::NotFound { .. })));
    for code in [401, 403] {
        let error = site.read_with(status(code, &[]));
        assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    }
    for code in [404, 410] {
        let error = site.read_with(status(code, &[]));
        assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
    }
    for code in [402, 501] {
        let error = site.read_with(status(code, &[]));
        assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn a_server_without_ranges_is_refused_with_what_helps() {
    let site = site();
    site.server.always("/a.bin", Answer::Whole);
    let error = site.refused();
    assert!(
        matches!(&error, SourceError::Unsupported { remedy, .. } if remedy.contains("download"))
    );
}

#[test]
fn no_head_request_is_needed() {
    let site = site();
    site.open().read_at(0, &mut [0; 10]).unwrap();
    assert!(
        site.server
            .log()
            .iter()
            .all(|request| request.method == "GET")
    );
}

#[test]
fn a_redirection_is_resolved_once_and_again_when_it_has_expired() {
    let site = site();
    let bytes = fs::read(site.folder.path().join("a.bin")).unwrap();
    fs::write(site.folder.path().join("there"), &bytes).unwrap();
    let signed = site.server.url("/there?sig=1");
    site.server.always("/link", Answer::redirect(&signed));
    let source = open(&site.server.url("/link"), &quick()).unwrap();
    let count = |path: &str| site.server.log().iter().filter(|r| r.path == path).count();
    let mut read = [0; 100];
    for start in 0..5 {
        source.read_at(start, &mut read).unwrap();
    }
    assert_eq!(count("/link"), 1);
    site.server.once("/there", status(403, &[]));
    source.read_at(50, &mut read).unwrap();
    assert!(read == bytes[50..150]);
    assert_eq!(count("/link"), 2);
    site.server.always("/there", status(403, &[]));
    let error = source.read_at(50, &mut read).unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
}

#[test]
fn a_server_that_was_redirected_to_and_is_gone_is_replaced_by_the_next() {
    let (site, first, second) = (site(), site(), site());
    let tagged = Answer::Tagged("\"same\"".into());
    first.server.always("/a.bin", tagged.clone());
    second.server.always("/a.bin", tagged);
    let link = |to: &Server| {
        site.server
            .always("/link", Answer::redirect(&to.url("/a.bin")))
    };
    link(&first.server);
    let source = open(&site.server.url("/link"), &quick()).unwrap();
    link(&second.server);
    drop(first.server);
    let error = source.read_at(0, &mut [0; 10]).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let mut read = vec![0; 100];
    source.read_at(50, &mut read).unwrap();
    assert!(read == site.bytes[50..150]);
}

#[test]
fn redirections_without_end_are_refused() {
    let site = site();
    site.server.always("/a.bin", Answer::redirect("/a.bin"));
    let error = site.refused();
    assert!(error.to_string().contains("again and again"), "{error}");
    site.server
        .always("/a.bin", Answer::redirect("file:///etc/passwd"));
    assert!(matches!(site.refused(), SourceError::Unsupported { .. }));
}

#[test]
fn credentials_reach_their_server_and_no_other() {
    let (site, other) = (site(), site());
    let mut options = quick();
    options.headers = vec![("X-Token".into(), SECRET.into())];
    let host = site.server.address();
    let url = format!("http://me:{SECRET}@{host}/link");
    site.server.always("/link", Answer::redirect("/second"));
    site.server
        .always("/second", Answer::redirect(&other.server.url("/a.bin")));
    open(&url, &options)
        .unwrap()
        .read_at(0, &mut [0; 10])
        .unwrap();
    for request in site.server.log() {
        assert!(request.header("authorization").is_some(), "{request:?}");
        assert_eq!(request.header("x-token"), Some(SECRET), "{request:?}");
    }
    assert!(!other.server.log().is_empty());
    for request in other.server.log() {
        assert!(request.header("authorization").is_none(), "{request:?}");
        assert!(request.header("x-token").is_none(), "{request:?}");
    }
}

#[test]
fn secrets_are_in_no_message() {
    let site = site();
    let mut options = impatient();
    options.headers = vec![("Authorization".into(), format!("Bearer {SECRET}"))];
    let host = site.server.address();
    let url = format!("http://me:{SECRET}@{host}/a.bin?X-Amz-Signature={SECRET}");
    let source = open(&url, &options).unwrap();
    assert_eq!(source.name(), format!("http://{host}/a.bin?..."));
    let mut errors = Vec::new();
    let answers = [200, 401, 403, 404, 412, 416, 418, 500, 503].map(|code| status(code, &[]));
    let others = [
        Answer::DropAfter(3),
        Answer::Whole,
        Answer::Later(1),
        Answer::Silence,
    ];
    for answer in answers.into_iter().chain(others) {
        site.server.once("/a.bin", answer.clone());
        errors.extend(source.read_at(0, &mut [0; 100]).err());
        site.server.once("/a.bin", answer);
        errors.extend(open(&url, &options).err());
    }
    assert!(errors.len() >= 20, "{}", errors.len());
    options.headers = vec![("X".into(), format!("{SECRET}\r\n"))];
    errors.extend(open(&url, &options).err());
    errors.extend(
        open(
            &format!("http://me:{SECRET}@127.0.0.1:1/?{SECRET}"),
            &impatient(),
        )
        .err(),
    );
    errors.extend(open(&format!("http://me:{SECRET}@[/?{SECRET}"), &impatient()).err());
    errors.extend(
        open(
            &format!("gopher://me:{SECRET}@host/?{SECRET}"),
            &impatient(),
        )
        .err(),
    );
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn an_unknown_scheme_is_refused_with_the_known_ones() {
    let error = open("gopher://host/a", &impatient())
        .err()
        .expect("refused");
    let text = error.to_string();
    assert!(text.contains("gopher://") && text.contains("s3"), "{text}");
    let error = open("/a/path", &impatient()).err().expect("refused");
    assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
}
