//! Two tasks: one gives its port, the other looks at its memory and changes it.
//!
//! `cargo run -p farpage-task --example tasks`

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use farpage_port::Node;
use farpage_task::{AddressSpace, Inheritance, PAGE_BYTES, Protection, Task, TaskPort, VmError};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    match &std::env::args().collect::<Vec<_>>()[1..] {
        [] => offers(),
        [role, at] if role == "child" => child(at.parse()?),
        [path, at] => works_on(Path::new(path), at.parse()?),
        _ => Err("run it without arguments".into()),
    }
}

/// Has memory, and lets others work on it.
fn offers() -> Result<()> {
    let own = AddressSpace::own()?;
    let at = own.vm_allocate(0, 4 * PAGE_BYTES, true)?;
    own.vm_write(at, &page("the first page"))?;

    let folder = std::env::temp_dir().join(format!("farpage-tasks-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let path = folder.join("port");
    let node = Node::new()?;
    let port = TaskPort::offer(&node)?;
    let _listening = node.listen(&path, &port.right())?;
    let path = path.to_str().ok_or("a path")?.to_owned();
    print!("{}", run(&[&path, &at.to_string()])?);
    println!(
        "here:  {:?}",
        text(&own.vm_read(at + PAGE_BYTES, PAGE_BYTES)?.map()?)
    );

    // The first page is the other's as well, of a program that is executed.
    own.vm_inherit(at, PAGE_BYTES, Inheritance::Share)?;
    print!("{}", run(&["child", &at.to_string()])?);
    println!("here:  {:?}", text(&own.vm_read(at, PAGE_BYTES)?.map()?));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Another process, that has a right to the task's port.
fn works_on(path: &Path, at: u64) -> Result<()> {
    let node = Node::new()?;
    let task = Task::new(node.connect(path, Some(PATIENCE))?).with_timeout(PATIENCE);
    println!("there: {:?}", text(&task.vm_read(at, PAGE_BYTES)?.map()?));
    task.vm_copy(at, PAGE_BYTES, at + PAGE_BYTES)?;
    task.vm_write(at + PAGE_BYTES, &page("written by another process"))?;
    task.vm_protect(at + 2 * PAGE_BYTES, PAGE_BYTES, true, Protection::READ)?;
    for region in task.vm_regions(at, 4 * PAGE_BYTES)? {
        let pages = region.bytes / PAGE_BYTES;
        let can = if region.max_protection.write {
            "can"
        } else {
            "can never"
        };
        println!(
            "there: {pages} pages at {:#x} that {can} be written",
            region.address
        );
    }
    let refused = task.vm_write(at + 2 * PAGE_BYTES, &page("no"));
    println!("there: {}", refused.err().ok_or("it was not refused")?);
    let told = task.vm_statistics()?;
    println!("there: {} bytes are allocated", told.allocated_bytes);
    Ok(())
}

/// A program that was executed: what is shared lies where it did.
fn child(at: u64) -> Result<()> {
    let own = AddressSpace::own()?;
    println!("child: {:?}", text(&own.vm_read(at, PAGE_BYTES)?.map()?));
    own.vm_write(at, &page("written by the child"))?;
    let not_inherited = own.vm_read(at + PAGE_BYTES, PAGE_BYTES);
    assert!(matches!(not_inherited, Err(VmError::InvalidAddress { .. })));
    Ok(())
}

fn run(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    let child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("the other process ended with {}", output.status).into());
    }
    let lines = BufReader::new(&output.stdout[..]).lines();
    Ok(lines
        .map_while(std::result::Result::ok)
        .map(|line| line + "\n")
        .collect())
}

fn page(text: &str) -> Vec<u8> {
    let mut page = text.as_bytes().to_vec();
    page.resize(PAGE_BYTES as usize, 0);
    page
}

fn text(page: &[u8]) -> &str {
    let end = page
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(page.len());
    std::str::from_utf8(&page[..end]).unwrap_or("no text")
}
