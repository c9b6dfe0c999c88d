"""The plan of a tensor says all that the tensor will be."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.fuzzer import ITEM_BYTES, FuzzedTensor, FuzzerError, TensorPlan
from evaluator.timing.timer import materialise

VALUES = {"rows": 3, "columns": 4, "step": 2, "dims": 2, "share": 0.5, "flag": True, "none": 0}


def planned(seed=0, **tensor):
    return FuzzedTensor(name="x", **tensor).plan(VALUES, np.random.default_rng(seed))


@st.composite
def plans(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    return TensorPlan(
        shape=tuple(shape),
        steps=tuple(draw(st.integers(1, 3)) for _ in shape),
        order=tuple(draw(st.permutations(range(len(shape))))),
        dtype=draw(st.sampled_from(sorted(ITEM_BYTES))),
        device="cpu",
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@given(plan=plans())
def test_a_tensor_is_what_its_plan_says(plan):
    tensor = materialise(plan)
    assert tuple(tensor.shape) == plan.shape
    assert tensor.numel() == plan.numel
    assert str(tensor.dtype) == f"torch.{plan.dtype}"
    assert tensor.is_contiguous() is plan.is_contiguous
    assert tensor.untyped_storage().nbytes() == plan.allocation_bytes
    assert torch.equal(tensor, materialise(plan))


@given(plan=plans())
def test_memory_order_is_that_of_the_plan(plan):
    strides = materialise(plan).stride()
    unskipped = [strides[dim] // plan.steps[dim] for dim in plan.order if plan.numel]
    assert unskipped == sorted(unskipped, reverse=True)


def test_steps_and_memory_order_show_in_the_strides():
    plan = TensorPlan(
        shape=(2, 3), steps=(1, 2), order=(1, 0), dtype="float32", device="cpu", seed=1
    )
    assert materialise(plan).stride() == (1, 4)
    assert (plan.allocation_shape, plan.allocation_bytes) == ((2, 6), 48)


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool", "float32", "bfloat16"])
def test_elements_vary_and_stay_in_range(dtype):
    tensor = materialise(planned(size=(1000,), dtype=dtype)).double()
    assert len(tensor.unique()) > 1
    assert 0 <= tensor.min() < tensor.max() < 100


def test_tensors_of_different_seeds_differ():
    assert not torch.equal(materialise(planned(0, size=(9,))), materialise(planned(1, size=(9,))))


@pytest.mark.parametrize(
    ("size", "steps", "dims", "shape", "expected_steps"),
    [
        (("rows", "columns"), None, None, (3, 4), (1, 1)),
        (("rows", 5), ("step", 1), None, (3, 5), (2, 1)),
        (("rows", "columns", 6), (1, "step", 3), "dims", (3, 4), (1, 2)),
        (("rows",), ("step",), "columns", (3, 1, 1, 1), (2, 1, 1, 1)),
        (("rows",), None, "none", (), ()),
        (("none", 2), None, None, (0, 2), (1, 1)),
        ((), None, None, (), ()),
    ],
)
def test_sizes_and_steps_come_from_parameters(size, steps, dims, shape, expected_steps):
    plan = planned(size=size, steps=steps, dim_parameter=dims)
    assert (plan.shape, plan.steps) == (shape, expected_steps)
    assert plan.numel == math.prod(shape)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_share_of_contiguous_tensors_is_as_asked(probability):
    orders = [
        planned(seed, size=(2, 3), probability_contiguous=probability).order for seed in range(500)
    ]
    assert orders.count((0, 1)) / 500 == pytest.approx(probability, abs=0.05)


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"min_elements": 12, "max_elements": 12}, True),
        ({"min_elements": 13}, False),
        ({"max_elements": 11}, False),
        ({"max_allocation_bytes": 96}, True),
        ({"max_allocation_bytes": 95}, False),
    ],
)
def test_a_tensor_out_of_its_limits_has_no_plan(limits, fits):
    plan = planned(size=("rows", "columns"), steps=(2, 1), **limits)
    assert (plan is not None) is fits


@pytest.mark.parametrize(
    "tensor",
    [
        {"size": ("share",)},
        {"size": ("flag",)},
        {"size": (-1,)},
        {"size": (1,), "steps": ("none",)},
        {"size": (1,), "dim_parameter": "share"},
    ],
)
def test_sizes_that_are_no_whole_numbers_are_refused(tensor):
    with pytest.raises(FuzzerError, match=r"tensor 'x': .* give a whole number of at least"):
        planned(**tensor)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"size": (1, 2), "steps": (1,)}, "1 steps for 2 sizes; give one for each"),
        ({"size": (1,), "probability_contiguous": 1.5}, "give 0 to 1"),
        ({"size": (1,), "dtype": "float31"}, "give one of .*float32"),
    ],
)
def test_a_specification_that_makes_no_tensor_is_refused(tensor, message):
    with pytest.raises(FuzzerError, match=message):
        FuzzedTensor(name="x", **tensor)
