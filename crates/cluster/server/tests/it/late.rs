//! Hosts that hear late who is in the cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farpage_host::Objects;
use farpage_membership::{Embedded, Endpoint};
use farpage_network::ClusterKey;
use farpage_server::{Cluster, Config, Consistency, Observer, Scheduler, Wish};
use farpage_testkit::pass;

use crate::support::Store;

const WISH: Wish = Wish {
    bytes: 1 << 20,
    unit_bytes: 4096,
    scheduler: Scheduler::Distributed,
    replicas: 1,
    hold_us: None,
    stale_us: None,
    consistency: Consistency::Strict,
    stays: false,
    note: String::new(),
};

/// Hears of others when it is let.
struct Late {
    comes: SyncSender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Observer for Late {
    fn say(&self, what: &str) {
        println!("late: {what}");
    }

    fn port_hosts_come(&self, stays: &[u64]) {
        if !stays.is_empty() && self.comes.send(()).is_ok() {
            // An error: it is let for good.
            let _ = self.goes_on.lock().unwrap().recv();
        }
    }
}

struct Quiet;

impl Observer for Quiet {
    fn say(&self, what: &str) {
        println!("quiet: {what}");
    }
}

/// A host of the cluster in `store`. No other process of this machine uses its address.
fn host(store: &Embedded, key: &ClusterKey, number: u8, observer: Arc<dyn Observer>) -> Cluster {
    let [.., a, b] = std::process::id().to_be_bytes();
    let listen = SocketAddr::from((Ipv4Addr::new(127, a, b, 10 + number), 7100));
    let endpoint = Endpoint::Embedded(store.clone());
    let config = Config {
        control: farpage_membership::Config::new(endpoint, listen, &format!("host {number}")),
        key: key.clone(),
        listen,
    };
    let objects = Objects::start(4 << 20).unwrap();
    Cluster::join(config, objects, Arc::new(Store::default()), observer).unwrap()
}

#[test]
fn memory_of_a_host_that_is_not_known_yet_is_not_taken_for_lost() {
    let store = Embedded::new();
    let folder = tempfile::tempdir().unwrap();
    let key = ClusterKey::create(folder.path()).unwrap();
    let (comes, come) = sync_channel(0);
    let (lets, goes_on) = channel();
    let late = Late {
        comes,
        goes_on: Mutex::new(goes_on),
    };
    let one = host(&store, &key, 1, Arc::new(late));
    let two = host(&store, &key, 2, Arc::new(Quiet));
    come.recv().unwrap();
    let (number, _, _made) = two.have("grid", 0, Some(&WISH), None).unwrap();
    std::thread::scope(|scope| {
        let has = scope.spawn(|| one.have("grid", 0, None, None).unwrap());
        // Time for what must not happen: that it decides without knowing the other.
        pass(Duration::from_millis(200));
        drop((come, lets));
        let (found, _, object) = has.join().unwrap();
        assert_eq!(found, number);
        let mut bytes = [1; 8];
        object.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    });
}
