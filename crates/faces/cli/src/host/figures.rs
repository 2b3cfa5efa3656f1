//! `farpage stats`: how the host kernel and what it shares do, printed once.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use farpage_client::{Error, Host};
use farpage_daemon::hosts::{self, ClusterReading};
use farpage_daemon::reading::{FaultRates, HostReading, Row};
use farpage_default_pager::manager::paging::trouble;
use farpage_text::columns::{Side, columns};
use farpage_text::size::{human, human_count, human_time};

use super::WhichHost;
use super::list::{in_memory, mapped_by, name};

/// Between the two looks that figures a second are made of.
const BETWEEN: Duration = Duration::from_secs(1);

/// Say how the host kernel does: objects, faults, pagers, memory
///
/// Looks twice, a second apart. Root sees the objects of all users.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Prints figures.
///
/// # Errors
/// When no host kernel answers.
pub fn stats(args: &StatsArgs) -> Result<()> {
    let reading = args.which.ask(|host| twice(host, BETWEEN))?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&reading)?),
        false => out!("{}", text(&reading)),
    }
    Ok(())
}

/// Two looks, and what happened between them.
///
/// # Errors
/// When the host kernel does not answer.
pub fn twice(host: &Host, between: Duration) -> Result<HostReading, Error> {
    let (before, hosts_before) = (host.figures()?, hosts::look(host)?);
    std::thread::sleep(between);
    let (now, hosts_now) = (host.figures()?, hosts::look(host)?);
    let hosts_now = hosts_now.as_ref();
    let cluster = hosts_now.map(|now| ClusterReading::new(hosts_before.as_ref(), now));
    Ok(HostReading::new(Some(&before), &now).with(cluster))
}

/// A reading as lines of text.
pub fn text(reading: &HostReading) -> String {
    let mut text = summary(reading).join("\n") + "\n\n";
    let (left, right) = (Side::Left, Side::Right);
    let head = [
        "OBJECT",
        "SIZE",
        "MEMORY",
        "DIRTY",
        "WIRED",
        "FAULTS/S",
        "P50",
        "P99",
        "MAPPED BY",
    ];
    let rows = reading.objects.iter().map(|row| {
        let mut cells = cells(row);
        cells[2] = in_memory(&row.object);
        cells
    });
    let mut sides = [right; 9];
    (sides[0], sides[8]) = (left, left);
    text += &columns(sides, head, rows).join("\n");
    let head = [
        "PAGER", "OBJECTS", "CALLS", "OPEN", "CALLS/S", "P50", "P99", "HEALTH",
    ];
    let rows = reading.pagers.iter().map(|row| {
        let pager = &row.pager;
        let [per_second, p50, p99] = speed(&row.answers);
        [
            pager.name.clone(),
            human_count(pager.objects),
            human_count(pager.calls),
            human_count(pager.open),
            per_second,
            p50,
            p99,
            row.health.clone(),
        ]
    });
    let mut sides = [right; 8];
    (sides[0], sides[7]) = (left, left);
    text += &format!("\n\n{}\n", columns(sides, head, rows).join("\n"));
    if let Some(cluster) = &reading.cluster {
        text += &format!("\n{}", hosts::text(cluster));
    }
    text
}

/// An object, in the columns of `stats` and `top`.
pub fn cells(row: &Row) -> [String; 9] {
    let object = &row.object;
    let [per_second, p50, p99] = speed(&row.faulted);
    [
        name(object).to_owned(),
        human(object.bytes),
        human(object.resident_bytes),
        human(object.dirty_bytes),
        human(object.wired_bytes),
        per_second,
        p50,
        p99,
        mapped_by(object),
    ]
}

/// Memory, paging space and faults of all, a line each.
pub fn summary(reading: &HostReading) -> Vec<String> {
    let used = reading.resident_bytes + reading.compressed_bytes;
    let mut lines = vec![
        format!(
            "memory        {} of {}: pages {}, compressed {}; dirty {}, wired {}",
            human(used),
            human(reading.ram_bytes),
            human(reading.resident_bytes),
            human(reading.compressed_bytes),
            human(reading.dirty_bytes),
            human(reading.wired_bytes)
        ),
        format!(
            "faults        {}/s, half within {}, 99 of 100 within {}",
            human_count(reading.faults.per_second as u64),
            time(reading.faults.p50_us),
            time(reading.faults.p99_us)
        ),
    ];
    lines.extend(
        reading
            .default_pager
            .iter()
            .map(|who| format!("default pager {who}")),
    );
    let files = reading.paging_space.iter().flat_map(|space| &space.files);
    lines.extend(files.map(|file| {
        let limit = file.limit_bytes.map(human);
        format!(
            "paging file   {} of {} in {}{}",
            human(file.used_bytes),
            limit.unwrap_or_else(|| "what its disk has".into()),
            file.folder,
            match trouble(file.is_full, file.write_error) {
                Some(trouble) => format!("; {trouble}"),
                None => String::new(),
            }
        )
    }));
    if let Some(since_ns) = reading.no_room_ns {
        lines.push(format!(
            "NO ROOM       since {}: {} new pages refused; farpage ls says what to do",
            human_time(since_ns),
            reading.refused
        ));
    }
    lines
}

/// Faults a second and how long they take.
pub fn speed(faults: &FaultRates) -> [String; 3] {
    [
        human_count(faults.per_second as u64),
        time(faults.p50_us),
        time(faults.p99_us),
    ]
}

/// A time for people, two digits of it.
pub fn time(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 9.95 => format!("{us:.1} us"),
        Some(us) => human_time((us * 1e3) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_daemon::testing::figures;

    #[test]
    fn a_reading_is_a_page_of_text() {
        let mut reading = HostReading::new(Some(&figures(1)), &figures(3));
        let expected = "\
memory        700 MiB of 1.00 GiB: pages 600 MiB, compressed 100 MiB; dirty 240 MiB, wired 8.00 KiB
faults        500/s, half within 9.2 us, 99 of 100 within 9.2 us
paging file   2.00 GiB of 4.00 GiB in /var/tmp

OBJECT      SIZE   MEMORY    DIRTY     WIRED  FAULTS/S     P50     P99  MAPPED BY
-       1.00 GiB  300 MiB  120 MiB  4.00 KiB         0  295 us  295 us  71 72 (2 times)
grid    1.00 GiB  300 MiB  120 MiB  4.00 KiB       500  9.2 us  9.2 us  71 72 (2 times)

PAGER         OBJECTS  CALLS  OPEN  CALLS/S    P50    P99  HEALTH
paging space        2     30     0        5  53 us  53 us  well
";
        assert_eq!(text(&reading), expected);
        reading.no_room_ns = Some(5_000_000_000);
        assert!(text(&reading).contains("NO ROOM       since 5.00 s: 0 new pages refused"));
    }
}
