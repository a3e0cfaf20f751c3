"""Steps on several GPUs, predicted: what is asked for, and what follows from the cluster."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import membench
from membench.core.errors import MembenchError
from membench.core.hardware.cluster import Cluster
from membench.core.step.workload import Workload
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.prediction import Prediction
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

WIDTH = 256
CLUSTER = Cluster(devices_per_host=8, device="a100_40gb", peer_bytes_per_s=200e9, network_bytes_per_s=200e9)


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


with torch.device("meta"):
    NETWORK = nn.Sequential(*(Block() for _ in range(6)), nn.Linear(WIDTH, 10))
    BATCH = torch.zeros(4096, WIDTH), torch.zeros(4096, dtype=torch.long)


def predicted(cluster: Cluster | None = CLUSTER, **options: object) -> Prediction:
    return membench.predict(
        NETWORK,
        nn.functional.cross_entropy,
        BATCH,
        cluster=cluster,
        optimizer="adamw",
        **options,  # type: ignore[arg-type]
    )


def test_more_ranks_hold_less_and_take_part_in_collectives() -> None:
    one = predicted(None, device="a100_40gb")
    eight, sixteen = predicted(), predicted(nodes=2)
    assert one.allocated_bytes > eight.allocated_bytes > sixteen.allocated_bytes
    assert one.exposed_communication_s == 0 < eight.exposed_communication_s <= sixteen.exposed_communication_s
    assert eight.batch_size == one.batch_size == 4096


@pytest.mark.slow
def test_a_slower_network_takes_longer_and_only_between_hosts() -> None:
    slow = replace(CLUSTER, network_bytes_per_s=1e9)
    assert predicted(slow).step_time_s == predicted().step_time_s
    assert predicted(slow, nodes=2).step_time_s > 1.5 * predicted(nodes=2).step_time_s
    hybrid = predicted(slow, nodes=2, parallel={"dp": 2, "fsdp": 8})
    assert hybrid.step_time_s < predicted(slow, nodes=2).step_time_s
    assert hybrid.allocated_bytes > predicted(slow, nodes=2).allocated_bytes


def test_ranks_that_share_a_link_to_the_host_copy_for_longer() -> None:
    own, shared = (
        predicted(replace(CLUSTER, devices_per_link=number), strategy="geeps", budget=130e6) for number in (1, 8)
    )
    assert own.host_bytes == shared.host_bytes > 0
    assert shared.step_time_s > own.step_time_s


def test_replicas_hold_all_weights_and_buckets() -> None:
    one, replicas = predicted(None, device="a100_40gb"), predicted(parallel={"dp": 8})
    gradients_bytes = 4 * sum(weight.numel() for weight in NETWORK.parameters())
    assert replicas.parts_bytes["weights"] == one.parts_bytes["weights"]
    assert replicas.parts_bytes["weight gradients"] >= gradients_bytes
    assert replicas.step_time_s > one.step_time_s


def test_a_step_of_several_micro_batches_lasts_as_many_times_as_long_with_their_gradients_added_up() -> None:
    one, four = predicted(), predicted(accumulate=4)
    assert four.batch_size == 4 * 4096
    assert 4 * one.step_time_s == pytest.approx(four.step_time_s, rel=0.02)
    shards_bytes = 4 * sum(weight.numel() for weight in NETWORK.parameters()) / 8
    assert four.parts_bytes["weight gradients"] == pytest.approx(shards_bytes, rel=0.01)


def test_replicas_add_up_micro_batches_and_exchange_their_gradients_once() -> None:
    one, four = (predicted(parallel={"dp": 8}, accumulate=number) for number in (1, 4))
    assert four.batch_size == 4 * 4096
    assert 3 * one.step_time_s < four.step_time_s < 4 * one.step_time_s
    assert four.exposed_communication_s <= one.exposed_communication_s


def test_blocks_at_the_ends_count_or_not() -> None:
    cluster = replace(CLUSTER, devices_per_host=3)
    options = {"parallel": {"pp": 3}, "accumulate": 3, "wrapped": ["Block"]}
    found = [ranks_of(NETWORK, cluster, **options, end_blocks=number).pipeline for number in (0, 1, 3)]  # type: ignore[arg-type]
    assert [pipeline and pipeline.begins for pipeline in found] == [("2", "4"), ("2", "5"), ("1", "5")]


def test_one_bucket_is_exchanged_behind_the_backward_pass() -> None:
    workload = Workload("blocks", NETWORK, nn.CrossEntropyLoss(), *((each,) for each in BATCH))
    buckets, one = (
        Predictor(
            workload, StepRequest(PyTorch()), ranks=ranks_of(NETWORK, CLUSTER, parallel={"dp": 8}, bucket_bytes=size)
        )
        for size in (None, 1 << 40)
    )
    graphs = (each.graph_on() for each in (buckets, one))
    counts = [sum(task.collective is not None for task in (graph.plain or graph).tasks) for graph in graphs]
    assert counts[0] > counts[1] == 1


def test_weights_that_stay_gathered_cost_memory_and_less_communication() -> None:
    given_back, stay = predicted(), predicted(reshard_after_forward=False)
    assert stay.allocated_bytes > given_back.allocated_bytes
    assert stay.exposed_communication_s <= given_back.exposed_communication_s
    assert stay.parts_bytes["gathered weights"] > given_back.parts_bytes["gathered weights"]


def test_utilization_counts_no_operation_twice() -> None:
    prediction = predicted(precision="bf16")
    operations = 6 * 4096 * sum(weight.numel() for weight in NETWORK.parameters() if weight.ndim == 2)
    at_peak_s = operations / 312e12
    first = 2 * 4096 * 4 * WIDTH * WIDTH / 312e12  # the first layer's inputs need no gradient
    assert prediction.utilization == pytest.approx((at_peak_s - first) / prediction.step_time_s, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": {"xp": 8}}, "no axis xp"),
        ({"parallel": {"ep": 8}}, "no module with an attribute num_experts"),
        ({"parallel": {"fsdp": 4}}, "8"),
        ({"wrapped": ["Transformer"]}, "no module of a class Transformer"),
        ({"stages": 2}, "stages is for ranks along an axis pp"),
        ({"pipeline": "1F1B"}, "pipeline is for ranks along an axis pp"),
        ({"parallel": {"dp": 8}, "wrapped": ["Block"]}, "wrapped is for ranks along an axis pp or fsdp"),
        ({"parallel": {"dp": 8}, "reshard_after_forward": False}, "reshard_after_forward is for"),
        ({"parallel": {"pp": 8}, "reduce_dtype": torch.float32}, "reduce_dtype is for"),
    ],
)
def test_what_cannot_be_divided_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        ranks_of(NETWORK, CLUSTER, **options)  # type: ignore[arg-type]


def test_sizes_of_an_axis_are_swept_over_with_the_same_options() -> None:
    options = {"pipeline": "GPipe", "accumulate": 8}
    stages = [ranks_of(NETWORK, CLUSTER, parallel={"pp": size, "dp": 8 // size}, **options) for size in (1, 2)]  # type: ignore[arg-type]
    assert stages[0].mesh.axes == (("dp", 8),) and stages[1].pipeline is not None


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": 2},
        {"parallel": {"fsdp": 8}},
        {"wrapped": ["Block"]},
        {"reshard_after_forward": False},
        {"reduce_dtype": torch.float32},
        {"partition_optimizer": True},
        {"tensor_parallel": {}},
        {"pipeline": "1F1B"},
        {"stages": 1},
    ],
)
def test_options_of_several_gpus_need_a_cluster(options: dict[str, object]) -> None:
    with pytest.raises(MembenchError, match=f"{next(iter(options))}: options of several GPUs"):
        predicted(None, device="a100_40gb", **options)


def test_a_device_or_a_cluster_with_one_is_needed() -> None:
    with pytest.raises(MembenchError, match="needs a device"):
        predicted(replace(CLUSTER, device=""))
