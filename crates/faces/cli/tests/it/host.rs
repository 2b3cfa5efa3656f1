//! `farpage up` and the commands that ask it, as processes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use farpage_client::locks::Hold;
use farpage_client::{Error, Host, Refusal};
use farpage_testkit::Started;

use crate::support::up::{HANGS, Up, farpage, until};

const PROGRAM: &str = "FARPAGE_TEST_FILLS";

/// Fills an object with what does not compress; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(bytes) = std::env::var(PROGRAM) else {
        return;
    };
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    let shared = host.create("filled", bytes.parse().unwrap()).unwrap();
    let mut seed = 1u64;
    for word in shared.words() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        word.store(seed, Ordering::Relaxed);
    }
}

fn fill(up: &Up, bytes: u64) -> Started {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["host::the_program", "--exact", "--nocapture"]);
    command.env(PROGRAM, bytes.to_string());
    command.env("FARPAGE_HOST", up.socket());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    Started::new(&mut command)
}

#[test]
fn when_paging_space_is_full_it_says_so_and_there_is_nothing_new_until_there_is_room() {
    let up = Up::start(&[
        "--spill-limit",
        "8M",
        "--compressed",
        "0",
        "--when-full",
        "kill",
    ]);
    let host = up.host();
    let kept = host.create("kept", 4 << 20).unwrap();
    let pages = || kept.words().iter().step_by(512);
    pages().for_each(|word| word.store(7, Ordering::Relaxed));
    let fills = fill(&up, 64 << 20).output();
    assert_eq!(fills.status.signal(), Some(7), "SIGBUS");
    let why = String::from_utf8(fills.stderr).unwrap();
    let part = "gets SIGBUS: it uses 'filled' at byte";
    assert!(why.contains(part), "{why} / {}", up.ends());
    let most = host.figures().unwrap().resident_bytes;
    assert!(most <= 20 << 20, "{most} of 16 MiB");
    // Now its object is gone, and so is what it had.
    until("there is room", || {
        host.figures().unwrap().no_room.is_none()
    });
    assert!(!up.says(&["ls"]).contains("paging space is full"));
    let wrong = pages().filter(|word| word.load(Ordering::Relaxed) != 7);
    assert_eq!(wrong.count(), 0, "what exists stays");
    assert!(fill(&up, 10 << 20).wait().unwrap().success());
    drop(kept);
    let said = up.ends();
    // The second program can come before all that the first one had is gone.
    let count = |part: &str| said.matches(part).count();
    let times = count("farpage: paging space is full, and");
    assert!((1..=2).contains(&times), "{said}");
    assert_eq!(count("farpage: there is room again"), times, "{said}");
    assert!(said.contains("cannot page in 'filled' at byte"), "{said}");
}

#[test]
fn who_touches_new_pages_then_waits_and_goes_on() {
    let up = Up::start(&["--spill-limit", "8M", "--compressed", "0"]);
    let host = up.host();
    let old = host.create("old", 12 << 20).unwrap();
    let pages = old.words().iter().step_by(512);
    pages.for_each(|word| word.store(7, Ordering::Relaxed));
    let mut fills = fill(&up, 20 << 20);
    // So long that it was said.
    let is_said = |(since_ns, _)| since_ns > 1_000_000_000;
    until("it is full", || {
        host.figures().unwrap().no_room.is_some_and(is_said)
    });
    assert!(fills.try_wait().unwrap().is_none(), "it waits");
    let listed = up.says(&["ls"]);
    assert!(listed.contains("paging space is full since"), "{listed}");
    host.unlink("old").unwrap();
    drop(old);
    assert!(fills.wait().unwrap().success());
    let said = up.ends();
    let waits = "programs that touch new pages of it wait for room, and get SIGBUS after 3600 s";
    assert!(said.contains(waits), "{said}");
    assert!(
        said.contains("farpage: there is room again; 0 new pages"),
        "{said}"
    );
}

