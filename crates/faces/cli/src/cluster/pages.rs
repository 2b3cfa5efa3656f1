//! `farpage pages`: the pages of an object of the cluster that cost most, and why.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use farpage_client::cluster::{Holds, PageAtHost, PageChanged, PageTold, PagesTold, PagesWanted};
use farpage_object::PAGE_BYTES;
use farpage_text::columns::{Side, columns};
use farpage_text::size::human;

use crate::host::WhichHost;

/// Bytes of a word, as they are compared.
const WORD_BYTES: u64 = 8;
/// Words of a page of Linux.
const LINUX_WORDS: u32 = (PAGE_BYTES as u64 / WORD_BYTES) as u32;
/// Pages that hosts tell of at a time.
const PAGES_MAX: u32 = 256;
/// Runs of words that are said of a host.
const RUNS_MAX: usize = 6;
/// Between two questions while it is looked at what hosts change.
const EVERY: Duration = Duration::from_secs(1);

/// Show the pages of cluster memory that most messages were sent for, over all hosts
///
/// Of each page: who owns it and who has copies, faults (to read, to write, to write what was here to be
/// read), messages, of those requests that were sent on, and how often it was taken from a host that
/// had it. All since the hosts have it.
#[derive(Args, Debug)]
pub struct PagesArgs {
    /// What it is called
    pub name: String,
    /// How many pages
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub most: u32,
    /// Look for so long at which words of these pages each host changes, and say whether hosts only
    /// share a page and no words
    ///
    /// Each host compares what it had when it might write with what it gives away: so words that are
    /// written with what they had already, or only read, are not seen.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "3")]
    pub words: Option<u32>,
    /// A page by its number, and not those with most messages; may be given again
    #[arg(long, value_name = "NUMBER")]
    pub page: Vec<u64>,
    /// Show each host's part
    #[arg(long)]
    pub hosts: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Prints them.
///
/// # Errors
/// When the host kernel is in no cluster, or there is no such memory.
pub fn pages(args: &PagesArgs) -> Result<()> {
    if args.most == 0 || args.most > PAGES_MAX {
        bail!(
            "--most {} cannot be; give 1 to {PAGES_MAX}, or pages by their numbers (--page)",
            args.most
        );
    }
    if args.page.len() > PAGES_MAX as usize {
        bail!("hosts tell of {PAGES_MAX} pages at a time; give fewer --page");
    }
    if args
        .words
        .is_some_and(|seconds| !(1..=3600).contains(&seconds))
    {
        bail!("--words takes 1 to 3600 seconds; give e.g. --words 3");
    }
    let told = args.which.ask(|host| {
        let mut which = args.page.clone();
        let mut told = PagesTold::default();
        if which.is_empty() {
            told = host.pages(&args.name, PagesWanted::Hottest(args.most))?;
            which = told.pages.iter().map(|page| page.page).collect();
        }
        let until = Duration::from_secs(args.words.unwrap_or(0).into());
        if !args.page.is_empty() || args.words.is_some() {
            let look = || host.pages(&args.name, PagesWanted::Watched(which.clone()));
            let began = Instant::now();
            told = look()?;
            while began.elapsed() < until {
                std::thread::sleep(EVERY.min(until.saturating_sub(began.elapsed())));
                told = look()?;
            }
        }
        Ok(told)
    })?;
    let beyond = told.bytes.div_ceil(told.page_bytes.max(1));
    if let Some(page) = args.page.iter().find(|page| **page >= beyond) {
        bail!(
            "'{}' has no page {page}; give 0 to {}",
            args.name,
            beyond.saturating_sub(1)
        );
    }
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&told)?),
        false => out!("{}", text(&told, args.hosts, args.words.is_some())),
    }
    Ok(())
}

