//! Objects in a real store that speaks S3, and answers that a real one seldom gives.

use std::fs;
use std::process::Command;
use std::time::Duration;

use farpage_source::remote::{ObjectSource, ObjectWriter, Options, open};
use farpage_source::{Reach, Source, SourceError};
use farpage_testkit::server::{Answer, Server, Speed};
use tempfile::TempDir;

use crate::remote::support::gateway::{KEY, SECRET, gateway, settings};
use crate::remote::support::proxy::{Fault, Proxy};
use crate::remote::support::{pattern, quick, upload};

const MIB: usize = 1 << 20;

#[test]
fn an_object_reads_as_it_was_written_in_parts_and_whole() {
    let gateway = gateway();
    for (url, bytes) in [
        ("s3://bucket/deep/large.bin", 20 * MIB + 3),
        ("s3://bucket/small", 5000),
    ] {
        let data = pattern(bytes, 1);
        let version = gateway.put(url, &data);
        let source = ObjectSource::open(url, &gateway.options()).unwrap();
        assert_eq!((source.name(), source.size()), (url, bytes as u64));
        assert_eq!(source.reach(), Reach::Far);
        assert_eq!(source.version(), Some(version));
        for (start, count) in [(0, bytes), (bytes - 1, 1), (4095, 700), (7, 0)] {
            let mut read = vec![0; count];
            source.read_at(start as u64, &mut read).unwrap();
            assert!(read == data[start..start + count], "{start} {count}");
        }
        let beyond = source.read_at(bytes as u64, &mut [0]).unwrap_err();
        assert!(matches!(beyond, SourceError::Short { .. }), "{beyond}");
    }
}

#[test]
fn an_empty_object_opens() {
    let gateway = gateway();
    gateway.put("s3://bucket/empty", b"");
    assert_eq!(gateway.read("s3://bucket/empty"), b"");
}