#[test]
fn new_objects_are_refused_while_paging_space_is_full() {
    let up = Up::start(&["--spill-limit", "1M", "--compressed", "0"]);
    let host = up.host();
    let big = host.create("big", 64 << 20).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As much as fits, and a little more: this process waits for room then.
            let words = big.words().iter().step_by(512).take((19 << 20) / 4096);
            let mut seed = 1;
            for word in words {
                seed += 1;
                word.store(seed, Ordering::Relaxed);
            }
        });
        until("it refuses", || match host.create("small", 4096) {
            Err(Error::Refused(refusal @ Refusal::NoRoom { .. })) => {
                let said = refusal.to_string();
                assert!(said.contains("farpage rm"), "{said}");
                true
            }
            _ => false,
        });
        // More of the paging space cannot be had here: the process that waits must not die of it.
        host.unlink("big").unwrap();
    });
}

#[test]
fn users_and_objects_keep_within_what_they_may_have() {
    const MIB: u64 = 1 << 20;
    let up = Up::start(&["--ram", "64M", "--user-ram", "8M"]);
    let host = up.host();
    let [one, other] = ["one", "other"].map(|name| host.create(name, 16 * MIB).unwrap());
    let resident = |name: &str| {
        let all = host.list().unwrap();
        let found = all.iter().filter(|it| name.is_empty() || it.name == name);
        found.map(|it| it.resident_bytes).sum::<u64>()
    };
    let mut most = 0;
    for shared in [&one, &other] {
        for (at, word) in shared.words().iter().enumerate().step_by(512) {
            word.store(at as u64 ^ 0x5a5a, Ordering::Relaxed);
            if at % (512 * 256) == 0 {
                most = most.max(resident(""));
            }
        }
    }
    assert!(most <= 10 * MIB, "{most} of 8 MiB");
    until("they keep within 8 MiB", || resident("") <= 8 * MIB);

    one.set_ram(MIB).unwrap();
    let check = |shared: &farpage_client::Shared| {
        let words = shared.words().iter().enumerate().step_by(512);
        let mut wrong =
            words.filter(|(at, word)| word.load(Ordering::Relaxed) != *at as u64 ^ 0x5a5a);
        assert_eq!(wrong.next().map(|(at, _)| at), None);
    };
    check(&one);
    until("it keeps within 1 MiB", || resident("one") <= MIB);
    check(&other);
    assert!(resident("other") > 4 * MIB, "the rest is for the other");
    one.set_ram(16 * MIB).unwrap();
    check(&one);
    assert!(resident("one") > 3 * MIB);
    let refused = one.set_ram(4096).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Ram(4096))));
    let refused = up.asks(&["up", "--user-ram", "1M"]);
    let says = String::from_utf8(refused.stderr).unwrap();
    assert!(says.contains("1048576 bytes: give 4M or more"), "{says}");
}

#[test]
fn what_is_wired_stays_in_memory_as_long_as_the_right_to_that() {
    const MIB: u64 = 1 << 20;
    let up = Up::start(&[]);
    let host = up.host();
    let kept = host.create("kept", 12 * MIB).unwrap();
    let wire = kept.wire(3 * MIB, 2 * MIB).unwrap();
    let object = || {
        let all = host.figures().unwrap().objects;
        all.into_iter().find(|it| it.name == "kept").unwrap()
    };
    assert_eq!(object().wired_bytes, 2 * MIB);
    let press = || {
        let other = host.create("", 48 * MIB).unwrap();
        for word in other.words().iter().step_by(512) {
            word.store(1, Ordering::Relaxed);
        }
    };
    for word in kept.words().iter().step_by(512) {
        word.store(2, Ordering::Relaxed);
    }
    press();
    assert!(object().resident_bytes >= 2 * MIB);
    for refused in [
        kept.wire(0, 7 * MIB),
        kept.wire(u64::MAX, 2),
        kept.wire(0, 0),
    ] {
        let error = refused.err().unwrap();
        assert!(
            matches!(
                error,
                Error::Refused(Refusal::Wired(..) | Refusal::Outside(_))
            ),
            "{error}"
        );
    }
    let refused = kept.set_ram(3 * MIB).unwrap_err();
    assert!(
        matches!(refused, Error::Refused(Refusal::RamWired(..))),
        "{refused}"
    );
    drop(wire);
    until("it is not wired", || object().wired_bytes == 0);
    press();
    until("it leaves", || {
        press();
        object().resident_bytes < 2 * MIB
    });
    assert!(
        kept.words()
            .iter()
            .step_by(512)
            .all(|word| word.load(Ordering::Relaxed) == 2)
    );
}