/// As text.
fn text(told: &PagesTold, each_host: bool, with_words: bool) -> String {
    let mut text = format!(
        "{}: {} in pages of {}\n",
        told.name,
        human(told.bytes),
        human(told.page_bytes)
    );
    if !told.silent.is_empty() {
        let silent = names(told, &told.silent);
        text += &format!("not told by {silent}, which leave the cluster or have too much to do\n");
    }
    if told.pages.is_empty() {
        return text + "no message was sent for any page of it\n";
    }
    text += &format!("\n{}\n", table(told, each_host));
    if with_words {
        text.push('\n');
        for page in &told.pages {
            text += &said_of_words(told, page);
        }
    }
    text
}

fn table(told: &PagesTold, each_host: bool) -> String {
    let (left, right) = (Side::Left, Side::Right);
    let mut rows = Vec::new();
    for page in &told.pages {
        let sum = |of: fn(&PageAtHost) -> u32| -> String {
            let all = page.hosts.iter().map(|host| u64::from(of(host)));
            all.sum::<u64>().to_string()
        };
        rows.push([
            page.page.to_string(),
            format!("{:#x}", page.page * told.page_bytes),
            page.owner.map_or("-".into(), |owner| name(told, owner)),
            match page.copies.is_empty() {
                true => "-".into(),
                false => names(told, &page.copies),
            },
            sum(|host| host.read_misses),
            sum(|host| host.write_misses),
            sum(|host| host.upgrades),
            page.messages().to_string(),
            sum(|host| host.forwarded),
            sum(|host| host.taken),
        ]);
        if each_host {
            rows.extend(page.hosts.iter().map(|host| of_host(told, host)));
        }
    }
    let head = [
        "PAGE",
        "OFFSET",
        "OWNER",
        "COPIES",
        "READ",
        "WRITE",
        "UPGRADE",
        "MESSAGES",
        "FORWARDED",
        "TAKEN",
    ];
    let sides = [
        right, right, left, left, right, right, right, right, right, right,
    ];
    columns(sides, head, rows.into_iter()).join("\n")
}

fn of_host(told: &PagesTold, host: &PageAtHost) -> [String; 10] {
    let holds = match host.holds {
        Holds::Owner => "owns it".to_owned(),
        Holds::Copy => format!("a copy of {}'s", name(told, host.believes)),
        Holds::Nothing => format!("asks {}", name(told, host.believes)),
    };
    let number = |number: u32| number.to_string();
    [
        String::new(),
        String::new(),
        format!("  {}", name(told, host.host)),
        holds,
        number(host.read_misses),
        number(host.write_misses),
        number(host.upgrades),
        number(host.sent),
        number(host.forwarded),
        number(host.taken),
    ]
}

/// What a host is called.
fn name(told: &PagesTold, host: u8) -> String {
    let found = told.hosts.iter().find(|(number, _)| *number == host);
    found.map_or_else(|| format!("host {host}"), |(_, name)| name.clone())
}

fn names(told: &PagesTold, hosts: &[u8]) -> String {
    let all: Vec<String> = hosts.iter().map(|host| name(told, *host)).collect();
    all.join(" ")
}

/// How the words that hosts change lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// No host changed anything, as far as was seen.
    Nothing,
    /// One did.
    One,
    /// Several did, no word in common.
    False,
    /// Several did, and these words more than one of them.
    True { words: u32 },
}

fn sharing(page: &PageTold) -> Sharing {
    let changed = page.hosts.iter().filter_map(|host| host.changed.as_ref());
    let changed: Vec<_> = changed
        .filter(|changed| !changed.words.is_empty())
        .collect();
    let mut times: BTreeMap<u32, u32> = BTreeMap::new();
    for words in changed.iter().map(|changed| &changed.words) {
        for word in words
            .iter()
            .flat_map(|(first, count)| *first..first + count)
        {
            *times.entry(word).or_default() += 1;
        }
    }
    let in_common = times.values().filter(|times| **times > 1).count() as u32;
    match (changed.len(), in_common) {
        (0, _) => Sharing::Nothing,
        (1, _) => Sharing::One,
        (_, 0) => Sharing::False,
        (_, words) => Sharing::True { words },
    }
}

