"""Faults to put into the text of the CUDA kernels, one at a time, and what has to find each of them.

Every family of kernels has one of each kind that it can have: only those with shared memory can miss a barrier, only
those with atomics can lose one, only those with collectives can let lanes diverge, only those with forecasts can leave
a wrong one standing.
"""

from __future__ import annotations

from dataclasses import dataclass

# The build that finds a kind of fault, and what its report says.
REPORTS = {
    "missing barrier": ("thread", "ThreadSanitizer: data race"),
    "lost atomic": ("thread", "ThreadSanitizer: data race"),
    "out of bounds": ("address", "AddressSanitizer: heap-buffer-overflow"),
    "divergent collective": ("plain", "divergent collective"),
    "uncorrected forecast": ("plain", "AssertionError: not the reference's bits"),
}


@dataclass(frozen=True)
class Fault:
    """The first ``old`` behind ``where`` in a file of csrc/cuda becomes ``new``; ``where`` is there exactly once.

    ``unit`` is the source that includes the file, and ``sample`` the one of fp32 (or else the op's first dtype) that
    meets the fault. ``upload`` is no op; its sample is in run_faults.
    """

    family: str
    kind: str
    file: str
    where: str
    old: str
    new: str
    unit: str
    op: str
    sample: str

    @property
    def build(self) -> str:
        return REPORTS[self.kind][0]

    @property
    def report(self) -> str:
        return REPORTS[self.kind][1]

    def put_into(self, text: str) -> str:
        """The file's text with the fault in it."""
        before, where, after = text.partition(self.where)
        if text.count(self.where) != 1 or self.old not in after:
            raise ValueError(f"{self.file}: not once, or not followed by {self.old!r}: {self.where!r}")
        return before + where + after.replace(self.old, self.new, 1)


# The sources of each family that have kernels or parts of them to themselves.
FAMILIES = {
    "bits": ["bits.cuh"],
    "compose": ["compose.cuh"],
    "step": ["step.cuh"],
    "scores": ["scores.cuh"],
    "select": ["rank.cuh", "select.cuh", "resolve.cuh"],
    "project": ["project.cuh"],
    "straight": ["straight.cuh"],
    "dense products": ["matrix.cuh", "mma.cuh", "operands.cuh", "results.cuh"],
    "sparse products": ["sparse.cuh"],
    "upload": ["upload.cuh"],
}

SYNC = "__syncthreads();"

