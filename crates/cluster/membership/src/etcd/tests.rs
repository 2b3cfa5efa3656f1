//! A server that says what a test wants it to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::endpoint::Endpoint;

const ATTEMPT: Duration = Duration::from_secs(120);
const LOGIN: &str = r#"{"header":{},"token":"T2"}"#;

/// Answers requests, each on a connection of its own, and tells what they were. The port is closed
/// then.
fn server(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let serve = move || {
        let answer = |answer: String| {
            let (mut stream, _) = listener.accept().expect("it is asked");
            let asked = request(&mut stream);
            // Who has had enough does not listen.
            let _ = stream.write_all(answer.as_bytes());
            asked
        };
        answers.into_iter().map(answer).collect()
    };
    (address, thread::spawn(serve))
}

fn request(stream: &mut TcpStream) -> String {
    let mut request = String::new();
    let length = |request: &str| {
        let (head, body) = request.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        let (_, length) = head.split_once("content-length: ")?;
        let length: usize = length
            .split_once("\r\n")
            .map_or(length, |l| l.0)
            .parse()
            .ok()?;
        Some(body.len() >= length)
    };
    while length(&request) != Some(true) {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("a request");
        assert!(count > 0, "cut off: {request}");
        request.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
    }
    request
}

fn says(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn etcd(login: &str, servers: &[&str]) -> Etcd {
    let endpoint = format!("etcd://{login}{}/x", servers.join(","));
    match Endpoint::parse(&endpoint) {
        Ok(Endpoint::Etcd(endpoint)) => Etcd::new(&endpoint, ATTEMPT),
        other => panic!("{endpoint}: {other:?}"),
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

#[test]
fn a_watch_whose_token_is_not_taken_is_made_with_a_new_one() {
    let refused = r#"{"result":{"created":true,"canceled":true,"cancel_reason":
        "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#
        .replace('\n', " ");
    let made = concat!(
        r#"{"result":{"created":true}}"#,
        "\n",
        r#"{"result":{"events":[{"kv":{"key":"YQ==","mod_revision":"2"}}]}}"#,
        "\n",
        r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#,
        "\n",
    );
    let (server, asked) = server(vec![
        says("200 OK", &LOGIN.replace("T2", "T1")),
        says("200 OK", &(refused + "\n")),
        says("200 OK", LOGIN),
        says("200 OK", made),
    ]);
    let etcd = etcd("u:hush@", &[&server]);
    wait(async {
        let mut watch = etcd.watch("a", 1).await.expect("it is made");
        let nothing = watch.next().await.expect("it was made");
        assert!(matches!(nothing, Watched::Changes(changes) if changes.is_empty()));
        let one = watch.next().await.expect("a change");
        assert!(matches!(one, Watched::Changes(changes) if changes.len() == 1));
        let ended = watch.next().await.err().expect("it ends").to_string();
        assert_eq!(ended, "the watch ended: etcdserver: no leader");
    });
    let asked = asked.join().expect("all was asked");
    let is_with = |token: &str, asked: &str| {
        asked.starts_with("POST /v3/watch HTTP/1.1\r\n")
            && asked.contains(&format!("authorization: {token}\r\n"))
            && asked.contains("grpc-metadata-hasleader: true\r\n")
    };
    assert!(
        is_with("T1", &asked[1]) && is_with("T2", &asked[3]),
        "{asked:?}"
    );
}

#[test]
fn a_refusal_is_told_at_once_and_an_unable_server_is_left() {
    let denied = r#"{"code":7, "message":"etcdserver: permission denied"}"#;
    let lost = r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#;
    let (first, _) = server(vec![says("403 Forbidden", denied), says("503 No", lost)]);
    let found = r#"{"header":{},"kvs":[{"key":"YQ==","mod_revision":"2","value":"eA=="}]}"#;
    let (second, _) = server(vec![says("200 OK", found)]);
    let etcd = etcd("", &[&first, &second]);
    wait(async {
        let said = etcd.get("a").await;
        assert!(
            matches!(&said, Err(StoreError::Refused(why)) if why == "etcdserver: permission denied"),
            "{said:?}"
        );
        let said = etcd.get("a").await;
        let expected = format!("{first}: etcdserver: no leader");
        assert!(
            matches!(&said, Err(StoreError::Silent(why)) if *why == expected),
            "{said:?}"
        );
        let found = etcd
            .get("a")
            .await
            .expect("another answers")
            .expect("found");
        assert_eq!(found.value, b"x");
    });
}

#[test]
fn what_is_not_etcd_is_left_with_a_word() {
    for (answer, word) in [
        (
            says("404 Not Found", "404 page not found"),
            "--enable-grpc-gateway",
        ),
        (says("200 OK", "<html></html>"), "--enable-grpc-gateway"),
        (says("503 No", "busy"), "503"),
        ("SSH-2.0-OpenSSH\r\n".into(), "HTTP"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".into(),
            "before",
        ),
        (
            says("200 OK", &" ".repeat(answers::ANSWER_BYTES_MAX + 1)),
            "limit",
        ),
        (String::new(), "closed"),
    ] {
        let (server, _) = server(vec![answer]);
        let said = wait(etcd("", &[&server]).get("a")).expect_err("refused");
        assert!(matches!(said, StoreError::Silent(_)), "{said}");
        assert!(said.to_string().contains(word), "{said}");
    }
}
