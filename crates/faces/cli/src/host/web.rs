//! `farpage up --web`: where the web page is.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use clap::Args;

/// Where the page is when nothing is said.
const DEFAULT: &str = "127.0.0.1:7780";

/// The page.
#[derive(Args, Debug)]
pub struct WebArgs {
    /// Show how it does on a web page at ADDR:PORT, with Prometheus metrics at /metrics
    ///
    /// Everybody who can connect there can read names and figures of all shared memory; so
    /// addresses of other machines than this one need --web-public.
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = DEFAULT,
        value_parser = address)]
    pub web: Option<SocketAddr>,
    /// Let other machines read the web page
    #[arg(long, requires = "web")]
    pub web_public: bool,
}

/// Reads where the page should be.
fn address(text: &str) -> Result<SocketAddr, String> {
    let numbers = text.replacen("localhost:", "127.0.0.1:", 1);
    numbers.parse().map_err(|_| {
        format!(
            "'{text}' is not an address of this machine and a port; give \
             e.g. {DEFAULT} or [::1]:7780"
        )
    })
}

/// Refuses an address at which other machines could read the page, without the word for it.
///
/// # Errors
/// Then.
pub fn check(args: &WebArgs) -> Result<()> {
    match args.web {
        Some(address) if !address.ip().is_loopback() && !args.web_public => bail!(
            "cannot show a page at {address}: other machines could read it; give an address such \
             as {DEFAULT}, or also --web-public"
        ),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_others_need_a_word() {
        let args = |web: &str, web_public| WebArgs {
            web: Some(web.parse().unwrap()),
            web_public,
        };
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let refused = check(&args(address, false)).unwrap_err();
            assert!(refused.to_string().contains("--web-public"), "{refused}");
        }
        check(&args("[::1]:0", false)).unwrap();
        check(&args("0.0.0.0:0", true)).unwrap();
    }
}
