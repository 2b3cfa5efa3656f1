//! Commands with what they print and how they end, in `tests/cmd`.

#[test]
fn commands_say_what_they_always_said() {
    trycmd::TestCases::new()
        .env("TERM", "dumb")
        .env("FARPAGE_SPILL", "/var/tmp")
        .env("PATH", "/usr/bin:/bin")
        .case("tests/cmd/*.trycmd");
}