FAULTS = [
    Fault(
        "bits",
        "out of bounds",
        "bits.cuh",
        where="bytes_of_bits(const PackPlace& bools)",
        old="parts_of(bools.existing, 8)",
        new="parts_of(bools.existing, 8) + 1",
        unit="bits.cu",
        op="pack_bits",
        sample="size 17",
    ),
    Fault(
        "compose",
        "out of bounds",
        "compose.cuh",
        where="// A pack is a byte of bits or half of one.",
        old="bytes[place.first / 8]",
        new="bytes[place.first / 8 + 1]",
        unit="compose.cu",
        op="compose",
        sample="size 33, bits mask",
    ),
    Fault(
        "compose",
        "out of bounds",
        "compose.cuh",
        where="load_pack<kBitPack>(owner, place);",
        old="bits[place.first / 8]",
        new="bits[place.first / 8 + 1]",
        unit="compose.cu",
        op="task_weight",
        sample="size 33",
    ),
    Fault(
        "step",
        "missing barrier",
        "step.cuh",
        where="shared->row = layer_of_chunk(rows, row_count, chunk);",
        old=SYNC,
        new="",
        unit="step.cu",
        op="proximal_adam_",
        sample="free move",
    ),
    Fault(
        "step",
        "missing barrier",  # before the row is overwritten: a block has several of the eleven layers
        "step.cuh",
        where="LPS_SHARED(GradRow, shared);",
        old=SYNC,
        new="",
        unit="step.cu",
        op="proximal_grad_",
        sample="free move",
    ),
    Fault(
        "step",
        "out of bounds",
        "step.cuh",
        where="const AdamRow& row = shared->row;",
        old="row.layer.count",
        new="row.layer.count + 1",
        unit="step.cu",
        op="proximal_adam_",
        sample="free move",
    ),
    Fault(
        "scores",
        "missing barrier",
        "scores.cuh",
        where="return jobs[i].first_fold;",
        old=SYNC,
        new="",
        unit="scores.cu",
        op="group_scores",
        sample="all equal columns",
    ),
    Fault(
        "scores",
        "out of bounds",
        "scores.cuh",
        where="void sum_columns(",
        old="column >= job.columns || ",
        new="",
        unit="scores.cu",
        op="group_scores",
        sample="all equal columns",
    ),
    Fault(
        "scores",
        "divergent collective",
        "scores.cuh",
        where="GroupSum sum = fold_group(",
        old="if (lanes > 1)",
        new="if (lanes > 1 && lane < 16)",
        unit="scores.cu",
        op="group_scores",
        sample="a long run in a group",
    ),
    Fault(
        "select",
        "missing barrier",
        "rank.cuh",
        where="if (lane == 31) shared->sums[warp] = running;",
        old=SYNC,
        new="",
        unit="select.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "select",
        "lost atomic",
        "rank.cuh",
        where="RankedKey<Key> radix_select(",
        old="atomicAdd(&shared->bins[static_cast<uint32_t>(key >> rest) & (bins - 1)], 1u)",
        new="++shared->bins[static_cast<uint32_t>(key >> rest) & (bins - 1)]",
        unit="select.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "select",
        "lost atomic",
        "resolve.cuh",
        where="int64_t last_tie(",
        old="atomicAdd(&tally(chunk).ties, found)",
        new="tally(chunk).ties += found",
        unit="select.cu",
        op="project",
        sample="all equal, keep some",
    ),
    Fault(
        "select",
        "out of bounds",
        "select.cuh",
        where="void place_candidates(",
        old="slot == 0 ? at :",
        new="slot == 0 ? at + kChunk :",
        unit="select.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "select",
        "divergent collective",
        "select.cuh",
        where="void place_candidates(",
        old="lanes[j] = __ballot_sync(0xffffffffu, bits >> j & 1);",
        new="lanes[j] = bits == 0 ? 0 : __ballot_sync(0xffffffffu, bits >> j & 1);",
        unit="select.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "project",
        "missing barrier",
        "project.cuh",
        where="project_kernel(SelectBatch batch, Output output)",
        old="stage_results(batch, chunk, shared);\n    __syncthreads();",
        new="stage_results(batch, chunk, shared);",
        unit="project.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "project",
        "missing barrier",
        "project.cuh",
        where="admm_update_kernel(SelectBatch batch)",
        old="stage_results(batch, chunk, shared);\n    __syncthreads();",
        new="stage_results(batch, chunk, shared);",
        unit="project.cu",
        op="admm_update_",
        sample="v not contiguous",
    ),
    Fault(
        "project",
        "out of bounds",
        "project.cuh",
        where="uint32_t group_bits(",
        old="group + 1 == g ? 0 : group + 1",
        new="group + 1",
        unit="project.cu",
        op="project",
        sample="all equal columns, keep some",
    ),
    Fault(
        "project",
        "divergent collective",
        "project.cuh",
        where="void store_bits(",
        old="const uint32_t next = __shfl_down_sync(0xffffffffu, kept, 1);",
        new="const uint32_t next = place.existing > 0 ? __shfl_down_sync(0xffffffffu, kept, 1) : 0;",
        unit="project.cu",
        op="project",
        sample="size 33, keep some",
    ),
    Fault(
        "straight",
        "missing barrier",  # before the tallies are written
        "straight.cuh",
        where="atomicAdd(&shared->tally[role].above, count >> 16);",
        old=SYNC,
        new="",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="all free",
    ),
    Fault(
        "straight",
        "missing barrier",
        "straight.cuh",
        where="stage_settling(batch, chunk, shared);",
        old=SYNC,
        new="",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="all free",
    ),
    Fault(
        "straight",
        "lost atomic",
        "straight.cuh",
        where="const uint32_t count = sum_warp(counts[role]);",
        old="atomicAdd(&shared->tally[role].above, count >> 16)",
        new="shared->tally[role].above += count >> 16",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="all equal",
    ),
    Fault(
        "straight",
        "out of bounds",
        "straight.cuh",
        where="straight_step_kernel(",
        old="row.layer.count",
        new="row.layer.count + 1",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="all free",
    ),
    Fault(
        "straight",
        "out of bounds",  # in weights that learn
        "straight.cuh",
        where="void learn_pack(",
        old="load_pack<N>(static_cast<const T*>(layer.weight_exp_avg), place)",
        new="load_pack<N>(static_cast<const T*>(layer.weight_exp_avg) + 1, place)",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="weights learn, all owned",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="void correct_candidates(",
        old="survives == (key > shared.bounds[role])",
        new="!survives || survives == (key > shared.bounds[role])",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="large, good thresholds, emerging False",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="void correct_candidates(",
        old="coordinate <= result.last_tie",
        new="coordinate < result.last_tie",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="all equal",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="right = resolved.cut_off ?",
        old="resolved.collected",
        new="true",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="large, missing thresholds, emerging False",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="right = resolved.cut_off ?",
        old="expected.bound < job.floor",
        new="true",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="large, half good thresholds, emerging True",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="void write_threshold(",
        old="thresholds[0] = weakest;",
        new="",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="large, good thresholds, emerging False",
    ),
    Fault(
        "straight",
        "uncorrected forecast",
        "straight.cuh",
        where="const bool known = ",
        old=" && nans == 0",
        new="",
        unit="straight.cu",
        op="straight_through_adam_",
        sample="NaN and Inf, emerging False",
    ),
    Fault(
        "dense products",
        "missing barrier",
        "matrix.cuh",
        where="Word<T>* next = shared + ",
        old=SYNC,
        new="",
        unit="linear.cu",
        op="structured_linear",
        sample="33 inputs",
    ),
    Fault(
        "dense products",
        "missing barrier",  # before the sums overwrite the factors
        "matrix.cuh",
        where="constexpr int kStride = kTile + 1;",
        old=SYNC,
        new="",
        unit="linear.cu",
        op="masked_linear",
        sample="33 examples",
    ),
    Fault(
        "dense products",
        "out of bounds",
        "matrix.cuh",
        where="typename Factor::Row row = row_;",
        old="slot < more_ ? kApart : 0",
        new="kApart",
        unit="linear.cu",
        op="masked_linear",
        sample="33 examples",
    ),
    Fault(
        "dense products",
        "out of bounds",
        "operands.cuh",
        where="const bool inside = ",
        old="return inside ? x[row.origin + column.offset] : zero<T>();",
        new="return x[row.origin + column.offset];",
        unit="convolution.cu",
        op="structured_conv2d",
        sample="padded, columns False, rows False",
    ),
    Fault(
        "dense products",
        "divergent collective",
        "matrix.cuh",
        where="const Place at;",
        old="if (!idle) multiply_step",
        new="if (!idle && at.lane < 16) multiply_step",
        unit="linear.cu",
        op="structured_linear",
        sample="33 inputs",
    ),
    Fault(
        "sparse products",
        "missing barrier",
        "sparse.cuh",
        where="tile.totals[i / 32] = end;",
        old=SYNC,
        new="",
        unit="sparse.cu",
        op="sparse_linear",
        sample="33 outputs",
    ),
    Fault(
        "sparse products",
        "out of bounds",
        "sparse.cuh",
        where="int count = 0, end = 0;",
        old="if (i < rows) bits = ",
        new="bits = ",
        unit="sparse.cu",
        op="sparse_linear",
        sample="33 outputs",
    ),
    Fault(
        "sparse products",
        "divergent collective",
        "sparse.cuh",
        where="int count = 0, end = 0;",
        old="const int before = __shfl_up_sync(kAllLanes, end, step);",
        new="const int before = lane >= step ? __shfl_up_sync(kAllLanes, end, step) : 0;",
        unit="sparse.cu",
        op="sparse_linear",
        sample="33 outputs",
    ),
    Fault(
        "upload",
        "out of bounds",
        "upload.cuh",
        where="upload_kernel(",
        old="i < count",
        new="i <= count",
        unit="upload.cu",
        op="upload",
        sample="a table",
    ),
]
