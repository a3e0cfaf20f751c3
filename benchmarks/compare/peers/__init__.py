"""Other tools, a file for each."""

from benchmarks.compare.peers.accelerate_offload import AccelerateOffload
from benchmarks.compare.peers.budgeted_compile import BudgetedCompile
from benchmarks.compare.peers.checkpoint import Checkpoint
from benchmarks.compare.peers.deepspeed_checkpoint import DeepSpeedCheckpoint
from benchmarks.compare.peers.offload_activations import TorchtuneOffloadActivations, TrlOffloadActivations
from benchmarks.compare.peers.peer import Peer
from benchmarks.compare.peers.save_on_cpu import SavedOnCpu
from benchmarks.compare.peers.selective import SelectiveCheckpoint

TRAINING_PEERS: dict[str, Peer] = {
    "checkpoint": Checkpoint(),
    "checkpoint, preserve_rng_state=False": Checkpoint(preserve_rng_state=False),
    "selective checkpoint": SelectiveCheckpoint(),
    "save_on_cpu": SavedOnCpu(),
    "torchtune OffloadActivations": TorchtuneOffloadActivations(),
    "TRL OffloadActivations": TrlOffloadActivations(),
    "compile": BudgetedCompile(1.0),
    "compile, activation_memory_budget=0.5": BudgetedCompile(0.5),
    "compile, activation_memory_budget=0": BudgetedCompile(0.0),
    "DeepSpeed checkpointing": DeepSpeedCheckpoint(),
}
INFERENCE_PEERS: dict[str, Peer] = {"accelerate cpu_offload": AccelerateOffload()}
