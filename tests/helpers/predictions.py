"""Print predictions of networks whose operators depend on what torch was built for, as JSON.

`.ci/without-cuda` compares what two builds print.
"""

import sys

import torch

from membench.cli.main import main

NETWORKS = ("efficientnet_b0", "llama_1b", "vit_b_16")
"""SiLU; RMS norm and attention; layer norm, GELU and attention. All have convolutions, batch norms or products."""
STEP = ("device=h100", "batch_size=4", "precision=amp_bf16", "optimizer=adamw", "output=json")


def vision_operators() -> torch.library.Library:
    """Return definitions of operators whose library, torchvision's for CUDA, such a torch cannot load; none runs."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    defined = None if torch.backends.cuda.is_built() else vision_operators()
    sys.exit(max(main(["predict", f"model={name}", *STEP]) for name in NETWORKS))
