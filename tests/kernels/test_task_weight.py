"""The weight that a task runs with, beside Eq. (4) as it is written; and the owner byte."""

from __future__ import annotations

import pytest
import torch

import lps_kernels
from lps_kernels._registry import REGISTRY
from lps_kernels.ops.bits import pack_reference, unpack_reference
from lps_kernels.owner import FREE, MAX_TASKS, free_coordinates, is_kept, task_of
from tests.helpers import assert_same_bits

OP = REGISTRY["task_weight"]


def test_every_owner_byte_is_a_task_or_free_and_kept_or_not() -> None:
    owner = torch.arange(256).byte()
    assert task_of(owner).tolist() == [*range(128), *range(128)]
    assert free_coordinates(owner).nonzero().flatten().tolist() == [FREE, 128]
    assert is_kept(owner).nonzero().flatten().tolist() == [*range(128, 256)]
    assert int(task_of(owner).max()) == MAX_TASKS


@pytest.mark.parametrize("dtype", OP.dtypes, ids=str)
def test_it_has_the_bits_of_the_sum_of_own_and_selected_weights(dtype: torch.dtype) -> None:
    for sample in OP.samples(dtype):
        w_bar, owner, bits, task, out = sample.args
        owned = task_of(owner) == task
        # A mask covers what earlier tasks own: never the task's own weights.
        mask = pack_reference(unpack_reference(bits, owner.shape) & ~owned)
        want = lps_kernels.compose(torch.where(owned, w_bar, 0), mask, w_bar)
        lps_kernels.task_weight(w_bar, owner, mask, task, out)
        assert_same_bits([out], [want], sample.name)


def test_a_committed_negative_zero_is_a_positive_one() -> None:
    w_bar, owner, bits = torch.full((20,), -0.0), torch.arange(20).byte() % 2, pack_reference(torch.arange(20) < 9)
    assert not lps_kernels.task_weight(w_bar, owner, bits, 1).signbit().any()


def test_a_weight_that_is_both_owned_and_selected_counts_once() -> None:
    w_bar, owner = torch.randn(4, 5), torch.ones(4, 5, dtype=torch.uint8)
    weight = lps_kernels.task_weight(w_bar, owner, pack_reference(owner.bool()), 1)
    assert torch.equal(weight, w_bar)


def test_without_out_the_result_is_new_and_contiguous() -> None:
    w_bar, owner = torch.randn(6, 4).t(), torch.ones(4, 6, dtype=torch.uint8)
    weight = lps_kernels.task_weight(w_bar, owner, torch.zeros(3, dtype=torch.uint8), 1)
    assert torch.equal(weight, w_bar)
    assert weight.is_contiguous()
    out = torch.zeros(4, 6)
    assert lps_kernels.task_weight(w_bar, owner, torch.zeros(3, dtype=torch.uint8), 1, out) is out
