//! What a host kernel answers, when it is none.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use farpage_client::Host;
use farpage_port::{Listening, Node};

use super::interface::message;

struct Liar {
    host: Host,
    answer: Arc<Mutex<Vec<u8>>>,
    _listening: Listening,
}

fn liar() -> &'static Liar {
    static LIAR: OnceLock<Liar> = OnceLock::new();
    LIAR.get_or_init(|| {
        let node = Node::new().expect("a Node");
        let port = node.port();
        let path = PathBuf::from(format!(
            "{}/farpage-fuzz-{}",
            temporary(),
            std::process::id()
        ));
        let listening = node.listen(&path, &port.make_send()).expect("listening");
        let answer = Arc::new(Mutex::new(Vec::new()));
        let lies = Arc::clone(&answer);
        std::thread::spawn(move || {
            while let Ok(mut call) = port.receive(None) {
                // Each answer begins as the call did.
                let head = call.bytes.get(..12).unwrap_or_default().to_vec();
                let lie = message(&node, &head, &lies.lock().expect("mine"));
                let _ = call.answer(lie);
            }
        });
        Liar {
            host: Host::connect(&path).expect("connected"),
            answer,
            _listening: listening,
        }
    })
}

fn temporary() -> String {
    std::env::temp_dir().to_string_lossy().into_owned()
}

/// A client of the host kernel gets answers or errors, whatever is answered.
pub(crate) fn run(input: &[u8]) {
    let it = liar();
    *it.answer.lock().expect("mine") = input.to_vec();
    let errors = [
        it.host.list().err(),
        it.host.status().err(),
        it.host.figures().err(),
        it.host.messages("x", 0).err(),
        it.host.pagers().err(),
        it.host.unlink("x").err(),
        it.host.open("x").err(),
    ];
    for error in errors.into_iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
}

/// Answers to some of the questions.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 1, 1, b'a', 128, 32, 128, 32, 0, 7, 1, 7],
        vec![0, 7, 128, 32, 128, 32, 1],
        vec![0, 1],
        vec![1, 1, 128, 32],
        vec![0, 0, 1, 1, b'x'],
        vec![0, 1, 5, 0],
        vec![0, 1, 1, b'p', 128, 32, 7, 1, 0, 1, 2, 0, 0],
    ]
}