fn said_of_words(told: &PagesTold, page: &PageTold) -> String {
    let mut text = format!(
        "page {} (offset {:#x}): ",
        page.page,
        page.page * told.page_bytes
    );
    let is_cut = |host: &PageAtHost| host.changed.as_ref().is_some_and(|changed| changed.is_cut);
    let is_cut = page.hosts.iter().any(is_cut);
    text += &match sharing(page) {
        Sharing::Nothing if is_fetched_ahead(told, page) => {
            "no thread faulted on it: hosts fetch it ahead of need, with pages near it".to_owned()
        }
        Sharing::Nothing => "no host changed a word while it was looked at".to_owned(),
        Sharing::One => {
            "one host changes it; others only read it, or write what was there".to_owned()
        }
        Sharing::False if is_cut => {
            "hosts change different words, of those that are told: false sharing, most likely; "
                .to_owned()
                + &advice(told, page)
        }
        Sharing::False => {
            "hosts change different words: false sharing; ".to_owned() + &advice(told, page)
        }
        Sharing::True { words: 1 } => "hosts change the same word: it is shared".to_owned(),
        Sharing::True { words } => format!("hosts change the same {words} words: it is shared"),
    };
    text.push('\n');
    for host in &page.hosts {
        let Some(changed) = &host.changed else {
            continue;
        };
        if changed.words.is_empty() && changed.by.is_empty() {
            continue;
        }
        text += &format!(
            "    {}: {}, in {} turns\n",
            name(told, host.host),
            runs(&changed.words, changed.is_cut),
            changed.turns
        );
        for (who, times) in &changed.by {
            text += &format!("        {times} faults of {who}\n");
        }
    }
    text
}

/// True of a page that goes from host to host, and that nobody waits for; where it is known who waits for
/// others.
fn is_fetched_ahead(told: &PagesTold, page: &PageTold) -> bool {
    let changed = |page: &PageTold, is: fn(&PageChanged) -> bool| {
        let mut all = page.hosts.iter().filter_map(|host| host.changed.as_ref());
        all.any(is)
    };
    let is_known = told
        .pages
        .iter()
        .any(|page| changed(page, |one| !one.by.is_empty()));
    is_known && changed(page, |one| one.turns > 0) && !changed(page, |one| !one.by.is_empty())
}

/// What to do about false sharing.
fn advice(told: &PagesTold, page: &PageTold) -> String {
    let changed = page.hosts.iter().filter_map(|host| host.changed.as_ref());
    let mut of: BTreeMap<u32, usize> = BTreeMap::new();
    let mut apart = true;
    for (at, changed) in changed.enumerate() {
        for (first, count) in &changed.words {
            for part in first / LINUX_WORDS..=(first + count - 1) / LINUX_WORDS {
                apart &= *of.entry(part).or_insert(at) == at;
            }
        }
    }
    match apart && told.page_bytes > PAGE_BYTES as u64 {
        true => {
            "make the memory with smaller pages (--page-size 4K), which they do not share".into()
        }
        false => format!(
            "give what each host writes pages of its own ({} apart)",
            human(told.page_bytes)
        ),
    }
}