#[test]
fn a_process_that_maps_twice_is_listed_once_with_its_count() {
    let up = Up::start(&[]);
    let host = up.host();
    let _one = host.create("grid", 1 << 20).unwrap();
    let _again = host.open("grid").unwrap();
    let pid = std::process::id();
    assert!(up.says(&["ls"]).contains(&format!("{pid} (2 times)\n")));
    let json = up.says(&["ls", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(listed[0]["mapped_by"], serde_json::json!([pid]), "{json}");
}

#[test]
fn top_leaves_the_terminal_as_it_was_when_a_signal_ends_it() {
    let up = Up::start(&[]);
    let program = "
import os, pty, signal, sys, termios
farpage, number = sys.argv[1], int(sys.argv[2])
own, theirs = pty.openpty()
termios.tcsetwinsize(theirs, (24, 80))
signal.alarm(120)
before = termios.tcgetattr(theirs)
child = os.fork()
if child == 0:
    os.login_tty(theirs)
    os.execv(farpage, [farpage, 'top'])
seen = b''
while b'\\x1b[?1049h' not in seen or b'farpage up' not in seen:
    seen += os.read(own, 65536)
assert termios.tcgetattr(theirs) != before
os.kill(child, number)
while b'\\x1b[?1049l' not in seen:
    seen += os.read(own, 65536)
_, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == number, status
assert termios.tcgetattr(theirs) == before
";
    for number in ["1", "2", "15"] {
        let mut python = Command::new("python3");
        python.args(["-c", program, env!("CARGO_BIN_EXE_farpage"), number]);
        python.env("FARPAGE_HOST", up.socket());
        python.env("TERM", "xterm");
        let got = python.output().unwrap();
        assert!(got.status.success(), "signal {number}: {got:?}");
    }
}

#[test]
fn a_stopped_host_kernel_is_named_with_what_to_do() {
    let up = Up::start(&[]);
    up.signal("-STOP");
    let mut asks = farpage(&["ls"], &up.socket());
    let mut asks = Started::new(asks.stderr(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    let errors = asks.stderr.as_mut().unwrap();
    BufReader::new(errors).read_line(&mut line).unwrap();
    let pid = up.child.id();
    for part in [
        format!("(process {pid}) is stopped, and has not answered for "),
        format!("kill -CONT {pid}"),
    ] {
        assert!(line.contains(&part), "{line}");
    }
    up.signal("-CONT");
    assert!(asks.output().status.success());
}

#[test]
fn stats_say_how_fast_faults_are_answered() {
    let up = Up::start(&[]);
    let host = up.host();
    let shared = host.create("grid", 24 << 20).unwrap();
    let json = std::thread::scope(|scope| {
        let asked = scope.spawn(|| up.says(&["stats", "--json"]));
        while !asked.is_finished() {
            let words = shared.words().iter().step_by(512);
            words.for_each(|word| word.store(1, Ordering::Relaxed));
        }
        asked.join().unwrap()
    });
    let reading: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(
        reading["faults"]["per_second"].as_f64().unwrap() > 0.0,
        "{json}"
    );
    let grid = &reading["objects"][0];
    assert_eq!(grid["name"], "grid");
    assert!(grid["faulted"]["p99_us"].as_f64() >= grid["faulted"]["p50_us"].as_f64());
    assert_eq!(reading["pagers"][0]["health"], "well");
    let text = up.says(&["stats"]);
    for part in ["memory  ", "FAULTS/S", "paging space", "paging file"] {
        assert!(text.contains(part), "{text}");
    }
}

/// What a web server at `address` answers: the status line, and all.
fn get(address: &str, path: &str, headers: &str) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANGS)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.lines().next().unwrap().to_owned(), answer)
}

#[test]
fn the_page_is_live_and_answers_nobody_but_itself() {
    let mut up = Up::start(&["--web", "127.0.0.1:0"]);
    let line = up.line();
    let address = line
        .split("http://")
        .nth(1)
        .unwrap()
        .trim()
        .trim_end_matches('/');
    let host = up.host();
    let shared = host.create("grid", 24 << 20).unwrap();
    let words = shared.words().iter().step_by(512);
    words.for_each(|word| word.store(1, Ordering::Relaxed));
    let own = format!("Host: {address}\r\n");
    let (status, page) = get(address, "/", &own);
    assert_eq!(status, "HTTP/1.1 200 OK");
    for part in [
        "<title>farpage up</title>",
        "content-security-policy: default-src 'none'",
    ] {
        assert!(page.contains(part), "{page}");
    }
    until("it is shown", || {
        get(address, "/figures.json", &own)
            .1
            .contains("\"name\":\"grid\"")
    });
    let (_, metrics) = get(address, "/metrics", &own);
    assert!(
        metrics.contains("farpage_object_resident_bytes{name=\"grid\""),
        "{metrics}"
    );
    for (path, headers, wanted) in [
        ("/", "Host: evil.example\r\n".to_owned(), "421"),
        (
            "/figures.json",
            format!("{own}Origin: http://evil.example\r\n"),
            "403",
        ),
        (
            "/figures.json",
            format!("{own}Sec-Fetch-Site: cross-site\r\n"),
            "403",
        ),
        ("/none", own.clone(), "404"),
    ] {
        let (status, answer) = get(address, path, &headers);
        assert!(
            status.contains(wanted) && !answer.contains("grid"),
            "{answer}"
        );
    }
}

#[test]
fn messages_are_shown_as_they_come() {
    let up = Up::start(&[]);
    let host = up.host();
    let shared = host.create("grid", 24 << 20).unwrap();
    let socket = up.socket();
    let mut trace = farpage(&["trace", "grid", "--count", "500"], &socket);
    let mut trace = Started::new(trace.stdout(Stdio::piped()));
    while trace.try_wait().unwrap().is_none() {
        let words = shared.words().iter().step_by(512);
        words.for_each(|word| word.store(1, Ordering::Relaxed));
    }
    let mut said = String::new();
    let mut all = trace.stdout.take().unwrap();
    all.read_to_string(&mut said).unwrap();
    let own = format!("  {} ", std::process::id());
    for part in ["  write  ", "  return  ", "  taken  ", "  aside  ", &own] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let refused = up.asks(&["trace", "none"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        why.contains("there is no shared memory object 'none'"),
        "{why}"
    );
}

#[test]
fn top_prints_once_where_there_is_no_terminal() {
    let up = Up::start(&[]);
    let _shared = up.host().create("grid", 1 << 20).unwrap();
    let said = up.says(&["top"]);
    assert!(
        said.starts_with("memory  ") && said.contains("grid"),
        "{said}"
    );
}

#[test]
fn a_host_kernel_that_cannot_start_says_why_and_leaves_nothing() {
    let up = Up::start(&[]);
    let socket = up.socket();
    let refused = |args: &[&str]| {
        let output = farpage(&["up"], &socket).args(args).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let says = refused(&["--socket", socket.to_str().unwrap()]);
    let process = format!("already (process {})", up.child.id());
    assert!(says.contains(&process), "{says}");
    let folder = socket.with_file_name("none");
    let says = refused(&["--socket", folder.join("host").to_str().unwrap()]);
    assert!(
        says.contains("there is no folder") && !folder.exists(),
        "{says}"
    );
    let says = refused(&["--web", "7780"]);
    assert!(says.contains("give e.g. 127.0.0.1:7780"), "{says}");
}

#[test]
fn another_users_host_kernel_is_refused_with_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may be another user");
        return;
    }
    let up = Up::start(&[]);
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(up.folder.path(), all).unwrap();
    let socket = up.socket();
    let as_other = move || {
        let other = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        Host::connect(&socket).err().unwrap()
    };
    let error = std::thread::spawn(as_other).join().unwrap();
    assert!(matches!(error, Error::Denied(_, 0)), "{error}");
    assert!(
        error.to_string().contains("start one of your own"),
        "{error}"
    );
}

#[test]
fn what_a_killed_host_kernel_leaves_is_removed_and_what_is_used_stays() {
    let mut up = Up::start(&[]);
    let socket = up.socket();
    let path = socket.to_str().unwrap().to_owned();
    up.says(&["gc", "--socket", &path]);
    assert!(socket.exists(), "it is used");
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    assert!(
        up.says(&["gc", "--socket", &path, "--dry-run"])
            .contains(&path)
    );
    assert!(socket.exists());
    assert!(up.says(&["gc", "--socket", &path]).contains(&path));
    assert!(!socket.exists());
}

#[test]
fn a_socket_that_a_service_manager_gives_is_used_and_left_in_its_place() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given");
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::empty());
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    let ready = std::os::unix::net::UnixDatagram::bind(folder.path().join("ready")).unwrap();
    let script = "exec 3<&$0; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, &socket.as_raw_fd().to_string()]);
    command.args([env!("CARGO_BIN_EXE_farpage"), "up", "--ram", "16M"]);
    command.env("NOTIFY_SOCKET", folder.path().join("ready"));
    let child = Started::new(command.stderr(Stdio::piped()).stdout(Stdio::null()));
    drop(socket);
    let output = None;
    let mut up = Up {
        folder,
        child,
        output,
    };
    let mut word = [0; 64];
    ready.set_read_timeout(Some(HANGS)).unwrap();
    let bytes = ready.recv(&mut word).unwrap();
    assert_eq!(&word[..bytes], b"READY=1\n");
    let given = up.folder.path().join("given");
    let host = Host::connect(&given).unwrap();
    let _shared = host.create("grid", 1 << 20).unwrap();
    let listed = farpage(&["ls"], &given).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("grid"));
    up.signal("-TERM");
    assert!(up.child.wait().unwrap().success());
    assert!(given.exists(), "it is the service manager's");
}

