//! `farpage ports`: ports of the cluster that have names.

use anyhow::Result;
use clap::Args;
use farpage_client::PortsListed;
use farpage_text::columns::{Side, columns};
use farpage_text::size::counted;

use super::WhichHost;

/// List the ports of the cluster that programs find by name
///
/// Those of this user; root sees those of all.
#[derive(Args, Debug)]
pub struct PortsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Prints what there is.
///
/// # Errors
/// When no host kernel answers, or it is in no cluster.
pub fn ports(args: &PortsArgs) -> Result<()> {
    let listed = args.which.ask(|host| host.ports())?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&listed)?),
        false => out!("{}", table(&listed)),
    }
    Ok(())
}

fn table(listed: &PortsListed) -> String {
    let sides = [Side::Left, Side::Left, Side::Right];
    let rows = listed.named.iter().map(|one| {
        let host = match one.is_own {
            true => format!("{} (this host)", one.host),
            false => one.host.clone(),
        };
        [one.name.clone(), host, one.uid.to_string()]
    });
    let mut lines = match listed.named.is_empty() {
        true => vec!["no port has a name".to_owned()],
        false => columns(sides, ["port", "host", "user"], rows),
    };
    let right = |count| counted(count, "right");
    lines.push(format!(
        "other hosts have {} to ports of this host; it has {} to theirs",
        right(listed.held_by_others),
        right(listed.held_of_others)
    ));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_client::PortListed;

    #[test]
    fn a_line_says_what_there_is_and_how_much_is_held() {
        let port = |name: &str, is_own| PortListed {
            name: name.into(),
            host: "a".into(),
            is_own,
            uid: 1000,
        };
        let mut listed = PortsListed {
            named: vec![port("clock", true), port("x", false)],
            held_by_others: 1,
            held_of_others: 2,
        };
        let held = "other hosts have 1 right to ports of this host; it has 2 rights to theirs\n";
        let table_of =
            "port   host           user\nclock  a (this host)  1000\nx      a              1000\n";
        assert_eq!(table(&listed), format!("{table_of}{held}"));
        listed.named.clear();
        assert_eq!(table(&listed), format!("no port has a name\n{held}"));
    }
}