fn runs(words: &[(u32, u32)], is_cut: bool) -> String {
    if words.is_empty() {
        return "no word".into();
    }
    let run = |(first, count): &(u32, u32)| match count {
        1 => first.to_string(),
        count => format!("{first} to {}", first + count - 1),
    };
    let shown: Vec<String> = words.iter().take(RUNS_MAX).map(run).collect();
    let more = match is_cut || words.len() > RUNS_MAX {
        true => " and more",
        false => "",
    };
    let words = match words {
        [(_, 1)] if !is_cut => "word",
        _ => "words",
    };
    format!("{words} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(page_bytes: u64, hosts: &[&[(u32, u32)]]) -> PagesTold {
        let host = |(number, words): (usize, &&[(u32, u32)])| PageAtHost {
            host: number as u8,
            write_misses: 10,
            sent: 20,
            taken: 9,
            changed: Some(PageChanged {
                turns: 9,
                words: words.to_vec(),
                by: vec![(format!("7{number} python3 in add (libm.so)"), 9)],
                ..PageChanged::default()
            }),
            ..PageAtHost::default()
        };
        PagesTold {
            name: "grid".into(),
            bytes: 1 << 20,
            page_bytes,
            hosts: (0..).zip(["a".to_owned(), "b".into()]).collect(),
            silent: Vec::new(),
            pages: vec![PageTold {
                page: 17,
                owner: Some(1),
                copies: vec![0],
                hosts: hosts.iter().enumerate().map(host).collect(),
            }],
        }
    }

    #[test]
    fn a_page_on_which_hosts_write_different_words_is_named() {
        let told = told(4096, &[&[(0, 64)], &[(64, 64)]]);
        let expected = "\
grid: 1.00 MiB in pages of 4.00 KiB

PAGE   OFFSET  OWNER  COPIES  READ  WRITE  UPGRADE  MESSAGES  FORWARDED  TAKEN
  17  0x11000  b      a          0     20        0        40          0     18

page 17 (offset 0x11000): hosts change different words: false sharing; give what each host writes pages \
of its own (4.00 KiB apart)
    a: words 0 to 63, in 9 turns
        9 faults of 70 python3 in add (libm.so)
    b: words 64 to 127, in 9 turns
        9 faults of 71 python3 in add (libm.so)
";
        assert_eq!(text(&told, false, true), expected);
    }

    #[test]
    fn what_is_shared_indeed_is_not_called_false() {
        let of = |hosts: &[&[(u32, u32)]]| sharing(&told(4096, hosts).pages[0]);
        assert_eq!(of(&[&[(0, 4)], &[(3, 2)]]), Sharing::True { words: 1 });
        assert_eq!(of(&[&[(0, 4)], &[(4, 2)]]), Sharing::False);
        assert_eq!(of(&[&[(0, 4)], &[]]), Sharing::One);
        assert_eq!(of(&[&[], &[]]), Sharing::Nothing);
    }

    #[test]
    fn a_page_that_nobody_waits_for_is_said_to_be_fetched_ahead() {
        let mut told = told(4096, &[&[(0, 4)], &[(4, 2)]]);
        let mut ahead = told.pages[0].clone();
        for changed in ahead
            .hosts
            .iter_mut()
            .filter_map(|host| host.changed.as_mut())
        {
            (changed.words, changed.by) = (Vec::new(), Vec::new());
        }
        told.pages.push(ahead);
        assert!(said_of_words(&told, &told.pages[1]).contains("hosts fetch it ahead of need"));
        told.pages.remove(0);
        let said = said_of_words(&told, &told.pages[0]);
        assert!(
            said.contains("no host changed a word"),
            "who waits is not known: {said}"
        );
    }

    #[test]
    fn smaller_pages_are_named_where_they_help() {
        let says = |hosts: &[&[(u32, u32)]]| {
            let told = told(65536, hosts);
            advice(&told, &told.pages[0])
        };
        assert!(says(&[&[(0, 512)], &[(512, 1)]]).contains("--page-size 4K"));
        assert!(says(&[&[(0, 512)], &[(511, 1)]]).contains("64.0 KiB apart"));
    }

    #[test]
    fn each_host_is_shown_when_that_is_asked_for() {
        let shown = text(&told(4096, &[&[], &[]]), true, false);
        assert!(shown.contains("  a    asks a"), "{shown}");
        let mut none = told(4096, &[]);
        (none.pages, none.silent) = (Vec::new(), vec![1]);
        let shown = text(&none, false, false);
        assert!(
            shown.contains("not told by b") && shown.contains("no message was sent"),
            "{shown}"
        );
    }
}
