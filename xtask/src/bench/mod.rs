//! Later.
pub(crate) fn bench(_: &crate::world::World, _: crate::args::Args) -> anyhow::Result<()> {
    Ok(())
}
