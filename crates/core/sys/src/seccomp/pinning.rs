//! Requests by which drivers pin memory of the program for a device.

/// `ioctl` of NVIDIA's driver that allocates: `NV_ESC_RM_ALLOC_MEMORY`. Of requests only the lower halves are
/// told here; the upper ones say how long the argument is.
pub const NVIDIA_ALLOCATE: u32 = 0x4627;
/// `VFIO_IOMMU_MAP_DMA`.
pub const VFIO_MAP: u32 = 0x3b71;
/// `IOMMU_IOAS_MAP`.
pub const IOMMUFD_MAP: u32 = 0x3b85;
/// What is looked at of a request.
pub const REQUEST_MASK: u32 = 0xffff;
/// All requests of `ioctl` that pin.
pub(super) const REQUESTS: [u32; 3] = [NVIDIA_ALLOCATE, VFIO_MAP, IOMMUFD_MAP];

/// Of `setsockopt`: the level of AF_XDP.
pub const SOL_XDP: u32 = 283;
/// Its option that pins the memory of a ring.
pub const XDP_UMEM_REG: u32 = 4;
