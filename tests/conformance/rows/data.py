"""Feeding a program: DataLoader with workers and pinned memory, samplers, numpy and plain Python sources."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, random_split

from tests.conformance.registry import Host, make, row

GROUP = "data"


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """CPU data, made in the worker."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index * index)), index


class Stream(IterableDataset[torch.Tensor]):
    """Every worker yields its own part."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([torch.tensor(float(i)) for i in range(first, 8, step)])


def _epoch(d: str, **options: Any) -> Any:
    batches = []
    for x, y in DataLoader(Squares(), batch_size=4, **options):
        batches.append((x.to(d, non_blocking=True) * 2, y.to(d)))
    return batches


@row(GROUP)
def loader(d: str) -> Any:
    return _epoch(d)


@row(GROUP)
def loader_with_workers(d: str) -> Any:
    make(d, 2).sum().item()  # the device is in use before the workers are forked
    return _epoch(d, num_workers=2)


@row(GROUP)
def loader_with_persistent_workers(d: str) -> Any:
    loader = DataLoader(Squares(), batch_size=5, num_workers=1, persistent_workers=True)
    return [[x.to(d).sum() for x, _ in loader] for _ in range(2)]


@row(GROUP)
def loader_with_pinned_memory(d: str) -> Any:
    return _epoch(d, num_workers=1, pin_memory=torch.accelerator.is_available())


@row(GROUP)
def loader_spawned(d: str) -> Any:
    return _epoch(d, num_workers=1, multiprocessing_context="spawn")


@row(GROUP)
def loader_of_device_tensors(d: str) -> Any:
    return list(DataLoader(TensorDataset(make(d, 6, 2), torch.arange(6, device=d)), batch_size=4))


@row(GROUP)
def loader_collates_device_tensors(d: str) -> Any:
    return list(DataLoader([make(d, 2, seed=i) for i in range(4)], batch_size=2))  # type: ignore[arg-type]


@row(GROUP)
def loader_iterable(d: str) -> Any:
    return sorted(float(x) for batch in DataLoader(Stream(), batch_size=2, num_workers=2) for x in batch.to(d))


@row(GROUP)
def loader_shuffled_by_a_generator(d: str) -> Any:
    order = [DataLoader(Squares(), shuffle=True, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    one, two = ([int(y) for _, y in loader] for loader in order)
    return one == two, one


@row(GROUP)
def loader_under_default_device_cpu_generator(d: str) -> Any:
    with torch.device(d):
        loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
        return list(loader)


@row(GROUP)
def sampler_weighted(d: str) -> Any:
    sampler = WeightedRandomSampler([0.0, 1.0, 0.0], 4)
    return [x.to(d) for x in DataLoader(torch.arange(3.0), sampler=sampler, batch_size=2)]  # type: ignore[arg-type]


@row(GROUP)
def split(d: str) -> Any:
    left, right = random_split(TensorDataset(make(d, 6, 1)), [4, 2], torch.Generator().manual_seed(1))
    return len(left), len(right), [x[0] for x in left]


@row(GROUP)
def collate_keeps_cpu(d: str) -> Any:
    x, _ = next(iter(DataLoader(Squares(), batch_size=2)))
    return Host(x), x.to(d, copy=True)
