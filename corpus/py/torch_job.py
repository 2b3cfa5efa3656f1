"""PyTorch on the CPU: training steps, or a DataLoader with worker processes.
usage: torch_job.py train|loader MIB"""
import sys

import torch
from torch.utils.data import DataLoader, Dataset

from common import SEED, digest, size_mib

torch.manual_seed(SEED)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def state_digest(model):
    return digest(*[p.detach().contiguous().numpy() for p in model.parameters()])


def train(mib):
    width = int((mib << 18) / 10) ** 0.5 // 1  # two square layers, their gradients and momentum
    width = int(width) // 16 * 16
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    )
    step = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(32, width)
    for i in range(3):
        step.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x)
        loss.backward()
        step.step()
        print("step", i, f"{loss.item():.9e}", state_digest(model))
    torch.save(model.state_dict(), "model.pt", _use_new_zipfile_serialization=False)
    again = torch.load("model.pt")
    print("loaded", digest(*[t.contiguous().numpy() for t in again.values()]))
    import os

    os.remove("model.pt")  # it holds storage keys, which are addresses


class Rows(Dataset):
    """A table that the workers inherit by fork and read at random places."""

    def __init__(self, mib):
        self.data = torch.randn((mib << 18) // 1024, 1024)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i] * 2, i % 7


def loader(mib):
    rows = Rows(mib)
    generator = torch.Generator().manual_seed(7)
    batches = DataLoader(rows, batch_size=256, shuffle=True, num_workers=2, generator=generator)
    total, labels = torch.zeros(1024, dtype=torch.float64), 0
    for x, y in batches:
        total += x.to(torch.float64).sum(dim=0)
        labels += int(y.sum())
    print("epoch", len(rows), labels, digest(total.numpy()))


{"train": train, "loader": loader}[sys.argv[1]](size_mib())
