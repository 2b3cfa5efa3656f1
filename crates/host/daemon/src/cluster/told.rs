//! What hosts tell of themselves, put together for users.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use farpage_client::cluster::{
    ClusterFigures, ClusterObject, Holds, HostFigures, HostFlow, PageAtHost, PageChanged, PageTold,
    PagesTold,
};
use farpage_membership::Description;
use farpage_server::{State, UnitFigures, Units};
/// Pages of an object, from what each host told of them; in this order, or the hottest first.
pub fn pages(
    name: &str,
    described: &Description,
    state: &State,
    told: Units,
    order: Option<&[u64]>,
) -> PagesTold {
    let hosts = state.members.values();
    let mut silent: Vec<u8> = state.members.keys().copied().collect();
    silent.retain(|host| !told.contains_key(host));
    let mut pages: BTreeMap<u64, PageTold> = BTreeMap::new();
    for (host, units) in told {
        for unit in units {
            let page = pages.entry(unit.unit).or_default();
            page.page = unit.unit;
            let is_owner = unit.holds == farpage_server::Holds::Owner;
            if is_owner || page.owner.is_none() && unit.copies.is_some() {
                // The simple scheduler's home knows, too, who has what nobody may write: itself.
                page.owner = Some(unit.owner);
            }
            if let Some(copies) = unit.copies {
                page.copies = (0..64).filter(|host| copies >> host & 1 == 1).collect();
            }
            page.hosts.push(at_host(host, unit));
        }
    }
    let pages = match order {
        Some(order) => order.iter().filter_map(|page| pages.remove(page)).collect(),
        None => {
            let mut all: Vec<PageTold> = pages.into_values().collect();
            all.sort_by_key(|page| (std::cmp::Reverse(page.messages()), page.page));
            all
        }
    };
    PagesTold {
        name: name.into(),
        bytes: described.bytes,
        page_bytes: described.page_bytes,
        hosts: hosts
            .map(|member| (member.host.0, member.name.clone()))
            .collect(),
        silent,
        pages,
    }
}

fn at_host(host: u8, unit: UnitFigures) -> PageAtHost {
    let counts = unit.counts;
    PageAtHost {
        host,
        holds: match unit.holds {
            farpage_server::Holds::Owner => Holds::Owner,
            farpage_server::Holds::Copy => Holds::Copy,
            farpage_server::Holds::Nothing => Holds::Nothing,
        },
        believes: unit.owner,
        read_misses: counts.read_misses,
        write_misses: counts.write_misses,
        upgrades: counts.upgrades,
        sent: counts.sent,
        received: counts.received,
        forwarded: counts.forwarded,
        taken: counts.taken,
        changed: unit.changed.map(|changed| PageChanged {
            turns: changed.turns,
            words: changed.words,
            is_cut: changed.is_cut,
            by: changed.by,
        }),
    }
}

/// What all hosts do, from what each told.
pub fn figures(
    state: &State,
    own: u8,
    uid: u32,
    mut told: BTreeMap<u8, farpage_server::HostFigures>,
) -> ClusterFigures {
    let visible = state.objects.iter();
    let visible = visible.filter(|(_, (_, described))| uid == 0 || uid == described.uid);
    let objects = visible.map(|(number, (name, described))| {
        let mut object = ClusterObject {
            number: *number,
            name: name.clone().unwrap_or_default(),
            bytes: described.bytes,
            page_bytes: described.page_bytes,
            home: described.home.slot.0,
            ..ClusterObject::default()
        };
        for (host, figures) in &told {
            let here = figures.objects.iter().find(|(other, _)| other == number);
            let Some((_, figures)) = here else {
                continue;
            };
            object.read_misses += figures.read_misses;
            object.write_misses += figures.write_misses;
            object.upgrades += figures.upgrades;
            object.sent += figures.sent;
            object.forwarded += figures.forwarded;
            object.owned.push((*host, figures.owned));
            object.copies.push((*host, figures.copies));
        }
        object
    });
    let objects = objects.collect();
    let hosts = state.members.values().map(|member| {
        let figures = told.remove(&member.host.0);
        HostFigures {
            number: member.host.0,
            name: member.name.clone(),
            is_own: member.host.0 == own,
            has_told: figures.is_some(),
            flows: figures.map_or_else(Vec::new, |figures| {
                let flow = |flow: farpage_server::Flow| HostFlow {
                    to: flow.to,
                    messages: flow.messages,
                    bytes: flow.bytes,
                };
                figures.flows.into_iter().map(flow).collect()
            }),
        }
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    ClusterFigures {
        at_ns: since.map_or(0, |since| since.as_nanos() as u64),
        hosts: hosts.collect(),
        objects,
    }
}
