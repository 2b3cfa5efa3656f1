//! A thread that panics takes the process along: others would wait for what it was to do for ever.

use std::backtrace::Backtrace;

use farpage_sys::say;

/// From now on a panic ends this process with SIGABRT, and says where it was.
pub fn end_the_process() {
    std::panic::set_hook(Box::new(|panic| {
        say!("farpage: this is a bug of Farpage, and ends this process: {panic}");
        say!("{}", Backtrace::force_capture());
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const IS_TO_PANIC: &str = "FARPAGE_TEST_PANICS";

    #[test]
    fn a_thread_that_panics_ends_the_process_and_is_heard_of() {
        if std::env::var_os(IS_TO_PANIC).is_some() {
            end_the_process();
            let thread = std::thread::spawn(|| panic!("by intent"));
            // Without the hook the test passes here.
            let _ = thread.join();
            return;
        }
        let name = "panics::tests::a_thread_that_panics_ends_the_process_and_is_heard_of";
        let ended = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(IS_TO_PANIC, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(6), "{said}");
        assert!(
            said.contains("ends this process") && said.contains("by intent"),
            "{said}"
        );
        assert!(said.contains("panics.rs"), "where it was: {said}");
    }
}
