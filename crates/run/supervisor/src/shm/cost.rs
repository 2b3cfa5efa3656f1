//! What memory that several hosts have in common has cost a run.

use farpage_server::Figures;
use serde::{Deserialize, Serialize};

use farpage_text::size::{counted, human};

/// What was done for an object.
#[derive(Default)]
pub struct Counted {
    /// What of it goes from host to host together.
    pub unit_bytes: u64,
    /// As far as it was looked at.
    pub figures: Figures,
}

/// For `--stats`, and the summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// The cluster, and where its store is.
    pub store: String,
    /// Objects that were mapped here.
    pub objects: u64,
    /// Pages (of --page-size) that threads of this host waited for to read, which another host had.
    pub read_misses: u64,
    /// The same, to write.
    pub write_misses: u64,
    /// Pages that were here to be read, and that threads waited for to write.
    pub upgrades: u64,
    /// Messages about pages to other hosts.
    pub messages_sent: u64,
    /// Contents of pages that went to other hosts.
    pub sent_bytes: u64,
}

impl Cost {
    /// Of all objects together.
    pub fn of<'a>(store: String, objects: impl Iterator<Item = &'a Counted>) -> Self {
        let mut cost = Self {
            store,
            ..Self::default()
        };
        for object in objects {
            let figures = &object.figures;
            cost.objects += 1;
            cost.read_misses += figures.read_misses;
            cost.write_misses += figures.write_misses;
            cost.upgrades += figures.upgrades;
            cost.messages_sent += figures.sent;
            cost.sent_bytes += figures.contents_sent * object.unit_bytes;
        }
        cost
    }

    /// A line.
    pub fn summary(&self) -> String {
        format!(
            "farpage: {}: {} mapped; waited for other hosts {} times to read, {} to write; sent {} to \
             them\n",
            self.store,
            counted(self.objects, "object"),
            self.read_misses,
            self.write_misses + self.upgrades,
            human(self.sent_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_sizes_are_counted_by_their_bytes() {
        let object = |unit_bytes, contents_sent| Counted {
            unit_bytes,
            figures: Figures {
                contents_sent,
                read_misses: 5,
                upgrades: 2,
                ..Figures::default()
            },
        };
        let cost = Cost::of("x".into(), [object(4096, 3), object(65536, 2)].iter());
        let expected = "farpage: x: 2 objects mapped; waited for other hosts 10 times to read, 4 to write; \
                        sent 140 KiB to them\n";
        assert_eq!(cost.summary(), expected);
    }
}
