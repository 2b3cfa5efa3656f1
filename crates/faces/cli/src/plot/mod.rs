//! `farpage plot`: a run with `--trace` as one HTML page that loads nothing from anywhere.

mod hosts;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use farpage_daemon::web::STYLE;

use crate::host::WhichHost;
use crate::stats::{FORMAT, Stats};

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// Draw the statistics of a traced run as an HTML page
///
/// Takes the file of `farpage run --trace --stats FILE`. The page stands alone: it loads nothing
/// from anywhere.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Statistics of a run with --trace
    #[arg(value_name = "STATS.json", required_unless_present = "cluster")]
    pub stats: Option<PathBuf>,
    /// Draw instead, for so long, what the hosts of a cluster own and send to one another
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10",
        conflicts_with = "stats", require_equals = true)]
    pub cluster: Option<u32>,
    #[command(flatten)]
    pub which: WhichHost,
    /// The page to write; `-` for standard output
    #[arg(short, long, value_name = "FILE", default_value = "farpage.html")]
    pub output: PathBuf,
}

/// Reads the statistics and writes the page.
///
/// # Errors
/// When the statistics can't be read or have no trace, or the page can't be written.
pub fn main(args: &PlotArgs) -> Result<()> {
    let page = match (&args.stats, args.cluster) {
        (_, Some(seconds)) => hosts::page(&args.which, seconds)?,
        (Some(stats), None) => of_run(stats)?,
        (None, None) => bail!("give the file of farpage run --trace --stats FILE, or --cluster"),
    };
    if args.output == Path::new("-") {
        std::io::stdout().write_all(page.as_bytes())?;
        return Ok(());
    }
    fs::write(&args.output, page).map_err(|error| {
        anyhow!(
            "cannot write '{}': {error}; give another path with -o",
            args.output.display()
        )
    })?;
    farpage_sys::say!("farpage: wrote {}", args.output.display());
    Ok(())
}

fn of_run(stats: &Path) -> Result<String> {
    let shown = stats.display();
    let text = fs::read_to_string(stats).map_err(|error| {
        anyhow!("cannot read '{shown}': {error}; give the file of farpage run --trace --stats FILE")
    })?;
    page(&shown.to_string(), &text)
}

/// The page for the statistics in `text`, which came from file `shown`.
fn page(shown: &str, text: &str) -> Result<String> {
    let value: serde_json::Value = serde_json::from_str(text).with_context(|| {
        format!("cannot plot '{shown}': it is not JSON; give a file that --stats wrote")
    })?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => bail!(
            "cannot plot '{shown}': it has format {format}, this farpage knows {FORMAT}; \
             use the farpage that wrote it"
        ),
        None => bail!(
            "cannot plot '{shown}': it is not the statistics of a run; \
             give a file that --stats wrote"
        ),
    }
    let stats: Stats = serde_json::from_value(value).with_context(|| {
        format!("cannot plot '{shown}': it is damaged; give a file that --stats wrote")
    })?;
    if stats.trace.is_none() {
        bail!(
            "cannot plot '{shown}': it has no trace; run the program again with \
             --trace --stats FILE"
        );
    }
    // Inside a script element only `<` could end it.
    let data = serde_json::to_string(&stats)?.replace('<', "\\u003c");
    Ok(PAGE
        .replacen("/*STYLE*/", STYLE, 1)
        .replacen("/*SCRIPT*/", SCRIPT, 1)
        .replacen("/*DATA*/", &data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(trace: &str, program: &str) -> String {
        format!(
            r#"{{"format":1,"farpage":"0.1.0","program":["{program}"],
            "exit":{{"code":0,"signal":null}},"wall_s":1.5,"kernel":"6.18","tier":"device",
            "settings":{{"ram_bytes":1,"compressed_max_bytes":0,"threshold_bytes":0,
            "spill_dirs":[],"spill_limit_bytes":null}},
            "peaks":{{"demand_bytes":0,"resident_bytes":0,"compressed_bytes":0,"used_bytes":0,
            "spilled_bytes":0}},"counters":{{"faults":3}},"compression_ratio":null,
            "stalled_share":0.0,"casualties":[],"trace":{trace}}}"#
        )
    }

    const TRACE: &str = r#"{"series":{"step_ms":50,"at_ms":[0],"demand_bytes":[0],
        "resident_bytes":[0],"compressed_bytes":[0],"compressed_from_bytes":[0],
        "spilled_bytes":[0],"faults":[0],"page_ins":[0],"page_outs":[0],"stall_us":[0]},
        "heat":{"column_ms":25,"row_bytes":4096,"rows":[],"cells":[],"events":0,"lost":0}}"#;

    #[test]
    fn the_page_stands_alone_and_its_data_cannot_end_the_script() {
        let page = page("s.json", &stats(TRACE, "</script><b>")).unwrap();
        assert!(page.contains("\\u003c/script>\\u003cb>"));
        assert!(!page.contains("</script><b>"));
        assert!(!page.contains("http"), "nothing is loaded from anywhere");
        for placeholder in ["/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"] {
            assert!(!page.contains(placeholder));
        }
    }

    #[test]
    fn what_cannot_be_plotted_is_refused_with_the_reason() {
        let refusal = |text: &str| page("s.json", text).unwrap_err().to_string();
        assert_eq!(
            refusal(&stats("null", "true")),
            "cannot plot 's.json': it has no trace; run the program again with \
             --trace --stats FILE"
        );
        assert!(refusal("hello").contains("it is not JSON"));
        assert!(refusal("{}").contains("not the statistics of a run"));
        assert!(refusal(r#"{"format":9}"#).contains("it has format 9"));
        assert!(refusal(r#"{"format":1}"#).contains("it is damaged"));
    }
}
