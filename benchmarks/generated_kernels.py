"""The kernels, copies and collectives of generated traces, with the names of real ones."""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

MULTIPROCESSORS = 132
Kind = Literal["compute", "communication", "copy", "fill"]


# Not slotted: what a kernel looks like in a file is put together once.
@dataclass(frozen=True, kw_only=True)
class Work:
    """Something that a device does: its name, the operators that launch it, and its mean time."""

    kind: Kind = "compute"
    name: str
    outer: str
    inner: str
    mean_us: float = 0.0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: int = 128
    occupancy_percent: int = 0
    bytes: int = 0

    @property
    def blocks_per_sm(self) -> float:
        """Blocks over multiprocessors, with the six digits that a file gives."""
        return round(prod(self.grid) / MULTIPROCESSORS, 6)

    @cached_property
    def arguments(self) -> str:
        """Its own part of the arguments of its event."""
        if self.kind in {"copy", "fill"}:
            return ""
        warps = self.blocks_per_sm * self.block / 32
        x, y, z = self.grid
        return (
            f'"registers per thread": 96, "shared memory": 49152, '
            f'"blocks per SM": {self.blocks_per_sm:.6f}, "warps per SM": {warps:.6f}, '
            f'"grid": [{x}, {y}, {z}], "block": [{self.block}, 1, 1], '
            f'"est. achieved occupancy %": {self.occupancy_percent}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One collective on one group: what the profiler copies into the arguments of its kernel."""

    work: Work
    collective: str
    annotation: str
    in_elements: int
    out_elements: int
    group_name: str
    group_description: str
    ranks: tuple[int, ...]
    factor: float = field(default=1.0)
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""

    @property
    def bytes(self) -> int:
        """The whole buffer in bfloat16."""
        return 2 * max(self.in_elements, self.out_elements)

    @property
    def arguments(self) -> str:
        """Its arguments as they stand in a file."""
        return (
            f'"Collective name": "{self.collective}", "In msg nelems": {self.in_elements}, '
            f'"Out msg nelems": {self.out_elements}, "Group size": {len(self.ranks)}, '
            f'"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{self.group_name}", '
            f'"Process Group Description": "{self.group_description}", '
            f'"Process Group Ranks": "{list(self.ranks)}"'
        )


DENSE = (
    Work(
        name="nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNT",
        outer="aten::linear",
        inner="aten::mm",
        mean_us=190,
        grid=(2, 66, 1),
        block=384,
        occupancy_percent=19,
    ),
    Work(
        name="void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add"
        "<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add"
        "<c10::BFloat16>, std::array<char*, 3ul>)",
        outer="aten::add",
        inner="aten::add",
        mean_us=24,
        grid=(16, 2, 1),
        occupancy_percent=1,
    ),
    Work(
        name="triton_red_fused__to_copy_mean_mul_pow_rsqrt_1",
        outer="aten::rms_norm",
        inner="aten::_fused_rms_norm",
        mean_us=31,
        grid=(4096, 1, 1),
        block=256,
        occupancy_percent=92,
    ),
    Work(
        name="void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
        "cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, "
        "true, false, false, true, true, false>(flash::Flash_fwd_params)",
        outer="aten::scaled_dot_product_attention",
        inner="aten::_scaled_dot_product_flash_attention",
        mean_us=140,
        grid=(32, 2, 16),
        occupancy_percent=12,
    ),
    Work(
        name="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
        "_execute_segment_k_off_kernel__5x_cublas",
        outer="aten::linear",
        inner="aten::addmm",
        mean_us=165,
        grid=(8, 12, 1),
        block=384,
        occupancy_percent=16,
    ),
    Work(
        name="triton_poi_fused_add_mul_silu_3",
        outer="aten::silu",
        inner="aten::mul",
        mean_us=27,
        grid=(2048, 1, 1),
        block=512,
        occupancy_percent=98,
    ),
    Work(
        name="void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, "
        "float, 11, false, false>(c10::BFloat16*, c10::BFloat16 const*, int, int, int, bool "
        "const*, int, bool)",
        outer="aten::softmax",
        inner="aten::_softmax",
        mean_us=18,
        grid=(64, 1, 1),
        occupancy_percent=7,
    ),
)
EXPERTS = (
    Work(
        name="void vllm::moe::topkGatingSoftmax<8, 64, 4, 16, 64, int>(float const*, bool const*, "
        "float*, int, int*, int*, int, int, int)",
        outer="_moe_C::topk_softmax",
        inner="_moe_C::topk_softmax",
        mean_us=9,
        grid=(256, 1, 1),
        occupancy_percent=20,
    ),
    Work(
        name="fused_moe_kernel",
        outer="vllm::fused_experts",
        inner="vllm::invoke_fused_moe_kernel",
        mean_us=210,
        grid=(1, 96, 8),
        occupancy_percent=25,
    ),
)
OPTIMIZER = Work(
    name="void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false> >",
    outer="Optimizer.step#AdamW.step",
    inner="aten::_fused_adamw_",
    mean_us=88,
    grid=(320, 1, 1),
    block=512,
    occupancy_percent=75,
)
LOAD = Work(
    kind="copy",
    name="Memcpy HtoD (Pinned -> Device)",
    outer="aten::to",
    inner="aten::copy_",
    mean_us=5.2,
    bytes=65536,
)
CLEAR = Work(
    kind="fill",
    name="Memset (Device)",
    outer="aten::zero_",
    inner="aten::zero_",
    mean_us=3.1,
    bytes=1 << 20,
)


def collective_work(name: str, operator: str) -> Work:
    """The kernel of a collective."""
    return Work(
        kind="communication",
        name=name,
        outer=operator,
        inner="record_param_comms",
        grid=(24, 1, 1),
        block=544,
        occupancy_percent=4,
    )


ALL_GATHER = collective_work(
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::_allgather_base_"
)
REDUCE_SCATTER = collective_work(
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "c10d::_reduce_scatter_base_",
)
ALL_REDUCE = collective_work(
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::allreduce_"
)
ALL_TO_ALL = collective_work(
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::alltoall_base_"
)