#[test]
fn locks_of_shared_memory_are_listed_as_long_as_they_are_held() {
    let up = Up::start(&["--lock-limit", "2M", "--frames", "nobody"]);
    let host = up.host();
    assert_eq!(up.says(&["locks"]), "nothing is locked\n");
    let file = rustix::fs::memfd_create("grid", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4 << 20).unwrap();
    let resident = host.lock_file(&file, 0..10, Hold::Resident).unwrap();
    let pinned = host.lock_file(&file, 1 << 20..2 << 20, Hold::Pinned);
    let pinned = pinned.unwrap();
    pinned.lend("ring").unwrap();
    let borrowed = host.borrow_lock("ring").unwrap();
    let pid = std::process::id();
    let user = rustix::process::geteuid().as_raw();
    let said = up.says(&["locks"]);
    let words: Vec<Vec<&str>> = said
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let (process, user) = (pid.to_string(), user.to_string());
    let own = process.as_str();
    let wanted: [&[&str]; 7] = [
        &["MEMORY", "SIZE", "PROCESS", "RESIDENT", "PINNED", "LOCKS"],
        &[
            "memfd:grid",
            "4.00",
            "MiB",
            own,
            "4.00",
            "KiB",
            "1.00",
            "MiB",
            "3",
        ],
        &[],
        &["LENT", "MEMORY", "FROM", "BYTE", "SIZE", "HOW", "USERS"],
        &[
            "ring",
            "memfd:grid",
            "1048576",
            "1.00",
            "MiB",
            "pinned",
            own,
        ],
        &[],
        &[
            "user", &user, "has", "1.00", "MiB", "of", "2.00", "MiB", "locked",
        ],
    ];
    assert_eq!(words, wanted, "{said}");
    let json: serde_json::Value = serde_json::from_str(&up.says(&["locks", "--json"])).unwrap();
    assert_eq!(json["processes"][0]["pinned_bytes"], 1 << 20);
    assert_eq!(json["lent"][0]["users"], serde_json::json!([pid]));
    let refused = pinned.frames().unwrap_err().to_string();
    assert!(refused.contains("tells them to nobody"), "{refused}");
    let more = host.lock_file(&file, 0..4 << 20, Hold::Pinned).unwrap_err();
    assert!(more.to_string().contains("may have 2048 KiB"), "{more}");
    drop((resident, pinned, borrowed));
    until("they are gone", || {
        up.says(&["locks"]) == "nothing is locked\n"
    });
    for (option, value, says) in [
        ("--frames", "no such", "there is no user 'no such'"),
        ("--lock-limit", "much", "cannot read --lock-limit 'much'"),
    ] {
        let refused = String::from_utf8(up.asks(&["up", option, value]).stderr).unwrap();
        assert!(refused.contains(says), "{refused}");
    }
}
