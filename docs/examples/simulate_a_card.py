"""Find out which methods let a network train on a card that you do not have, and what they cost in time.

The model lies on the meta device, so nothing is allocated and no GPU is needed. Seconds are predicted from the
card's datasheet, memory from the schedule. docs/simulation.md describes the simulation and its accuracy.
"""

import torch
from torch import nn
from torchvision.models import resnet50

import membench
from membench.core.errors import OutOfMemory
from membench.core.hardware.device import DeviceProfile

CARD = DeviceProfile(
    name="an 8 GB card",
    memory_bytes=8 * 2**30,
    arithmetic_ops_per_s=10e12,  # peak, single precision
    memory_bytes_per_s=450e9,  # peak
    host_to_device_bytes_per_s=12e9,  # reached by copies from page-locked memory
    device_to_host_bytes_per_s=12e9,
    copy_latency_s=1e-5,
    full_duplex=True,  # two copy engines
)


def main() -> None:
    """Print memory and images per second of ResNet-50 under several methods."""
    with torch.device("meta"):
        model = resnet50()
        batch = torch.randn(128, 3, 224, 224), torch.randint(1000, (128,))
    print(f"ResNet-50, 128 images a step, on {CARD.name}")
    for strategy in ("eager", "memonger", "superneurons", "vdnn_all", "layrub_hybrid"):
        try:
            step = membench.compile(
                model, nn.functional.cross_entropy, batch, strategy=strategy, backend="simulated", device=CARD
            )
        except OutOfMemory as refusal:
            print(f"{strategy:<14} {refusal}")
            continue
        memory_gib = step.predicted_peak_bytes / 2**30
        print(f"{strategy:<14} {memory_gib:5.2f} GB   {step.measure().images_per_s:5.1f} images/s (simulated)")


if __name__ == "__main__":
    main()
