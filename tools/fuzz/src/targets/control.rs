//! What other hosts of a cluster stored, and addresses of stores.

use farpage_membership::{Endpoint, HOSTS_MAX, record};

pub(crate) fn run(input: &[u8]) {
    let _ = record::check_format(input);
    let _ = record::decode_number(input);
    if let Ok(members) = record::decode_members(input) {
        let stays: Vec<_> = members.members().values().map(|m| m.incarnation).collect();
        assert!(stays.len() <= HOSTS_MAX);
        assert!((1..stays.len()).all(|n| !stays[..n].contains(&stays[n])));
    }
    if let Ok(object) = record::decode_object(input) {
        let what = object.description;
        assert!(what.bytes > 0 && what.bytes % what.page_bytes == 0);
        assert!(
            object
                .name
                .is_none_or(|name| !name.is_empty() && !name.contains('/'))
        );
    }
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(endpoint) = Endpoint::parse(text)
    {
        // What is shown is an endpoint, too: the same without the password.
        let shown = endpoint.to_string();
        let again = Endpoint::parse(&shown).expect("what is shown can be read");
        assert_eq!(shown, again.to_string());
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let member = r#"{"incarnation":1,"address":"[::1]:7000","name":"a","page_bytes":4096,
        "representation":{"little_endian":true,"pointer_bits":64,"architecture":"x86_64"}}"#;
    let object = r#"{"name":"grid","description":{"bytes":8192,"page_bytes":4096,
        "scheduler":"distributed","replicas":2,"durability":"flushed",
        "home":{"slot":0,"incarnation":1},"uid":0,"stays":true,"note":""},"made_by":1,"attempt":1}"#;
    let values = [
        "\"farpage-membership\"".into(),
        "7".into(),
        format!(r#"{{"next":2,"members":{{"0":{member}}}}}"#),
        object.into(),
    ];
    let records = values.map(|value: String| format!(r#"{{"version":1,"value":{value}}}"#));
    let endpoints = [
        "etcd://u:p@a:2379,[::1]:2380/name",
        "etcds://a:1/x",
        "embedded:",
    ];
    let all = records.into_iter().chain(endpoints.map(String::from));
    all.map(String::into_bytes).collect()
}
