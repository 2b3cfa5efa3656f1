//! Makes code of the schemas that the peers need; without them, nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "peers")]
    capnpc::CompilerCommand::new()
        .src_prefix("src/rpc/peers")
        .default_parent_module(["rpc", "peers", "cap_n_proto"].map(String::from).into())
        .file("src/rpc/peers/echo.capnp")
        .run()
        .expect("code of the schema; as root: apt-get install capnproto");
}
