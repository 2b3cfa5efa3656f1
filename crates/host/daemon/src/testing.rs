//! Figures for tests of what shows them.

use farpage_client::cluster::{ClusterFigures, ClusterObject, HostFigures, HostFlow};
use farpage_client::{Figures, ObjectFigures, PagerFigures};
use farpage_default_pager::manager::paging::{PagingFile, PagingSpace};
/// What a host kernel may say, with so much more of it each time.
pub fn figures(time: u64) -> Figures {
    let object = |number: u32, name: &str, faults: u32| ObjectFigures {
        number,
        name: name.into(),
        bytes: 1 << 30,
        uid: 1000,
        pid: 71,
        mapped_by: vec![(71, 1), (72, 2)],
        resident_bytes: 300 << 20,
        dirty_bytes: 120 << 20,
        aside_bytes: 30 << 20,
        wired_bytes: 4096,
        ram_bytes: None,
        paged_in_bytes: time << 22,
        paged_out_bytes: time << 21,
        failed: 0,
        faults: vec![(20, time as u32 * faults), (40, time as u32)],
        pager: 0,
    };
    Figures {
        at_ns: 1_700_000_000_000_000_000 + time * 2_000_000_000,
        pid: 70,
        ram_bytes: 1 << 30,
        resident_bytes: 600 << 20,
        objects_all: 2,
        objects: vec![object(1, "", 0), object(2, "grid", 999)],
        pagers: vec![PagerFigures {
            name: "paging space".into(),
            objects: 2,
            calls: time * 10,
            times: vec![(30, time as u32 * 10)],
            ..PagerFigures::default()
        }],
        paging_space: Some(PagingSpace {
            compressed_bytes: 100 << 20,
            compressed_max_bytes: 256 << 20,
            files: vec![PagingFile {
                folder: "/var/tmp".into(),
                used_bytes: 2 << 30,
                limit_bytes: Some(4 << 30),
                is_full: false,
                write_error: None,
            }],
            ..PagingSpace::default()
        }),
        no_room: None,
    }
}

/// What two hosts may tell, with so much more of it each time.
pub fn cluster_figures(time: u64) -> ClusterFigures {
    let host = |number: u8, name: &str, messages: u64| HostFigures {
        number,
        name: name.into(),
        is_own: number == 0,
        has_told: true,
        flows: vec![HostFlow {
            to: 1 - number,
            messages: time * messages,
            bytes: time * messages * 4096,
        }],
    };
    ClusterFigures {
        at_ns: time * 2_000_000_000,
        objects: vec![ClusterObject {
            number: 7,
            name: "grid".into(),
            bytes: 1 << 20,
            page_bytes: 4096,
            write_misses: time * 300,
            sent: time * 600,
            owned: vec![(0, 64), (1, 128)],
            ..ClusterObject::default()
        }],
        hosts: vec![host(0, "a", 400), host(1, "b", 200)],
    }
}