#[test]
fn an_object_replaced_under_us_has_changed() {
    let gateway = gateway();
    gateway.put("s3://bucket/a", &pattern(10_000, 1));
    let source = ObjectSource::open("s3://bucket/a", &gateway.options()).unwrap();
    let other = ObjectSource::open("s3://bucket/a", &gateway.options()).unwrap();
    let now = upload(&other.writer().unwrap(), &pattern(10_000, 2)).unwrap();
    assert_ne!(source.version().unwrap(), now);
    let error = source.read_at(0, &mut [0; 100]).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn a_writer_replaces_its_own_version_and_no_other() {
    let gateway = gateway();
    for bytes in [10_000, 9 * MIB] {
        let url = format!("s3://bucket/{bytes}");
        gateway.put(&url, &pattern(bytes, 1));
        let opened = ObjectSource::open(&url, &gateway.options()).unwrap();
        let (first, second) = (opened.writer().unwrap(), opened.writer().unwrap());
        upload(&first, &pattern(bytes, 2)).unwrap();
        upload(&first, &pattern(bytes, 3)).unwrap();
        let error = upload(&second, &pattern(bytes, 4)).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert!(gateway.read(&url) == pattern(bytes, 3));
        let third = ObjectSource::open(&url, &gateway.options()).unwrap();
        upload(&third.writer().unwrap(), &pattern(bytes, 5)).unwrap();
        let error = upload(&first, &pattern(bytes, 6)).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert!(gateway.read(&url) == pattern(bytes, 5));
    }
}

#[test]
fn an_object_that_comes_up_while_another_is_uploaded_is_not_lost() {
    let gateway = gateway();
    for bytes in [10_000, 9 * MIB] {
        let url = format!("s3://bucket/{bytes}");
        let slow = ObjectWriter::create(&url, &gateway.options()).unwrap();
        let error = slow.upload(bytes as u64, &|offset, buffer| {
            if offset == 0 {
                gateway.put(&url, b"first");
            }
            buffer.fill(1);
            Ok(())
        });
        let error = error.err().expect("refused");
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert_eq!(gateway.read(&url), b"first");
    }
}

#[test]
fn an_upload_that_fails_leaves_nothing_behind() {
    let gateway = gateway();
    let failure = SourceError::Callback {
        name: "test".into(),
        offset: 0,
        cause: "no".into(),
    };
    let writer = ObjectWriter::create("s3://bucket/a", &gateway.options()).unwrap();
    let failed = writer.upload(30 * MIB as u64, &|offset, _| match offset {
        0 => Ok(()),
        _ => Err(failure.clone()),
    });
    assert_eq!(failed.err(), Some(failure.clone()));
    let error = open("s3://bucket/a", &gateway.options())
        .err()
        .expect("refused");
    assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
    let parts = gateway.folder().join("bucket/.sgwtmp/multipart");
    let left = fs::read_dir(parts).map_or(0, Iterator::count);
    assert_eq!(left, 0, "uploads left in the store");
}

#[test]
fn what_was_uploaded_is_read_in_its_own_version() {
    let gateway = gateway();
    for bytes in [10_000, 9 * MIB] {
        let url = format!("s3://bucket/{bytes}");
        let writer = ObjectWriter::create(&url, &gateway.options()).unwrap();
        let written = writer.upload(bytes as u64, &|_, buffer| {
            buffer.fill(1);
            Ok(())
        });
        let written = written.unwrap();
        let anew = ObjectSource::open(&url, &gateway.options()).unwrap();
        assert_eq!(written.version(), anew.version());
        let mut read = vec![0; 5000];
        written.read_at(777, &mut read).unwrap();
        assert_eq!(read, [1; 5000]);
        upload(&writer, &pattern(bytes, 2)).unwrap();
        let error = written.read_at(777, &mut read).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    }
}

#[test]
fn a_lost_last_answer_is_not_taken_for_somebody_elses_change() {
    let gateway = gateway();
    let proxy = Proxy::anywhere(gateway.address());
    let options = settings(&format!("http://{}", proxy.address), KEY, SECRET);
    for (bytes, last) in [
        (10_000, "PUT /bucket/10000"),
        (9 * MIB, "POST /bucket/9437184?uploadId"),
    ] {
        let url = format!("s3://bucket/{bytes}");
        gateway.put(&url, &pattern(bytes, 1));
        let opened = ObjectSource::open(&url, &options).unwrap();
        let writer = opened.writer().unwrap();
        proxy.set(Fault::Unanswered(last));
        let version = upload(&writer, &pattern(bytes, 2)).unwrap();
        assert!(gateway.read(&url) == pattern(bytes, 2), "{url}");
        proxy.set(Fault::Nothing);
        let anew = ObjectSource::open(&url, &options).unwrap();
        assert_eq!(anew.version(), Some(version));
        upload(&writer, &pattern(bytes, 3)).unwrap();
        assert!(gateway.read(&url) == pattern(bytes, 3), "{url}");
    }
}

#[test]
fn an_upload_whose_last_request_got_lost_can_be_made_again() {
    let gateway = gateway();
    let proxy = Proxy::anywhere(gateway.address());
    let options = settings(&format!("http://{}", proxy.address), KEY, SECRET);
    gateway.put("s3://bucket/a", &pattern(30_000, 1));
    let opened = ObjectSource::open("s3://bucket/a", &options).unwrap();
    let writer = opened.writer().unwrap();
    proxy.set(Fault::After(20_000));
    let error = upload(&writer, &pattern(30_000, 2)).unwrap_err();
    assert!(matches!(error, SourceError::Io { .. }), "{error}");
    assert!(gateway.read("s3://bucket/a") == pattern(30_000, 1));
    proxy.set(Fault::Nothing);
    upload(&writer, &pattern(30_000, 2)).unwrap();
    assert!(gateway.read("s3://bucket/a") == pattern(30_000, 2));
}

#[test]
fn wrong_keys_are_denied_and_not_shown() {
    let gateway = gateway();
    gateway.put("s3://bucket/a", b"x");
    for (key, secret) in [(KEY, "wrong-secret"), ("WRONGKEYID", SECRET)] {
        let options = settings(&gateway.endpoint(), key, secret);
        let error = open("s3://bucket/a", &options).err().expect("refused");
        assert!(matches!(error, SourceError::Denied { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains(key) && !text.contains(secret), "{text}");
        let writer = ObjectWriter::create("s3://bucket/new", &options).unwrap();
        let error = upload(&writer, b"x").unwrap_err();
        assert!(matches!(error, SourceError::Denied { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains(key) && !text.contains(secret), "{text}");
    }
}

#[test]
fn what_is_missing_is_not_found() {
    let gateway = gateway();
    for url in ["s3://bucket/none", "s3://nobucket/a"] {
        let error = open(url, &gateway.options()).err().expect("refused");
        assert!(matches!(error, SourceError::NotFound { .. }), "{error}");
    }
}

#[test]
fn addresses_and_settings_that_make_no_sense_are_refused_without_their_values() {
    for url in [
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/a?x=Sesame",
        "s3://k:Sesame@bucket/a",
    ] {
        let error = open(url, &quick()).err().expect("refused");
        assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
        assert!(!error.to_string().contains("Sesame"), "{error}");
    }
    for (key, value) in [
        ("aws_none", "Sesame"),
        ("aws_virtual_hosted_style_request", "Sesame"),
    ] {
        let mut options = quick();
        options.settings = vec![(key.into(), value.into())];
        let error = open("s3://bucket/a", &options).err().expect("refused");
        assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
        assert!(!error.to_string().contains("Sesame"), "{error}");
    }
}

/// Runs the test called `name` again, in a process with these variables.
fn again(name: &str, variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", &format!("remote::s3::{name}")])
        .envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn credentials_come_from_the_environment_or_the_profile() {
    const NAME: &str = "credentials_come_from_the_environment_or_the_profile";
    if std::env::var_os("FARPAGE_TEST_CHILD").is_some() {
        assert_eq!(open("s3://bucket/a", &quick()).unwrap().size(), 3);
        return;
    }
    let gateway = gateway();
    gateway.put("s3://bucket/a", b"abc");
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = home.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let config = file(
        "config",
        format!("[profile far]\nendpoint_url = {}\n", gateway.endpoint()),
    );
    let keys = format!("aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n");
    let credentials = file("credentials", format!("[default]\nx = 1\n[far]\n{keys}"));
    let child = ("FARPAGE_TEST_CHILD", "1");
    let endpoint = gateway.endpoint();
    let nowhere = ("AWS_CONFIG_FILE", "/dev/null");
    let of_environment = [
        child,
        nowhere,
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_ENDPOINT_URL", &endpoint),
    ];
    again(NAME, &of_environment);
    let of_profile = [
        child,
        ("AWS_CONFIG_FILE", &config),
        ("AWS_SHARED_CREDENTIALS_FILE", &credentials),
        ("AWS_PROFILE", "far"),
    ];
    again(NAME, &of_profile);
}

/// A server that needs no keys and answers as it is told. Its file is `s3://bucket/a`.
fn public() -> (TempDir, Server, Options) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bucket")).unwrap();
    fs::write(folder.path().join("bucket/a"), pattern(50_000, 1)).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let mut options = quick();
    options.settings = vec![("aws_endpoint_url".into(), server.url(""))];
    options.retry.deadline = Duration::ZERO;
    (folder, server, options)
}

fn reads_without_credentials(source: &dyn Source, server: &Server) {
    let mut read = vec![0; 1000];
    source.read_at(7, &mut read).unwrap();
    assert!(read == pattern(50_000, 1)[7..1007]);
    assert!(
        server
            .log()
            .iter()
            .all(|r| r.header("authorization").is_none())
    );
}

#[test]
fn without_credentials_none_are_sent_and_a_refusal_says_so() {
    let (_folder, server, options) = public();
    let source = open("s3://bucket/a", &options).unwrap();
    reads_without_credentials(&*source, &server);
    server.once("/bucket/a", Answer::Status(403, Vec::new()));
    let error = source.read_at(0, &mut [0; 1000]).unwrap_err();
    assert!(
        error.to_string().contains("no credentials were found"),
        "{error}"
    );
}

#[test]
fn what_a_store_does_wrong_is_told_apart_and_never_repeated_here() {
    let (_folder, server, options) = public();
    let source = open("s3://bucket/a", &options).unwrap();
    let read = |answer: Answer| {
        server.once("/bucket/a", answer);
        let asked = server.requests();
        let error = source.read_at(1000, &mut [0; 5000]).unwrap_err();
        assert_eq!(server.requests(), asked + 1, "{error}");
        error
    };
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let busy = read(Answer::Status(503, header("Retry-After", "3")));
    assert_eq!(busy.retry_after(), Some(Duration::from_secs(3)));
    assert!(read(Answer::DropAfter(100)).is_transient());
    assert!(read(Answer::DropAfter(0)).is_transient());
    for wrong in [
        Answer::Shorter(1),
        Answer::Later(1),
        Answer::FalseHead(1),
        Answer::Whole,
    ] {
        let error = read(wrong.clone());
        assert!(
            matches!(error, SourceError::WrongRange { .. }),
            "{wrong:?}: {error}"
        );
    }
    let error = read(Answer::Tagged("\"other\"".into()));
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    let error = read(Answer::Status(
        301,
        header("x-amz-bucket-region", "eu-west-1"),
    ));
    assert!(
        error.to_string().contains("AWS_REGION to eu-west-1"),
        "{error}"
    );
}

#[test]
fn public_objects_of_google_are_read_without_credentials() {
    let (_folder, server, mut options) = public();
    options.settings = vec![("google_base_url".into(), server.url(""))];
    let source = open("gs://bucket/a", &options).unwrap();
    reads_without_credentials(&*source, &server);
    let condition = server
        .log()
        .last()
        .and_then(|r| r.header("if-match").map(str::to_owned));
    assert_eq!(condition, source.version());
}
