//! Tasks in processes of their own.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use farpage_port::{Message, Node, ReceiveRight, Right, SendRight};
use farpage_task::{
    BOUNDS, Inheritance, PAGE_BYTES as PAGE, Protection, Task, TaskError, TaskPort,
};

use super::{PATIENCE, get, pages, set};

const ROLE: &str = "FARPAGE_TASK_ROLE";
const GET: u32 = 1;
const SET: u32 = 2;
const END: u32 = 3;
const LEND: u32 = 4;

/// A task that serves its port, and does what it is told.
pub struct Target {
    pub child: Child,
    pub task: Task,
    pub node: Node,
    control: SendRight,
    port: ReceiveRight,
}

/// A process that does all to a target, for ever.
pub struct Caller(pub Child);

fn sockets() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn start(role: &str, node: &Node, port: &ReceiveRight) -> Child {
    let (own, other) = sockets();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tasks::the_program", "--nocapture"]);
    let child = command
        .env(ROLE, role)
        .stdin(Stdio::from(other))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    node.offer_over(own, &port.make_send()).unwrap();
    child
}

impl Target {
    pub fn start(role: &str) -> Self {
        let node = Node::new().unwrap();
        let port = node.port();
        let child = start(role, &node, &port);
        let first = port.receive(Some(PATIENCE)).unwrap();
        let mut rights = first
            .rights
            .into_iter()
            .map(|right| right.into_send().unwrap());
        let task = Task::new(rights.next().unwrap()).with_timeout(PATIENCE);
        let control = rights.next().unwrap();
        Self {
            child,
            task,
            node,
            control,
            port,
        }
    }

    fn tell(&self, id: u32, words: &[u64]) -> u64 {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let message = Message {
            bytes,
            ..Message::new(id)
        };
        let answer = self.control.call(message, Some(PATIENCE)).unwrap();
        u64::from_ne_bytes(answer.bytes[..].try_into().unwrap())
    }

    /// What its own thread sees at `at`.
    pub fn get(&self, at: u64) -> u64 {
        self.tell(GET, &[at])
    }

    /// Has its own thread write.
    pub fn set(&self, at: u64, value: u64) {
        self.tell(SET, &[at, value]);
    }

    /// It was not harmed: it ends when it is told to.
    pub fn ends_well(mut self) {
        self.tell(END, &[]);
        assert!(self.child.wait().unwrap().success());
    }

    /// What its descriptors are of.
    pub fn descriptors(&self) -> Vec<String> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.map(|link| link.display().to_string()).collect()
    }

    /// What Linux has where memory is allocated.
    pub fn maps_in_bounds(&self) -> Vec<String> {
        let all = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let is_in = |line: &&str| {
            let start = line.split('-').next().unwrap();
            BOUNDS.contains(&u64::from_str_radix(start, 16).unwrap())
        };
        all.lines().filter(is_in).map(str::to_owned).collect()
    }

    /// A process with a right to the task's port.
    pub fn caller(&self) -> Caller {
        let child = start("call", &self.node, &self.port);
        let call = self.port.receive(Some(PATIENCE)).unwrap();
        let Some(Right::SendOnce(reply)) = call.reply else {
            panic!("it asks for the right");
        };
        let message = Message {
            rights: vec![self.task.right().clone().into()],
            ..Message::new(LEND)
        };
        reply.send(message).unwrap();
        Caller(child)
    }

    /// Calls with all numbers that are dangerous somewhere, also of addresses that hold its own
    /// code, stack, and Farpage's memory.
    pub fn attack_by_numbers(&self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let start = |line: &str| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let mut addresses: Vec<u64> = maps.lines().map(start).collect();
        addresses.retain(|at| !BOUNDS.contains(at));
        let edges = [
            0,
            1,
            PAGE,
            BOUNDS.start - PAGE,
            BOUNDS.end,
            1 << 47,
            1 << 63,
            !0,
            !0 - PAGE,
        ];
        addresses.extend(edges);
        let task = &self.task;
        let here = task.vm_allocate(0, PAGE, true).unwrap();
        for &at in &addresses {
            for bytes in [PAGE, 1 << 20, 1 << 62, !0, !0 - PAGE + 1] {
                assert!(task.vm_allocate(at, bytes, false).is_err());
                assert!(task.vm_deallocate(at, bytes).is_err());
                assert!(task.vm_inherit(at, bytes, Inheritance::None).is_err());
                assert!(task.vm_protect(at, bytes, false, Protection::NONE).is_err());
                assert!(task.vm_copy(here, bytes, at).is_err());
                let _ = task.vm_regions(at, bytes);
                let _ = task.vm_read(at, bytes.min(1 << 40));
            }
            assert!(task.vm_write(at, &pages(&[1])).is_err());
            assert!(task.vm_write(at, &pages(&[1; 32])).is_err());
        }
        task.vm_deallocate(here, PAGE).unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Caller {
    /// It is in the middle of what it does.
    pub fn has_begun(&mut self) {
        let mut says = BufReader::new(self.0.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("> calling") {
            line.clear();
            assert!(says.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        // Nobody reads what it says from now on, and it says nothing.
        self.0.stdout = Some(says.into_inner());
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// FNV-1a of the interface's name.
pub fn interface_number() -> [u8; 4] {
    let mix = |id: u32, byte: &u8| (id ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    b"farpage.task".iter().fold(0x811c_9dc5, mix).to_le_bytes()
}

/// Each of the nine.
pub fn all(task: &Task) -> Result<(), TaskError> {
    let at = task.vm_allocate(0, 64 * PAGE, true)?;
    task.vm_write(at, &pages(&[1; 32]))?;
    task.vm_copy(at, 32 * PAGE, at + 32 * PAGE)?;
    task.vm_inherit(at, 8 * PAGE, Inheritance::Share)?;
    task.vm_protect(at + 4 * PAGE, 4 * PAGE, false, Protection::READ)?;
    task.vm_read(at, 64 * PAGE)?;
    task.vm_regions(at, 64 * PAGE)?;
    task.vm_statistics()?;
    task.vm_deallocate(at, 64 * PAGE)
}

/// What a process of its own does.
pub fn the_target() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let node = Node::new().unwrap();
    let parent = node.connect_over(socket, Some(PATIENCE)).unwrap();
    if role == "call" {
        let mut lent = parent.call(Message::new(LEND), Some(PATIENCE)).unwrap();
        let task = Task::new(lent.rights.remove(0).into_send().unwrap());
        println!("> calling");
        while all(&task).is_ok() {}
        return;
    }
    let port = TaskPort::offer(&node).unwrap();
    let control = node.port();
    let rights = vec![port.right().into(), control.make_send().into()];
    let hello = Message {
        rights,
        ..Message::new(0)
    };
    parent.send(hello, Some(PATIENCE)).unwrap();
    loop {
        let mut told = control.receive(None).unwrap();
        if told.notice().is_some() {
            return;
        }
        let mut words = told
            .bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        let value = match told.id {
            GET => get(words.next().unwrap()),
            SET => {
                set(words.next().unwrap(), words.next().unwrap());
                0
            }
            _ => 0,
        };
        let is_end = told.id == END;
        let bytes = value.to_ne_bytes().to_vec();
        told.answer(Message {
            bytes,
            ..Message::new(0)
        })
        .unwrap();
        if is_end {
            return;
        }
    }
}
