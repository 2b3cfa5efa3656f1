//! `farpage plot --cluster`: what the hosts of a cluster send to one another, and own, for some seconds.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use farpage_daemon::hosts::{ClusterReading, look};
use farpage_daemon::web::{FIGURES, STYLE};
use serde::Serialize;

use crate::host::WhichHost;

const PAGE: &str = include_str!("hosts.html");
const SCRIPT: &str = include_str!("hosts.js");
/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// An hour.
const SECONDS_MAX: u32 = 3600;

/// What was seen.
#[derive(Serialize)]
struct Recording {
    seconds: f64,
    /// From the first look to the last.
    mean: ClusterReading,
    /// From each look to the next.
    looks: Vec<ClusterReading>,
}

/// Looks for so many seconds. The page.
///
/// # Errors
/// When the host kernel is in no cluster, or does not answer.
pub fn page(which: &WhichHost, seconds: u32) -> Result<String> {
    if !(1..=SECONDS_MAX).contains(&seconds) {
        bail!("--cluster takes 1 to {SECONDS_MAX} seconds; give e.g. --cluster 10");
    }
    let all = which.ask(|host| {
        let (began, mut all) = (Instant::now(), vec![host.cluster_figures()?]);
        while began.elapsed() < Duration::from_secs(seconds.into()) {
            std::thread::sleep(EVERY);
            all.extend(look(host)?);
        }
        Ok(all)
    })?;
    let looks = all.windows(2);
    let looks = looks.map(|two| ClusterReading::new(Some(&two[0]), &two[1]));
    let mean = ClusterReading::new(all.first(), &all[all.len() - 1]);
    drawn(&Recording {
        seconds: mean.seconds,
        looks: looks.collect(),
        mean,
    })
}

fn drawn(recording: &Recording) -> Result<String> {
    // Inside a script element only `<` could end it.
    let data = serde_json::to_string(recording)?.replace('<', "\\u003c");
    Ok(PAGE
        .replacen("/*STYLE*/", STYLE, 1)
        .replacen("/*SCRIPT*/", &[FIGURES, SCRIPT].concat(), 1)
        .replacen("/*DATA*/", &data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_daemon::testing::cluster_figures as figures;

    #[test]
    fn the_page_stands_alone_and_names_cannot_end_the_script() {
        let mut last = figures(3);
        last.hosts[1].name = "</script><b>".into();
        let mean = ClusterReading::new(Some(&figures(1)), &last);
        let recording = Recording {
            seconds: mean.seconds,
            looks: vec![mean.clone()],
            mean,
        };
        let page = drawn(&recording).unwrap();
        assert!(page.contains("\\u003c/script>\\u003cb>") && !page.contains("</script><b>"));
        for placeholder in ["/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"] {
            assert!(!page.contains(placeholder));
        }
        let own = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains("http"), "nothing is loaded from anywhere");
    }
}
