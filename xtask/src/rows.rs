//! Later.
pub(crate) fn rows(_: &crate::world::World, _: crate::args::Args) -> anyhow::Result<()> {
    Ok(())
}
