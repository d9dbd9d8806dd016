"""Accelerators, by the names that device plugins document."""

import cel
import pytest
from ddp_operator.api.devices import is_accelerator, is_accelerator_cel
from hypothesis import given
from hypothesis import strategies as st

ACCELERATORS = (
    *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu-h100"),
    *("nvidia.com/mig-3g.40gb.shared", "nvidia.com/pgpu", "nvidia.com/vgpu", "amd.com/gpu"),
    *("amd.com/cpx_nps4", "amd.com/spx_nps1", "gpu.intel.com/i915", "gpu.intel.com/xe"),
    *("habana.ai/gaudi", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "google.com/tpu"),
    *("huawei.com/Ascend910", "huawei.com/Ascend910B3", "huawei.com/npu", "cambricon.com/mlu"),
    *("hygon.com/dcu", "hygon.com/dcunum", "metax-tech.com/gpu", "metax-tech.com/sgpu"),
    *("iluvatar.ai/gpu", "mthreads.com/gpu", "kunlunxin.com/xpu", "enflame.com/gcu"),
    *("volcano.sh/vgpu-number", "k8s.amazonaws.com/vgpu", "aliyun.com/gpu-count"),
)
OTHERS = (
    *("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "kubernetes.io/batch-cpu"),
    *("rdma/hca", "vpc.amazonaws.com/efa", "nvidia.com/gpumem", "nvidia.com/gpucores"),
    *("nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory", "aliyun.com/gpu-mem"),
    *("gpu.intel.com/i915_monitoring", "gpu.intel.com/xe_monitoring", "amd.com/gpumem"),
    *("gpu.intel.com/millicores", "gpu.intel.com/memory.max", "huawei.com/Ascend910B3-memory"),
    *("koordinator.sh/gpu", "koordinator.sh/gpu-core", "cambricon.com/mlu.smlu.vmemory"),
    *("hygon.com/dcumem", "smarter-devices/fuse", "github.com/fuse", "nvidia.com/hostdev"),
)
_IS_ACCELERATOR = cel.compile(is_accelerator_cel("k"))


@pytest.mark.parametrize("name", [*ACCELERATORS, *OTHERS])
def test_accelerators_differ_from_other_resources(name: str) -> None:
    assert is_accelerator(name) is (name in ACCELERATORS)


@given(
    st.sampled_from([*ACCELERATORS, *OTHERS])
    | st.builds(
        str.__add__, st.sampled_from([*ACCELERATORS, *OTHERS]), st.text("gpu.-memr_", max_size=4)
    )
)
def test_cel_agrees_with_python(name: str) -> None:
    assert _IS_ACCELERATOR.execute(cel.Context({"k": name})) is is_accelerator(name)
