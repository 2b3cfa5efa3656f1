//! The files in which the tools of AWS keep keys: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::{env, fs};

/// The settings of the profile that `AWS_PROFILE` names, or of `default`. Those that need other
/// programs or services (single sign-on, `credential_process`, roles to assume) are not followed.
pub(crate) fn load() -> HashMap<String, String> {
    let name = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into());
    let file = |variable: &str, usual: &str| {
        let home = || env::home_dir().unwrap_or_default().join(usual);
        let path = env::var_os(variable).map_or_else(home, PathBuf::from);
        fs::read_to_string(path).unwrap_or_default()
    };
    let config = file("AWS_CONFIG_FILE", ".aws/config");
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
    let mut all = section(&config, &[&format!("profile {name}"), &name]);
    all.extend(section(&credentials, &[&name]));
    all
}

/// The pairs of the sections that have one of `names`.
fn section(text: &str, names: &[&str]) -> HashMap<String, String> {
    let mut inside = false;
    let mut all = HashMap::new();
    for line in text.lines() {
        // Pairs that belong to the one above are indented.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.starts_with(['#', ';']) || is_nested {
            continue;
        }
        let header = line.strip_prefix('[').and_then(|l| l.split_once(']'));
        if let Some((header, _)) = header {
            let words: Vec<&str> = header.split_whitespace().collect();
            inside = names.contains(&words.join(" ").as_str());
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            all.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_its_own_pairs_and_no_others() {
        let text = "\
[default]
aws_access_key_id = A
# comment = 1
[profile  far]
Region=eu-central-1
s3 =
  endpoint_url = nested
aws_access_key_id = B==
[other]
aws_access_key_id = C
";
        let far = section(text, &["profile far", "far"]);
        assert_eq!(far["region"], "eu-central-1");
        assert_eq!(far["aws_access_key_id"], "B==");
        assert!(!far.contains_key("endpoint_url"));
        assert_eq!(section(text, &["profile default", "default"]).len(), 1);
        assert!(section(text, &["profile none", "none"]).is_empty());
    }
}
