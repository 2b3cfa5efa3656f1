//! The settings of stores, for messages.

/// Those that say where the object called `name` is.
pub(crate) fn of_place(name: &str) -> &'static str {
    match scheme(name) {
        "gs" => "GOOGLE_BASE_URL and the service account",
        "az" | "abfs" | "abfss" => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
        _ => "AWS_ENDPOINT_URL and AWS_REGION",
    }
}

/// What to check when they do not make a store.
pub(crate) fn remedy(scheme: &str) -> &'static str {
    match scheme {
        "gs" => "check GOOGLE_APPLICATION_CREDENTIALS and the file that it names",
        "az" | "abfs" | "abfss" => {
            "set AZURE_STORAGE_ACCOUNT_NAME, and check AZURE_STORAGE_ACCOUNT_KEY"
        }
        _ => "check AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    }
}

fn scheme(name: &str) -> &str {
    name.split_once("://").map_or("", |(scheme, _)| scheme)
}
