"""The peer of benchmarks/recovery.py: the digits of examples/mnist by PyTorch DDP, with torchrun.

    torchrun --nproc-per-node 2 --max-restarts 9 recovery_peer.py DIRECTORY

Rank 0 saves every SAVE_STEPS steps, and writes each step to DIRECTORY/step; every rank writes its
process id to DIRECTORY/pid-RANK.
"""

import os
import sys
from pathlib import Path
from typing import Any

SAVE_STEPS = 20
BATCH = 64


def replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def main() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    saved, step = directory / "model.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(state["step"])
    parallel = nn.parallel.DistributedDataParallel(model)
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(512, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (512,), generator=generator)
    replace(directory / f"pid-{rank}", str(os.getpid()))
    while True:
        at = step * BATCH % 512
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            parallel(images[at : at + BATCH]), labels[at : at + BATCH]
        )
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % SAVE_STEPS == 0:
            new = directory / "model.new"
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                new,
            )
            new.replace(saved)
        if rank == 0:
            replace(directory / "step", str(step))


if __name__ == "__main__" and "RANK" in os.environ:
    main()
